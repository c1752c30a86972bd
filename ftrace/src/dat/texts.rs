//! Texts of tracefs and /proc that a file carries, both ways.

use crate::symbols::Symbols;
use crate::trace::CpuStats;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The text of `/proc/kallsyms`.
pub fn kallsyms(symbols: &Symbols) -> String {
    let mut text = String::with_capacity(symbols.all().len() * 40);
    for symbol in symbols.all() {
        // Writing to a String cannot fail, here and below.
        let _ = write!(text, "{:016x} {} {}", symbol.address, symbol.kind, symbol.name);
        if let Some(module) = &symbol.module {
            let _ = write!(text, "\t[{module}]");
        }
        text.push('\n');
    }
    text
}

/// The text of `saved_cmdlines`: thread ids and names. Line breaks in a name become question marks.
pub fn cmdlines(comms: &BTreeMap<i32, String>) -> String {
    let mut text = String::new();
    for (pid, comm) in comms {
        let _ = writeln!(text, "{pid} {}", comm.replace('\n', "?"));
    }
    text
}

/// Reads `saved_cmdlines`, and how many of its lines are of another form.
pub fn parse_cmdlines(text: &str) -> (BTreeMap<i32, String>, u64) {
    let mut comms = BTreeMap::new();
    let mut other = 0;
    for line in text.lines().filter(|line| !line.is_empty()) {
        match line.split_once(' ').and_then(|(pid, comm)| Some((pid.parse().ok()?, comm))) {
            // A name may begin and end with blanks.
            Some((pid, comm)) => drop(comms.insert(pid, comm.to_owned())),
            None => other += 1,
        }
    }
    (comms, other)
}

/// The text of `printk_formats`: addresses and texts, each on one line.
pub fn printk_formats(printk: &BTreeMap<u64, String>) -> String {
    let mut text = String::new();
    for (address, format) in printk {
        let _ = write!(text, "0x{address:x} : \"");
        for letter in format.chars() {
            match letter {
                '\n' => text.push_str("\\n"),
                '\t' => text.push_str("\\t"),
                '\\' => text.push_str("\\\\"),
                '"' => text.push_str("\\\""),
                other => text.push(other),
            }
        }
        text.push_str("\"\n");
    }
    text
}

/// Reads `printk_formats`, and how many of its lines are of another form.
pub fn parse_printk_formats(text: &str) -> (BTreeMap<u64, String>, u64) {
    let mut printk = BTreeMap::new();
    let mut other = 0;
    for line in text.lines().filter(|line| !line.is_empty()) {
        match printk_format(line) {
            Some((address, format)) => drop(printk.insert(address, format)),
            None => other += 1,
        }
    }
    (printk, other)
}

fn printk_format(line: &str) -> Option<(u64, String)> {
    let (address, quoted) = line.split_once(" : ")?;
    let address = u64::from_str_radix(address.trim().strip_prefix("0x")?, 16).ok()?;
    let mut letters = quoted.trim_end().strip_prefix('"')?.strip_suffix('"')?.chars();
    let mut format = String::new();
    while let Some(letter) = letters.next() {
        match (letter, letter == '\\') {
            (letter, false) => format.push(letter),
            _ => match letters.next() {
                Some('n') => format.push('\n'),
                Some('t') => format.push('\t'),
                Some(plain @ ('\\' | '"')) => format.push(plain),
                Some(other) => format.extend(['\\', other]),
                None => format.push('\\'),
            },
        }
    }
    Some((address, format))
}

/// The text of a `stats` file, as far as it is known.
pub fn cpu_stats(stats: &CpuStats) -> String {
    format!(
        "entries: {}\noverrun: {}\ncommit overrun: {}\nbytes: {}\ndropped events: {}\nread events: {}\n",
        stats.entries, stats.overrun, stats.commit_overrun, stats.bytes, stats.dropped_events, stats.read_events
    )
}

/// A number as C's `strtoll` reads it: `0x` in front for sixteen, a sign before that.
pub(super) fn number(text: &str) -> Option<i64> {
    let text = text.trim();
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let number = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        // Differences below zero are written as the 64 bits they are.
        Some(hex) => u64::from_str_radix(hex, 16).ok()? as i64,
        None => digits.parse().ok()?,
    };
    Some(if negative { number.wrapping_neg() } else { number })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_of_trace_printk_keep_their_special_letters() {
        let printk = BTreeMap::from([(0xffff_ffff_8123_4567, "a \"b\"\t\\n\n".to_owned()), (1, String::new())]);
        let text = printk_formats(&printk);
        assert_eq!(text, "0x1 : \"\"\n0xffffffff81234567 : \"a \\\"b\\\"\\t\\\\n\\n\"\n");
        assert_eq!(parse_printk_formats(&text), (printk, 0));
        assert_eq!(parse_printk_formats("nonsense\n0x2 : no quotes\n").1, 2);
    }

    #[test]
    fn names_of_threads_keep_their_blanks() {
        let comms = BTreeMap::from([(1, "systemd".to_owned()), (7, " a  b ".to_owned()), (-1, String::new())]);
        assert_eq!(parse_cmdlines(&cmdlines(&comms)), (comms, 0));
        assert_eq!(cmdlines(&BTreeMap::from([(1, "a\n2 b".to_owned())])), "1 a?2 b\n");
        assert_eq!(parse_cmdlines("x y\n\n12 z\n"), (BTreeMap::from([(12, "z".to_owned())]), 1));
    }

    #[test]
    fn numbers_are_read_as_c_does() {
        let cases = [
            ("0x10", Some(16)),
            ("-3", Some(-3)),
            ("-0x3", Some(-3)),
            ("0xffffffffffffffff", Some(-1)),
            ("+5 ", Some(5)),
            ("", None),
            ("x", None),
        ];
        for (text, expected) in cases {
            assert_eq!(number(text), expected, "{text:?}");
        }
    }
}
