//! A protobuf exposition as text 0.0.4, for who has recorded one: what the agent would have written itself.

use super::message::{LabelPair, Metric, MetricFamily, MetricType};
use crate::number::{bound_text, float};
use crate::text::escape;

/// All families that have series, each histogram in its classic form. Floats that are not whole are in their shortest form,
/// where the agent writes all digits of what the kernel counted.
pub fn text_0_0_4(families: &[MetricFamily]) -> Vec<u8> {
    let mut out = Vec::new();
    for family in families.iter().filter(|family| !family.metric.is_empty()) {
        metadata(&mut out, family);
        for metric in &family.metric {
            samples(&mut out, &family.name, metric);
        }
    }
    out
}

fn metadata(out: &mut Vec<u8>, family: &MetricFamily) {
    let kind = match family.kind() {
        MetricType::Counter => "counter",
        MetricType::Gauge | MetricType::GaugeHistogram => "gauge",
        MetricType::Histogram => "histogram",
        MetricType::Summary => "summary",
        MetricType::Untyped => "untyped",
    };
    out.extend_from_slice(format!("# HELP {} ", family.name).as_bytes());
    escape(out, family.help.as_bytes(), false);
    out.extend_from_slice(format!("\n# TYPE {} {kind}\n", family.name).as_bytes());
}

fn samples(out: &mut Vec<u8>, name: &str, metric: &Metric) {
    let labels = labels(&metric.label);
    let mut sample = |suffix: &str, bound: &str, value: f64| {
        let between = if labels.is_empty() || bound.is_empty() { "" } else { "," };
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(suffix.as_bytes());
        if !labels.is_empty() || !bound.is_empty() {
            out.push(b'{');
            out.extend_from_slice(&labels);
            out.extend_from_slice(between.as_bytes());
            out.extend_from_slice(bound.as_bytes());
            out.push(b'}');
        }
        out.push(b' ');
        float(out, value);
        out.push(b'\n');
    };
    let counter = metric.counter.map(|counter| counter.value);
    if let Some(value) = counter.or(metric.gauge.or(metric.untyped).map(|gauge| gauge.value)) {
        sample("", "", value);
    }
    if let Some(histogram) = &metric.histogram {
        for bucket in &histogram.bucket {
            let bound = format!("le=\"{}\"", bound_text(bucket.upper_bound));
            sample("_bucket", &bound, bucket.cumulative_count as f64);
        }
        sample("_sum", "", histogram.sample_sum);
        sample("_count", "", histogram.sample_count as f64);
    }
}

fn labels(pairs: &[LabelPair]) -> Vec<u8> {
    let mut text = Vec::new();
    for (position, pair) in pairs.iter().enumerate() {
        if position > 0 {
            text.push(b',');
        }
        text.extend_from_slice(pair.name.as_bytes());
        text.extend_from_slice(b"=\"");
        escape(&mut text, pair.value.as_bytes(), true);
        text.push(b'"');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Number;
    use crate::test_data::{counters, gauges, histograms, scheme, snapshot};
    use crate::{Format, exposition};
    use prost::Message;

    #[test]
    fn it_is_what_the_agent_writes() {
        let families = vec![
            counters("kstrobe_x_total", "", &[("a \\ \" \n", None, 3), ("b", None, 1 << 40)]),
            gauges("kstrobe_depth", "", &[("b", Number::Float(0.25)), ("c", Number::Signed(-7))]),
            histograms("kstrobe_h_seconds", &scheme(3), &[("c", None, &[5_000, 2_000_000_000])]),
        ];
        let snapshot = snapshot(1, families);
        let protobuf = exposition(&snapshot, &[], &[], Format::Protobuf, 0);
        let (mut rest, mut families) = (protobuf.as_slice(), Vec::new());
        while !rest.is_empty() {
            families.push(MetricFamily::decode_length_delimited(&mut rest).unwrap());
        }
        let text = String::from_utf8(text_0_0_4(&families)).unwrap();
        let own = String::from_utf8(exposition(&snapshot, &[], &[], Format::Text004, 0)).unwrap();
        assert_eq!(text, own);
        assert!(text.contains("_bucket{") && text.contains("# TYPE"), "{text}");
    }
}
