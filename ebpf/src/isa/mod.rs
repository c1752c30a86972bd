//! eBPF instructions: one small value each, one table that says how they are encoded and written.

pub mod disasm;
pub mod encode;
pub mod helpers;
pub mod insn;
pub mod table;

pub use insn::{Alu, Insn, Jump, Op, Reg, Width};
