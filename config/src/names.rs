//! Rules for names, and the name somebody probably meant.

use crate::report::Problem;
use crate::tools::TOOL_SUFFIXES;
use kstrobe_ebpf::diag::did_you_mean;
use kstrobe_ebpf::{check, lang};

/// Kernel type information holds names of up to 127 bytes; ours get prefixes there.
pub(crate) const MAX_IDENTIFIER: usize = 64;
/// Nothing in Prometheus limits names; tables and dashboards do.
pub(crate) const MAX_METRIC: usize = 128;

/// Suffixes that say a unit other than the base unit, and the base unit.
const SCALED_UNITS: [(&str, &str); 22] = [
    ("ns", "seconds"),
    ("us", "seconds"),
    ("ms", "seconds"),
    ("sec", "seconds"),
    ("secs", "seconds"),
    ("second", "seconds"),
    ("nanoseconds", "seconds"),
    ("microseconds", "seconds"),
    ("milliseconds", "seconds"),
    ("minutes", "seconds"),
    ("hours", "seconds"),
    ("kb", "bytes"),
    ("mb", "bytes"),
    ("gb", "bytes"),
    ("kib", "bytes"),
    ("mib", "bytes"),
    ("gib", "bytes"),
    ("kilobytes", "bytes"),
    ("megabytes", "bytes"),
    ("gigabytes", "bytes"),
    ("byte", "bytes"),
    ("bits", "bytes"),
];

/// Suffixes that exporters add to a family's name themselves.
const RESERVED_SUFFIXES: [&str; 4] = ["_bucket", "_sum", "_count", "_created"];

/// The base unit that a scaled one (`ms`) should be given in.
pub(crate) fn base_unit(unit: &str) -> Option<&'static str> {
    SCALED_UNITS.iter().find(|(scaled, _)| *scaled == unit).map(|(_, base)| *base)
}

/// Whether `text` is a C identifier: letters, digits and `_`, no digit first.
pub(crate) fn is_identifier(text: &str) -> bool {
    !text.starts_with(|c: char| c.is_ascii_digit())
        && !text.is_empty()
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// A name of `what` that becomes a C identifier in the object.
pub(crate) fn identifier(text: &str, what: &str) -> Result<(), Problem> {
    if !is_identifier(text) {
        let hint = "use letters, digits and `_`, and begin with no digit";
        return Err(Problem::new(format!("`{text}` is not a {what}")).hint(hint));
    }
    short(text, what, MAX_IDENTIFIER)
}

/// A name of `let:`, which no word of the expressions has.
pub(crate) fn let_name(text: &str) -> Result<(), Problem> {
    if check::is_word(text) || lang::KEYWORDS.contains(&text) {
        return Err(Problem::new(format!("`{text}` is a word of expressions")).hint("choose another name"));
    }
    identifier(text, "name of `let`")
}

fn short(text: &str, what: &str, limit: usize) -> Result<(), Problem> {
    if text.len() > limit {
        return Err(Problem::new(format!("a {what} has at most {limit} characters, and this has {}", text.len())));
    }
    Ok(())
}

/// What every exported name begins with.
pub const PREFIX: &str = "kstrobe_";

/// The agent's own metrics without the prefix, sorted: no metric of a probe may be called so. A test of the room `mixin`
/// compares them with the recorded list.
pub const OWN_METRICS: &[&str] = &[
    "build_info",
    "captures_evicted_total",
    "captures_running",
    "captures_stored_bytes",
    "captures_total",
    "config_errors",
    "config_hash",
    "config_last_reload_success_timestamp_seconds",
    "config_last_reload_successful",
    "config_reloads_total",
    "events_unwritten_total",
    "export_failures_total",
    "export_last_success_timestamp_seconds",
    "export_points_dropped_total",
    "export_points_sent_total",
    "export_points_superseded_total",
    "export_queue_bytes",
    "export_queue_points",
    "export_retries_total",
    "history_disk_dropped_marks_total",
    "history_disk_dropped_seconds_total",
    "history_disk_size_bytes",
    "history_disk_stopped",
    "history_dropped_marks_total",
    "history_dropped_seconds_total",
    "history_kept_seconds",
    "history_size_bytes",
    "http_accept_errors_total",
    "http_connections_ended_total",
    "http_connections_total",
    "http_open_connections",
    "http_requests_refused_total",
    "http_requests_total",
    "iteration_seconds",
    "iterations_late_total",
    "kubernetes_events_total",
    "kubernetes_failures_total",
    "lost_total",
    "map_capacity",
    "map_entries",
    "poll_errors_total",
    "probe_attached",
    "probe_choice_info",
    "probe_over_budget",
    "probe_sampling_ratio",
    "probe_throttled_total",
    "program_missed_total",
    "program_run_seconds_total",
    "program_runs_total",
    "read_errors_total",
    "rule_captures_total",
    "scrape_age_seconds",
    "scrape_duration_seconds",
    "scrapes_broken_total",
    "scrapes_late_total",
    "scrapes_total",
    "series_evicted_total",
    "series_overflow_total",
    "series_waiting",
    "slow_events_total",
    "unwind_files",
    "unwind_no_room_total",
    "unwind_processes",
    "unwind_rows",
    "user_stacks_total",
    "web_config_last_reload_success_timestamp_seconds",
    "web_config_last_reload_successful",
    "web_config_reload_failures_total",
    "web_config_reloads_total",
    "workloads_cgroups",
    "workloads_expired_total",
    "workloads_late_total",
    "workloads_pods",
    "workloads_reused_total",
    "workloads_unresolved_total",
    "workloads_unselected",
    "workloads_walk_errors_total",
    "workloads_walk_seconds",
];

/// The family of a metric in OpenMetrics: a counter's is its name without `_total`.
pub(crate) fn family(metric: &str) -> &str {
    metric.strip_suffix("_total").unwrap_or(metric)
}

/// Whether a metric's name differs from those of the agent's own.
pub(crate) fn no_own_metric(text: &str) -> Result<(), Problem> {
    let Some(own) = OWN_METRICS.iter().find(|own| family(own) == family(text)) else { return Ok(()) };
    let message = match *own == text {
        true => format!("`{text}` is one of the agent's own metrics"),
        false => format!("`{text}` and `{own}`, one of the agent's own metrics, are one family in OpenMetrics"),
    };
    Err(Problem::new(message).hint("take another name"))
}

/// A Prometheus metric name without our prefix, for a counter or something else.
pub(crate) fn metric(text: &str, counter: bool) -> Result<(), Problem> {
    if !is_identifier(text) {
        let hint = "use letters, digits and `_`, and begin with no digit";
        return Err(Problem::new(format!("`{text}` is not a metric name")).hint(hint));
    }
    short(text, "metric name", MAX_METRIC)?;
    if let Some(rest) = text.strip_prefix(PREFIX) {
        return Err(Problem::new(format!("`{text}` would be exported as `{PREFIX}{text}`"))
            .at(0..text.len() - rest.len())
            .hint(format!("leave the prefix out: `{rest}`")));
    }
    let stem = text.strip_suffix("_total");
    match (counter, stem) {
        (true, None) => {
            return Err(Problem::new(format!("the name of counter `{text}` must end in `_total`"))
                .hint(format!("name it `{text}_total`")));
        }
        (false, Some(stem)) => {
            return Err(Problem::new(format!("`{text}` ends in `_total` but is not a counter"))
                .at(stem.len()..text.len())
                .hint(format!("name it `{stem}`, or make it `type: counter`")));
        }
        _ => {}
    }
    suffixes(text, stem.unwrap_or(text))
}

fn suffixes(text: &str, stem: &str) -> Result<(), Problem> {
    let Some((head, last)) = stem.rsplit_once('_') else { return Ok(()) };
    if let Some(base) = base_unit(last) {
        let total = &text[stem.len()..];
        return Err(Problem::new(format!("metrics are exported in base units, not in `{last}`"))
            .at(head.len() + 1..stem.len())
            .hint(format!("name it `{head}_{base}{total}`")));
    }
    if RESERVED_SUFFIXES.iter().any(|s| stem.ends_with(s)) {
        return Err(Problem::new(format!("the suffix `_{last}` belongs to the series of a histogram or counter"))
            .at(head.len()..stem.len())
            .hint(format!("name what is measured, for example `{head}`")));
    }
    Ok(())
}

/// A Prometheus label name.
pub(crate) fn label(text: &str) -> Result<(), Problem> {
    if !is_identifier(text) {
        let hint = "use letters, digits and `_`, and begin with no digit";
        return Err(Problem::new(format!("`{text}` is not a label name")).hint(hint));
    }
    if matches!(text, "le" | "quantile") {
        return Err(Problem::new(format!("Prometheus itself uses label `{text}`")).hint("choose another name"));
    }
    if text.starts_with("__") {
        return Err(Problem::new("label names that begin with `__` belong to Prometheus")
            .hint(format!("name it `{}`", text.trim_start_matches('_'))));
    }
    short(text, "label name", MAX_METRIC)
}

/// The name of a command, without what packages append to it.
pub(crate) fn tool(text: &str) -> Result<String, Problem> {
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '-' | '.');
    if !text.starts_with(|c: char| c.is_ascii_lowercase()) || !text.chars().all(is_name) {
        let hint = "give the command alone, in small letters, as in `runqlat`";
        return Err(Problem::new(format!("`{text}` is not the name of a tool")).hint(hint));
    }
    if let Some(bare) = TOOL_SUFFIXES.iter().find_map(|suffix| text.strip_suffix(suffix)) {
        let problem = Problem::new(format!("`{text}` is a package's name for `{bare}`")).at(bare.len()..text.len());
        return Err(problem.hint(format!("write `{bare}`, which stands for both")));
    }
    short(text, "name of a tool", MAX_IDENTIFIER).map(|()| text.to_owned())
}

/// [`did_you_mean`] as a hint, or the list of what there is.
pub(crate) fn suggestion(name: &str, candidates: &[&str]) -> String {
    match did_you_mean(name, candidates.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("it is {}", one_of(candidates)),
    }
}

/// "one of `a`, `b` or `c`".
pub(crate) fn one_of(names: &[&str]) -> String {
    match names {
        [] => "nothing".to_owned(),
        [only] => format!("`{only}`"),
        [rest @ .., last] => format!("one of `{}` or `{last}`", rest.join("`, `")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(result: Result<(), Problem>) -> String {
        result.unwrap_err().hint.unwrap_or_default()
    }

    #[test]
    fn metric_names_carry_base_units_and_the_right_suffix() {
        assert_eq!(metric("recv_wait_seconds", false), Ok(()));
        assert_eq!(metric("recv_seconds_total", true), Ok(()));
        assert_eq!(metric("segments", false), Ok(()));
        assert_eq!(hint(metric("recv_wait_ms", false)), "name it `recv_wait_seconds`");
        assert_eq!(hint(metric("busy_us_total", true)), "name it `busy_seconds_total`");
        assert_eq!(hint(metric("read_kib", false)), "name it `read_bytes`");
        assert_eq!(hint(metric("calls", true)), "name it `calls_total`");
        assert_eq!(hint(metric("depth_total", false)), "name it `depth`, or make it `type: counter`");
        assert_eq!(hint(metric("kstrobe_calls_total", true)), "leave the prefix out: `calls_total`");
        assert_eq!(hint(metric("queue_count", false)), "name what is measured, for example `queue`");
        for bad in ["", "9x", "a:b", "a-b", "é"] {
            assert!(metric(bad, false).unwrap_err().message.contains("is not a metric name"), "{bad}");
        }
        assert!(metric(&"x".repeat(129), false).is_err());
    }

    #[test]
    fn labels_of_prometheus_are_refused() {
        assert_eq!(label("syscall"), Ok(()));
        for bad in ["le", "quantile", "__name__", "a.b", ""] {
            assert!(label(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn near_names_are_suggested_and_far_ones_are_not() {
        assert_eq!(suggestion("sumary", &["summary", "span"]), "did you mean `summary`?");
        assert_eq!(suggestion("guage", &["gauge", "counter"]), "did you mean `gauge`?");
        assert_eq!(suggestion("zzz", &["at", "span", "poll"]), "it is one of `at`, `span` or `poll`");
    }
}
