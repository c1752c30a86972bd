//! What an ftrace session's kernel can leave out of a probe's events by itself.

use crate::typed::{Attach, Kind, Select, Shape};
use std::collections::{BTreeMap, BTreeSet};

/// Longer lists are cheaper to look up in the agent than to compare one by one at each event.
const MAX_NUMBERS: usize = 32;

/// By place: the filter, in the kernel's language, that lets through all events that some site of the probe wants.
pub(crate) fn filters(shape: &Shape) -> Vec<(Attach, String)> {
    let sites: Vec<(&Attach, &Select)> = match shape {
        Shape::At(sites) => sites.iter().map(|s| (&s.attach, &s.select)).collect(),
        Shape::Span { start, end, .. } => {
            let starts = start.iter().map(|s| (&s.attach, &s.select));
            starts.chain(end.iter().map(|s| (&s.attach, &s.select))).collect()
        }
        Shape::Steps { sites, .. } => sites.iter().map(|s| (&s.attach, &s.select)).collect(),
        Shape::Poll { .. } => Vec::new(),
    };
    // `None`: some site wants them all.
    let mut wanted: BTreeMap<&Attach, Option<BTreeSet<u64>>> = BTreeMap::new();
    for (attach, select) in sites {
        let all = wanted.entry(attach).or_insert_with(|| Some(BTreeSet::new()));
        match select {
            // The only selection by a field of records is that of system calls by number.
            Select::OneOf(expr, numbers) if matches!(expr.kind, Kind::Field { .. }) => {
                all.iter_mut().for_each(|set| set.extend(numbers));
            }
            _ => *all = None,
        }
    }
    let text = |numbers: &BTreeSet<u64>| {
        let terms: Vec<String> = numbers.iter().map(|number| format!("id == {number}")).collect();
        terms.join(" || ")
    };
    let few = |numbers: &Option<BTreeSet<u64>>| numbers.as_ref().filter(|n| n.len() <= MAX_NUMBERS).map(text);
    wanted.iter().filter_map(|(attach, numbers)| Some(((*attach).clone(), few(numbers)?))).collect()
}
