//! Every map of a probe, and what each byte in it means: the only description there is.
//!
//! The compiler makes it; the agent reads maps and names series by it.
//!
//! A [`Table`] is the storage of all metrics that share a set of labels. Its *record* holds one cell per metric, so one
//! lookup finds everything an event has to add to. Records lie in an array map of `shards * slots` elements, shard-major
//! (`index = shard * slots + slot`), so that the agent can map it into its memory and read it without system calls.

use crate::buckets::Scheme;
pub use crate::program::{Aggregate, SpanField, StackSpec, Unwind};
use crate::typed::{Decoder, Selector, Ty};
use crate::unwind::UNWOUND;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Most label sets of a dense table: beyond it, a hash costs less memory than the empty slots.
pub const MAX_DENSE_SLOTS: u64 = 4096;

/// Names of the maps of call stacks.
pub const STACKS_MAPS: [&str; 2] = ["ks_stacks", "ks_stacks_more"];
/// Name of [`StackMap::unwound`].
pub const UNWOUND_MAP: &str = "ks_stacks_user";

/// In the id of a stack: it lies in [`StackMap::second`]. The kernel's own ids are numbers of buckets, which no budget lets
/// grow so large.
pub const SECOND_STACK_MAP: u32 = 1 << 30;

/// Index into [`Layout::maps`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MapId(pub u32);

/// All memory of one probe.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Layout {
    /// Possible CPUs the maps were sized for.
    pub cpus: u32,
    /// Kernel maps in the order of their ids.
    pub maps: Vec<MapDef>,
    /// Series storage.
    pub tables: Vec<Table>,
    /// Open spans that the agent has to sweep (hash keys only).
    pub spans: Option<SpanMap>,
    /// Open spans: an array whose elements begin with a word (u64) that is 0 where none is open. Where keys are small numbers that is the time
    /// of the start, and where context switches are watched the number of open spans of tasks with the same hash.
    pub open: Option<MapId>,
    /// Counts of what was lost, if any event can be.
    pub losses: Option<LossMap>,
    /// Records of single events.
    pub events: Option<EventMap>,
    /// Call stacks.
    pub stacks: Option<StackMap>,
    /// What steps keep by key.
    pub state: Option<StateMap>,
    /// What the agent tells running programs.
    pub control: Option<ControlMap>,
    /// By number of shards, the shard that each CPU writes, where it is not `cpu % shards`: CPUs that share a cache share a shard.
    pub shard_of: BTreeMap<u32, Vec<u32>>,
    /// Which cgroups conditions mean; the agent keeps them current.
    pub selected: Vec<SelectedMap>,
}

/// In a [`SelectedMap`]: the condition means this cgroup.
pub const PASSES: u32 = 1;
/// In a [`SelectedMap`]: the cgroup is new and the condition is not decided for it. It does not pass, and its events are
/// counted as [`Loss::CgroupUndecided`].
pub const UNDECIDED: u32 = 2;

/// The cgroups of a condition: a hash from id (u64) to [`PASSES`] or [`UNDECIDED`] (u32). What is not in it does not pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectedMap {
    /// The hash. Empty until the agent fills it, and then nothing passes.
    pub map: MapId,
    /// Which cgroups belong in it.
    pub selector: Selector,
}

/// States of steps. The kernel drops the one that was used least recently when there is no room, and does not say so: what came,
/// was not deleted and is not there was dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateMap {
    /// A hash, least recently used go first.
    pub map: MapId,
    /// Array of one element per CPU: states that came and states that were deleted, two u64.
    pub counts: MapId,
}

/// Words that the agent writes and programs read: an array map with one element per CPU. A start that is passed over leaves 1 as
/// its time, so that its end finds it; of system calls those that are taken leave a mark of their thread elsewhere. The time since when spans are measured
/// is at least 1 before the mask is first set, and the time of the return of a probe that was suspended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlMap {
    pub map: MapId,
}

impl ControlMap {
    /// Bytes of an element: a line of the cache, since the CPU writes it.
    pub const BYTES: u32 = 64;
    /// Byte of the word that is 2^n - 1 where one of 2^n events is sampled.
    pub const MASK: usize = 0;
    /// Byte of the time (`CLOCK_MONOTONIC` ns) before which no span may have begun.
    pub const SINCE: usize = 8;
    /// Byte of the number of events to pass over before the next is taken. The CPU counts it down.
    pub const LEFT: usize = 16;
    /// Byte of the number of events, beside itself, that an event that is taken stands for.
    pub const OTHERS: usize = 24;
    /// Byte of the word that is not 0 while starts are seen for a share of the time: ends without one are no loss then.
    pub const SLICED: usize = 32;
}

/// Where records of single events come out. A record is `nsecs` (u64, `CLOCK_MONOTONIC`), tgid (u32), tid (u32), then the
/// fields at their offsets.
#[derive(Clone, Debug, PartialEq)]
pub struct EventMap {
    /// Ring buffer, or perf buffers.
    pub map: MapId,
    /// Per-CPU count of the current second, for the rate limit.
    pub limit: MapId,
    /// Bytes of a record.
    pub bytes: u32,
    /// Bytes of the ring buffer, or of each CPU's perf buffer: a power of two.
    pub buffer_bytes: u32,
    /// The fields; [`KeyField::names`] has one name.
    pub fields: Vec<KeyField>,
    /// Fields of a record that is a span of OpenTelemetry as well.
    pub otlp_span: Vec<(SpanField, KeyField)>,
}

/// Call stacks by id. Who keeps ids elsewhere than in keys of tables and in [`SpanMap`] must resolve them soon: the agent
/// deletes stacks that neither refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackMap {
    /// Stack trace map.
    pub map: MapId,
    /// Another of the same size for stacks whose place in the first is taken. The kernel finds the place by a hash and tries no
    /// other: two maps of half the size lose far fewer stacks than one. Ids of it have [`SECOND_STACK_MAP`] set.
    pub second: MapId,
    /// Hash of user stacks that were walked by tables ([`unwind`](crate::unwind)), where the target can do that: a value is a hash of
    /// the frames (u64), their number (u64) and the frames. Ids of it have [`UNWOUND`] set.
    pub unwound: Option<MapId>,
    /// Most frames.
    pub depth: u32,
}

impl StackMap {
    pub const MARKS: u32 = SECOND_STACK_MAP | UNWOUND;

    /// Its maps, each with the bits that ids of it have set beside its own key.
    pub fn maps(&self) -> impl Iterator<Item = (MapId, u32)> {
        let by_kernel = [(self.map, 0), (self.second, SECOND_STACK_MAP)];
        by_kernel.into_iter().chain(self.unwound.map(|map| (map, UNWOUND)))
    }
}

/// A kernel map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapDef {
    /// C identifier, at most 15 bytes.
    pub name: String,
    pub kind: MapKind,
    /// Bytes of a key (0 for a stack).
    pub key_bytes: u32,
    pub value_bytes: u32,
    /// Elements.
    pub entries: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MapKind {
    /// `BPF_MAP_TYPE_ARRAY`, with `BPF_F_MMAPABLE` when `mmap`.
    Array {
        /// May be mapped into the agent's memory.
        mmap: bool,
    },
    /// `BPF_MAP_TYPE_HASH`, preallocated.
    Hash,
    /// `BPF_MAP_TYPE_STACK`.
    Stack,
    /// `BPF_MAP_TYPE_TASK_STORAGE` (`BPF_F_NO_PREALLOC`).
    TaskStorage,
    /// `BPF_MAP_TYPE_LRU_HASH`.
    LruHash,
    /// `BPF_MAP_TYPE_RINGBUF`; [`MapDef::entries`] is its bytes, a power of two and whole pages.
    RingBuf,
    /// `BPF_MAP_TYPE_PERF_EVENT_ARRAY`: one perf buffer per CPU.
    PerfEvents,
    /// `BPF_MAP_TYPE_STACK_TRACE`; a value is 8 bytes per frame.
    StackTrace,
}

/// `BPF_F_NO_PREALLOC`, which task storage demands.
const NO_PREALLOC: u32 = 1;
/// `BPF_F_MMAPABLE`
const MMAPABLE: u32 = 1 << 10;

impl MapKind {
    /// `enum bpf_map_type`
    pub fn number(self) -> u32 {
        match self {
            MapKind::Hash => 1,
            MapKind::Array { .. } => 2,
            MapKind::PerfEvents => 4,
            MapKind::StackTrace => 7,
            MapKind::LruHash => 9,
            MapKind::Stack => 23,
            MapKind::RingBuf => 27,
            MapKind::TaskStorage => 29,
        }
    }

    /// `BPF_F_*` that the map is created with.
    pub fn flags(self) -> u32 {
        match self {
            MapKind::Array { mmap: true } => MMAPABLE,
            MapKind::TaskStorage => NO_PREALLOC,
            _ => 0,
        }
    }
}

impl MapDef {
    /// Bytes of kernel memory it takes, near enough for a budget: the kernel's own overhead per hash element is 64 bytes.
    /// Task storage grows with tasks, not here.
    pub fn bytes(&self) -> u64 {
        let round = |n: u32| u64::from(n).next_multiple_of(8);
        let element = match self.kind {
            MapKind::Array { .. } | MapKind::Stack => round(self.value_bytes),
            MapKind::Hash | MapKind::LruHash | MapKind::StackTrace => {
                round(self.key_bytes) + round(self.value_bytes) + 64
            }
            MapKind::RingBuf => 1,
            // Its buffers belong to the perf events.
            MapKind::PerfEvents => 8,
            MapKind::TaskStorage => 0,
        };
        element * u64::from(self.entries)
    }
}

/// The storage of all metrics that share a set of labels.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Array map of records.
    pub values: MapId,
    /// Array map of a word for each record, in the same order, which grows after each event that the record takes: whether any
    /// of many records has changed is read from few pages. `None` where that would save nothing.
    pub changes: Option<MapId>,
    /// CPU `c` writes shard `c % shards`, or that of [`Layout::shard_of`]. With `shards < cpus`, or several writers, adds are atomic.
    pub shards: u32,
    /// Records per shard.
    pub slots: u32,
    /// The slot that takes what found no room, if any.
    pub overflow: Option<u32>,
    /// How a label set finds its slot.
    pub index: Index,
    /// The labels, in key order.
    pub key: Vec<KeyField>,
    /// The metrics.
    pub cells: Vec<Cell>,
}

/// The fields of a table's key that say which stacks a sum belongs to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StackKey<'a> {
    /// Id of the kernel's stack.
    pub kernel: Option<&'a KeyField>,
    /// Id of the process's stack.
    pub user: Option<&'a KeyField>,
    /// The process.
    pub pid: Option<&'a KeyField>,
}

impl StackKey<'_> {
    /// The ids of stacks in a key; negative ones are errors.
    pub fn ids(&self, key: &[u8]) -> impl Iterator<Item = i32> + use<> {
        let id = |field: &KeyField| {
            let bytes = key.get(field.offset as usize..)?.first_chunk()?;
            Some(i32::from_ne_bytes(*bytes))
        };
        [self.kernel.and_then(id), self.user.and_then(id)].into_iter().flatten()
    }
}

impl Table {
    /// The array maps with an element for each record.
    pub fn maps_of_records(&self) -> impl Iterator<Item = MapId> + use<> {
        [Some(self.values), self.changes].into_iter().flatten()
    }

    /// The stack of free slots and those that have to lie on it before any program runs, in the order in which they are pushed. `None`
    /// where programs need none of them.
    pub fn free_at_start(&self) -> Option<(MapId, impl Iterator<Item = u32> + use<>)> {
        match self.index {
            Index::Hash { free, fresh: None, .. } => Some((free, (1..self.slots).rev())),
            _ => None,
        }
    }

    /// Whether it has a [`CellKind::Extreme`], so that no CPUs may share a shard.
    pub fn has_extremes(&self) -> bool {
        self.cells.iter().any(|cell| matches!(cell.kind, CellKind::Extreme { .. }))
    }

    /// Where its key holds stacks, if it is a table of [`CellKind::Stacks`].
    pub fn stack_key(&self) -> Option<StackKey<'_>> {
        let cell = self.cells.first()?;
        let CellKind::Stacks(spec) = cell.kind else { return None };
        let mut fields = self.key.iter().skip(cell.labels.len());
        let mut next = |taken: bool| if taken { fields.next() } else { None };
        Some(StackKey { kernel: next(spec.kernel), user: next(spec.user), pid: next(spec.user) })
    }
}

/// How a label set finds its slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Index {
    /// No labels: slot 0.
    Single,
    /// `slot = ((k0 * d1) + k1) * d2 + k2 ...`; the domains in key order. Their product is the overflow slot.
    Dense(Vec<u32>),
    /// `map[key] = slot` (u32); slot 0 is the overflow slot. New keys take slots that no key has had yet, by `fresh`, and when
    /// there are none, from the stack map `free`, to which the agent gives those of evicted keys.
    Hash {
        /// Key to slot.
        map: MapId,
        /// Free slots.
        free: MapId,
        key_bytes: u32,
        /// `None` where programs cannot count them: the agent puts [`Table::free_at_start`] on `free`.
        fresh: Option<FreshSlots>,
    },
}

/// Which slots of a hashed table no key has had yet: two u64 in an array map of one element for each such table.
///
/// Word 0, *taken*: slot `taken + 1` is the next while that is less than [`Table::slots`]; it may count further. Word 1, *added*:
/// keys put into the index so far. While it stays, no key came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreshSlots {
    pub map: MapId,
    /// Index of the element.
    pub element: u32,
}

impl FreshSlots {
    /// Bytes of an element.
    pub const BYTES: u32 = 16;
}

/// One label in a key.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyField {
    /// Label names: one per metric of the table that shares this field (usually all the same), in the order of
    /// [`Table::cells`].
    pub names: Vec<String>,
    /// Type of the stored value; little-endian, zero- or sign-extended as the type says.
    pub ty: Ty,
    /// Bytes from the key's start (hash keys only). Labels that show one value in several ways lie at one offset.
    pub offset: u32,
    /// How to print it.
    pub decoder: Decoder,
}

/// One metric's part of a record.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// Index into [`crate::typed::Probe::metrics`] and [`crate::program::Program::metrics`].
    pub metric: u32,
    /// Bytes from the record's start, a multiple of 8.
    pub offset: u32,
    /// What lies there.
    pub kind: CellKind,
    /// For each label of the metric, in the user's order, the index of its key field.
    pub labels: Vec<u32>,
}

/// What a cell holds.
#[derive(Clone, Debug, PartialEq)]
pub enum CellKind {
    /// One u64, summed over shards.
    Counter,
    /// A u64 value, then a u64 that is 1 once it was set. Tables with gauges have one shard.
    Gauge {
        /// Two's complement.
        signed: bool,
    },
    /// Values are added: a u64 sum, then a u64 that is 1 once something was added; sums are added over shards. Over the objects of an
    /// iterator the agent zeroes the table before each run.
    Sum {
        /// Two's complement.
        signed: bool,
    },
    /// The smallest or the largest value, then a u64 that is 1 once there is one. Each CPU has a shard, and the value of all is the
    /// smallest or the largest of theirs.
    Extreme {
        /// Two's complement.
        signed: bool,
        end: Extreme,
    },
    /// A u64 sum in raw units, then one u64 per bucket of the scheme; all summed over shards.
    Histogram(Arc<Scheme>),
    /// One u64, summed over shards, by stacks: the last key fields of the table are the id of the kernel's stack (s32)
    /// and of the process's (s32) as far as they are taken, and with the latter the tgid (u32).
    Stacks(StackSpec),
}

/// Which end of the values a [`CellKind::Extreme`] keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extreme {
    Min,
    Max,
}

impl Extreme {
    pub fn aggregate(self) -> Aggregate {
        match self {
            Extreme::Min => Aggregate::Min,
            Extreme::Max => Aggregate::Max,
        }
    }
}

impl CellKind {
    /// Bytes it takes.
    pub fn bytes(&self) -> u32 {
        match self {
            CellKind::Counter | CellKind::Stacks(_) => 8,
            CellKind::Gauge { .. } | CellKind::Sum { .. } | CellKind::Extreme { .. } => 16,
            CellKind::Histogram(s) => 8 + 8 * s.buckets() as u32,
        }
    }
}

/// The hash of open spans, which the agent sweeps of starts that never ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanMap {
    /// Hash map; the first 8 bytes of a value are the start time (`CLOCK_MONOTONIC` ns), 0 when no span is open.
    pub map: MapId,
    /// Where in a value ids of [`Layout::stacks`] lie (s32, negative when there is none).
    pub stack_ids: Vec<u32>,
}

/// Loss counters: an array map of `cpus * reasons.len()` u64 values in one element per CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LossMap {
    /// Array map with one element per CPU; element = one u64 per reason, in the order of [`LossMap::reasons`].
    pub map: MapId,
    /// Names, as in the label `reason`.
    pub reasons: Vec<Loss>,
}

/// Why an event was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Loss {
    /// A new label set found no room: counted in the `other` series, so it is not lost but merged.
    SeriesOverflow,
    /// An end came without a start.
    NoStart,
    /// The hash of open spans was full.
    SpansFull,
    /// Task storage could not be had.
    NoStorage,
    /// A start's key was outside the range that it states.
    OutOfRange,
    /// A state went to make room for another key.
    StateEvicted,
    /// A record came after as many as one second may have.
    EventsLimited,
    /// The buffer of records was full.
    EventsFull,
    /// Two stacks have one id, or the stack map was full.
    StackCollision,
    /// A condition on names was not yet decided for its cgroup.
    CgroupUndecided,
}

impl Loss {
    /// Label text.
    pub fn name(self) -> &'static str {
        match self {
            Loss::SeriesOverflow => "series_overflow",
            Loss::NoStart => "no_start",
            Loss::SpansFull => "spans_full",
            Loss::NoStorage => "no_storage",
            Loss::OutOfRange => "out_of_range",
            Loss::StateEvicted => "state_evicted",
            Loss::EventsLimited => "events_limited",
            Loss::EventsFull => "events_full",
            Loss::StackCollision => "stack_collision",
            Loss::CgroupUndecided => "cgroup_undecided",
        }
    }
}

impl Layout {
    /// The map's definition.
    pub fn map(&self, id: MapId) -> &MapDef {
        &self.maps[id.0 as usize]
    }
    /// Bytes of all maps, and of the buffers of perf events.
    pub fn bytes(&self) -> u64 {
        let perf = |e: &&EventMap| self.map(e.map).kind == MapKind::PerfEvents;
        let buffers = self.events.iter().find(perf).map_or(0, |e| u64::from(e.buffer_bytes) * u64::from(self.cpus));
        buffers + self.maps.iter().map(MapDef::bytes).sum::<u64>()
    }
}
