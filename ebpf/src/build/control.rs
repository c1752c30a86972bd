//! What the agent sets of a running program: how many events it samples, and which spans are too old to be true.
//!
//! Of a probe that is sampled at one of 2^n, a CPU passes over as many events as a counter says, takes the next one, and sets the counter
//! anew by chance, 2^n - 1 on average. An event that is taken stands for 2^n, its weight. To pass an event over costs no call of a
//! helper: at a flood that is all that is done.

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
const WAS_SAMPLED: i32 = ControlMap::WAS_SAMPLED as i32;
/// Time of a start that was passed over: no clock that has run for a while shows it.
const PASSED_OVER: i64 = 1;

/// Elements of the map of calls that were passed over: by thread, so that two threads seldom share one.
const PASSED_ENTRIES: u32 = 1 << 14;

/// Plans the maps. Returns the one of calls that were passed over, where the probe has one.
pub(super) fn plan(probe: &Probe, layout: &mut Layout) -> Option<MapId> {
    let array = MapKind::Array { mmap: false };
    let map = add_map(layout, "ks_control".into(), array, 4, ControlMap::BYTES, layout.cpus);
    layout.control = Some(ControlMap { map });
    is_of_calls(&probe.shape).then(|| add_map(layout, "ks_passed".into(), array, 4, 4, PASSED_ENTRIES))
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
            w.assign(weight, Op::Alu(AluOp::Add, mask, Operand::Imm(1)));
        });
    });
    weight
}

/// Leaves the program at events that are to be passed over. Returns the weight of the others; `None` where all are taken.
pub(super) fn sample(context: &Context<'_>, w: &mut Writer) -> Option<Var> {
    let words = words(context, w)?;
    Some(decide(w, words, |w| w.push(Stmt::Return), |_| {}))
}

/// The same where a span would begin, with its state at hand: its end must find its weight, or that it was passed over.
pub(super) fn sample_start(context: &Context<'_>, w: &mut Writer, state: Var, start: i32, weight_at: i32) {
    if let Some(words) = words(context, w) {
        let skip = |w: &mut Writer| {
            w.push(Stmt::Store { ptr: state, offset: start, size: Size::B8, value: Operand::Imm(PASSED_OVER) });
            w.push(Stmt::Return);
        };
        let weight = decide(w, words, skip, |_| {});
        w.push(Stmt::Store { ptr: state, offset: weight_at, size: Size::B8, value: Operand::Var(weight) });
    }
}

/// The same where a system call begins, before its state is looked for. Returns the weight; `None` where [`sample_start`] decides.
pub(super) fn sample_call(context: &Context<'_>, w: &mut Writer) -> Option<Var> {
    let passed = context.memory.passed?;
    let words = words(context, w)?;
    let skip = |w: &mut Writer| {
        let (mark, element) = passed_element(context, w, passed);
        w.when(CmpOp::Ne, element, Operand::Imm(0), |w| {
            w.push(Stmt::Store { ptr: element, offset: 0, size: Size::B4, value: Operand::Var(mark) });
        });
        w.push(Stmt::Return);
    };
    // A call that was passed over and whose thread has ended may have left a mark.
    let take = |w: &mut Writer| forget_passed(context, w, passed, |_| {});
    Some(decide(w, words, skip, take))
}

/// Leaves the program at the end of a system call that was passed over.
pub(super) fn leave_passed_call(context: &Context<'_>, w: &mut Writer, words: Var) {
    let Some(passed) = context.memory.passed else { return };
    w.when(CmpOp::Ne, words, Operand::Imm(0), |w| {
        let sampled = w.load(words, WAS_SAMPLED, Size::B8, Space::Value);
        w.when(CmpOp::Ne, sampled, Operand::Imm(0), |w| {
            forget_passed(context, w, passed, |w| w.push(Stmt::Return));
        });
    });
}

/// Takes the mark of the current thread away, and runs `then` if there was one.
fn forget_passed(context: &Context<'_>, w: &mut Writer, passed: MapId, then: impl FnOnce(&mut Writer)) {
    let (mark, element) = passed_element(context, w, passed);
    w.when(CmpOp::Ne, element, Operand::Imm(0), |w| {
        let there = w.load(element, 0, Size::B4, Space::Value);
        w.when(CmpOp::Eq, there, Operand::Var(mark), |w| {
            w.push(Stmt::Store { ptr: element, offset: 0, size: Size::B4, value: Operand::Imm(0) });
            then(w);
        });
    });
}

/// The mark of the current call, which is not 0, and the element that it lies in. Threads whose marks are neighbours, which often run
/// on different CPUs, have theirs in different lines of the cache.
fn passed_element(context: &Context<'_>, w: &mut Writer, passed: MapId) -> (Var, Var) {
    if has_registers(&context.probe.shape) {
        // Each thread saves its registers at one place of its kernel stack, and a place of 8 bytes has an even address. Stacks are 16
        // KiB or more apart. To call a helper for the thread's number takes longer than all else that is done here.
        let registers = w.load(CTX, 0, Size::B8, Space::Ctx);
        let low = w.set(Op::Extend { a: registers, bits: 32, signed: false });
        let mark = w.alu(AluOp::Or, low, Operand::Imm(1));
        let stack = w.alu(AluOp::Shr, low, Operand::Imm(14));
        return (mark, element_of(w, passed, stack));
    }
    let tid = current_tid(context, w);
    let mark = w.alu(AluOp::Add, tid, Operand::Imm(1));
    (mark, element_of(w, passed, tid))
}

fn element_of(w: &mut Writer, passed: MapId, number: Var) -> Var {
    let line = w.alu(AluOp::Shl, number, Operand::Imm(4));
    let in_line = w.alu(AluOp::Shr, number, Operand::Imm(10));
    let mixed = w.alu(AluOp::Xor, line, Operand::Var(in_line));
    let at = w.alu(AluOp::And, mixed, Operand::Imm(i64::from(PASSED_ENTRIES) - 1));
    w.array_element(passed, Operand::Var(at))
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
        w.when(CmpOp::Eq, started, Operand::Imm(0), |w| super::measure::lost(context, w, Loss::NoStart));
        w.push(Stmt::Store { ptr: state, offset: start, size: Size::B8, value: Operand::Imm(0) });
        w.push(Stmt::Return);
    });
}
