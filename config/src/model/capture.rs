//! `captures:` and `rules:`.

use super::{Location, Spanned};

#[derive(Clone, Debug)]
pub struct Captures {
    /// `dir:` where captures lie, default `/var/lib/kstrobe/captures`.
    pub dir: String,
    /// `max_total_bytes:` of all captures together, default 1 GiB.
    pub max_total_bytes: u64,
    /// `ttl:` age at which a capture is removed, nanoseconds, default 24 h; 0 = never.
    pub ttl_ns: u64,
    /// `max_concurrent:` captures that run at once, default 1.
    pub max_concurrent: u32,
    /// `max_duration:` of one capture, nanoseconds, default 60 s.
    pub max_duration_ns: u64,
    /// `max_bytes:` of one capture, default 256 MiB.
    pub max_bytes: u64,
    /// `token_file:` whose text is the bearer token of the API.
    pub token_file: Option<Spanned<String>>,
    /// `alertmanager_default:` for alerts that name no rule.
    pub alertmanager_default: Option<Capture>,
}

/// `capture:`: what to record.
#[derive(Clone, Debug)]
pub struct Capture {
    /// Where it is written.
    pub at: Location,
    pub tracer: Option<String>,
    /// `events:` in file order.
    pub events: Vec<CaptureEvent>,
    /// `functions:` globs.
    pub functions: Vec<String>,
    /// `not_functions:` globs.
    pub not_functions: Vec<String>,
    /// `graph:` roots.
    pub graph: Vec<String>,
    /// `depth:` of calls below a root.
    pub depth: Option<u32>,
    /// `stacks:` of events.
    pub stacks: bool,
    pub function_stacks: bool,
    pub pids: Vec<i32>,
    /// `comms:` globs.
    pub comms: Vec<String>,
    /// `cgroups:` paths.
    pub cgroups: Vec<String>,
    /// `pods:` `NAME` or `NAMESPACE/NAME`.
    pub pods: Vec<String>,
    pub children: bool,
    pub cpus: Vec<u32>,
    pub clock: Option<String>,
    /// `buffer_kib:` of each CPU.
    pub buffer_kib: Option<u64>,
    /// `options:` of tracing, and whether each is on, in file order.
    pub options: Vec<(String, bool)>,
    /// `duration:` nanoseconds.
    pub duration_ns: Option<Spanned<u64>>,
    pub max_bytes: Option<Spanned<u64>>,
    pub flight: Option<Flight>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CaptureEvent {
    /// `event:` `SYSTEM:EVENT`, globs allowed.
    pub event: String,
    /// `filter:` in the kernel's language.
    pub filter: Option<String>,
    /// `triggers:` in the kernel's language.
    pub triggers: Vec<String>,
    /// `exclude: true`
    pub exclude: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flight {
    /// `stop_on:` events, each with a filter.
    pub stop_on: Vec<CaptureEvent>,
    /// `after:` nanoseconds.
    pub after_ns: u64,
}

/// One of `rules:`.
#[derive(Clone, Debug)]
pub struct Rule {
    pub name: Spanned<String>,
    /// `when:`; a rule without it waits for an alert that names it.
    pub when: Option<When>,
    pub capture: Capture,
    /// `every:` time from one look to the next, nanoseconds, default 1 s.
    pub every_ns: u64,
    /// `cooldown:` from one capture of the rule to the next, nanoseconds, default 10 min.
    pub cooldown_ns: u64,
    /// `max_per_hour:` default 3.
    pub max_per_hour: u32,
}

/// `when:`, parsed.
#[derive(Clone, Debug, PartialEq)]
pub struct When {
    /// As it was written, on one line.
    pub text: String,
    /// What is computed.
    pub measure: Measure,
    /// Without the `kstrobe_` prefix.
    pub metric: Spanned<String>,
    /// Which of its series.
    pub matchers: Vec<Matcher>,
    /// `over`, nanoseconds, default 10 s.
    pub over_ns: u64,
    /// How it is compared.
    pub compare: Compare,
    pub threshold: Spanned<Quantity>,
    /// `for`, nanoseconds, default 0.
    pub for_ns: u64,
}

/// What is computed of a series.
#[derive(Clone, Debug, PartialEq)]
pub enum Measure {
    /// `p99(..)`: the value that this share (0.99) of the observations does not exceed.
    Quantile(f64),
    /// `rate(..)`: increase of a counter, or observations of a histogram, per second.
    Rate,
    /// `share(.. > BOUND)`: the share of observations that compare so.
    Share {
        /// How observations are compared.
        compare: Compare,
        bound: Spanned<Quantity>,
    },
    /// `value(..)` of a gauge.
    Value,
}

/// A comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    /// `>`
    Above,
    /// `>=`
    AtLeast,
    /// `<`
    Below,
    /// `<=`
    AtMost,
}

impl Compare {
    /// Whether `value` compares so with `bound`.
    pub fn holds(self, value: f64, bound: f64) -> bool {
        match self {
            Compare::Above => value > bound,
            Compare::AtLeast => value >= bound,
            Compare::Below => value < bound,
            Compare::AtMost => value <= bound,
        }
    }

    /// Whether large values are what it looks for.
    pub fn looks_up(self) -> bool {
        matches!(self, Compare::Above | Compare::AtLeast)
    }
}

/// A number as it was written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Quantity {
    /// Without a unit.
    Number(f64),
    /// `50ms`, in seconds.
    Seconds(f64),
    /// `4KiB`, in bytes.
    Bytes(f64),
    /// `5%`, as a share of 1.
    Percent(f64),
}

impl Quantity {
    /// In the exported unit: seconds, bytes, or a plain number.
    pub fn value(self) -> f64 {
        match self {
            Quantity::Number(x) | Quantity::Seconds(x) | Quantity::Bytes(x) | Quantity::Percent(x) => x,
        }
    }
}

/// A condition on a label; one that a series does not have is empty.
#[derive(Clone, Debug, PartialEq)]
pub struct Matcher {
    /// Its name.
    pub label: Spanned<String>,
    /// How it is compared.
    pub kind: Match,
    /// With what: a text, or a glob (`*`, `?`).
    pub text: String,
}

/// How a label is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// `=`
    Equal,
    /// `!=`
    NotEqual,
    /// `=~` a glob.
    Like,
    /// `!~` a glob.
    Unlike,
}

impl Match {
    /// Whether it compares with a glob.
    pub fn is_glob(self) -> bool {
        matches!(self, Match::Like | Match::Unlike)
    }

    /// Whether it must not fit.
    pub fn is_negated(self) -> bool {
        matches!(self, Match::NotEqual | Match::Unlike)
    }
}
