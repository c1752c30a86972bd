//! An event as a log record of OpenTelemetry.

use super::line::Event;
use kstrobe_export::otlp::logs::Record;
use kstrobe_export::otlp::{Attributes, Value};
use serde_json::Value as Json;
use std::time::SystemTime;

/// The record of an event that was read at this moment.
pub fn record(event: &Event, line: &str, read: SystemTime) -> Record {
    Record { at: event.at, read, attributes: attributes(event), line: line.to_owned() }
}

/// Attributes of an event. A field keeps the name that the user gave it.
pub fn attributes(event: &Event) -> Attributes {
    let mut attributes: Attributes = vec![
        ("kstrobe.event.id".into(), Value::Text(event.id.clone())),
        ("kstrobe.probe".into(), Value::Text(event.probe.to_string())),
        ("process.pid".into(), Value::Whole(event.pid.into())),
        ("thread.id".into(), Value::Whole(event.tid.into())),
    ];
    attributes.extend(event.fields.iter().map(|(name, field)| (name.clone(), value(field))));
    attributes
}

fn value(field: &Json) -> Value {
    let text = |json: &Json| json.as_str().map_or_else(|| json.to_string(), str::to_owned);
    match field {
        Json::Bool(truth) => Value::Truth(*truth),
        Json::Array(items) => Value::Texts(items.iter().map(text).collect()),
        Json::Number(number) if number.is_f64() => Value::Float(number.as_f64().unwrap_or_default()),
        // OTLP's whole numbers are signed: a larger one becomes text.
        other => other.as_i64().map_or_else(|| Value::Text(text(other)), Value::Whole),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    #[test]
    fn fields_keep_their_names_and_types() {
        let fields = [
            ("comm", Json::from("nginx")),
            ("fd", 7.into()),
            ("took", 0.5.into()),
            ("failed", true.into()),
            ("cookie", u64::MAX.into()),
            ("stack", vec!["leaf", "root"].into()),
        ];
        let fields = fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let event = Event { id: "a0".into(), at: UNIX_EPOCH, probe: "p".into(), pid: 1, tid: 2, fields };
        let record = record(&event, "{}", UNIX_EPOCH);
        let attributes: Vec<_> = record.attributes.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
        let text = |text: &str| Value::Text(text.into());
        let expected = [
            ("kstrobe.event.id", text("a0")),
            ("kstrobe.probe", text("p")),
            ("process.pid", Value::Whole(1)),
            ("thread.id", Value::Whole(2)),
            ("comm", text("nginx")),
            ("fd", Value::Whole(7)),
            ("took", Value::Float(0.5)),
            ("failed", Value::Truth(true)),
            ("cookie", text("18446744073709551615")),
            ("stack", Value::Texts(vec!["leaf".into(), "root".into()])),
        ];
        assert_eq!(attributes, expected);
        assert_eq!(record.line, "{}");
    }
}
