//! Tests and their arms: which one falls through, which one is jumped to, which one goes behind the rest.

use super::{Deferred, EPILOGUE, Lineariser, Result};
use crate::asm::Label;
use crate::ir::{Block, CmpOp, Cond, Operand, Stmt};
use crate::isa::Jump;
use crate::lower::vcode::Inst;

/// Whether nothing but marks is in it.
fn is_empty(block: &Block) -> bool {
    block.iter().all(|stmt| matches!(stmt, Stmt::Mark { .. }))
}

/// Whether all it does is return.
fn just_returns(block: &Block) -> bool {
    block.iter().find(|stmt| !matches!(stmt, Stmt::Mark { .. })) == Some(&Stmt::Return)
}

/// Whether control never gets past its end.
fn leaves(block: &Block) -> bool {
    block.iter().any(|stmt| match stmt {
        Stmt::Return => true,
        Stmt::If { then, otherwise, .. } => leaves(then) && leaves(otherwise),
        _ => false,
    })
}

impl<'a> Lineariser<'a> {
    pub(super) fn if_stmt(&mut self, cond: &Cond, then: &'a Block, otherwise: &'a Block) -> Result<bool> {
        let mark = self.mark;
        let falls_through = self.arms(cond, then, otherwise)?;
        // What follows belongs to the place before the test, wherever the arms came from.
        if self.mark != mark {
            self.mark = mark;
            self.restate_mark();
        }
        Ok(falls_through)
    }

    fn arms(&mut self, cond: &Cond, then: &'a Block, otherwise: &'a Block) -> Result<bool> {
        let a = self.known.resolve(cond.a);
        let b = self.known.operand(cond.b);
        if let (Operand::Imm(a), Operand::Imm(b)) = (a, b) {
            return self.block(if holds(cond.op, a, b) { then } else { otherwise });
        }
        if is_empty(then) && is_empty(otherwise) {
            return Ok(true);
        }
        if just_returns(then) {
            self.branch(cond, true, EPILOGUE)?;
            return self.block(otherwise);
        }
        if just_returns(otherwise) {
            self.branch(cond, false, EPILOGUE)?;
            return self.block(then);
        }
        if leaves(otherwise) {
            let label = self.defer(otherwise);
            self.branch(cond, false, label)?;
            return self.block(then);
        }
        if leaves(then) && cond.op == CmpOp::Eq && b == Operand::Imm(0) {
            let label = self.defer(then);
            self.branch(cond, true, label)?;
            return self.block(otherwise);
        }
        self.both_arms(cond, then, otherwise)
    }

    /// Neither arm goes elsewhere.
    fn both_arms(&mut self, cond: &Cond, then: &'a Block, otherwise: &'a Block) -> Result<bool> {
        let (heat, mark) = (self.heat, self.mark);
        let unlikely = (heat / 4).max(1);
        let end = self.label();
        // A bit test has no opposite: with it, jumping to `then` saves a jump.
        let then_first = is_empty(otherwise) || (!is_empty(then) && cond.op != CmpOp::Test);
        let (first, second) = if then_first { (then, otherwise) } else { (otherwise, then) };
        let second_label = if is_empty(second) { end } else { self.label() };
        self.branch(cond, !then_first, second_label)?;
        let heat_of = |block: &'a Block| if std::ptr::eq(block, otherwise) { unlikely } else { heat };
        self.heat = heat_of(first);
        let mut falls_through = self.block(first)?;
        if !is_empty(second) {
            if falls_through {
                self.push(Inst::Jump(end));
            }
            self.push(Inst::Bind(second_label));
            self.mark = mark;
            self.heat = heat_of(second);
            self.restate_mark();
            falls_through |= self.block(second)?;
        } else {
            falls_through = true;
        }
        self.push(Inst::Bind(end));
        self.heat = heat;
        Ok(falls_through)
    }

    fn defer(&mut self, block: &'a Block) -> Label {
        let label = self.label();
        let heat = (self.heat / 4).max(1);
        self.deferred.push(Deferred { label, block, heat, mark: self.mark });
        label
    }

    /// Jumps to `to` if the condition's truth is `when`.
    fn branch(&mut self, cond: &Cond, when: bool, to: Label) -> Result<()> {
        let op = jump_op(cond.op);
        let a = self.reg(cond.a)?;
        let b = self.src(cond.b)?;
        let wanted = if when { Some(op) } else { op.opposite() };
        match wanted {
            Some(op) => self.push(Inst::Branch { op, a, b, to }),
            None => {
                let skip = self.label();
                self.push(Inst::Branch { op, a, b, to: skip });
                self.push(Inst::Jump(to));
                self.push(Inst::Bind(skip));
            }
        }
        Ok(())
    }
}

fn jump_op(op: CmpOp) -> Jump {
    match op {
        CmpOp::Eq => Jump::Eq,
        CmpOp::Ne => Jump::Ne,
        CmpOp::Lt => Jump::Lt,
        CmpOp::Le => Jump::Le,
        CmpOp::Gt => Jump::Gt,
        CmpOp::Ge => Jump::Ge,
        CmpOp::SLt => Jump::SLt,
        CmpOp::SLe => Jump::SLe,
        CmpOp::SGt => Jump::SGt,
        CmpOp::SGe => Jump::SGe,
        CmpOp::Test => Jump::Set,
    }
}

fn holds(op: CmpOp, a: i64, b: i64) -> bool {
    let (ua, ub) = (a as u64, b as u64);
    match op {
        CmpOp::Eq => a == b,
        CmpOp::Ne => a != b,
        CmpOp::Lt => ua < ub,
        CmpOp::Le => ua <= ub,
        CmpOp::Gt => ua > ub,
        CmpOp::Ge => ua >= ub,
        CmpOp::SLt => a < b,
        CmpOp::SLe => a <= b,
        CmpOp::SGt => a > b,
        CmpOp::SGe => a >= b,
        CmpOp::Test => a & b != 0,
    }
}
