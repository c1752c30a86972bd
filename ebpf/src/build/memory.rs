//! Decides where everything lives: which metrics share a table, how label sets find their slot, how many shards a table
//! can afford, and which maps there are.

use std::sync::Arc;

use super::{cgroups, control, open_tasks, shards, slow, stacks};
use crate::buckets::{BucketError, Scheme};
use crate::diag::{Diagnostic, Place};
use crate::kernel_target::Target;
use crate::layout::{
    Cell, CellKind, Extreme, FreshSlots, Index, KeyField, Layout, Loss, LossMap, MAX_DENSE_SLOTS, MapDef, MapId,
    MapKind, SpanMap, StackMap, StateMap, Table,
};
use crate::program::{Aggregate, StackSpec};
use crate::typed::{Expr, Kind, Measure, Metric, MetricKind, Probe, Shape, SpanKey, StepSite, Ty};

/// The memory of a probe.
pub(super) struct Memory {
    pub layout: Layout,
    /// For each table, the indices of its metrics; one measurement site writes them together.
    pub groups: Vec<Vec<usize>>,
    /// For each table, whether adds must be atomic.
    pub atomic: Vec<bool>,
    pub open: Option<Open>,
    /// Marks of open system calls.
    pub calls: Option<MapId>,
    pub state: Option<StateMemory>,
    /// Byte offsets of a state's fields, and last of the mark that there is one.
    pub state_offsets: Vec<u32>,
}

/// Storage of what steps keep.
pub(super) struct StateMemory {
    pub map: MapId,
    /// Per CPU: states that came, states that were deleted.
    pub counts: MapId,
    pub bytes: u32,
    /// Where the mark lies that there is a state.
    pub present: u32,
}

/// Storage of open spans.
pub(super) struct Open {
    pub map: MapId,
    /// Byte offsets of saved values in the state.
    pub saved: Vec<u32>,
    /// Byte offset of the span's weight, where spans are sampled.
    pub weight_at: Option<i32>,
    pub bytes: u32,
    /// See [`open_tasks`], where context switches are watched.
    pub tasks: Option<MapId>,
}

/// Byte offsets in a span's state.
pub(super) const START: i32 = 0;
/// Nanoseconds switched out so far.
pub(super) const OFF_TOTAL: i32 = 8;
/// When it was switched out; 0 while on a CPU.
pub(super) const OFF_SINCE: i32 = 16;

/// Bytes of a line of the cache. A record of no more is as quick to read as a word that says whether it has changed.
const CACHE_LINE: u32 = 64;
/// Fewest slots of a table whose changes are counted: those of fewer would put words of several CPUs into one line of the cache.
const MIN_WATCHED_SLOTS: u32 = 64;
/// Most tables whose changes are counted: a program has at most 64 maps (`MAX_USED_MAPS`).
const MAX_WATCHED_TABLES: usize = 8;

pub(super) fn plan(probe: &Probe, target: &Target) -> Result<Memory, Vec<Diagnostic>> {
    let sites = measurement_sites(probe);
    let groups = group(probe, &sites);
    let mut layout = Layout { cpus: target.cpus.max(1), ..Layout::default() };
    let open = open_spans(probe, &mut layout, target.abilities.mmapable.yes());
    let (state, state_offsets) = states(probe, &mut layout);
    layout.stacks = stacks::maps(probe, target).map(|stacks::Maps { by_kernel, unwound, depth }| {
        let first = layout.maps.len() as u32;
        let third = unwound.is_some().then_some(MapId(first + 2));
        layout.maps.extend(by_kernel.into_iter().chain(unwound));
        StackMap { map: MapId(first), second: MapId(first + 1), unwound: third, depth }
    });
    let mut atomic = Vec::new();
    let mut errors = Vec::new();
    for metrics in &groups {
        match table(probe, metrics, &sites, target, &mut layout) {
            Ok(table) => layout.tables.push(table),
            Err(e) => errors.push(e),
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    layout.events = slow::plan(probe, target, &mut layout);
    cgroups::plan(probe, &mut layout);
    losses(probe, &mut layout);
    let calls = if is_sampled(probe) { control::plan(probe, &mut layout) } else { None };
    let place = probe.metrics.first().map(|m| m.place).unwrap_or_default();
    fit(&mut layout, probe.limits.map_bytes, place).map_err(|e| vec![e])?;
    let cpus = layout.cpus;
    for shards in layout.tables.iter().map(|table| table.shards) {
        if (2..cpus).contains(&shards) && !target.caches.is_empty() {
            let shard_of = layout.shard_of.entry(shards);
            shard_of.or_insert_with(|| shards::assign(&target.caches, cpus, shards));
        }
    }
    for table in &layout.tables {
        // The agent reads one iterator after the other.
        let alone = of_objects(&probe.shape);
        atomic.push(!alone && (table.shards < layout.cpus || sites.len() > 1));
    }
    let mmap = target.abilities.mmapable.yes();
    for table in &layout.tables {
        for map in table.maps_of_records() {
            layout.maps[map.0 as usize].kind = MapKind::Array { mmap };
        }
        if let Index::Hash { fresh: Some(fresh), .. } = table.index {
            layout.maps[fresh.map.0 as usize].kind = MapKind::Array { mmap };
        }
    }
    Ok(Memory { layout, groups, atomic, open, calls, state, state_offsets })
}

/// By site, what it measures of each metric.
pub(super) fn measurement_sites(probe: &Probe) -> Vec<Vec<Option<&Measure>>> {
    fn all(measures: &[Option<Measure>]) -> Vec<Option<&Measure>> {
        measures.iter().map(Option::as_ref).collect()
    }
    let observed = |s: &'_ StepSite, metric: usize| s.observe.iter().position(|(n, _)| *n as usize == metric);
    match &probe.shape {
        Shape::At(sites) => sites.iter().map(|s| all(&s.measures)).collect(),
        Shape::Span { end, .. } => end.iter().map(|s| all(&s.measures)).collect(),
        Shape::Poll { measures, .. } => vec![all(measures)],
        Shape::Steps { sites, .. } => {
            let metrics = 0..probe.metrics.len();
            sites.iter().map(|s| metrics.clone().map(|m| Some(&s.observe[observed(s, m)?].1)).collect()).collect()
        }
    }
}

/// Metrics that can share one lookup: same labels and same condition at every site, same limits.
fn group(probe: &Probe, sites: &[Vec<Option<&Measure>>]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let measured = |(i, _): &(usize, _)| sites.iter().any(|site| site[*i].is_some());
    for (i, metric) in probe.metrics.iter().enumerate().filter(measured) {
        let fits = |other: &usize| {
            let first = &probe.metrics[*other];
            first.max_series == metric.max_series
                && sharing(first, &probe.shape) == sharing(metric, &probe.shape)
                && stacks::spec(first) == stacks::spec(metric)
                && first.labels.len() == metric.labels.len()
                && first
                    .labels
                    .iter()
                    .zip(&metric.labels)
                    .all(|(a, b)| a.ty == b.ty && a.decoder == b.decoder && a.domain == b.domain)
                && sites.iter().all(|s| match (s[*other], s[i]) {
                    (Some(a), Some(b)) => a.labels == b.labels && a.filter == b.filter,
                    (a, b) => a.is_none() && b.is_none(),
                })
        };
        match groups.iter_mut().find(|g| fits(&g[0])) {
            Some(g) => g.push(i),
            None => groups.push(vec![i]),
        }
    }
    groups
}

/// Whether the programs run once per object, when the agent reads an iterator.
fn of_objects(shape: &Shape) -> bool {
    matches!(shape, Shape::At(sites) if sites.iter().any(|s| s.attach.is_iterator()))
}

/// How CPUs share what is kept of a metric.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sharing {
    /// Added up: as many shards as there is memory for.
    Sums,
    /// A last value is one for all CPUs.
    One,
    /// A shard for each CPU, whatever it takes: without a loop two CPUs cannot compare and store in one step.
    EachCpu,
}

fn sharing(metric: &Metric, shape: &Shape) -> Sharing {
    let MetricKind::Gauge { keep, .. } = metric.kind else { return Sharing::Sums };
    match aggregate(keep, shape) {
        // The agent alone runs an iterator.
        _ if of_objects(shape) => Sharing::One,
        Aggregate::Last => Sharing::One,
        Aggregate::Min | Aggregate::Max => Sharing::EachCpu,
        Aggregate::Sum => Sharing::Sums,
    }
}

fn aggregate(keep: Option<Aggregate>, shape: &Shape) -> Aggregate {
    keep.unwrap_or(if of_objects(shape) { Aggregate::Sum } else { Aggregate::Last })
}

fn gauge(signed: bool, keep: Aggregate) -> CellKind {
    match keep {
        Aggregate::Last => CellKind::Gauge { signed },
        Aggregate::Min => CellKind::Extreme { signed, end: Extreme::Min },
        Aggregate::Max => CellKind::Extreme { signed, end: Extreme::Max },
        Aggregate::Sum => CellKind::Sum { signed },
    }
}

pub(super) fn add_map(layout: &mut Layout, name: String, kind: MapKind, key: u32, value: u32, entries: u32) -> MapId {
    layout.maps.push(MapDef { name, kind, key_bytes: key, value_bytes: value, entries });
    MapId(layout.maps.len() as u32 - 1)
}

fn table(
    probe: &Probe,
    metrics: &[usize],
    sites: &[Vec<Option<&Measure>>],
    target: &Target,
    layout: &mut Layout,
) -> Result<Table, Diagnostic> {
    let first = &probe.metrics[metrics[0]];
    let mut cells = Vec::new();
    let mut offset = 0;
    for &m in metrics {
        let kind = match &probe.metrics[m].kind {
            MetricKind::Counter => CellKind::Counter,
            MetricKind::Stacks(spec) => CellKind::Stacks(*spec),
            MetricKind::Gauge { signed, keep } => gauge(*signed, aggregate(*keep, &probe.shape)),
            MetricKind::Histogram(spec) => {
                CellKind::Histogram(Arc::new(Scheme::new(spec).map_err(|e| bad_buckets(probe.metrics[m].place, e))?))
            }
        };
        // The stacks in the key are no labels of the user's.
        let shown = first.labels.len() - stacks::spec(first).map_or(0, StackSpec::key_fields);
        let labels = (0..shown as u32).collect();
        let bytes = kind.bytes();
        cells.push(Cell { metric: m as u32, offset, kind, labels });
        offset += bytes;
    }
    let mut key: Vec<KeyField> = Vec::new();
    let mut key_bytes = 0u32;
    for (i, label) in first.labels.iter().enumerate() {
        let size = label.ty.bytes();
        let align = if label.ty.is_scalar() { size } else { 8 };
        let shared = (0..i).find(|&before| is_same(first, sites, metrics[0], before, i));
        let offset = shared.map_or(key_bytes.next_multiple_of(align), |before| key[before].offset);
        key.push(KeyField {
            names: metrics.iter().map(|&m| probe.metrics[m].labels[i].name.clone()).collect(),
            ty: label.ty,
            offset,
            decoder: label.decoder.clone(),
        });
        key_bytes = key_bytes.max(offset + size);
    }
    let n = layout.tables.len();
    let dense: Option<Vec<u32>> = first.labels.iter().map(|l| l.domain).collect();
    // A dense table has all its label sets at once, so it must not have more than the user allows.
    let most = MAX_DENSE_SLOTS.min(u64::from(first.max_series));
    let dense = dense.filter(|d| d.iter().fold(1u64, |all, n| all.saturating_mul(u64::from(*n))) <= most);
    let (index, slots, overflow) = match dense {
        Some(domains) if domains.is_empty() => (Index::Single, 1, None),
        Some(domains) => {
            let product = domains.iter().product::<u32>();
            (Index::Dense(domains), product + 1, Some(product))
        }
        None => {
            let slots = first.max_series.saturating_add(1);
            // Whole words, so that a key's padding is written like the rest of it.
            let key_bytes = key_bytes.next_multiple_of(8);
            let map = add_map(layout, format!("ks_index{n}"), MapKind::Hash, key_bytes, 4, slots);
            let free = add_map(layout, format!("ks_free{n}"), MapKind::Stack, 0, 4, slots);
            let fresh = target.abilities.atomic_fetch.yes().then(|| fresh_slots(layout));
            (Index::Hash { map, free, key_bytes, fresh }, slots, Some(0))
        }
    };
    let mut shards = if sharing(first, &probe.shape) == Sharing::One { 1 } else { layout.cpus };
    while shards > 1 && shards.checked_mul(slots).is_none() {
        shards = fewer(shards);
    }
    let array = MapKind::Array { mmap: false };
    let values = add_map(layout, format!("ks_values{n}"), array, 4, offset, shards * slots);
    // Sums by stack are taken out of the table; those of a poll and of objects are read once.
    let is_read_again = !cells.iter().any(|cell| matches!(cell.kind, CellKind::Stacks(_)))
        && !matches!(probe.shape, Shape::Poll { .. })
        && !of_objects(&probe.shape);
    let is_large = slots >= MIN_WATCHED_SLOTS && offset > CACHE_LINE && n < MAX_WATCHED_TABLES;
    let changes =
        (is_read_again && is_large).then(|| add_map(layout, format!("ks_changes{n}"), array, 4, 8, shards * slots));
    Ok(Table { values, changes, shards, slots, overflow, index, key, cells })
}

/// One more element in the map that all hashed tables share.
fn fresh_slots(layout: &mut Layout) -> FreshSlots {
    let of_table = |table: &Table| match table.index {
        Index::Hash { fresh, .. } => fresh,
        Index::Single | Index::Dense(_) => None,
    };
    let element = layout.tables.iter().filter_map(of_table).count() as u32;
    let map = match layout.tables.iter().find_map(of_table) {
        Some(first) => first.map,
        None => add_map(layout, "ks_fresh".into(), MapKind::Array { mmap: false }, 4, FreshSlots::BYTES, 1),
    };
    layout.maps[map.0 as usize].entries = element + 1;
    FreshSlots { map, element }
}

/// Whether two labels are one value wherever it is measured, so that it need not be kept twice. Small ranges are left to
/// arithmetic.
fn is_same(metric: &Metric, sites: &[Vec<Option<&Measure>>], n: usize, a: usize, b: usize) -> bool {
    let (first, second) = (&metric.labels[a], &metric.labels[b]);
    let alike = first.ty == second.ty && first.domain.is_none() && second.domain.is_none();
    alike && sites.iter().filter_map(|site| site[n]).all(|measure| measure.labels[a] == measure.labels[b])
}

fn open_spans(probe: &Probe, layout: &mut Layout, mmap: bool) -> Option<Open> {
    let Shape::Span { key, save, max_open, off_cpu, .. } = &probe.shape else { return None };
    let mut bytes = if *off_cpu { 24 } else { 8 };
    let weight_at = is_sampled(probe).then_some(bytes as i32);
    if weight_at.is_some() {
        bytes += 8;
    }
    let mut saved = Vec::new();
    for (_, ty) in save {
        let align = if ty.is_scalar() { ty.bytes() } else { 8 };
        bytes = u32::next_multiple_of(bytes, align);
        saved.push(bytes);
        bytes += ty.bytes();
    }
    let bytes = bytes.next_multiple_of(8);
    let name = "ks_open".to_string();
    let map = match key {
        SpanKey::Task => add_map(layout, name, MapKind::TaskStorage, 4, bytes, 0),
        SpanKey::Dense(domains) => {
            let map = add_map(layout, name, MapKind::Array { mmap: false }, 4, bytes, domains.iter().product());
            layout.open = Some(map);
            map
        }
        SpanKey::Hash(types) => {
            let map = add_map(layout, name, MapKind::Hash, key_layout(types).1, bytes, *max_open);
            layout.spans = Some(SpanMap { map, stack_ids: stacks::saved(probe, &saved) });
            map
        }
    };
    let is_counted = *off_cpu && *key == SpanKey::Task;
    let tasks = is_counted.then(|| open_tasks::plan(layout, mmap));
    Some(Open { map, saved, weight_at, bytes, tasks })
}

fn states(probe: &Probe, layout: &mut Layout) -> (Option<StateMemory>, Vec<u32>) {
    let Shape::Steps { key, fields, max_entries, .. } = &probe.shape else { return (None, Vec::new()) };
    let (mut offsets, mut present) = (Vec::new(), 0);
    for (_, ty) in fields {
        let align = if ty.is_scalar() { ty.bytes() } else { 8 };
        let at = u32::next_multiple_of(present, align);
        offsets.push(at);
        present = at + if ty.is_scalar() { ty.bytes() } else { ty.bytes().next_multiple_of(8) };
    }
    offsets.push(present);
    let bytes = (present + 1).next_multiple_of(8);
    let map = add_map(layout, "ks_state".into(), MapKind::LruHash, key_layout(key).1, bytes, *max_entries);
    let cpus = layout.cpus;
    let counts = add_map(layout, "ks_state_counts".into(), MapKind::Array { mmap: false }, 4, 16, cpus);
    layout.state = Some(StateMap { map, counts });
    (Some(StateMemory { map, counts, bytes, present }), offsets)
}

/// Offsets of the fields of a hash key and its size, a multiple of 8.
pub(super) fn key_layout(types: &[Ty]) -> (Vec<u32>, u32) {
    let mut offsets = Vec::new();
    let mut at = 0u32;
    for ty in types {
        at = at.next_multiple_of(if ty.is_scalar() { ty.bytes() } else { 8 });
        offsets.push(at);
        at += ty.bytes();
    }
    (offsets, at.next_multiple_of(8))
}

/// Types of a key's expressions.
pub(super) fn types(exprs: &[Expr]) -> Vec<Ty> {
    exprs.iter().map(|e| e.ty).collect()
}

fn losses(probe: &Probe, layout: &mut Layout) {
    let mut reasons = Vec::new();
    if layout.tables.iter().any(|t| t.overflow.is_some()) {
        reasons.push(Loss::SeriesOverflow);
    }
    if layout.stacks.is_some() {
        reasons.push(Loss::StackCollision);
    }
    if layout.events.is_some() {
        reasons.extend([Loss::EventsLimited, Loss::EventsFull]);
    }
    if let Shape::Span { key, filtered, start, .. } = &probe.shape {
        if !filtered {
            reasons.push(Loss::NoStart);
        }
        match key {
            SpanKey::Task => reasons.push(Loss::NoStorage),
            SpanKey::Hash(_) => reasons.push(Loss::SpansFull),
            SpanKey::Dense(_) if start.iter().flat_map(|s| &s.by).any(may_be_outside) => reasons.push(Loss::OutOfRange),
            SpanKey::Dense(_) => {}
        }
    }
    if layout.state.is_some() {
        reasons.push(Loss::StateEvicted);
    }
    if !layout.selected.is_empty() {
        reasons.push(Loss::CgroupUndecided);
    }
    if !reasons.is_empty() {
        let cpus = layout.cpus;
        let map = add_map(layout, "ks_lost".into(), MapKind::Array { mmap: false }, 4, 8 * reasons.len() as u32, cpus);
        layout.losses = Some(LossMap { map, reasons });
    }
}

/// Whether a part of a dense key only claims its range.
fn may_be_outside(part: &Expr) -> bool {
    part.kind != Kind::Cpu && part.ty != Ty::Bool
}

/// Spans in a hash are not sampled: finding them is most of what they cost. Nor are sums that go down: what was added for one event
/// would be taken away for another.
fn is_sampled(probe: &Probe) -> bool {
    let fits = match &probe.shape {
        shape @ Shape::At(_) => !of_objects(shape),
        Shape::Span { key, .. } => !matches!(key, SpanKey::Hash(_)),
        Shape::Steps { .. } | Shape::Poll { .. } => false,
    };
    let goes_down = |m: &Metric| matches!(m.kind, MetricKind::Gauge { keep: Some(Aggregate::Sum), .. });
    probe.limits.sampled && fits && !probe.metrics.iter().any(goes_down)
}

/// Powers of two, so that the shard of a CPU is a mask.
fn fewer(shards: u32) -> u32 {
    if shards.is_power_of_two() { shards / 2 } else { 1 << shards.ilog2() }
}

/// Halves the shards of the largest table until all maps together keep the budget: several CPUs then share a shard and
/// add atomically, which costs time, not truth.
fn fit(layout: &mut Layout, budget: u64, place: Place) -> Result<(), Diagnostic> {
    while layout.bytes() > budget {
        let widest = (0..layout.tables.len())
            .filter(|i| layout.tables[*i].shards > 1 && !layout.tables[*i].has_extremes())
            .max_by_key(|i| layout.map(layout.tables[*i].values).bytes());
        let Some(i) = widest else {
            let mib = |b: u64| format!("{:.1} MiB", b as f64 / f64::from(1 << 20));
            let largest = layout.tables.iter().max_by_key(|t| layout.map(t.values).bytes());
            let detail = largest.map_or(String::new(), |t| {
                let record = layout.map(t.values).value_bytes;
                format!(" ({record} bytes a series x {} series)", t.slots)
            });
            return Err(Diagnostic::limit(
                place,
                format!(
                    "this probe needs {} of kernel maps{detail}, more than its {}",
                    mib(layout.bytes()),
                    mib(budget)
                ),
            )
            .hint(match layout.stacks {
                Some(_) => "lower `max_series` or the `depth` of stacks, or raise `max_map_bytes`",
                None => "lower `max_series` or the buckets' `schema`, or raise `max_map_bytes`",
            }));
        };
        let table = &mut layout.tables[i];
        table.shards = fewer(table.shards);
        let entries = table.shards * table.slots;
        for map in table.maps_of_records() {
            layout.maps[map.0 as usize].entries = entries;
        }
    }
    Ok(())
}

fn bad_buckets(place: Place, e: BucketError) -> Diagnostic {
    Diagnostic { hint: Some(e.hint), ..Diagnostic::user(place, e.message) }
}
