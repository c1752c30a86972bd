//! The ways in which a statement breaks the rules.

use super::state::Kind;
use crate::ir::{Helper, Slot, Var};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Violation {
    #[error("no variable for the context")]
    NoContext,
    #[error("{0} bytes of stack; it may have {max}", max = crate::ir::MAX_STACK_BYTES)]
    StackSize(u64),
    #[error("a slot of 0 bytes")]
    EmptySlot,
    #[error("blocks nest more than {max} deep", max = super::MAX_DEPTH)]
    Depth,
    #[error("every path has returned before")]
    Unreachable,
    #[error("lines and columns count from 1")]
    Mark,
    #[error("{0} does not exist")]
    NoVar(Var),
    #[error("{0} is not assigned on every path before")]
    NotAssigned(Var),
    #[error("the context is never assigned")]
    ContextAssigned,
    #[error("s{} does not exist", .0.0)]
    NoSlot(Slot),
    #[error("{bytes} bytes at {offset} of s{}, which has {length}", slot.0)]
    SlotRange { slot: Slot, offset: u32, bytes: u32, length: usize },
    #[error("byte {byte} of s{} is not written on every path before", slot.0)]
    NotWritten { slot: Slot, byte: usize },
    #[error("cannot extend {0} bits")]
    Extend(u8),
    #[error("cannot swap {0} bits")]
    Swap(u8),
    #[error("past the {0} read-only bytes")]
    Rodata(usize),
    #[error("before the context")]
    BeforeContext,
    #[error("{bytes} bytes at {at} of {length}")]
    Range { at: i64, bytes: u32, length: u64 },
    #[error("{bytes} bytes at {at} are not aligned")]
    Unaligned { at: i64, bytes: u32 },
    #[error("{0} may be null: compare it with 0 first")]
    MaybeNull(Var),
    #[error("{0} is {1}")]
    Space(Var, Kind),
    #[error("{0} is {1}, not a number")]
    NotANumber(Var, Kind),
    #[error("{0} is {1}, not the address of a map value")]
    NotAValue(Var, Kind),
    #[error("{0} is {1}: it can only be compared with 0")]
    Comparison(Var, Kind),
    #[error("arithmetic with {0}")]
    Arithmetic(Kind),
    #[error("arithmetic with a map value that may be null: compare it with 0 first")]
    ArithmeticWithNull,
    #[error("takes {wanted} arguments, not {found}")]
    Arity { wanted: usize, found: usize },
    /// Counted from 1.
    #[error("argument {number}: {violation}")]
    Argument {
        number: usize,
        #[source]
        violation: Box<Violation>,
    },
    #[error("must be the context")]
    NeedsContext,
    #[error("must be a variable or a constant")]
    NeedsValue,
    #[error("must be a variable")]
    NeedsVar,
    #[error("must be a constant")]
    NeedsConstant,
    #[error("must be a stack area")]
    NeedsSlot,
    #[error("must be a map")]
    NeedsMap,
    #[error("must be one of {0:?}")]
    OneOf(&'static [i64]),
    #[error("not a BTF id")]
    BtfId,
    #[error("not a size of 1 to 512 bytes")]
    ReadSize,
    #[error("a size of {0} bytes")]
    AreaSize(i64),
    #[error("map {0} does not exist")]
    NoMap(u32),
    #[error("{helper} does not take map {map}")]
    MapKind { helper: Helper, map: String },
}

impl Violation {
    /// The same of an argument, counted from 0.
    pub fn at(self, argument: usize) -> Violation {
        Violation::Argument { number: argument + 1, violation: Box::new(self) }
    }
}
