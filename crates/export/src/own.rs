//! The agent's own metrics as plain data, for exporters that do not speak Prometheus's exposition.

use crate::protobuf::{MetricFamily, MetricType};
use crate::snapshot::{Descriptor, Family, Kind, LabelTexts, Number, Series, Values};
use prost::Message;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

/// One metric of the agent itself with its series.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnFamily {
    /// Full name, a counter's `_total` included.
    pub name: String,
    /// One sentence.
    pub help: String,
    /// How its values are meant.
    pub kind: OwnKind,
    /// Unit of the values (`seconds`), empty when there is none.
    pub unit: String,
    /// In the registry's order.
    pub series: Vec<OwnSeries>,
}

/// Kinds of metric the agent has of itself. An info is a gauge of value 1 whose name ends in `_info`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnKind {
    /// A sum that begins with the agent and never goes back.
    Counter,
    /// The last value.
    Gauge,
    /// A distribution with classic buckets.
    Histogram,
}

#[derive(Clone, Debug, PartialEq)]
pub struct OwnSeries {
    /// Names and values, in the registry's order.
    pub labels: Vec<(String, String)>,
    pub value: OwnValue,
}

/// Value of a series.
#[derive(Clone, Debug, PartialEq)]
pub enum OwnValue {
    /// Of a counter or gauge.
    Number(f64),
    Histogram(OwnHistogram),
}

/// A classic histogram.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OwnHistogram {
    /// Number of observations.
    pub count: u64,
    pub sum: f64,
    /// Upper bounds, inclusive and ascending, and how many observations are at or below each; the last may be infinite.
    pub cumulative: Vec<(f64, u64)>,
}

/// Reads the delimited protobuf that the registry writes. Families of other kinds are left out.
pub fn families(mut delimited: &[u8]) -> Result<Vec<OwnFamily>, prost::DecodeError> {
    let mut families = Vec::new();
    while !delimited.is_empty() {
        families.extend(family(MetricFamily::decode_length_delimited(&mut delimited)?));
    }
    Ok(families)
}

fn family(family: MetricFamily) -> Option<OwnFamily> {
    let kind = match family.kind() {
        MetricType::Counter => OwnKind::Counter,
        MetricType::Gauge | MetricType::Untyped => OwnKind::Gauge,
        MetricType::Histogram => OwnKind::Histogram,
        MetricType::Summary | MetricType::GaugeHistogram => return None,
    };
    let series = family.metric.into_iter().map(|metric| {
        let labels = metric.label.into_iter().map(|label| (label.name, label.value)).collect();
        let value = match metric.histogram {
            Some(histogram) => OwnValue::Histogram(OwnHistogram {
                count: histogram.sample_count,
                sum: histogram.sample_sum,
                cumulative: histogram.bucket.iter().map(|b| (b.upper_bound, b.cumulative_count)).collect(),
            }),
            None => {
                let counter = metric.counter.map(|counter| counter.value);
                let gauge = metric.gauge.or(metric.untyped).map(|gauge| gauge.value);
                OwnValue::Number(counter.or(gauge).unwrap_or(0.0))
            }
        };
        OwnSeries { labels, value }
    });
    let series = series.collect();
    Some(OwnFamily { name: family.name, help: family.help, kind, unit: family.unit, series })
}

/// When the agent's counts began, each of its own: those of a probe that a reload has replaced begin anew while the agent runs.
/// Visits all readings in order.
#[derive(Debug)]
pub struct Beginnings {
    /// Of each counter, as it was last read, by family. One that is missing for a while goes on.
    known: HashMap<String, HashMap<LabelTexts, Begun>>,
    /// When that was, at first when the agent began to count.
    previous: SystemTime,
}

#[derive(Clone, Copy, Debug)]
struct Begun {
    created: SystemTime,
    value: u64,
}

impl Beginnings {
    /// `since` is when the agent began to count.
    pub fn new(since: SystemTime) -> Beginnings {
        Beginnings { known: HashMap::new(), previous: since }
    }

    /// Counters and gauges of a reading as families of a snapshot of this time. Classic histograms have no place in a snapshot,
    /// whose buckets are the kernel's, and are left to those who scrape.
    ///
    /// A counter that was not there before, or went back, began with the reading before.
    pub fn families(&mut self, own: &[OwnFamily], at: SystemTime) -> Vec<Family> {
        let mut families: Vec<Family> = own.iter().filter_map(as_family).collect();
        // Who read first need not come first, and clocks are set back.
        let begun = self.previous.min(at);
        for family in &mut families {
            let Values::Counters(values) = &family.values else { continue };
            let known = self.known.entry(family.about.name.clone()).or_default();
            for (series, &value) in family.series.iter_mut().zip(values) {
                let goes_on = known.get(&series.labels).filter(|old| old.value <= value);
                let created = goes_on.map_or(begun, |old| old.created);
                series.created = Some(created);
                known.insert(series.labels.clone(), Begun { created, value });
            }
        }
        self.previous = at;
        families
    }
}

/// Seconds are kept in nanoseconds: counters are whole numbers here.
const NANOS: u64 = 1_000_000_000;

fn as_family(own: &OwnFamily) -> Option<Family> {
    let mut label_names: Vec<String> = Vec::new();
    for (name, _) in own.series.iter().flat_map(|series| &series.labels) {
        if !label_names.contains(name) {
            label_names.push(name.clone());
        }
    }
    let mut rows: Vec<(LabelTexts, f64)> = Vec::with_capacity(own.series.len());
    for series in &own.series {
        let OwnValue::Number(value) = series.value else { return None };
        let text = |name: &String| {
            let label = series.labels.iter().find(|(there, _)| there == name);
            Arc::from(label.map_or("", |(_, value)| value.as_str()))
        };
        rows.push((label_names.iter().map(text).collect(), value));
    }
    rows.sort_by(|a, b| a.0.cmp(&b.0));
    let counter = own.kind == OwnKind::Counter;
    let timed = counter && (own.unit == "seconds" || own.name.contains("_seconds"));
    let raw_per_unit = if timed { NANOS } else { 1 };
    let numbers = rows.iter().map(|(_, value)| *value);
    let values = match own.kind {
        OwnKind::Counter => Values::Counters(numbers.map(|value| (value * raw_per_unit as f64) as u64).collect()),
        OwnKind::Gauge => Values::Gauges(numbers.map(Number::Float).collect()),
        OwnKind::Histogram => return None,
    };
    let columns = (0..label_names.len() as u32).collect();
    let (name, help, unit) = (own.name.clone(), own.help.clone(), own.unit.clone());
    let kind = if counter { Kind::Counter } else { Kind::Gauge };
    let about = Arc::new(Descriptor { name, help, kind, unit, raw_per_unit, label_names });
    let series = rows.into_iter().map(|(labels, _)| Series { labels, created: None }).collect();
    Some(Family { about, columns, series, values })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protobuf::message::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric};
    use std::time::Duration;

    fn encoded(families: &[MetricFamily]) -> Vec<u8> {
        families.iter().flat_map(|family| family.encode_length_delimited_to_vec()).collect()
    }

    fn of(kind: MetricType, metric: Metric) -> MetricFamily {
        let (name, help, unit) = ("kstrobe_x".to_owned(), "X.".to_owned(), "seconds".to_owned());
        MetricFamily { name, help, kind: kind.into(), metric: vec![metric], unit }
    }

    #[test]
    fn each_kind_is_read() {
        let label = vec![LabelPair { name: "probe".into(), value: "softirq".into() }];
        let bucket = |upper_bound, cumulative_count| Bucket { upper_bound, cumulative_count, exemplar: None };
        let bucket = vec![bucket(0.5, 1), bucket(f64::INFINITY, 3)];
        let histogram = Histogram { sample_count: 3, sample_sum: 2.5, bucket, ..Histogram::default() };
        let counter = Some(Counter { value: 7.0, start_timestamp: None });
        let families = encoded(&[
            of(MetricType::Counter, Metric { label, counter, ..Metric::default() }),
            of(MetricType::Gauge, Metric { gauge: Some(Gauge { value: -1.5 }), ..Metric::default() }),
            of(MetricType::Histogram, Metric { histogram: Some(histogram), ..Metric::default() }),
            of(MetricType::Summary, Metric::default()),
        ]);
        let read = super::families(&families).unwrap();
        let labels = vec![("probe".to_owned(), "softirq".to_owned())];
        let expected = [
            (OwnKind::Counter, labels, OwnValue::Number(7.0)),
            (OwnKind::Gauge, vec![], OwnValue::Number(-1.5)),
            (
                OwnKind::Histogram,
                vec![],
                OwnValue::Histogram(OwnHistogram {
                    count: 3,
                    sum: 2.5,
                    cumulative: vec![(0.5, 1), (f64::INFINITY, 3)],
                }),
            ),
        ];
        let expected = expected.map(|(kind, labels, value)| OwnFamily {
            name: "kstrobe_x".into(),
            help: "X.".into(),
            kind,
            unit: "seconds".into(),
            series: vec![OwnSeries { labels, value }],
        });
        assert_eq!(read, expected);
        assert_eq!(super::families(&[]), Ok(vec![]));
        assert!(super::families(&families[..families.len() - 1]).is_err(), "cut off");
        assert!(super::families(&[0xff; 32]).is_err());
    }

    #[test]
    fn counters_and_gauges_become_families() {
        let one = |name: &str, kind, unit: &str, series: Vec<OwnSeries>| OwnFamily {
            name: name.into(),
            help: "Help.".into(),
            kind,
            unit: unit.into(),
            series,
        };
        let series = |labels: &[(&str, &str)], value| OwnSeries {
            labels: labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            value,
        };
        let since = SystemTime::UNIX_EPOCH;
        let histogram = OwnValue::Histogram(OwnHistogram::default());
        let own = [
            one("process_cpu_seconds_total", OwnKind::Counter, "", vec![series(&[], OwnValue::Number(1.25))]),
            one(
                "kstrobe_lost_total",
                OwnKind::Counter,
                "",
                vec![
                    series(&[("probe", "b")], OwnValue::Number(2.0)),
                    series(&[("probe", "a"), ("reason", "full")], OwnValue::Number(1.0)),
                ],
            ),
            one("kstrobe_up", OwnKind::Gauge, "", vec![series(&[], OwnValue::Number(-0.5))]),
            one("kstrobe_scrape_duration_seconds", OwnKind::Histogram, "seconds", vec![series(&[], histogram)]),
        ];
        let families = Beginnings::new(since).families(&own, since + Duration::from_secs(9));
        let [cpu, lost, up] = families.as_slice() else { panic!("{families:?}") };
        assert_eq!((&cpu.values, cpu.about.raw_per_unit), (&Values::Counters(vec![1_250_000_000]), NANOS));
        assert_eq!(lost.about.label_names, ["probe", "reason"]);
        let labels: Vec<Vec<&str>> =
            lost.series.iter().map(|series| vec![lost.label(series, 0), lost.label(series, 1)]).collect();
        assert_eq!((labels, &lost.values), (vec![vec!["a", "full"], vec!["b", ""]], &Values::Counters(vec![1, 2])));
        assert_eq!((up.about.kind, &up.values), (Kind::Gauge, &Values::Gauges(vec![Number::Float(-0.5)])));
        let counters = [cpu, lost].into_iter().flat_map(|family| &family.series);
        assert!(counters.map(|series| series.created).all(|created| created == Some(since)));
    }

    #[test]
    fn a_counter_that_is_new_or_went_back_began_with_the_reading_before() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let mut beginnings = Beginnings::new(at(0));
        let mut read = |now, values: &[(&str, f64)]| {
            let series = |(probe, value): &(&str, f64)| OwnSeries {
                labels: vec![("probe".to_owned(), (*probe).to_owned())],
                value: OwnValue::Number(*value),
            };
            let own = OwnFamily {
                name: "kstrobe_lost_total".into(),
                help: "Lost.".into(),
                kind: OwnKind::Counter,
                unit: String::new(),
                series: values.iter().map(series).collect(),
            };
            let families = beginnings.families(&[own], at(now));
            let created = families[0].series.iter().map(|series| series.created.unwrap());
            created.map(|created| created.duration_since(at(0)).unwrap().as_secs()).collect::<Vec<_>>()
        };
        assert_eq!(read(10, &[("a", 5.0), ("b", 1.0)]), [0, 0], "with the agent");
        assert_eq!(read(20, &[("a", 5.0), ("b", 2.0), ("c", 1.0)]), [0, 0, 10], "one more");
        assert_eq!(read(30, &[("a", 4.0), ("c", 1.0)]), [20, 10], "one went back, one is gone");
        assert_eq!(read(40, &[("a", 6.0), ("b", 2.0), ("c", 1.0)]), [20, 0, 10], "it is back");
        assert_eq!(read(35, &[("a", 6.0), ("b", 1.0), ("c", 1.0)]), [20, 35, 10], "never after the reading itself");
    }
}
