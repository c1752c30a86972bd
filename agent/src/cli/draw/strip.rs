//! A distribution in a few characters.

use std::collections::BTreeSet;

use super::Distribution;
use super::bars::{lows, rows};
use super::heat::EIGHTHS;
use crate::config::adhoc::scale::Scale;

/// A character for each group of rows, as high as its count among those of this distribution; a blank where there is nothing.
pub fn strip(of: &Distribution, scale: Scale, groups: &[Vec<u64>]) -> String {
    let bars = rows(of, scale);
    let count = |group: &Vec<u64>| bars.iter().filter(|bar| group.contains(&bar.low)).map(|bar| bar.count).sum();
    let counts: Vec<u64> = groups.iter().map(count).collect();
    let most = counts.iter().copied().max().unwrap_or(0).max(1);
    let level = |count: u64| match count {
        0 => ' ',
        // The highest level is that of the most frequent group alone.
        count => EIGHTHS[1 + (count as f64 / most as f64 * 7.0).round() as usize],
    };
    counts.into_iter().map(level).collect()
}

/// The rows from the first to the last with a count in any of these distributions, by where they begin, in at most `max` groups of
/// neighbours.
pub fn groups<'a>(of: impl Iterator<Item = &'a Distribution>, scale: Scale, max: usize) -> Vec<Vec<u64>> {
    let shared = shared_rows(of, scale);
    shared.chunks(shared.len().div_ceil(max).max(1)).map(<[u64]>::to_vec).collect()
}

/// Where the rows of several distributions begin, from the first to the last with a count in any of them.
fn shared_rows<'a>(of: impl Iterator<Item = &'a Distribution>, scale: Scale) -> Vec<u64> {
    let (mut all, mut counted) = (BTreeSet::new(), BTreeSet::new());
    for one in of {
        all.extend(lows(one, scale));
        counted.extend(rows(one, scale).into_iter().filter(|bar| bar.count > 0).map(|bar| bar.low));
    }
    match (counted.first(), counted.last()) {
        (Some(first), Some(last)) => all.range(first..=last).copied().collect(),
        _ => Vec::new(),
    }
}
