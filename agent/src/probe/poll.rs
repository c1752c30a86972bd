//! A `poll:` probe: the interpreter runs its IR over the rows of a source; the tables become series.

use std::collections::BTreeMap;
use std::mem::replace;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kstrobe_ebpf::ir::Module;
use kstrobe_ebpf::ir::interp::Machine;
use kstrobe_ebpf::layout::{Aggregate, CellKind, Index, Layout, Loss};

use super::engine::{Engine, Scrape, Tick};
use super::error::{NotAttached, PollError};
use super::kernel::KernelEngine;
use super::running::Probe;
use crate::config::plan::ProbeMeta;
use crate::kernel::pollers::{self, Reader};
use crate::metrics::labels::Names;
use crate::metrics::polled::{PolledKind, PolledMetric, PolledSeries};
use crate::metrics::series::TableSeries;
use crate::metrics::telemetry::SeriesUse;
use kstrobe_export::reading::PackedFamily;
use kstrobe_export::snapshot::{Descriptor, Family, Moment, Number, Values};

/// A running poll probe.
pub(super) struct PollEngine {
    module: Module,
    source: &'static str,
    reader: Reader,
    /// By metric.
    about: Vec<Arc<Descriptor>>,
    series: PolledSeries,
    /// The series packed, from the first reading after a poll until the next poll.
    packed: Option<Vec<PackedFamily>>,
    /// Whether a scrape has had them.
    scraped: bool,
    /// Events that went to the `other` series of a reading's own tables.
    merged: u64,
    /// Between two reads, as the probe says.
    every: Duration,
    due: Instant,
    /// Why the last read failed, if it did.
    failure: Option<String>,
}

impl PollEngine {
    /// `None` when the agent has no such source, which the compiler has checked.
    pub fn new(meta: &ProbeMeta, module: Module) -> Option<PollEngine> {
        let poll = meta.poll.as_ref()?;
        let source = pollers::source(&poll.source)?;
        let mut kinds = BTreeMap::new();
        for cell in module.layout.tables.iter().flat_map(|t| &t.cells) {
            let kind = match &cell.kind {
                CellKind::Counter | CellKind::Stacks(_) => PolledKind::Counter,
                CellKind::Gauge { signed } => PolledKind::Gauge { signed: *signed, keep: Aggregate::Last },
                CellKind::Sum { signed } => PolledKind::Gauge { signed: *signed, keep: Aggregate::Sum },
                CellKind::Extreme { signed, end } => PolledKind::Gauge { signed: *signed, keep: end.aggregate() },
                CellKind::Histogram(scheme) => PolledKind::Histogram(scheme.clone()),
            };
            kinds.insert(cell.metric as usize, kind);
        }
        let metrics = meta.metrics.iter().zip(kinds.into_values()).map(|(m, kind)| PolledMetric {
            about: m.about.clone(),
            kind,
            // One more for what the table already merged into `other`.
            max_series: m.max_series + 1,
        });
        let series = PolledSeries::new(metrics.collect(), Moment::now());
        Some(PollEngine {
            module,
            source: source.name,
            reader: source.open(),
            about: meta.metrics.iter().map(|m| m.about.clone()).collect(),
            series,
            packed: None,
            scraped: false,
            merged: 0,
            every: poll.every,
            due: Instant::now(),
            failure: None,
        })
    }

    /// Reads the source once. A failed read leaves no old values behind: absent is not zero.
    fn read_source(&mut self, names: &mut Names) {
        let now = Moment::now();
        // Set first: a failed read is not retried before its interval.
        self.due = now.mono + self.every;
        (self.packed, self.scraped) = (None, false);
        self.series.begin();
        self.failure = self.rows(names, now).err().map(|error| error.to_string());
        self.series.finish(now);
    }

    fn rows(&mut self, names: &mut Names, now: Moment) -> Result<(), PollError> {
        let rows = self.reader.read().map_err(|error| PollError::Source { source_name: self.source, error })?;
        let mut machine = Machine::new(&self.module.layout).map_err(PollError::Maps)?;
        for table in &self.module.layout.tables {
            if let Some((free, slots)) = table.free_at_start() {
                slots.for_each(|slot| _ = machine.push(free, &slot.to_le_bytes()));
            }
        }
        for row in rows.iter() {
            machine.run(&self.module, 0, row).map_err(PollError::Row)?;
        }
        self.merged += merged(&machine, &self.module.layout);
        for table in &self.module.layout.tables {
            let words: Vec<u64> = words(machine.array(table.values)).collect();
            let index = match table.index {
                Index::Hash { map, .. } => machine.hash(map),
                _ => vec![],
            };
            let entries = index
                .iter()
                .filter_map(|(key, slot)| Some((key.as_slice(), u32::from_le_bytes(slot.get(..4)?.try_into().ok()?))));
            // A table of one reading: what persists between readings is kept by `PolledSeries`.
            let about = table.cells.iter().map(|c| self.about[c.metric as usize].clone()).collect();
            let mut once = TableSeries::new(table.clone(), about, Duration::ZERO, now);
            let families = once.read(words.as_slice(), entries, names, now)?;
            for (cell, family) in table.cells.iter().zip(&families) {
                observe_family(&mut self.series, cell.metric as usize, family);
            }
        }
        Ok(())
    }

    fn pack(&mut self) -> &[PackedFamily] {
        let pack = || self.series.families().iter().map(PackedFamily::of).collect();
        self.packed.get_or_insert_with(pack)
    }

    /// Adds the agent's own metrics of this probe.
    fn observe(&self, scrape: &mut Scrape<'_>) {
        // Rows merged into `other` for want of room.
        let overflowed = self.series.overflowed() + self.merged;
        let probe = scrape.probe.to_owned();
        scrape.observed.series.push(SeriesUse { probe, overflowed, evicted: 0, waiting: None });
    }

    /// Name of its source.
    pub fn source(&self) -> &'static str {
        self.source
    }
}

impl Engine for PollEngine {
    /// The last reading.
    fn scrape(&mut self, scrape: &mut Scrape<'_>) -> Vec<Family> {
        self.observe(scrape);
        self.series.families()
    }

    fn read(&mut self, scrape: &mut Scrape<'_>) -> Vec<PackedFamily> {
        self.observe(scrape);
        // What one scrape alone has is not worth keeping as it was sent.
        let hand_out = if replace(&mut self.scraped, true) { PackedFamily::share } else { PackedFamily::clone };
        self.pack().iter().map(hand_out).collect()
    }

    fn read_series(&mut self, _: &mut Scrape<'_>) -> Vec<PackedFamily> {
        self.pack().to_vec()
    }

    fn reason(&self) -> String {
        self.failure.clone().unwrap_or_default()
    }

    fn due(&self) -> Option<Instant> {
        Some(self.due)
    }

    fn due_at_rest(&self) -> Option<Instant> {
        // Each reading is a measurement of a histogram, which must not have fewer of them in some hours than in others.
        self.series.has_histograms().then_some(self.due)
    }

    fn tick(&mut self, tick: &mut Tick<'_>) -> Option<Probe> {
        let before = self.failure.take();
        self.read_source(tick.names);
        if self.failure.is_some() {
            tick.telemetry.poll_failed(self.source);
        }
        match (&before, &self.failure) {
            (_, Some(reason)) if self.failure != before => {
                tracing::error!(probe = tick.probe, reason, "poll failed");
            }
            (Some(_), None) => tracing::info!(probe = tick.probe, "polling again"),
            _ => {}
        }
        None
    }

    fn kernel(&mut self) -> Result<&mut KernelEngine, NotAttached> {
        Err(NotAttached("it is a poll".into()))
    }
}

/// Events of one reading that found no slot of their own.
fn merged(machine: &Machine, layout: &Layout) -> u64 {
    let Some(losses) = &layout.losses else { return 0 };
    let reasons = losses.reasons.iter().cycle();
    words(machine.array(losses.map))
        .zip(reasons)
        .filter(|(_, reason)| **reason == Loss::SeriesOverflow)
        .map(|(n, _)| n)
        .sum()
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word))
}

fn observe_family(all: &mut PolledSeries, metric: usize, family: &Family) {
    for (i, series) in family.series.iter().enumerate() {
        let labels: Vec<String> =
            (0..family.about.label_names.len()).map(|l| family.label(series, l).to_string()).collect();
        match &family.values {
            Values::Counters(v) => all.observe(metric, &labels, v[i]),
            Values::Gauges(v) => all.observe(metric, &labels, raw(v[i])),
            Values::Histograms(h) => all.merge(metric, &labels, h.sums[i], h.counts_of(i)),
        }
    }
}

fn raw(n: Number) -> u64 {
    match n {
        Number::Unsigned(v) => v,
        Number::Signed(v) => v as u64,
        Number::Float(v) => v as u64,
    }
}
