//! What stands before the last column: time, CPU, task, flags, duration, each of which may be missing.

/// The columns of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Columns<'a> {
    pub time_ns: Option<u64>,
    pub cpu: Option<u32>,
    /// Name and thread id.
    pub task: Option<(&'a str, i32)>,
    /// The flags say that it was in a hard interrupt, or that it was not.
    pub hard: Option<bool>,
    /// What the duration column holds; `None` when there is no such column.
    pub duration: Option<Took>,
    /// The name of the event, where the line has one (`trace-cmd report`).
    pub event: Option<&'a str>,
    /// How many blanks stand before a function of depth zero; `None` when the line has no columns at all.
    pub base: Option<usize>,
    /// What follows.
    pub rest: &'a str,
}

/// The duration column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Took {
    Nothing,
    Ns(u64),
    /// `==========>`: an interrupt begins.
    InterruptBegins,
    /// `<==========`
    InterruptEnds,
}

/// Splits a line into its columns.
pub fn split(line: &str) -> Columns<'_> {
    if let Some(columns) = report(line) {
        return columns;
    }
    let mut columns = Columns { rest: line, ..Columns::default() };
    if let Some((ns, rest)) = time(columns.rest) {
        (columns.time_ns, columns.rest, columns.base) = (Some(ns), rest, Some(2));
    }
    if let Some((cpu, rest)) = cpu(columns.rest) {
        (columns.cpu, columns.rest, columns.base) = (Some(cpu), rest, Some(1));
    }
    if let Some((task, rest)) = task_column(columns.rest) {
        (columns.task, columns.rest, columns.base) = (Some(task), rest, Some(1));
    }
    if let Some((hard, rest)) = flags_column(columns.rest) {
        (columns.hard, columns.rest, columns.base) = (Some(hard), rest, Some(1));
    }
    took(&mut columns);
    columns
}

/// The lines of `trace-cmd report`: `comm-pid [cpu] flags time: event: text`, with `-l` `comm-pid CPUflags time: event: text`.
fn report(line: &str) -> Option<Columns<'_>> {
    // The time ends with the first `: ` before which there is a number with decimals.
    let ends = line.match_indices(':').map(|(at, _)| at).filter(|at| line[at + 1..].starts_with(' '));
    let end = ends.take(4).find(|at| {
        let word = line[..*at].rsplit(' ').next().unwrap_or("");
        word.contains('.') && decimal(word, 1_000_000_000).is_some()
    })?;
    let before = &line[..end];
    let (before, time) = before.rsplit_once(' ')?;
    let time_ns = decimal(time, 1_000_000_000);
    let mut before = before.trim();
    let (mut cpu, mut hard) = (None, None);
    // Flags, then the CPU, from the right.
    for _ in 0..2 {
        let (rest, word) = before.rsplit_once(' ')?;
        if let Some(number) = word.strip_prefix('[').and_then(|word| word.strip_suffix(']')) {
            cpu = Some(number.parse().ok()?);
            before = rest;
            break;
        }
        let digits = word.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(word.len());
        hard = Some(flags(&word[digits..]).or_else(|| flags(word))?);
        before = rest.trim_end();
        // `1d..2.`: the CPU before the flags; `d..2.` alone has its CPU in brackets before it.
        if !before.ends_with(']') {
            cpu = Some(word[..digits].parse().ok()?);
            break;
        }
    }
    let cpu = Some(cpu?);
    let task = Some(task(before.trim())?);
    let (event, text) = line[end + 2..].trim_start().split_once(':')?;
    if event.is_empty() || event.contains(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_') {
        return None;
    }
    let mut columns =
        Columns { time_ns, cpu, task, hard, event: Some(event), base: Some(2), rest: text, duration: None };
    if matches!(event, "funcgraph_entry" | "funcgraph_exit") {
        took(&mut columns);
    }
    Some(columns)
}

/// `   12.345678 |`, and the time since the trace began that latency tracers show: `      123 us |  ` before the CPU.
fn time(text: &str) -> Option<(u64, &str)> {
    let (before, rest) = text.split_once('|')?;
    let before = before.trim();
    if let Some(us) = before.strip_suffix("us") {
        let us: u64 = us.trim_end().parse().ok()?;
        cpu(rest)?;
        return Some((us.checked_mul(1000)?, rest));
    }
    Some((before.contains('.').then(|| decimal(before, 1_000_000_000))??, rest))
}

/// ` 1) `
fn cpu(text: &str) -> Option<(u32, &str)> {
    let text = text.trim_start();
    let (number, rest) = text.split_at(text.find(|letter: char| !letter.is_ascii_digit())?);
    Some((number.parse().ok()?, rest.strip_prefix(')')?))
}

/// `   ping-123    | `
fn task_column(text: &str) -> Option<((&str, i32), &str)> {
    let (before, rest) = text.split_once('|')?;
    // Arguments may hold bars: a task stands in at most 15 letters, a sign and ten digits.
    (before.ends_with(' ') && before.trim().len() <= 27).then_some(())?;
    Some((task(before.trim())?, rest))
}

/// `comm-pid`
pub fn task(text: &str) -> Option<(&str, i32)> {
    let (comm, pid) = text.rsplit_once('-')?;
    Some((comm, pid.parse().ok().filter(|pid| *pid >= 0)?))
}

/// `d..2. |`
fn flags_column(text: &str) -> Option<(bool, &str)> {
    let (before, rest) = text.split_once('|')?;
    Some((flags(before.trim())?, rest))
}

/// Interrupts off, need to reschedule, in an interrupt, preemption depth, migration depth: four or five letters, more with lazy
/// preemption. Whether it was in a hard interrupt, or in one that cannot be masked.
fn flags(text: &str) -> Option<bool> {
    let known = |letter: u8| b".dDbBXnNpPlLhHsSzZ#".contains(&letter) || letter.is_ascii_hexdigit();
    ((4..=8).contains(&text.len()) && text.bytes().all(known)).then(|| text[2..3].contains(['h', 'H', 'z', 'Z']))
}

/// Takes the duration column off, where there is one: `+ 10.123 us   |`, blanks and a bar, an arrow and a bar.
fn took(columns: &mut Columns) {
    let text = columns.rest.trim_start();
    for (arrow, took) in [("==========>", Took::InterruptBegins), ("<==========", Took::InterruptEnds)] {
        if let Some(rest) = text.strip_prefix(arrow) {
            (columns.duration, columns.rest, columns.base) =
                (Some(took), rest.trim_start().trim_start_matches('|'), Some(2));
            return;
        }
    }
    if let Some(rest) = text.strip_prefix('|') {
        (columns.duration, columns.rest, columns.base) = (Some(Took::Nothing), rest, Some(2));
        return;
    }
    if let Some((ns, rest)) = duration(text) {
        let rest = rest.trim_start();
        // Without its bar the indentation is not to be known.
        let (rest, base) = rest.strip_prefix('|').map_or((rest, None), |rest| (rest, Some(2)));
        (columns.duration, columns.rest, columns.base) = (Some(Took::Ns(ns)), rest, base.or(Some(usize::MAX)));
    }
}

/// `+ 10.123 us`: how much longer than others it took is in the mark, which says nothing that the number does not say.
fn duration(text: &str) -> Option<(u64, &str)> {
    let text = text.strip_prefix(['$', '@', '*', '#', '!', '+']).unwrap_or(text).trim_start();
    let (number, rest) = text.split_at(text.find(|letter: char| !letter.is_ascii_digit() && letter != '.')?);
    let rest = rest.trim_start();
    let end = rest.find(|letter: char| !letter.is_alphabetic()).unwrap_or(rest.len());
    let unit_ns = match &rest[..end] {
        "ns" => 1,
        "us" | "usecs" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return None,
    };
    Some((decimal(number, unit_ns)?, &rest[end..]))
}

/// A number with or without decimals, times `unit`; digits of it that are smaller than one are left out.
fn decimal(text: &str, unit: u64) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    if whole.is_empty() || !whole.bytes().chain(part.bytes()).all(|letter| letter.is_ascii_digit()) {
        return None;
    }
    let mut sum = whole.parse::<u64>().ok()?.checked_mul(unit)?;
    let mut place = unit;
    for digit in part.bytes() {
        place /= 10;
        sum = sum.checked_add(u64::from(digit - b'0') * place)?;
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Time, CPU, task, duration, blanks before depth zero, the rest.
    type Row<'a> = (Option<u64>, Option<u32>, Option<(&'a str, i32)>, Option<Took>, Option<usize>, &'a str);

    #[test]
    fn every_set_of_columns() {
        use Took::*;
        let ping = Some(("ping", 219));
        let table: &[(&str, Row)] = &[
            (" 1)               |  a() {", (None, Some(1), None, Some(Nothing), Some(2), "  a() {")),
            (" 12) + 47.609 us   |    a();", (None, Some(12), None, Some(Ns(47_609)), Some(2), "    a();")),
            ("  47.609 us   |  }", (None, None, None, Some(Ns(47_609)), Some(2), "  }")),
            ("# 1634.621 us |    }", (None, None, None, Some(Ns(1_634_621)), Some(2), "    }")),
            ("              |  a() {", (None, None, None, Some(Nothing), Some(2), "  a() {")),
            (" 0) $ 1000123.4 us |  }", (None, Some(0), None, Some(Ns(1_000_123_400)), Some(2), "  }")),
            (" 0) $ 31000123 us |  }", (None, Some(0), None, Some(Ns(31_000_123_000)), Some(2), "  }")),
            (" 0)   71 ns |  }", (None, Some(0), None, Some(Ns(71)), Some(2), "  }")),
            (
                "   10.312 |   1)    ping-219    |   1.092 us    |  a();",
                (Some(10_312_000_000), Some(1), ping, Some(Ns(1092)), Some(2), "  a();"),
            ),
            (
                "   19.649676 |   0) ! 849.455 us  |    a();",
                (Some(19_649_676_000), Some(0), None, Some(Ns(849_455)), Some(2), "    a();"),
            ),
            (
                "      123 us |   0)               |  a() {",
                (Some(123_000), Some(0), None, Some(Nothing), Some(2), "  a() {"),
            ),
            (" 1)  d..2. | + 81.011 us   |  }", (None, Some(1), None, Some(Ns(81_011)), Some(2), "  }")),
            ("   ping-219    |  b..1. |               |  a() {", (None, None, ping, Some(Nothing), Some(2), "  a() {")),
            (" 0) a() {", (None, Some(0), None, None, Some(1), " a() {")),
            (" 0)    ping-219    |   a();", (None, Some(0), ping, None, Some(1), "   a();")),
            ("   ping-219    |   a();", (None, None, ping, None, Some(1), "   a();")),
            (" 0)   a(x=A|B);", (None, Some(0), None, None, Some(1), "   a(x=A|B);")),
            ("  a();", (None, None, None, None, None, "  a();")),
            (" 0)   ==========> |", (None, Some(0), None, Some(InterruptBegins), Some(2), "")),
            (" 0)   <========== |", (None, Some(0), None, Some(InterruptEnds), Some(2), "")),
            (
                " 1)    <idle>-0    |               |  a() {",
                (None, Some(1), Some(("<idle>", 0)), Some(Nothing), Some(2), "  a() {"),
            ),
        ];
        for (line, expected) in table {
            let is = split(line);
            assert_eq!((is.time_ns, is.cpu, is.task, is.duration, is.base, is.rest), *expected, "{line}");
        }
    }

    #[test]
    fn report_of_trace_cmd() {
        for (line, task, cpu, ns, event, duration) in [
            (
                "     ping-185   [000]    95.068660: funcgraph_entry:                   |  a() {",
                ("ping", 185),
                0,
                95_068_660_000,
                "funcgraph_entry",
                Some(Took::Nothing),
            ),
            (
                "     a b-c-185 [011] d..1. 95.068660: funcgraph_exit:   ! 359.952 us |  }",
                ("a b-c", 185),
                11,
                95_068_660_000,
                "funcgraph_exit",
                Some(Took::Ns(359_952)),
            ),
            (
                "  <idle>-0     1d..2.    94.923506: sched_switch:  swapper/1:0 [120] R ==> rcu:15 [120]",
                ("<idle>", 0),
                1,
                94_923_506_000,
                "sched_switch",
                None,
            ),
            (
                "trace-cm-182     12d..2.    94.901813123: print:  x: 1",
                ("trace-cm", 182),
                12,
                94_901_813_123,
                "print",
                None,
            ),
        ] {
            let is = split(line);
            assert_eq!(
                (is.task, is.cpu, is.time_ns, is.event, is.duration),
                (Some(task), Some(cpu), Some(ns), Some(event), duration),
                "{line}"
            );
        }
    }

    #[test]
    fn numbers_too_big_are_none() {
        assert_eq!(duration("99999999999999999999 us |"), None);
        assert_eq!(decimal("18446744073709551615.9", 1000), None);
        assert_eq!(decimal("1.23456789012345", 1000), Some(1234));
    }
}
