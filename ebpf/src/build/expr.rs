//! Values of expressions -> IR: what is read from context, kernel and state. Scalars end in a variable in their type's
//! extended 64-bit form; text and bytes end in a stack area.

use super::func::Writer;
use super::measure::lost_in;
use super::memory::Memory;
use super::{Kernel, Lines, descriptor};
use crate::diag::Place;
use crate::ir::{AluOp, Arg, CTX, Call, CmpOp, Helper, Op, Operand, Size, Slot, Space, Var};
use crate::kernel_target::btf::{self, Access};
use crate::layout::{Loss, SECOND_STACK_MAP};
use crate::typed::{Bitfield, Expr, Kind, Trust, Ty};

/// `BPF_F_USER_STACK`
const USER_STACK: i64 = 1 << 8;
/// `-EFAULT`: there is nothing on that side, as in a kernel thread. No loss.
const NO_FRAMES: i64 = -14;

/// What expressions and measurements may read besides the context and the kernel.
#[derive(Clone, Copy, Default)]
pub(super) struct Inputs<'a> {
    /// `elapsed` and its parts, at a span's end.
    pub elapsed: Option<Var>,
    pub off_cpu: Option<Var>,
    /// Address of a span's saved values and their offsets.
    pub saved: Option<(Var, &'a [u32])>,
    /// The copy of a step's state and the offsets of its fields.
    pub state: Option<(Slot, &'a [u32])>,
    /// How many events this one stands for; one, where all are taken.
    pub weight: Option<Var>,
}

/// Writes the expressions of one function.
pub(super) struct Exprs<'a> {
    pub w: Writer,
    pub kernel: &'a Kernel<'a>,
    pub memory: &'a Memory,
    pub lines: &'a Lines,
    pub inputs: Inputs<'a>,
}

impl<'a> Exprs<'a> {
    /// The value of a scalar expression.
    pub(super) fn value(&mut self, e: &Expr) -> Operand {
        if let Kind::Const(v) = e.kind {
            return Operand::Imm(v as i64);
        }
        Operand::Var(self.var(e))
    }

    /// The same, in a variable.
    pub(super) fn var(&mut self, e: &Expr) -> Var {
        if let Some(v) = self.w.known(e) {
            return v;
        }
        self.mark(e);
        let v = self.compute(e);
        self.w.remember(e, v);
        v
    }

    /// Instructions from here on belong to this expression, whose line the verifier names. The compiler's own have none.
    pub(super) fn mark(&mut self, e: &Expr) {
        if e.place != Place::default()
            && let Some(place) = self.lines.get(&e.place.text)
        {
            self.w.mark_if_new(*place);
        }
    }

    pub(super) fn compute(&mut self, e: &Expr) -> Var {
        match &e.kind {
            Kind::Const(v) => self.w.imm(*v as i64),
            Kind::Now => self.w.call(Helper::KtimeGetNs, vec![]),
            Kind::Pid => self.half(Helper::GetCurrentPidTgid, true),
            Kind::Tid => self.half(Helper::GetCurrentPidTgid, false),
            Kind::Gid => self.half(Helper::GetCurrentUidGid, true),
            Kind::Uid => self.half(Helper::GetCurrentUidGid, false),
            Kind::Cgroup => self.w.call(Helper::GetCurrentCgroupId, vec![]),
            Kind::Cpu => self.w.call(Helper::GetSmpProcessorId, vec![]),
            Kind::FunctionAddress => self.w.call(Helper::GetFuncIp, vec![Arg::Var(CTX)]),
            Kind::PlaceId => self.w.call(Helper::GetAttachCookie, vec![Arg::Var(CTX)]),
            Kind::Task => self.task(e.ty),
            Kind::State(n) => self.state(*n, e.ty),
            Kind::KernelStack => self.stack(0),
            Kind::UserStack => self.stack(USER_STACK),
            Kind::Arg { offset } => {
                let v = self.w.load(CTX, *offset as i32, Size::B8, Space::Ctx);
                self.canonical(v, e.ty)
            }
            Kind::ArgCopy { offset } => {
                let address = self.w.alu(AluOp::Add, CTX, Operand::Imm(i64::from(*offset)));
                let v = self.copied(Helper::ProbeReadKernel, address, Size::B8);
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
            Kind::Not(_)
            | Kind::Cmp(..)
            | Kind::And(..)
            | Kind::Or(..)
            | Kind::StrEq(..)
            | Kind::OneOf(..)
            | Kind::Selected(..) => self.truth(e),
            // Text never is a scalar; `check` keeps it out of here.
            Kind::Comm | Kind::Str(_) | Kind::DataLoc { .. } | Kind::StrAt(_) => self.w.imm(0),
        }
    }

    /// The id of the current stack, or a negative error number that the key keeps: the value still counts.
    ///
    /// Without `BPF_F_REUSE_STACKID`: with it, the stack that comes later takes the id of the one before, whose sums would
    /// then be shown under frames where nothing of the kind happened.
    fn stack(&mut self, flags: i64) -> Var {
        let Some(stacks) = &self.memory.layout.stacks else { return self.w.imm(NO_FRAMES) };
        let args = |map| vec![Arg::Var(CTX), Arg::Map(map), Arg::Imm(flags)];
        let id = self.w.fresh();
        self.w.assign(id, Op::Call(Call { helper: Helper::GetStackId, args: args(stacks.map) }));
        let memory = self.memory;
        self.w.when(CmpOp::SLt, id, Operand::Imm(0), |w| {
            w.when(CmpOp::Ne, id, Operand::Imm(NO_FRAMES), |w| {
                w.assign(id, Op::Call(Call { helper: Helper::GetStackId, args: args(stacks.second) }));
                w.either(
                    CmpOp::SLt,
                    id,
                    Operand::Imm(0),
                    |w| lost_in(memory, w, Loss::StackCollision),
                    |w| w.assign(id, Op::Alu(AluOp::Or, id, Operand::Imm(i64::from(SECOND_STACK_MAP)))),
                );
            });
        });
        id
    }

    pub(super) fn input(&mut self, v: Option<Var>) -> Var {
        // `check` allows these names only where there is one.
        v.unwrap_or_else(|| self.w.imm(0))
    }

    pub(super) fn half(&mut self, helper: Helper, high: bool) -> Var {
        let both = self.w.call(helper, vec![]);
        match high {
            true => self.w.alu(AluOp::Shr, both, Operand::Imm(32)),
            false => self.w.set(Op::Extend { a: both, bits: 32, signed: false }),
        }
    }

    pub(super) fn task(&mut self, ty: Ty) -> Var {
        match ty {
            Ty::Ptr { trust: Trust::Btf, .. } => self.w.call(Helper::GetCurrentTaskBtf, vec![]),
            _ => self.w.call(Helper::GetCurrentTask, vec![]),
        }
    }

    /// A number of the record.
    pub(super) fn field(&mut self, offset: u32, ty: Ty) -> Var {
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
    pub(super) fn canonical(&mut self, v: Var, ty: Ty) -> Var {
        match ty {
            Ty::Int { bits, signed } if bits < 64 => self.w.set(Op::Extend { a: v, bits, signed }),
            Ty::Bool => self.w.set(Op::Extend { a: v, bits: 8, signed: false }),
            _ => v,
        }
    }

    /// Extends a zero-extended value of the type's width by the type's sign.
    pub(super) fn signed(&mut self, v: Var, ty: Ty) -> Var {
        match ty {
            Ty::Int { signed: true, .. } => self.canonical(v, ty),
            _ => v,
        }
    }

    pub(super) fn load(&mut self, ty: Ty, base: &Expr, offset: i32, bitfield: Option<Bitfield>) -> Var {
        let bytes = bitfield.map_or(ty.bytes(), |b| u32::from(b.size));
        let size = Size::of(bytes).unwrap_or(Size::B8);
        let raw = self.read(base, offset, size, matches!(ty, Ty::Ptr { .. }));
        let Some(Bitfield { shift, width, .. }) = bitfield else { return self.signed(raw, ty) };
        // Shifting the field to the top and back down drops what is around it and extends by the sign in one go.
        let up = self.w.alu(AluOp::Shl, raw, Operand::Imm(64 - i64::from(shift) - i64::from(width)));
        let op = if matches!(ty, Ty::Int { signed: true, .. }) { AluOp::Sar } else { AluOp::Shr };
        self.w.alu(op, up, Operand::Imm(64 - i64::from(width)))
    }

    /// `size` bytes at `base + offset`, zero-extended; 0 when the pointer is null or leads nowhere.
    pub(super) fn read(&mut self, base: &Expr, offset: i32, size: Size, pointer: bool) -> Var {
        let loadable = self.loadable(base, offset, size, pointer);
        let Some(ptr) = loadable.then(|| self.direct(base)).flatten() else {
            let helper = match base.ty {
                Ty::Ptr { trust: Trust::User, .. } => Helper::ProbeReadUser,
                _ => Helper::ProbeReadKernel,
            };
            let address = self.address(base, offset);
            return self.copied(helper, address, size);
        };
        let out = self.w.imm(0);
        // The kernel turns faults of such a load into 0, but the verifier wants the null test where it is unsure.
        self.w.when(CmpOp::Ne, ptr, Operand::Imm(0), |w| {
            w.assign(out, Op::Load { ptr, offset, size, space: Space::Kernel });
        });
        out
    }

    /// `size` bytes that a helper copies from an address, zero-extended.
    fn copied(&mut self, helper: Helper, address: Var, size: Size) -> Var {
        let slot = self.w.slot(8);
        let args = vec![Arg::Slot(slot, 0), Arg::Imm(i64::from(size.bytes())), Arg::Var(address)];
        self.effect(helper, args);
        let value = self.w.load_slot(slot, 0, size);
        self.w.release(slot);
        value
    }

    /// Whether the verifier sees the member at this offset, and not a pointer instead of a number, or part of another member.
    pub(super) fn loadable(&self, base: &Expr, offset: i32, size: Size, pointer: bool) -> bool {
        let (Ty::Ptr { to, .. }, Some(btf)) = (base.ty, self.kernel.btf) else { return false };
        match btf.access(to, offset, size.bytes()) {
            Access::Scalar => true,
            Access::Pointer(_) | Access::Address => pointer,
            Access::Refused => false,
        }
    }

    /// The pointer as one the verifier lets us load through, if it can be had.
    pub(super) fn direct(&mut self, base: &Expr) -> Option<Var> {
        // What was saved in a map comes back as a mere address.
        let saved = matches!(base.kind, Kind::Saved(_));
        match base.ty {
            Ty::Ptr { trust: Trust::Btf, .. } if !saved => Some(self.var(base)),
            Ty::Ptr { trust: Trust::Probe | Trust::Btf, to } if self.is_struct(to) => {
                if !self.kernel.rdonly_cast {
                    self.kernel.missed_casts.set(true);
                    return None;
                }
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

    pub(super) fn is_struct(&self, id: u32) -> bool {
        // `bpf_rdonly_cast` looks for ids in the kernel's own types.
        self.kernel.btf.is_some_and(|b| b.ty(id).kind == btf::Kind::Struct && !b.is_of_module(id))
    }

    pub(super) fn address(&mut self, base: &Expr, offset: i32) -> Var {
        let v = self.var(base);
        if offset == 0 { v } else { self.offset(v, Operand::Imm(i64::from(offset))) }
    }

    /// `v + offset`, null staying null.
    pub(super) fn offset(&mut self, v: Var, offset: Operand) -> Var {
        let out = self.w.imm(0);
        self.w.when(CmpOp::Ne, v, Operand::Imm(0), |w| w.assign(out, Op::Alu(AluOp::Add, v, offset)));
        out
    }

    pub(super) fn element(&mut self, base: &Expr, index: &Expr, scale: u32, count: u32) -> Var {
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

    pub(super) fn descriptor(&mut self, e: &Expr) -> Var {
        match descriptor::expand(e, self.kernel) {
            Some(steps) => self.var(&steps),
            None => self.w.imm(0),
        }
    }

    fn state(&mut self, n: u32, ty: Ty) -> Var {
        match self.inputs.state {
            Some((copy, offsets)) => {
                let size = Size::of(ty.bytes()).unwrap_or(Size::B8);
                let v = self.w.load_slot(copy, offsets[n as usize], size);
                self.signed(v, ty)
            }
            None => self.w.imm(0),
        }
    }

    pub(super) fn saved(&mut self, n: u32, ty: Ty) -> Var {
        match self.inputs.saved {
            Some((state, offsets)) => {
                let size = Size::of(ty.bytes()).unwrap_or(Size::B8);
                let v = self.w.load(state, offsets[n as usize] as i32, size, Space::Value);
                self.signed(v, ty)
            }
            None => self.w.imm(0),
        }
    }
}
