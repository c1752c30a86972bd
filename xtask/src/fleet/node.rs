//! What one node tells, and how it goes on: two recorded expositions, and any number of nodes that continue them. Pure
//! functions; the same node at the same tick tells the same.

use anyhow::{Context, Result};
use flate2::read::GzDecoder;
use kstrobe_export::message::{Histogram, LabelPair, Metric, MetricFamily};
use prost::Message;
use std::collections::{BTreeMap, HashMap};
use std::io::Read;

/// Two expositions of one agent.
pub struct Recording {
    before: Vec<MetricFamily>,
    after: Vec<MetricFamily>,
}

/// Which node, and at which scrape.
#[derive(Clone, Copy)]
pub struct Tick {
    /// Number of the node.
    pub node: u64,
    /// Number of the scrape.
    pub scrape: u64,
}

impl Recording {
    /// Reads what [`super::record`] wrote.
    pub fn read(packed: &[u8]) -> Result<Recording> {
        let mut bytes = Vec::new();
        GzDecoder::new(packed).read_to_end(&mut bytes).context("unpacking the recording")?;
        let mut rest = bytes.as_slice();
        let mut exposition = || -> Result<Vec<MetricFamily>> {
            let length = prost::decode_length_delimiter(&mut rest).context("a recording without a length")?;
            let (one, behind) = rest.split_at_checked(length).context("half a recording")?;
            rest = behind;
            families(one)
        };
        Ok(Recording { before: exposition()?, after: exposition()? })
    }

    /// The later exposition.
    #[cfg(test)]
    pub fn last(&self) -> &[MetricFamily] {
        &self.after
    }

    /// What a node tells: each scrape adds about what the recording added, times the node's own pace.
    pub fn exposition(&self, at: Tick) -> Vec<MetricFamily> {
        let earlier: HashMap<&str, &MetricFamily> = self.before.iter().map(|f| (f.name.as_str(), f)).collect();
        self.after.iter().map(|family| grown(family, earlier.get(family.name.as_str()).copied(), at)).collect()
    }
}

/// Families of a delimited exposition.
pub fn families(mut delimited: &[u8]) -> Result<Vec<MetricFamily>> {
    let mut families = Vec::new();
    while !delimited.is_empty() {
        families.push(MetricFamily::decode_length_delimited(&mut delimited)?);
    }
    Ok(families)
}

/// The same as bytes.
pub fn delimited(families: &[MetricFamily]) -> Vec<u8> {
    families.iter().flat_map(Message::encode_length_delimited_to_vec).collect()
}

fn grown(after: &MetricFamily, before: Option<&MetricFamily>, at: Tick) -> MetricFamily {
    let earlier: HashMap<&[LabelPair], &Metric> =
        before.into_iter().flat_map(|family| &family.metric).map(|metric| (metric.label.as_slice(), metric)).collect();
    let mut family = after.clone();
    for (place, metric) in family.metric.iter_mut().enumerate() {
        let before = earlier.get(metric.label.as_slice()).copied();
        // Any number that differs from series to series.
        let series = after.name.len() as u64 * 7919 + place as u64;
        if let Some(counter) = &mut metric.counter {
            let from = before.and_then(|metric| metric.counter).map_or(0.0, |counter| counter.value);
            counter.value = Pace::new(at, series, 0).float(from, counter.value);
        }
        if let Some(gauge) = &mut metric.gauge {
            let from = before.and_then(|metric| metric.gauge).map_or(gauge.value, |gauge| gauge.value);
            gauge.value = between(from, gauge.value, at, series);
        }
        if let Some(histogram) = &mut metric.histogram {
            histogram_grown(histogram, before.and_then(|metric| metric.histogram.as_ref()), at, series);
        }
    }
    family
}

/// All forms of a histogram stay sums of the same observations.
fn histogram_grown(after: &mut Histogram, before: Option<&Histogram>, at: Tick, series: u64) {
    let pace = |cell: u64| Pace::new(at, series, cell);
    let native = !after.positive_span.is_empty();
    let old = before.map(counts).unwrap_or_default();
    let mut total = pace(0).whole(before.map_or(0, |h| h.zero_count), after.zero_count);
    after.zero_count = total;
    let mut last = 0;
    let now = counts(after);
    after.positive_delta.clear();
    for (bucket, count) in now {
        let count = pace(bucket.unsigned_abs().into()).whole(old.get(&bucket).copied().unwrap_or(0), count);
        after.positive_delta.push(count.cast_signed() - last);
        last = count.cast_signed();
        total += count;
    }
    if !native {
        total = pace(0).whole(before.map_or(0, |h| h.sample_count), after.sample_count);
    }
    after.sample_sum = pace(0).float(before.map_or(0.0, |h| h.sample_sum), after.sample_sum);
    after.sample_count = total;
    let mut below = 0;
    for (place, bucket) in after.bucket.iter_mut().enumerate() {
        let from = before.and_then(|h| h.bucket.get(place)).map_or(0, |bucket| bucket.cumulative_count);
        let grown = if bucket.upper_bound.is_infinite() { total } else { pace(0).whole(from, bucket.cumulative_count) };
        below = grown.clamp(below, total.max(below));
        bucket.cumulative_count = below;
    }
}

/// Counts of the native buckets by index.
pub fn counts(histogram: &Histogram) -> BTreeMap<i32, u64> {
    let (mut index, mut count, mut deltas) = (0, 0, histogram.positive_delta.iter());
    let mut counts = BTreeMap::new();
    for span in &histogram.positive_span {
        index += span.offset;
        for delta in deltas.by_ref().take(span.length as usize) {
            count += delta;
            counts.insert(index, count.unsigned_abs());
            index += 1;
        }
    }
    counts
}

/// How far a number has come, in gaps between the two recorded expositions.
struct Pace(f64);

impl Pace {
    fn new(at: Tick, series: u64, cell: u64) -> Pace {
        // Half to one and a half of the recorded node's work.
        let of_node = 0.5 + part(at.node, 1);
        // Uneven, but never backwards: less than a whole gap is added to a number of whole gaps.
        let uneven = part(at.node * 31 + series, at.scrape * 1009 + cell);
        Pace(of_node * (at.scrape as f64 + uneven))
    }

    fn whole(&self, before: u64, after: u64) -> u64 {
        let gap = after.saturating_sub(before);
        after + (gap as f64 * self.0) as u64
    }

    fn float(&self, before: f64, after: f64) -> f64 {
        let grown = after + (after - before).max(0.0) * self.0;
        if before.fract() == 0.0 && after.fract() == 0.0 { grown.floor() } else { grown }
    }
}

fn between(before: f64, after: f64, at: Tick, series: u64) -> f64 {
    let value = before + (after - before) * part(at.node * 31 + series, at.scrape);
    if before.fract() == 0.0 && after.fract() == 0.0 { value.round() } else { value }
}

/// A number from 0 to 1, the same for the same two: SplitMix64.
fn part(a: u64, b: u64) -> f64 {
    let mut x = a.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(b.wrapping_mul(0xd1b5_4a32_d192_ed03));
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x ^ (x >> 31)) as f64 / u64::MAX as f64
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use kstrobe_export::message::{Bucket, BucketSpan, Counter, Gauge, MetricType};

    fn histogram(scale: u64) -> Histogram {
        let bucket = |upper_bound, cumulative_count| Bucket { upper_bound, cumulative_count, exemplar: None };
        Histogram {
            sample_count: 6 * scale,
            sample_sum: 1.5 * scale as f64,
            bucket: vec![bucket(0.5, 2 * scale), bucket(1.0, 5 * scale), bucket(f64::INFINITY, 6 * scale)],
            schema: 3,
            zero_count: scale,
            positive_span: vec![BucketSpan { offset: -8, length: 2 }, BucketSpan { offset: 3, length: 1 }],
            positive_delta: vec![scale.cast_signed(), scale.cast_signed(), 0],
            ..Histogram::default()
        }
    }

    fn moment(scale: u64) -> Vec<MetricFamily> {
        let label = |value: &str| vec![LabelPair { name: "comm".into(), value: value.into() }];
        let family = |name: &str, kind: MetricType, metric| MetricFamily {
            name: name.into(),
            help: "Help.".into(),
            kind: kind.into(),
            metric,
            unit: String::new(),
        };
        let counter = |value| Some(Counter { value, start_timestamp: None });
        vec![
            family(
                "kstrobe_x_total",
                MetricType::Counter,
                vec![
                    Metric { label: label("a"), counter: counter(10.0 * scale as f64), ..Metric::default() },
                    Metric { label: label("b"), counter: counter(7.0), ..Metric::default() },
                ],
            ),
            family(
                "kstrobe_depth",
                MetricType::Gauge,
                vec![Metric { gauge: Some(Gauge { value: scale as f64 }), ..Metric::default() }],
            ),
            family(
                "kstrobe_x_seconds",
                MetricType::Histogram,
                vec![Metric { label: label("a"), histogram: Some(histogram(scale)), ..Metric::default() }],
            ),
        ]
    }

    pub fn recording() -> Recording {
        Recording { before: moment(1), after: moment(4) }
    }

    fn numbers(families: &[MetricFamily]) -> Vec<f64> {
        let mut all = Vec::new();
        for metric in families.iter().flat_map(|family| &family.metric) {
            all.extend(metric.counter.map(|counter| counter.value));
            if let Some(histogram) = &metric.histogram {
                all.push(histogram.sample_count as f64);
                all.push(histogram.sample_sum);
                all.push(histogram.zero_count as f64);
                all.extend(counts(histogram).values().map(|&count| count as f64));
                all.extend(histogram.bucket.iter().map(|bucket| bucket.cumulative_count as f64));
            }
        }
        all
    }

    #[test]
    fn counters_only_grow_and_histograms_stay_sums() {
        let recording = recording();
        for node in 0..20 {
            let mut last = numbers(recording.last());
            for scrape in 0..30 {
                let families = recording.exposition(Tick { node, scrape });
                let now = numbers(&families);
                assert!(now.iter().zip(&last).all(|(now, last)| now >= last), "{now:?} after {last:?}");
                last = now;
                let histogram = families[2].metric[0].histogram.as_ref().unwrap();
                let all: u64 = counts(histogram).values().sum::<u64>() + histogram.zero_count;
                assert_eq!(histogram.sample_count, all);
                assert_eq!(histogram.bucket.last().unwrap().cumulative_count, all);
                assert!(histogram.bucket.windows(2).all(|two| two[0].cumulative_count <= two[1].cumulative_count));
            }
        }
    }

    #[test]
    fn nodes_differ_and_what_rests_goes_on_resting() {
        let recording = recording();
        let of = |node, scrape| recording.exposition(Tick { node, scrape });
        assert_eq!(of(3, 5), of(3, 5));
        assert_ne!(of(3, 5), of(4, 5));
        let resting = |node, scrape| of(node, scrape)[0].metric[1].counter.unwrap().value;
        assert_eq!((resting(0, 0), resting(9, 40)), (7.0, 7.0));
        // Every number of a gap of three times the first exposition.
        let gone = of(0, 40)[0].metric[0].counter.unwrap().value;
        assert!((40.0 + 30.0 * 0.5 * 40.0..=40.0 + 30.0 * 1.5 * 41.0).contains(&gone), "{gone}");
    }

    #[test]
    fn what_is_written_is_read() {
        let families = moment(2);
        assert_eq!(super::families(&delimited(&families)).unwrap(), families);
        assert!(super::families(&delimited(&families)[1..]).is_err());
    }

    #[test]
    fn the_recording_in_the_tree_is_whole() {
        let packed = std::fs::read(crate::root().join(super::super::RECORDING)).unwrap();
        let recording = Recording::read(&packed).unwrap();
        let histograms = |families: &[MetricFamily]| {
            families.iter().flat_map(|family| &family.metric).filter(|metric| metric.histogram.is_some()).count()
        };
        assert!(histograms(&recording.before) > 10 && histograms(&recording.after) >= histograms(&recording.before));
    }
}
