//! Every line of every text deleted, and every line with a note: a figure without a sign moves by no more than that line's time.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use kstrobe_ftrace::calls::{Calls, Ends, text};
use kstrobe_ftrace::report::{Activity, Asked, Bounds, WorkRow, activity, functions, of_marks, waits};

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
    texts
}

/// What a line is, and its time: how far an unmarked sum of all may move without it, and an unmarked row of a table.
struct Line {
    sum_ns: u64,
    row_ns: u64,
}

/// Lines by themselves, each of which says what it is; a beginning has the time of its call.
fn lines(text: &str, whole: &Calls, seen: &Activity) -> Vec<Line> {
    let mut begun = whole.calls.iter().filter(|call| call.ends != Ends::Exit);
    let one = |line: &str| {
        let alone = text::parse(line);
        let Some(call) = alone.calls.first() else {
            // An event of the scheduler has the time off the CPU that begins or ends with it.
            let at = alone.marks.first().and_then(|mark| mark.time_ns);
            if !alone.marks.is_empty() && at.is_none() {
                // What it begins or ends is not to be found without a time.
                return Line { sum_ns: u64::MAX, row_ns: u64::MAX };
            }
            let ns =
                seen.spells.iter().filter(|spell| at.is_some() && spell.touches(at)).filter_map(|spell| spell.off_ns());
            let ns = ns.max().unwrap_or(0);
            return Line { sum_ns: ns, row_ns: ns };
        };
        match call.ends {
            // What is missing is seen: each figure that it touches has a sign.
            Ends::Exit => Line { sum_ns: 0, row_ns: 0 },
            // The name is missing with it: so much may be in another row.
            Ends::Entry => {
                Line { sum_ns: 0, row_ns: begun.next().and_then(|call| call.duration_ns).unwrap_or(u64::MAX) }
            }
            Ends::Both => {
                begun.next();
                let ns = call.duration_ns.unwrap_or(u64::MAX);
                Line { sum_ns: ns, row_ns: ns }
            }
        }
    };
    text.lines().map(one).collect()
}

trait Touches {
    fn touches(&self, at: Option<u64>) -> bool;
}

impl Touches for kstrobe_ftrace::report::Spell {
    fn touches(&self, at: Option<u64>) -> bool {
        let out = self.out.as_ref().map(|out| out.time_ns);
        [out, self.woken.as_ref().map(|woken| woken.time_ns), self.back.map(|back| back.0)].contains(&at)
    }
}

/// Figures by name: whether it is a sum of all, its time, whether it has no sign.
type Figures = BTreeMap<String, (bool, u64, bool)>;

fn figures(calls: &Calls, root: Option<&str>) -> Figures {
    let mut all = Figures::new();
    let seen = activity(of_marks(calls));
    for root in [None, root.map(str::to_owned)].into_iter().take(1 + usize::from(root.is_some())) {
        let report = waits(calls, &seen, &Asked { root: root.clone(), slowest: 0, ..Asked::default() });
        let mut keep = |name: &str, sum: bool, field: &str, ns: u64, bounds: &Bounds| {
            all.insert(format!("{root:?} {name} {field}"), (sum, ns, bounds.of(field).is_exact()));
        };
        for (field, ns) in [
            ("total_ns", report.total_ns),
            ("waited_ns", report.waited_ns),
            ("interrupted_ns", report.interrupted_ns),
            ("worked_ns", report.worked_ns),
        ] {
            keep("sum", true, field, ns, &report.bounds);
        }
        for row in &report.causes {
            keep(&row.cause, false, "total_ns", row.total_ns, &row.bounds);
        }
        let tables: [(&str, &[WorkRow]); 3] =
            [("layer", &report.layers), ("module", &report.modules), ("function", &report.functions)];
        for (name, rows) in tables {
            for row in rows {
                keep(&format!("{name} {}", row.name), false, "self_ns", row.self_ns, &row.bounds);
            }
        }
    }
    let report = functions(calls, &seen, &Asked::default());
    for row in &report.functions {
        for (field, ns) in [("total_ns", row.total_ns), ("self_ns", row.self_ns)] {
            let name = format!("functions {} [{}] {field}", row.function, row.module);
            all.insert(name, (false, ns, row.bounds.of(field).is_exact()));
        }
    }
    for row in &report.modules {
        for (field, ns) in [("total_ns", row.total_ns), ("self_ns", row.self_ns)] {
            all.insert(format!("modules {} {field}", row.module), (false, ns, row.bounds.of(field).is_exact()));
        }
    }
    all
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

/// Figures that moved by more than they may, and have a sign neither before nor after.
fn moved(before: &Figures, after: &Figures, line: &Line) -> Vec<String> {
    let none = |sum: bool| (sum, 0, true);
    let names: HashSet<&String> = before.keys().chain(after.keys()).collect();
    let mut moved = Vec::new();
    for name in names {
        let sum = before.get(name).or_else(|| after.get(name)).is_some_and(|figure| figure.0);
        let (_, one, one_exact) = before.get(name).copied().unwrap_or(none(sum));
        let (_, two, two_exact) = after.get(name).copied().unwrap_or(none(sum));
        let allowed = if sum { line.sum_ns } else { line.row_ns };
        if one_exact && two_exact && one.abs_diff(two) > allowed {
            moved.push(format!("{name}: {one} to {two}, {allowed} allowed"));
        }
    }
    moved
}

/// Runs a check of each text, some at a time, and fails with what they found.
fn each(check: impl Fn(&str, &str) -> Vec<String> + Sync) {
    let texts = every_text();
    assert!(texts.len() > 60, "{}", texts.len());
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some((name, text)) = texts.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let wrong = check(name, text);
                    found.lock().unwrap().extend(wrong.into_iter().map(|wrong| format!("{name}, {wrong}")));
                }
            });
        }
    });
    let found = found.into_inner().unwrap();
    assert!(found.is_empty(), "{} of them:\n{}", found.len(), found[..found.len().min(40)].join("\n"));
}

/// All lines of all texts take many minutes (`KSTROBE_EVERY_LINE=1`): else so many lines of each text that is not longer.
const MAX_DELETED: usize = 60;
const MAX_LINES: usize = 760;

/// Every how many lines one is deleted: every line with `KSTROBE_EVERY_LINE=1`.
fn stride(text: &str) -> usize {
    match std::env::var_os("KSTROBE_EVERY_LINE") {
        Some(_) => 1,
        None => text.lines().count().div_ceil(MAX_DELETED),
    }
}

#[test]
fn a_deleted_line_moves_no_unmarked_figure_by_more_than_its_time() {
    each(|_, text| {
        if stride(text) > 1 && text.lines().count() > MAX_LINES {
            return Vec::new();
        }
        let whole = text::parse(text);
        let (root, seen) = (main_root(&whole), activity(of_marks(&whole)));
        let before = figures(&whole, root.as_deref());
        let mut wrong = Vec::new();
        let (mut from, every) = (0, stride(text));
        for (at, (line, raw)) in lines(text, &whole, &seen).iter().zip(text.split_inclusive('\n')).enumerate() {
            let without = [&text[..from], &text[from + raw.len()..]].concat();
            from += raw.len();
            if at % every != text.len() % every {
                continue;
            }
            let after = figures(&text::parse(&without), root.as_deref());
            wrong.extend(
                moved(&before, &after, line)
                    .into_iter()
                    .map(|moved| format!("line {}: {}: {moved}", at + 1, raw.trim_end())),
            );
        }
        wrong
    });
}

#[test]
fn a_note_behind_any_line_moves_no_figure() {
    each(|_, text| {
        let before = text::parse(text);
        let mut wrong = Vec::new();
        for note in ["   <== here", " // 6 ms", "  # why?", "  <- look | here: 1.5"] {
            // A line is read by itself: notes behind all lines are notes behind each in turn. A line that was cut has no place for one.
            let whole = |line: &str| line.ends_with(['{', '}', ';', '/']) || line.contains(" => ");
            let behind = |line: &str| if whole(line.trim_end()) { note } else { "" };
            let noted: String = text.lines().map(|line| format!("{line}{}\n", behind(line))).collect();
            let after = text::parse(&noted);
            if before.outline() != after.outline() {
                let (one, two) = (before.outline(), after.outline());
                let first = one.lines().zip(two.lines()).position(|(one, two)| one != two);
                wrong.push(format!("{note}: other calls, from the outline's line {first:?} on"));
            }
        }
        wrong
    });
}
