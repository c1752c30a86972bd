//! What a capture holds, and what it lost.

use super::lengths::last_ns;
use super::text::{Table, head, moment, time};
use crate::calls::Calls;
use crate::page::Lost;
use crate::trace::{CpuStats, Trace};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};

/// What a capture holds, and what it lost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Of the machine; empty when not known.
    pub hostname: String,
    /// Its kernel; empty when not known.
    pub uname: String,
    /// Clocks of the buffers. `counter` and `x86-tsc` do not count nanoseconds.
    pub clocks: Vec<String>,
    /// The first time in it, nanoseconds of the trace's clock.
    pub start_ns: Option<u64>,
    /// The last time in it.
    pub end_ns: Option<u64>,
    /// From the first to the last.
    pub duration_ns: Option<u64>,
    /// Events that were recorded, the most frequent first. What is not here was not recorded.
    pub events: Vec<EventCount>,
    /// By buffer and CPU.
    pub cpus: Vec<CpuSummary>,
    /// Records lost on all CPUs, as far as the kernel counted them.
    pub lost: u64,
    /// Places where records were lost that the kernel did not count.
    pub lost_uncounted: u64,
    /// Records whose format the capture does not hold.
    pub no_format: u64,
    /// Places that cannot be read, with the reason.
    pub unreadable: Vec<String>,
    /// Calls of functions.
    pub calls: Option<CallSummary>,
}

/// How often an event was recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EventCount {
    /// Subsystem and name, `:` between them.
    pub event: String,
    /// How often.
    pub count: u64,
}

/// What one CPU recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CpuSummary {
    /// The buffer; empty for the top one.
    pub buffer: String,
    pub cpu: u32,
    pub events: u64,
    /// The first, nanoseconds of the trace's clock.
    pub start_ns: Option<u64>,
    /// The last.
    pub end_ns: Option<u64>,
    /// Records lost, as far as counted in the pages or in the kernel's own statistics: the larger of both.
    pub lost: u64,
    /// Places where records were lost that the kernel did not count.
    pub lost_uncounted: u64,
}

/// What is known of calls.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CallSummary {
    pub calls: u64,
    /// Calls without a caller in the capture.
    pub roots: u64,
    /// Events between calls.
    pub marks: u64,
    /// Outermost functions and how often, the most frequent first.
    pub outermost: Vec<EventCount>,
    /// Records that the kernel says it lost.
    pub lost: u64,
    /// Lines or records that say nothing that can be understood.
    pub not_understood: u64,
    /// The same line or record twice: counted once.
    pub repeated: u64,
    /// Exits whose call is not known to have been entered.
    pub no_entry: u64,
    /// Entries whose exit did not come before the call was known to be over.
    pub no_exit: u64,
    /// Calls that were still running at the end.
    pub open: u64,
}

/// What a capture holds, of its records, its calls, or both.
pub fn summary(trace: Option<&Trace>, calls: Option<&Calls>) -> Summary {
    let mut report = Summary::default();
    if let Some(trace) = trace {
        of_trace(&mut report, trace);
    }
    if let Some(calls) = calls {
        of_calls(&mut report, calls, trace.is_none());
    }
    report.duration_ns = report.end_ns.zip(report.start_ns).map(|(end_ns, start_ns)| end_ns.saturating_sub(start_ns));
    report.events.sort_by(most_first);
    report
}

fn most_first(one: &EventCount, two: &EventCount) -> std::cmp::Ordering {
    two.count.cmp(&one.count).then_with(|| one.event.cmp(&two.event))
}

fn of_trace(report: &mut Summary, trace: &Trace) {
    report.hostname.clone_from(&trace.about.hostname);
    report.uname.clone_from(&trace.about.uname);
    report.clocks = trace.buffers.iter().map(|buffer| buffer.clock.clone()).collect();
    let mut cpus: BTreeMap<(usize, u32), CpuSummary> = BTreeMap::new();
    for (at, buffer) in trace.buffers.iter().enumerate() {
        for cpu in &buffer.cpus {
            cpus.insert(
                (at, cpu.cpu),
                CpuSummary { buffer: buffer.name.clone(), cpu: cpu.cpu, ..CpuSummary::default() },
            );
        }
    }
    let mut counts: HashMap<u16, u64> = HashMap::new();
    let mut events = trace.events();
    for event in &mut events {
        match event.format {
            Some(format) => *counts.entry(format.id).or_default() += 1,
            None => report.no_format += 1,
        }
        let cpu = cpus.entry((event.buffer, event.cpu)).or_default();
        cpu.events += 1;
        cpu.start_ns.get_or_insert(event.time);
        cpu.end_ns = Some(event.time);
        match event.lost {
            Lost::Nothing => {}
            Lost::Count(count) => cpu.lost = cpu.lost.saturating_add(count),
            Lost::Unknown => cpu.lost_uncounted += 1,
        }
    }
    report.unreadable = events
        .unreadable()
        .iter()
        .map(|place| format!("CPU {}, page {}: {}", place.cpu, place.page, place.error))
        .collect();
    for (id, count) in counts {
        if let Some(format) = trace.formats.by_id(id) {
            report.events.push(EventCount { event: format!("{}:{}", format.system, format.name), count });
        }
    }
    for (at, buffer) in trace.buffers.iter().enumerate() {
        for cpu in &buffer.cpus {
            let counted = cpu.stats.as_ref().map_or(0, CpuStats::lost);
            if let Some(summary) = cpus.get_mut(&(at, cpu.cpu)) {
                summary.lost = summary.lost.max(counted);
            }
        }
    }
    report.cpus = cpus.into_values().collect();
    report.lost = report.cpus.iter().fold(0, |sum: u64, cpu| sum.saturating_add(cpu.lost));
    report.lost_uncounted = report.cpus.iter().map(|cpu| cpu.lost_uncounted).sum();
    report.start_ns = report.cpus.iter().filter_map(|cpu| cpu.start_ns).min();
    report.end_ns = report.cpus.iter().filter_map(|cpu| cpu.end_ns).max();
}

fn of_calls(report: &mut Summary, calls: &Calls, alone: bool) {
    let mut outermost: HashMap<&str, u64> = HashMap::new();
    for root in &calls.roots {
        *outermost.entry(super::work::function_name(calls, calls[*root].function)).or_default() += 1;
    }
    let mut outermost: Vec<EventCount> =
        outermost.into_iter().map(|(name, count)| EventCount { event: name.to_owned(), count }).collect();
    outermost.sort_by(most_first);
    let damage = calls.damage;
    report.calls = Some(CallSummary {
        calls: calls.calls.len() as u64,
        roots: calls.roots.len() as u64,
        marks: calls.marks.len() as u64,
        outermost,
        lost: damage.lost,
        not_understood: damage.not_understood,
        repeated: damage.repeated,
        no_entry: damage.no_entry,
        no_exit: damage.no_exit,
        open: damage.open,
    });
    // Records tell all this themselves, and better.
    if !alone {
        return;
    }
    report.lost = damage.lost;
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for mark in &calls.marks {
        *counts.entry(if mark.event.is_empty() { "(comment)" } else { &mark.event }).or_default() += 1;
    }
    report.events = counts.into_iter().map(|(event, count)| EventCount { event: event.to_owned(), count }).collect();
    let starts = calls.calls.iter().filter_map(|call| call.start_ns);
    report.start_ns = starts.chain(calls.marks.iter().filter_map(|mark| mark.time_ns)).min();
    report.end_ns = report.start_ns.map(|_| last_ns(calls));
    let mut cpus: BTreeMap<u32, CpuSummary> = BTreeMap::new();
    let places = calls.calls.iter().map(|call| (call.cpu, call.start_ns));
    for (cpu, ns) in places.chain(calls.marks.iter().map(|mark| (mark.cpu, mark.time_ns))) {
        let Some(cpu) = cpu else { continue };
        let summary = cpus.entry(cpu).or_insert(CpuSummary { cpu, ..CpuSummary::default() });
        summary.events += 1;
        summary.start_ns = [summary.start_ns, ns].into_iter().flatten().min();
        summary.end_ns = summary.end_ns.max(ns);
    }
    report.cpus = cpus.into_values().collect();
}

impl Summary {
    /// As text for a terminal.
    pub fn render(&self, out: &mut String) {
        head(out, "Capture");
        if self.lost > 0 || self.lost_uncounted > 0 {
            let more = if self.lost_uncounted > 0 {
                format!(", and at {} places records that the kernel did not count", self.lost_uncounted)
            } else {
                String::new()
            };
            head(
                out,
                &format!("  !!! RECORDS WERE LOST: {}{more}. What was there in these times is not known.", self.lost),
            );
        }
        for (count, what) in [
            (self.no_format, "records without a format"),
            (self.unreadable.len() as u64, "pages that cannot be read to their end"),
        ] {
            if count > 0 {
                head(out, &format!("  !!! {count} {what}"));
            }
        }
        self.unreadable.iter().take(10).for_each(|place| head(out, &format!("      {place}")));
        let mut table = Table::new(&["", ""]);
        let mut row = |name: &str, value: String| {
            if !value.is_empty() {
                table.row(vec![name.to_owned(), value]);
            }
        };
        row("host", self.hostname.clone());
        row("kernel", self.uname.clone());
        row("clock", self.clocks.join(", "));
        if self.clocks.iter().any(|clock| matches!(clock.as_str(), "counter" | "x86-tsc")) {
            row("", "this clock does not count nanoseconds: times below are its own units".to_owned());
        }
        row("from", moment(self.start_ns));
        row("to", moment(self.end_ns));
        row("duration", self.duration_ns.map_or_else(|| "not recorded".to_owned(), time));
        let mut text = String::new();
        table.render(&mut text);
        // There are no titles.
        out.push_str(text.split_once('\n').map_or("", |(_, rows)| rows));
        self.render_cpus(out);
        head(out, "Events that were recorded");
        if self.events.is_empty() {
            head(out, "  none");
        } else {
            let mut table = Table::new(&[">count", "event"]);
            self.events.iter().for_each(|one| table.row(vec![one.count.to_string(), one.event.clone()]));
            table.render(out);
        }
        self.render_calls(out);
    }

    fn render_cpus(&self, out: &mut String) {
        let mut table = Table::new(&["buffer", ">CPU", ">events", ">from s", ">to s", ">lost", ">places not counted"]);
        for cpu in &self.cpus {
            let buffer = if cpu.buffer.is_empty() { "top".to_owned() } else { cpu.buffer.clone() };
            let mut cells =
                vec![buffer, cpu.cpu.to_string(), cpu.events.to_string(), moment(cpu.start_ns), moment(cpu.end_ns)];
            cells.extend([cpu.lost.to_string(), cpu.lost_uncounted.to_string()]);
            table.row(cells);
        }
        if !self.cpus.is_empty() {
            table.render(out);
        }
    }

    fn render_calls(&self, out: &mut String) {
        let Some(calls) = &self.calls else { return };
        head(out, &format!("Calls of functions: {}, {} of them outermost", calls.calls, calls.roots));
        let mut table = Table::new(&[">count", "outermost function"]);
        calls.outermost.iter().take(20).for_each(|one| table.row(vec![one.count.to_string(), one.event.clone()]));
        if !calls.outermost.is_empty() {
            table.render(out);
        }
        if calls.outermost.len() > 20 {
            head(out, &format!("  and {} more", calls.outermost.len() - 20));
        }
        for (count, what) in [
            (calls.lost, "records lost"),
            (calls.not_understood, "lines or records not understood"),
            (calls.repeated, "lines or records repeated"),
            (calls.no_entry, "exits without an entry"),
            (calls.no_exit, "entries without an exit"),
            (calls.open, "calls still running at the end"),
        ] {
            if count > 0 {
                head(out, &format!("  {count} {what}"));
            }
        }
    }
}
