//! Structured IR to a line of instructions on virtual registers.
//!
//! The expected path falls through: `then` follows its test. What is unlikely and leaves the function (an `otherwise`
//! that returns, a `then` that returns after a test for zero) goes behind the rest, so that all jumps stay forward.

mod branches;

use crate::asm::{Label, Target};
use crate::diag::Diagnostic;
use crate::ir::{AluOp, Arg, Block, CTX, Call, Func, Op, Operand, Slot, Stmt, Var};
use crate::isa::{Alu, Width};
use crate::lower::arith::{Form, with_constant};
use crate::lower::known::Known;
use crate::lower::vcode::{Base, CallArg, HOT, Inst, Line, Src, Vcode, Vreg, commutes};

type Result<T> = std::result::Result<T, Diagnostic>;

/// Flattens a function.
pub fn linearise(func: &Func) -> Result<Vcode> {
    let (slots, slot_bytes) = place_slots(&func.slots);
    let mut line = Lineariser {
        func,
        known: Known::of(func),
        slots,
        lines: Vec::new(),
        vregs: func.vars.max(1),
        labels: 1,
        heat: HOT,
        mark: first_mark(&func.body).unwrap_or((1, 1)),
        deferred: Vec::new(),
    };
    line.restate_mark();
    line.push(Inst::Entry(Vreg(CTX.0)));
    line.block(&func.body)?;
    line.push(Inst::Jump(EPILOGUE));
    // Unlikely blocks may defer others: they queue up behind.
    let mut next = 0;
    while let Some(block) = line.deferred.get(next).copied() {
        next += 1;
        line.push(Inst::Bind(block.label));
        line.heat = block.heat;
        line.mark = block.mark;
        line.restate_mark();
        line.block(block.block)?;
        line.push(Inst::Jump(EPILOGUE));
    }
    line.push(Inst::Bind(EPILOGUE));
    line.push(Inst::Exit);
    Ok(Vcode { lines: line.lines, vregs: line.vregs, slot_bytes })
}

/// Where every `Return` goes.
const EPILOGUE: Label = Label(0);

/// A block that goes behind the rest.
#[derive(Clone, Copy)]
struct Deferred<'a> {
    label: Label,
    block: &'a Block,
    heat: u32,
    mark: (u32, u32),
}

struct Lineariser<'a> {
    func: &'a Func,
    known: Known,
    /// Offset of each stack area from the frame pointer.
    slots: Vec<i64>,
    lines: Vec<Line>,
    vregs: u32,
    labels: u32,
    heat: u32,
    mark: (u32, u32),
    deferred: Vec<Deferred<'a>>,
}

/// Each area 8-byte aligned, from the frame pointer down.
fn place_slots(sizes: &[u32]) -> (Vec<i64>, u32) {
    let mut bytes: u32 = 0;
    let mut places = Vec::new();
    for size in sizes {
        bytes = bytes.saturating_add(size.checked_next_multiple_of(8).unwrap_or(u32::MAX));
        places.push(-i64::from(bytes));
    }
    (places, bytes)
}

fn first_mark(block: &Block) -> Option<(u32, u32)> {
    block.iter().find_map(|stmt| match stmt {
        Stmt::Mark { line, column } => Some((*line, *column)),
        Stmt::If { then, otherwise, .. } => first_mark(then).or_else(|| first_mark(otherwise)),
        _ => None,
    })
}

impl<'a> Lineariser<'a> {
    fn push(&mut self, inst: Inst) {
        self.lines.push(Line { inst, heat: self.heat });
    }
    fn temp(&mut self) -> Vreg {
        self.vregs += 1;
        Vreg(self.vregs - 1)
    }
    fn label(&mut self) -> Label {
        self.labels += 1;
        Label(self.labels - 1)
    }
    fn restate_mark(&mut self) {
        let (line, column) = self.mark;
        self.push(Inst::Mark { line, column });
    }
    fn bug<T>(&self, what: impl std::fmt::Display) -> Result<T> {
        Err(Diagnostic::bug(format!("cannot lower {}: {what}", self.func.name)))
    }

    /// A variable as a register of its own, constants and copies not resolved.
    fn own(&self, var: Var) -> Result<Vreg> {
        if var.0 < self.func.vars.max(1) { Ok(Vreg(var.0)) } else { self.bug(format_args!("no variable v{}", var.0)) }
    }

    /// The register to read a variable from.
    fn reg(&mut self, var: Var) -> Result<Vreg> {
        self.own(var)?;
        match self.known.resolve(var) {
            Operand::Var(var) => self.own(var),
            Operand::Imm(value) => Ok(self.constant(value)),
        }
    }

    fn constant(&mut self, value: i64) -> Vreg {
        let dst = self.temp();
        self.push(Inst::Const { dst, value });
        dst
    }

    /// A second operand of 64-bit instructions.
    fn src(&mut self, operand: Operand) -> Result<Src> {
        Ok(match self.known.operand(operand) {
            Operand::Imm(value) => match i32::try_from(value) {
                Ok(imm) => Src::Imm(imm),
                Err(_) => Src::Reg(self.constant(value)),
            },
            Operand::Var(var) => Src::Reg(self.own(var)?),
        })
    }

    /// Emits a block; false when control does not get past its end.
    fn block(&mut self, block: &'a Block) -> Result<bool> {
        for stmt in block {
            if !self.stmt(stmt)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn stmt(&mut self, stmt: &'a Stmt) -> Result<bool> {
        match stmt {
            Stmt::Mark { line, column } => {
                self.mark = (*line, *column);
                self.restate_mark();
            }
            Stmt::Set(var, op) => {
                let dst = self.own(*var)?;
                self.set(dst, op)?;
            }
            Stmt::Call(call) => self.call(call, None)?,
            Stmt::Store { ptr, offset, size, value } => {
                let (base, offset) = self.address(*ptr, *offset)?;
                let value = self.stored(*value, size.bytes())?;
                self.push(Inst::Store { size: *size, base: Base::Reg(base), offset, value });
            }
            Stmt::StoreSlot { slot, offset, size, value } => {
                let offset = self.slot_access(*slot, *offset, size.bytes())?;
                let value = self.stored(*value, size.bytes())?;
                self.push(Inst::Store { size: *size, base: Base::Frame, offset, value });
            }
            Stmt::Add { ptr, offset, value, atomic } => self.add(*ptr, *offset, *value, *atomic)?,
            Stmt::If { cond, then, otherwise } => return self.if_stmt(cond, then, otherwise),
            Stmt::Return => {
                self.push(Inst::Jump(EPILOGUE));
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn set(&mut self, dst: Vreg, op: &Op) -> Result<()> {
        match op {
            Op::Copy(operand) => match self.known.operand(*operand) {
                Operand::Imm(value) => self.push(Inst::Const { dst, value }),
                Operand::Var(var) => {
                    let src = self.own(var)?;
                    self.push(Inst::Mov { dst, src });
                }
            },
            Op::Alu(op, a, b) => self.alu(Width::W64, *op, dst, Operand::Var(*a), *b)?,
            Op::Alu32(op, a, b) => self.alu(Width::W32, *op, dst, Operand::Var(*a), *b)?,
            Op::Extend { a, bits, signed } => self.extend(dst, *a, *bits, *signed)?,
            Op::Swap { a, bits } => {
                if !matches!(bits, 16 | 32 | 64) {
                    return self.bug(format_args!("a swap of {bits} bits"));
                }
                let a = self.reg(*a)?;
                self.push(Inst::Swap { bits: *bits, dst, a });
            }
            Op::Load { ptr, offset, size, space: _ } => {
                let (base, offset) = self.address(*ptr, *offset)?;
                self.push(Inst::Load { size: *size, dst, base: Base::Reg(base), offset });
            }
            Op::LoadSlot { slot, offset, size } => {
                let offset = self.slot_access(*slot, *offset, size.bytes())?;
                self.push(Inst::Load { size: *size, dst, base: Base::Frame, offset });
            }
            Op::FetchAdd { ptr, offset, value } => {
                let (base, offset) = self.address(*ptr, *offset)?;
                let value = match self.src(*value)? {
                    Src::Reg(reg) => reg,
                    Src::Imm(imm) => self.constant(i64::from(imm)),
                };
                self.push(Inst::FetchAdd { dst, base, offset, value });
            }
            Op::Rodata(at) => self.push(Inst::Address { dst, target: Target::Rodata(*at) }),
            Op::Call(call) => self.call(call, Some(dst))?,
        }
        Ok(())
    }

    fn alu(&mut self, width: Width, op: AluOp, dst: Vreg, a: Operand, b: Operand) -> Result<()> {
        let op = alu_op(op);
        let (mut a, mut b) = (self.known.operand(a), self.known.operand(b));
        if let (Operand::Imm(_), Operand::Var(_), true) = (a, b, commutes(op)) {
            std::mem::swap(&mut a, &mut b);
        }
        let a = match a {
            Operand::Var(var) => self.own(var)?,
            Operand::Imm(value) => self.constant(value),
        };
        match b {
            Operand::Var(var) => {
                let b = self.own(var)?;
                self.alu_regs(width, op, dst, a, b);
            }
            Operand::Imm(value) => match with_constant(width, op, value) {
                Form::Const(value) => self.push(Inst::Const { dst, value }),
                Form::Same if width == Width::W64 => self.push(Inst::Mov { dst, src: a }),
                Form::Same | Form::Zext => self.push(Inst::Zext { dst, a }),
                Form::Imm(op, imm) => self.push(Inst::Alu { width, op, dst, a, b: Src::Imm(imm) }),
                Form::Reg => {
                    let b = self.constant(value);
                    self.alu_regs(width, op, dst, a, b);
                }
            },
        }
        Ok(())
    }

    /// `dst = a op b`; the two-address form writes `dst` before it reads `b`, so `dst` must not be `b` unless they commute.
    fn alu_regs(&mut self, width: Width, op: Alu, dst: Vreg, a: Vreg, b: Vreg) {
        if dst == b && a != b && !commutes(op) {
            let result = self.temp();
            self.push(Inst::Alu { width, op, dst: result, a, b: Src::Reg(b) });
            self.push(Inst::Mov { dst, src: result });
        } else {
            self.push(Inst::Alu { width, op, dst, a, b: Src::Reg(b) });
        }
    }

    fn extend(&mut self, dst: Vreg, a: Var, bits: u8, signed: bool) -> Result<()> {
        let a = self.reg(a)?;
        match (bits, signed) {
            (32, false) => self.push(Inst::Zext { dst, a }),
            (8 | 16, false) => {
                let mask = (1 << bits) - 1;
                self.push(Inst::Alu { width: Width::W64, op: Alu::And, dst, a, b: Src::Imm(mask) });
            }
            (8 | 16 | 32, true) => {
                let count = Src::Imm(64 - i32::from(bits));
                let shifted = self.temp();
                self.push(Inst::Alu { width: Width::W64, op: Alu::Lsh, dst: shifted, a, b: count });
                self.push(Inst::Alu { width: Width::W64, op: Alu::Arsh, dst, a: shifted, b: count });
            }
            _ => return self.bug(format_args!("an extension of {bits} bits")),
        }
        Ok(())
    }

    /// Base and offset of an access; what 16 bits cannot hold is added first.
    fn address(&mut self, ptr: Var, offset: i32) -> Result<(Vreg, i16)> {
        let ptr = self.reg(ptr)?;
        if let Ok(offset) = i16::try_from(offset) {
            return Ok((ptr, offset));
        }
        let moved = self.temp();
        self.push(Inst::Alu { width: Width::W64, op: Alu::Add, dst: moved, a: ptr, b: Src::Imm(offset) });
        Ok((moved, 0))
    }

    /// A value about to be stored in `bytes` bytes: only those bits of a constant matter.
    fn stored(&mut self, value: Operand, bytes: u32) -> Result<Src> {
        match self.known.operand(value) {
            Operand::Imm(value) if bytes <= 4 => Ok(Src::Imm(value as i32)),
            value => self.src(value),
        }
    }

    fn slot_access(&self, slot: Slot, offset: u32, bytes: u32) -> Result<i16> {
        let size = self.func.slots.get(slot.0 as usize).copied().unwrap_or(0);
        if u64::from(offset) + u64::from(bytes) > u64::from(size) {
            return self.bug(format_args!("{bytes} bytes at {offset} of stack area {}, which has {size}", slot.0));
        }
        // Areas that do not fit into the frame at all are reported once it is known how many bytes are needed.
        Ok(self.slot_address(slot, offset)?.clamp(i64::from(i16::MIN), 0) as i16)
    }

    fn slot_address(&self, slot: Slot, offset: u32) -> Result<i64> {
        match self.slots.get(slot.0 as usize) {
            Some(place) => Ok(place + i64::from(offset)),
            None => self.bug(format_args!("no stack area {}", slot.0)),
        }
    }

    fn add(&mut self, ptr: Var, offset: i32, value: Operand, atomic: bool) -> Result<()> {
        if self.known.operand(value) == Operand::Imm(0) {
            return Ok(());
        }
        let (base, offset) = self.address(ptr, offset)?;
        let value = self.src(value)?;
        if atomic {
            let value = match value {
                Src::Reg(reg) => reg,
                Src::Imm(imm) => self.constant(i64::from(imm)),
            };
            self.push(Inst::AtomicAdd { base, offset, value });
            return Ok(());
        }
        let (size, base) = (crate::ir::Size::B8, Base::Reg(base));
        let (old, new) = (self.temp(), self.temp());
        self.push(Inst::Load { size, dst: old, base, offset });
        self.push(Inst::Alu { width: Width::W64, op: Alu::Add, dst: new, a: old, b: value });
        self.push(Inst::Store { size, base, offset, value: Src::Reg(new) });
        Ok(())
    }

    fn call(&mut self, call: &Call, dst: Option<Vreg>) -> Result<()> {
        if call.args.len() > 5 {
            return self.bug(format_args!("{:?} with more than five arguments", call.helper));
        }
        let mut args = Vec::new();
        for arg in &call.args {
            args.push(match *arg {
                Arg::Imm(value) => CallArg::Imm(value),
                Arg::Map(map) => CallArg::Address(Target::Map(map)),
                Arg::Slot(slot, offset) => CallArg::Frame(self.slot_address(slot, offset)?.max(i32::MIN.into()) as i32),
                Arg::Var(var) => {
                    self.own(var)?;
                    match self.known.resolve(var) {
                        Operand::Imm(value) => CallArg::Imm(value),
                        Operand::Var(var) => CallArg::Reg(self.own(var)?),
                    }
                }
            });
        }
        self.push(Inst::Call { helper: call.helper, args, dst });
        Ok(())
    }
}

fn alu_op(op: AluOp) -> Alu {
    match op {
        AluOp::Add => Alu::Add,
        AluOp::Sub => Alu::Sub,
        AluOp::Mul => Alu::Mul,
        AluOp::Div => Alu::Div,
        AluOp::Mod => Alu::Mod,
        AluOp::And => Alu::And,
        AluOp::Or => Alu::Or,
        AluOp::Xor => Alu::Xor,
        AluOp::Shl => Alu::Lsh,
        AluOp::Shr => Alu::Rsh,
        AluOp::Sar => Alu::Arsh,
    }
}
