//! Names and units of OpenTelemetry. One name is written in YAML, Prometheus's; OpenTelemetry's follows from it, and the
//! rules by which Prometheus translates OTLP lead back to it.

use crate::snapshot::Descriptor;
use std::borrow::Cow;

/// Prefixes that are namespaces: a dot follows them in OpenTelemetry.
const NAMESPACES: &[&str] = &["kstrobe_", "process_"];

/// `kstrobe_recv_wait_seconds` is `kstrobe.recv_wait` with the unit `s`, and `kstrobe_errors_total` is the sum
/// `kstrobe.errors`: what Prometheus appends to a name by unit and kind is taken from it.
pub fn metric_name(about: &Descriptor) -> String {
    let name = about.stem();
    let name = appended(&about.unit).and_then(|word| without_unit(name, word)).unwrap_or(name);
    let namespace = NAMESPACES.iter().find_map(|prefix| Some((prefix, name.strip_prefix(prefix)?)));
    match namespace {
        Some((prefix, rest)) if !rest.is_empty() => format!("{}.{rest}", prefix.trim_end_matches('_')),
        _ => name.to_owned(),
    }
}

/// A unit as UCUM writes it: `seconds` is `s`. Things that are counted (`pages`) are annotations, `{pages}`, which
/// translators leave out of names.
pub fn ucum(unit: &str) -> Cow<'_, str> {
    match UNITS.iter().find(|(name, _)| *name == unit) {
        Some((_, code)) => (*code).into(),
        None if unit.is_empty() => "".into(),
        None => format!("{{{unit}}}").into(),
    }
}

/// Units by Prometheus's word, which its translator appends to names, and by UCUM's code. (`1` is appended to gauges alone,
/// as `ratio`, and so stays in the name.)
const UNITS: &[(&str, &str)] = &[
    ("seconds", "s"),
    ("bytes", "By"),
    ("ratio", "1"),
    ("celsius", "Cel"),
    ("hertz", "Hz"),
    ("joules", "J"),
    ("volts", "V"),
    ("amperes", "A"),
    ("watts", "W"),
    ("meters", "m"),
    ("grams", "g"),
];

/// The word that the translator appends for a unit.
fn appended(unit: &str) -> Option<&str> {
    (unit != "ratio" && UNITS.iter().any(|(name, _)| *name == unit)).then_some(unit)
}

/// The name without the unit at its end. A name that has the word twice keeps both: the translator would not append it
/// to a name that has it.
fn without_unit<'a>(name: &'a str, word: &str) -> Option<&'a str> {
    let rest = name.strip_suffix(word)?.strip_suffix('_')?;
    (!rest.is_empty() && rest.split('_').all(|part| part != word)).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Kind;
    use proptest::prelude::*;

    fn about(name: &str, kind: Kind, unit: &str) -> Descriptor {
        let (name, unit) = (name.to_owned(), unit.to_owned());
        Descriptor { name, help: String::new(), kind, unit, raw_per_unit: 1, label_names: Vec::new() }
    }

    /// What Prometheus 3 makes of an OTLP metric (UnderscoreEscapingWithSuffixes), in its order: words, unit, total,
    /// ratio.
    fn to_prometheus(name: &str, unit: &str, kind: Kind) -> String {
        let mut words: Vec<&str> = name.split(|c: char| !c.is_ascii_alphanumeric() && c != ':').collect();
        words.retain(|word| !word.is_empty());
        let word = UNITS.iter().find(|(_, code)| *code == unit && unit != "1").map(|(name, _)| *name);
        if let Some(word) = word.filter(|word| !words.contains(word)) {
            words.push(word);
        }
        if kind == Kind::Counter {
            words.retain(|word| *word != "total");
            words.push("total");
        }
        if unit == "1" && kind == Kind::Gauge {
            words.retain(|word| *word != "ratio");
            words.push("ratio");
        }
        words.join("_")
    }

    #[test]
    fn names_and_units() {
        for (name, kind, unit, expected, code) in [
            ("kstrobe_recvfrom_wait_seconds", Kind::Histogram, "seconds", "kstrobe.recvfrom_wait", "s"),
            ("kstrobe_cpu_seconds_total", Kind::Counter, "seconds", "kstrobe.cpu", "s"),
            ("kstrobe_read_bytes", Kind::Histogram, "bytes", "kstrobe.read", "By"),
            ("kstrobe_errors_total", Kind::Counter, "", "kstrobe.errors", ""),
            ("kstrobe_reclaimed_pages_total", Kind::Counter, "pages", "kstrobe.reclaimed_pages", "{pages}"),
            ("kstrobe_busy_ratio", Kind::Gauge, "ratio", "kstrobe.busy_ratio", "1"),
            ("kstrobe_seconds_of_seconds", Kind::Gauge, "seconds", "kstrobe.seconds_of_seconds", "s"),
            ("kstrobe_seconds", Kind::Gauge, "seconds", "kstrobe", "s"),
            ("process_cpu_seconds_total", Kind::Counter, "", "process.cpu_seconds", ""),
            ("scrape_duration_seconds", Kind::Histogram, "seconds", "scrape_duration", "s"),
        ] {
            let about = about(name, kind, unit);
            assert_eq!((metric_name(&about).as_str(), &*ucum(unit)), (expected, code), "{name}");
            assert_eq!(to_prometheus(&metric_name(&about), code, kind), name);
        }
    }

    proptest! {
        #[test]
        fn the_translator_of_prometheus_leads_back(
            middle in prop::collection::vec("[a-su-z][a-z0-9]{0,5}|seconds|bytes", 1..4),
            kind in prop::sample::select(vec![Kind::Counter, Kind::Gauge, Kind::Histogram]),
            unit in prop::sample::select(vec!["", "seconds", "bytes", "pages"]),
        ) {
            let mut words = vec!["kstrobe".to_owned()];
            words.extend(middle);
            words.extend((!unit.is_empty()).then(|| unit.to_owned()));
            words.extend((kind == Kind::Counter).then(|| "total".to_owned()));
            let about = about(&words.join("_"), kind, unit);
            prop_assert_eq!(to_prometheus(&metric_name(&about), &ucum(unit), kind), about.name);
        }
    }
}
