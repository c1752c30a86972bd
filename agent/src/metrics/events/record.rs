//! Bytes of a record to named values.

use crate::metrics::labels::Names;
use kstrobe_ebpf::layout::{EventMap, KeyField, SpanField};
use kstrobe_ebpf::typed::Decoder;
use serde_json::Value;
use std::time::Instant;

/// An event, as the kernel sent it.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// `CLOCK_MONOTONIC` in nanoseconds.
    pub at_ns: u64,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// One per field of the layout.
    pub fields: Vec<Field>,
    /// The same of its fields for a span of OpenTelemetry.
    pub otlp_span: Vec<(SpanField, Value)>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Field {
    /// As it is shown.
    Value(Value),
    /// A call stack, which is looked up elsewhere.
    Stack {
        /// Id in the probe's stacks, negative when there is none.
        id: i32,
        /// Of the process rather than of the kernel.
        user: bool,
    },
}

/// Reads a record; `None` when it is shorter than its layout says.
pub fn read(bytes: &[u8], layout: &EventMap, names: &mut Names, now: Instant) -> Option<Record> {
    let bytes = bytes.get(..layout.bytes as usize)?;
    let half = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let fields = layout.fields.iter().map(|f| field(bytes, f, names, now)).collect::<Option<_>>()?;
    let of_span = |(of, f): &(SpanField, KeyField)| Some((*of, value(f, part(bytes, f)?, names, now)));
    let otlp_span = layout.otlp_span.iter().map(of_span).collect::<Option<_>>()?;
    let at_ns = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
    Some(Record { at_ns, pid: half(8)?, tid: half(12)?, fields, otlp_span })
}

fn field(bytes: &[u8], field: &KeyField, names: &mut Names, now: Instant) -> Option<Field> {
    let bytes = part(bytes, field)?;
    let stack = |user| Some(Field::Stack { id: i32::from_le_bytes(bytes.try_into().ok()?), user });
    match field.decoder {
        Decoder::KernelStack => stack(false),
        Decoder::UserStack => stack(true),
        _ => Some(Field::Value(value(field, bytes, names, now))),
    }
}

/// `None` where the record ends before.
fn part<'a>(bytes: &'a [u8], field: &KeyField) -> Option<&'a [u8]> {
    let at = field.offset as usize;
    bytes.get(at..at + field.ty.bytes() as usize)
}

/// What is a number or a truth value stays one; a duration is in seconds. The rest is the text that a label would have.
fn value(field: &KeyField, bytes: &[u8], names: &mut Names, now: Instant) -> Value {
    let text = names.text(&field.decoder, field.ty, bytes, now);
    match field.decoder {
        Decoder::Unsigned => text.parse::<u64>().map_or(Value::String(text), Value::from),
        Decoder::Signed => text.parse::<i64>().map_or(Value::String(text), Value::from),
        Decoder::Duration => text.parse::<f64>().map_or(Value::String(text), Value::from),
        Decoder::Bool => Value::Bool(text == "true"),
        _ => Value::String(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kstrobe_ebpf::layout::MapId;
    use kstrobe_ebpf::typed::Ty;

    fn layout(fields: &[(Ty, u32, Decoder)], bytes: u32) -> EventMap {
        let field = |(ty, offset, decoder): &(Ty, u32, Decoder)| KeyField {
            names: vec!["x".into()],
            ty: *ty,
            offset: *offset,
            decoder: decoder.clone(),
        };
        let fields = fields.iter().map(field).collect();
        EventMap { map: MapId(0), limit: MapId(1), bytes, buffer_bytes: 4096, fields, otlp_span: Vec::new() }
    }

    #[test]
    fn fields_lie_where_the_layout_says() {
        let layout = layout(
            &[
                (Ty::S32, 16, Decoder::Signed),
                (Ty::Bool, 20, Decoder::Bool),
                (Ty::U64, 24, Decoder::Duration),
                (Ty::U64, 32, Decoder::Address),
                (Ty::Str(5), 40, Decoder::Str),
                (Ty::U32, 48, Decoder::TcpState),
                (Ty::S32, 52, Decoder::KernelStack),
                (Ty::S32, 56, Decoder::UserStack),
            ],
            64,
        );
        let mut bytes = [7u64.to_le_bytes(), [1, 0, 0, 0, 2, 0, 0, 0]].concat();
        bytes.extend([&(-3i32).to_le_bytes()[..], &[1, 0, 0, 0], &1_500_000_000u64.to_le_bytes()].concat());
        bytes.extend([&u64::MAX.to_le_bytes()[..], b"nginx\0\0\0", &[10, 0, 0, 0]].concat());
        bytes.extend([9i32.to_le_bytes(), (-14i32).to_le_bytes(), [0; 4]].concat());
        let mut names = Names::new();
        let found = read(&bytes, &layout, &mut names, Instant::now()).unwrap();
        let expected = [
            Field::Value((-3).into()),
            Field::Value(true.into()),
            Field::Value(1.5.into()),
            Field::Value("0xffffffffffffffff".into()),
            Field::Value("nginx".into()),
            Field::Value("listen".into()),
            Field::Stack { id: 9, user: false },
            Field::Stack { id: -14, user: true },
        ];
        assert_eq!((found.at_ns, found.pid, found.tid), (7, 1, 2));
        assert_eq!(found.fields, expected);
        let padded = [&bytes[..], &[0xff; 7]].concat();
        assert_eq!(read(&padded, &layout, &mut names, Instant::now()), Some(found), "perf buffers pad");
        for short in 0..64 {
            assert_eq!(read(&bytes[..short], &layout, &mut names, Instant::now()), None);
        }
    }

    #[test]
    fn fields_of_a_span_are_read_beside_the_others() {
        let [shown, duration] = [(Ty::U32, 16, Decoder::Unsigned), (Ty::U64, 24, Decoder::Duration)]
            .map(|field| layout(&[field], 32).fields.remove(0));
        let layout =
            EventMap { fields: vec![shown], otlp_span: vec![(SpanField::Duration, duration)], ..layout(&[], 32) };
        let bytes = [&[0; 16][..], &7u64.to_le_bytes(), &1_500_000_000u64.to_le_bytes()].concat();
        let found = read(&bytes, &layout, &mut Names::new(), Instant::now()).unwrap();
        assert_eq!(
            (found.fields, found.otlp_span),
            (vec![Field::Value(7.into())], vec![(SpanField::Duration, 1.5.into())])
        );
        assert_eq!(read(&bytes[..24], &layout, &mut Names::new(), Instant::now()), None);
    }

    #[test]
    fn a_layout_that_lies_reads_nothing() {
        let beyond = layout(&[(Ty::U64, 60, Decoder::Unsigned)], 64);
        assert_eq!(read(&[0; 64], &beyond, &mut Names::new(), Instant::now()), None);
    }
}
