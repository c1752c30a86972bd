//! Arithmetic and conversions. Values come and go in their type's extended 64-bit form.

use super::expr::Exprs;
use crate::ir::{AluOp, CmpOp, Op, Operand, Size, Var};
use crate::typed::{Arith, Expr, Kind, Trust, Ty, Unary};

impl Exprs<'_> {
    pub(super) fn unary(&mut self, op: Unary, a: &Expr, ty: Ty) -> Var {
        let a = self.var(a);
        let v = match op {
            Unary::Neg => {
                let zero = self.w.imm(0);
                self.w.alu(AluOp::Sub, zero, Operand::Var(a))
            }
            Unary::Invert => self.w.alu(AluOp::Xor, a, Operand::Imm(-1)),
        };
        self.canonical(v, ty)
    }

    pub(super) fn arith(&mut self, op: Arith, a: &Expr, b: &Expr, ty: Ty) -> Var {
        let signed = matches!(ty, Ty::Int { signed: true, .. });
        let (a, b) = (self.var(a), self.value(b));
        let alu = match op {
            Arith::Add => AluOp::Add,
            Arith::Sub => AluOp::Sub,
            Arith::Mul => AluOp::Mul,
            Arith::And => AluOp::And,
            Arith::Or => AluOp::Or,
            Arith::Xor => AluOp::Xor,
            Arith::Shl => AluOp::Shl,
            Arith::Shr if signed => AluOp::Sar,
            Arith::Shr => AluOp::Shr,
            Arith::Div | Arith::Rem => return self.divide(op == Arith::Rem, a, b, ty),
            Arith::Min | Arith::Max => return self.extreme(op == Arith::Max, a, b, signed),
        };
        let v = match (op, ty) {
            // Narrow shifts take their count modulo their own width, as 64-bit ones do.
            (Arith::Shl | Arith::Shr, Ty::Int { bits, .. }) if bits < 64 => {
                let count = self.operand_var(b);
                let count = self.w.alu(AluOp::And, count, Operand::Imm(i64::from(bits) - 1));
                self.w.alu(alu, a, Operand::Var(count))
            }
            _ => self.w.alu(alu, a, b),
        };
        self.canonical(v, ty)
    }

    pub(super) fn operand_var(&mut self, o: Operand) -> Var {
        match o {
            Operand::Var(v) => v,
            Operand::Imm(i) => self.w.imm(i),
        }
    }

    pub(super) fn extreme(&mut self, max: bool, a: Var, b: Operand, signed: bool) -> Var {
        let out = self.w.set(Op::Copy(Operand::Var(a)));
        let op = match (max, signed) {
            (true, true) => CmpOp::SLt,
            (true, false) => CmpOp::Lt,
            (false, true) => CmpOp::SGt,
            (false, false) => CmpOp::Gt,
        };
        self.w.when(op, a, b, |w| w.assign(out, Op::Copy(b)));
        out
    }

    /// eBPF divides unsigned only (before 6.6), gives 0 for x / 0 and x for x % 0; the language gives 0 for both.
    pub(super) fn divide(&mut self, remainder: bool, a: Var, b: Operand, ty: Ty) -> Var {
        let signed = matches!(ty, Ty::Int { signed: true, .. });
        let b = self.operand_var(b);
        let (mut x, mut y) = (a, b);
        if signed {
            x = self.magnitude(a);
            y = self.magnitude(b);
        }
        let out = self.w.imm(0);
        let op = if remainder { AluOp::Mod } else { AluOp::Div };
        self.w.when(CmpOp::Ne, y, Operand::Imm(0), |w| w.assign(out, Op::Alu(op, x, Operand::Var(y))));
        if !signed {
            return out;
        }
        // As in C: the quotient is negative when the signs differ, the remainder has the sign of the dividend.
        let sign = if remainder { a } else { self.w.alu(AluOp::Xor, a, Operand::Var(b)) };
        let negated = self.w.set(Op::Copy(Operand::Var(out)));
        self.w.when(CmpOp::SLt, sign, Operand::Imm(0), |w| {
            let zero = w.imm(0);
            w.assign(negated, Op::Alu(AluOp::Sub, zero, Operand::Var(out)));
        });
        self.canonical(negated, ty)
    }

    pub(super) fn magnitude(&mut self, v: Var) -> Var {
        let out = self.w.set(Op::Copy(Operand::Var(v)));
        self.w.when(CmpOp::SLt, v, Operand::Imm(0), |w| {
            let zero = w.imm(0);
            w.assign(out, Op::Alu(AluOp::Sub, zero, Operand::Var(v)));
        });
        out
    }

    pub(super) fn convert(&mut self, a: &Expr, to: Ty) -> Var {
        if to == Ty::Bool {
            return self.nonzero(a);
        }
        let from = a.ty;
        let v = self.var(a);
        match (from, to) {
            (Ty::Int { bits: f, signed: fs }, Ty::Int { bits: t, signed: ts }) => {
                // A value that fits the new type keeps its extended form: same or wider, and not a sign lost on the way.
                let keeps = t == 64 || (t > f && (!fs || ts)) || (t == f && fs == ts);
                if keeps { v } else { self.canonical(v, to) }
            }
            (Ty::Ptr { trust, .. }, Ty::Int { .. }) if trust != Trust::User => self.as_number(v),
            _ => v,
        }
    }

    /// An address as a number to the kernel's verifier too, which allows hardly any arithmetic with pointers it knows the
    /// type of. A pointer on the stack of which a byte was overwritten is one no more: two copies, each less a byte.
    pub(super) fn as_number(&mut self, pointer: Var) -> Var {
        let slot = self.w.slot(8);
        let without = |s: &mut Self, byte: u32| {
            s.w.store_slot(slot, 0, Size::B8, Operand::Var(pointer));
            s.w.store_slot(slot, byte, Size::B1, Operand::Imm(0));
            s.w.load_slot(slot, 0, Size::B8)
        };
        let (high, rest) = (without(self, 0), without(self, 7));
        self.w.release(slot);
        let low = self.w.alu(AluOp::And, rest, Operand::Imm(0xff));
        self.w.alu(AluOp::Or, high, Operand::Var(low))
    }

    /// A value that is only compared or stored: there an address may stay a pointer.
    pub(super) fn kept(&mut self, e: &Expr) -> Operand {
        match &e.kind {
            Kind::Convert(a) if matches!(a.ty, Ty::Ptr { .. }) && e.ty != Ty::Bool => self.kept(a),
            _ => self.value(e),
        }
    }

    pub(super) fn nonzero(&mut self, a: &Expr) -> Var {
        let v = self.var(a);
        let out = self.w.imm(0);
        self.w.when(CmpOp::Ne, v, Operand::Imm(0), |w| w.assign(out, Op::Copy(Operand::Imm(1))));
        out
    }

    pub(super) fn log2(&mut self, a: &Expr) -> Var {
        let a = self.var(a);
        let rest = self.w.set(Op::Copy(Operand::Var(a)));
        let out = self.w.imm(0);
        for bits in [32, 16, 8, 4, 2, 1] {
            // Comparisons take 32-bit signed constants only: 2^32 must be tested by shifting.
            let high = self.w.alu(AluOp::Shr, rest, Operand::Imm(bits));
            self.w.when(CmpOp::Ne, high, Operand::Imm(0), |w| {
                w.assign(rest, Op::Copy(Operand::Var(high)));
                w.assign(out, Op::Alu(AluOp::Add, out, Operand::Imm(bits)));
            });
        }
        out
    }
}
