//! What nodes do with their operands.

/// Where the bits of a bitfield lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bitfield {
    /// Bytes to read: 1, 2, 4 or 8.
    pub size: u8,
    /// Bits to drop on the right after a little-endian read.
    pub shift: u8,
    /// Bits to keep.
    pub width: u8,
}

/// Unary arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unary {
    Neg,
    Invert,
}

/// Binary arithmetic. `Min`, `Max`, `Div`, `Rem`, `Shr` follow the sign of the node's type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arith {
    Add,
    Sub,
    Mul,
    Div,
    Rem,
    And,
    Or,
    Xor,
    Shl,
    Shr,
    Min,
    Max,
}

/// Comparisons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cmp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}
