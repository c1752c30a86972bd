//! Traces as text, like the kernel's own `trace` file.

pub mod events;
mod system_calls;

/// How a trace is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Times in nanoseconds instead of microseconds.
    pub nanoseconds: bool,
    /// Fields as they are instead of the text that the kernel makes of them.
    pub raw: bool,
    /// Without the column of interrupt and preemption flags.
    pub no_flags: bool,
}
