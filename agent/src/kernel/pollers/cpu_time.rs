//! What CPUs spend their time on, and totals of the scheduler: `/proc/stat` and `/proc/loadavg`.

use super::{Rows, Source, io_error, number, small, text};
use crate::kernel::detect::online_cpus;
use procfs::{CpuTime, CurrentSI, KernelStats, LoadAverage, prelude::*};
use std::io;
use std::time::Duration;

pub const TIMES: Source = Source {
    name: "cpu_times",
    summary: "time of each CPU by mode in ns, of /proc/stat; guests are not in `user` and `nice` again, so that modes add up",
    columns: &[small("cpu"), text("mode", 16), number("time")],
    open: || Box::new(read_times),
};

pub const SCHEDULER: Source = Source {
    name: "scheduler",
    summary: "one row of /proc/stat and /proc/loadavg; load averages in hundredths",
    columns: &[
        number("context_switches"),
        number("forks"),
        number("running"),
        number("blocked"),
        number("tasks"),
        number("load1"),
        number("load5"),
        number("load15"),
    ],
    open: || Box::new(read_scheduler),
};

fn read_times(rows: &mut Rows) -> io::Result<()> {
    let stats = KernelStats::current().map_err(io_error)?;
    // The kernel lists online CPUs in the order of their numbers, which the library does not keep.
    for (cpu, times) in online_cpus().into_iter().zip(&stats.cpu_time) {
        for (mode, time) in by_mode(times) {
            rows.push(&[cpu.into(), mode.into(), (time.as_nanos() as u64).into()]);
        }
    }
    Ok(())
}

fn by_mode(times: &CpuTime) -> [(&'static str, Duration); 10] {
    let or_none = Option::unwrap_or_default;
    let (guest, guest_nice) = (or_none(times.guest_duration()), or_none(times.guest_nice_duration()));
    [
        ("user", times.user_duration().saturating_sub(guest)),
        ("nice", times.nice_duration().saturating_sub(guest_nice)),
        ("system", times.system_duration()),
        ("idle", times.idle_duration()),
        ("iowait", or_none(times.iowait_duration())),
        ("irq", or_none(times.irq_duration())),
        ("softirq", or_none(times.softirq_duration())),
        ("steal", or_none(times.steal_duration())),
        ("guest", guest),
        ("guest_nice", guest_nice),
    ]
}

fn read_scheduler(rows: &mut Rows) -> io::Result<()> {
    let stats = KernelStats::current().map_err(io_error)?;
    let load = LoadAverage::current().map_err(io_error)?;
    let hundredths = |load: f32| (load * 100.0).round() as u64;
    rows.push(&[
        stats.ctxt.into(),
        stats.processes.into(),
        stats.procs_running.unwrap_or(0).into(),
        stats.procs_blocked.unwrap_or(0).into(),
        load.max.into(),
        hundredths(load.one).into(),
        hundredths(load.five).into(),
        hundredths(load.fifteen).into(),
    ]);
    Ok(())
}
