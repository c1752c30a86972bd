//! One series as one data point.

use super::{attribute, unix_nanos};
use crate::native::Native;
use crate::snapshot::{self, Family, Histograms, Number, OfFamily, Series};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::metrics::v1::exponential_histogram_data_point::Buckets;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::metrics::v1::{Exemplar, ExponentialHistogramDataPoint, NumberDataPoint, exemplar};

pub(super) fn counter(family: &Family, series: &Series, value: u64, time: u64) -> NumberDataPoint {
    number(family, series, Number::Unsigned(value), start(series), time)
}

pub(super) fn gauge(family: &Family, series: &Series, value: Number, time: u64) -> NumberDataPoint {
    // A gauge has no beginning.
    number(family, series, value, 0, time)
}

pub(super) fn histogram(
    family: &Family,
    histograms: &Histograms,
    nth: usize,
    exemplars: &OfFamily<'_>,
    time: u64,
) -> ExponentialHistogramDataPoint {
    let series = &family.series[nth];
    let native = Native::new(&histograms.scheme, histograms.counts_of(nth));
    ExponentialHistogramDataPoint {
        attributes: attributes(family, series),
        start_time_unix_nano: start(series),
        time_unix_nano: time,
        count: native.count(),
        sum: Some(histograms.sum_of(nth, family.about.raw_per_unit)),
        scale: native.schema,
        zero_count: native.zero_count,
        positive: Some(dense(&native.populated)),
        // Nothing negative is observed, and no smallest or largest is kept.
        negative: None,
        min: None,
        max: None,
        flags: 0,
        exemplars: exemplars.of(series).iter().map(|exemplar| self::exemplar(exemplar)).collect(),
        zero_threshold: histograms.scheme.zero_threshold(),
    }
}

/// Every bucket from the first populated to the last. Native bucket `i` ends at `base^i`, exponential bucket `i` begins
/// there.
fn dense(populated: &[(i32, u64)]) -> Buckets {
    let (Some((first, _)), Some((last, _))) = (populated.first(), populated.last()) else { return Buckets::default() };
    let mut bucket_counts = vec![0; (last - first) as usize + 1];
    for (index, count) in populated {
        bucket_counts[(index - first) as usize] = *count;
    }
    Buckets { offset: first - 1, bucket_counts }
}

fn number(family: &Family, series: &Series, value: Number, start: u64, time: u64) -> NumberDataPoint {
    NumberDataPoint {
        attributes: attributes(family, series),
        start_time_unix_nano: start,
        time_unix_nano: time,
        exemplars: Vec::new(),
        flags: 0,
        value: Some(self::value(value, family.about.raw_per_unit.max(1))),
    }
}

/// Whole numbers stay so, but all points of a metric are of one kind: seconds are floats even when they are whole.
fn value(number: Number, raw_per_unit: u64) -> Value {
    match number {
        Number::Unsigned(raw) if raw_per_unit == 1 => {
            i64::try_from(raw).map_or(Value::AsDouble(raw as f64), Value::AsInt)
        }
        Number::Signed(raw) if raw_per_unit == 1 => Value::AsInt(raw),
        number => Value::AsDouble(number.exported(raw_per_unit)),
    }
}

fn exemplar(seen: &snapshot::Exemplar) -> Exemplar {
    let (name, id) = seen.link.label();
    Exemplar {
        filtered_attributes: vec![attribute(name, id)],
        time_unix_nano: unix_nanos(seen.at),
        value: Some(exemplar::Value::AsDouble(seen.value)),
        ..Exemplar::default()
    }
}

fn attributes(family: &Family, series: &Series) -> Vec<KeyValue> {
    let names = family.about.label_names.iter().enumerate();
    names.map(|(position, name)| attribute(name, family.label(series, position))).collect()
}

fn start(series: &Series) -> u64 {
    series.created.map_or(0, unix_nanos)
}
