//! The load: `getppid` in a loop on one CPU, in real time priority so that a busy machine is not measured with it.

use anyhow::{Context, Result};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::{Pid, getppid};
use std::fs;
use std::time::Instant;

/// System calls between two looks at the clock: 2-20 ms, short enough that some chunks see no interrupt storm.
pub const CHUNK: u32 = 10_000;

/// Nanoseconds per call of the fastest chunk.
pub fn fastest_call_ns(cpu: usize, calls: u32) -> Result<f64> {
    on_cpu(cpu, move || {
        let mut best = f64::INFINITY;
        for _ in 0..calls.div_ceil(CHUNK) {
            let begin = Instant::now();
            for _ in 0..CHUNK {
                getppid();
            }
            best = best.min(begin.elapsed().as_nanos() as f64 / f64::from(CHUNK));
        }
        Ok(best)
    })
}

/// Makes one call under each of these names of the thread.
pub fn call_under_names(cpu: usize, names: Vec<u32>) -> Result<()> {
    on_cpu(cpu, move || {
        for n in names {
            // Writing `comm` is prctl(PR_SET_NAME) without an unsafe call.
            fs::write("/proc/thread-self/comm", format!("name{n:05}")).context("renaming the load's thread")?;
            getppid();
        }
        Ok(())
    })
}

/// Runs `work` in a new thread that owns a CPU. The thread is new each time so that no state of an earlier variant (task
/// storage) is met.
fn on_cpu<T: Send + 'static>(cpu: usize, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let thread = std::thread::spawn(move || {
        let mut set = CpuSet::new();
        set.set(cpu).with_context(|| format!("no such CPU: {cpu}"))?;
        sched_setaffinity(Pid::from_raw(0), &set).with_context(|| format!("pinning the load to CPU {cpu}"))?;
        real_time()?;
        work()
    });
    thread.join().map_err(|_| anyhow::anyhow!("the load's thread panicked"))?
}

/// Gives the calling thread the lowest real time priority: above everything else that runs here, below the kernel's own.
fn real_time() -> Result<()> {
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: pid 0 is the calling thread, and the pointer is to a live, initialised sched_param.
    let rc = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &priority) };
    if rc == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()).context("real time priority for the load") }
}
