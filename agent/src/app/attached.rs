//! A probe at work in the kernel: what was loaded, the series of its tables, and what has to be done for it from time to
//! time.

use std::time::Duration;

use kstrobe_config::model::Probe;
use kstrobe_ebpf::Layout;
use kstrobe_ebpf::layout::Index;

use super::families;
use crate::kernel::load::Loaded;
use crate::metrics::labels::Names;
use crate::metrics::series::{Expired, TableSeries};
use crate::metrics::snapshot::{Family, Moment};

/// Starts that never ended are swept from hashes after this long: no call worth a histogram lasts longer, and the room is
/// needed.
const OPEN_SPAN_LIFE: Duration = Duration::from_secs(3600);

/// A running probe.
pub(super) struct Attached {
    /// Programs, links and maps.
    pub loaded: Loaded,
    layout: Layout,
    tables: Vec<TableSeries>,
    /// By table: keys taken out of the index whose slots rest until the next sweep, as a program that found a slot just
    /// before may still be adding to it.
    resting: Vec<Vec<Expired>>,
    /// Spans swept because they never ended.
    pub abandoned: u64,
}

impl Attached {
    pub fn new(probe: &Probe, layout: Layout, loaded: Loaded, born: Moment) -> Attached {
        let about = families::descriptors(probe);
        let tables = layout
            .tables
            .iter()
            .map(|t| {
                // Metrics that share a table share their keys' fate: the longest wish wins, 0 being for ever.
                let ttls = t.cells.iter().map(|c| probe.metrics[c.metric as usize].ttl_ns);
                let ttl = if ttls.clone().any(|t| t == 0) { 0 } else { ttls.max().unwrap_or(0) };
                TableSeries::new(t.clone(), families::of_table(&about, t), Duration::from_nanos(ttl), born)
            })
            .collect();
        let resting = layout.tables.iter().map(|_| Vec::new()).collect();
        Attached { loaded, layout, tables, resting, abandoned: 0 }
    }

    /// All series now. A table that cannot be read is left out and reported.
    pub fn families(&mut self, names: &mut Names, now: Moment) -> (Vec<Family>, Vec<String>) {
        let mut families = Vec::new();
        let mut errors = Vec::new();
        for table in &mut self.tables {
            match read(&mut self.loaded, table, names, now) {
                Ok(mut f) => families.append(&mut f),
                Err(e) => errors.push(e),
            }
        }
        (families, errors)
    }

    /// Gives back keys that have not changed for their time to live, and spans that never ended.
    pub fn sweep(&mut self, names: &mut Names, now: Moment) -> Vec<String> {
        let (_, mut errors) = self.families(names, now);
        for (table, resting) in self.tables.iter_mut().zip(&mut self.resting) {
            let rested: Vec<u32> = resting.drain(..).map(|e| e.slot).collect();
            for slot in &rested {
                if let Err(e) = self.loaded.free_slot(table.table(), *slot) {
                    errors.push(e.to_string());
                }
            }
            table.evict(&rested);
            for expired in table.tick(now.mono) {
                match self.loaded.remove_key(table.table(), &expired.key) {
                    Ok(()) => resting.push(expired),
                    Err(e) => errors.push(e.to_string()),
                }
            }
        }
        if let Some(spans) = &self.layout.spans {
            match self.loaded.sweep_spans(spans, OPEN_SPAN_LIFE) {
                Ok(n) => self.abandoned += n,
                Err(e) => errors.push(e.to_string()),
            }
        }
        errors
    }

    /// Series evicted so far.
    pub fn evicted(&self) -> u64 {
        self.tables.iter().map(TableSeries::evicted).sum()
    }

    /// Name, entries and capacity of each index.
    pub fn fill(&self) -> Vec<(String, u64, u64)> {
        self.tables
            .iter()
            .filter_map(|t| match t.table().index {
                Index::Hash { map, .. } => {
                    let def = self.layout.map(map);
                    Some((def.name.clone(), t.keys() as u64, u64::from(def.entries)))
                }
                _ => None,
            })
            .collect()
    }

    /// Losses by reason, since the start.
    pub fn losses(&mut self) -> Vec<(&'static str, u64)> {
        let Some(losses) = &self.layout.losses else { return vec![] };
        self.loaded.losses(losses).into_iter().map(|(l, n)| (l.name(), n)).collect()
    }
}

fn read(
    loaded: &mut Loaded,
    table: &mut TableSeries,
    names: &mut Names,
    now: Moment,
) -> Result<Vec<Family>, String> {
    let layout = table.table().clone();
    let view = loaded.read_table(&layout).map_err(|e| e.to_string())?;
    table.read(view.words, view.index(), names, now).map_err(|e| e.to_string())
}
