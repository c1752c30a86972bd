//! Values of attributes that are not text alone.

use super::{attribute, text};
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, KeyValue, any_value};

/// An attribute's value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Text(String),
    /// Several texts, as the frames of a stack.
    Texts(Vec<String>),
    /// A whole number.
    Whole(i64),
    /// Another number.
    Float(f64),
    Truth(bool),
}

impl Value {
    /// About as many bytes as it takes.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Value::Text(text) => text.len(),
            Value::Texts(texts) => texts.iter().map(|text| text.len() + 4).sum(),
            Value::Whole(_) | Value::Float(_) | Value::Truth(_) => 8,
        }
    }
}

/// Attributes in this order.
pub type Attributes = Vec<(String, Value)>;

/// About as many bytes as they take, with what goes with each.
pub(super) fn bytes(attributes: &Attributes) -> usize {
    attributes.iter().map(|(name, value)| name.len() + value.bytes() + 16).sum()
}

pub(super) fn typed(attributes: &Attributes) -> Vec<KeyValue> {
    attributes.iter().map(|(name, value)| one(name, value)).collect()
}

fn one(name: &str, value: &Value) -> KeyValue {
    let value = match value {
        Value::Text(text) => return attribute(name, text),
        Value::Texts(texts) => {
            any_value::Value::ArrayValue(ArrayValue { values: texts.iter().map(|one| text(one)).collect() })
        }
        Value::Whole(number) => any_value::Value::IntValue(*number),
        Value::Float(number) => any_value::Value::DoubleValue(*number),
        Value::Truth(truth) => any_value::Value::BoolValue(*truth),
    };
    KeyValue { key: name.into(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}
