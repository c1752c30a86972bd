//! Programs at iterators: a walk runs them once per kernel object.
//!
//! A thread walks the objects, so that a scrape can give up waiting: a walk over a million sockets takes longer than a
//! scraper's timeout. The result is kept for the scrapes of the next second.

use super::lock::NamesLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kstrobe_ebpf::layout::{Layout, Loss, Table};

use super::engine::{Engine, Scrape};
use super::error::{NotAttached, ReadError};
use super::kernel::observe_fill;
use super::lock;
use crate::config::plan::ProbeMeta;
use crate::kernel::load::Loaded;
use crate::kernel::read::ProbeMaps;
use crate::metrics::series::TableSeries;
use crate::metrics::telemetry::{IterationUse, SeriesUse};
use kstrobe_export::reading::PackedFamily;
use kstrobe_export::snapshot::{Descriptor, Family, Moment};

/// Shortest interval between two walks.
pub const EVERY: Duration = Duration::from_secs(1);
/// A scrape waits so long for a walk, then shows the last one.
pub const WALK_TIMEOUT: Duration = Duration::from_millis(250);

/// A probe at iterators.
pub struct IteratorEngine {
    loaded: Loaded,
    /// With the metrics of their cells.
    tables: Vec<(Table, Vec<Arc<Descriptor>>)>,
    held: Mutex<Held>,
    /// Scrapes that showed an older walk.
    late: AtomicU64,
}

/// The last walk.
#[derive(Default)]
struct Held {
    families: Vec<Family>,
    /// The error of the walk. Nothing is exported then: the counts of an older walk would be wrong.
    failure: Option<Arc<ReadError>>,
    begun: Option<Instant>,
    took: Duration,
}

impl IteratorEngine {
    /// Of programs that are loaded and attached.
    pub fn new(meta: &ProbeMeta, layout: &Layout, loaded: Loaded) -> IteratorEngine {
        let about = |t: &Table| t.cells.iter().map(|c| meta.metrics[c.metric as usize].about.clone()).collect();
        let tables = layout.tables.iter().map(|t| (t.clone(), about(t))).collect();
        IteratorEngine { loaded, tables, held: Mutex::default(), late: AtomicU64::new(0) }
    }

    /// Walks over all objects.
    pub fn walk(&self, names: &NamesLock) {
        let begun = Instant::now();
        let read = self.read(names);
        let took = begun.elapsed();
        let (families, failure) = match read {
            Ok(families) => (families, None),
            Err(error) => (Vec::new(), Some(Arc::new(error))),
        };
        *lock(&self.held) = Held { families, failure, begun: Some(begun), took };
    }

    fn read(&self, names: &NamesLock) -> Result<Vec<Family>, ReadError> {
        let maps = self.loaded.maps();
        for i in 0..self.tables.len() {
            maps.clear(i).map_err(|error| ReadError::Clear { table: i, error })?;
        }
        self.loaded.run_iterators().map_err(ReadError::Iterator)?;
        let now = Moment::now();
        let mut families = Vec::new();
        for (i, (table, about)) in self.tables.iter().enumerate() {
            let view = maps.table(i).map_err(|error| ReadError::Table { table: i, error })?;
            let index = view.index.iter().map(|(key, slot)| (&**key, *slot));
            // A table of one walk: nothing lasts from one to the next.
            let mut once = TableSeries::once(table.clone(), about.clone(), now);
            let read = once.read(view.values, index, &mut names.lock(), now);
            families.extend(read.map_err(|error| ReadError::Series { table: i, error })?);
        }
        Ok(families)
    }
}

impl Engine for Arc<IteratorEngine> {
    fn scrape(&mut self, scrape: &mut Scrape<'_>) -> Vec<Family> {
        let held = lock(&self.held);
        if held.begun.is_none_or(|begun| begun.elapsed() > EVERY + WALK_TIMEOUT) {
            self.late.fetch_add(1, Ordering::Relaxed);
        }
        scrape.errors.extend(held.failure.clone().map(ReadError::Last));
        scrape.observed.iterations.push(IterationUse {
            probe: scrape.probe.to_owned(),
            took: held.took,
            late: self.late.load(Ordering::Relaxed),
        });
        observe_fill(self.loaded.maps(), scrape, |_| None);
        if let Some(losses) = scrape.note(self.loaded.maps().losses(), ReadError::Losses) {
            let overflowed = losses.iter().filter(|(l, _)| *l == Loss::SeriesOverflow).map(|(_, n)| n).sum();
            let probe = scrape.probe.to_owned();
            scrape.observed.series.push(SeriesUse { probe, overflowed, evicted: 0, waiting: None });
        }
        held.families.clone()
    }

    /// The last walk, which may be older than a second.
    fn read_series(&mut self, _: &mut Scrape<'_>) -> Vec<PackedFamily> {
        lock(&self.held).families.iter().map(PackedFamily::of).collect()
    }

    /// The error of the last walk.
    fn reason(&self) -> String {
        lock(&self.held).failure.as_ref().map(ToString::to_string).unwrap_or_default()
    }

    fn layout(&self) -> Option<&Layout> {
        Some(self.loaded.maps().layout())
    }

    fn maps(&self) -> Option<&ProbeMaps> {
        Some(self.loaded.maps())
    }

    fn kernel(&mut self) -> Result<&mut super::kernel::KernelEngine, NotAttached> {
        Err(NotAttached("it runs when the metrics are read".into()))
    }

    fn iterator(&self) -> Option<Arc<IteratorEngine>> {
        Some(self.clone())
    }
}
