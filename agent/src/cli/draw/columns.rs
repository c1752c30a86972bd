//! Events as columns, a line each as they come.

use serde_json::Value;

use super::quantity::{quantity, time};
use super::{fit, pad};
use crate::config::adhoc::scale::Scale;

/// Least width of a column of text, and of a number.
const WIDTHS: (usize, usize) = (12, 6);
/// Widest column but the last.
const MAX_WIDTH: usize = 32;
/// Fields of paths and the like.
const LONG: [&str; 5] = ["file", "path", "target", "line", "stack"];
/// What comes before the fields: time, process.
const LEAD: [(&str, usize); 2] = [("TIME", 8), ("PID", 7)];

/// The columns of a probe's events.
#[derive(Debug)]
pub struct Columns {
    /// Names of fields, with the width of each.
    fields: Vec<(String, usize)>,
}

impl Columns {
    /// For the fields of these names. `NAME_v6` is shown as `NAME` where the event's `family` is `ipv6`. What may be long is last.
    pub fn new(fields: &[String]) -> Columns {
        let shown = fields.iter().filter(|name| !is_second(name, fields));
        let mut fields: Vec<(String, usize)> = shown.map(|name| (name.clone(), name.chars().count())).collect();
        fields.sort_by_key(|(name, _)| LONG.contains(&name.as_str()));
        Columns { fields }
    }

    /// The names of the columns, for the line before the first event, which sets widths.
    pub fn head(&mut self, first: &[(String, Value)]) -> String {
        let cells = self.cells(first);
        for ((_, width), (text, right)) in self.fields.iter_mut().zip(cells) {
            *width = (*width).max(text.chars().count().min(MAX_WIDTH)).max(if right { WIDTHS.1 } else { WIDTHS.0 });
        }
        let heads = self.fields.iter().map(|(name, _)| (name.to_uppercase(), false)).collect();
        let right: Vec<bool> = self.cells(first).into_iter().map(|(_, right)| right).collect();
        let heads: Vec<(String, bool)> =
            Vec::into_iter(heads).zip(right).map(|((name, _), right)| (name, right)).collect();
        self.joined([LEAD[0].0, LEAD[1].0], heads)
    }

    /// An event at a time of the day.
    pub fn line(&self, at: &str, pid: u32, fields: &[(String, Value)]) -> String {
        self.joined([at, &pid.to_string()], self.cells(fields))
    }

    fn joined(&self, lead: [&str; 2], cells: Vec<(String, bool)>) -> String {
        let mut line = String::new();
        for (text, (_, width)) in lead.iter().zip(LEAD) {
            line += &format!("{} ", pad(text, width, false));
        }
        let last = cells.len().saturating_sub(1);
        for (at, ((text, right), (_, width))) in cells.into_iter().zip(&self.fields).enumerate() {
            // The last one is not cut: it is often a path, and a terminal breaks the line.
            let room = if at == last { usize::MAX } else { *width };
            line += &format!("{} ", pad(&fit(&text, room), *width, right));
        }
        line.trim_end().to_owned() + "\n"
    }

    /// Texts, and whether they are numbers, which stand at the right.
    fn cells(&self, fields: &[(String, Value)]) -> Vec<(String, bool)> {
        let value = |name: &str| fields.iter().find(|(known, _)| known == name).map(|(_, value)| value);
        let v6 = value("family").is_some_and(|family| family == "ipv6");
        let cell = |name: &String| {
            let second = value(&format!("{name}_v6")).filter(|_| v6);
            second.or(value(name)).map_or_else(Default::default, |value| text(name, value))
        };
        self.fields.iter().map(|(name, _)| cell(name)).collect()
    }
}

fn is_second(name: &str, all: &[String]) -> bool {
    name.strip_suffix("_v6").is_some_and(|first| all.iter().any(|known| known == first))
}

fn text(name: &str, value: &Value) -> (String, bool) {
    match value {
        Value::String(text) => (text.clone(), false),
        Value::Number(number) => match number.as_f64() {
            // Only durations are no whole numbers; they are in seconds.
            Some(seconds) if number.is_f64() => (time(seconds * 1e9), true),
            Some(bytes) if is_bytes(name) => (quantity(bytes, Scale::Count, "bytes"), true),
            _ => (number.to_string(), true),
        },
        Value::Array(frames) => {
            let names: Vec<&str> = frames.iter().filter_map(Value::as_str).collect();
            (names.join(";"), false)
        }
        other => (other.to_string(), false),
    }
}

fn is_bytes(name: &str) -> bool {
    matches!(name, "bytes" | "sent" | "received") || name.ends_with("_bytes")
}
