//! What it costs to reach a program at a hook: the part of its cost that no program sees.

use crate::kernel::sys::link;
use crate::kernel::sys::prog::{self, ProgSpec, kind};
use std::os::fd::AsFd;
use std::os::unix::process::parent_id;
use std::time::Instant;

/// Where it cannot be measured: what a tracepoint charges on a machine of 3 GHz.
pub const USUAL_NS: f64 = 50.0;
/// Loops of calls, the fastest of which counts: interrupts only add to it.
const ROUNDS: u32 = 7;
const CALLS: u32 = 500;

/// Nanoseconds that an empty program adds to a system call at whose entry it is. To be called before probes count the calls: it takes
/// some 2 ms.
pub fn cost_ns() -> Option<f64> {
    const RETURN_0: [u64; 2] = [0xb7, 0x95];
    let spec = ProgSpec { kind: kind::RAW_TRACEPOINT, insns: &RETURN_0, name: "ks_empty", ..ProgSpec::default() };
    let program = prog::load(&spec).ok()?;
    let attach = || link::attach_raw_tracepoint(program.as_fd(), "sys_enter").ok();
    // The first program at the hook makes the kernel take another way into each system call, which is no cost of the second.
    let _first = attach()?;
    let without = call_ns();
    let second = attach()?;
    let with = call_ns();
    drop(second);
    Some((with - without).max(0.0))
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
