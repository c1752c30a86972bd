//! A module like those that the compiler makes of a span: it uses each kind of map, attach point and address.

use kstrobe_ebpf::ir::{
    AluOp, Arg, Block, CTX, Call, CmpOp, Cond, Duty, Func, Helper, Module, Op, Operand, Size, Slot, Space, Stmt, Var,
};
use kstrobe_ebpf::layout::{Layout, MapDef, MapId, MapKind};
use kstrobe_ebpf::typed::Attach;

/// The YAML text that line info points into.
pub const YAML: &str = "probe: span\nspan:\n  start: rawtracepoint:sys_enter\n  end: rawtracepoint:sys_exit\n\
                        metrics:\n  duration_seconds: { type: histogram, value: elapsed }\n";

const STORAGE: MapId = MapId(0);
const VALUES: MapId = MapId(1);
const KEYS: MapId = MapId(2);
const FREE: MapId = MapId(3);

fn map(name: &str, kind: MapKind, key_bytes: u32, value_bytes: u32, entries: u32) -> MapDef {
    MapDef { name: name.into(), kind, key_bytes, value_bytes, entries }
}

fn imm(value: i64) -> Operand {
    Operand::Imm(value)
}
fn call(helper: Helper, args: &[Arg]) -> Op {
    Op::Call(Call { helper, args: args.to_vec() })
}
fn when(a: Var, op: CmpOp, b: i64, then: Block) -> Stmt {
    Stmt::If { cond: Cond { op, a, b: imm(b) }, then, otherwise: vec![] }
}
fn mark(line: u32) -> Stmt {
    Stmt::Mark { line, column: 3 }
}

/// The whole module.
pub fn module() -> Module {
    let maps = vec![
        map("storage", MapKind::TaskStorage, 4, 16, 0),
        map("values", MapKind::Array { mmap: true }, 4, 8 * 66, 4),
        map("keys", MapKind::Hash, 20, 4, 64),
        map("free", MapKind::Stack, 0, 4, 64),
    ];
    let rodata = (0..64u64).flat_map(|octave| (octave / 2).to_le_bytes()).collect();
    let funcs = vec![
        func("span_end", Attach::TpBtf { event: "sys_exit".into() }, end()),
        func("span_start", Attach::TpBtf { event: "sys_enter".into() }, start()),
        func("raw", Attach::RawTp { event: "sched_switch".into() }, count(true)),
        func("tracepoint", Attach::Tracepoint { system: "sched".into(), event: "sched_switch".into() }, series()),
        func("interval", Attach::Interval { period_ns: 1_000_000_000 }, count(false)),
    ];
    Module { funcs, rodata, layout: Layout { cpus: 2, maps, ..Layout::default() } }
}

fn func(name: &str, attach: Attach, body: Block) -> Func {
    Func {
        name: name.into(),
        attach: Some(attach),
        calls: None,
        duty: Duty::Always,
        vars: 24,
        slots: vec![4, 24],
        body,
    }
}

/// Stores the time in the task's storage.
fn start() -> Block {
    let [task, storage, now] = [1, 2, 3].map(Var);
    vec![
        mark(3),
        Stmt::Set(task, call(Helper::GetCurrentTaskBtf, &[])),
        Stmt::Set(
            storage,
            call(Helper::TaskStorageGet, &[Arg::Map(STORAGE), Arg::Var(task), Arg::Imm(0), Arg::Imm(1)]),
        ),
        when(storage, CmpOp::Eq, 0, vec![Stmt::Return]),
        Stmt::Set(now, call(Helper::KtimeGetNs, &[])),
        Stmt::Store { ptr: storage, offset: 0, size: Size::B8, value: Operand::Var(now) },
    ]
}

/// Takes the time since, finds its bucket by its logarithm and a table, and counts it.
fn end() -> Block {
    let [task, storage, begun, now, elapsed, octave, key, value, rest, entry, table, bucket, address, regs, result] =
        [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15].map(Var);
    let mut body = vec![
        mark(4),
        // A trusted pointer argument, followed through two loads.
        Stmt::Set(regs, Op::Load { ptr: CTX, offset: 0, size: Size::B8, space: Space::Ctx }),
        Stmt::Set(result, Op::Load { ptr: regs, offset: 80, size: Size::B8, space: Space::Kernel }),
        when(result, CmpOp::Eq, -4, vec![Stmt::Return]),
        Stmt::Set(task, call(Helper::GetCurrentTaskBtf, &[])),
        Stmt::Set(
            storage,
            call(Helper::TaskStorageGet, &[Arg::Map(STORAGE), Arg::Var(task), Arg::Imm(0), Arg::Imm(0)]),
        ),
        when(storage, CmpOp::Eq, 0, vec![Stmt::Return]),
        Stmt::Set(begun, Op::Load { ptr: storage, offset: 0, size: Size::B8, space: Space::Value }),
        when(begun, CmpOp::Eq, 0, vec![Stmt::Return]),
        Stmt::Store { ptr: storage, offset: 0, size: Size::B8, value: imm(0) },
        Stmt::Set(now, call(Helper::KtimeGetNs, &[])),
        Stmt::Set(elapsed, Op::Alu(AluOp::Sub, now, Operand::Var(begun))),
        mark(6),
        Stmt::StoreSlot { slot: Slot(0), offset: 0, size: Size::B4, value: imm(1) },
        Stmt::Set(key, call(Helper::MapLookup, &[Arg::Map(VALUES), Arg::Slot(Slot(0), 0)])),
        when(key, CmpOp::Eq, 0, vec![Stmt::Return]),
        Stmt::Add { ptr: key, offset: 0, value: Operand::Var(elapsed), atomic: false },
        Stmt::Set(octave, Op::Copy(imm(0))),
        Stmt::Set(value, Op::Copy(Operand::Var(elapsed))),
    ];
    for bits in [32i64, 16, 8, 4, 2, 1] {
        let more = vec![
            Stmt::Set(value, Op::Alu(AluOp::Shr, value, imm(bits))),
            Stmt::Set(octave, Op::Alu(AluOp::Add, octave, imm(bits))),
        ];
        body.push(when(value, CmpOp::Ge, 1 << bits, more));
    }
    body.extend([
        // The verifier wants to see that the index stays inside the table, and the bucket inside the value.
        Stmt::Set(rest, Op::Alu(AluOp::And, octave, imm(63))),
        Stmt::Set(rest, Op::Alu(AluOp::Shl, rest, imm(3))),
        Stmt::Set(table, Op::Rodata(8)),
        Stmt::Set(table, Op::Rodata(0)),
        Stmt::Set(entry, Op::Alu(AluOp::Add, table, Operand::Var(rest))),
        Stmt::Set(bucket, Op::Load { ptr: entry, offset: 0, size: Size::B8, space: Space::Rodata }),
        when(bucket, CmpOp::Gt, 64, vec![Stmt::Return]),
        Stmt::Set(bucket, Op::Alu(AluOp::Shl, bucket, imm(3))),
        Stmt::Set(address, Op::Alu(AluOp::Add, key, Operand::Var(bucket))),
        Stmt::Add { ptr: address, offset: 8, value: imm(1), atomic: false },
    ]);
    body
}

/// Counts in a record of the array.
fn count(atomic: bool) -> Block {
    let [value] = [1].map(Var);
    vec![
        mark(5),
        Stmt::StoreSlot { slot: Slot(0), offset: 0, size: Size::B4, value: imm(2) },
        Stmt::Set(value, call(Helper::MapLookup, &[Arg::Map(VALUES), Arg::Slot(Slot(0), 0)])),
        when(value, CmpOp::Ne, 0, vec![Stmt::Add { ptr: value, offset: 8, value: imm(1), atomic }]),
    ]
}

/// Finds or makes the series of a command name, with more values alive than there are registers.
fn series() -> Block {
    let [slot, free, index, record] = [1, 2, 3, 4].map(Var);
    let mut body = vec![mark(6)];
    let fields: Vec<Var> = (10..18).map(Var).collect();
    for (field, at) in fields.iter().zip(0i32..) {
        body.push(Stmt::Set(*field, Op::Load { ptr: CTX, offset: 8 + 4 * at, size: Size::B4, space: Space::Ctx }));
    }
    let area = Slot(1);
    body.extend((0..3).map(|word| Stmt::StoreSlot { slot: area, offset: word * 8, size: Size::B8, value: imm(0) }));
    let insert = vec![
        Stmt::Set(free, call(Helper::MapPop, &[Arg::Map(FREE), Arg::Slot(Slot(0), 0)])),
        when(free, CmpOp::Ne, 0, vec![Stmt::Return]),
        Stmt::Call(Call {
            helper: Helper::MapUpdate,
            args: vec![Arg::Map(KEYS), Arg::Slot(area, 0), Arg::Slot(Slot(0), 0), Arg::Imm(1)],
        }),
    ];
    let found = vec![
        Stmt::Set(index, Op::Load { ptr: slot, offset: 0, size: Size::B4, space: Space::Value }),
        Stmt::StoreSlot { slot: Slot(0), offset: 0, size: Size::B4, value: Operand::Var(index) },
    ];
    body.extend([
        Stmt::StoreSlot { slot: Slot(0), offset: 0, size: Size::B4, value: imm(0) },
        Stmt::Call(Call { helper: Helper::GetCurrentComm, args: vec![Arg::Slot(area, 0), Arg::Imm(16)] }),
        Stmt::Set(slot, call(Helper::MapLookup, &[Arg::Map(KEYS), Arg::Slot(area, 0)])),
        Stmt::If { cond: Cond { op: CmpOp::Ne, a: slot, b: imm(0) }, then: found, otherwise: insert },
        Stmt::Set(record, call(Helper::MapLookup, &[Arg::Map(VALUES), Arg::Slot(Slot(0), 0)])),
    ]);
    let adds = fields.iter().zip(0i32..).map(|(field, at)| Stmt::Add {
        ptr: record,
        offset: 8 * at,
        value: Operand::Var(*field),
        atomic: true,
    });
    body.push(when(record, CmpOp::Ne, 0, adds.collect()));
    body
}
