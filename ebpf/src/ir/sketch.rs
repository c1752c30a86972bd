//! Short ways to write IR in tests.

use super::{
    AluOp, Arg, Block, Call, CmpOp, Cond, Duty, Func, Helper, Module, Op, Operand, Size, Slot, Space, Stmt, Var,
};
use crate::layout::{Layout, MapDef, MapId, MapKind};

pub(crate) fn v(var: u32) -> Operand {
    Operand::Var(Var(var))
}

pub(crate) fn i(value: i64) -> Operand {
    Operand::Imm(value)
}

pub(crate) fn set(var: u32, op: Op) -> Stmt {
    Stmt::Set(Var(var), op)
}

pub(crate) fn copy(var: u32, value: Operand) -> Stmt {
    set(var, Op::Copy(value))
}

pub(crate) fn alu(var: u32, op: AluOp, a: u32, b: Operand) -> Stmt {
    set(var, Op::Alu(op, Var(a), b))
}

pub(crate) fn load(var: u32, space: Space, ptr: u32, offset: i32, size: Size) -> Stmt {
    set(var, Op::Load { ptr: Var(ptr), offset, size, space })
}

pub(crate) fn store(ptr: u32, offset: i32, size: Size, value: Operand) -> Stmt {
    Stmt::Store { ptr: Var(ptr), offset, size, value }
}

pub(crate) fn add(ptr: u32, offset: i32, value: Operand) -> Stmt {
    Stmt::Add { ptr: Var(ptr), offset, value, atomic: true }
}

pub(crate) fn store_slot(slot: u32, offset: u32, size: Size, value: Operand) -> Stmt {
    Stmt::StoreSlot { slot: Slot(slot), offset, size, value }
}

pub(crate) fn load_slot(var: u32, slot: u32, offset: u32, size: Size) -> Stmt {
    set(var, Op::LoadSlot { slot: Slot(slot), offset, size })
}

pub(crate) fn call(helper: Helper, args: &[Arg]) -> Call {
    Call { helper, args: args.to_vec() }
}

pub(crate) fn set_call(var: u32, helper: Helper, args: &[Arg]) -> Stmt {
    set(var, Op::Call(call(helper, args)))
}

pub(crate) fn map(id: u32) -> Arg {
    Arg::Map(MapId(id))
}

pub(crate) fn slot(slot: u32) -> Arg {
    Arg::Slot(Slot(slot), 0)
}

pub(crate) fn when(a: u32, op: CmpOp, b: Operand, then: Block) -> Stmt {
    when_else(a, op, b, then, vec![])
}

pub(crate) fn when_else(a: u32, op: CmpOp, b: Operand, then: Block, otherwise: Block) -> Stmt {
    Stmt::If { cond: Cond { op, a: Var(a), b }, then, otherwise }
}

pub(crate) fn func(name: &str, body: Block) -> Func {
    Func { name: name.into(), attach: None, calls: None, duty: Duty::Always, vars: 16, slots: vec![8, 24, 16], body }
}

pub(crate) fn map_def(name: &str, kind: MapKind, key_bytes: u32, value_bytes: u32, entries: u32) -> MapDef {
    MapDef { name: name.into(), kind, key_bytes, value_bytes, entries }
}

/// Map 0: array of 4 values of 24 bytes. Map 1: hash of u64 to 16 bytes, 2 entries. Map 2: stack of 3 u32.
/// Map 3: task storage of 16 bytes.
pub(crate) fn layout() -> Layout {
    let maps = vec![
        map_def("values", MapKind::Array { mmap: true }, 4, 24, 4),
        map_def("keys", MapKind::Hash, 8, 16, 2),
        map_def("free", MapKind::Stack, 0, 4, 3),
        map_def("tasks", MapKind::TaskStorage, 4, 16, 0),
    ];
    Layout { cpus: 4, maps, ..Layout::default() }
}

/// A function of 16 variables with slots of 8, 24 and 16 bytes, 64 bytes of rodata (`0, 1, 2, ...`), maps of [`layout`].
pub(crate) fn module(body: Block) -> Module {
    Module { funcs: vec![func("test", body)], rodata: (0..64).collect(), layout: layout() }
}
