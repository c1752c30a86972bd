//! A pure compiler from a checked probe and a description of a kernel to an eBPF object.
//!
//! Nothing in this crate reads a file, makes a system call or looks at a clock: the same [`Program`] and the same
//! [`Target`] always give the same bytes. Stages are functions over data and never call one another; this file alone
//! strings them together:
//!
//! ```text
//! Program --lang--> AST --check--> typed::Probe --layout--> Layout --build--> ir::Module --lower--> isa code --elf--> bytes
//! ```
#![forbid(unsafe_code)]

pub mod ast;
pub mod buckets;
pub mod check;
pub mod diag;
mod front;
pub mod ir;
pub mod isa;
pub mod lang;
pub mod layout;
pub mod program;
pub mod target;
pub mod typed;

pub use diag::{Diagnostic, Fault};
pub use front::check;
pub use layout::Layout;
pub use program::Program;
pub use target::Target;
