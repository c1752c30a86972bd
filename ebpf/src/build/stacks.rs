//! The maps of call stacks: whether a probe needs them, how deep, how large.

use crate::kernel_target::{Arch, Btf, Target, btf};
use crate::layout::{MapDef, MapKind, STACKS_MAPS, UNWOUND_MAP};
use crate::program::{StackSpec, Unwind};
use crate::typed::{Expr, Kind, Metric, MetricKind, Probe, Shape};
use crate::unwind;

/// What the kernel keeps at most unless `kernel.perf_event_max_stack` was raised.
const MAX_DEPTH: u32 = 127;
/// Context for stacks that no key refers to for long: of open spans, and of records of single events.
const OF_RECORDS: u32 = 256;
/// Most stacks that are kept of those walked by tables: the agent empties the map the sooner the faster it fills.
const MAX_UNWOUND: u32 = 4096;

/// The stacks a metric takes.
pub(super) fn spec(metric: &Metric) -> Option<&StackSpec> {
    match &metric.kind {
        MetricKind::Stacks(spec) => Some(spec),
        _ => None,
    }
}

/// A function that Linux has since 6.4.
const SINCE: &str = "bpf_iter_num_new";

/// The maps of a probe that takes stacks.
pub(super) struct Maps {
    /// Filled by the kernel's own walk.
    pub by_kernel: [MapDef; 2],
    /// Filled by walks by tables.
    pub unwound: Option<MapDef>,
    pub depth: u32,
}

/// The maps of a probe that takes stacks, if it does.
///
/// The kernel makes `entries` elements, but the next power of two of buckets, and a bucket holds one stack: one element
/// more than a power of two halves the collisions for the price of pointers.
pub(super) fn maps(probe: &Probe, target: &Target) -> Option<Maps> {
    let specs = || probe.metrics.iter().filter_map(|m| Some((m, spec(m)?)));
    let others = || records(probe).chain(kept(probe));
    if specs().next().is_none() && !others().any(is_stack) {
        return None;
    }
    let in_records = records(probe).any(is_stack);
    let of_user = specs().filter(|(_, s)| s.user && s.unwind == Unwind::Tables).map(|(m, _)| m.max_series);
    let of_user = of_user.fold(0, u32::saturating_add);
    let walks = (of_user > 0 || others().any(|e| matches!(e.kind, Kind::UserStack))) && can_unwind(target);
    // The kernel walks few user stacks where tables do.
    let halves = |s: &StackSpec| if walks { 1 } else { u32::from(s.kernel) + u32::from(s.user) };
    let of_metric = |(m, s): (&Metric, &StackSpec)| m.max_series.saturating_mul(halves(s));
    let wanted = specs().map(of_metric).fold(0, u32::saturating_add).max(OF_RECORDS);
    let depth = specs().map(|(_, s)| s.depth).max().filter(|_| !in_records).unwrap_or(MAX_DEPTH);
    // Larger maps break every budget long before this bound, and ids stay below the marks of the other maps.
    let entries = wanted.clamp(2, 1 << 24).next_power_of_two() / 2 + 1;
    let map = |name: &str| MapDef {
        name: name.into(),
        kind: MapKind::StackTrace,
        key_bytes: 4,
        value_bytes: 8 * depth,
        entries,
    };
    let unwound = walks.then(|| MapDef {
        name: UNWOUND_MAP.into(),
        kind: MapKind::Hash,
        key_bytes: 4,
        value_bytes: unwind::STACK_HEADER_BYTES + 8 * depth,
        entries: of_user.clamp(OF_RECORDS, MAX_UNWOUND),
    });
    Some(Maps { by_kernel: STACKS_MAPS.map(map), unwound, depth })
}

/// From Linux 6.4 on: `bpf_loop` is there since 5.17, but on Debian's 6.1 programs beside one that walks counted nothing. Frame pointers are
/// enough on arm64, whose compilers leave them in.
fn can_unwind(target: &Target) -> bool {
    let has_all = |types: &Btf| unwind::Facts::of(types).is_some() && types.find(SINCE, btf::Kind::Func).is_some();
    target.arch == Arch::X86_64 && target.btf.as_ref().is_some_and(has_all)
}

/// Where in the state of an open span ids of stacks lie; `offsets` are those of its saved values.
pub(super) fn saved(probe: &Probe, offsets: &[u32]) -> Vec<u32> {
    let Shape::Span { start, .. } = &probe.shape else { return Vec::new() };
    let stacks = offsets.iter().enumerate().filter(|(i, _)| start.iter().any(|s| s.save.get(*i).is_some_and(is_stack)));
    stacks.map(|(_, offset)| *offset).collect()
}

/// What goes into records of single events.
fn records(probe: &Probe) -> impl Iterator<Item = &Expr> {
    let slow: Vec<_> = match &probe.shape {
        Shape::At(sites) => sites.iter().filter_map(|s| s.slow.as_ref()).collect(),
        Shape::Span { end, .. } => end.iter().filter_map(|s| s.slow.as_ref()).collect(),
        Shape::Steps { sites, .. } => sites.iter().filter_map(|s| s.slow.as_ref()).collect(),
        Shape::Poll { .. } => Vec::new(),
    };
    slow.into_iter().flat_map(|s| &s.fields)
}

/// What is kept from one event to another.
fn kept(probe: &Probe) -> impl Iterator<Item = &Expr> {
    let kept: Vec<&Expr> = match &probe.shape {
        Shape::Span { start, .. } => start.iter().flat_map(|s| &s.save).collect(),
        Shape::Steps { sites, .. } => sites.iter().flat_map(|s| s.set.iter().map(|(_, e)| e)).collect(),
        Shape::At(_) | Shape::Poll { .. } => Vec::new(),
    };
    kept.into_iter()
}

fn is_stack(e: &Expr) -> bool {
    matches!(e.kind, Kind::KernelStack | Kind::UserStack)
}
