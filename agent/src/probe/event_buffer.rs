//! Single events of a probe, taken out of the kernel's buffer.

use std::sync::Arc;
use std::time::Instant;

use crate::config::plan::{ExemplarLink, ProbeMeta};
use crate::kernel::events::Buffers;
use crate::kernel::read::ProbeMaps;
use crate::metrics::events::record::{self, Field, Record};
use crate::metrics::labels::Names;
use crate::metrics::profiles::Addresses;

/// Events of a probe that wait for their reader; beyond, they stay in the kernel's buffer and it counts what it refuses.
const MAX_UNREAD: usize = 1 << 16;

/// Events of one probe that were read from the kernel, with the data to format them.
#[derive(Debug, Default)]
pub struct EventBuffer {
    /// In the order of their buffers.
    pub records: Vec<Record>,
    /// Addresses of their stacks, in the order of the fields that are one.
    pub stacks: Vec<Addresses>,
    /// Names of the fields that are shown.
    pub names: Vec<String>,
    /// How many fields are shown; those behind them are for links.
    shown: usize,
    /// Histograms that the events are counted in, where the records say so.
    pub linked: Arc<[ExemplarLink]>,
    total: u64,
}

impl EventBuffer {
    /// Of a probe's events.
    pub fn of(meta: &ProbeMeta) -> EventBuffer {
        EventBuffer { shown: meta.shown_fields, linked: meta.exemplar_links.clone(), ..EventBuffer::default() }
    }

    /// Drains the buffer and looks up the stacks: the next sweep may reuse their ids.
    pub fn take(&mut self, maps: &ProbeMaps, buffers: &mut Buffers, names: &mut Names) {
        let Some(layout) = maps.layout().events.as_ref().filter(|_| self.records.len() < MAX_UNREAD) else { return };
        if self.names.is_empty() {
            let names = layout.fields.iter().flat_map(|f| f.names.first().cloned());
            self.names = names.take(self.shown).collect();
        }
        let (now, from) = (Instant::now(), self.records.len());
        // A record that is not what its layout says would be a fault of the compiler.
        buffers.drain(|bytes| self.records.extend(record::read(bytes, layout, names, now)));
        self.total += (self.records.len() - from) as u64;
        for record in &self.records[from..] {
            for field in &record.fields {
                if let Field::Stack { id, .. } = field {
                    self.stacks.push(addresses(maps, *id));
                }
            }
        }
    }

    /// Returns the events and leaves an empty buffer.
    pub fn hand_over(&mut self) -> EventBuffer {
        let next = EventBuffer {
            names: self.names.clone(),
            shown: self.shown,
            linked: self.linked.clone(),
            total: self.total,
            ..EventBuffer::default()
        };
        std::mem::replace(self, next)
    }

    /// Events so far.
    pub fn total(&self) -> u64 {
        self.total
    }
}

/// An id below 0 is an error number: there was no stack, as of a kernel thread, or no room for it.
fn addresses(maps: &ProbeMaps, id: i32) -> Addresses {
    match u32::try_from(id) {
        Ok(id) => maps.stack(id).ok().flatten().map_or(Addresses::Missed, |stack| Addresses::Known(stack.into())),
        Err(_) if id == crate::metrics::stacks::NO_FRAMES => Addresses::default(),
        Err(_) => Addresses::Missed,
    }
}
