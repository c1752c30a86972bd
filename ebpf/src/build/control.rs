//! What the agent sets of a running program: how many events it samples, and which spans are too old to be true.
//!
//! Of a probe that is sampled at one of 2^n, a CPU passes over as many events as a counter says, takes the next one, and sets the counter
//! anew by chance, 2^n - 1 on average. An event that is taken stands for 2^n, its weight. To pass an event over costs no call of a
//! helper: at a flood that is all that is done. Where the hooks at which measurements begin are attached for a share of the time
//! alone, the weight is as many times that.

use super::Context;
use super::func::Writer;
use super::memory::add_map;
use crate::ir::{AluOp, CTX, CmpOp, Helper, Op, Operand, Size, Space, Stmt, Var};
use crate::kernel_target::btf;
use crate::layout::{ControlMap, Layout, Loss, MapId, MapKind};
use crate::program::Keep;
use crate::typed::{Attach, Probe, Shape, SpanKey};

/// Byte offsets of the words; see [`ControlMap`].
const MASK: i32 = ControlMap::MASK as i32;
const SINCE: i32 = ControlMap::SINCE as i32;
const LEFT: i32 = ControlMap::LEFT as i32;
const OTHERS: i32 = ControlMap::OTHERS as i32;
const SLICED: i32 = ControlMap::SLICED as i32;
/// Time of a start that was passed over: no clock that has run for a while shows it.
const PASSED_OVER: i64 = 1;

/// Elements of the map of open calls: by thread, so that two threads seldom share one.
const CALL_ENTRIES: u32 = 1 << 14;
/// In an element that two threads with open calls have shared; no thread has this mark. It stays: from then on the ends of these
/// threads' calls are looked for where their spans are.
const SHARED: i64 = 2;
/// Added to a thread's number, which has 22 bits at most (`PID_MAX_LIMIT`).
const OF_NUMBER: i64 = 1 << 30;

/// Plans the maps. Returns the one of open calls, where the probe has one.
pub(super) fn plan(probe: &Probe, layout: &mut Layout) -> Option<MapId> {
    let array = MapKind::Array { mmap: false };
    let map = add_map(layout, "ks_control".into(), array, 4, ControlMap::BYTES, layout.cpus);
    layout.control = Some(ControlMap { map });
    is_of_calls(&probe.shape).then(|| add_map(layout, "ks_calls".into(), array, 4, 4, CALL_ENTRIES))
}

/// Whether spans are system calls: of those a thread has one at a time, and each that begins also ends, unless the thread does.
pub(super) fn is_of_calls(shape: &Shape) -> bool {
    let is_at = |attach: &Attach, name: &str| attach.event() == Some(name);
    match shape {
        Shape::Span { start, end, key: SpanKey::Task, keep: Keep::Last, .. } => {
            start.iter().all(|site| is_at(&site.attach, "sys_enter"))
                && end.iter().all(|site| is_at(&site.attach, "sys_exit"))
        }
        _ => false,
    }
}

/// The words of this CPU, if the probe has them.
pub(super) fn words(context: &Context<'_>, w: &mut Writer) -> Option<Var> {
    let control = context.memory.layout.control.as_ref()?;
    let cpu = w.call(Helper::GetSmpProcessorId, vec![]);
    Some(w.array_element(control.map, Operand::Var(cpu)))
}

/// Runs `skip` for the events that are to be passed over, and `take` for the others of a probe that is sampled. Returns the weight.
fn decide(w: &mut Writer, words: Var, skip: impl FnOnce(&mut Writer), take: impl FnOnce(&mut Writer)) -> Var {
    let weight = w.imm(1);
    w.when(CmpOp::Ne, words, Operand::Imm(0), |w| {
        let mask = w.load(words, MASK, Size::B8, Space::Value);
        w.when(CmpOp::Ne, mask, Operand::Imm(0), |w| {
            let left = w.load(words, LEFT, Size::B8, Space::Value);
            w.when(CmpOp::Ne, left, Operand::Imm(0), |w| {
                let left = w.alu(AluOp::Sub, left, Operand::Imm(1));
                w.push(Stmt::Store { ptr: words, offset: LEFT, size: Size::B8, value: Operand::Var(left) });
                skip(w);
            });
            // One of 0 ..= 2 * mask, whose mean is the mask.
            let random = w.call(Helper::GetPrandomU32, vec![]);
            let double = w.alu(AluOp::Shl, mask, Operand::Imm(1));
            let values = w.alu(AluOp::Add, double, Operand::Imm(1));
            let product = w.alu(AluOp::Mul, random, Operand::Var(values));
            let left = w.alu(AluOp::Shr, product, Operand::Imm(32));
            w.push(Stmt::Store { ptr: words, offset: LEFT, size: Size::B8, value: Operand::Var(left) });
            take(w);
        });
        let others = w.load(words, OTHERS, Size::B8, Space::Value);
        w.assign(weight, Op::Alu(AluOp::Add, others, Operand::Imm(1)));
    });
    weight
}

/// Leaves the program at events that are to be passed over. Returns the weight of the others; `None` where all are taken.
pub(super) fn sample(context: &Context<'_>, w: &mut Writer) -> Option<Var> {
    let words = words(context, w)?;
    Some(decide(w, words, |w| w.push(Stmt::Return), |_| {}))
}

/// The same where a span would begin, with its state at hand: its end must find its weight, or that it was passed over. `pass_over`
/// comes before that is noted in the place of the last start.
pub(super) fn sample_start(
    context: &Context<'_>,
    w: &mut Writer,
    (state, start, weight_at): (Var, i32, i32),
    pass_over: impl FnOnce(&mut Writer),
) {
    if let Some(words) = words(context, w) {
        let skip = |w: &mut Writer| {
            pass_over(w);
            w.push(Stmt::Store { ptr: state, offset: start, size: Size::B8, value: Operand::Imm(PASSED_OVER) });
            w.push(Stmt::Return);
        };
        let weight = decide(w, words, skip, |_| {});
        w.push(Stmt::Store { ptr: state, offset: weight_at, size: Size::B8, value: Operand::Var(weight) });
    }
}

/// The same where a system call begins, before its state is looked for. Returns the weight; `None` where [`sample_start`] decides.
pub(super) fn sample_call(context: &Context<'_>, w: &mut Writer) -> Option<Var> {
    context.memory.calls?;
    sample(context, w)
}

/// Marks the call of the current thread as open.
pub(super) fn mark_call(context: &Context<'_>, w: &mut Writer) {
    with_mark(context, w, |w, mark, element, there| {
        w.when(CmpOp::Eq, there, Operand::Imm(0), |w| {
            w.push(Stmt::Store { ptr: element, offset: 0, size: Size::B4, value: Operand::Var(mark) });
        });
        w.when(CmpOp::Ne, there, Operand::Imm(0), |w| {
            // A call whose thread has ended leaves its mark, which a thread with its stack has as well.
            w.when(CmpOp::Ne, there, Operand::Var(mark), |w| {
                w.push(Stmt::Store { ptr: element, offset: 0, size: Size::B4, value: Operand::Imm(SHARED) });
            });
        });
    });
}

/// Leaves the program at the end of a system call that is not open: that was passed over, began before the probe or was not
/// wanted. That costs one look, and none at the clock, the task or its storage.
pub(super) fn leave_closed_call(context: &Context<'_>, w: &mut Writer) {
    with_mark(context, w, |w, mark, element, there| {
        w.when(CmpOp::Eq, there, Operand::Imm(0), |w| w.push(Stmt::Return));
        w.when(CmpOp::Eq, there, Operand::Var(mark), |w| {
            w.push(Stmt::Store { ptr: element, offset: 0, size: Size::B4, value: Operand::Imm(0) });
        });
    });
}

/// With the mark of the current thread, which is not 0, its element, and the mark that is there. Threads whose marks are neighbours, which
/// often run on different CPUs, have theirs in different lines of the cache.
fn with_mark(context: &Context<'_>, w: &mut Writer, then: impl FnOnce(&mut Writer, Var, Var, Var)) {
    let Some(calls) = context.memory.calls else { return };
    let (mark, number) = match has_registers(&context.probe.shape) {
        true => {
            // Each thread saves its registers at one place of its kernel stack, and a place of 8 bytes has an even address. Stacks are
            // 16 KiB or more apart. To call a helper for the thread's number takes longer than all else that is done here.
            let registers = w.load(CTX, 0, Size::B8, Space::Ctx);
            let low = w.set(Op::Extend { a: registers, bits: 32, signed: false });
            (w.alu(AluOp::Or, low, Operand::Imm(1)), w.alu(AluOp::Shr, low, Operand::Imm(14)))
        }
        false => {
            let tid = current_tid(context, w);
            (w.alu(AluOp::Add, tid, Operand::Imm(OF_NUMBER)), tid)
        }
    };
    let element = element_of(w, calls, number);
    w.when(CmpOp::Ne, element, Operand::Imm(0), |w| {
        let there = w.load(element, 0, Size::B4, Space::Value);
        then(w, mark, element, there);
    });
}

fn element_of(w: &mut Writer, calls: MapId, number: Var) -> Var {
    let line = w.alu(AluOp::Shl, number, Operand::Imm(4));
    let in_line = w.alu(AluOp::Shr, number, Operand::Imm(10));
    let mixed = w.alu(AluOp::Xor, line, Operand::Var(in_line));
    let at = w.alu(AluOp::And, mixed, Operand::Imm(i64::from(CALL_ENTRIES) - 1));
    w.array_element(calls, Operand::Var(at))
}

/// Whether all programs of these calls are given the address of the thread's registers first.
fn has_registers(shape: &Shape) -> bool {
    match shape {
        Shape::Span { start, end, .. } => {
            let mut all = start.iter().map(|site| &site.attach).chain(end.iter().map(|site| &site.attach));
            all.all(Attach::has_arguments)
        }
        _ => false,
    }
}

/// From the task, which costs less than a helper's call.
fn current_tid(context: &Context<'_>, w: &mut Writer) -> Var {
    let member = context.kernel.btf.and_then(|btf| btf.member(btf.find("task_struct", btf::Kind::Struct)?, "pid"));
    match member {
        Some(pid) if context.kernel.task_btf => {
            let task = w.call(Helper::GetCurrentTaskBtf, vec![]);
            w.load(task, (pid.bit_offset / 8) as i32, Size::B4, Space::Kernel)
        }
        _ => {
            let pid_tgid = w.call(Helper::GetCurrentPidTgid, vec![]);
            w.set(Op::Extend { a: pid_tgid, bits: 32, signed: false })
        }
    }
}

/// Leaves the program at the end of a span that has no start, was passed over, or began before the probe came back.
pub(super) fn unmatched(context: &Context<'_>, w: &mut Writer, words: Var, state: Var, start: i32, started: Var) {
    let since = w.imm(0);
    w.when(CmpOp::Ne, words, Operand::Imm(0), |w| {
        w.assign(since, Op::Load { ptr: words, offset: SINCE, size: Size::B8, space: Space::Value });
    });
    w.when(CmpOp::Le, started, Operand::Var(since), |w| {
        w.when(CmpOp::Eq, started, Operand::Imm(0), |w| no_start(context, w, Some(words)));
        w.push(Stmt::Store { ptr: state, offset: start, size: Size::B8, value: Operand::Imm(0) });
        w.push(Stmt::Return);
    });
}

/// Counts an end without a start, where all starts are seen.
pub(super) fn no_start(context: &Context<'_>, w: &mut Writer, words: Option<Var>) {
    let Some(words) = words else { return super::measure::lost(context, w, Loss::NoStart) };
    let sliced = w.imm(0);
    w.when(CmpOp::Ne, words, Operand::Imm(0), |w| {
        w.assign(sliced, Op::Load { ptr: words, offset: SLICED, size: Size::B8, space: Space::Value });
    });
    w.when(CmpOp::Eq, sliced, Operand::Imm(0), |w| super::measure::lost(context, w, Loss::NoStart));
}
