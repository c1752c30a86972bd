//! Reports: what a capture says, as plain data and as text for terminals.
//!
//! Each report is a function of what was recorded. Its struct serialises (times are integers of nanoseconds, named `_ns`) and renders
//! itself. Which events a report needs and the capture does not hold is named in it: `not recorded`, which is not zero.

mod activity;
mod blocks;
mod bound;
mod diff;
mod folded;
mod functions;
mod happening;
mod interrupts;
mod lengths;
mod missing;
pub mod names;
mod packets;
mod slowest;
mod split;
mod spread;
mod summary;
mod switches;
mod syscalls;
mod text;
mod threads;
mod waits;
mod wakeups;
mod work;

pub use activity::{Activity, Gap, Out, Spell, Woken, activity};
pub use blocks::{BlockGroup, BlockRequest, Blocks, blocks};
pub use bound::{Bound, Bounds};
pub use diff::{CallChange, Change, Diff, FunctionChange, SyscallChange, diff};
pub use folded::folded;
pub use functions::{FunctionRow, Functions, ModuleRow, functions};
pub use happening::{Happening, of_marks, of_trace};
pub use interrupts::{InterruptKind, InterruptRow, Interrupts, interrupts};
pub use missing::{Missing, missing};
pub use packets::{Hop, Packets, Receive, packets};
pub use slowest::{SlowCall, Slowest, TreeLine, slowest};
pub use spread::{Bucket, Spread};
pub use summary::{CallSummary, CpuSummary, EventCount, Summary, summary};
pub use switches::{SwitchRow, SwitchStack, Switches, switches};
pub use syscalls::{Errno, SyscallRow, Syscalls, syscalls, system_call_names};
pub use threads::{LeftOut, Limits, Shown, State, ThreadRow, Threads, threads};
pub use waits::{CallWait, CauseRow, Source, WaitRow, Waits, waits};
pub use wakeups::{TaskDelays, WakeDelay, Wakeups, wakeups};
pub use work::WorkRow;

/// What of a capture is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Only calls of this function, a kernel name or a system call's (`recvfrom`); all outermost calls when `None`.
    pub root: Option<String>,
    /// Only these threads; all when empty.
    pub pids: Vec<i32>,
    /// Only threads of these names; all when empty.
    pub comms: Vec<String>,
    /// Only what happened on these CPUs; all when empty.
    pub cpus: Vec<u32>,
    /// How many of the worst are listed one by one.
    pub slowest: usize,
    /// How deep trees are shown.
    pub depth: usize,
}

impl Default for Asked {
    fn default() -> Asked {
        Asked { root: None, pids: Vec::new(), comms: Vec::new(), cpus: Vec::new(), slowest: 10, depth: 12 }
    }
}

impl Asked {
    /// Whether a thread on a CPU is among those asked for. What is not known is not among them.
    pub fn keeps(&self, pid: Option<i32>, comm: Option<&str>, cpu: Option<u32>) -> bool {
        let pid = self.pids.is_empty() || pid.is_some_and(|pid| self.pids.contains(&pid));
        let comm = self.comms.is_empty() || comm.is_some_and(|comm| self.comms.iter().any(|one| one == comm));
        let cpu = self.cpus.is_empty() || cpu.is_some_and(|cpu| self.cpus.contains(&cpu));
        pid && comm && cpu
    }

    /// Whether a function is the root asked for.
    pub fn is_root(&self, function: &str) -> bool {
        self.root.as_deref().is_some_and(|root| root == function || names::system_call(function) == Some(root))
    }
}
