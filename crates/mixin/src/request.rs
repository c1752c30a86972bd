//! `kstrobe slo`: an objective as a user asks for it, checked against the metric it is about.

use crate::catalogue::{Catalogue, Kind, Metric};
use crate::objectives::BY;
use crate::rules::quoted;
use crate::slo::{Objective, rounded};
use kstrobe_config::PREFIX;
use kstrobe_config::QuantityError;
use kstrobe_config::did_you_mean;
use kstrobe_config::model::Quantity;

/// What a user asks for, as text.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// With or without `kstrobe_`.
    pub metric: String,
    /// Per cent: `99.9`.
    pub percent: String,
    /// `10ms`
    pub threshold: String,
    /// `a="b", c=~"d"`, with or without braces.
    pub selector: String,
    /// Empty for `kstrobe`.
    pub service: String,
    /// Empty for the metric's.
    pub name: String,
    /// Empty for one budget for each agent.
    pub by: Vec<String>,
}

/// What is wrong with a request, and what to do.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RequestError {
    #[error("no probe has a metric `{name}`: {}", hint(similar.as_deref()))]
    NoMetric { name: String, similar: Option<String> },
    #[error("`{metric}` is a {}: an objective on latency takes a histogram", kind.name())]
    NotAHistogram { metric: String, kind: Kind },
    #[error("`{0}` is no objective: write a number of per cent above 0 and below 100, such as `99.9`")]
    Percent(String),
    #[error("the threshold is wrong: {0}")]
    Threshold(#[from] QuantityError),
    #[error("`{threshold}` cannot be compared with {metric}, which has {}", if unit.is_empty() { "no unit" } else { unit })]
    Unit { threshold: String, metric: String, unit: String },
    /// With the buckets below and above.
    #[error(
        "{threshold} is no bucket of {metric}, so that nothing counts what is below it: take {}, or add it to `buckets.classic` \
         of the metric in its probe file", near.join(" or ")
    )]
    NoBucket { threshold: String, metric: String, near: Vec<String> },
    /// The rest of the selector.
    #[error("the selector is wrong at `{0}`: write it as `a=\"b\", c=~\"d|e\"`")]
    Selector(String),
    #[error("{metric} has no label `{label}`: did you mean `{similar}`?")]
    NoLabel { metric: String, label: String, similar: String },
    #[error("`{0}` is no name of a label")]
    NotALabel(String),
    #[error("a budget cannot be split by `{0}`: the rules use it themselves")]
    ReservedLabel(String),
    #[error("`{0}` is no name of a service or objective: it has letters, digits, `-`, `_` and `.`")]
    Name(String),
}

fn hint(similar: Option<&str>) -> String {
    match similar {
        Some(near) => format!("did you mean `{near}`?"),
        None => "`kstrobe list metrics` has all of them".to_owned(),
    }
}

/// Checks a request.
pub fn objective(catalogue: &Catalogue, request: &Request) -> Result<Objective, RequestError> {
    let metric = histogram(catalogue, &request.metric)?;
    let percent = percent(&request.percent)?;
    let threshold = threshold(metric, &request.threshold)?;
    let matchers = matchers(metric, &request.selector)?;
    let by = match request.by.is_empty() {
        true => BY.map(str::to_owned).to_vec(),
        false => request.by.clone(),
    };
    if let Some(wrong) = by.iter().find(|label| !is_label(label)) {
        return Err(RequestError::NotALabel(wrong.clone()));
    }
    if let Some(wrong) = by.iter().find(|label| matches!(label.as_str(), "le" | "sloth_window")) {
        return Err(RequestError::ReservedLabel(wrong.clone()));
    }
    for text in [&request.service, &request.name] {
        if !text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.')) {
            return Err(RequestError::Name(text.clone()));
        }
    }
    let base = metric.name.trim_start_matches(PREFIX).trim_end_matches("_seconds").replace('_', "-");
    let or = |text: &str, default: &str| if text.is_empty() { default.to_owned() } else { text.to_owned() };
    let of = if matchers.is_empty() { String::new() } else { format!(" with {matchers}") };
    Ok(Objective {
        service: or(&request.service, "kstrobe"),
        name: or(&request.name, &base),
        says: format!("{percent} % of {}{of} are {} or less", metric.name, shown(metric, threshold)),
        metric: metric.name.clone(),
        matchers,
        threshold,
        percent,
        by,
    })
}

fn histogram<'a>(catalogue: &'a Catalogue, name: &str) -> Result<&'a Metric, RequestError> {
    let Some((_, metric)) = catalogue.find(name) else {
        let histograms = catalogue.metrics().filter(|metric| metric.kind == Kind::Histogram);
        let names = histograms.flat_map(|metric| [Some(metric.name.as_str()), metric.name.strip_prefix(PREFIX)]);
        let similar = did_you_mean(name, names.flatten()).map(str::to_owned);
        return Err(RequestError::NoMetric { name: name.to_owned(), similar });
    };
    match metric.kind {
        Kind::Histogram => Ok(metric),
        kind => Err(RequestError::NotAHistogram { metric: metric.name.clone(), kind }),
    }
}

fn percent(text: &str) -> Result<f64, RequestError> {
    let number = text.trim().trim_end_matches('%').trim_end();
    let wrong = || RequestError::Percent(text.to_owned());
    let percent: f64 = number.parse().map_err(|_| wrong())?;
    // Finer than this would be lost in the rounding of the budget.
    if percent > 0.0 && percent <= 99.99999 { Ok(percent) } else { Err(wrong()) }
}

fn threshold(metric: &Metric, text: &str) -> Result<f64, RequestError> {
    let quantity = kstrobe_config::quantity(text)?;
    let fits = match quantity {
        Quantity::Number(_) => true,
        Quantity::Seconds(_) => metric.unit == "seconds",
        Quantity::Bytes(_) => metric.unit == "bytes",
        Quantity::Percent(_) => false,
    };
    if !fits {
        let (threshold, unit) = (text.to_owned(), metric.unit.clone());
        return Err(RequestError::Unit { threshold, metric: metric.name.clone(), unit });
    }
    let value = quantity.value();
    let same = |bound: &&f64| (**bound - value).abs() <= bound.abs() * 1e-9;
    if let Some(bound) = metric.bounds.iter().find(same) {
        return Ok(*bound);
    }
    let above = metric.bounds.partition_point(|bound| *bound < value);
    let near = [above.checked_sub(1), Some(above)].into_iter().flatten().filter_map(|at| metric.bounds.get(at));
    let near = near.map(|bound| shown(metric, *bound)).collect();
    Err(RequestError::NoBucket { threshold: text.to_owned(), metric: metric.name.clone(), near })
}

/// A value with the unit that makes it short.
fn shown(metric: &Metric, value: f64) -> String {
    if metric.unit != "seconds" {
        return format!("{value} {}", metric.unit).trim_end().to_owned();
    }
    let units = [("s", 1.0), ("ms", 1e3), ("us", 1e6), ("ns", 1e9)];
    let (unit, scale) = units.iter().find(|(_, scale)| value * scale >= 1.0).unwrap_or(&units[3]);
    format!("{}{unit}", rounded(value * scale))
}

/// Matchers with one spelling. What is not a matcher is refused: it goes into queries as it is.
fn matchers(metric: &Metric, text: &str) -> Result<String, RequestError> {
    let text = text.trim();
    let inside = text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).unwrap_or(text).trim();
    let mut rest = inside.trim_end_matches(',').trim_end();
    let mut found: Vec<String> = Vec::new();
    while !rest.is_empty() {
        let wrong = |rest: &str| RequestError::Selector(rest.chars().take(40).collect());
        let end = rest.find(['=', '!']).ok_or_else(|| wrong(rest))?;
        let (label, after) = (rest[..end].trim_end(), &rest[end..]);
        let operator =
            ["=~", "!=", "!~", "="].into_iter().find(|op| after.starts_with(op)).ok_or_else(|| wrong(rest))?;
        let value = after[operator.len()..].trim_start();
        if !is_label(label) || !value.starts_with('"') {
            return Err(wrong(rest));
        }
        // JSON's strings are among PromQL's, and what they hold is written anew.
        let mut values = serde_json::Deserializer::from_str(value).into_iter::<String>();
        let Some(Ok(string)) = values.next() else { return Err(wrong(rest)) };
        rest = value[values.byte_offset()..].trim_start();
        if let Some(near) = (!metric.labels.iter().any(|known| known == label))
            .then(|| did_you_mean(label, metric.labels.iter().map(String::as_str)))
            .flatten()
        {
            let (metric, label) = (metric.name.clone(), label.to_owned());
            return Err(RequestError::NoLabel { metric, label, similar: near.to_owned() });
        }
        found.push(format!("{label}{operator}{}", quoted(&string)));
        match rest.strip_prefix(',') {
            Some(next) if !next.trim().is_empty() => rest = next.trim_start(),
            None if rest.is_empty() => {}
            _ => return Err(wrong(rest)),
        }
    }
    Ok(found.join(", "))
}

fn is_label(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::promql::FORMS;

    fn ask(metric: &str, percent: &str, threshold: &str, selector: &str) -> Result<Objective, RequestError> {
        let request = Request {
            metric: metric.into(),
            percent: percent.into(),
            threshold: threshold.into(),
            selector: selector.into(),
            ..Request::default()
        };
        objective(&crate::catalogue(), &request)
    }

    #[test]
    fn right_requests() {
        let asked = ask("recv_wait_seconds", "99.9", "10ms", r#"{comm=~"mysql.*",syscall="recvfrom",}"#).unwrap();
        assert_eq!(asked.metric, "kstrobe_recv_wait_seconds");
        assert_eq!(asked.id(), "kstrobe-recv-wait");
        assert_eq!((asked.threshold, asked.percent, asked.budget()), (0.01, 99.9, 0.001));
        assert_eq!(asked.matchers, r#"comm=~"mysql.*", syscall="recvfrom""#);
        assert_eq!(asked.by, ["job", "instance"]);
        let rules = crate::slo_rules("", &[asked], FORMS[0]);
        assert!(rules.contains(
            r#"kstrobe_recv_wait_seconds_bucket{job="kstrobe", comm=~"mysql.*", syscall="recvfrom", le="0.01"}[5m]"#
        ));
        assert_eq!(ask("kstrobe_received_packet_bytes", "99%", "4KiB", "").unwrap().threshold, 4096.0);
        assert_eq!(ask("received_packet_bytes", "99", "4096", "").unwrap().name, "received-packet-bytes");
    }

    #[test]
    fn mistakes_say_what_to_do() {
        for (metric, percent, threshold, selector, expected) in [
            ("recv_wait_second", "99", "10ms", "", "no probe has a metric `recv_wait_second`"),
            ("tcp_retransmits_total", "99", "10ms", "", "is a counter: an objective on latency takes a histogram"),
            ("recv_wait_seconds", "0", "10ms", "", "`0` is no objective"),
            ("recv_wait_seconds", "100", "10ms", "", "`100` is no objective"),
            ("recv_wait_seconds", "NaN", "10ms", "", "`NaN` is no objective"),
            ("recv_wait_seconds", "99", "12ms", "", "take 10ms or 25ms"),
            ("recv_wait_seconds", "99", "1ns", "", "take 1us, or add"),
            ("recv_wait_seconds", "99", "60s", "", "take 10s, or add"),
            ("recv_wait_seconds", "99", "4KiB", "", "cannot be compared"),
            ("recv_wait_seconds", "99", "10 parsecs", "", "the threshold is wrong"),
            ("recv_wait_seconds", "99", "10ms", r#"com="x""#, "has no label `com`"),
            ("recv_wait_seconds", "99", "10ms", r#"comm="x"} or vector(1)"#, "the selector is wrong at"),
            ("recv_wait_seconds", "99", "10ms", "comm", "the selector is wrong at `comm`"),
            ("recv_wait_seconds", "99", "10ms", r#"comm="x"#, "the selector is wrong at"),
            ("recv_wait_seconds", "99", "10ms", r#"comm="x" syscall="y""#, "the selector is wrong at"),
            ("recv_wait_seconds", "99", "10ms", "co\u{f6}m=\"x\"", "the selector is wrong at"),
        ] {
            let error = ask(metric, percent, threshold, selector).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let by = |by: &str| {
            let request = Request {
                metric: "recv_wait_seconds".into(),
                percent: "99".into(),
                threshold: "10ms".into(),
                by: vec![by.into()],
                ..Request::default()
            };
            objective(&crate::catalogue(), &request)
        };
        assert!(by("a b").unwrap_err().to_string().contains("no name of a label"));
        assert!(by("le").unwrap_err().to_string().contains("cannot be split"));
        assert_eq!(by("cluster").unwrap().by, ["cluster"]);
    }
}
