//! Empties the kernel's tables of stacks every few seconds into collectors, as other continuous profilers do: a table that
//! only forgets what has not occurred for long is full of old stacks by the time that a profile is taken.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use kstrobe_ebpf::layout::{Layout, Table};
use kstrobe_export::snapshot::{Descriptor, Moment};

use super::error::{DrainError, ReadError};
use super::lock;
use crate::config::plan::ProbeMeta;
use crate::kernel::read::ProbeMaps;
use crate::metrics::fold::FoldError;
use crate::metrics::labels::Names;
use crate::metrics::profiles::Addresses;
use crate::metrics::profiles::collector::{Collector, Stack};
use crate::metrics::series::awaits_names;
use crate::metrics::stacks::{self as sums, NO_FRAMES, StackKey};

/// Shortest and longest time from one drain to the next: the shortest when tables fill fast.
const PERIODS: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(10));
/// Shares of a table. Stacks lie where their hash says: in a map that is an eighth full one in eight finds its place taken, and of
/// these nearly all find one in the second map. At a quarter 1.6 % of the time off the CPU of 64 threads had no stack.
const CROWDED: f64 = 0.125;
const EMPTY: f64 = CROWDED / 4.0;
/// A profile of some minutes has more stacks than the kernel holds at a time.
const PROFILE_FACTOR: usize = 4;

/// The stacks metrics of a probe.
pub struct Drain {
    metrics: Vec<Metric>,
    /// Keys that stay in the kernel until their cgroups have names, and since when.
    waiting: HashMap<Box<[u8]>, Instant>,
    /// Stacks that occurred since the last sweep.
    recent: HashSet<u32>,
    /// Largest share of a table that was in use at drains since the last sweep.
    fullness: f64,
    period: Duration,
}

struct Metric {
    /// Its place among the probe's metrics.
    index: usize,
    table: usize,
    cell: usize,
    about: Arc<Descriptor>,
    max_series: usize,
    /// Since the start.
    total: Collector,
    /// Of profiles that are being taken.
    profiles: Vec<Weak<Mutex<Collector>>>,
    /// Value of the overflow slot at the last drain.
    overflowed: u64,
}

impl Drain {
    /// Of a probe that has stacks metrics.
    pub fn of(meta: &ProbeMeta, layout: &Layout) -> Option<Drain> {
        let tables = layout.tables.iter().enumerate().filter(|(_, table)| table.stack_key().is_some());
        let cells = tables.flat_map(|(i, table)| table.cells.iter().enumerate().map(move |(n, cell)| (i, n, cell)));
        let metrics = cells.map(|(table, cell, at)| {
            let metric = &meta.metrics[at.metric as usize];
            let ttl = (!metric.ttl.is_zero()).then_some(metric.ttl);
            Metric {
                index: at.metric as usize,
                table,
                cell,
                about: metric.about.clone(),
                max_series: metric.max_series,
                total: Collector::new(metric.about.label_names.clone(), metric.max_series, ttl),
                profiles: Vec::new(),
                overflowed: 0,
            }
        });
        let metrics: Vec<Metric> = metrics.collect();
        (!metrics.is_empty()).then(|| Drain {
            metrics,
            waiting: HashMap::new(),
            recent: HashSet::new(),
            fullness: 0.0,
            period: PERIODS.0,
        })
    }

    /// Time from one drain to the next.
    pub fn period(&self) -> Duration {
        self.period
    }

    /// Number of keys that wait for names of cgroups.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Collects a metric from now on, for as long as the collector is kept.
    pub fn begin(&mut self, metric: usize) -> Option<Arc<Mutex<Collector>>> {
        let metric = self.metrics.iter_mut().find(|m| m.index == metric)?;
        let limit = metric.max_series.saturating_mul(PROFILE_FACTOR);
        let collector = Arc::new(Mutex::new(Collector::new(metric.about.label_names.clone(), limit, None)));
        metric.profiles.push(Arc::downgrade(&collector));
        Some(collector)
    }

    /// The sums of a metric since the start.
    pub fn total(&self, metric: usize) -> Option<&Collector> {
        self.metrics.iter().find(|m| m.index == metric).map(|m| &m.total)
    }

    /// Processes that collected stacks belong to.
    pub fn pids(&self) -> HashSet<u32> {
        let profiles = self.metrics.iter().flat_map(|m| &m.profiles).filter_map(Weak::upgrade);
        let of_profiles = profiles.flat_map(|collector| lock(&collector).pids());
        self.metrics.iter().flat_map(|m| m.total.pids()).chain(of_profiles).collect()
    }

    /// Takes all sums out of the kernel's tables. Keys of cgroups without a name stay for as long as one may still come, unless
    /// `at_once`.
    pub fn drain(&mut self, maps: &ProbeMaps, names: &mut Names, now: Moment, at_once: bool) -> Result<(), ReadError> {
        let waited = std::mem::take(&mut self.waiting);
        for (i, table) in maps.layout().tables.iter().enumerate().filter(|(_, table)| table.stack_key().is_some()) {
            let failed = |error: DrainError| ReadError::Drain { table: i, error };
            let mut view = maps.table(i).map_err(|error| failed(error.into()))?;
            self.fullness = self.fullness.max(view.index.len() as f64 / f64::from(table.slots.max(1)));
            self.drain_overflow(i, table, view.values, now.mono).map_err(|error| failed(error.into()))?;
            view.index.retain(|(key, slot)| {
                let since = waited.get(key).copied().unwrap_or(now.mono);
                let waits = !at_once && awaits_names(table, key, names.workload_names(), since, now.mono);
                if waits {
                    self.waiting.insert(key.clone(), since);
                }
                !waits && Some(*slot) != table.overflow
            });
            self.drain_table(maps, i, &view.index, names, now.mono).map_err(failed)?;
        }
        for metric in &mut self.metrics {
            metric.shrink(now.mono);
        }
        Ok(())
    }

    /// Stacks that occurred lately, which are to stay in the kernel's maps.
    pub fn recent(&self) -> &HashSet<u32> {
        &self.recent
    }

    /// Takes the result of a sweep: how full the maps of stacks are.
    pub fn swept(&mut self, fullness: f64) {
        self.recent.clear();
        self.period = next_period(self.period, std::mem::take(&mut self.fullness).max(fullness));
    }

    /// The overflow slot is never given back: its increase is the difference to the last drain.
    fn drain_overflow(
        &mut self,
        i: usize,
        table: &Table,
        words: &[std::sync::atomic::AtomicU64],
        now: Instant,
    ) -> Result<(), FoldError> {
        let Some(slot) = table.overflow else { return Ok(()) };
        for metric in self.metrics.iter_mut().filter(|m| m.table == i) {
            let value: u64 = sums::values(table, metric.cell, words, &[slot])?.into_iter().sum();
            let added = u64::wrapping_sub(value, std::mem::replace(&mut metric.overflowed, value));
            let key = sums::overflow(table, &metric.about);
            metric.add(stack(key, |_| Addresses::Missed), added, now);
        }
        Ok(())
    }

    fn drain_table(
        &mut self,
        maps: &ProbeMaps,
        i: usize,
        victims: &[(Box<[u8]>, u32)],
        names: &mut Names,
        now: Instant,
    ) -> Result<(), DrainError> {
        let table = &maps.layout().tables[i];
        let mut addresses = HashMap::new();
        for id in victims.iter().flat_map(|(key, _)| table.stack_key().map(|at| at.ids(key))).flatten() {
            if let std::collections::hash_map::Entry::Vacant(new) = addresses.entry(id) {
                new.insert(look_up(maps, id).map_err(|error| DrainError::Stack { id, error })?);
            }
        }
        self.recent.extend(addresses.keys().filter_map(|id| u32::try_from(*id).ok()));
        let metrics = self.metrics.iter_mut().filter(|m| m.table == i);
        let mut metrics: Vec<(&mut Metric, HashMap<u32, Stack>)> = metrics
            .map(|metric| {
                let mut stack_of = |key: &[u8]| {
                    let key = sums::stack_key(table, metric.cell, &metric.about, key, names, now);
                    stack(key, |id| addresses.get(&id).cloned().unwrap_or(Addresses::Missed))
                };
                let stacks = victims.iter().map(|(key, slot)| (*slot, stack_of(key))).collect();
                (metric, stacks)
            })
            .collect();
        let mut wrong = None;
        let gone = maps.evict(i, victims, |slots, words| {
            for (metric, stacks) in &mut metrics {
                match sums::values(table, metric.cell, words, slots) {
                    Ok(values) => {
                        let known = slots.iter().zip(values).filter_map(|(slot, n)| Some((stacks.remove(slot)?, n)));
                        known.for_each(|(stack, value)| metric.add(stack, value, now));
                    }
                    Err(error) => wrong = Some(error),
                }
            }
        });
        gone?;
        wrong.map_or(Ok(()), |error| Err(error.into()))
    }
}

impl Metric {
    fn add(&mut self, stack: Stack, value: u64, now: Instant) {
        if value == 0 {
            return;
        }
        let stack = self.total.shared(stack);
        self.total.add(&stack, value, now);
        for profile in self.profiles.iter().filter_map(Weak::upgrade) {
            lock(&profile).add(&stack, value, now);
        }
    }

    fn shrink(&mut self, now: Instant) {
        self.total.shrink(now);
        self.profiles.retain(|profile| profile.strong_count() > 0);
        self.profiles.iter().filter_map(Weak::upgrade).for_each(|profile| lock(&profile).shrink(now));
    }
}

fn stack(key: StackKey, addresses: impl Fn(i32) -> Addresses) -> Stack {
    let half = |id: Option<i32>| id.map_or_else(Addresses::default, &addresses);
    Stack { kernel: half(key.kernel), user: half(key.user), labels: key.labels, pid: key.pid }
}

fn look_up(maps: &ProbeMaps, id: i32) -> std::io::Result<Addresses> {
    Ok(match u32::try_from(id) {
        Ok(id) => maps.stack(id)?.map_or(Addresses::Missed, |stack| Addresses::Known(stack.into())),
        Err(_) if id == NO_FRAMES => Addresses::default(),
        Err(_) => Addresses::Missed,
    })
}

fn next_period(period: Duration, fullness: f64) -> Duration {
    let next = match fullness {
        f if f > CROWDED => period / 2,
        f if f < EMPTY => period * 2,
        _ => period,
    };
    next.clamp(PERIODS.0, PERIODS.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_that_fill_fast_are_emptied_more_often() {
        let seconds = |period: u64, fullness| next_period(Duration::from_secs(period), fullness).as_secs_f64();
        assert_eq!([seconds(10, 0.2), seconds(10, 0.1), seconds(10, 0.0)], [5.0, 10.0, 10.0]);
        assert_eq!([seconds(1, 1.0), seconds(1, 0.0), seconds(8, 0.0)], [0.5, 2.0, 10.0]);
        assert_eq!(next_period(PERIODS.0, 1.0), PERIODS.0);
    }
}
