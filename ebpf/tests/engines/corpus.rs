//! The corpus: expressions with results worked out by hand, the small kernel they are compiled for, and how to read what
//! a run left behind. The kernel's own test takes this file too, so that all engines see the same cases.
//!
//! A case is a block of lines, blocks are split by empty lines:
//!
//! ```text
//! # what is shown
//! args: u32 a, thing p        types: u8..s64, bool, thing (struct thing *), text (char *), user (char __user *)
//! memory m: u8:1 @8 u64:-5 "abc" &m+4      bytes behind `&m`: numbers, padding up to an offset, text, addresses
//! user u: "abc" u8:0          the same in the process's own memory
//! value: args.a + 1           also `where`, `label NAME`, and for spans `by`, `save NAME`, `start.where`
//! selected: 7 9               ids of the cgroups that all conditions mean
//! raw: the pointer faults     only for helpers that read memory, not for plain loads
//!   7 &m = 8                  a run: arguments, and the value (`none`: there is none; with labels: the key's fields)
//! ```

use kstrobe_ebpf::kernel_target::btf_write::{Builder, IntKind, MemberDef};
use kstrobe_ebpf::kernel_target::{Ability, Btf, Target};
use kstrobe_ebpf::layout::{CellKind, Index, Layout};
use kstrobe_ebpf::program::{Hook, HookKind, Keep, Label, Limits, Metric, MetricKind, Program, Shape, Span};
use kstrobe_ebpf::source::{Location, SourceFile, Spanned, SpannedStr, TextId};
use kstrobe_ebpf::typed::Ty;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Each region of memory has this many bytes.
pub const REGION_BYTES: usize = 128;

/// A case file's text by name.
pub const FILES: [(&str, &str); 7] = [
    ("arithmetic", include_str!("arithmetic.case")),
    ("compare", include_str!("compare.case")),
    ("convert", include_str!("convert.case")),
    ("memory", include_str!("memory.case")),
    ("text", include_str!("text.case")),
    ("keys", include_str!("keys.case")),
    ("cgroups", include_str!("cgroups.case")),
];

/// One expression and its runs.
pub struct Case {
    /// File and line.
    pub place: String,
    pub program: Program,
    pub args: Vec<(String, String)>,
    regions: Vec<Region>,
    /// Pointers fault, which only helpers survive.
    pub raw_only: bool,
    /// Ids of the cgroups that are selected.
    pub selected: Vec<u64>,
    pub rows: Vec<Row>,
}

struct Region {
    name: String,
    user: bool,
    tokens: Vec<String>,
}

/// One run.
pub struct Row {
    pub line: String,
    args: Vec<String>,
    want: Vec<String>,
}

/// Regions of memory with the addresses they were given.
#[derive(Clone, Debug, Default)]
pub struct Placed {
    addresses: BTreeMap<String, u64>,
}

pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for (name, text) in FILES {
        let mut at = 1;
        for block in text.split("\n\n") {
            if block.lines().any(|line| line.starts_with("value: ")) {
                all.push(case(&format!("{name}.case:{at}"), block));
            }
            at += block.lines().count() + 1;
        }
    }
    all
}

fn case(place: &str, block: &str) -> Case {
    let (mut lines, mut rows) = (Vec::new(), Vec::new());
    for line in block.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
        match line.strip_prefix("  ") {
            Some(row) => {
                let (args, want) = row.split_once(" = ").unwrap_or_else(|| panic!("{place}: no result in `{row}`"));
                rows.push(Row { line: row.trim().into(), args: words(args), want: words(want) });
            }
            None => lines.push(line.split_once(": ").unwrap_or_else(|| panic!("{place}: no `key: value` in `{line}`"))),
        }
    }
    assert!(!rows.is_empty(), "{place} runs nothing");
    let get = |key: &str| lines.iter().find(|(k, _)| *k == key).map(|(_, value)| *value);
    let args = get("args").unwrap_or("").split(", ").filter_map(|arg| arg.split_once(' '));
    let regions = lines.iter().filter_map(|(key, value)| {
        let (kind, name) = key.split_once(' ').filter(|(kind, _)| matches!(*kind, "memory" | "user"))?;
        Some(Region { name: name.into(), user: kind == "user", tokens: words(value) })
    });
    Case {
        place: place.into(),
        args: args.map(|(ty, name)| (ty.to_string(), name.to_string())).collect(),
        regions: regions.collect(),
        raw_only: get("raw").is_some(),
        selected: get("selected").map(words).unwrap_or_default().iter().map(|id| number(id) as u64).collect(),
        rows,
        program: program(&lines),
    }
}

/// Splits at spaces outside of quotes.
fn words(text: &str) -> Vec<String> {
    let mut quoted = false;
    let split = |c: char| {
        quoted ^= c == '"';
        c == ' ' && !quoted
    };
    text.split(split).filter(|word| !word.is_empty()).map(str::to_string).collect()
}

/// A program of one metric without labels.
pub fn one_metric(kind: MetricKind, value: &str) -> Program {
    let mut program = program(&[("value", value)]);
    program.metrics[0].kind = kind;
    program
}

/// A text of a program, on a line of its own.
pub fn written(id: u32, text: &str) -> SpannedStr {
    let file = Arc::new(SourceFile { name: "case".into(), text: String::new() });
    Spanned { value: text.into(), at: Location { file, start: 0, end: 0, line: id + 1, column: 1 }, id: TextId(id) }
}

/// A gauge of the case's value, at one hook or at the end of a span.
fn program(lines: &[(&str, &str)]) -> Program {
    let mut next = 0;
    let mut text = |text: &str| {
        next += 1;
        written(next - 1, text)
    };
    let mut hook = |event: &str| Hook {
        kind: HookKind::RawTracepoint { event: event.into() },
        text: text(&format!("at {event}")),
    };
    let (start, end) = (hook("case_start"), hook("case_end"));
    let mut span = Span {
        start: vec![start],
        end: vec![],
        by: vec![],
        by_end: vec![],
        save: vec![],
        filter: None,
        filter_end: None,
        keep: Keep::Last,
        max_open: 16,
    };
    let mut metric = Metric {
        name: text("x"),
        kind: MetricKind::Gauge(None),
        value: None,
        filter: None,
        labels: vec![],
        allow_high_cardinality: true,
        max_series: 64,
    };
    for (key, value) in lines {
        match key.split_once(' ') {
            Some(("save", name)) => span.save.push((text(name), text(value))),
            Some(("label", name)) => {
                metric.labels.push(Label { name: text(name), value: text(value) });
            }
            _ => match *key {
                "value" => metric.value = Some(text(value)),
                "where" => metric.filter = Some(text(value)),
                "by" => span.by.push(text(value)),
                "start.where" => span.filter = Some(text(value)),
                "end.where" => span.filter_end = Some(text(value)),
                _ => {}
            },
        }
    }
    let shape = match span.by.is_empty() {
        true => Shape::At(vec![end]),
        false => Shape::Span(Span { end: vec![end], ..span }),
    };
    let (name, limits) = (text("case"), Limits::default());
    Program {
        name,
        engine: Default::default(),
        shape,
        filter: None,
        extra_filter: None,
        lets: Vec::new(),
        owner: Default::default(),
        metrics: vec![metric],
        slow: None,
        limits,
    }
}

impl Case {
    /// Names of the regions, and whether they belong to the process.
    pub fn regions(&self) -> impl Iterator<Item = (&str, bool)> {
        self.regions.iter().map(|r| (r.name.as_str(), r.user))
    }

    /// Bytes of a region, [`REGION_BYTES`] of them.
    pub fn bytes(&self, region: &str, placed: &Placed) -> Vec<u8> {
        let region = self.regions.iter().find(|r| r.name == region).expect("a region of this case");
        let mut bytes = Vec::new();
        for token in &region.tokens {
            if let Some(at) = token.strip_prefix('@') {
                bytes.resize(at.parse().expect("an offset"), 0);
            } else if let Some(text) = token.strip_prefix('"') {
                bytes.extend(text.trim_end_matches('"').bytes());
            } else if token.starts_with('&') {
                bytes.extend(placed.number(token).to_le_bytes());
            } else {
                let (width, value) = token.split_once(':').unwrap_or_else(|| panic!("{}: `{token}`", self.place));
                let width: usize = width[1..].parse().expect("a width in bits");
                bytes.extend(&placed.number(value).to_le_bytes()[..width / 8]);
            }
        }
        assert!(bytes.len() <= REGION_BYTES, "{}: region {}", self.place, region.name);
        bytes.resize(REGION_BYTES, 0);
        bytes
    }

    /// The context of a run: one word per argument.
    pub fn context(&self, row: &Row, placed: &Placed) -> Vec<u64> {
        assert_eq!(row.args.len(), self.args.len(), "{}: arguments of `{}`", self.place, row.line);
        row.args.iter().map(|arg| placed.number(arg)).collect()
    }

    /// The kernel of this case.
    pub fn target(&self, tp_btf: bool, rdonly_cast: bool) -> Target {
        let args: Vec<_> = self.args.iter().map(|(ty, name)| (ty.as_str(), name.as_str())).collect();
        target(&args, tp_btf, rdonly_cast)
    }
}

impl Placed {
    pub fn put(&mut self, region: &str, address: u64) {
        self.addresses.insert(region.into(), address);
    }

    /// `-5`, `0xff`, `&m`, `&m+8`.
    fn number(&self, text: &str) -> u64 {
        if let Some(place) = text.strip_prefix('&') {
            let (region, offset) = place.split_once('+').unwrap_or((place, "0"));
            let base = self.addresses.get(region).unwrap_or_else(|| panic!("no region `{region}`"));
            return base + offset.parse::<u64>().expect("an offset");
        }
        number(text) as u64
    }
}

/// A number of up to 64 bits, signed or not.
fn number(text: &str) -> i128 {
    let (digits, minus) = text.strip_prefix('-').map_or((text, false), |digits| (digits, true));
    let value = match digits.strip_prefix("0x") {
        Some(hex) => i128::from_str_radix(hex, 16),
        None => digits.parse(),
    };
    let value = value.unwrap_or_else(|_| panic!("no number: `{text}`"));
    if minus { -value } else { value }
}

/// What a run left behind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Words of the first table's values.
    pub values: Vec<u64>,
    /// Keys and slots of the first table, if it is hashed, by key.
    pub keys: Vec<(Vec<u8>, u32)>,
}

/// Compares what a run left with what the case wants.
pub fn judge(row: &Row, layout: &Layout, left: &Left) -> Result<(), String> {
    let table = &layout.tables[0];
    assert!(matches!(table.cells[0].kind, CellKind::Gauge { .. }), "cases have one gauge");
    let set: Vec<u32> = (0..table.slots).filter(|slot| left.values[*slot as usize * 2 + 1] != 0).collect();
    let want = row.want.as_slice();
    let wrong = |found: String| Err(format!("`{}` gives {found}", row.line));
    match (want, set.as_slice()) {
        ([none], []) if none == "none" => Ok(()),
        (_, []) => wrong("nothing".into()),
        (_, [_, _, ..]) => wrong(format!("several records: {set:?}")),
        ([word, slot], [found]) if word == "slot" => match slot.parse() == Ok(*found) {
            true => Ok(()),
            false => wrong(format!("slot {found}")),
        },
        (_, [slot]) if matches!(table.index, Index::Hash { .. }) => {
            let Some((key, _)) = left.keys.iter().find(|(_, s)| s == slot) else { return wrong("no key".into()) };
            let fields = fields(layout, key)?;
            if left.keys.len() == 1 && fields == want { Ok(()) } else { wrong(fields.join(" ")) }
        }
        ([value], [slot]) => {
            let found = left.values[*slot as usize * 2];
            if number(value) as u64 == found { Ok(()) } else { wrong(format!("{} or {found:#x}", found as i64)) }
        }
        _ => wrong(format!("{set:?}")),
    }
}

/// A key as text: its fields; bytes between them must be zero.
fn fields(layout: &Layout, key: &[u8]) -> Result<Vec<String>, String> {
    let mut padding = key.to_vec();
    let mut fields = Vec::new();
    for field in &layout.tables[0].key {
        let range = field.offset as usize..(field.offset + field.ty.bytes()) as usize;
        let bytes = &key[range.clone()];
        padding[range].fill(0);
        let value = bytes.iter().rev().take(8).fold(0u64, |value, byte| value << 8 | u64::from(*byte));
        fields.push(match field.ty {
            Ty::Str(_) => {
                let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
                if bytes[end..].iter().any(|b| *b != 0) {
                    return Err(format!("stale bytes behind the text in {bytes:02x?}"));
                }
                format!("\"{}\"", String::from_utf8_lossy(&bytes[..end]))
            }
            Ty::Bytes(_) => bytes.iter().map(|b| format!("{b:02x}")).collect(),
            Ty::Int { bits, signed: true } => {
                let spare = 64 - u32::from(bits);
                (((value << spare) as i64) >> spare).to_string()
            }
            _ => value.to_string(),
        });
    }
    if padding.iter().any(|b| *b != 0) {
        return Err(format!("stale bytes between the fields of {key:02x?}"));
    }
    Ok(fields)
}

/// A kernel with the tracepoints `case_start` and `case_end`, both with these arguments. Without `tp_btf` memory is read
/// by helpers; with `rdonly_cast` every address is.
pub fn target(args: &[(&str, &str)], tp_btf: bool, rdonly_cast: bool) -> Target {
    let mut b = Builder::new();
    let types = types(&mut b);
    let data = b.ptr(0);
    let mut params = vec![("__data", data)];
    params.extend(args.iter().map(|(ty, name)| (*name, types[*ty])));
    for event in ["case_start", "case_end"] {
        let proto = b.func_proto(0, &params);
        let pointer = b.ptr(proto);
        b.typedef(&format!("btf_trace_{event}"), pointer);
        b.func(&format!("__traceiter_{event}"), proto, false);
    }
    if rdonly_cast {
        let proto = b.func_proto(data, &[]);
        b.func("bpf_rdonly_cast", proto, true);
    }
    let btf = Btf::parse(b.finish()).expect("the builder makes valid BTF");
    let mut target = Target { release: "cases".into(), cpus: 1, btf: Some(btf), ..Target::default() };
    let ability = |has: bool| if has { Ability::Yes } else { Ability::No("not in these cases".into()) };
    target.abilities.raw_tp = Ability::Yes;
    target.abilities.atomic_fetch = ability(tp_btf);
    target.abilities.probe_read_kernel = Ability::Yes;
    target.abilities.tp_btf = ability(tp_btf);
    target.abilities.rdonly_cast = ability(rdonly_cast);
    target
}

/// Types by the names that cases use.
fn types(b: &mut Builder) -> BTreeMap<&'static str, u32> {
    let names = [("u8", 1), ("u16", 2), ("u32", 4), ("u64", 8), ("s8", 1), ("s16", 2), ("s32", 4), ("s64", 8)];
    let mut types: BTreeMap<&str, u32> = BTreeMap::new();
    for (name, bytes) in names {
        let kind = if name.starts_with('s') { IntKind::Signed } else { IntKind::Unsigned };
        types.insert(name, b.int(name, bytes, kind));
    }
    types.insert("bool", b.int("_Bool", 1, IntKind::Bool));
    let char = b.int("char", 1, IntKind::Signed);
    let user = b.type_tag("user", char);
    types.insert("text", b.ptr(char));
    types.insert("user", b.ptr(user));
    let thing = thing(b, &types, char);
    types.insert("thing", b.ptr(thing));
    types
}

/// One member of every kind there is.
fn thing(b: &mut Builder, types: &BTreeMap<&str, u32>, char: u32) -> u32 {
    let ty = |name: &str| types[name];
    let text = b.array(char, ty("u32"), 8);
    let odd = b.array(char, ty("u32"), 5);
    let bytes = b.array(ty("u8"), ty("u32"), 6);
    let list = b.array(ty("u32"), ty("u32"), 3);
    let address = b.array(ty("u8"), ty("u32"), 16);
    // The struct comes right after this pointer to it.
    let next = b.next_id() + 1;
    let next = b.ptr(next);
    let bits = |name, ty, bit_offset, bit_size| MemberDef { name, ty, bit_offset, bit_size };
    let at = MemberDef::at;
    let members = [
        at(0, "b", ty("u8")),
        at(1, "sb", ty("s8")),
        at(2, "h", ty("u16")),
        at(4, "w", ty("u32")),
        at(8, "d", ty("u64")),
        at(16, "sh", ty("s16")),
        at(18, "be", ty("u16")),
        at(20, "sw", ty("s32")),
        at(24, "sd", ty("s64")),
        bits("ulo", ty("u32"), 256, 3),
        bits("slo", ty("s32"), 259, 5),
        bits("umid", ty("u32"), 264, 13),
        bits("smid", ty("s32"), 277, 11),
        bits("flag", ty("bool"), 288, 1),
        bits("s1", ty("s32"), 289, 1),
        bits("uwide", ty("u64"), 320, 33),
        bits("swide", ty("s64"), 353, 31),
        at(48, "text", text),
        at(56, "odd", odd),
        at(61, "bytes", bytes),
        at(68, "list", list),
        at(80, "next", next),
        at(88, "user", ty("user")),
        at(96, "name", ty("text")),
        at(104, "yes", ty("bool")),
        at(106, "address", address),
        at(124, "last", ty("u32")),
    ];
    b.structure("thing", REGION_BYTES as u32, &members)
}
