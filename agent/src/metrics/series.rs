//! What persists between two reads of a table: which keys there are, what they are called, since when, and when they
//! last changed.
//!
//! A *series* is a set of label texts. Usually it is one key, but different keys can read the same (everything that a
//! `map` decoder calls `many`, a label that really is `other`): their values are added, and they live and are evicted
//! together, so that what is exported never goes back while the series lives.
//!
//! Keys of cgroups end with their cgroup. What such a key had counted stays in the series as long as other keys have it: so
//! does the sum of a deployment when one of its pods goes. A series whose last key goes, goes.

use crate::metrics::fold::{self, Area, Column, FoldError, Records, Words};
use crate::metrics::labels::{Names, OTHER};
use crate::metrics::workload_names::{self, Status, WorkloadNames};
use kstrobe_ebpf::layout::{Index, KeyField, Table};
use kstrobe_ebpf::typed::Decoder;
use kstrobe_export::snapshot::{Descriptor, Family, LabelTexts, Moment, Series, Values};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// How long a scrape may have waited before it reads.
const SCRAPE_WAIT: Duration = Duration::from_secs(2);

mod blocks;

use blocks::Blocks;

pub struct TableSeries {
    table: Table,
    families: Vec<FamilyShape>,
    /// Time without change after which a key is given back; `None` for never.
    ttl: Option<Duration>,
    /// By slot.
    known: Vec<Option<Known>>,
    /// How many of them there are, the overflow series not counted.
    keys: usize,
    groups: BTreeMap<LabelTexts, Group>,
    /// There are other groups, or groups of other slots, than when `blocks` was divided.
    regrouped: bool,
    /// Some group may have a rest alone.
    rests: bool,
    blocks: Blocks,
    texts: HashSet<Arc<str>>,
    /// Whether labels are made from names of cgroups, which may come later than the events.
    of_cgroups: bool,
    /// Keys whose cgroups have no names yet, and since when.
    waiting: HashMap<Box<[u8]>, Instant>,
    /// Nothing lasts from one reading to the next: nothing is waited for.
    once: bool,
    /// The last moment at which a key that is not known was not there.
    previous: SystemTime,
    evicted: u64,
}

struct FamilyShape {
    about: Arc<Descriptor>,
    columns: Arc<[u32]>,
}

struct Known {
    key: Box<[u8]>,
    labels: LabelTexts,
    since: Instant,
}

struct Group {
    slots: Vec<u32>,
    /// What keys had that are gone: a record, or nothing.
    rest: Vec<u64>,
    created: SystemTime,
    changed: Instant,
    fingerprint: u64,
    /// Of its records, when they were last looked at ([`fold::Records::mark`]).
    mark: u64,
    /// Its slots or its rest are not those of its block.
    regrouped: bool,
}

/// A key that has not changed for the table's time to live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expired {
    /// Its record.
    pub slot: u32,
    /// Its key in the index.
    pub key: Box<[u8]>,
}

impl TableSeries {
    /// Nothing known yet. `about` is parallel to the table's cells; `ttl` of zero means never; `born` is a moment before
    /// the first event could be counted.
    pub fn new(table: Table, about: Vec<Arc<Descriptor>>, ttl: Duration, born: Moment) -> Self {
        let columns = table.cells.iter().map(|cell| Arc::from(cell.labels.as_slice()));
        let families = about.into_iter().zip(columns).map(|(about, columns)| FamilyShape { about, columns }).collect();
        let known = std::iter::repeat_with(|| None).take(table.slots as usize).collect();
        Self {
            families,
            ttl: (!ttl.is_zero()).then_some(ttl),
            known,
            keys: 0,
            groups: BTreeMap::new(),
            regrouped: true,
            rests: false,
            blocks: Blocks::default(),
            texts: HashSet::new(),
            of_cgroups: table.key.iter().any(|field| matches!(field.decoder, Decoder::Cgroup(_))),
            waiting: HashMap::new(),
            once: false,
            previous: born.wall,
            evicted: 0,
            table,
        }
    }

    /// The same for one reading alone.
    pub fn once(table: Table, about: Vec<Arc<Descriptor>>, now: Moment) -> Self {
        Self { once: true, ..Self::new(table, about, Duration::ZERO, now) }
    }

    /// Reads the table: one family per cell, series sorted by label texts. `index` is the content of the index map (empty
    /// for tables without one); entries that make no sense are ignored.
    pub fn read<'k, W: Words + ?Sized>(
        &mut self,
        words: &W,
        index: impl IntoIterator<Item = (&'k [u8], u32)>,
        names: &mut Names,
        now: Moment,
    ) -> Result<Vec<Family>, FoldError> {
        self.read_known(words.into(), Some(index), names, now)
    }

    /// The same. Without an `index`, the keys are those of the last reading.
    pub fn read_known<'k, W: Words + ?Sized>(
        &mut self,
        area: Area<'_, W>,
        index: Option<impl IntoIterator<Item = (&'k [u8], u32)>>,
        names: &mut Names,
        now: Moment,
    ) -> Result<Vec<Family>, FoldError> {
        fold::check_size(&self.table, area.words)?;
        self.learn(area, index, names, now);
        let rows = self.groups.values().map(Group::row);
        let folded = fold::fold(&self.table, area.words, rows)?;
        for (group, print) in self.groups.values_mut().zip(&folded.fingerprints) {
            if group.fingerprint != *print {
                group.fingerprint = *print;
                group.changed = now.mono;
            }
        }
        self.previous = now.wall;
        let shown = folded.columns.into_iter().zip(&self.families).map(|(column, shape)| self.family(shape, column));
        let shown = shown.collect();
        self.forget_idle_rests(now);
        Ok(shown)
    }

    /// What only has a rest is shown for as long as any series that does not change.
    fn forget_idle_rests(&mut self, now: Moment) {
        let Some(ttl) = self.ttl.filter(|_| self.rests) else { return };
        let idle = |group: &Group| now.mono.saturating_duration_since(group.changed) >= ttl;
        let before = self.groups.len();
        self.groups.retain(|_, group| !group.slots.is_empty() || !idle(group));
        self.regrouped |= self.groups.len() != before;
        self.rests = self.groups.values().any(|group| group.slots.is_empty());
    }

    /// Time to live of its keys; `None` when none is ever given back, as in tables without an index (a dense slot is there
    /// whether used or not).
    pub fn ttl(&self) -> Option<Duration> {
        self.ttl.filter(|_| matches!(self.table.index, Index::Hash { .. }))
    }

    /// Keys to give back: those whose series has not changed for the time to live. They stay known until
    /// [`TableSeries::evict`] says they are gone.
    pub fn tick(&self, now: Instant) -> Vec<Expired> {
        let Some(ttl) = self.ttl() else { return Vec::new() };
        let lasting = |slot: &u32| Some(*slot) == self.table.overflow;
        let idle =
            |group: &&Group| now.saturating_duration_since(group.changed) >= ttl && !group.slots.iter().any(lasting);
        let slots = self.groups.values().filter(idle).flat_map(|group| &group.slots);
        slots
            .filter_map(|&slot| {
                let known = self.known.get(slot as usize)?.as_ref()?;
                Some(Expired { slot, key: known.key.clone() })
            })
            .collect()
    }

    /// Keys to give back because of their cgroups: those that have ended, and those that are called otherwise now.
    pub fn ended(&self, names: &Names, now: Instant) -> Vec<Expired> {
        if !self.of_cgroups || self.ttl().is_none() {
            return Vec::new();
        }
        let known = self.known.iter().enumerate().filter_map(|(slot, known)| Some((slot as u32, known.as_ref()?)));
        let keys = known.filter(|(slot, _)| Some(*slot) != self.table.overflow);
        let over = keys.filter(|(_, known)| self.is_over(known, names.workload_names(), now));
        over.map(|(slot, known)| Expired { slot, key: known.key.clone() }).collect()
    }

    fn is_over(&self, known: &Known, workloads: &WorkloadNames, now: Instant) -> bool {
        self.table.key.iter().zip(known.labels.iter()).any(|(field, text)| {
            let Decoder::Cgroup(name) = field.decoder else { return false };
            let id = id(field, &known.key);
            match workloads.status(id) {
                // What belongs to no cgroup at all never ends.
                Status::Absent if id == 0 => false,
                Status::Named(workload) => workload_names::text(&workload, name) != &**text,
                // It had names, and is kept no longer; or is another cgroup's now, as names are given once.
                Status::Unnamed | Status::Absent if !text.is_empty() => true,
                Status::Unnamed => false,
                // No scrape has read it, or it had no such name. A reader must have looked since.
                Status::Absent => workloads.walked().is_some_and(|walked| {
                    walked.saturating_duration_since(known.since) >= workloads.timeouts().grace && walked <= now
                }),
            }
        })
    }

    /// Whether none of the names of cgroups is known.
    fn is_unnamed(&self, labels: &LabelTexts) -> bool {
        let mut names = self.table.key.iter().zip(labels.iter());
        names.all(|(field, text)| !matches!(field.decoder, Decoder::Cgroup(_)) || text.is_empty())
    }

    /// Keys that wait for the names of their cgroups.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether labels are made from names of cgroups.
    pub fn is_of_cgroups(&self) -> bool {
        self.of_cgroups
    }

    /// Forgets keys that were removed from the index and whose records are about to be cleared.
    pub fn evict<W: Words + ?Sized>(&mut self, slots: &[u32], words: &W) {
        let enough = words.count() >= fold::table_words(&self.table);
        for slot in slots.iter().filter(|_| enough) {
            let known = self.known.get(*slot as usize).and_then(Option::as_ref);
            if let Some(group) = known.and_then(|known| self.groups.get_mut(&known.labels)) {
                fold::keep(&self.table, words, *slot, &mut group.rest);
                group.regrouped = true;
            }
        }
        let gone = slots.iter().filter(|&&slot| self.forget(slot)).count();
        if gone > 0 {
            self.evicted += gone as u64;
            // A text that a snapshot in flight still holds goes with a later eviction.
            self.texts.retain(|text| Arc::strong_count(text) > 1);
        }
    }

    /// Keys evicted so far.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Keys known now, the overflow series not counted.
    pub fn keys(&self) -> usize {
        self.keys
    }

    /// The table it reads.
    pub fn table(&self) -> &Table {
        &self.table
    }

    fn learn<'k, W: Words + ?Sized>(
        &mut self,
        area: Area<'_, W>,
        index: Option<impl IntoIterator<Item = (&'k [u8], u32)>>,
        names: &mut Names,
        now: Moment,
    ) {
        match self.table.index.clone() {
            // No label to be absent: zero events is a true count.
            Index::Single => self.learn_key(0, &[], names, now),
            Index::Dense(domains) => {
                let records = Records::new(&self.table, area);
                let unknown = |slot: &u32| Some(*slot) != self.table.overflow && self.known[*slot as usize].is_none();
                let new = (0..self.table.slots).filter(unknown).filter(|slot| !records.is_unused(*slot));
                for slot in new.collect::<Vec<_>>() {
                    let key = dense_key(&self.table.key, &domains, slot);
                    self.learn_key(slot, &key, names, now);
                }
            }
            Index::Hash { key_bytes, .. } => {
                let Some(index) = index else { return };
                let waited = std::mem::take(&mut self.waiting);
                for (key, slot) in index {
                    if key.len() != key_bytes as usize || Some(slot) == self.table.overflow {
                        continue;
                    }
                    if let Some(since) = self.waits(slot, key, &waited, names.workload_names(), now.mono) {
                        self.waiting.insert(key.into(), since);
                        continue;
                    }
                    self.learn_key(slot, key, names, now);
                }
            }
        }
        if let Some(slot) = self.table.overflow
            && self.known.get(slot as usize).is_some_and(Option::is_none)
            && !fold::is_zero(&self.table, area.words, slot)
        {
            let other = self.share(OTHER.to_owned());
            self.insert(slot, &[], self.table.key.iter().map(|_| other.clone()).collect(), now);
        }
    }

    /// Since when a key that is not known waits for names, if it is to wait on.
    fn waits(
        &self,
        slot: u32,
        key: &[u8],
        waited: &HashMap<Box<[u8]>, Instant>,
        workloads: &WorkloadNames,
        now: Instant,
    ) -> Option<Instant> {
        if !self.of_cgroups || self.once {
            return None;
        }
        let known = self.known.get(slot as usize)?;
        if known.as_ref().is_some_and(|known| *known.key == *key) {
            return None;
        }
        let since = waited.get(key).copied().unwrap_or(now);
        awaits_names(&self.table, key, workloads, since, now).then_some(since)
    }

    fn learn_key(&mut self, slot: u32, key: &[u8], names: &mut Names, now: Moment) {
        match self.known.get(slot as usize) {
            None => return,
            Some(Some(known)) if *known.key == *key => return,
            Some(Some(_)) => {
                self.forget(slot);
            }
            Some(None) => {}
        }
        let mut at = 0;
        let dense = matches!(self.table.index, Index::Dense(_));
        let mut labels = Vec::with_capacity(self.table.key.len());
        for field in self.table.key.clone() {
            let start = if dense { at } else { field.offset as usize };
            let end = start + field.ty.bytes() as usize;
            at = end;
            let text = names.text(&field.decoder, field.ty, key.get(start..end).unwrap_or(&[]), now.mono);
            labels.push(self.share(text));
        }
        self.insert(slot, key, labels.into(), now);
    }

    fn insert(&mut self, slot: u32, key: &[u8], labels: LabelTexts, now: Moment) {
        // A scrape has the time at which the scraper began it, and may have waited since: while probes were attached, or
        // behind another scraper's. A start after that time would look like a reset at the next scrape.
        let created = now.wall.checked_sub(SCRAPE_WAIT).map_or(self.previous, |begun| begun.min(self.previous));
        let fresh = || Group {
            slots: Vec::new(),
            rest: Vec::new(),
            created,
            changed: now.mono,
            fingerprint: 0,
            mark: 0,
            regrouped: true,
        };
        let group = self.groups.entry(labels.clone()).or_insert_with(fresh);
        group.slots.push(slot);
        (group.regrouped, self.regrouped) = (true, true);
        self.keys += usize::from(Some(slot) != self.table.overflow);
        self.known[slot as usize] = Some(Known { key: key.into(), labels, since: now.mono });
    }

    fn forget(&mut self, slot: u32) -> bool {
        let Some(known) = self.known.get_mut(slot as usize).and_then(Option::take) else { return false };
        self.keys -= usize::from(Some(slot) != self.table.overflow);
        let unnamed = self.of_cgroups && self.is_unnamed(&known.labels);
        if let Some(group) = self.groups.get_mut(&known.labels) {
            group.slots.retain(|&other| other != slot);
            (group.regrouped, self.regrouped) = (true, true);
            // A cgroup that cannot be seen from here may go on counting under another slot: its series must not go back.
            if group.slots.is_empty() && (group.rest.is_empty() || !unnamed) {
                self.groups.remove(&known.labels);
            } else {
                self.rests |= group.slots.is_empty();
            }
        }
        true
    }

    /// One copy of each text, however many series have it.
    fn share(&mut self, text: String) -> Arc<str> {
        if let Some(shared) = self.texts.get(text.as_str()) {
            return shared.clone();
        }
        let shared: Arc<str> = text.into();
        self.texts.insert(shared.clone());
        shared
    }

    fn family(&self, shape: &FamilyShape, column: Column) -> Family {
        let rows = self.groups.iter();
        let series =
            |(labels, group): (&LabelTexts, &Group)| Series { labels: labels.clone(), created: Some(group.created) };
        let (series, values) = match column {
            Column::Counter(values) => (rows.map(series).collect(), Values::Counters(values)),
            Column::Histogram(histograms) => (rows.map(series).collect(), Values::Histograms(histograms)),
            Column::Gauge(values) => {
                let set = rows.zip(values).filter_map(|(row, value)| Some((series(row), value?)));
                let (series, values): (Vec<_>, Vec<_>) = set.unzip();
                (series, Values::Gauges(values))
            }
        };
        Family { about: shape.about.clone(), columns: shape.columns.clone(), series, values }
    }
}

/// Whether names of a cgroup in a key may still come, when that key was first seen at `since`.
pub fn awaits_names(table: &Table, key: &[u8], workloads: &WorkloadNames, since: Instant, now: Instant) -> bool {
    let over = now.saturating_duration_since(since) >= workloads.timeouts().wait;
    let mut fields = table.key.iter().filter(|field| matches!(field.decoder, Decoder::Cgroup(_)));
    let missing = |field: &KeyField| match (workloads.status(id(field, key)), id(field, key)) {
        (Status::Named(_), _) | (Status::Absent, 0) => false,
        (Status::Unnamed, _) => true,
        // A walk since then has not found it: it has ended, or is not visible from here.
        (Status::Absent, _) => workloads.walked().is_none_or(|walked| walked <= since),
    };
    !over && fields.any(missing)
}

/// The id of the cgroup in a key.
fn id(field: &KeyField, key: &[u8]) -> u64 {
    let at = field.offset as usize;
    key.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// The key that a dense slot stands for: its digits in the mixed radix of the domains, as the bytes of a packed key.
fn dense_key(fields: &[KeyField], domains: &[u32], slot: u32) -> Vec<u8> {
    let mut rest = slot;
    let mut digits = vec![0u32; domains.len()];
    for (digit, &domain) in digits.iter_mut().zip(domains).rev() {
        *digit = rest % domain.max(1);
        rest /= domain.max(1);
    }
    let bytes = |(field, digit): (&KeyField, u32)| {
        let mut value = u64::from(digit).to_le_bytes().to_vec();
        value.resize(field.ty.bytes() as usize, 0);
        value
    };
    fields.iter().zip(digits).flat_map(bytes).collect()
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_of_blocks;
#[cfg(test)]
mod tests_of_cgroups;
