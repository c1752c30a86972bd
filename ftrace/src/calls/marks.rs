//! Events between calls as text.

use crate::format::EventFormat;
use crate::trace::{Event, Trace};
use crate::value::Value;
use std::fmt::Write;
use std::sync::Arc;

/// The name of marks of an event: none for what is a comment.
pub(super) fn name(format: &EventFormat) -> Arc<str> {
    let comment = format.system == "ftrace" && matches!(format.name.as_str(), "print" | "bputs" | "bprint");
    if comment { "".into() } else { format.name.as_str().into() }
}

/// The event's own fields: `name=value`, a blank between them; of comments the comment alone.
pub(super) fn text(trace: &Trace, event: &Event<'_>) -> String {
    let Some(format) = event.format else { return String::new() };
    if format.system == "ftrace" {
        match format.name.as_str() {
            "print" => {
                let text = event.value("buf").and_then(Value::text).unwrap_or_default();
                return text.trim_end_matches('\n').to_owned();
            }
            "bputs" => {
                let text = event.number("str").and_then(|address| trace.printk.get(&address));
                return text.map(|text| text.trim_end_matches("\\n").to_owned()).unwrap_or_default();
            }
            _ => {}
        }
    }
    let mut out = String::new();
    for field in format.fields.iter().filter(|field| !field.name.starts_with("common_")) {
        let Some(value) = field.value(event.data) else { continue };
        if !out.is_empty() {
            out.push(' ');
        }
        let _ = write!(out, "{}=", field.name);
        match value {
            // Addresses, and numbers that mean nothing to people in decimal.
            Value::Unsigned(number) if field.c_type.contains('*') => _ = write!(out, "0x{number:x}"),
            Value::Unsigned(number) => _ = write!(out, "{number}"),
            Value::Signed(number) => _ = write!(out, "{number}"),
            Value::Text(text) => out.push_str(&String::from_utf8_lossy(text)),
            Value::Array { .. } => list(value.elements(), &mut out),
            Value::Bytes(bytes) => list(bytes.iter().map(|byte| u64::from(*byte)), &mut out),
        }
    }
    out
}

/// Numbers of an array: `{0x1,0x2}`.
fn list(numbers: impl Iterator<Item = u64>, out: &mut String) {
    out.push('{');
    for (at, number) in numbers.enumerate() {
        let _ = write!(out, "{}0x{number:x}", if at > 0 { "," } else { "" });
    }
    out.push('}');
}
