//! Expressions -> IR. Scalars end in a variable in their type's extended 64-bit form; text and bytes end in a stack area.

use super::func::Writer;
use super::{Kernel, descriptor};
use crate::ir::{AluOp, Arg, Block, CTX, CmpOp, Cond, Helper, Op, Operand, Size, Slot, Space, Stmt, Var};
use crate::target::btf;
use crate::typed::{Arith, Bitfield, Cmp, Expr, Kind, Trust, Ty, Unary};

/// What expressions may read besides the context and the kernel.
#[derive(Clone, Copy, Default)]
pub(super) struct Inputs<'a> {
    /// `elapsed` and its parts, at a span's end.
    pub elapsed: Option<Var>,
    pub off_cpu: Option<Var>,
    /// Address of a span's saved values and their offsets.
    pub saved: Option<(Var, &'a [u32])>,
}

/// Writes the expressions of one function.
pub(super) struct Exprs<'a> {
    pub w: Writer,
    pub kernel: &'a Kernel<'a>,
    pub inputs: Inputs<'a>,
}

impl<'a> Exprs<'a> {
    /// The value of a scalar expression.
    pub fn value(&mut self, e: &Expr) -> Operand {
        if let Kind::Const(v) = e.kind {
            return Operand::Imm(v as i64);
        }
        Operand::Var(self.var(e))
    }

    /// The same, in a variable.
    pub fn var(&mut self, e: &Expr) -> Var {
        if let Some(v) = self.w.known(e) {
            return v;
        }
        let v = self.compute(e);
        self.w.remember(e, v);
        v
    }

    fn compute(&mut self, e: &Expr) -> Var {
        match &e.kind {
            Kind::Const(v) => self.w.imm(*v as i64),
            Kind::Now => self.w.call(Helper::KtimeGetNs, vec![]),
            Kind::Pid => self.half(Helper::GetCurrentPidTgid, true),
            Kind::Tid => self.half(Helper::GetCurrentPidTgid, false),
            Kind::Gid => self.half(Helper::GetCurrentUidGid, true),
            Kind::Uid => self.half(Helper::GetCurrentUidGid, false),
            Kind::Cgroup => self.w.call(Helper::GetCurrentCgroupId, vec![]),
            Kind::Cpu => self.w.call(Helper::GetSmpProcessorId, vec![]),
            Kind::Task => self.task(e.ty),
            Kind::Arg { offset } => {
                let v = self.w.load(CTX, *offset as i32, Size::B8, Space::Ctx);
                self.canonical(v, e.ty)
            }
            Kind::Field { offset } => self.field(*offset, e.ty),
            Kind::Load { base, offset, bitfield } => self.load(e.ty, base, *offset, *bitfield),
            Kind::Offset { base, offset } => self.address(base, *offset),
            Kind::Element { base, index, scale, count } => self.element(base, index, *scale, *count),
            Kind::FdFile(_) | Kind::FdSock(_) => self.descriptor(e),
            Kind::Saved(n) => self.saved(*n, e.ty),
            Kind::Elapsed => self.input(self.inputs.elapsed),
            Kind::OffCpu => self.input(self.inputs.off_cpu),
            Kind::OnCpu => {
                let (all, off) = (self.input(self.inputs.elapsed), self.input(self.inputs.off_cpu));
                self.w.alu(AluOp::Sub, all, Operand::Var(off))
            }
            Kind::Unary(op, a) => self.unary(*op, a, e.ty),
            Kind::Arith(op, a, b) => self.arith(*op, a, b, e.ty),
            Kind::Convert(a) => self.convert(a, e.ty),
            Kind::Swap(a) => {
                let bits = (a.ty.bytes() * 8) as u8;
                let a = self.var(a);
                self.w.set(Op::Swap { a, bits })
            }
            Kind::Log2(a) => self.log2(a),
            Kind::Cond(c, a, b) => self.choose(c, a, b),
            Kind::Not(_) | Kind::Cmp(..) | Kind::And(..) | Kind::Or(..) | Kind::StrEq(..) | Kind::OneOf(..) => {
                self.truth(e)
            }
            // Text never is a scalar; `check` keeps it out of here.
            Kind::Comm | Kind::Str(_) | Kind::DataLoc { .. } | Kind::StrAt(_) => self.w.imm(0),
        }
    }

    fn input(&mut self, v: Option<Var>) -> Var {
        // `check` allows these names only where there is one.
        v.unwrap_or_else(|| self.w.imm(0))
    }

    fn half(&mut self, helper: Helper, high: bool) -> Var {
        let both = self.w.call(helper, vec![]);
        match high {
            true => self.w.alu(AluOp::Shr, both, Operand::Imm(32)),
            false => self.w.set(Op::Extend { a: both, bits: 32, signed: false }),
        }
    }

    fn task(&mut self, ty: Ty) -> Var {
        match ty {
            Ty::Ptr { trust: Trust::Btf, .. } => self.w.call(Helper::GetCurrentTaskBtf, vec![]),
            _ => self.w.call(Helper::GetCurrentTask, vec![]),
        }
    }

    /// A number of the record.
    fn field(&mut self, offset: u32, ty: Ty) -> Var {
        let size = Size::of(ty.bytes()).unwrap_or(Size::B8);
        if offset.is_multiple_of(size.bytes()) {
            let v = self.w.load(CTX, offset as i32, size, Space::Ctx);
            return self.signed(v, ty);
        }
        // Records of packed structs: the verifier wants each load aligned.
        let slot = self.w.slot(8);
        self.copy(CTX, offset as i32, Space::Ctx, size.bytes(), slot, 0);
        let v = self.w.load_slot(slot, 0, size);
        self.w.release(slot);
        self.signed(v, ty)
    }

    /// Cuts a register to the type's width and extends it by the type's sign.
    fn canonical(&mut self, v: Var, ty: Ty) -> Var {
        match ty {
            Ty::Int { bits, signed } if bits < 64 => self.w.set(Op::Extend { a: v, bits, signed }),
            Ty::Bool => self.w.set(Op::Extend { a: v, bits: 8, signed: false }),
            _ => v,
        }
    }

    /// Extends a zero-extended value of the type's width by the type's sign.
    fn signed(&mut self, v: Var, ty: Ty) -> Var {
        match ty {
            Ty::Int { signed: true, .. } => self.canonical(v, ty),
            _ => v,
        }
    }

    fn load(&mut self, ty: Ty, base: &Expr, offset: i32, bitfield: Option<Bitfield>) -> Var {
        let bytes = bitfield.map_or(ty.bytes(), |b| u32::from(b.size));
        let size = Size::of(bytes).unwrap_or(Size::B8);
        let raw = self.read(base, offset, size);
        let Some(Bitfield { shift, width, .. }) = bitfield else { return self.signed(raw, ty) };
        // Shifting the field to the top and back down drops what is around it and extends by the sign in one go.
        let up = self.w.alu(AluOp::Shl, raw, Operand::Imm(64 - i64::from(shift) - i64::from(width)));
        let op = if matches!(ty, Ty::Int { signed: true, .. }) { AluOp::Sar } else { AluOp::Shr };
        self.w.alu(op, up, Operand::Imm(64 - i64::from(width)))
    }

    /// `size` bytes at `base + offset`, zero-extended; 0 when the pointer is null or leads nowhere.
    fn read(&mut self, base: &Expr, offset: i32, size: Size) -> Var {
        let Some(ptr) = self.direct(base) else {
            let helper = match base.ty {
                Ty::Ptr { trust: Trust::User, .. } => Helper::ProbeReadUser,
                _ => Helper::ProbeReadKernel,
            };
            let address = self.address(base, offset);
            let slot = self.w.slot(8);
            let args = vec![Arg::Slot(slot, 0), Arg::Imm(i64::from(size.bytes())), Arg::Var(address)];
            self.effect(helper, args);
            let value = self.w.load_slot(slot, 0, size);
            self.w.release(slot);
            return value;
        };
        let out = self.w.imm(0);
        // The kernel turns faults of such a load into 0, but the verifier wants the null test where it is unsure.
        self.w.when(CmpOp::Ne, ptr, Operand::Imm(0), |w| {
            w.assign(out, Op::Load { ptr, offset, size, space: Space::Kernel });
        });
        out
    }

    /// The pointer as one the verifier lets us load through, if it can be had.
    fn direct(&mut self, base: &Expr) -> Option<Var> {
        // What was saved in a map comes back as a mere address.
        let saved = matches!(base.kind, Kind::Saved(_));
        match base.ty {
            Ty::Ptr { trust: Trust::Btf, .. } if !saved => Some(self.var(base)),
            Ty::Ptr { trust: Trust::Probe | Trust::Btf, to } if self.kernel.rdonly_cast && self.is_struct(to) => {
                let typed = Expr { ty: Ty::Ptr { to, trust: Trust::Btf }, ..base.clone() };
                // The cast is remembered under the expression's trusted twin, so that it is made once.
                if let Some(v) = self.w.known(&typed) {
                    return Some(v);
                }
                let address = self.var(base);
                let v = self.w.call(Helper::RdonlyCast, vec![Arg::Var(address), Arg::Imm(i64::from(to))]);
                self.w.remember(&typed, v);
                Some(v)
            }
            _ => None,
        }
    }

    fn is_struct(&self, id: u32) -> bool {
        self.kernel.btf.is_some_and(|b| b.ty(id).kind == btf::Kind::Struct)
    }

    fn address(&mut self, base: &Expr, offset: i32) -> Var {
        let v = self.var(base);
        if offset == 0 { v } else { self.offset(v, Operand::Imm(i64::from(offset))) }
    }

    /// `v + offset`, null staying null.
    fn offset(&mut self, v: Var, offset: Operand) -> Var {
        let out = self.w.imm(0);
        self.w.when(CmpOp::Ne, v, Operand::Imm(0), |w| w.assign(out, Op::Alu(AluOp::Add, v, offset)));
        out
    }

    fn element(&mut self, base: &Expr, index: &Expr, scale: u32, count: u32) -> Var {
        let (base, index) = (self.var(base), self.var(index));
        let out = self.w.imm(0);
        self.w.when(CmpOp::Lt, index, Operand::Imm(i64::from(count)), |w| {
            w.when(CmpOp::Ne, base, Operand::Imm(0), |w| {
                let bytes = w.alu(AluOp::Mul, index, Operand::Imm(i64::from(scale)));
                w.assign(out, Op::Alu(AluOp::Add, base, Operand::Var(bytes)));
            });
        });
        out
    }

    fn descriptor(&mut self, e: &Expr) -> Var {
        match descriptor::expand(e, self.kernel) {
            Some(steps) => self.var(&steps),
            None => self.w.imm(0),
        }
    }

    fn saved(&mut self, n: u32, ty: Ty) -> Var {
        match self.inputs.saved {
            Some((state, offsets)) => {
                let size = Size::of(ty.bytes()).unwrap_or(Size::B8);
                let v = self.w.load(state, offsets[n as usize] as i32, size, Space::Value);
                self.signed(v, ty)
            }
            None => self.w.imm(0),
        }
    }

    fn unary(&mut self, op: Unary, a: &Expr, ty: Ty) -> Var {
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

    fn arith(&mut self, op: Arith, a: &Expr, b: &Expr, ty: Ty) -> Var {
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

    fn operand_var(&mut self, o: Operand) -> Var {
        match o {
            Operand::Var(v) => v,
            Operand::Imm(i) => self.w.imm(i),
        }
    }

    fn extreme(&mut self, max: bool, a: Var, b: Operand, signed: bool) -> Var {
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
    fn divide(&mut self, remainder: bool, a: Var, b: Operand, ty: Ty) -> Var {
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

    fn magnitude(&mut self, v: Var) -> Var {
        let out = self.w.set(Op::Copy(Operand::Var(v)));
        self.w.when(CmpOp::SLt, v, Operand::Imm(0), |w| {
            let zero = w.imm(0);
            w.assign(out, Op::Alu(AluOp::Sub, zero, Operand::Var(v)));
        });
        out
    }

    fn convert(&mut self, a: &Expr, to: Ty) -> Var {
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
    fn as_number(&mut self, pointer: Var) -> Var {
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
    pub fn kept(&mut self, e: &Expr) -> Operand {
        match &e.kind {
            Kind::Convert(a) if matches!(a.ty, Ty::Ptr { .. }) && e.ty != Ty::Bool => self.kept(a),
            _ => self.value(e),
        }
    }

    fn nonzero(&mut self, a: &Expr) -> Var {
        let v = self.var(a);
        let out = self.w.imm(0);
        self.w.when(CmpOp::Ne, v, Operand::Imm(0), |w| w.assign(out, Op::Copy(Operand::Imm(1))));
        out
    }

    fn log2(&mut self, a: &Expr) -> Var {
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

    fn choose(&mut self, c: &Expr, a: &Expr, b: &Expr) -> Var {
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

    fn truth(&mut self, e: &Expr) -> Var {
        let out = self.w.imm(0);
        self.when(e, |s| s.w.assign(out, Op::Copy(Operand::Imm(1))));
        out
    }

    /// Runs `body` when the condition holds.
    pub fn when(&mut self, cond: &Expr, body: impl FnOnce(&mut Self)) {
        match &cond.kind {
            Kind::And(a, b) => self.when_both(a, b, body),
            _ => self.either(cond, body, |_| {}),
        }
    }

    fn when_both(&mut self, a: &Expr, b: &Expr, body: impl FnOnce(&mut Self)) {
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

    fn when_dyn(&mut self, cond: &Expr, body: &mut dyn FnMut(&mut Self)) {
        if let Kind::And(a, b) = &cond.kind {
            self.when_dyn(a, &mut |s| s.when_dyn(b, body));
        } else {
            self.either(cond, |s| body(s), |_| {});
        }
    }

    /// Leaves the program unless the condition holds.
    pub fn guard(&mut self, cond: &Expr) {
        match &cond.kind {
            Kind::And(a, b) => {
                self.guard(a);
                self.guard(b);
            }
            Kind::Const(0) => self.w.push(Stmt::Return),
            Kind::Const(_) => {}
            _ => {
                let c = self.condition(cond);
                self.w.leave_if(invert(c.op), c.a, c.b);
            }
        }
    }

    fn either(&mut self, cond: &Expr, then: impl FnOnce(&mut Self), otherwise: impl FnOnce(&mut Self)) {
        let c = self.condition(cond);
        let then = self.block(then);
        let otherwise = self.block(otherwise);
        self.w.push(Stmt::If { cond: c, then, otherwise });
    }

    /// Writes statements into a block of their own.
    pub fn block(&mut self, body: impl FnOnce(&mut Self)) -> Block {
        self.w.begin();
        body(self);
        self.w.end()
    }

    /// One comparison that decides the expression; what it needs is computed before.
    fn condition(&mut self, e: &Expr) -> Cond {
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
            Kind::Or(a, b) => {
                let out = self.w.imm(1);
                let no = |s: &mut Self| s.w.assign(out, Op::Copy(Operand::Imm(0)));
                let c = self.condition(a);
                let rest = self.block(|s| {
                    let c = s.condition(b);
                    let otherwise = s.block(no);
                    s.w.push(Stmt::If { cond: c, then: vec![], otherwise });
                });
                self.w.push(Stmt::If { cond: c, then: vec![], otherwise: rest });
                Cond { op: CmpOp::Ne, a: out, b: Operand::Imm(0) }
            }
            Kind::OneOf(a, values) => {
                let v = self.var(a);
                Cond { op: CmpOp::Ne, a: self.one_of(v, values), b: Operand::Imm(0) }
            }
            Kind::StrEq(text, literal) => {
                let differs = self.text_differs(text, literal);
                Cond { op: CmpOp::Eq, a: differs, b: Operand::Imm(0) }
            }
            _ => Cond { op: CmpOp::Ne, a: self.var(e), b: Operand::Imm(0) },
        }
    }

    /// 1 when the variable is one of these constants, which ascend.
    fn one_of(&mut self, v: Var, values: &[u64]) -> Var {
        let out = self.w.imm(1);
        let code = search(v, values, &vec![], &vec![Stmt::Set(out, Op::Copy(Operand::Imm(0)))]);
        self.w.extend(code);
        out
    }

    /// Non-zero when the text does not begin with the literal: the words' differences, or-ed.
    fn text_differs(&mut self, text: &Expr, literal: &[u8]) -> Var {
        let slot = match self.w.known_text(text) {
            Some(slot) => slot,
            None => {
                let slot = self.w.slot(text.ty.bytes());
                self.text(text, slot, 0);
                self.w.remember_text(text, slot);
                slot
            }
        };
        let differs = self.w.imm(0);
        for (i, chunk) in literal.chunks(8).enumerate() {
            let mut word = [0u8; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            let mut v = self.w.load_slot(slot, i as u32 * 8, Size::B8);
            if chunk.len() < 8 {
                let mask = (1u64 << (8 * chunk.len())) - 1;
                v = self.w.alu(AluOp::And, v, Operand::Imm(mask as i64));
            }
            let d = self.w.alu(AluOp::Xor, v, Operand::Imm(i64::from_le_bytes(word)));
            self.w.assign(differs, Op::Alu(AluOp::Or, differs, Operand::Var(d)));
        }
        differs
    }

    /// Writes text or bytes into a stack area whose size is a multiple of 8; all `ty.bytes()` rounded up to 8 are written.
    pub fn text(&mut self, e: &Expr, slot: Slot, at: u32) {
        let bytes = e.ty.bytes();
        let words = bytes.next_multiple_of(8);
        if let Some(from) = self.w.known_text(e) {
            for w in (0..words).step_by(8) {
                let v = self.w.load_slot(from, w, Size::B8);
                self.w.store_slot(slot, at + w, Size::B8, Operand::Var(v));
            }
            return;
        }
        if !matches!(e.kind, Kind::Comm) || words != bytes {
            for w in (0..words).step_by(8) {
                self.w.store_slot(slot, at + w, Size::B8, Operand::Imm(0));
            }
        }
        match &e.kind {
            Kind::Comm => {
                let args = vec![Arg::Slot(slot, at), Arg::Imm(i64::from(bytes))];
                self.effect(Helper::GetCurrentComm, args);
            }
            Kind::Str(text) => {
                for (i, chunk) in text.chunks(8).enumerate() {
                    let mut word = [0u8; 8];
                    word[..chunk.len()].copy_from_slice(chunk);
                    let value = Operand::Imm(i64::from_le_bytes(word));
                    self.w.store_slot(slot, at + i as u32 * 8, Size::B8, value);
                }
            }
            Kind::Load { base, offset, .. } => self.text_load(e.ty, base, *offset, slot, at),
            Kind::StrAt(address) => {
                let helper = match address.ty {
                    Ty::Ptr { trust: Trust::User, .. } => Helper::ProbeReadUserStr,
                    _ => Helper::ProbeReadKernelStr,
                };
                let address = self.var(address);
                self.effect(helper, vec![Arg::Slot(slot, at), Arg::Imm(i64::from(bytes)), Arg::Var(address)]);
            }
            Kind::Field { offset } => self.copy(CTX, *offset as i32, Space::Ctx, bytes, slot, at),
            Kind::DataLoc { offset } => {
                let locator = self.w.load(CTX, *offset as i32, Size::B4, Space::Ctx);
                let from = self.w.alu(AluOp::And, locator, Operand::Imm(0xffff));
                let address = self.w.alu(AluOp::Add, CTX, Operand::Var(from));
                let args = vec![Arg::Slot(slot, at), Arg::Imm(i64::from(bytes)), Arg::Var(address)];
                self.effect(Helper::ProbeReadKernelStr, args);
            }
            Kind::Saved(n) => {
                if let Some((state, offsets)) = self.inputs.saved {
                    self.copy(state, offsets[*n as usize] as i32, Space::Value, bytes, slot, at);
                }
            }
            _ => {}
        }
    }

    fn effect(&mut self, helper: Helper, args: Vec<Arg>) {
        self.w.push(Stmt::Call(crate::ir::Call { helper, args }));
    }

    fn text_load(&mut self, ty: Ty, base: &Expr, offset: i32, slot: Slot, at: u32) {
        let bytes = ty.bytes();
        if let Ty::Bytes(_) = ty
            && let Some(ptr) = self.direct(base)
        {
            let body = self.block(|s| s.copy(ptr, offset, Space::Kernel, bytes, slot, at));
            let cond = Cond { op: CmpOp::Ne, a: ptr, b: Operand::Imm(0) };
            self.w.push(Stmt::If { cond, then: body, otherwise: vec![] });
            return;
        }
        // For text the helper stops at the NUL, so that stale bytes after it never reach a key.
        let helper = match (ty, base.ty) {
            (Ty::Str(_), Ty::Ptr { trust: Trust::User, .. }) => Helper::ProbeReadUserStr,
            (Ty::Str(_), _) => Helper::ProbeReadKernelStr,
            (_, Ty::Ptr { trust: Trust::User, .. }) => Helper::ProbeReadUser,
            _ => Helper::ProbeReadKernel,
        };
        let address = self.address(base, offset);
        self.effect(helper, vec![Arg::Slot(slot, at), Arg::Imm(i64::from(bytes)), Arg::Var(address)]);
    }

    fn copy(&mut self, from: Var, offset: i32, space: Space, bytes: u32, slot: Slot, at: u32) {
        let mut done = 0;
        while done < bytes {
            let place = offset as u32 + done;
            let size = [Size::B8, Size::B4, Size::B2]
                .into_iter()
                .find(|s| {
                    s.bytes() <= bytes - done
                        && place.is_multiple_of(s.bytes())
                        && (at + done).is_multiple_of(s.bytes())
                })
                .unwrap_or(Size::B1);
            let v = self.w.load(from, offset + done as i32, size, space);
            self.w.store_slot(slot, at + done, size, Operand::Var(v));
            done += size.bytes();
        }
    }
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
