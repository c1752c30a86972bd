//! What it costs to reach a program at a hook: the part of its cost that no program sees.

use crate::kernel::sys::link;
use crate::kernel::sys::prog::{self, ProgSpec, kind};
use kstrobe_ebpf::typed::Attach;
use std::os::fd::AsFd;
use std::os::unix::process::parent_id;
use std::time::Instant;

/// Loops of calls, the fastest of which counts: interrupts only add to it.
const ROUNDS: u32 = 7;
const CALLS: u32 = 500;

/// Nanoseconds that it takes to reach the program at a hook.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EntryCost {
    /// Where a system call begins or ends, in the mean of both: a program there makes the kernel take another way into each call and out of it
    /// (`SYSCALL_WORK_SYSCALL_TRACEPOINT`), unless another tracer has done so.
    pub syscall: f64,
    pub other: f64,
}

impl EntryCost {
    /// Where it cannot be measured: what a tracepoint charges on a machine of 3 GHz.
    pub const USUAL: EntryCost = EntryCost { syscall: 50.0, other: 50.0 };

    /// By what empty programs add to a system call. To be measured before probes count the calls: it takes some 2 ms.
    pub fn measure() -> Option<EntryCost> {
        const RETURN_0: [u64; 2] = [0xb7, 0x95];
        let spec = ProgSpec { kind: kind::RAW_TRACEPOINT, insns: &RETURN_0, name: "ks_empty", ..ProgSpec::default() };
        let program = prog::load(&spec).ok()?;
        let attach = || link::attach_raw_tracepoint(program.as_fd(), "sys_enter").ok();
        let bare = call_ns();
        let _first = attach()?;
        let one = call_ns();
        let _second = attach()?;
        let two = call_ns();
        let other = (two - one).max(0.0);
        // Two programs and the way: as much as one at the begin of a call and one at its end.
        Some(EntryCost { syscall: other.max((two - bare) / 2.0), other })
    }

    /// At this hook.
    pub fn at(&self, attach: &Attach) -> f64 {
        match attach.event() {
            Some("sys_enter" | "sys_exit") => self.syscall,
            _ => self.other,
        }
    }
}

fn call_ns() -> f64 {
    let round = |_| {
        let start = Instant::now();
        for _ in 0..CALLS {
            std::hint::black_box(parent_id());
        }
        start.elapsed().as_nanos() as f64 / f64::from(CALLS)
    };
    (0..ROUNDS).map(round).fold(f64::INFINITY, f64::min)
}
