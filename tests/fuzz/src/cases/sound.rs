//! What holds for calls wherever they are from.

use kstrobe_ftrace::calls::Calls;

/// Each call is in one tree, once, and knows its parent; no mark names a call that is not there.
pub fn sound(calls: &Calls) {
    let alone = (0..calls.calls.len()).filter(|id| calls.calls[*id].parent.is_none());
    assert!(alone.eq(calls.roots.iter().map(|root| root.0 as usize)), "the roots are those without a parent, in order");
    let mut seen = 0;
    for root in &calls.roots {
        for (id, _) in calls.tree(*root) {
            seen += 1;
            assert!(calls[id].children.iter().all(|child| calls[*child].parent == Some(id)));
        }
    }
    assert_eq!(seen, calls.calls.len(), "each call is in one tree, once");
    assert!(calls.marks.iter().all(|mark| mark.call.is_none_or(|call| (call.0 as usize) < calls.calls.len())));
}
