//! Whether the metrics and labels that rules name are there, and whether what is asked of them makes sense.

use crate::check::Families;
use crate::diag::Diagnostic;
use crate::model::{Measure, Metric, MetricKind, MetricMeta, Probe, Quantity, Rule, Spanned, When};
use crate::names::one_of;
use kstrobe_ebpf::diag::did_you_mean;

/// Of probes that are to run together those whose metrics have names of their own, and what is wrong with the others: of two
/// metrics with one name, the first stands.
pub fn unique_metrics(probes: Vec<Probe>) -> (Vec<Probe>, Vec<Diagnostic>) {
    let mut families = Families::default();
    let mut wrong = Vec::new();
    let mut kept = Vec::new();
    for probe in probes {
        let before = wrong.len();
        wrong.extend(probe.program.metrics.iter().filter_map(|metric| families.take(&metric.name).err()));
        if wrong.len() == before {
            kept.push(probe);
        }
    }
    (kept, wrong)
}

/// What is wrong with the conditions of `rules`. `known` are all probes that there are, `runs` says which of them run.
pub fn check_rules(rules: &[Rule], known: &[Probe], runs: impl Fn(&Probe) -> bool) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    for rule in rules {
        let Some(when) = &rule.when else { continue };
        let name = &when.metric;
        let metrics = known.iter().flat_map(|probe| probe.metrics().map(move |(metric, meta)| (probe, metric, meta)));
        let mut named = metrics.clone().filter(|(_, metric, _)| metric.name.value == name.value);
        // Several probes may have a metric of this name, of which one runs.
        let Some((probe, metric, meta)) = named.clone().find(|(probe, ..)| runs(probe)).or_else(|| named.next()) else {
            let names: Vec<&str> = metrics.map(|(_, metric, _)| metric.name.value.as_str()).collect();
            found.push(unknown_metric(name, &names));
            continue;
        };
        if !runs(probe) {
            let message = format!("`{}` is of probe `{}`, which does not run", name.value, probe.name());
            let hint = "the rule never fires: enable the probe";
            found.push(Diagnostic::warning(&name.at, message).hint(hint));
        }
        found.extend(labels(when, metric));
        found.extend(measure(when, metric, meta));
    }
    found
}

fn unknown_metric(name: &Spanned<String>, names: &[&str]) -> Diagnostic {
    let diagnostic = Diagnostic::error(&name.at, format!("no probe has a metric `{}`", name.value));
    let suffixed = ["_bucket", "_count", "_sum"].iter().find_map(|suffix| name.value.strip_suffix(suffix));
    if let Some(base) = suffixed.filter(|base| names.contains(base)) {
        return diagnostic.hint(format!("name the histogram itself: `{base}`"));
    }
    match did_you_mean(&name.value, names.iter().copied()) {
        Some(near) => diagnostic.hint(format!("did you mean `{near}`?")),
        None => diagnostic.hint("`kstrobe list` shows all probes"),
    }
}

fn labels(when: &When, metric: &Metric) -> Vec<Diagnostic> {
    let names: Vec<&str> = metric.labels.iter().map(|label| label.name.value.as_str()).collect();
    let unknown = when.matchers.iter().filter(|matcher| !names.contains(&matcher.label.value.as_str()));
    let diagnostics = unknown.map(|matcher| {
        let label = &matcher.label;
        let diagnostic =
            Diagnostic::error(&label.at, format!("`{}` has no label `{}`", metric.name.value, label.value));
        diagnostic.hint(match did_you_mean(&label.value, names.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None if names.is_empty() => "it has no labels".to_owned(),
            None => format!("it has {}", one_of(&names).replacen("one of ", "", 1).replace(" or ", " and ")),
        })
    });
    diagnostics.collect()
}

fn measure(when: &When, metric: &Metric, meta: &MetricMeta) -> Vec<Diagnostic> {
    let name = metric.name.value.as_str();
    let kind = match metric.kind {
        MetricKind::Counter => "counter",
        MetricKind::Gauge(_) => "gauge",
        MetricKind::Histogram(_) => "histogram",
        MetricKind::Stacks(_) => {
            let message = format!("`{name}` is sums by stack, of which rules know nothing");
            return vec![Diagnostic::error(&when.metric.at, message)];
        }
    };
    let fits = match when.measure {
        Measure::Quantile(_) | Measure::Share { .. } => kind == "histogram",
        Measure::Rate => kind != "gauge",
        Measure::Value => kind == "gauge",
    };
    if !fits {
        let (what, hint) = match (&when.measure, kind) {
            (Measure::Rate, _) => ("`rate` is of counters and histograms", "`value(..)` is what a gauge has"),
            (Measure::Value, "counter") => ("`value` is of gauges", "`rate(..)` is what a counter has"),
            (Measure::Value, _) => ("`value` is of gauges", "a histogram has `p99(..)`, `share(..)` and `rate(..)`"),
            (_, "counter") => ("quantiles and shares are of histograms", "`rate(..)` is what a counter has"),
            _ => ("quantiles and shares are of histograms", "`value(..)` is what a gauge has"),
        };
        let message = format!("{what}, and `{name}` is a {kind}");
        return vec![Diagnostic::error(&when.metric.at, message).hint(hint)];
    }
    let mut found = Vec::new();
    match &when.measure {
        Measure::Quantile(_) => {
            found.extend(unit(&when.threshold, &meta.unit).or_else(|| visible(&when.threshold, metric, meta)));
        }
        Measure::Value => found.extend(unit(&when.threshold, &meta.unit)),
        Measure::Rate => match when.threshold.value {
            Quantity::Number(_) => {}
            // Seconds per second are a share, bytes per second a size.
            Quantity::Percent(_) | Quantity::Seconds(_) if meta.unit == "seconds" && kind == "counter" => {}
            Quantity::Bytes(_) if meta.unit == "bytes" && kind == "counter" => {}
            _ => {
                let message = format!("a rate of `{name}` is a number per second");
                found.push(Diagnostic::error(&when.threshold.at, message).hint("write for example `100`"));
            }
        },
        Measure::Share { bound, .. } => {
            found.extend(unit(bound, &meta.unit).or_else(|| visible(bound, metric, meta)));
            let share = when.threshold.value;
            if !matches!(share, Quantity::Percent(_) | Quantity::Number(_)) || share.value() > 1.0 {
                let diagnostic = Diagnostic::error(&when.threshold.at, "a share is between 0% and 100%");
                found.push(diagnostic.hint("write for example `5%` or `0.05`"));
            }
        }
    }
    found
}

/// A quantity must be in the metric's unit.
fn unit(quantity: &Spanned<Quantity>, unit: &str) -> Option<Diagnostic> {
    let (fits, hint) = match (quantity.value, unit) {
        (Quantity::Number(_), _) | (Quantity::Seconds(_), "seconds") | (Quantity::Bytes(_), "bytes") => return None,
        (Quantity::Percent(_), "ratio") => return None,
        (_, "seconds") => ("seconds", "write for example `50ms`"),
        (_, "bytes") => ("bytes", "write for example `4KiB`"),
        (_, "") => ("a number without unit", "write for example `100`"),
        (_, unit) => (unit, "write a plain number"),
    };
    Some(Diagnostic::error(&quantity.at, format!("the metric is in {fits}")).hint(hint))
}

/// Beyond the last bucket all bounds count the same.
fn visible(bound: &Spanned<Quantity>, metric: &Metric, meta: &MetricMeta) -> Option<Diagnostic> {
    let MetricKind::Histogram(buckets) = &metric.kind else { return None };
    let last = buckets.classic.last().and_then(|text| text.parse::<f64>().ok()).unwrap_or_default();
    let most = last.max(buckets.max as f64 / buckets.raw_per_unit.max(1) as f64);
    if bound.value.value() < most {
        return None;
    }
    let unit = if meta.unit.is_empty() { String::new() } else { format!(" {}", meta.unit) };
    let message = format!("`{}` tells values apart only up to {most}{unit}", metric.name.value);
    Some(Diagnostic::error(&bound.at, message).hint("use a smaller bound, or a larger `max` in the metric's `buckets`"))
}
