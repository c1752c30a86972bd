//! Texts of which something is gone: what is known is as it was, and what is not known is `None`.

use kstrobe_ftrace::calls::text;

use crate::{fixture, of_one_task, same, undamaged, whole};

/// Which line of a text opens and which closes each call, by the outline's line; leaves have one line.
struct Spans {
    /// The outline's lines, in the order of entries.
    outline: Vec<String>,
    /// The text's line of the entry, and of the exit.
    lines: Vec<(usize, usize)>,
}

/// Of a text of one task with whole calls.
fn spans(text: &str) -> Spans {
    let calls = whole(text);
    let outline: Vec<String> = calls.outline().lines().map(str::to_string).collect();
    let (mut lines, mut open): (Vec<(usize, usize)>, Vec<usize>) = Default::default();
    for (at, line) in text.lines().enumerate() {
        if line.ends_with(['{', ';']) {
            if line.ends_with('{') {
                open.push(lines.len());
            }
            lines.push((at, at));
        } else if line.ends_with('}') || line.contains("} /*") {
            lines[open.pop().unwrap()].1 = at;
        }
    }
    assert_eq!(outline.len(), lines.len());
    // Calls are in the order of their lines; the outline has them by trees.
    let lines = calls.roots.iter().flat_map(|root| calls.tree(*root)).map(|(call, _)| lines[call.0 as usize]).collect();
    Spans { outline, lines }
}

impl Spans {
    fn leaf(&self, call: usize) -> bool {
        self.lines[call].0 == self.lines[call].1
    }

    /// The text without some lines, the outline with some lines changed.
    fn without(&self, text: &str, lines: &[usize]) -> String {
        let gone: std::collections::HashSet<&usize> = lines.iter().collect();
        text.lines().enumerate().filter(|(at, _)| !gone.contains(at)).map(|(_, line)| format!("{line}\n")).collect()
    }

    fn changed(&self, calls: &[usize], change: impl Fn(&str) -> Option<String>) -> String {
        let changed: std::collections::HashSet<&usize> = calls.iter().collect();
        let lines = self.outline.iter().enumerate();
        lines
            .filter_map(|(call, line)| if changed.contains(&call) { change(line) } else { Some(line.clone()) })
            .map(|line| line + "\n")
            .collect()
    }

    /// Every so many calls of those.
    fn some(&self, of: impl Fn(usize) -> bool, every: usize) -> Vec<usize> {
        (0..self.lines.len()).filter(|call| of(*call)).skip(every / 2).step_by(every).collect()
    }
}

/// `  name 123 !` with another name, another duration, and a mark; without a name it is not known to be an interrupt's.
fn line(old: &str, name: Option<&str>, ns: Option<&str>, mark: &str) -> String {
    let indent = &old[..old.len() - old.trim_start().len()];
    let words: Vec<&str> = old.trim().split(' ').collect();
    let interrupt = if words.len() == 3 && name.is_none() { " !" } else { "" };
    format!("{indent}{} {}{mark}{interrupt}", name.unwrap_or(words[0]), ns.unwrap_or(words[1]))
}

/// Those of an outline's lines that stand for whole calls, without indentation, in order of the alphabet.
fn both_ends(outline: &str) -> Vec<&str> {
    let lines = outline.lines().map(|line| line.trim().trim_end_matches(" !"));
    let mut lines: Vec<&str> = lines.filter(|line| !line.ends_with(['{', '}'])).collect();
    lines.sort();
    lines
}

/// Not the one in which an interrupt comes before the entry of what it interrupts: only whole names tell.
fn by_names((name, _): &(String, String)) -> bool {
    name != "sid-recvfrom"
}

const EVERY: [usize; 4] = [2, 3, 7, 50];

/// Calls whose exit is missing have no duration; what they called stays with them, and what came after does not.
#[test]
fn exits() {
    for (name, text) in of_one_task() {
        let spans = spans(&text);
        for every in EVERY {
            let calls = spans.some(|call| !spans.leaf(call), every);
            let damaged = spans.without(&text, &calls.iter().map(|call| spans.lines[*call].1).collect::<Vec<_>>());
            let is = text::parse(&damaged);
            same(
                &is.outline(),
                &spans.changed(&calls, |old| Some(line(old, None, Some("?"), " {"))),
                &format!("{name} {every}"),
            );
            assert_eq!(is.damage.no_exit + is.damage.open, calls.len() as u64, "{name}");
            assert_eq!((is.damage.no_entry, is.damage.not_understood), (0, 0), "{name}");
        }
    }
}

/// Calls whose entry is missing have a duration and all that they called, and a name where the text has it at the end.
#[test]
fn entries() {
    for kernel in crate::KERNELS {
        for columns in ["trace", "full"] {
            if columns == "trace" && !by_names(&(format!("{kernel}-recvfrom"), String::new())) {
                continue;
            }
            let text = fixture(&format!("{kernel}-recvfrom-{columns}"));
            let spans = spans(&text);
            for every in EVERY {
                // Calls of interrupts have the depth of what they interrupt even where that is not recorded: those just
                // before a root seem to be of it when its entry is missing.
                let root = |call: usize| !spans.outline[call].starts_with(' ');
                let calls = spans.some(|call| !(spans.leaf(call) || root(call) && kernel == "sid"), every);
                let damaged = spans.without(&text, &calls.iter().map(|call| spans.lines[*call].0).collect::<Vec<_>>());
                let is = text::parse(&damaged);
                let unnamed = (columns == "trace").then_some("?");
                let expected = spans.changed(&calls, |old| Some(line(old, unnamed, None, " }")));
                same(&is.outline(), &expected, &format!("{kernel} {columns} {every}"));
                assert_eq!((is.damage.no_entry, is.damage.no_exit), (calls.len() as u64, 0), "{kernel}");
            }
        }
    }
}

/// Both lines of a call: its caller has what it called.
#[test]
fn entries_and_exits() {
    for (name, text) in of_one_task().filter(by_names) {
        let spans = spans(&text);
        // Of a call and its caller, only one, so that the expectation is easy to say.
        let inner = |call: usize| !spans.leaf(call) && spans.outline[call].starts_with(' ') && spans.leaf(call + 1);
        for every in EVERY {
            let calls = spans.some(inner, every);
            let damaged = spans.without(
                &text,
                &calls.iter().flat_map(|call| [spans.lines[*call].0, spans.lines[*call].1]).collect::<Vec<_>>(),
            );
            let is = text::parse(&damaged);
            let mut expected = String::new();
            for (call, old) in spans.outline.iter().enumerate() {
                let gone = |other: &&usize| {
                    spans.lines[**other].0 < spans.lines[call].0 && spans.lines[call].0 < spans.lines[**other].1
                };
                let levels = calls.iter().filter(gone).count();
                if !calls.contains(&call) {
                    expected += &format!("{}\n", &old[2 * levels..]);
                }
            }
            same(&is.outline(), &expected, &format!("{name} {every}"));
            assert_eq!(is.damage, Default::default(), "{name}: nothing shows that they were there");
        }
    }
}

/// Leaves that are cut before their bar are gone, and told.
#[test]
fn lines_cut_in_their_columns() {
    for (name, text) in of_one_task() {
        let spans = spans(&text);
        let calls = spans.some(|call| spans.leaf(call), 9);
        let cut: Vec<usize> = calls.iter().map(|call| spans.lines[*call].0).collect();
        let damaged: String = text
            .lines()
            .enumerate()
            .map(|(at, line)| if cut.contains(&at) { format!("{}\n", &line[..10]) } else { format!("{line}\n") })
            .collect();
        let is = text::parse(&damaged);
        same(&is.outline(), &spans.changed(&calls, |_| None), &name);
        assert_eq!(is.damage.not_understood, calls.len() as u64, "{name}");
    }
}

/// Lines that are cut inside of the name: there was a call, which one is not known.
#[test]
fn lines_cut_in_the_name() {
    for (name, text) in of_one_task().filter(by_names) {
        let spans = spans(&text);
        let calls = spans.some(|_| true, 9);
        let cut: Vec<usize> = calls.iter().map(|call| spans.lines[*call].0).collect();
        let to = |line: &str, letter: char| line[..line.rfind(letter).unwrap()].to_string();
        let damage = |letter: char, keep: usize| -> String {
            text.lines()
                .enumerate()
                .map(|(at, line)| {
                    if cut.contains(&at) {
                        format!("{}\n", &line[..to(line, letter).len() + keep])
                    } else {
                        format!("{line}\n")
                    }
                })
                .collect()
        };
        let is = text::parse(&damage('(', 0));
        same(&is.outline(), &spans.changed(&calls, |old| Some(line(old, Some("?"), None, ""))), &name);
        // Behind the name, nothing is missing.
        for (letter, keep) in [('(', 1), (')', 0), (')', 1)] {
            same(&text::parse(&damage(letter, keep)).outline(), &whole(&text).outline(), &name);
        }
    }
}

/// Only a piece of a text, from anywhere to anywhere: each call that has both its lines in it is as it was.
#[test]
fn pieces() {
    for (name, text) in of_one_task() {
        let spans = spans(&text);
        let all: Vec<&str> = text.lines().collect();
        for (from, to) in [(0, 100), (37, 412), (250, 600), (101, 104)] {
            let is = text::parse(&all[from..to].join("\n"));
            let inside = |(entry, exit): &(usize, usize)| (from..to).contains(entry) && (from..to).contains(exit);
            let expected: Vec<&str> = spans
                .outline
                .iter()
                .zip(&spans.lines)
                .filter(|(_, at)| inside(at))
                .map(|(line, _)| &line[..])
                .collect();
            assert_eq!(both_ends(&is.outline()), both_ends(&expected.join("\n")), "{name} {from}..{to}");
            let (entries, exits) = spans.lines.iter().fold((0, 0), |(entries, exits), (entry, exit)| {
                let (entry, exit) = ((from..to).contains(entry), (from..to).contains(exit));
                (entries + u64::from(entry && !exit), exits + u64::from(exit && !entry))
            });
            assert_eq!(
                (is.damage.open + is.damage.no_exit, is.damage.no_entry),
                (entries, exits),
                "{name} {from}..{to}"
            );
        }
    }
}

/// A block is missing in the middle: calls that ended in it have no duration, calls that began in it have one, all others are as they were.
#[test]
fn a_block_in_the_middle() {
    for (name, text) in of_one_task() {
        let spans = spans(&text);
        for (from, to) in [(100, 110), (200, 260), (90, 500)] {
            let gone: Vec<usize> = (from..to).collect();
            let is = text::parse(&spans.without(&text, &gone));
            let (mut kept, mut entries, mut exits) = (Vec::new(), 0, 0);
            for (call, (entry, exit)) in spans.lines.iter().enumerate() {
                match ((from..to).contains(entry), (from..to).contains(exit)) {
                    (false, false) => kept.push(&spans.outline[call][..]),
                    (false, true) => entries += 1,
                    (true, false) => exits += 1,
                    (true, true) => {}
                }
            }
            let (outline, kept) = (is.outline(), kept.join("\n"));
            let (both, kept) = (both_ends(&outline), both_ends(&kept));
            // An exit of the same depth, without a name, seems to be that of the call before the block.
            let mistaken = (entries - is.damage.no_exit as i64, exits - is.damage.no_entry as i64);
            assert_eq!(mistaken.0, mistaken.1, "{name} {from}..{to}");
            let missing = kept.iter().filter(|line| !both.contains(line)).count();
            assert_eq!(missing, 0, "{name} {from}..{to}");
            assert_eq!(both.len() as i64 - kept.len() as i64, mistaken.0, "{name} {from}..{to}");
        }
    }
}

/// Nothing of it is understood, and that is told.
#[test]
fn prose() {
    let prose = "Dear list,\n\nthe call f(x) { returns late; see } below.\n1) first\n2) second | third\n";
    let calls = text::parse(prose);
    assert_eq!((calls.calls.len(), calls.damage.not_understood), (0, 4));
    assert_eq!(text::parse(""), Default::default());
    assert!(undamaged().count() == 12);
}
