//! What a command in a terminal changes of a probe before it is planned and compiled: conditions of its flags, finer rows of
//! histograms, how many events it may send. It changes the checked model, never the text in YAML.

mod filters;
pub mod scale;

pub use filters::{Cgroup, FILTERS, Filters, Unfit};

use std::time::Duration;

use kstrobe_config::model::{BucketSpec, MetricKind, Probe, Shape};
use kstrobe_ebpf::buckets::Scheme;
use scale::Scale;

/// Events a second on each CPU, where a file allows fewer: a person asked for these very events.
const MAX_EVENTS_PER_SECOND: u32 = 50_000;

/// Values at or below share a bucket: calls of some hundred nanoseconds have rows of their own.
const MIN_TIME_NS: u64 = 128;

/// What the command line asks of a probe.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    pub filters: Filters,
    /// Time from one reading to the next.
    pub interval: Option<Duration>,
    /// Measures each event, whatever that costs.
    pub exact: bool,
}

/// Applies it to a probe, or says which condition does not fit.
pub fn apply(probe: &mut Probe, wanted: &Wanted) -> Result<(), Unfit> {
    probe.program.extra_filter = wanted.filters.condition(probe)?;
    for metric in &mut probe.program.metrics {
        if let MetricKind::Histogram(spec) = &mut metric.kind {
            *spec = with_rows(spec);
        }
    }
    if let Some(slow) = &mut probe.program.slow {
        slow.max_per_second = slow.max_per_second.max(MAX_EVENTS_PER_SECOND);
    }
    if let (Shape::Poll { every_ns, .. }, Some(interval)) = (&mut probe.program.shape, wanted.interval) {
        // The last rows of an interval are at most half as old as it is long.
        *every_ns = (*every_ns).min(u64::try_from(interval.as_nanos() / 2).unwrap_or(u64::MAX));
    }
    if wanted.exact {
        probe.budget_ppm = Some(0);
    }
    Ok(())
}

/// The same buckets with bounds where the rows of a terminal end, in place of the classic ones: a row is a sum of whole buckets.
fn with_rows(spec: &BucketSpec) -> BucketSpec {
    let scale = Scale::of(spec.raw_per_unit);
    let min = if scale == Scale::Time { spec.min.min(MIN_TIME_NS) } else { spec.min };
    let native = BucketSpec { min, classic: Vec::new(), ..spec.clone() };
    // No scheme comes of buckets that the reader of YAML has refused.
    let Ok(scheme) = Scheme::new(&native) else { return native };
    let zero_end = scheme.upper.first().copied().unwrap_or(0);
    // A row ends before the next begins; kernel bounds are inclusive.
    let ends = scale.bounds().into_iter().take_while(|bound| bound / 2 < spec.max).map(|bound| bound - 1);
    let classic = ends.filter(|end| *end > zero_end).map(|end| scale::decimal(end, spec.raw_per_unit)).collect();
    BucketSpec { classic, ..native }
}
