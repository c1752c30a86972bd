//! What the language page lists: taken from the code, so that the page can be compared with it.

use crate::check::{self, buckets, hook, library, metric, owner, sampling, slow, stacks, steps, workloads};
use crate::{names, quantity, raw};

/// Every word that a probe file may have, by where it stands.
pub fn words() -> Vec<(&'static str, Vec<&'static str>)> {
    let mut all: Vec<_> = [
        check::PROBE,
        check::SPAN,
        check::BY,
        check::WHERE,
        steps::STATE,
        steps::STEP,
        check::POLL,
        hook::FIRST_OF,
        metric::KEYS,
        buckets::KEYS,
        slow::KEYS,
        slow::SPAN_KEYS,
        owner::KEYS,
        library::COST,
    ]
    .map(|k| (k.of, k.known.to_vec()))
    .into();
    all.push(("`type`", metric::KINDS.to_vec()));
    all.push(("a class of cost", library::CLASSES.to_vec()));
    all.push(("a unit", metric::UNIT_SUFFIXES.to_vec()));
    all.push(("a hook", hook::KINDS.map(|(_, shape)| shape).to_vec()));
    let events = |events: &[(&'static str, &'static str, u64)]| {
        events.iter().flat_map(|(name, short, _)| [*name, *short]).filter(|name| !name.is_empty()).collect()
    };
    all.push(("a `software:` event", events(&sampling::SOFTWARE)));
    all.push(("a `hardware:` event", events(&sampling::HARDWARE)));
    all.push(("an `iter:` object", sampling::OBJECTS.to_vec()));
    all
}

/// Full names of the perf events that `software:` and `hardware:` take.
pub fn perf_events() -> (Vec<&'static str>, Vec<&'static str>) {
    let names = |events: &[(&'static str, &'static str, u64)]| events.iter().map(|(name, ..)| *name).collect();
    (names(&sampling::SOFTWARE), names(&sampling::HARDWARE))
}

/// Ranges and defaults, in words.
pub fn limits() -> Vec<(&'static str, String)> {
    let at_most = |n: usize| n.to_string();
    let (ns, bytes) = (quantity::show_ns, quantity::show_bytes);
    vec![
        ("a file", bytes(raw::MAX_BYTES as u64)),
        ("values of a file, with aliases expanded", at_most(raw::MAX_NODES)),
        ("levels of nesting in YAML", at_most(raw::MAX_DEPTH)),
        ("characters of a probe's or saved value's name", at_most(names::MAX_IDENTIFIER)),
        ("characters of a metric's or label's name", at_most(names::MAX_METRIC)),
        (
            "`max_map_bytes`",
            format!(
                "{} to {}, {} by default",
                bytes(check::MIN_MAP_BYTES),
                bytes(check::MAX_MAP_BYTES),
                bytes(check::DEFAULT_MAP_BYTES)
            ),
        ),
        ("`budget_cpu_percent`", "0 to 10000; a share of the agent's by default".to_owned()),
        (
            "`limits.native_bucket_limit`",
            format!("0 to {}, {} by default", check::MAX_NATIVE_BUCKETS, check::DEFAULT_NATIVE_BUCKETS),
        ),
        ("`limits.kept_events`", format!("1 to {}, {} by default", check::MAX_KEPT_EVENTS, check::DEFAULT_KEPT_EVENTS)),
        (
            "`workloads.walk`",
            format!("at least {}, {} by default", ns(workloads::MIN_WALK_NS), ns(workloads::DEFAULT_WALK_NS)),
        ),
        (
            "`workloads.grace`",
            format!("at least {}, {} by default", ns(workloads::MIN_NS), ns(workloads::DEFAULT_GRACE_NS)),
        ),
        (
            "`workloads.wait`",
            format!("at least {}, {} by default", ns(workloads::MIN_NS), ns(workloads::DEFAULT_WAIT_NS)),
        ),
        ("`span.max_entries`", format!("1 to {}, {} by default", check::MAX_ENTRIES, check::DEFAULT_MAX_OPEN)),
        ("`poll.every`", format!("at least {}, {} by default", ns(check::MIN_EVERY_NS), ns(check::DEFAULT_EVERY_NS))),
        ("`interval:`", format!("{} to {}", ns(hook::MIN_PERIOD_NS), ns(hook::MAX_PERIOD_NS))),
        (
            "`profile:`",
            format!(
                "{}hz, or a period of {} to {}",
                sampling::MAX_HZ,
                ns(sampling::MIN_SAMPLE_NS),
                ns(hook::MAX_PERIOD_NS)
            ),
        ),
        (
            "`max_series`",
            format!(
                "1 to {}, {} by default, {} of stacks",
                metric::MAX_SERIES,
                metric::DEFAULT_MAX_SERIES,
                stacks::DEFAULT_MAX_SERIES
            ),
        ),
        ("`depth`", format!("1 to {0}, {0} by default", stacks::MAX_DEPTH)),
        ("`ttl`", format!("at least {} or 0, {} by default", ns(metric::SECOND_NS), ns(metric::DEFAULT_TTL_NS))),
        ("`buckets.schema`", format!("0 to {}, {} by default", buckets::MAX_SCHEMA, buckets::DEFAULT_SCHEMA)),
        (
            "`slow.max_per_second`",
            format!("1 to {}, {} by default", slow::MAX_PER_SECOND, slow::DEFAULT_MAX_PER_SECOND),
        ),
        ("`slow.buffer`", format!("{} to {}", bytes(slow::MIN_BUFFER_BYTES), bytes(slow::MAX_BUFFER_BYTES))),
        ("`buckets.classic` bounds", at_most(buckets::MAX_CLASSIC)),
        ("names of `let`", at_most(check::MAX_LETS)),
    ]
}
