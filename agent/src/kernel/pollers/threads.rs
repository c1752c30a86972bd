//! Threads with the system call in which they are, from `/proc/PID/task/TID`.

use super::{Reading, Rows, Source, io_error, number, text};
use procfs::process::{Process, Stat, Syscall, Task, all_processes};
use std::collections::HashMap;
use std::fs;
use std::time::{Duration, Instant};

pub const SOURCE: Source = Source {
    name: "threads",
    summary: "threads of programs with the system call in which they are, its first argument, and the function of the kernel in which they sleep; `waited` in ns since the first reading in which the call and the number of turns on a CPU were the same",
    columns: &[
        number("pid"),
        number("tid"),
        text("comm", 16),
        text("state", 8),
        number("in_call"),
        number("syscall"),
        number("argument"),
        text("function", 48),
        number("waited"),
    ],
    open,
};

/// `PF_KTHREAD`: threads of the kernel make no system calls.
const KERNEL_THREAD: u32 = 0x20_0000;

/// What changes when a thread does anything: its call, that call's first argument, and how often it had a CPU.
type Stand = (Option<(u64, u64)>, u64);

fn open() -> Reading {
    let mut stood: HashMap<i32, (Stand, Instant)> = HashMap::new();
    Box::new(move |rows| {
        let now = Instant::now();
        let mut stands = HashMap::new();
        // Threads may end while they are looked at.
        for process in all_processes().map_err(io_error)?.flatten() {
            for task in process.tasks().into_iter().flatten().flatten() {
                let Ok(stat) = task.stat() else { continue };
                if stat.flags & KERNEL_THREAD != 0 {
                    continue;
                }
                let Some(stand) = stand(&task) else { continue };
                let since =
                    stood.get(&task.tid).filter(|(before, _)| *before == stand).map_or(now, |(_, since)| *since);
                stands.insert(task.tid, (stand, since));
                push(rows, &process, &stat, stand, now - since);
            }
        }
        stood = stands;
        Ok(())
    })
}

fn stand(task: &Task) -> Option<Stand> {
    let call = match task.syscall() {
        Ok(Syscall::Blocked { syscall_number, argument_registers, .. }) => {
            u64::try_from(syscall_number).ok().map(|number| (number, argument_registers[0]))
        }
        _ => None,
    };
    Some((call, task.schedstat().ok()?.pcount))
}

fn push(rows: &mut Rows, process: &Process, stat: &Stat, (call, _): Stand, waited: Duration) {
    // `0` where the thread runs, or the kernel has no names.
    let function = fs::read_to_string(format!("/proc/{}/task/{}/wchan", process.pid(), stat.pid)).unwrap_or_default();
    let (number, argument) = call.unwrap_or_default();
    rows.push(&[
        (process.pid() as u64).into(),
        (stat.pid as u64).into(),
        stat.comm.as_str().into(),
        stat.state.to_string().as_str().into(),
        call.is_some().into(),
        number.into(),
        argument.into(),
        function.trim_start_matches('0').into(),
        (waited.as_nanos() as u64).into(),
    ]);
}
