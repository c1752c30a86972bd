//! Every line of every text deleted, and every line with a note: a figure without a sign moves by no more than that line's time.

mod figures;
mod rule;

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use figures::Before;
use kstrobe_ftrace::calls::{Calls, text};
use kstrobe_ftrace::report::{activity, missing, of_marks};
use rule::Line;

/// Every text of a tracer that writes calls, once, with the path in the fixtures.
fn every_text() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let (mut folders, mut texts, mut seen) = (vec![root.clone()], Vec::new(), HashSet::new());
    while let Some(folder) = folders.pop() {
        let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        for path in paths {
            if path.is_dir() {
                folders.push(path);
            } else if path.to_string_lossy().ends_with(".txt.gz") {
                let text = crate::unpacked(&path);
                if !text::parse(&text).calls.is_empty() && seen.insert(text.clone()) {
                    texts.push((path.strip_prefix(&root).unwrap().display().to_string(), text));
                }
            }
        }
    }
    assert!(texts.len() > 60, "{}", texts.len());
    texts
}

/// The outermost function that a text has most of, where there are others.
fn main_root(calls: &Calls) -> Option<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for root in &calls.roots {
        *counts.entry(calls.name_of(&calls[*root])).or_default() += 1;
    }
    let several = counts.len() > 1;
    let most = counts.into_iter().filter(|(name, _)| *name != "?").max_by_key(|(_, count)| *count)?;
    several.then(|| most.0.to_owned())
}

/// A whole text, with what its reports say.
struct Whole<'a> {
    name: &'a str,
    text: &'a str,
    /// Where each line begins, and where the text ends.
    begins: Vec<usize>,
    lines: Vec<Line>,
    root: Option<String>,
    before: Before,
}

impl<'a> Whole<'a> {
    fn of(name: &'a str, text: &'a str) -> Whole<'a> {
        let calls = text::parse(text);
        let (root, seen) = (main_root(&calls), activity(of_marks(&calls)));
        let mut begins = vec![0];
        begins.extend(text.split_inclusive('\n').scan(0, |at, line| {
            *at += line.len();
            Some(*at)
        }));
        let lines = rule::lines(name, text, &calls, &seen);
        let before = Before::of(&calls, root.as_deref());
        Whole { name, text, begins, lines, root, before }
    }

    /// Figures that move by more than they may when a line is deleted.
    fn without(&self, line: usize, marks: &mut figures::Marks) -> Vec<String> {
        let (from, to) = (self.begins[line], self.begins[line + 1]);
        let calls = text::parse(&[&self.text[..from], &self.text[to..]].concat());
        let moved = self.before.moved(&calls, self.root.as_deref(), &self.lines[line], marks);
        let said = self.text[from..to].trim_end();
        moved.into_iter().map(|moved| format!("{}, line {}: {said}: {moved}", self.name, line + 1)).collect()
    }
}

/// Lines that a thread takes at once: a long text is not left to one thread.
const LINES_AT_ONCE: usize = 100;

/// Of one line's figures that are wrong, so many are shown: one mistake is often seen in all tables.
const WRONG_OF_A_LINE: usize = 4;

/// Deletes each line of each text, some at a time, and returns how many there are and what is wrong.
fn delete_each(texts: &[(String, String)]) -> (usize, Vec<String>) {
    let wholes: Vec<OnceLock<Whole>> = texts.iter().map(|_| OnceLock::new()).collect();
    let pieces: Vec<(usize, usize)> = (0..texts.len())
        .flat_map(|at| (0..texts[at].1.lines().count()).step_by(LINES_AT_ONCE).map(move |from| (at, from)))
        .collect();
    let (next, lines, found) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some((at, from)) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (name, text) = &texts[*at];
            let whole = wholes[*at].get_or_init(|| Whole::of(name, text));
            let mut marks = figures::Marks::default();
            for line in *from..(from + LINES_AT_ONCE).min(whole.lines.len()) {
                lines.fetch_add(1, Ordering::Relaxed);
                let wrong = whole.without(line, &mut marks);
                found.lock().unwrap().extend(wrong.into_iter().take(WRONG_OF_A_LINE));
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    (lines.into_inner(), found.into_inner().unwrap())
}

#[test]
fn a_deleted_line_moves_no_unmarked_figure_by_more_than_its_time() {
    let texts = every_text();
    let (lines, wrong) = delete_each(&texts);
    assert_eq!(lines, texts.iter().map(|(_, text)| text.lines().count()).sum::<usize>());
    println!("{} texts, {lines} lines", texts.len());
    assert!(wrong.is_empty(), "{} of them:\n{}", wrong.len(), wrong[..wrong.len().min(100)].join("\n"));
}

#[test]
fn a_note_behind_any_line_moves_no_figure() {
    for (name, text) in every_text() {
        let before = text::parse(&text);
        for note in ["   <== here", " // 6 ms", "  # why?", "  <- look | here: 1.5"] {
            // A line is read by itself: notes behind all lines are notes behind each in turn. A line that was cut has no place for one.
            let whole = |line: &str| line.ends_with(['{', '}', ';', '/']) || line.contains(" => ");
            let behind = |line: &str| if whole(line.trim_end()) { note } else { "" };
            let noted: String = text.lines().map(|line| format!("{line}{}\n", behind(line))).collect();
            crate::same(&text::parse(&noted).outline(), &before.outline(), &format!("{name}: {note}"));
        }
    }
}

/// Each line that is none of the tracer's is said, and how many there are.
#[test]
fn lines_that_are_not_understood_are_counted_in_all_texts() {
    for (name, text) in every_text() {
        let mut strange = 0;
        let damaged: String = text
            .lines()
            .enumerate()
            .map(|(at, line)| {
                let replaced = at % 7 == 3;
                strange += u64::from(replaced);
                if replaced { "what is this?\n".to_owned() } else { format!("{line}\n") }
            })
            .collect();
        let missing = missing(&text::parse(&damaged));
        // Of lost events, some texts have lines of their own that are not understood.
        assert!(missing.not_understood >= strange && missing.lines[0].line <= 4, "{name}");
        let mut said = String::new();
        missing.render(&mut said);
        assert!(said.contains(&format!("not understood: {}\n", missing.not_understood)), "{name}: {said}");
    }
}
