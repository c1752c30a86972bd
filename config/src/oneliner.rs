//! A probe in one line, `hist(elapsed) by comm on syscall:fsync where retval == 0`, as the YAML that says the same.
//!
//! The YAML has each part of the line letter by letter, so that a place in it is a place in the line, and all that is said of a
//! probe in a file is said of one in a line, with a caret in the line.

use std::ops::Range;
use std::sync::Arc;

use crate::diag::Diagnostic;
use crate::model::{Location, SourceFile};
use crate::names::{is_identifier, suggestion};

/// What is done with the events.
const ACTIONS: [&str; 8] = ["count", "sum", "min", "max", "last", "hist", "stacks", "print"];
const SHAPE: &str = "count() | sum(x) | min(x) | max(x) | last(x) | hist(x) | stacks() | print(x, y) [by a, b] on HOOK [where CONDITION]";

/// A line, and the probe it stands for.
#[derive(Clone, Debug)]
pub struct OneLiner {
    line: Arc<SourceFile>,
    yaml: Arc<SourceFile>,
    parts: Vec<Part>,
}

/// Text of the line that stands in the YAML.
#[derive(Clone, Debug)]
struct Part {
    in_yaml: Range<usize>,
    in_line: usize,
}

/// The parts of a line, as byte ranges.
struct Parsed {
    action: Range<usize>,
    arguments: Vec<Range<usize>>,
    by: Vec<Range<usize>>,
    hooks: Vec<Range<usize>>,
    filter: Option<Range<usize>>,
}

impl OneLiner {
    /// Reads a line as a probe of this name, which is a C identifier.
    pub fn parse(line: &str, name: &str) -> Result<OneLiner, Diagnostic> {
        let file = Arc::new(SourceFile { name: "-e".into(), text: line.to_owned() });
        let parsed = parse(&file)?;
        let mut writer = Writer { line: &file, text: String::new(), parts: Vec::new() };
        writer.probe(&parsed, name)?;
        let Writer { text, parts, .. } = writer;
        let yaml = Arc::new(SourceFile { name: format!("{name}.yaml"), text });
        Ok(OneLiner { line: file, yaml, parts })
    }

    /// The probe as a file.
    pub fn yaml(&self) -> &Arc<SourceFile> {
        &self.yaml
    }

    /// What was said of the YAML, at its place in the line; each once, as a hook may stand in it twice.
    pub fn place(&self, diagnostics: Vec<Diagnostic>) -> Vec<Diagnostic> {
        let mut placed: Vec<Diagnostic> = Vec::new();
        for mut diagnostic in diagnostics {
            diagnostic.at = diagnostic.at.map(|at| self.in_line(&at));
            if !placed.contains(&diagnostic) {
                placed.push(diagnostic);
            }
        }
        placed
    }

    fn in_line(&self, at: &Location) -> Location {
        if !Arc::ptr_eq(&at.file, &self.yaml) {
            return at.clone();
        }
        let part = self.parts.iter().find(|part| part.in_yaml.start < at.end && at.start <= part.in_yaml.end);
        let Some(part) = part else { return Location::new(&self.line, 0..self.line.text.len()) };
        let place =
            |offset: usize| part.in_line + offset.clamp(part.in_yaml.start, part.in_yaml.end) - part.in_yaml.start;
        Location::new(&self.line, place(at.start)..place(at.end))
    }
}

fn parse(file: &Arc<SourceFile>) -> Result<Parsed, Diagnostic> {
    let text = file.text.as_str();
    let error = |range: Range<usize>, message: String| Diagnostic::error(&Location::new(file, range), message);
    if let Some(at) = text.find(|c: char| c.is_control()) {
        return Err(error(at..at + 1, "a one-liner is one line of plain text".into()));
    }
    let action = trim(text, 0..text.find('(').unwrap_or(text.len()));
    if !ACTIONS.contains(&&text[action.clone()]) {
        let hint = match text.contains('(') {
            true => suggestion(&text[action.clone()], &ACTIONS),
            false => format!("the form is: {SHAPE}"),
        };
        let message = format!("`{}` is nothing to do with events", &text[action.clone()]);
        return Err(error(action, message).hint(hint));
    }
    let open = text.find('(').unwrap_or(text.len());
    let Some(close) = closing(text, open) else {
        return Err(error(open..open + 1, "this bracket is not closed".into()));
    };
    let words = keywords(text, close + 1);
    let mut rest = close + 1;
    let mut clause = |keyword: &str| -> Option<(Range<usize>, Range<usize>)> {
        let at = words.iter().position(|word| word.start >= rest && &text[word.clone()] == keyword)?;
        let word = words[at].clone();
        let order = ["by", "on", "where"];
        let later = &order[order.iter().position(|known| *known == keyword)? + 1..];
        let end = words[at + 1..].iter().find(|word| later.contains(&&text[(*word).clone()]));
        let end = end.map_or(text.len(), |next| next.start);
        rest = end;
        Some((word.clone(), trim(text, word.end..end)))
    };
    let by = clause("by");
    let on = clause("on");
    let filter = clause("where");
    let Some((word, on)) = on else {
        let end = text.trim_end().len();
        return Err(error(end..end, "it does not say at which events".into()).hint(format!("the form is: {SHAPE}")));
    };
    let first = by.as_ref().map_or(word.start, |(word, _)| word.start);
    let between = trim(text, close + 1..first);
    if !between.is_empty() {
        let message = format!("`{}` has no meaning here", &text[between.clone()]);
        return Err(error(between, message).hint(format!("the form is: {SHAPE}")));
    }
    for (word, clause) in by.iter().chain(&filter).map(|(word, clause)| (word, clause)).chain([(&word, &on)]) {
        if clause.is_empty() {
            return Err(error(word.clone(), format!("nothing follows `{}`", &text[word.clone()])));
        }
    }
    let by = by.map(|(_, by)| list(text, by)).unwrap_or_default();
    let (arguments, hooks) = (list(text, open + 1..close), list(text, on));
    if let Some(empty) = arguments.iter().chain(&by).chain(&hooks).find(|range| range.is_empty()) {
        return Err(error(empty.clone(), "something is missing beside this comma".into()));
    }
    let wanted = match &text[action.clone()] {
        "count" | "stacks" => 0..=0,
        "print" => 1..=usize::MAX,
        _ => 1..=1,
    };
    if !wanted.contains(&arguments.len()) {
        let message = format!(
            "`{}` takes {}",
            &text[action.clone()],
            match wanted.end() {
                0 => "nothing",
                1 => "one expression",
                _ => "at least one expression",
            }
        );
        return Err(error(open..close + 1, message));
    }
    Ok(Parsed { action, arguments, by, hooks, filter: filter.map(|(_, filter)| filter) })
}

fn trim(text: &str, range: Range<usize>) -> Range<usize> {
    let part = &text[range.clone()];
    let start = range.start + part.len() - part.trim_start().len();
    start..(range.start + part.trim_end().len()).max(start)
}

/// Each character outside quotes from `from` on, with how many brackets are open before it.
fn outside_quotes(text: &str, from: usize) -> impl Iterator<Item = (usize, char, usize)> {
    let (mut depth, mut quote, mut escaped) = (0usize, None, false);
    text[from..].char_indices().filter_map(move |(at, c)| {
        let before = depth;
        match quote {
            Some(open) => {
                if c == open && !escaped {
                    quote = None;
                }
                escaped = c == '\\' && !escaped;
                return None;
            }
            None => match c {
                '"' | '\'' => quote = Some(c),
                '(' | '[' | '{' => depth += 1,
                ')' | ']' | '}' => depth = depth.saturating_sub(1),
                _ => {}
            },
        }
        Some((from + at, c, before))
    })
}

fn closing(text: &str, open: usize) -> Option<usize> {
    outside_quotes(text, open).find(|(_, c, depth)| *c == ')' && *depth == 1).map(|(at, _, _)| at)
}

/// `by`, `on` and `where` outside brackets.
fn keywords(text: &str, from: usize) -> Vec<Range<usize>> {
    let is_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | ':' | '/' | '-' | '*');
    let plain: Vec<(usize, char)> =
        outside_quotes(text, from).filter(|(_, _, depth)| *depth == 0).map(|(at, c, _)| (at, c)).collect();
    let words = plain.chunk_by(|(a, c), (b, d)| is_word(*c) == is_word(*d) && b - a == c.len_utf8());
    let ranges = words.map(|word| word[0].0..word.last().map_or(word[0].0, |(at, c)| at + c.len_utf8()));
    ranges.filter(|range| matches!(&text[range.clone()], "by" | "on" | "where")).collect()
}

/// Parts between commas that stand in no brackets.
fn list(text: &str, range: Range<usize>) -> Vec<Range<usize>> {
    let part = &text[..range.end];
    let commas =
        outside_quotes(part, range.start).filter(|(_, c, depth)| *c == ',' && *depth == 0).map(|(at, _, _)| at);
    let ends: Vec<usize> = commas.chain([range.end]).collect();
    let mut start = range.start;
    let mut parts = Vec::new();
    for end in ends {
        parts.push(trim(text, start..end));
        start = end + 1;
    }
    if parts.len() == 1 && parts[0].is_empty() { Vec::new() } else { parts }
}

struct Writer<'a> {
    line: &'a Arc<SourceFile>,
    text: String,
    parts: Vec<Part>,
}

impl<'a> Writer<'a> {
    fn of(&self, range: &Range<usize>) -> &'a str {
        &self.line.text[range.clone()]
    }

    fn probe(&mut self, parsed: &Parsed, name: &str) -> Result<(), Diagnostic> {
        let all = parsed.arguments.iter().chain(&parsed.by).chain(&parsed.filter);
        let mentions = |word: &str| all.clone().any(|range| identifiers(self.of(range)).any(|(name, _)| name == word));
        let (span, returns) = (mentions("elapsed"), mentions("retval"));
        let time = parsed
            .arguments
            .iter()
            .any(|range| identifiers(self.of(range)).any(|(name, _)| matches!(name, "elapsed" | "nsecs")));
        self.text += &format!("probe: {name}\n");
        self.scalar("summary", &trim(&self.line.text, 0..self.line.text.len()), 0);
        self.text += "enabled: false\n";
        if span {
            self.span(&parsed.hooks)?;
        } else {
            self.at(&parsed.hooks, returns);
        }
        if let Some(filter) = &parsed.filter {
            self.scalar("where", filter, 0);
        }
        let action = self.of(&parsed.action).to_owned();
        let (suffix, kind) = match (action.as_str(), time) {
            ("hist", true) => ("_seconds", "histogram"),
            ("hist", false) => ("", "histogram"),
            ("sum", true) => ("_seconds_total", "counter"),
            ("min" | "max" | "last", true) => ("_seconds", "gauge"),
            ("min" | "max" | "last", false) => ("", "gauge"),
            ("stacks", _) => ("", "stacks"),
            _ => ("_total", "counter"),
        };
        self.text += &format!("metrics:\n  {name}{suffix}:\n    type: {kind}\n");
        if let ("hist" | "sum" | "min" | "max" | "last", [value]) = (action.as_str(), parsed.arguments.as_slice()) {
            self.scalar("value", value, 4);
        }
        if kind == "gauge" {
            self.text += &format!("    keep: {action}\n");
        }
        if !parsed.by.is_empty() {
            self.text += "    labels:\n";
            self.named(&parsed.by, 6);
            if kind != "stacks" {
                self.text += "    allow_high_cardinality: true\n";
            }
        }
        if action == "print" {
            self.text += "slow:\n  when: true\n  max_per_second: 1000\n  fields:\n";
            self.named(&parsed.arguments, 4);
        }
        Ok(())
    }

    /// Text of the line, whose place is remembered.
    fn verbatim(&mut self, range: &Range<usize>) {
        let start = self.text.len();
        self.text += &self.line.text[range.clone()];
        self.parts.push(Part { in_yaml: start..self.text.len(), in_line: range.start });
    }

    /// `key:` and the text letter by letter, as a block scalar where a plain one would read otherwise: neither has escapes.
    fn scalar(&mut self, key: &str, range: &Range<usize>, indent: usize) {
        self.text += &format!("{:indent$}{key}: ", "");
        if !is_plain(self.of(range)) {
            self.text += &format!("|-\n{:indent$}  ", "");
        }
        self.verbatim(range);
        self.text.push('\n');
    }

    fn named(&mut self, ranges: &[Range<usize>], indent: usize) {
        let mut names: Vec<String> = Vec::new();
        for range in ranges {
            let first = name_of(self.of(range));
            let mut name = first.clone();
            let mut number = 2;
            while names.contains(&name) {
                name = format!("{first}_{number}");
                number += 1;
            }
            self.scalar(&name, range, indent);
            names.push(name);
        }
    }

    fn at(&mut self, hooks: &[Range<usize>], returns: bool) {
        self.text += "at:\n";
        for hook in hooks {
            let edge = match (self.of(hook).split(':').collect::<Vec<_>>().as_slice(), returns) {
                (["syscall", _], false) => ":enter",
                (["syscall", _], true) => ":exit",
                (["function", _], false) => ":entry",
                (["function", _], true) => ":return",
                _ => "",
            };
            self.hook(2, "", hook, edge);
        }
    }

    fn hook(&mut self, indent: usize, before: &str, hook: &Range<usize>, after: &str) {
        let block = if is_plain(self.of(hook)) { String::new() } else { format!("|-\n{:indent$}  ", "") };
        self.text += &format!("{:indent$}- {block}{before}", "");
        self.verbatim(hook);
        self.text += &format!("{after}\n");
    }

    fn span(&mut self, hooks: &[Range<usize>]) -> Result<(), Diagnostic> {
        for first in [true, false] {
            self.text += if first { "span:\n  start:\n" } else { "  end:\n" };
            for hook in hooks {
                match self.of(hook).split(':').collect::<Vec<_>>().as_slice() {
                    ["syscall", _] => self.hook(4, "", hook, if first { ":enter" } else { ":exit" }),
                    ["function", _] => self.hook(4, "", hook, if first { ":entry" } else { ":return" }),
                    ["uprobe", ..] if first => self.hook(4, "", hook, ""),
                    // `uretprobe:` at the same place.
                    ["uprobe", ..] => self.hook(4, "uret", &(hook.start + 1..hook.end), ""),
                    _ => {
                        let message = format!("`elapsed` is the time of a call, and `{}` is none", self.of(hook));
                        let hint = "name `syscall:NAME`, `function:NAME` or `uprobe:PATH:SYMBOL`, without `:enter` and the like";
                        return Err(Diagnostic::error(&Location::new(self.line, hook.clone()), message).hint(hint));
                    }
                }
            }
        }
        Ok(())
    }
}

/// Whether YAML reads the text as it is, and as text.
fn is_plain(text: &str) -> bool {
    let words = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && !text.ends_with(':')
        && ![": ", " #"].iter().any(|mark| text.contains(mark))
        && !words.contains(&text.to_ascii_lowercase().as_str())
}

/// Names in an expression, each with what stands right before it.
fn identifiers(text: &str) -> impl Iterator<Item = (&str, Option<char>)> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut at = 0;
    text.split(move |c: char| !is_word(c)).filter_map(move |word| {
        let start = at;
        at += word.len() + text[at + word.len()..].chars().next().map_or(0, char::len_utf8);
        is_identifier(word).then(|| (word, text[..start].chars().next_back()))
    })
}

/// A name for a label or field: that of the last member, else of the last name that is no function's.
fn name_of(text: &str) -> String {
    let all: Vec<(&str, Option<char>)> = identifiers(text).collect();
    let member = all.iter().rfind(|(_, before)| matches!(before, Some('.' | '>')));
    let plain = all.iter().rfind(|(word, _)| !text.contains(&format!("{word}(")));
    let name = member.or(plain).map_or("value", |(word, _)| word).trim_start_matches("__");
    if matches!(name, "le" | "quantile" | "") { format!("value_{name}") } else { name.to_owned() }
}
