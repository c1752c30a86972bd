//! From being woken to running.

use super::text::{Table, head, moment, not_recorded, task, time, time_or_dash};
use super::{Activity, Asked, Spread};
use serde::Serialize;
use std::collections::BTreeMap;

/// Delays between being woken and running.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Wakeups {
    /// Events that this would need and the capture does not hold.
    pub not_recorded: Vec<String>,
    /// Of all threads.
    pub all: Spread,
    /// By thread, the longest delay first.
    pub tasks: Vec<TaskDelays>,
    /// The longest delays.
    pub worst: Vec<WakeDelay>,
    /// Wakeups after which the thread was not seen to run.
    pub open: u64,
    /// Wakeups of threads that were still running.
    pub woken_while_running: u64,
}

/// Delays of one thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TaskDelays {
    /// The thread.
    pub pid: i32,
    /// Its name.
    pub comm: Option<String>,
    pub delays: Spread,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WakeDelay {
    /// The thread.
    pub pid: i32,
    /// Its name.
    pub comm: Option<String>,
    /// When it was woken, nanoseconds of the trace's clock.
    pub woken_ns: u64,
    /// From then until it ran.
    pub delay_ns: u64,
    /// Where it ran.
    pub cpu: u32,
    /// Who woke it: 0 is an interrupt of an idle CPU.
    pub by_pid: Option<i32>,
    /// Its name.
    pub by_comm: Option<String>,
    /// Where it was woken from.
    pub by_cpu: u32,
}

/// Delays between being woken (`sched_waking`, else `sched_wakeup`) and running.
pub fn wakeups(activity: &Activity, asked: &Asked) -> Wakeups {
    let mut by_task: BTreeMap<i32, Vec<u64>> = BTreeMap::new();
    let mut report = Wakeups { woken_while_running: activity.woken_while_running, ..Wakeups::default() };
    if !activity.wakeups {
        report.not_recorded.push("sched_waking or sched_wakeup".to_owned());
    }
    if !activity.switches {
        report.not_recorded.push("sched_switch".to_owned());
    }
    let mut all = Vec::new();
    for spell in &activity.spells {
        let Some(woken) = &spell.woken else { continue };
        let comm = activity.comm(spell.pid);
        let cpu = spell.back.map(|(_, cpu)| cpu);
        if !asked.keeps(Some(spell.pid), comm, cpu) {
            continue;
        }
        let (Some(delay_ns), Some(cpu)) = (spell.delay_ns(), cpu) else {
            report.open += 1;
            continue;
        };
        all.push(delay_ns);
        by_task.entry(spell.pid).or_default().push(delay_ns);
        report.worst.push(WakeDelay {
            pid: spell.pid,
            comm: comm.map(str::to_owned),
            woken_ns: woken.time_ns,
            delay_ns,
            cpu,
            by_pid: woken.by,
            by_comm: woken.by.and_then(|pid| activity.comm(pid)).map(str::to_owned),
            by_cpu: woken.cpu,
        });
        // The worst are few, the delays may be millions.
        if report.worst.len() > 2 * asked.slowest + 1000 {
            keep_worst(&mut report.worst, asked.slowest);
        }
    }
    keep_worst(&mut report.worst, asked.slowest);
    report.all = Spread::of(all);
    let delays = |(pid, times): (i32, Vec<u64>)| TaskDelays {
        pid,
        comm: activity.comm(pid).map(str::to_owned),
        delays: Spread::of(times),
    };
    report.tasks = by_task.into_iter().map(delays).collect();
    report.tasks.sort_by_key(|task| (std::cmp::Reverse(task.delays.max_ns), task.pid));
    report
}

fn keep_worst(worst: &mut Vec<WakeDelay>, count: usize) {
    worst.sort_by_key(|delay| (std::cmp::Reverse(delay.delay_ns), delay.woken_ns));
    worst.truncate(count);
}

impl Wakeups {
    /// As text for a terminal.
    pub fn render(&self, out: &mut String) {
        head(out, "From wakeup to running");
        if not_recorded(out, &self.not_recorded) {
            return;
        }
        let mut table = Table::new(&["task", ">count", ">p50", ">p90", ">p99", ">max", ">total"]);
        let mut row = |name: String, delays: &Spread| {
            let [p50, p90, p99, max, total] =
                [delays.p50_ns, delays.p90_ns, delays.p99_ns, delays.max_ns, delays.total_ns].map(time);
            table.row(vec![name, delays.count.to_string(), p50, p90, p99, max, total]);
        };
        row("all".into(), &self.all);
        for one in &self.tasks {
            row(task(one.comm.as_deref(), Some(one.pid)), &one.delays);
        }
        table.render(out);
        render_buckets(out, &self.all);
        if self.open > 0 {
            head(out, &format!("  {} wakeups were not seen to end", self.open));
        }
        if self.woken_while_running > 0 {
            head(out, &format!("  {} wakeups came before the thread had left the CPU", self.woken_while_running));
        }
        head(out, "The longest delays");
        let mut table = Table::new(&[">woken s", "task", ">delay", ">ran on CPU", "woken by", ">from CPU"]);
        for delay in &self.worst {
            let by = if delay.by_pid == Some(0) { "idle".into() } else { task(delay.by_comm.as_deref(), delay.by_pid) };
            let (cpu, by_cpu) = (delay.cpu.to_string(), delay.by_cpu.to_string());
            let name = task(delay.comm.as_deref(), Some(delay.pid));
            table.row(vec![moment(Some(delay.woken_ns)), name, time_or_dash(Some(delay.delay_ns)), cpu, by, by_cpu]);
        }
        table.render(out);
    }
}

/// Shows how many times lie in each range.
pub(super) fn render_buckets(out: &mut String, spread: &Spread) {
    let most = spread.buckets.iter().map(|bucket| bucket.count).max().unwrap_or_default();
    let mut table = Table::new(&[">up to", ">count", ""]);
    for bucket in &spread.buckets {
        let bar = (u128::from(bucket.count) * 40).div_ceil(u128::from(most)) as usize;
        table.row(vec![time(bucket.to_ns), bucket.count.to_string(), "#".repeat(bar)]);
    }
    if most > 0 {
        table.render(out);
    }
}
