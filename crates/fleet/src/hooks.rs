//! What a trace records to show the hooks of a probe: as its agent says, hook by hook.

use crate::Error;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// A hook in an agent's `/api/v1/probes`.
#[derive(Debug, Deserialize)]
pub struct Hook {
    /// As the user wrote it.
    pub hook: String,
    /// Events that show it, `system:event`.
    #[serde(default)]
    pub events: Vec<String>,
    /// Kernel functions that show it.
    #[serde(default)]
    pub functions: Vec<String>,
}

/// Members of a capture request that record these hooks, and the hooks that ftrace cannot record. Fails if none can be recorded.
///
/// Context switches and wakeups are added: without them a trace shows a delay but not its cause.
pub fn request(probe: &str, hooks: Vec<Hook>) -> Result<(Value, Vec<String>), Error> {
    let (can, cannot): (Vec<Hook>, Vec<Hook>) =
        hooks.into_iter().partition(|hook| !hook.events.is_empty() || !hook.functions.is_empty());
    let cannot = cannot.into_iter().map(|hook| hook.hook).collect();
    if can.is_empty() {
        return Err(Error::Unrecordable { probe: probe.to_owned(), hooks: cannot });
    }
    let mut events: BTreeSet<String> = ["sched:sched_switch", "sched:sched_waking"].map(String::from).into();
    let mut functions = BTreeSet::new();
    for hook in can {
        events.extend(hook.events);
        functions.extend(hook.functions);
    }
    let mut request = json!({"events": events});
    if !functions.is_empty() {
        request["tracer"] = "function_graph".into();
        request["graph"] = json!(functions);
    }
    Ok((request, cannot))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(hooks: Value) -> Result<(Value, Vec<String>), Error> {
        request("p", serde_json::from_value(hooks).unwrap())
    }

    #[test]
    fn events_and_functions_of_hooks_are_recorded_with_switches() {
        let hooks = json!([
            {"hook": "rawtracepoint:softirq_entry", "events": ["*:softirq_entry"], "attached": true},
            {"hook": "function:vfs_read:entry", "functions": ["vfs_read"]},
        ]);
        let expected = json!({
            "events": ["*:softirq_entry", "sched:sched_switch", "sched:sched_waking"],
            "tracer": "function_graph",
            "graph": ["vfs_read"],
        });
        assert_eq!(of(hooks).unwrap(), (expected, vec![]));
    }

    #[test]
    fn unrecordable_hooks_are_listed() {
        let error = of(json!([{"hook": "profile:hz:99"}])).unwrap_err().to_string();
        assert!(error.contains("`p`") && error.contains("profile:hz:99"), "{error}");
        assert!(of(json!([])).is_err());
        let some = of(json!([{"hook": "uprobe:/bin/x:main"}, {"hook": "a", "events": ["*:a"]}])).unwrap();
        assert_eq!(some.1, ["uprobe:/bin/x:main"]);
    }
}
