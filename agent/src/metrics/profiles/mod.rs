//! Sums by stack, as people read them: addresses to names, then folded text, pprof or a flame graph.
//!
//! The writers are functions of their arguments. [`processes`] reads `/proc/PID/maps`; [`symbols`] reads `/proc/kallsyms` and
//! ELF files, through the `blazesym` crate.

pub mod calls;
pub mod collector;
pub mod flame;
pub mod folded;
pub mod pprof;
pub mod processes;
pub mod symbols;

use std::sync::Arc;

/// What a stacks metric summed over some time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    /// Metric name, for titles.
    pub metric: String,
    /// Where it was taken, for titles; empty when that is not known.
    pub node: String,
    /// What the values count.
    pub unit: Unit,
    /// What one event of a timer hook stands for, in nanoseconds.
    pub period_ns: Option<u64>,
    /// When it began, nanoseconds since the Unix epoch.
    pub start_unix_ns: u64,
    /// How long it took.
    pub duration_ns: u64,
    /// The sums.
    pub samples: Vec<Sample>,
}

/// What values count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    /// Events, or anything else without a unit.
    #[default]
    Count,
    /// Time.
    Nanoseconds,
    /// Memory.
    Bytes,
}

impl Unit {
    /// As pprof writes it.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Count => "count",
            Unit::Nanoseconds => "nanoseconds",
            Unit::Bytes => "bytes",
        }
    }
}

/// One sum.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// The metric's labels: name and text.
    pub labels: Vec<(String, String)>,
    /// Thread group id, whose memory map user addresses belong to; 0 when user stacks are not asked for.
    pub pid: u32,
    pub kernel: Addresses,
    pub user: Addresses,
    /// The sum.
    pub value: u64,
}

/// One half of a stack.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Addresses {
    /// From the leaf (where it happened) to the root; empty when there was nothing on that side.
    Known(Arc<[u64]>),
    /// The kernel could not keep this stack, or it is gone by now: the value is right, the frames are not known.
    Missed,
    /// Many stacks, each with a small sum, beyond the number that a profile keeps.
    Small,
}

impl Default for Addresses {
    fn default() -> Self {
        Addresses::Known(Arc::default())
    }
}

/// A profile with names instead of addresses. Frames stand once, samples refer to them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Resolved {
    /// Metric name.
    pub metric: String,
    /// See [`Profile::node`].
    pub node: String,
    /// What the values count.
    pub unit: Unit,
    /// See [`Profile::period_ns`].
    pub period_ns: Option<u64>,
    /// See [`Profile::start_unix_ns`].
    pub start_unix_ns: u64,
    /// See [`Profile::duration_ns`].
    pub duration_ns: u64,
    pub frames: Vec<Frame>,
    /// Sums by stack; two with the same labels and frames may both occur (several processes of one program).
    pub samples: Vec<Named>,
}

/// One sum of a [`Resolved`] profile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// The metric's labels.
    pub labels: Vec<(String, String)>,
    /// Thread group id, 0 when not known.
    pub pid: u32,
    /// Indices into [`Resolved::frames`], from the leaf to the root: kernel frames come first.
    pub frames: Vec<u32>,
    /// The sum.
    pub value: u64,
}

/// A place in a program.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Function name, demangled; `[unknown]` or `libfoo.so+0x1234` when there is none.
    pub name: Arc<str>,
    /// File or kernel the code lies in, when known.
    pub module: Option<Arc<str>>,
    /// Address in the kernel or in the process; 0 for a frame that stands for a missed stack.
    pub address: u64,
    /// Kernel rather than user code.
    pub kernel: bool,
}

/// The forms that a profile is written in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// One line a stack.
    #[default]
    Folded,
    /// `profile.proto`, gzipped.
    Pprof,
    /// A flame graph.
    Svg,
}

impl Format {
    /// All of them.
    pub const ALL: [Format; 3] = [Format::Folded, Format::Pprof, Format::Svg];

    /// As people name it.
    pub fn name(self) -> &'static str {
        match self {
            Format::Folded => "folded",
            Format::Pprof => "pprof",
            Format::Svg => "svg",
        }
    }

    pub fn named(name: &str) -> Option<Format> {
        Format::ALL.into_iter().find(|format| format.name() == name)
    }

    /// What files of it usually end in.
    pub fn suffix(self) -> &'static str {
        match self {
            Format::Folded => ".folded",
            Format::Pprof => ".pb.gz",
            Format::Svg => ".svg",
        }
    }

    /// Writes a profile.
    pub fn write(self, profile: &Resolved) -> std::io::Result<Vec<u8>> {
        match self {
            Format::Folded => Ok(folded::write(profile).into_bytes()),
            Format::Pprof => pprof::write(profile),
            Format::Svg => flame::write(profile),
        }
    }
}

/// Name of a frame without a symbol.
pub const UNKNOWN: &str = "[unknown]";
/// Name of the frame that stands for a kernel stack that was not kept.
pub const MISSED_KERNEL: &str = "[missed kernel stack]";
/// Name of the frame that stands for a user stack that was not kept.
pub const MISSED_USER: &str = "[missed user stack]";
/// Name of the frame that stands for stacks whose sums were too small to be kept apart.
pub const SMALL: &str = "[small stacks]";
