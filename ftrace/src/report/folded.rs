//! Calls as stacks with their self time, for flame graphs and pprof.

use super::lengths::{last_ns, lengths, self_time};
use super::waits::roots;
use super::{Activity, Asked, work};
use crate::calls::{Calls, NameId};
use std::collections::HashMap;
use std::sync::Arc;

/// Functions of a stack: what is deeper counts for the last of them. The kernel records 50, or some more with interrupts.
const MAX_DEPTH: usize = 512;

/// Stacks of the calls below the root asked for, the outermost function first, and the self time in nanoseconds of each; in the
/// order in which they were first seen.
pub fn folded(calls: &Calls, activity: &Activity, asked: &Asked) -> Vec<(Vec<Arc<str>>, u64)> {
    let lengths = lengths(calls, last_ns(calls).max(activity.end_ns));
    // A stack is a node of a tree of names: the stack it continues, its last function, its time.
    let mut nodes: Vec<(Option<usize>, Arc<str>, u64)> = Vec::new();
    let mut known: HashMap<(Option<usize>, Option<NameId>), usize> = HashMap::new();
    let mut path: Vec<usize> = Vec::new();
    for root in roots(calls, activity, asked).calls {
        for (id, depth) in calls.tree(root) {
            path.truncate(depth);
            let self_ns = self_time(calls, &lengths, id).ns;
            let (above, function) = (path.last().copied(), calls[id].function);
            if let Some(above) = above.filter(|_| depth >= MAX_DEPTH) {
                nodes[above].2 = nodes[above].2.saturating_add(self_ns);
                continue;
            }
            let at = *known.entry((above, function)).or_insert_with(|| {
                nodes.push((above, work::function_name(calls, function).into(), 0));
                nodes.len() - 1
            });
            nodes[at].2 = nodes[at].2.saturating_add(self_ns);
            path.push(at);
        }
        path.clear();
    }
    let stack = |at: usize| {
        let up = std::iter::successors(Some(at), |at| nodes[*at].0);
        let mut stack: Vec<Arc<str>> = up.map(|at| nodes[at].1.clone()).collect();
        stack.reverse();
        stack
    };
    (0..nodes.len()).filter(|at| nodes[*at].2 > 0).map(|at| (stack(at), nodes[at].2)).collect()
}
