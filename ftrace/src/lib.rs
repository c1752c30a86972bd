//! Kernel traces as data.
//!
//! ```text
//!  tracefs pages ─┐                      ┌─ text, trace.dat, Perfetto
//!  trace.dat ─────┼─▶ Trace ─▶ events ───┤
//!                 │                      └─ calls::build ─┐
//!  function_graph text ── calls::text ────────────────────┴─▶ Calls ─▶ report
//! ```
//!
//! A [`trace::Trace`] is what a recorder took out of the kernel: pages of the ring buffer, and what is needed to read them.
//! [`calls::Calls`] are trees of function calls, however they became known. Nothing here reads files or asks the kernel.

#![forbid(unsafe_code)]

pub mod calls;
pub mod dat;
mod digits;
pub mod format;
pub mod page;
pub mod perfetto;
pub mod print;
pub mod report;
pub mod select;
pub mod symbols;
pub mod text;
pub mod timeline;
pub mod trace;
pub mod value;
