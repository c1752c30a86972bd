//! Blocks of lines that stand in a text twice: people paste what overlaps, and answer below what they quote.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::line::{Line, Record};

/// Lines that must be equal before a repetition is looked for.
const SEED: usize = 3;
/// How many decimal digits of times must agree for a block to be there twice, when it follows on itself and when it does not. A kernel
/// does the same thing again and again, but not in the same nanoseconds.
const DIGITS_ADJACENT: u32 = 8;
const DIGITS_APART: u32 = 16;

/// Removes all but the first of the blocks that are repeated; how many lines that were.
pub fn remove(lines: &mut Vec<Line>) -> u64 {
    let hashes: Vec<u64> = lines.iter().map(hash).collect();
    let mut again = vec![false; lines.len()];
    let mut seen: HashMap<&[u64], usize> = HashMap::new();
    // Lines before `free` are repeated already; those before `checked` were compared in vain, as part of a longer run.
    let (mut at, mut free, mut checked) = (0, 0, 0);
    while at + SEED <= hashes.len() {
        let before = seen.insert(&hashes[at..at + SEED], at);
        if let Some(before) = before.filter(|_| at >= checked) {
            let run = hashes[before..].iter().zip(&hashes[at..]).take_while(|(a, b)| a == b).count();
            let back =
                hashes[free..at].iter().rev().zip(hashes[..before].iter().rev()).take_while(|(a, b)| a == b).count();
            let needed = if run + back >= at - before { DIGITS_ADJACENT } else { DIGITS_APART };
            if digits(&lines[at - back..at + run]) >= needed {
                again[at - back..at + run].fill(true);
                at += run;
                (free, checked) = (at, at);
                continue;
            }
            checked = at + run - (SEED - 1);
        }
        at += 1;
    }
    let mut flags = again.iter();
    lines.retain(|_| !flags.next().is_some_and(|again| *again));
    again.iter().filter(|again| **again).count() as u64
}

fn hash(line: &Line) -> u64 {
    let mut hasher = DefaultHasher::new();
    line.hash(&mut hasher);
    hasher.finish()
}

/// How many digits lines say that would be others in another run of the same code.
fn digits(lines: &[Line]) -> u32 {
    let records = lines.iter().filter_map(|line| match line {
        Line::Record(record) => Some(record),
        _ => None,
    });
    // The first two digits of a duration are the same for most calls of a function.
    let durations = records
        .clone()
        .filter_map(|record| record.duration_ns)
        .map(|ns| ns.checked_ilog10().unwrap_or(0).saturating_sub(1));
    // Time goes on: what has two times stands there twice only when it was pasted twice.
    let mut times = records.filter_map(|record: &Record| record.time_ns);
    let first = times.next();
    let moves = times.any(|time| Some(time) != first);
    durations.fold(if moves { DIGITS_APART } else { 0 }, u32::saturating_add)
}
