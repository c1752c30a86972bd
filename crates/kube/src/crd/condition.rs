//! `status.conditions`, aggregated over all nodes of an object.

use super::brief;
use serde_json::{Value, json};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Condition {
    kind: &'static str,
    holds: bool,
    reason: String,
    message: String,
}

impl Condition {
    pub(super) fn new(kind: &'static str, holds: bool, reason: &str, message: String) -> Condition {
        Condition { kind, holds, reason: reason.to_owned(), message }
    }

    /// `Failed`, with the first failed node, its state and its message.
    pub(super) fn failed(first: Option<(&str, String, Option<&str>)>) -> Condition {
        match first {
            None => Condition::new("Failed", false, "NoFailure", String::new()),
            Some((node, state, message)) => {
                let message = format!("{node}: {}", message.unwrap_or("no reason is given"));
                Condition::new("Failed", true, &state, brief(Some(&message)).unwrap_or_default())
            }
        }
    }
}

/// Builds `status.conditions` from the previous value; `lastTransitionTime` changes only with the status of a condition.
pub(super) fn written(conditions: &[Condition], before: &Value, generation: &Value, now: &str) -> Value {
    let one = |condition: &Condition| {
        let status = if condition.holds { "True" } else { "False" };
        let earlier = before.as_array().into_iter().flatten();
        let mut same = earlier.filter(|other| other["type"] == condition.kind && other["status"] == status);
        let since = same.next().map_or_else(|| json!(now), |other| other["lastTransitionTime"].clone());
        json!({
            "type": condition.kind,
            "status": status,
            "reason": condition.reason,
            "message": condition.message,
            "observedGeneration": generation,
            "lastTransitionTime": since,
        })
    };
    conditions.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_keeps_its_time_until_it_turns() {
        let says = |holds, reason| [Condition::new("Complete", holds, reason, String::new())];
        let first = written(&says(false, "Pending"), &Value::Null, &json!(1), "T1");
        let running = written(&says(false, "Running"), &first, &json!(1), "T2");
        assert_eq!((&running[0]["reason"], &running[0]["lastTransitionTime"]), (&json!("Running"), &json!("T1")));
        let ended = written(&says(true, "Ended"), &running, &json!(1), "T3");
        assert_eq!((&ended[0]["status"], &ended[0]["lastTransitionTime"]), (&json!("True"), &json!("T3")));
    }
}
