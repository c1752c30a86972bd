//! Instructions on virtual registers, in a line: what the stages of lowering hand to one another.
//!
//! Jumps only go forward (the IR has no loops), so one backward walk sees every use before its definition.

use crate::asm::{Label, Target};
use crate::ir::{Helper, Size};
use crate::isa::{Alu, Jump, Width};

/// A virtual register. The IR's variables come first, temporaries after them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Vreg(pub u32);

/// A second operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Src {
    Reg(Vreg),
    /// Sign-extended to 64 bits (its low half is used by 32-bit arithmetic).
    Imm(i32),
}

/// An address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    Reg(Vreg),
    /// The frame pointer.
    Frame,
}

/// An argument of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallArg {
    Reg(Vreg),
    Imm(i64),
    /// The address this many bytes from the frame pointer.
    Frame(i32),
    /// An address the loader knows.
    Address(Target),
    /// A register that was spilled this many bytes from the frame pointer.
    Spilled(i16),
}

/// One instruction.
#[derive(Clone, Debug, PartialEq)]
pub enum Inst {
    /// The context pointer arrives.
    Entry(Vreg),
    Mov {
        dst: Vreg,
        src: Vreg,
    },
    /// `dst = low half of a`.
    Zext {
        dst: Vreg,
        a: Vreg,
    },
    Const {
        dst: Vreg,
        value: i64,
    },
    Address {
        dst: Vreg,
        target: Target,
    },
    Alu {
        width: Width,
        op: Alu,
        dst: Vreg,
        a: Vreg,
        b: Src,
    },
    Swap {
        bits: u8,
        dst: Vreg,
        a: Vreg,
    },
    Load {
        size: Size,
        dst: Vreg,
        base: Base,
        offset: i16,
    },
    Store {
        size: Size,
        base: Base,
        offset: i16,
        value: Src,
    },
    AtomicAdd {
        base: Vreg,
        offset: i16,
        value: Vreg,
    },
    /// `dst` is the word before `value` was added to it.
    FetchAdd {
        dst: Vreg,
        base: Vreg,
        offset: i16,
        value: Vreg,
    },
    Call {
        helper: Helper,
        args: Vec<CallArg>,
        dst: Option<Vreg>,
    },
    Jump(Label),
    Branch {
        op: Jump,
        a: Vreg,
        b: Src,
        to: Label,
    },
    Bind(Label),
    Mark {
        line: u32,
        column: u32,
    },
    /// `r0 = 0; exit`.
    Exit,
}

/// An instruction with how often it runs, compared to others: [`HOT`] on the expected path, less off it.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    pub inst: Inst,
    pub heat: u32,
}

/// Heat of the expected path.
pub const HOT: u32 = 256;

/// A function on virtual registers.
#[derive(Clone, Debug, PartialEq)]
pub struct Vcode {
    pub lines: Vec<Line>,
    /// Virtual registers.
    pub vregs: u32,
    /// Bytes of the IR's stack areas.
    pub slot_bytes: u32,
}

/// Whether `a op b = b op a`.
pub fn commutes(op: Alu) -> bool {
    matches!(op, Alu::Add | Alu::Mul | Alu::And | Alu::Or | Alu::Xor)
}

impl Src {
    fn reg(&self) -> Option<Vreg> {
        match self {
            Src::Reg(reg) => Some(*reg),
            Src::Imm(_) => None,
        }
    }
}

impl Base {
    fn reg(&self) -> Option<Vreg> {
        match self {
            Base::Reg(reg) => Some(*reg),
            Base::Frame => None,
        }
    }
}

impl Inst {
    /// The register it writes.
    pub fn def(&self) -> Option<Vreg> {
        match self {
            Inst::Entry(dst)
            | Inst::Mov { dst, .. }
            | Inst::Zext { dst, .. }
            | Inst::Const { dst, .. }
            | Inst::Address { dst, .. }
            | Inst::Alu { dst, .. }
            | Inst::Swap { dst, .. }
            | Inst::FetchAdd { dst, .. }
            | Inst::Load { dst, .. } => Some(*dst),
            Inst::Call { dst, .. } => *dst,
            _ => None,
        }
    }

    /// The registers it reads.
    pub fn uses(&self) -> Vec<Vreg> {
        match self {
            Inst::Mov { src: a, .. } | Inst::Zext { a, .. } | Inst::Swap { a, .. } => vec![*a],
            Inst::Alu { a, b, .. } | Inst::Branch { a, b, .. } => std::iter::once(*a).chain(b.reg()).collect(),
            Inst::Load { base, .. } => base.reg().into_iter().collect(),
            Inst::Store { base, value, .. } => base.reg().into_iter().chain(value.reg()).collect(),
            Inst::AtomicAdd { base, value, .. } | Inst::FetchAdd { base, value, .. } => vec![*base, *value],
            Inst::Call { args, .. } => args
                .iter()
                .filter_map(|arg| match arg {
                    CallArg::Reg(reg) => Some(*reg),
                    _ => None,
                })
                .collect(),
            _ => Vec::new(),
        }
    }

    /// Replaces the registers it reads; call arguments too.
    pub fn map_uses(&mut self, mut map: impl FnMut(Vreg) -> Vreg) {
        let mut src = |src: &mut Src| {
            if let Src::Reg(reg) = src {
                *reg = map(*reg);
            }
        };
        match self {
            Inst::Alu { b, .. } | Inst::Branch { b, .. } => src(b),
            Inst::Store { value, .. } => src(value),
            _ => {}
        }
        match self {
            Inst::Mov { src: a, .. }
            | Inst::Zext { a, .. }
            | Inst::Swap { a, .. }
            | Inst::Alu { a, .. }
            | Inst::Branch { a, .. } => *a = map(*a),
            Inst::Load { base: Base::Reg(base), .. } | Inst::Store { base: Base::Reg(base), .. } => *base = map(*base),
            Inst::AtomicAdd { base, value, .. } | Inst::FetchAdd { base, value, .. } => {
                *base = map(*base);
                *value = map(*value);
            }
            Inst::Call { args, .. } => {
                for arg in args {
                    if let CallArg::Reg(reg) = arg {
                        *reg = map(*reg);
                    }
                }
            }
            _ => {}
        }
    }

    /// Replaces the register it writes.
    pub fn set_def(&mut self, reg: Vreg) {
        match self {
            Inst::Entry(dst)
            | Inst::Mov { dst, .. }
            | Inst::Zext { dst, .. }
            | Inst::Const { dst, .. }
            | Inst::Address { dst, .. }
            | Inst::Alu { dst, .. }
            | Inst::Swap { dst, .. }
            | Inst::FetchAdd { dst, .. }
            | Inst::Load { dst, .. } => *dst = reg,
            Inst::Call { dst, .. } => *dst = Some(reg),
            _ => {}
        }
    }
}
