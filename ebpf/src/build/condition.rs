//! Conditions as jumps: what decides is one comparison, and what need not be computed is not.

use super::expr::Exprs;
use crate::ir::{Block, CmpOp, Cond, Op, Operand, Stmt, Var};
use crate::typed::{Cmp, Expr, Kind, Ty};

impl Exprs<'_> {
    pub(super) fn choose(&mut self, c: &Expr, a: &Expr, b: &Expr) -> Var {
        let out = self.w.fresh();
        self.either(
            c,
            |s| {
                let v = s.value(a);
                s.w.assign(out, Op::Copy(v));
            },
            |s| {
                let v = s.value(b);
                s.w.assign(out, Op::Copy(v));
            },
        );
        out
    }

    pub(super) fn truth(&mut self, e: &Expr) -> Var {
        let out = self.w.imm(0);
        self.when(e, |s| s.w.assign(out, Op::Copy(Operand::Imm(1))));
        out
    }

    /// Runs `body` when the condition holds.
    pub(super) fn when(&mut self, cond: &Expr, body: impl FnOnce(&mut Self)) {
        match &cond.kind {
            Kind::And(a, b) => self.when_both(a, b, body),
            _ => self.either(cond, body, |_| {}),
        }
    }

    pub(super) fn when_both(&mut self, a: &Expr, b: &Expr, body: impl FnOnce(&mut Self)) {
        // A trait object ends the recursion of closure types that nested `&&` would otherwise build.
        let mut body = Some(body);
        let mut run = |s: &mut Self| {
            if let Some(body) = body.take() {
                body(s);
            }
        };
        let run: &mut dyn FnMut(&mut Self) = &mut run;
        self.when_dyn(a, &mut |s| s.when_dyn(b, run));
    }

    pub(super) fn when_dyn(&mut self, cond: &Expr, body: &mut dyn FnMut(&mut Self)) {
        if let Kind::And(a, b) = &cond.kind {
            self.when_dyn(a, &mut |s| s.when_dyn(b, body));
        } else {
            self.either(cond, |s| body(s), |_| {});
        }
    }

    /// Leaves the program unless the condition holds.
    pub(super) fn guard(&mut self, cond: &Expr) {
        match &cond.kind {
            Kind::And(a, b) => {
                self.guard(a);
                self.guard(b);
            }
            Kind::Const(1) => {}
            _ => {
                let c = self.condition(cond);
                self.w.leave_if(invert(c.op), c.a, c.b);
            }
        }
    }

    pub(super) fn either(&mut self, cond: &Expr, then: impl FnOnce(&mut Self), otherwise: impl FnOnce(&mut Self)) {
        match cond.kind {
            Kind::Const(0) => return otherwise(self),
            Kind::Const(_) => return then(self),
            _ => {}
        }
        let c = self.condition(cond);
        let then = self.block(then);
        let otherwise = self.block(otherwise);
        self.w.push(Stmt::If { cond: c, then, otherwise });
    }

    /// Writes statements into a block of their own.
    pub(super) fn block(&mut self, body: impl FnOnce(&mut Self)) -> Block {
        self.w.begin();
        body(self);
        self.w.end()
    }

    /// One comparison that decides the expression; what it needs is computed before.
    pub(super) fn condition(&mut self, e: &Expr) -> Cond {
        match &e.kind {
            Kind::Cmp(op, a, b) => {
                let signed = matches!(a.ty, Ty::Int { signed: true, .. });
                let a = self.kept(a);
                Cond { op: comparison(*op, signed), a: self.operand_var(a), b: self.kept(b) }
            }
            Kind::Not(a) => {
                let c = self.condition(a);
                Cond { op: invert(c.op), ..c }
            }
            Kind::Convert(a) if a.ty.is_scalar() => Cond { op: CmpOp::Ne, a: self.var(a), b: Operand::Imm(0) },
            Kind::OneOf(a, values) if values.len() == 1 => {
                Cond { op: CmpOp::Eq, a: self.var(a), b: Operand::Imm(values[0] as i64) }
            }
            Kind::And(a, b) => {
                let out = self.w.imm(0);
                self.when(a, |s| s.when_dyn(b, &mut |s| s.w.assign(out, Op::Copy(Operand::Imm(1)))));
                Cond { op: CmpOp::Ne, a: out, b: Operand::Imm(0) }
            }
            Kind::Or(..) => Cond { op: CmpOp::Ne, a: self.any_of(&alternatives(e)), b: Operand::Imm(0) },
            Kind::OneOf(a, values) => {
                let v = self.var(a);
                Cond { op: CmpOp::Ne, a: self.one_of(v, values), b: Operand::Imm(0) }
            }
            Kind::StrEq(text, literal) => {
                let differs = self.text_differs(text, literal);
                Cond { op: CmpOp::Eq, a: differs, b: Operand::Imm(0) }
            }
            Kind::Selected(id, selector) => self.selected(id, selector),
            _ => Cond { op: CmpOp::Ne, a: self.var(e), b: Operand::Imm(0) },
        }
    }

    /// 1 when one of these holds; those after the first that does are not computed.
    pub(super) fn any_of(&mut self, list: &[&Expr]) -> Var {
        let out = self.w.fresh();
        for (i, some) in list.chunks(NESTED).enumerate() {
            if i == 0 {
                self.nested(some, out);
                continue;
            }
            let then = self.block(|s| s.nested(some, out));
            self.w.push(Stmt::If { cond: Cond { op: CmpOp::Eq, a: out, b: Operand::Imm(0) }, then, otherwise: vec![] });
        }
        out
    }

    /// Each test stands where the one before has failed: the first that holds ends them all.
    pub(super) fn nested(&mut self, list: &[&Expr], out: Var) {
        let Some((first, rest)) = list.split_first() else {
            return self.w.assign(out, Op::Copy(Operand::Imm(0)));
        };
        let cond = self.condition(first);
        let then = self.w.block(|w| w.assign(out, Op::Copy(Operand::Imm(1))));
        let otherwise = self.block(|s| s.nested(rest, out));
        self.w.push(Stmt::If { cond, then, otherwise });
    }

    /// 1 when the variable is one of these constants, which ascend.
    pub(super) fn one_of(&mut self, v: Var, values: &[u64]) -> Var {
        let out = self.w.imm(1);
        let code = search(v, values, &vec![], &vec![Stmt::Set(out, Op::Copy(Operand::Imm(0)))]);
        self.w.extend(code);
        out
    }
}

/// So many tests are nested; blocks may not be much deeper.
const NESTED: usize = 32;

/// What `||` joins, in order.
fn alternatives(e: &Expr) -> Vec<&Expr> {
    let (mut found, mut open) = (Vec::new(), vec![e]);
    while let Some(e) = open.pop() {
        match &e.kind {
            Kind::Or(a, b) => open.extend([b.as_ref(), a.as_ref()]),
            _ => found.push(e),
        }
    }
    found
}

/// Sets up to this size are searched one by one: the first of few is often the one, and each test costs one jump.
const FEW: usize = 8;

/// Runs `absent` when the variable is none of these constants, which ascend, else `found`. Larger sets are halved, so that
/// neither the work nor the depth of blocks grows with their size.
pub(super) fn search(v: Var, values: &[u64], found: &Block, absent: &Block) -> Block {
    if values.len() > FEW {
        let (low, high) = values.split_at(values.len() / 2);
        let cond = Cond { op: CmpOp::Lt, a: v, b: Operand::Imm(high[0] as i64) };
        let [then, otherwise] = [low, high].map(|half| search(v, half, found, absent));
        return vec![Stmt::If { cond, then, otherwise }];
    }
    values.iter().rev().fold(absent.clone(), |rest, value| {
        let cond = Cond { op: CmpOp::Ne, a: v, b: Operand::Imm(*value as i64) };
        vec![Stmt::If { cond, then: rest, otherwise: found.clone() }]
    })
}

fn comparison(op: Cmp, signed: bool) -> CmpOp {
    match (op, signed) {
        (Cmp::Eq, _) => CmpOp::Eq,
        (Cmp::Ne, _) => CmpOp::Ne,
        (Cmp::Lt, false) => CmpOp::Lt,
        (Cmp::Le, false) => CmpOp::Le,
        (Cmp::Gt, false) => CmpOp::Gt,
        (Cmp::Ge, false) => CmpOp::Ge,
        (Cmp::Lt, true) => CmpOp::SLt,
        (Cmp::Le, true) => CmpOp::SLe,
        (Cmp::Gt, true) => CmpOp::SGt,
        (Cmp::Ge, true) => CmpOp::SGe,
    }
}

fn invert(op: CmpOp) -> CmpOp {
    match op {
        CmpOp::Eq => CmpOp::Ne,
        CmpOp::Ne => CmpOp::Eq,
        CmpOp::Lt => CmpOp::Ge,
        CmpOp::Le => CmpOp::Gt,
        CmpOp::Gt => CmpOp::Le,
        CmpOp::Ge => CmpOp::Lt,
        CmpOp::SLt => CmpOp::SGe,
        CmpOp::SLe => CmpOp::SGt,
        CmpOp::SGt => CmpOp::SLe,
        CmpOp::SGe => CmpOp::SLt,
        // Never made by expressions; `Test` has no opposite.
        CmpOp::Test => CmpOp::Test,
    }
}
