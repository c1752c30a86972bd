//! trace.dat, the file of trace-cmd and KernelShark: versions 6 and 7.
//!
//! ```text
//!  6:  head, texts, options, table of CPUs, pages                    all in one fixed order, nothing compressed
//!  7:  head, sections anywhere (each with id and size), options      options say where the sections are
//! ```
//!
//! The form is that of the manual pages `trace-cmd.dat.v6(5)` and `trace-cmd.dat.v7(5)`. Only little-endian files of 64-bit
//! kernels are read, and only such are written. What a file does not carry: [`Trace::tgids`](crate::trace::Trace::tgids).

mod compress;
mod error;
mod input;
mod read;
mod read_v6;
mod read_v7;
pub mod texts;
mod write;
mod write_v6;
mod write_v7;

pub use compress::{Compression, UnpackError};
pub use error::{ContentError, DatError};
pub use read::{Dat, Skipped, read};
pub use write::write;

/// How a file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Which form.
    pub version: Version,
    /// How version 7 is compressed; version 6 never is.
    pub compression: Compression,
    /// Writes the difference to the wall clock as well: trace-cmd then shows every time as seconds since the Unix epoch.
    pub wall_clock: bool,
}

impl Default for Options {
    /// What Debian's trace-cmd writes: version 7 with zstd.
    fn default() -> Options {
        Options { version: Version::V7, compression: Compression::Zstd, wall_clock: false }
    }
}

/// A version of the form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// Read by every trace-cmd and KernelShark.
    V6,
    /// Read by trace-cmd 3.0 (2022) and later.
    V7,
}

/// What every file begins with.
const MAGIC: &[u8; 10] = b"\x17\x08\x44tracing";
/// Version 6: what follows the number of CPUs.
const OPTIONS_V6: &[u8; 10] = b"options  \0";
/// Version 6: what stands before a table of CPUs.
const FLYRECORD_V6: &[u8; 10] = b"flyrecord\0";
/// Version 6: what stands before the text of a latency tracer.
const LATENCY_V6: &[u8; 10] = b"latency  \0";
/// Flag of a section: its contents are compressed.
const COMPRESSED: u16 = 1;
/// No page of a ring buffer is longer: the kernel counts what is written to one in twenty bits (`RB_WRITE_MASK`).
const MAX_PAGE_BYTES: usize = 1 << 20;
/// Bytes of a section's head: id, flags, description, size.
const SECTION_HEAD_BYTES: u64 = 16;

/// Ids of options; those from 16 on are also the ids of the sections that they point to.
mod id {
    pub const DONE: u16 = 0;
    pub const DATE: u16 = 1;
    pub const CPUSTAT: u16 = 2;
    pub const BUFFER: u16 = 3;
    pub const TRACECLOCK: u16 = 4;
    pub const UNAME: u16 = 5;
    pub const HOOK: u16 = 6;
    pub const OFFSET: u16 = 7;
    pub const CPUCOUNT: u16 = 8;
    pub const VERSION: u16 = 9;
    pub const PROCMAPS: u16 = 10;
    pub const TRACEID: u16 = 11;
    pub const TIME_SHIFT: u16 = 12;
    pub const GUEST: u16 = 13;
    pub const TSC2NSEC: u16 = 14;
    pub const STRINGS: u16 = 15;
    pub const HEADER_INFO: u16 = 16;
    pub const FTRACE_EVENTS: u16 = 17;
    pub const EVENT_FORMATS: u16 = 18;
    pub const KALLSYMS: u16 = 19;
    pub const PRINTK: u16 = 20;
    pub const CMDLINES: u16 = 21;
    pub const BUFFER_TEXT: u16 = 22;

    /// The name of a known one.
    pub fn name(id: u16) -> Option<&'static str> {
        Some(match id {
            DONE => "DONE",
            DATE => "DATE",
            CPUSTAT => "CPUSTAT",
            BUFFER => "BUFFER",
            TRACECLOCK => "TRACECLOCK",
            UNAME => "UNAME",
            HOOK => "HOOK",
            OFFSET => "OFFSET",
            CPUCOUNT => "CPUCOUNT",
            VERSION => "VERSION",
            PROCMAPS => "PROCMAPS",
            TRACEID => "TRACEID",
            TIME_SHIFT => "TIME_SHIFT",
            GUEST => "GUEST",
            TSC2NSEC => "TSC2NSEC",
            STRINGS => "STRINGS",
            HEADER_INFO => "HEADER_INFO",
            FTRACE_EVENTS => "FTRACE_EVENTS",
            EVENT_FORMATS => "EVENT_FORMATS",
            KALLSYMS => "KALLSYMS",
            PRINTK => "PRINTK",
            CMDLINES => "CMDLINES",
            BUFFER_TEXT => "BUFFER_TEXT",
            _ => return None,
        })
    }
}
