//! A probe at work in the kernel: what was loaded, the series of its tables, and what has to be done for it from time to
//! time.

use std::time::Duration;

use kstrobe_ebpf::Layout;

use crate::kernel::load::Loaded;
use crate::metrics::labels::Names;
use crate::metrics::series::TableSeries;
use crate::metrics::snapshot::{Family, Moment};
use crate::plan::Outline;
use crate::telemetry::{Lost, MapUse, ProgramUse, SeriesUse};

/// Starts that never ended are swept from hashes after this long: no call worth a histogram lasts longer, and the room is
/// needed.
const OPEN_SPAN_LIFE: Duration = Duration::from_secs(3600);

/// A running probe.
pub(super) struct Attached {
    loaded: Loaded,
    tables: Vec<TableSeries>,
    /// Spans swept because they never ended.
    abandoned: u64,
}

impl Attached {
    /// `born` is a moment before the programs were attached.
    pub fn new(outline: &Outline, layout: &Layout, loaded: Loaded, born: Moment) -> Attached {
        let tables = layout.tables.iter().map(|t| {
            let metrics = || t.cells.iter().map(|c| &outline.metrics[c.metric as usize]);
            // Metrics that share a table share their keys' fate: the longest wish wins, zero being for ever.
            let for_ever = metrics().any(|m| m.ttl.is_zero());
            let ttl = metrics().map(|m| m.ttl).max().filter(|_| !for_ever).unwrap_or_default();
            TableSeries::new(t.clone(), metrics().map(|m| m.about.clone()).collect(), ttl, born)
        });
        let tables = tables.collect();
        Attached { loaded, tables, abandoned: 0 }
    }

    /// All series now. A table that cannot be read is left out, and why is said.
    pub fn families(&mut self, names: &mut Names, now: Moment) -> (Vec<Family>, Vec<String>) {
        let mut families = Vec::new();
        let mut errors = Vec::new();
        for (i, table) in self.tables.iter_mut().enumerate() {
            let read = self.loaded.maps().table(i).map_err(|e| e.to_string()).and_then(|view| {
                let index = view.index.iter().map(|(key, slot)| (&**key, *slot));
                table.read(view.values, index, names, now).map_err(|e| e.to_string())
            });
            match read {
                Ok(mut f) => families.append(&mut f),
                Err(e) => errors.push(e),
            }
        }
        (families, errors)
    }

    /// Gives back keys that have not changed for their time to live, and spans that never ended. Says what went wrong.
    pub fn sweep(&mut self, names: &mut Names, now: Moment) -> Vec<String> {
        // Without a scrape nobody else looks whether series change.
        let (_, mut errors) = self.families(names, now);
        for (i, table) in self.tables.iter_mut().enumerate() {
            let victims: Vec<_> = table.tick(now.mono).into_iter().map(|e| (e.key, e.slot)).collect();
            if victims.is_empty() {
                continue;
            }
            match self.loaded.maps().evict(i, &victims) {
                Ok(_) => table.evict(&victims.iter().map(|(_, slot)| *slot).collect::<Vec<_>>()),
                Err(e) => errors.push(e.to_string()),
            }
        }
        match self.loaded.maps().sweep_spans(OPEN_SPAN_LIFE.as_nanos() as u64) {
            Ok(n) => self.abandoned += n,
            Err(e) => errors.push(e.to_string()),
        }
        errors
    }

    /// What the programs cost so far.
    pub fn programs(&self, probe: &str) -> Vec<ProgramUse> {
        // A program whose numbers cannot be read has none to show.
        let programs = self.loaded.programs().unwrap_or_default();
        let of = |p: crate::kernel::load::ProgInfo| ProgramUse {
            probe: probe.to_string(),
            program: p.name,
            run_ns: p.run_time_ns,
            runs: p.run_cnt,
            missed: p.misses,
        };
        programs.into_iter().map(of).collect()
    }

    /// How full its hashes are.
    pub fn maps(&self, probe: &str) -> Vec<MapUse> {
        let fill = self.loaded.maps().fill().unwrap_or_default();
        let of = |f: crate::kernel::read::MapFill| MapUse {
            probe: probe.to_string(),
            map: f.name,
            entries: f.entries.into(),
            capacity: f.capacity.into(),
        };
        fill.into_iter().map(of).collect()
    }

    /// What was lost, by reason.
    pub fn losses(&self, probe: &str) -> Vec<Lost> {
        let counted = self.loaded.maps().losses().unwrap_or_default();
        let lost = |reason, events| Lost { probe: probe.to_string(), reason, events };
        let mut all: Vec<_> = counted.into_iter().map(|(loss, n)| lost(loss.name(), n)).collect();
        if self.loaded.maps().layout().spans.is_some() {
            all.push(lost("never_ended", self.abandoned));
        }
        all
    }

    /// Label sets that did not stay.
    pub fn series(&self, probe: &str) -> SeriesUse {
        let losses = self.loaded.maps().losses().unwrap_or_default();
        let overflow = kstrobe_ebpf::layout::Loss::SeriesOverflow;
        SeriesUse {
            probe: probe.to_string(),
            overflowed: losses.iter().filter(|(l, _)| *l == overflow).map(|(_, n)| n).sum(),
            evicted: self.tables.iter().map(TableSeries::evicted).sum(),
        }
    }
}
