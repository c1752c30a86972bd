//! What is known about variables and stack at one point of a function.

use super::violation::Violation;
use super::{CTX, Func, Operand, Slot, Var};
use std::fmt;

/// What a variable holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A number or an address in the kernel or a process.
    Number,
    /// The constant 0, which is a map value pointer too: a null one.
    Zero,
    /// The context.
    Ctx,
    /// An address in a map value.
    Value {
        map: u32,
        /// The lookup it came from: a null test of one copy holds for all.
        id: u32,
        null: bool,
        /// Bytes from the value's start, when known.
        offset: Option<i64>,
    },
    /// An address in the read-only bytes.
    Rodata { offset: Option<i64> },
    /// Different things on different paths: good for nothing.
    Mixed,
}

impl Kind {
    /// An address after adding `distance`, if that is known.
    pub fn moved(self, distance: Option<i64>) -> Result<Kind, Violation> {
        let moved = |offset: Option<i64>| offset.zip(distance).and_then(|(offset, by)| offset.checked_add(by));
        match self {
            Kind::Value { map, id, null: false, offset } => {
                Ok(Kind::Value { map, id, null: false, offset: moved(offset) })
            }
            Kind::Value { .. } => Err(Violation::ArithmeticWithNull),
            Kind::Rodata { offset } => Ok(Kind::Rodata { offset: moved(offset) }),
            _ => Err(Violation::Arithmetic(self)),
        }
    }

    fn join(self, other: Kind, next_id: &mut u32) -> Kind {
        let same = |a: Option<i64>, b: Option<i64>| if a == b { a } else { None };
        match (self, other) {
            (a, b) if a == b => a,
            (Kind::Number, Kind::Zero) | (Kind::Zero, Kind::Number) => Kind::Number,
            (Kind::Rodata { offset: a }, Kind::Rodata { offset: b }) => Kind::Rodata { offset: same(a, b) },
            (Kind::Value { map, offset, .. }, Kind::Zero) | (Kind::Zero, Kind::Value { map, offset, .. }) => {
                Kind::Value { map, id: fresh(next_id), null: true, offset }
            }
            (
                Kind::Value { map, id: a, null: null_a, offset: offset_a },
                Kind::Value { map: other, id: b, null: null_b, offset: offset_b },
            ) if map == other => {
                let id = if a == b { a } else { fresh(next_id) };
                Kind::Value { map, id, null: null_a || null_b, offset: same(offset_a, offset_b) }
            }
            _ => Kind::Mixed,
        }
    }
}

pub(super) fn fresh(next_id: &mut u32) -> u32 {
    *next_id += 1;
    *next_id
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Number | Kind::Zero => "a number",
            Kind::Ctx => "the context",
            Kind::Value { .. } => "the address of a map value",
            Kind::Rodata { .. } => "an address of read-only data",
            Kind::Mixed => "not the same kind of thing on every path",
        })
    }
}

/// Variables and stack bytes at one point.
#[derive(Clone, Debug)]
pub(super) struct State {
    /// `None` until assigned on every path.
    vars: Vec<Option<Kind>>,
    /// For each byte of each slot whether it was written on every path.
    written: Vec<Vec<bool>>,
}

impl State {
    pub fn new(func: &Func) -> State {
        let mut vars = vec![None; func.vars as usize];
        if let Some(ctx) = vars.get_mut(CTX.0 as usize) {
            *ctx = Some(Kind::Ctx);
        }
        State { vars, written: func.slots.iter().map(|&bytes| vec![false; bytes as usize]).collect() }
    }

    pub fn kind(&self, var: Var) -> Result<Kind, Violation> {
        let kind = self.vars.get(var.0 as usize).ok_or(Violation::NoVar(var))?;
        kind.ok_or(Violation::NotAssigned(var))
    }

    /// The operand is there and is no address.
    pub fn number(&self, operand: Operand) -> Result<(), Violation> {
        let Operand::Var(var) = operand else { return Ok(()) };
        match self.kind(var)? {
            Kind::Number | Kind::Zero => Ok(()),
            kind => Err(Violation::NotANumber(var, kind)),
        }
    }

    pub fn set(&mut self, var: Var, kind: Kind) -> Result<(), Violation> {
        if var == CTX {
            return Err(Violation::ContextAssigned);
        }
        *self.vars.get_mut(var.0 as usize).ok_or(Violation::NoVar(var))? = Some(kind);
        Ok(())
    }

    /// After a comparison with 0: all copies of the pointer are null, or none is.
    pub fn assume_null(&mut self, var: Var, is_null: bool) {
        let Some(Some(Kind::Value { id: tested, null: true, .. })) = self.vars.get(var.0 as usize).copied() else {
            return;
        };
        for kind in self.vars.iter_mut().flatten() {
            if let Kind::Value { id, null, .. } = kind
                && *id == tested
            {
                if is_null {
                    *kind = Kind::Zero;
                } else {
                    *null = false;
                }
            }
        }
    }

    /// All these stack bytes were written.
    pub fn read(&self, slot: Slot, offset: u32, bytes: u32) -> Result<(), Violation> {
        let range = self.place(slot, offset, bytes)?;
        match self.written[slot.0 as usize][range].iter().position(|written| !written) {
            None => Ok(()),
            Some(i) => Err(Violation::NotWritten { slot, byte: offset as usize + i }),
        }
    }

    pub fn write(&mut self, slot: Slot, offset: u32, bytes: u32) -> Result<(), Violation> {
        let range = self.place(slot, offset, bytes)?;
        self.written[slot.0 as usize][range].fill(true);
        Ok(())
    }

    /// The bytes lie in the slot.
    pub fn place(&self, slot: Slot, offset: u32, bytes: u32) -> Result<std::ops::Range<usize>, Violation> {
        let length = self.written.get(slot.0 as usize).ok_or(Violation::NoSlot(slot))?.len();
        let (from, end) = (offset as usize, offset as usize + bytes as usize);
        if end > length {
            return Err(Violation::SlotRange { slot, offset, bytes, length });
        }
        Ok(from..end)
    }

    /// What is known after either of two paths.
    pub fn join(mut self, other: State, next_id: &mut u32) -> State {
        for (mine, theirs) in self.vars.iter_mut().zip(other.vars) {
            *mine = mine.zip(theirs).map(|(a, b)| a.join(b, next_id));
        }
        for (mine, theirs) in self.written.iter_mut().flatten().zip(other.written.iter().flatten()) {
            *mine &= theirs;
        }
        self
    }
}
