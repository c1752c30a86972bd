//! Records of perf tracepoints: numbers of every width at odd places too, text, bytes, and text elsewhere in the record.

use crate::corpus::{Left, one_metric, target, written};
use crate::{agreed, compiled};
use kstrobe_ebpf::ir::interp::Memory;
use kstrobe_ebpf::kernel_target::{Ability, Field, FieldType, TracepointFormat};
use kstrobe_ebpf::program::{Hook, HookKind, Label, MetricKind, Shape};

const RECORD_BYTES: usize = 96;

fn fields() -> Vec<Field> {
    let int = |size, signed| FieldType::Int { size, signed };
    let field = |name: &str, offset, ty| Field { name: name.into(), offset, ty };
    vec![
        field("byte", 8, int(1, true)),
        field("odd2", 9, int(2, true)),
        field("odd4", 11, int(4, false)),
        field("word", 16, int(4, true)),
        field("odd8", 20, int(8, false)),
        field("path", 28, FieldType::DataLoc),
        field("name", 33, FieldType::Str(15)),
        field("mac", 49, FieldType::Bytes(4)),
        field("address", 56, FieldType::Pointer),
    ]
}

fn record() -> Vec<u64> {
    let mut bytes = [0xee; RECORD_BYTES];
    let mut put = |at: usize, data: &[u8]| bytes[at..at + data.len()].copy_from_slice(data);
    put(8, &(-5i8).to_le_bytes());
    put(9, &(-300i16).to_le_bytes());
    put(11, &4_000_000_000u32.to_le_bytes());
    put(16, &(-70_000i32).to_le_bytes());
    put(20, &0xfedc_ba98_7654_3210u64.to_le_bytes());
    // Offset in the low half, length in the high one.
    put(28, &(6u32 << 16 | 72).to_le_bytes());
    put(33, b"a name\0\0\0\0\0\0\0\0\0");
    put(49, &[10, 0, 0, 1]);
    put(56, &0x1234u64.to_le_bytes());
    put(72, b"/path\0stale");
    bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
}

fn run(value: &str, labels: &[&str]) -> Left {
    let mut target = target(&[], false, false);
    target.abilities.tracepoint = Ability::Yes;
    target.tracepoints.insert("case:case".into(), TracepointFormat { fields: fields() });
    let mut program = one_metric(MetricKind::Gauge(None), value);
    let mut id = 100;
    let mut text = |text: &str| {
        id += 1;
        written(id, text)
    };
    let kind = HookKind::Tracepoint { system: "case".into(), event: "case".into() };
    program.shape = Shape::At(vec![Hook { kind, text: text("tracepoint:case:case") }]);
    program.metrics[0].labels = labels
        .iter()
        .enumerate()
        .map(|(i, label)| Label { name: text(&format!("l{i}")), value: text(label) })
        .collect();
    let compiled = compiled(&program, &target).unwrap_or_else(|error| panic!("{value} {labels:?}: {error}"));
    agreed(&compiled, &record(), &Memory::default(), &Memory::default()).unwrap_or_else(|e| panic!("{value}: {e}"))
}

#[test]
fn numbers() {
    for (value, want) in [
        ("args.byte", -5i128),
        ("args.odd2", -300),
        ("args.odd4", 4_000_000_000),
        ("args.word", -70_000),
        ("args.odd8", 0xfedc_ba98_7654_3210),
        ("s64(args.byte) * s64(args.odd2)", 1500),
        ("u64(args.address)", 0x1234),
    ] {
        assert_eq!(run(value, &[]).values, [want as u64, 1], "{value}");
    }
}

#[test]
fn text_in_conditions() {
    for (value, want) in [
        ("args.name == \"a name\"", 1),
        ("args.name == \"a nam\"", 0),
        ("args.path == \"/path\"", 1),
        ("args.path == \"/path2\"", 0),
        ("starts_with(args.path, \"/pa\")", 1),
        ("args.path in [\"/x\", \"/path\"] && args.path != \"/y\"", 1),
    ] {
        assert_eq!(run(value, &[]).values, [want, 1], "{value}");
    }
}

#[test]
fn keys() {
    let key = |labels: &[&str]| {
        let left = run("1", labels);
        assert_eq!(left.keys.len(), 1);
        left.keys[0].0.clone()
    };
    assert_eq!(key(&["args.name"]), b"a name\0\0\0\0\0\0\0\0\0\0");
    let mut path = b"/path".to_vec();
    path.resize(64, 0);
    assert_eq!(key(&["args.path"]), path, "nothing stale behind the text");
    assert_eq!(key(&["ip(args.mac)"]), [10, 0, 0, 1, 0, 0, 0, 0]);
    assert_eq!(key(&["args.odd2", "args.byte"]), [0xd4, 0xfe, 0xfb, 0, 0, 0, 0, 0]);
}
