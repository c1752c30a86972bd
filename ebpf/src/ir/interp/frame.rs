//! One run's variables and stack.

use super::{Trap, alu};
use crate::ir::{Arg, CTX, Call, Cond, Func, Operand, Slot, Var};

/// Kept between runs for its allocations.
#[derive(Clone, Debug, Default)]
pub(super) struct Frame {
    vars: Vec<Option<u64>>,
    /// All slots back to back, each 8-byte aligned.
    stack: Vec<u8>,
    /// Which stack bytes were written.
    written: Vec<bool>,
    /// Start and length of each slot.
    slots: Vec<(usize, usize)>,
}

/// Far above the kernel's 512 bytes, and far below what would hurt.
const MAX_STACK: usize = 1 << 20;
const MAX_VARS: u32 = 1 << 20;

impl Frame {
    /// Forgets the last run.
    pub fn enter(&mut self, func: &Func, ctx: u64) -> Result<(), Trap> {
        self.slots.clear();
        let mut end = 0usize;
        for &bytes in &func.slots {
            self.slots.push((end, bytes as usize));
            end = end.saturating_add(bytes as usize).next_multiple_of(8);
            if end > MAX_STACK {
                return Err(Trap::new(format!("{} needs more than {MAX_STACK} bytes of stack", func.name)));
            }
        }
        if func.vars > MAX_VARS {
            return Err(Trap::new(format!("{} has more than {MAX_VARS} variables", func.name)));
        }
        self.stack.clear();
        self.stack.resize(end, 0);
        self.written.clear();
        self.written.resize(end, false);
        self.vars.clear();
        self.vars.resize(func.vars as usize, None);
        self.set(CTX, ctx)
    }

    pub fn set(&mut self, var: Var, value: u64) -> Result<(), Trap> {
        *self.vars.get_mut(var.0 as usize).ok_or_else(|| no_var(var))? = Some(value);
        Ok(())
    }

    pub fn var(&self, var: Var) -> Result<u64, Trap> {
        let value = self.vars.get(var.0 as usize).ok_or_else(|| no_var(var))?;
        value.ok_or_else(|| Trap::new(format!("v{} is read before it is set", var.0)))
    }

    pub fn operand(&self, operand: Operand) -> Result<u64, Trap> {
        match operand {
            Operand::Var(var) => self.var(var),
            Operand::Imm(value) => Ok(value as u64),
        }
    }

    pub fn holds(&self, cond: Cond) -> Result<bool, Trap> {
        Ok(alu::compare(cond.op, self.var(cond.a)?, self.operand(cond.b)?))
    }

    /// Stack bytes that were all written before.
    pub fn read(&self, slot: Slot, offset: u32, bytes: u32) -> Result<&[u8], Trap> {
        let range = self.place(slot, offset, bytes)?;
        match self.written[range.clone()].iter().position(|written| !written) {
            None => Ok(&self.stack[range]),
            Some(i) => {
                Err(Trap::new(format!("byte {} of slot {} is read before it is written", offset as usize + i, slot.0)))
            }
        }
    }

    /// Stack bytes to fill.
    pub fn write(&mut self, slot: Slot, offset: u32, bytes: u32) -> Result<&mut [u8], Trap> {
        let range = self.place(slot, offset, bytes)?;
        self.written[range.clone()].fill(true);
        Ok(&mut self.stack[range])
    }

    /// Stack bytes of which only some get written; see [`Frame::mark`].
    pub fn borrow(&mut self, slot: Slot, offset: u32, bytes: u32) -> Result<&mut [u8], Trap> {
        let range = self.place(slot, offset, bytes)?;
        Ok(&mut self.stack[range])
    }

    /// Notes that these bytes were written.
    pub fn mark(&mut self, slot: Slot, offset: u32, bytes: u32) -> Result<(), Trap> {
        self.write(slot, offset, bytes).map(|_| ())
    }

    fn place(&self, slot: Slot, offset: u32, bytes: u32) -> Result<std::ops::Range<usize>, Trap> {
        let &(start, length) =
            self.slots.get(slot.0 as usize).ok_or_else(|| Trap::new(format!("no stack slot {}", slot.0)))?;
        let (from, end) = (offset as usize, offset as usize + bytes as usize);
        if end > length {
            return Err(Trap::new(format!("{bytes} bytes at {offset} of slot {}, which has {length}", slot.0)));
        }
        Ok(start + from..start + end)
    }

    /// A variable or constant argument.
    pub fn scalar_arg(&self, call: &Call, i: usize) -> Result<u64, Trap> {
        match call.args.get(i) {
            Some(Arg::Var(var)) => self.var(*var),
            Some(Arg::Imm(value)) => Ok(*value as u64),
            _ => Err(Trap::new(format!("argument {} of {:?} must be a value", i + 1, call.helper))),
        }
    }

    /// The bytes a helper reads.
    pub fn read_arg(&self, call: &Call, i: usize, bytes: u32) -> Result<&[u8], Trap> {
        let (slot, offset) = slot_arg(call, i)?;
        self.read(slot, offset, bytes)
    }

    /// The bytes a helper writes.
    pub fn write_arg(&mut self, call: &Call, i: usize, bytes: u32) -> Result<&mut [u8], Trap> {
        let (slot, offset) = slot_arg(call, i)?;
        self.write(slot, offset, bytes)
    }
}

/// A stack area argument.
pub(super) fn slot_arg(call: &Call, i: usize) -> Result<(Slot, u32), Trap> {
    match call.args.get(i) {
        Some(Arg::Slot(slot, offset)) => Ok((*slot, *offset)),
        _ => Err(Trap::new(format!("argument {} of {:?} must be a stack area", i + 1, call.helper))),
    }
}

fn no_var(var: Var) -> Trap {
    Trap::new(format!("no variable v{}", var.0))
}
