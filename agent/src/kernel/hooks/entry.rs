//! What it costs to reach a program at a hook: the part of its cost that no program sees.

use crate::kernel::sys::link;
use crate::kernel::sys::prog::{self, ProgSpec, kind};
use kstrobe_ebpf::typed::Attach;
use std::hint::black_box;
use std::os::fd::AsFd;
use std::os::unix::process::parent_id;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// Loops of calls, the fastest of which counts: interrupts only add to it.
const ROUNDS: u32 = 7;
const CALLS: u32 = 500;

/// Nanoseconds that it takes to reach the program at a hook.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EntryCost {
    /// Where a system call begins.
    pub enter: f64,
    /// Where it ends. A program at either makes the kernel take another way into each call and out of it
    /// (`SYSCALL_WORK_SYSCALL_TRACEPOINT`), unless another tracer has done so. That is charged here, since programs at the end stay attached
    /// where those at the begin are in slices of time.
    pub exit: f64,
    pub other: f64,
}

impl EntryCost {
    /// Where it cannot be measured: what a tracepoint charges on a machine of 3 GHz.
    pub const USUAL: EntryCost = EntryCost { enter: 50.0, exit: 50.0, other: 50.0 };

    /// By what empty programs add to a system call, and a [barrier](crate::kernel::detect::has_barriers_at_system_calls) at each of its ends:
    /// the thread that measures is not yet one that has them. To be measured before probes count the calls: it takes some 2 ms.
    pub fn measure(has_barriers: bool) -> Option<EntryCost> {
        const RETURN_0: [u64; 2] = [0xb7, 0x95];
        let spec = ProgSpec { kind: kind::RAW_TRACEPOINT, insns: &RETURN_0, name: "ks_empty", ..ProgSpec::default() };
        let program = prog::load(&spec).ok()?;
        let attach = |event| link::attach_raw_tracepoint(program.as_fd(), event).ok();
        let barrier = if has_barriers { barrier_ns() } else { 0.0 };
        let bare = call_ns();
        let _end = attach("sys_exit")?;
        let ended = call_ns();
        let _begin = attach("sys_enter")?;
        let both = call_ns();
        let _second = attach("sys_enter")?;
        let other = (call_ns() - both).max(0.0);
        let [enter, exit] = [both - ended, ended - bare].map(|ns| ns.max(other) + barrier);
        Some(EntryCost { enter, exit, other })
    }

    /// At this hook.
    pub fn at(&self, attach: &Attach) -> f64 {
        match attach.event() {
            Some("sys_enter") => self.enter,
            Some("sys_exit") => self.exit,
            _ => self.other,
        }
    }
}

fn call_ns() -> f64 {
    fastest(|| _ = black_box(parent_id()))
}

/// An addition that other CPUs see at once, as `smp_mb` is on x86-64.
fn barrier_ns() -> f64 {
    let word = AtomicU32::new(0);
    fastest(|| _ = black_box(word.fetch_add(1, Ordering::SeqCst)))
}

fn fastest(each: impl Fn()) -> f64 {
    let round = |_| {
        let start = Instant::now();
        (0..CALLS).for_each(|_| each());
        start.elapsed().as_nanos() as f64 / f64::from(CALLS)
    };
    (0..ROUNDS).map(round).fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_system_calls_have_their_own_costs() {
        let cost = EntryCost { enter: 17.0, exit: 22.0, other: 9.0 };
        let at = |event: &str| cost.at(&Attach::TpBtf { event: event.into() });
        assert_eq!(["sys_enter", "sys_exit", "softirq_entry"].map(at), [17.0, 22.0, 9.0]);
    }
}
