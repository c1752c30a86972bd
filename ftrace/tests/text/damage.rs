//! Texts that were changed on their way, with everything still in them: the trees are those of the text as it was.

use kstrobe_ftrace::calls::{Calls, text};

use crate::{KERNELS, fixture, of_one_task, same, tree, undamaged, whole};

/// Each line, changed.
fn lines(text: &str, change: impl Fn(usize, &str) -> String) -> String {
    text.lines().enumerate().map(|(at, line)| change(at, line) + "\n").collect()
}

/// A change after which the text says all that it said.
#[track_caller]
fn keeps_all(texts: impl Iterator<Item = (String, String)>, damage: impl Fn(&str) -> String) {
    for (name, text) in texts {
        same(&whole(&damage(&text)).outline(), &text::parse(&text).outline(), &name);
    }
}

#[test]
fn quoted() {
    keeps_all(undamaged(), |text| lines(text, |_, line| format!("> {line}")));
    keeps_all(undamaged(), |text| lines(text, |_, line| format!("> > {line}")));
    keeps_all(undamaged(), |text| lines(text, |_, line| format!(">>{line}")));
    keeps_all(undamaged(), |text| format!("```\n{}```\n", lines(text, |_, line| format!("    {line}"))));
}

#[test]
fn line_ends_and_blanks() {
    keeps_all(undamaged(), |text| text.replace('\n', "\r\n"));
    keeps_all(undamaged(), |text| text.replace('\n', "   \n"));
    keeps_all(undamaged(), |text| text.replace('\n', "\n\n"));
    keeps_all(undamaged(), |text| lines(text, |_, line| line.trim_start().to_string()));
    keeps_all(undamaged(), |text| lines(text, |_, line| format!("\t{line}")));
}

/// Eight blanks that end at a tab stop become a tab.
#[test]
fn blanks_become_tabs() {
    let tabs = |line: &str| -> String {
        let letters: Vec<char> = line.chars().collect();
        letters.chunks(8).map(|stop| if stop == [' '; 8] { "\t".to_string() } else { stop.iter().collect() }).collect()
    };
    keeps_all(undamaged(), |text| lines(text, |_, line| tabs(line)));
}

#[test]
fn in_the_kernel_log() {
    keeps_all(undamaged(), |text| lines(text, |at, line| format!("[{:5}.{at:06}] {line}", at / 7)));
}

#[test]
fn without_marks_headers_and_tails() {
    keeps_all(undamaged(), |text| {
        lines(text, |_, line| match line.get(3..5) {
            Some(" +" | " !" | " #" | " *" | " @" | " $") => format!("{}  {}", &line[..3], &line[5..]),
            _ => line.to_string(),
        })
    });
    keeps_all(undamaged(), |text| {
        text.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect()
    });
    for kernel in KERNELS {
        for scene in ["recvfrom", "sched", "roots"] {
            let full = fixture(&format!("{kernel}-{scene}-full"));
            let tails = lines(&full, |_, line| {
                line.split_once("} /* ").map_or(line.to_string(), |(before, _)| format!("{before}}}"))
            });
            assert_ne!(tails, full);
            same(&whole(&tails).outline(), &whole(&full).outline(), kernel);
        }
    }
}

/// All durations, in no order.
fn durations(calls: &Calls) -> Vec<u64> {
    let mut all: Vec<_> = calls.calls.iter().filter_map(|call| call.duration_ns).collect();
    all.sort();
    all
}

/// A record's line without its CPU.
fn without_cpu(line: &str) -> &str {
    if line.contains('|') { line.split_once(')').map_or(line, |(_, rest)| rest) } else { line }
}

#[test]
fn without_the_cpu() {
    keeps_all(undamaged().filter(|(name, _)| !name.ends_with("-roots")), |text| {
        lines(text, |_, line| without_cpu(line).to_string())
    });
}

/// Two CPUs at work at once, their column cut off: what they share out among them cannot be known for sure, all that they did is there.
#[test]
fn without_the_cpu_where_two_are_at_work() {
    for (name, text) in undamaged().filter(|(name, _)| name.ends_with("-roots")) {
        let (is, expected) = (text::parse(&lines(&text, |_, line| without_cpu(line).to_string())), whole(&text));
        assert_eq!(durations(&is), durations(&expected), "{name}");
        let trees: Vec<_> = is.roots.iter().map(|root| tree(&is, *root)).collect();
        let right = expected.roots.iter().filter(|root| trees.contains(&tree(&expected, **root))).count();
        assert!(2 * right > expected.roots.len(), "{name}: {right} of {}", expected.roots.len());
    }
}

/// Pages that make one blank of many: braces are left.
#[test]
fn without_indentation() {
    let squeezed = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    // In one of them an interrupt came before its first entry was recorded, which only the indentation says.
    let braces = |(name, _): &(String, String)| name != "sid-recvfrom";
    keeps_all(undamaged().filter(braces), |text| lines(text, |_, line| squeezed(line)));
    keeps_all(of_one_task().filter(braces), |text| lines(text, |_, line| squeezed(without_cpu(line))));
}

/// Then nothing says that another task's calls follow, but that they begin anew below a call that waits.
#[test]
fn without_the_lines_between_tasks() {
    let rule = |line: &str| line.trim().bytes().all(|letter| letter == b'-');
    let without = |text: &str| {
        let lines = text.lines().filter(|line| !line.contains(" => ") && !rule(line));
        lines.map(|line| format!("{line}\n")).collect::<String>()
    };
    keeps_all(undamaged().filter(|(name, _)| !name.ends_with("-roots") || name.starts_with("5.10")), without);
    // Recorded to a depth above that of `schedule`: such calls are two halves, the second with the duration.
    for (name, text) in undamaged().filter(|(name, _)| name.ends_with("-roots")) {
        let (is, expected) = (text::parse(&without(&text)), whole(&text));
        assert_eq!(durations(&is), durations(&expected), "{name}");
        assert_eq!(is.damage.no_entry, is.damage.no_exit, "{name}");
        assert!(is.damage.no_entry < 20, "{name}");
    }
}

/// The kernel writes a task's name between two rules: where they stand without it, any line may be another task's.
#[test]
fn rules_without_a_switch_between_them_are_told() {
    for (name, text) in undamaged().filter(|(_, text)| text.contains(" => ")) {
        let switch = text.lines().find(|line| line.contains(" => ")).unwrap();
        let without = text.replacen(&format!("{switch}\n"), "", 1);
        assert!(text::parse(&without).damage.guessed > 0, "{name}");
    }
}

#[test]
fn wrapped() {
    let wrap = |line: &str, width: usize| -> String {
        // Mail breaks at a blank, behind the columns.
        match line
            .get(..width)
            .and_then(|start| start.rfind(' '))
            .filter(|at| line[..*at].contains("|  ") && line[..*at].trim_end().ends_with([',', ')', ':', '*']))
        {
            Some(at) => format!("{}\n{}", line[..at].trim_end(), line[at..].trim_start()),
            None => line.to_string(),
        }
    };
    let args = fixture("sid-modules-args");
    for width in [72, 76, 78, 90] {
        let damaged = lines(&args, |_, line| wrap(line, width));
        assert_ne!(damaged, args);
        let (is, expected) = (whole(&damaged), whole(&args));
        same(&is.outline(), &expected.outline(), "mail");
        let arguments = |calls: &Calls| calls.calls.iter().map(|call| call.arguments.clone()).collect::<Vec<_>>();
        assert_eq!(arguments(&is), arguments(&expected));
    }
    // Terminals break anywhere.
    let terminal = |line: &str| match line.get(..80) {
        Some(start) if line.len() > 80 => format!("{start}\n{}", &line[80..]),
        _ => line.to_string(),
    };
    let damaged = lines(&args, |_, line| terminal(line));
    assert_ne!(damaged, args);
    same(&whole(&damaged).outline(), &whole(&args).outline(), "terminal");
    keeps_all(undamaged().filter(|(name, _)| name.ends_with("recvfrom")), |text| lines(text, |_, line| terminal(line)));
}

#[test]
fn among_words() {
    for (name, text) in undamaged() {
        let said = format!("Hi all,\nthis takes 5 ms (sometimes):\n\n{text}\n-- \nregards; me\n[...]\n");
        let calls = text::parse(&said);
        same(&calls.outline(), &text::parse(&text).outline(), &name);
        assert_eq!(calls.damage.not_understood, 4, "{name}: Hi, this, regards, [...]");
    }
}

/// What was pasted in pieces overlaps.
#[test]
fn repeated() {
    for (name, text) in undamaged() {
        let expected = whole(&text);
        let all: Vec<&str> = text.lines().collect();
        let records = |lines: &[&str]| {
            lines
                .iter()
                .filter(|line| line.contains('|') || line.contains("=>"))
                .filter(|line| !line.starts_with('#'))
                .count() as u64
        };
        for (at, overlap) in [(200, 40), (300, 200), (450, 25), (600, 600), (400, 300)] {
            let from = at - overlap;
            let block = &all[from..at];
            let digits = block.iter().filter(|line| line.contains(" us ")).count();
            if digits < 6 {
                continue;
            }
            let damaged = [&all[..at], &all[from..]].concat().join("\n");
            let calls = text::parse(&damaged);
            same(&calls.outline(), &expected.outline(), &format!("{name} {at} {overlap}"));
            assert_eq!(calls.damage.repeated, records(block), "{name} {at} {overlap}");
            assert_eq!(calls.damage.no_exit + calls.damage.no_entry + calls.damage.open, 0, "{name} {at} {overlap}");
        }
        // Quoted whole, with an answer below.
        let answered = format!("{}\nI see this too:\n{text}", lines(&text, |_, line| format!("> {line}")));
        let calls = text::parse(&answered);
        same(&calls.outline(), &expected.outline(), &name);
        assert_eq!((calls.damage.repeated, calls.damage.not_understood), (records(&all), 1), "{name}");
    }
}

/// What a kernel does again and again is not repeated.
#[test]
fn not_repeated() {
    let loops = " 0)               |  a() {\n 0)   1.243 us    |    lock();\n 0)   1.243 us    |    unlock();\n 0)   1.243 us    |    lock();\n 0)   1.243 us    |    unlock();\n 0)   9.243 us    |  }\n";
    assert_eq!(whole(loops).calls.len(), 5);
    let times = "   1.000001 |   0)   0.071 us    |  a();\n   1.000001 |   0)   0.071 us    |  a();\n".repeat(9);
    assert_eq!(whole(&times).calls.len(), 18);
}

/// Two recordings, lines of the one between lines of the other.
#[test]
fn interleaved() {
    for (a, b) in [("6.12", "6.1"), ("sid", "5.10")] {
        let cpu = |kernel: &str, cpu: &str| {
            lines(&fixture(&format!("{kernel}-recvfrom-trace")), |_, line| {
                line.replace(" 1) ", cpu).replace(" 0) ", cpu)
            })
        };
        let task = |kernel: &str, task: &str| {
            let text = fixture(&format!("{kernel}-recvfrom-full"));
            lines(&text, |_, line| match line.split_once(")  ") {
                Some((_, rest)) => format!(" {task} {}", &rest[rest.find('|').unwrap()..]),
                None => line.to_string(),
            })
        };
        for (a, b) in [(cpu(a, " 0) "), cpu(b, " 3) ")), (task(a, "ping-219"), task(b, "ping-4000"))] {
            let mut damaged = String::new();
            let (mut left, mut right) = (a.lines().peekable(), b.lines().peekable());
            let mut turn = 1;
            while left.peek().is_some() || right.peek().is_some() {
                // One to seven lines, in no order that the calls have.
                turn = turn * 31 % 47;
                for line in left.by_ref().take(turn % 7 + 1).chain(right.by_ref().take(turn % 5 + 1)) {
                    damaged += &format!("{line}\n");
                }
            }
            let calls = whole(&damaged);
            let mut trees: Vec<_> = calls.roots.iter().map(|root| tree(&calls, *root)).collect();
            let mut expected: Vec<_> = [a, b]
                .iter()
                .map(|text| whole(text))
                .flat_map(|calls| calls.roots.iter().map(|root| tree(&calls, *root)).collect::<Vec<_>>())
                .collect();
            trees.sort();
            expected.sort();
            assert!(trees == expected);
        }
    }
}

/// The files of the CPUs one after another, as `per_cpu/cpu*/trace` has them.
#[test]
fn a_cpu_after_the_other() {
    for kernel in KERNELS {
        for columns in ["trace", "full"] {
            let text = fixture(&format!("{kernel}-roots-{columns}"));
            let of = |cpu: &str| {
                text.lines().filter(|line| line.contains(cpu)).map(|line| format!("{line}\n")).collect::<String>()
            };
            let calls = whole(&(of(" 1) ") + &of(" 0) ")));
            let trees = |calls: &Calls| {
                let mut trees: Vec<_> = calls.roots.iter().map(|root| tree(calls, *root)).collect();
                trees.sort();
                trees
            };
            assert!(trees(&calls) == trees(&whole(&text)), "{kernel} {columns}");
        }
    }
}
