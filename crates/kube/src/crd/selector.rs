//! Kubernetes label selectors.

use serde::Deserialize;
use std::collections::BTreeMap;

/// All terms must match; an empty selector matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct LabelSelector {
    pub match_labels: BTreeMap<String, String>,
    pub match_expressions: Vec<Expression>,
}

/// One term of `matchExpressions`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expression {
    /// Label key.
    pub key: String,
    /// Match operator.
    pub operator: Operator,
    /// Values for `In` and `NotIn`.
    #[serde(default)]
    pub values: Vec<String>,
}

/// Match operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Operator {
    /// The label exists and its value is listed.
    In,
    /// The label is absent or its value is not listed.
    NotIn,
    /// The label exists.
    Exists,
    /// The label is absent.
    DoesNotExist,
}

impl LabelSelector {
    /// Whether the labels match.
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
        // An unknown operator must not widen the selection.
        for wrong in [json!({"matchLabel": {}}), json!({"matchExpressions": [{"key": "a", "operator": "Gt"}]})] {
            assert!(serde_json::from_value::<LabelSelector>(wrong).is_err());
        }
    }
}
