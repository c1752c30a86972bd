//! What the agent sets of a running program: how many events it samples, and which spans are too old to be true.
//!
//! A sample of one of 2^n events is unbiased: each event is taken by chance, and one that is taken stands for 2^n of them, its weight.

use super::Context;
use super::func::Writer;
use crate::ir::{AluOp, CmpOp, Helper, Op, Operand, Size, Space, Stmt, Var};
use crate::layout::Loss;

/// Byte offsets of the words; see [`crate::layout::ControlMap`].
const MASK: i32 = 0;
const SINCE: i32 = 8;
/// Time of a start that was passed over: no clock that has run for a while shows it.
const PASSED_OVER: i64 = 1;

/// The first word of the control map, if the probe has one.
fn words(context: &Context<'_>, w: &mut Writer) -> Option<Var> {
    let control = context.memory.layout.control.as_ref()?;
    Some(w.array_element(control.map, Operand::Imm(0)))
}

/// Runs `skip` for the events that are to be passed over. Returns the weight of the others.
fn dice(w: &mut Writer, words: Var, skip: impl FnOnce(&mut Writer)) -> Var {
    let weight = w.imm(1);
    w.when(CmpOp::Ne, words, Operand::Imm(0), |w| {
        let mask = w.load(words, MASK, Size::B8, Space::Value);
        w.when(CmpOp::Ne, mask, Operand::Imm(0), |w| {
            let random = w.call(Helper::GetPrandomU32, vec![]);
            w.when(CmpOp::Test, random, Operand::Var(mask), skip);
            w.assign(weight, Op::Alu(AluOp::Add, mask, Operand::Imm(1)));
        });
    });
    weight
}

/// Leaves the program at events that are to be passed over. Returns the weight of the others; `None` where all are taken.
pub(super) fn sample(context: &Context<'_>, w: &mut Writer) -> Option<Var> {
    let words = words(context, w)?;
    Some(dice(w, words, |w| w.push(Stmt::Return)))
}

/// The same where a span would begin: its end must find its weight, or that it was passed over.
pub(super) fn sample_start(context: &Context<'_>, w: &mut Writer, state: Var, start: i32, weight_at: i32) {
    if let Some(words) = words(context, w) {
        let weight = dice(w, words, |w| {
            w.push(Stmt::Store { ptr: state, offset: start, size: Size::B8, value: Operand::Imm(PASSED_OVER) });
            w.push(Stmt::Return);
        });
        w.push(Stmt::Store { ptr: state, offset: weight_at, size: Size::B8, value: Operand::Var(weight) });
    }
}

/// Leaves the program at the end of a span that has no start, was passed over, or began before the probe came back.
pub(super) fn unmatched(context: &Context<'_>, w: &mut Writer, state: Var, start: i32, started: Var) {
    let since = w.imm(0);
    if let Some(words) = words(context, w) {
        w.when(CmpOp::Ne, words, Operand::Imm(0), |w| {
            w.assign(since, Op::Load { ptr: words, offset: SINCE, size: Size::B8, space: Space::Value });
        });
    }
    w.when(CmpOp::Le, started, Operand::Var(since), |w| {
        w.when(CmpOp::Eq, started, Operand::Imm(0), |w| super::measure::lost(context, w, Loss::NoStart));
        w.push(Stmt::Store { ptr: state, offset: start, size: Size::B8, value: Operand::Imm(0) });
        w.push(Stmt::Return);
    });
}
