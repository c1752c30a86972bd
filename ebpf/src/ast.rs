//! An expression as it was written: faithful, possibly ill-typed, with a span on every node.

use crate::diag::Span;
use crate::source::TextId;
use std::collections::BTreeMap;

/// A node with its place in the expression text.
#[derive(Clone, Debug, PartialEq)]
pub struct Expr {
    pub kind: ExprKind,
    /// Where it is.
    pub span: Span,
}

/// The kinds of node.
#[derive(Clone, Debug, PartialEq)]
pub enum ExprKind {
    /// `42`, `0xff`, `'a'`; the value fits 64 bits without sign.
    Int(u64),
    /// `10ms`: nanoseconds.
    Duration(u64),
    /// `64KiB`: bytes.
    Size(u64),
    /// `true`, `false`.
    Bool(bool),
    /// `"nginx"`, escapes already resolved.
    Str(String),
    /// `tid`, `TCP_ESTABLISHED`, `args`.
    Name(String),
    /// `base.field`; also written `base->field`.
    Field(Box<Expr>, Ident),
    /// `base[index]`.
    Index(Box<Expr>, Box<Expr>),
    /// `name(a, b)`; type names arrive as [`ExprKind::TypeName`].
    Call(Ident, Vec<Expr>),
    /// `struct sock`, `union x`, `enum tcp_state`: only as an argument.
    TypeName(TypeKind, String),
    /// `-a`, `!a`, `~a`.
    Unary(UnaryOp, Box<Expr>),
    /// `a + b` and the rest.
    Binary(BinaryOp, Box<Expr>, Box<Expr>),
    /// `c ? a : b`.
    Cond(Box<Expr>, Box<Expr>, Box<Expr>),
    /// `a in [x, y]`; `true` in the last place for `not in`.
    In(Box<Expr>, Vec<Expr>, bool),
    /// `2 => "ipv4"` inside a call of `map`; `None` on the left is `_`.
    Arm(Option<Box<Expr>>, Box<Expr>),
}

/// The nodes right below one, in order, borrowed as it is.
macro_rules! below {
    ($kind:expr, $iter:ident $(, $mutable:tt)?) => {
        match $kind {
            ExprKind::Int(_)
            | ExprKind::Duration(_)
            | ExprKind::Size(_)
            | ExprKind::Bool(_)
            | ExprKind::Str(_)
            | ExprKind::Name(_)
            | ExprKind::TypeName(..) => Vec::new(),
            ExprKind::Field(base, _) | ExprKind::Unary(_, base) => vec![base],
            ExprKind::Index(a, b) | ExprKind::Binary(_, a, b) => vec![a, b],
            ExprKind::Cond(a, b, c) => vec![a, b, c],
            ExprKind::Call(_, args) => args.$iter().collect(),
            ExprKind::In(value, set, _) => std::iter::once(& $($mutable)? **value).chain(set.$iter()).collect(),
            ExprKind::Arm(pattern, text) => pattern.$iter().chain([text]).map(|node| & $($mutable)? **node).collect(),
        }
    };
}

impl ExprKind {
    pub fn children(&self) -> Vec<&Expr> {
        below!(self, iter)
    }

    pub fn children_mut(&mut self) -> Vec<&mut Expr> {
        below!(self, iter_mut, mut)
    }
}

/// A name with its own place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ident {
    pub name: String,
    /// Where it is.
    pub span: Span,
}

/// The keyword before a type name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TypeKind {
    Struct,
    Union,
    Enum,
}

/// Prefix operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnaryOp {
    /// `-`
    Neg,
    /// `!`
    Not,
    /// `~`
    Invert,
}

/// Infix operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BinaryOp {
    Add,
    Sub,
    Mul,
    Div,
    Rem,
    BitAnd,
    BitOr,
    BitXor,
    Shl,
    Shr,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    And,
    Or,
}

/// The expressions of one program, parsed, by the text they stand in. Texts that did not parse
/// are missing: their mistake is already reported.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Exprs(pub BTreeMap<TextId, Expr>);
