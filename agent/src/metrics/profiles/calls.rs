//! Time in calls of kernel functions, as a profile.

use super::{Frame, Named, Resolved, Unit};
use std::collections::HashMap;
use std::sync::Arc;

/// A profile of stacks from the outermost call to the innermost, with nanoseconds.
pub fn profile(stacks: &[(Vec<Arc<str>>, u64)], node: &str, duration_ns: Option<u64>) -> Resolved {
    let mut profile = Resolved {
        metric: "time in calls".to_owned(),
        node: node.to_owned(),
        unit: Unit::Nanoseconds,
        duration_ns: duration_ns.unwrap_or_default(),
        ..Resolved::default()
    };
    let mut known: HashMap<Arc<str>, u32> = HashMap::new();
    for (stack, value) in stacks {
        let frame = |name: &Arc<str>| {
            *known.entry(name.clone()).or_insert_with(|| {
                // The place among the frames stands for the address, which captures of text do not have.
                let at = profile.frames.len() as u32;
                let address = u64::from(at) + 1;
                profile.frames.push(Frame { name: name.clone(), module: None, address, kernel: true });
                at
            })
        };
        let frames = stack.iter().rev().map(frame).collect();
        profile.samples.push(Named { labels: Vec::new(), pid: 0, frames, value: *value });
    }
    profile
}
