//! Kubernetes' selectors of labels.

use serde::Deserialize;
use std::collections::BTreeMap;

/// All of its terms must hold; without any it selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct LabelSelector {
    /// Labels with these values.
    pub match_labels: BTreeMap<String, String>,
    /// Further terms.
    pub match_expressions: Vec<Expression>,
}

/// A term of a selector.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expression {
    /// The label.
    pub key: String,
    /// What must be so.
    pub operator: Operator,
    /// Of `In` and `NotIn`.
    #[serde(default)]
    pub values: Vec<String>,
}

/// What must be so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Operator {
    /// The label has one of the values.
    In,
    /// It has none of them, or is not there.
    NotIn,
    /// It is there.
    Exists,
    /// It is not there.
    DoesNotExist,
}

impl LabelSelector {
    /// Whether labels fulfil it.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let has = |expression: &Expression| {
            let value = labels.get(&expression.key);
            match expression.operator {
                Operator::In => value.is_some_and(|value| expression.values.contains(value)),
                Operator::NotIn => value.is_none_or(|value| !expression.values.contains(value)),
                Operator::Exists => value.is_some(),
                Operator::DoesNotExist => value.is_none(),
            }
        };
        self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.match_expressions.iter().all(has)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn terms_as_kubernetes_has_them() {
        let labels = [("app", "web"), ("tier", "front")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        for (selector, expected) in [
            (json!({}), true),
            (json!({"matchLabels": {"app": "web"}}), true),
            (json!({"matchLabels": {"app": "web", "tier": "back"}}), false),
            (json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["db", "web"]}]}), true),
            (json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}), false),
            (json!({"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]}), true),
            (json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}), false),
            (
                json!({"matchExpressions": [{"key": "app", "operator": "Exists"}, {"key": "b", "operator": "DoesNotExist"}]}),
                true,
            ),
            (
                json!({"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}),
                false,
            ),
        ] {
            let read: LabelSelector = serde_json::from_value(selector.clone()).unwrap();
            assert_eq!(read.matches(&labels), expected, "{selector}");
        }
        // A term that is not understood must not select more than was meant.
        for wrong in [json!({"matchLabel": {}}), json!({"matchExpressions": [{"key": "a", "operator": "Gt"}]})] {
            assert!(serde_json::from_value::<LabelSelector>(wrong).is_err());
        }
    }
}
