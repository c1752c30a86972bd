//! Which tasks have an open span, by a hash of their address: a count of open spans for each value of it. At a context switch of tasks
//! without one it takes the place of two calls of `bpf_task_storage_get`.
//!
//! Only a task itself opens and closes its span, so that each count goes up and down in turn. A task that ends within its span leaves
//! one: from then on a task of the same hash has its storage looked for at each switch, and the hook of the switches does not rest.

use super::func::Writer;
use super::memory::{Open, START, add_map};
use crate::ir::{AluOp, CmpOp, Op, Operand, Size, Space, Stmt, Var};
use crate::layout::{Layout, MapId, MapKind};

/// Bits of the hash.
const BITS: u32 = 13;
/// Of 2^32 by the golden ratio, as in the kernel's `hash_32` (include/linux/hash.h).
const FACTOR: i64 = 0x61C8_8647;
/// A start below is that of no open span.
const FIRST_TIME: i64 = 2;

/// Plans the map of counts, of 8 bytes each.
pub(super) fn plan(layout: &mut Layout, mmap: bool) -> MapId {
    let map = add_map(layout, "ks_open_tasks".into(), MapKind::Array { mmap }, 4, 8, 1 << BITS);
    layout.open = Some(map);
    map
}

/// Counts the span that the current task is about to open, unless it has one already.
pub(super) fn count_opened(open: &Open, w: &mut Writer, task: Var, state: Var) {
    let Some(tasks) = open.tasks else { return };
    let started = w.load(state, START, Size::B8, Space::Value);
    w.when(CmpOp::Lt, started, Operand::Imm(FIRST_TIME), |w| add(w, tasks, task, 1));
}

/// Takes the span out that the current task is about to close, if it has one.
pub(super) fn count_closed(open: &Open, w: &mut Writer, task: Var, started: Var) {
    let Some(tasks) = open.tasks else { return };
    w.when(CmpOp::Ge, started, Operand::Imm(FIRST_TIME), |w| add(w, tasks, task, -1));
}

/// Runs `then` if the task may have an open span.
pub(super) fn when_open(tasks: MapId, w: &mut Writer, task: Var, then: impl FnOnce(&mut Writer)) {
    let element = element(w, tasks, task);
    w.when(CmpOp::Ne, element, Operand::Imm(0), |w| {
        let spans = w.load(element, 0, Size::B8, Space::Value);
        w.when(CmpOp::Ne, spans, Operand::Imm(0), then);
    });
}

fn add(w: &mut Writer, tasks: MapId, task: Var, number: i64) {
    let element = element(w, tasks, task);
    w.when(CmpOp::Ne, element, Operand::Imm(0), |w| {
        w.push(Stmt::Add { ptr: element, offset: 0, value: Operand::Imm(number), atomic: true });
    });
}

fn element(w: &mut Writer, tasks: MapId, task: Var) -> Var {
    // The verifier takes the low half of a kernel's address as a number.
    let low = w.set(Op::Extend { a: task, bits: 32, signed: false });
    let product = w.alu(AluOp::Mul, low, Operand::Imm(FACTOR));
    let mixed = w.set(Op::Extend { a: product, bits: 32, signed: false });
    let hash = w.alu(AluOp::Shr, mixed, Operand::Imm(i64::from(32 - BITS)));
    w.array_element(tasks, Operand::Var(hash))
}
