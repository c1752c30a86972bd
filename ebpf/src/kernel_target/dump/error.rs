//! What is wrong with the text of a target.

use crate::kernel_target::btf::BtfError;

/// Why a text describes no kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Another token is needed.
    #[error("line {line}: expected {wanted}, found {found:?}")]
    Unexpected {
        /// Counted from 1.
        line: u32,
        /// In words.
        wanted: String,
        /// The token.
        found: String,
    },
    /// The text ends too early; with the token that is needed, in words.
    #[error("the end: expected {0}")]
    End(String),
    /// A quotation mark without its counterpart, at this line.
    #[error("line {0}: a string that does not end")]
    OpenString(u32),
    /// A type refers to another one that is nowhere.
    #[error("line {line}: {kind} {name} is not defined")]
    Undefined {
        /// Counted from 1.
        line: u32,
        /// `struct`, `enum`, ...
        kind: &'static str,
        name: String,
    },
    /// The types contradict each other.
    #[error(transparent)]
    Btf(#[from] BtfError),
}
