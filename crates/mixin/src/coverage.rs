//! `docs/coverage.md`: what people ask of classic tools, and what answers it here.

use crate::catalogue::Catalogue;
use serde::Deserialize;
use std::fmt::Write;

/// A question with its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    pub id: String,
    /// Heading under which it stands.
    pub area: String,
    pub text: String,
    pub answer: Answer,
    /// What the answer does not cover.
    pub note: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Given {
        /// Of the library.
        probes: Vec<String>,
        /// Of the command line.
        commands: Vec<String>,
        /// A probe of one's own.
        yaml: Option<String>,
    },
    /// It is not what an observer of nodes does.
    OutOfScope(String),
    /// It would be, and there is no answer.
    Unanswered(String),
}

/// As the file has it: an area, or a question in it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    area: Option<String>,
    id: Option<String>,
    question: Option<String>,
    #[serde(default)]
    probes: Vec<String>,
    #[serde(default)]
    commands: Vec<String>,
    yaml: Option<String>,
    note: Option<String>,
    out_of_scope: Option<String>,
    unanswered: Option<String>,
}

const FILE: &str = include_str!("../../../probes/coverage.yaml");

/// All questions, in the order of the file.
pub fn questions() -> Vec<Question> {
    let entries: Vec<Entry> = serde_saphyr::from_str(FILE).expect("probes/coverage.yaml is well formed");
    let mut area = String::new();
    let mut questions = Vec::new();
    for entry in entries {
        match (entry.area.clone(), entry.id.clone(), entry.question.clone()) {
            (Some(name), None, None) => area = name,
            (None, Some(id), Some(text)) => {
                let (note, answer) = (entry.note.clone(), answer(&id, entry));
                questions.push(Question { id, area: area.clone(), text, answer, note });
            }
            other => panic!("an entry is an area or a question with its id: {other:?}"),
        }
    }
    questions
}

fn answer(id: &str, entry: Entry) -> Answer {
    let is_given = !entry.probes.is_empty() || !entry.commands.is_empty() || entry.yaml.is_some();
    match (is_given, entry.out_of_scope, entry.unanswered) {
        (true, None, None) => Answer::Given { probes: entry.probes, commands: entry.commands, yaml: entry.yaml },
        (false, Some(reason), None) => Answer::OutOfScope(reason),
        (false, None, Some(reason)) => Answer::Unanswered(reason),
        _ => panic!("{id} has an answer, or one reason for having none"),
    }
}

pub(crate) fn page(catalogue: &Catalogue) -> String {
    let questions = questions();
    let count = |is: fn(&Answer) -> bool| questions.iter().filter(|question| is(&question.answer)).count();
    let own = count(
        |answer| matches!(answer, Answer::Given { probes, commands, .. } if probes.is_empty() && commands.is_empty()),
    );
    let given = count(|answer| matches!(answer, Answer::Given { .. }));
    let mut out = format!(
        "{HEAD}\nOf {} questions, {} are answered by probes of the library and by commands, {own} by a few lines of a probe of one's own, \
         {} are not answered, {} are out of scope.\n",
        questions.len(),
        given - own,
        count(|answer| matches!(answer, Answer::Unanswered(_))),
        count(|answer| matches!(answer, Answer::OutOfScope(_))),
    );
    for area in questions.chunk_by(|one, next| one.area == next.area) {
        let _ = write!(out, "\n## {}\n\n| | question | answer |\n|---|---|---|\n", area[0].area);
        for question in area {
            let _ =
                writeln!(out, "| {} | {} | {} |", question.id, cell(&question.text), answer_cell(question, catalogue));
        }
    }
    out.push_str(OWN);
    for question in &questions {
        if let Answer::Given { yaml: Some(yaml), .. } = &question.answer {
            let _ = write!(out, "\n### {}\n\n{}\n\n```text\n{}\n```\n", question.id, question.text, yaml.trim_end());
        }
    }
    out
}

fn answer_cell(question: &Question, catalogue: &Catalogue) -> String {
    let mut parts: Vec<String> = Vec::new();
    match &question.answer {
        Answer::Given { probes, commands, yaml } => {
            parts.extend(probes.iter().map(|name| probe(name, catalogue)));
            parts.extend(commands.iter().map(|command| format!("`{}`", cell(command))));
            parts.extend(yaml.iter().map(|_| format!("[a probe of one's own](#{})", question.id.to_lowercase())));
        }
        Answer::OutOfScope(reason) => parts.push(format!("out of scope: {}", cell(reason))),
        Answer::Unanswered(reason) => parts.push(format!("**not answered**: {}", cell(reason))),
    }
    let note = question.note.as_ref().map(|note| format!(" ({})", cell(note))).unwrap_or_default();
    format!("{}{note}", parts.join(", "))
}

fn probe(name: &str, catalogue: &Catalogue) -> String {
    let found = catalogue.probes.iter().find(|probe| probe.name == name);
    let found = found.unwrap_or_else(|| panic!("no probe of the library is called {name}"));
    format!("[`{name}`](../probes/{}/{}.yaml)", found.area, found.pack)
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

const HEAD: &str = "\
<!-- Made by `cargo xtask mixin` from probes/coverage.yaml; do not edit. -->

# Questions

What people ask of classic tools, from `ss` and `iostat` to `ftrace` and `perf`, and what answers it here. A name is a [probe of the
library](probes.md), which `kstrobe run --enable NAME` runs where it is off; on which kernels is in [kernels.md](kernels.md). `sudo kstrobe NAME`
draws it in a terminal [without a server](tool.md), or `kstrobe stacks NAME` where it sums by call stack; of an agent that runs, [`kstrobe
top`](top.md) and [its page](page.md) show all of them with their last minutes. Commands are those of `kstrobe`, with names and numbers to be replaced
by one's own. Tests compile the probes, parse the commands, find their tools, compile their lines and run the lists.
";

const OWN: &str = "
## Probes of one's own

Put into a file, `kstrobe check FILE` checks them, and `kstrobe run --probes FILE` runs them. They are examples: what is meant stands in
their summary. [language.md](language.md) has the language.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_question_stands_once_and_in_order() {
        let questions = questions();
        for (at, question) in questions.iter().enumerate() {
            assert_eq!(question.id, format!("S{:03}", at + 1));
            assert!(!question.area.is_empty() && !question.text.is_empty());
        }
        assert_eq!(questions.len(), 258);
    }
}
