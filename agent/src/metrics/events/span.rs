//! An event as a span of OpenTelemetry.

use super::line::Event;
use super::log::attributes;
use kstrobe_ebpf::layout::SpanField;
use kstrobe_export::otlp::spans::Span;
use serde_json::Value;
use std::time::{Duration, UNIX_EPOCH};

/// The span of an event, by the fields of its record that are for it. One without an id has the event's; one without a trace is a trace of
/// its own, whose id has `own_high` as its high half.
pub fn span(event: &Event, own_high: u64, fields: &[(SpanField, Value)]) -> Span {
    let value = |of| fields.iter().find(|(field, _)| *field == of).map(|(_, value)| value);
    let own = u64::from_str_radix(&event.id, 16).unwrap_or_default();
    let half = |of| value(of).and_then(id).filter(|id| *id != 0);
    let whole = value(SpanField::Trace).and_then(Value::as_str).filter(|_| value(SpanField::TraceHigh).is_none());
    let trace = whole.and_then(|text| hexadecimal(text, 32)).unwrap_or_else(|| {
        let [high, low] = [SpanField::TraceHigh, SpanField::Trace].map(|of| half(of).unwrap_or_default());
        u128::from(high) << 64 | u128::from(low)
    });
    let is_of_trace = trace != 0;
    let duration = value(SpanField::Duration).and_then(Value::as_f64).unwrap_or_default();
    let duration = Duration::try_from_secs_f64(duration).unwrap_or_default();
    let name = value(SpanField::Name).map(|name| name.as_str().map_or_else(|| name.to_string(), str::to_owned));
    Span {
        trace: if is_of_trace { trace } else { u128::from(own_high) << 64 | u128::from(own) }.to_be_bytes(),
        id: half(SpanField::Id).unwrap_or(own).to_be_bytes(),
        parent: half(SpanField::Parent).filter(|_| is_of_trace).map(u64::to_be_bytes),
        name: name.filter(|name| !name.is_empty()).unwrap_or_else(|| event.probe.to_string()),
        // One that is longer than that was below zero.
        start: event.at.checked_sub(duration).filter(|start| *start > UNIX_EPOCH).unwrap_or(event.at),
        end: event.at,
        attributes: attributes(event),
        error: None,
    }
}

/// An id, or half of a trace's: a number, an address, or text of 16 hexadecimal digits.
fn id(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64().or_else(|| number.as_i64().map(|id| id as u64)),
        Value::String(text) => match text.strip_prefix("0x") {
            Some(address) => u64::from_str_radix(address, 16).ok(),
            None => hexadecimal(text, 16).map(|id| id as u64),
        },
        _ => None,
    }
}

fn hexadecimal(text: &str, digits: usize) -> Option<u128> {
    let fits = text.len() == digits && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    fits.then(|| u128::from_str_radix(text, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use kstrobe_export::otlp;

    fn of(fields: &[(SpanField, Value)]) -> Span {
        let event = Event {
            id: "a000000000000007".into(),
            at: UNIX_EPOCH + Duration::from_secs(10),
            probe: "p".into(),
            pid: 1,
            tid: 2,
            fields: vec![("fd".into(), 3.into())],
        };
        span(&event, 5, fields)
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn without_ids_it_is_a_trace_of_its_own() {
        let span = of(&[(SpanField::Duration, 2.5.into())]);
        assert_eq!((hex(&span.trace), hex(&span.id)), ("0000000000000005a000000000000007".into(), hex(&span.id)));
        assert_eq!((hex(&span.id).as_str(), span.parent, span.name.as_str()), ("a000000000000007", None, "p"));
        let since = |at: std::time::SystemTime| at.duration_since(UNIX_EPOCH).unwrap();
        assert_eq!((since(span.start), since(span.end)), (Duration::from_millis(7500), Duration::from_secs(10)));
        assert_eq!(span.attributes.last().unwrap(), &("fd".to_owned(), otlp::Value::Whole(3)));
    }

    #[test]
    fn ids_are_numbers_in_halves_or_hexadecimal_text() {
        let halves = of(&[
            (SpanField::TraceHigh, 1.into()),
            (SpanField::Trace, u64::MAX.into()),
            (SpanField::Parent, (-1).into()),
            (SpanField::Id, "0x10".into()),
            (SpanField::Name, "GET".into()),
        ]);
        assert_eq!(hex(&halves.trace), "0000000000000001ffffffffffffffff");
        assert_eq!(halves.parent, Some([0xff; 8]));
        assert_eq!((hex(&halves.id).as_str(), halves.name.as_str()), ("0000000000000010", "GET"));
        let whole = "4bf92f3577b34da6a3ce929d0e0e4736";
        let text = of(&[(SpanField::Trace, whole.into()), (SpanField::Parent, "00f067aa0ba902b7".into())]);
        assert_eq!((hex(&text.trace), text.parent.map(|id| hex(&id))), (whole.into(), Some("00f067aa0ba902b7".into())));
    }

    #[test]
    fn what_is_no_id_is_none() {
        let cut = "4bf92f3577b34da6a3ce929d0e0e473";
        for wrong in [Value::from(0), "".into(), "dd".into(), "+00f067aa0ba902b".into(), cut.into(), true.into()] {
            let span = of(&[
                (SpanField::Trace, wrong.clone()),
                (SpanField::Parent, 9.into()),
                (SpanField::Id, wrong),
                (SpanField::Duration, 1.8e10.into()),
            ]);
            assert_eq!((hex(&span.id).as_str(), span.parent), ("a000000000000007", None), "a parent is in a trace");
            assert_eq!((span.trace[7], span.start), (5, span.end));
        }
    }
}
