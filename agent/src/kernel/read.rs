//! Reading and cleaning the maps of one probe, by its layout.

use crate::kernel::control::Control;
use crate::kernel::groups::{Admission, Groups, GroupsError};
use crate::kernel::mmap::{Values, element_words};
use crate::kernel::sys::{self, KernelMap};
use kstrobe_ebpf::layout::{
    FreshSlots, Index, Layout, Loss, MapDef, MapId, MapKind, PASSES, SelectedMap, SpanMap, Table,
};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use thiserror::Error;

/// The maps of one probe, with its layout.
#[derive(Debug)]
pub struct ProbeMaps {
    layout: Layout,
    /// By [`MapId`].
    maps: Vec<KernelMap>,
    /// By table.
    values: Vec<Values>,
    /// By table, of those where programs say which records change.
    changes: Vec<Option<Values>>,
    losses: Option<Values>,
    /// What steps count of their states.
    states: Option<Values>,
    /// States that the agent itself deleted.
    forgotten: AtomicU64,
    /// Most states known to be evicted: a count never goes down.
    evicted: AtomicU64,
    /// Programs that keep the maps of conditions; none before a condition needs them, and where the kernel refuses them.
    admissions: OnceLock<Vec<Admission>>,
    control: Option<Arc<Control>>,
}

/// Maps that are not what their layout says.
#[derive(Debug, Error)]
pub enum LayoutError {
    /// As many maps as the layout has.
    #[error("the layout has {layout} maps, not {given}")]
    MapCount {
        layout: usize,
        /// Of the probe.
        given: usize,
    },
    /// A table names a map that is not in the layout.
    #[error("the layout has no map {0}")]
    NoMap(u32),
    /// A map of another kind, or of other sizes, in the kernel or in the object: kind, bytes of key and value, entries.
    #[error("map {map}: (kind, key, value, entries) is {have:?}, its layout says {want:?}")]
    OtherMap {
        map: String,
        /// Of the map.
        have: [u32; 4],
        /// In the layout.
        want: [u32; 4],
    },
    /// Records of a table do not fill its map.
    #[error("a table of {shards} x {slots} records in a map of {entries}")]
    Table {
        shards: u32,
        slots: u32,
        /// Of the map.
        entries: u32,
    },
    /// An index of a table has other keys or slots.
    #[error("an index whose keys or slots have another size than its layout says")]
    Index,
    /// Values cannot be read.
    #[error("map {map}: {error}")]
    Open {
        map: String,
        /// Of mmap(2) or bpf(2).
        error: io::Error,
    },
}

/// One table at about one moment.
#[derive(Debug)]
pub struct TableView<'a> {
    /// The values area: `shards * slots` records, shard-major, each rounded up to whole words.
    pub values: &'a [AtomicU64],
    /// For [`Index::Hash`]: keys and their slots, in no order. Empty for the other kinds of index.
    pub index: Vec<(Box<[u8]>, u32)>,
}

/// How full a map is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapFill {
    /// As in the layout.
    pub name: String,
    /// Entries in use.
    pub entries: u32,
    /// Most entries.
    pub capacity: u32,
}

/// Which spans are open; see [`Layout::open`].
#[derive(Debug)]
pub struct OpenSpans {
    map: KernelMap,
    values: Values,
}

impl OpenSpans {
    /// Whether some span is open.
    pub fn has_some(&self) -> io::Result<bool> {
        self.values.refresh(&self.map)?;
        let mut firsts = self.values.words().iter().step_by(element_words(&self.map));
        Ok(firsts.any(|word| word.load(Ordering::Relaxed) != 0))
    }
}

impl ProbeMaps {
    /// Takes the maps of a probe, in the order of the layout's ids, and checks that tables fit them.
    pub fn new(layout: Layout, maps: Vec<KernelMap>) -> Result<ProbeMaps, LayoutError> {
        if layout.maps.len() != maps.len() {
            return Err(LayoutError::MapCount { layout: layout.maps.len(), given: maps.len() });
        }
        let sizes = |map: &KernelMap| [map.kind, map.key_bytes as u32, map.value_bytes as u32, map.capacity];
        layout.maps.iter().zip(&maps).try_for_each(|(def, map)| check_map(def, sizes(map)))?;
        layout.tables.iter().try_for_each(|table| check_table(table, &maps))?;
        let open = |id: MapId| {
            let map = maps.get(id.0 as usize).ok_or(LayoutError::NoMap(id.0))?;
            Values::open(map).map_err(|error| LayoutError::Open { map: layout.map(id).name.clone(), error })
        };
        let values = layout.tables.iter().map(|table| open(table.values)).collect::<Result<_, _>>()?;
        let changes =
            layout.tables.iter().map(|table| table.changes.map(open).transpose()).collect::<Result<_, _>>()?;
        let losses = layout.losses.as_ref().map(|losses| open(losses.map)).transpose()?;
        let states = layout.state.as_ref().map(|state| open(state.counts)).transpose()?;
        let control = layout.control.as_ref().map(|control| {
            let map = maps.get(control.map.0 as usize).ok_or(LayoutError::NoMap(control.map.0))?;
            let same = map.as_fd().try_clone_to_owned().and_then(KernelMap::from_fd);
            let map = same.map_err(|error| LayoutError::Open { map: layout.map(control.map).name.clone(), error })?;
            Ok::<_, LayoutError>(Arc::new(Control::new(map, layout.cpus)))
        });
        let control = control.transpose()?;
        let (forgotten, evicted, admissions) = Default::default();
        Ok(ProbeMaps { layout, maps, values, changes, losses, states, forgotten, evicted, admissions, control })
    }

    /// What the bytes in the maps mean.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// A map of the layout.
    pub fn map(&self, id: MapId) -> &KernelMap {
        // `new` has checked that there is one per definition.
        &self.maps[id.0 as usize]
    }

    /// Fills the stacks of free slots that programs do not count themselves, lowest on top. Call once, before any program runs.
    pub fn fill_free_slots(&self) -> io::Result<()> {
        self.layout.tables.iter().filter_map(Table::free_at_start).try_for_each(|(free, mut slots)| {
            let free = self.map(free);
            slots.try_for_each(|slot| free.push(&slot.to_ne_bytes()))
        })
    }

    /// Reads a table: its values are the kernel's memory itself, or a fresh copy; its index is read in batches.
    pub fn table(&self, table: usize) -> io::Result<TableView<'_>> {
        let (layout, values) = self.table_parts(table)?;
        // The index first: every slot in it has its values by then.
        let index = match layout.index {
            Index::Hash { map, .. } => read_index(self.map(map))?,
            Index::Single | Index::Dense(_) => Vec::new(),
        };
        values.refresh(self.map(layout.values))?;
        Ok(TableView { values: values.words(), index })
    }

    /// The values of a table without its keys.
    pub fn values(&self, table: usize) -> io::Result<&[AtomicU64]> {
        let (layout, values) = self.table_parts(table)?;
        values.refresh(self.map(layout.values))?;
        Ok(values.words())
    }

    /// The words of a table that say which records have changed: read before the values, what is seen here is seen there.
    pub fn changes(&self, table: usize) -> io::Result<Option<&[AtomicU64]>> {
        let (layout, _) = self.table_parts(table)?;
        let (Some(map), Some(Some(changes))) = (layout.changes, self.changes.get(table)) else { return Ok(None) };
        changes.refresh(self.map(map))?;
        Ok(Some(changes.words()))
    }

    /// Keys that programs have put into the index of a table so far. While it stays, no key came. `None` where they do not count.
    pub fn keys_added(&self, table: usize) -> io::Result<Option<u64>> {
        let (Table { index: Index::Hash { fresh: Some(FreshSlots { map, element }), .. }, .. }, _) =
            self.table_parts(table)?
        else {
            return Ok(None);
        };
        let mut counts = [0; FreshSlots::BYTES as usize];
        self.map(*map).lookup(&element.to_ne_bytes(), &mut counts)?;
        Ok(counts.last_chunk().map(|added| u64::from_ne_bytes(*added)))
    }

    fn table_parts(&self, table: usize) -> io::Result<(&Table, &Values)> {
        self.layout
            .tables
            .get(table)
            .zip(self.values.get(table))
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, format!("the probe has no table {table}")))
    }

    /// What was lost for one reason since the start, as far as programs count it.
    pub fn lost(&self, reason: Loss) -> io::Result<u64> {
        let (Some(layout), Some(values)) = (&self.layout.losses, &self.losses) else { return Ok(0) };
        let Some(at) = layout.reasons.iter().position(|known| *known == reason) else { return Ok(0) };
        let map = self.map(layout.map);
        values.refresh(map)?;
        let stride = crate::kernel::mmap::element_words(map);
        Ok(values.words().chunks_exact(stride).map(|cpu| cpu[at].load(Ordering::Relaxed)).sum())
    }

    /// What was lost since the start, summed over CPUs.
    pub fn losses(&self) -> io::Result<Vec<(Loss, u64)>> {
        let (Some(layout), Some(values)) = (&self.layout.losses, &self.losses) else { return Ok(Vec::new()) };
        let map = self.map(layout.map);
        values.refresh(map)?;
        let stride = crate::kernel::mmap::element_words(map);
        let sum = |reason: usize| {
            values.words().chunks_exact(stride).map(|cpu| cpu[reason].load(Ordering::Relaxed)).sum::<u64>()
        };
        let evicted = self.evicted_states()?;
        let of = |loss: Loss| if loss == Loss::StateEvicted { evicted } else { 0 };
        Ok(layout.reasons.iter().enumerate().map(|(i, loss)| (*loss, sum(i) + of(*loss))).collect())
    }

    /// States of steps that the kernel dropped for want of room: what came and was not deleted, but for what is there.
    fn evicted_states(&self) -> io::Result<u64> {
        let (Some(layout), Some(values)) = (&self.layout.state, &self.states) else { return Ok(0) };
        let map = self.map(layout.counts);
        let word = |n: usize| -> io::Result<u64> {
            values.refresh(map)?;
            let stride = crate::kernel::mmap::element_words(map);
            Ok(values.words().chunks_exact(stride).map(|cpu| cpu[n].load(Ordering::Relaxed)).sum())
        };
        // What comes between the readings must not look evicted: arrivals are read first, then what is there, then what went.
        let came = word(0)?;
        let there = self.map(layout.map).entries()?.len() as u64;
        let gone = came.saturating_sub(there).saturating_sub(word(1)? + self.forgotten.load(Ordering::Relaxed));
        Ok(self.evicted.fetch_max(gone, Ordering::Relaxed).max(gone))
    }

    /// Takes keys out of a hashed table and gives their slots back: the keys go first, then every program that may still
    /// hold a slot has finished, then the values are zeroed in all shards, and only then a new key may get the slot.
    ///
    /// Blocks for an RCU grace period (some milliseconds). Returns how many keys were really there. `last` is given the slots
    /// of keys that are gone and all values before theirs are zeroed: nothing that was counted is missing there.
    pub fn evict(
        &self,
        table: usize,
        victims: &[(Box<[u8]>, u32)],
        last: impl FnOnce(&[u32], &[AtomicU64]),
    ) -> io::Result<usize> {
        let (layout, values) = self.table_parts(table)?;
        let Index::Hash { map, free, .. } = layout.index else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("table {table} has no keys to evict")));
        };
        let (mut slots, mut gone) = (Vec::with_capacity(victims.len()), Vec::with_capacity(victims.len()));
        let mut failed = None;
        for (key, slot) in victims {
            // A slot out of range or the overflow slot is never given back: two keys would share it.
            if *slot == 0 || *slot >= layout.slots {
                continue;
            }
            match self.map(map).delete(key) {
                Ok(true) => {
                    slots.push(*slot);
                    gone.push(*slot);
                }
                Ok(false) => gone.push(*slot),
                // The slots of keys that are gone already must still come back.
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        if !slots.is_empty() {
            sys::wait_for_running_programs();
            values.refresh(self.map(layout.values))?;
        }
        last(&gone, values.words());
        for &slot in &slots {
            for shard in 0..layout.shards {
                let record = shard * layout.slots + slot;
                values.zero(self.map(layout.values), record..record + 1)?;
            }
            self.map(free).push(&slot.to_ne_bytes())?;
        }
        failed.map_or(Ok(slots.len()), Err)
    }

    /// Empties a table of which no program runs now: no keys, all slots free, all values zero.
    pub fn clear(&self, table: usize) -> io::Result<()> {
        let (layout, values) = self.table_parts(table)?;
        if let Index::Hash { map, free, .. } = layout.index {
            for (key, slot) in read_index(self.map(map))? {
                if self.map(map).delete(&key)? && (1..layout.slots).contains(&slot) {
                    self.map(free).push(&slot.to_ne_bytes())?;
                }
            }
        }
        values.zero(self.map(layout.values), 0..layout.shards * layout.slots)
    }

    /// Removes open spans whose start is more than `age_ns` ago, and says how many: their end will never come, or will be
    /// counted as [`Loss::NoStart`].
    ///
    /// Closed spans keep their entry, which the next start with the same key reuses in place. When more than half of the map
    /// is in use, entries of closed spans are removed too; a start that reopens one at that very moment is lost and its
    /// end counted.
    pub fn sweep_spans(&self, age_ns: u64) -> io::Result<u64> {
        let Some(SpanMap { map, .. }) = &self.layout.spans else { return Ok(0) };
        let map = self.map(*map);
        let entries = map.entries()?;
        let now = sys::monotonic_ns();
        let crowded = entries.len() > map.capacity as usize / 2;
        let mut stale = 0;
        for (key, value) in entries.iter() {
            let start = value.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
            let is_stale = start != 0 && now.saturating_sub(start) > age_ns;
            if is_stale || (start == 0 && crowded) {
                let was_there = map.delete(key)?;
                stale += u64::from(was_there && is_stale);
            }
        }
        Ok(stale)
    }

    /// What the agent sets of its programs; `None` for a probe that cannot be sampled.
    pub fn control(&self) -> Option<&Arc<Control>> {
        self.control.as_ref()
    }

    /// Its open spans, if it can be read whether there are some.
    pub fn open_spans(&self) -> io::Result<Option<OpenSpans>> {
        let Some(id) = self.layout.open else { return Ok(None) };
        let map = KernelMap::from_fd(self.map(id).as_fd().try_clone_to_owned()?)?;
        let values = Values::open(&map)?;
        Ok(Some(OpenSpans { map, values }))
    }

    /// Forgets what has begun and not ended, before a probe is attached again: their ends were not seen. Returns the
    /// number of open spans and states. Spans in task storage are recognised by their age instead, see
    /// [`Control::sample`].
    pub fn forget_open(&self) -> io::Result<u64> {
        let mut states = 0;
        for (def, map) in self.layout.maps.iter().zip(&self.maps) {
            if def.kind == MapKind::LruHash {
                for (key, _) in map.entries()?.iter() {
                    // Before it goes: what is neither there nor counted looks evicted.
                    self.forgotten.fetch_add(1, Ordering::Relaxed);
                    match map.delete(key)? {
                        true => states += 1,
                        false => _ = self.forgotten.fetch_sub(1, Ordering::Relaxed),
                    }
                }
            }
        }
        Ok(states + self.sweep_spans(0)?)
    }

    /// Attaches programs that keep the maps of conditions for cgroups made from now on; once for each probe. Returns whether they
    /// run; the reason why not, the first time.
    pub fn admit(&self, groups: &Groups) -> Result<bool, GroupsError> {
        let mut failure = None;
        let all = self.admissions.get_or_init(|| {
            let one = |s: &SelectedMap| groups.admission(self.map(s.map), s.selector.is_of_pods());
            let all = self.layout.selected.iter().map(one).collect::<Result<Vec<_>, _>>();
            all.map_err(|reason| failure = Some(reason)).unwrap_or_default()
        });
        failure.map_or(Ok(!all.is_empty()), Err)
    }

    /// Makes these cgroups, and no others, pass in the map of a condition; entries for which `is_open` is true stay as they
    /// are. Returns how many found no room.
    pub fn select(&self, map: MapId, ids: &BTreeSet<u64>, is_open: impl Fn(u64) -> bool) -> io::Result<usize> {
        let map = self.map(map);
        let mut pass = BTreeSet::new();
        for (key, says) in map.entries()?.iter() {
            let (Ok(id), Ok(says)) = (key.try_into().map(u64::from_ne_bytes), says.try_into().map(u32::from_ne_bytes))
            else {
                continue;
            };
            if ids.contains(&id) {
                if says == PASSES {
                    pass.insert(id);
                }
            } else if !is_open(id) {
                map.delete(key)?;
            }
        }
        let mut refused = 0;
        for id in ids.difference(&pass) {
            match map.update(&id.to_ne_bytes(), &PASSES.to_ne_bytes(), 0) {
                Ok(()) => {}
                Err(error) if error.raw_os_error() == Some(libc::E2BIG) => refused += 1,
                Err(error) => return Err(error),
            }
        }
        Ok(refused)
    }

    /// How full the hashes are. Those whose entries are `known` are not read.
    pub fn fill(&self, known: impl Fn(MapId) -> Option<usize>) -> io::Result<Vec<MapFill>> {
        let hashes = (0..).map(MapId).zip(self.layout.maps.iter().zip(&self.maps));
        let hashes = hashes.filter(|(_, (def, _))| matches!(def.kind, MapKind::Hash | MapKind::LruHash));
        hashes
            .map(|(id, (def, map))| {
                let entries = known(id).map_or_else(|| map.entries().map(|entries| entries.len()), Ok)?;
                Ok(MapFill { name: def.name.clone(), entries: entries as u32, capacity: map.capacity })
            })
            .chain(self.stack_fill())
            .collect()
    }
}

pub(super) fn read_index(map: &KernelMap) -> io::Result<Vec<(Box<[u8]>, u32)>> {
    let entries = map.entries()?;
    // `new` has checked that values are slots: 4 bytes.
    Ok(entries.iter().filter_map(|(key, slot)| Some((key.into(), u32::from_ne_bytes(slot.try_into().ok()?)))).collect())
}

/// Compares a map (`BPF_MAP_TYPE_*`, bytes of key and value, entries) with its definition.
pub(super) fn check_map(def: &MapDef, [kind, key, value, capacity]: [u32; 4]) -> Result<(), LayoutError> {
    // Task storage grows with the tasks.
    let entries = |entries| if def.kind == MapKind::TaskStorage { 0 } else { entries };
    let have = [kind, key, value, entries(capacity)];
    let want = [def.kind.number(), def.key_bytes, def.value_bytes, entries(def.entries)];
    match have == want {
        true => Ok(()),
        false => Err(LayoutError::OtherMap { map: def.name.clone(), have, want }),
    }
}

fn check_table(table: &Table, maps: &[KernelMap]) -> Result<(), LayoutError> {
    let map = |id: MapId| maps.get(id.0 as usize).ok_or(LayoutError::NoMap(id.0));
    let &Table { shards, slots, .. } = table;
    for id in table.maps_of_records() {
        let entries = map(id)?.capacity;
        if shards.checked_mul(slots) != Some(entries) {
            return Err(LayoutError::Table { shards, slots, entries });
        }
    }
    if let Index::Hash { map: index, free, key_bytes, fresh } = table.index {
        let (index, free) = (map(index)?, map(free)?);
        if (index.key_bytes, index.value_bytes, free.value_bytes) != (key_bytes as usize, 4, 4) {
            return Err(LayoutError::Index);
        }
        if let Some(FreshSlots { map: counts, element }) = fresh {
            let counts = map(counts)?;
            if counts.value_bytes != FreshSlots::BYTES as usize || element >= counts.capacity {
                return Err(LayoutError::Index);
            }
        }
    }
    Ok(())
}
