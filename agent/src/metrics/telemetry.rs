//! The agent's own metrics, and their names in one place.
//!
//! Two kinds: what happens in the agent is counted as it happens ([`Telemetry::scraped`], [`Telemetry::poll_failed`]); what
//! the kernel counts for us is replaced as a whole before each exposition ([`Telemetry::observe`]), so that a probe
//! that is gone leaves no series behind.

mod captures;
mod config;
mod exports;
mod history;
mod kubernetes;
mod process;
mod unwind;
mod web;
mod workloads;

use kstrobe_export::{Format, to_text_0_0_4};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, prometheus_protobuf, text};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

/// What the kernel says about the agent's probes at one moment. Counters are totals.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// One per hook of every enabled probe, attached or not.
    pub attachments: Vec<Attachment>,
    /// One per choice made for this kernel.
    pub choices: Vec<Chosen>,
    /// One per loaded program.
    pub programs: Vec<ProgramUse>,
    /// One per map whose fill means something.
    pub maps: Vec<MapUse>,
    /// One per probe and reason.
    pub losses: Vec<Lost>,
    /// One per probe.
    pub series: Vec<SeriesUse>,
    /// One per attached probe that sends single events.
    pub events: Vec<EventCount>,
    /// One per probe that has a budget.
    pub budgets: Vec<BudgetUse>,
    /// One per probe at iterators.
    pub iterations: Vec<IterationUse>,
    /// When there are captures.
    pub captures: Option<CapturesUse>,
    /// How often rules asked for a capture: rule, what came of it, number.
    pub rules: Vec<(String, &'static str, u64)>,
    /// Connections and requests.
    pub web: Option<kstrobe_web::Counts>,
    /// Receivers.
    pub exports: ExportUse,
    /// When some probe asks for names of cgroups.
    pub workloads: Option<WorkloadsUse>,
    /// When there is a history.
    pub history: Option<kstrobe_history::Usage>,
    /// When it is written to disk.
    pub history_disk: Option<kstrobe_history::disk::DiskUsage>,
    /// What was asked of Kubernetes.
    pub kubernetes: kstrobe_kube::Counts,
    /// When some probe takes user stacks that are walked by tables.
    pub unwind: Option<UnwindUse>,
}

/// What is known of walks of user stacks by tables.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UnwindUse {
    /// By how they ended.
    pub walks: Vec<(&'static str, u64)>,
    pub processes: u64,
    pub files: u64,
    pub rows: u64,
    /// Files and processes whose tables had no room.
    pub no_room: u64,
}

/// What is known of the node's workloads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkloadsUse {
    /// Cgroups by what is known of them.
    pub cgroups: Vec<(&'static str, u64)>,
    /// Pods that can name cgroups.
    pub pods: u64,
    /// Time of the last look at all cgroups.
    pub walk: Duration,
    /// What could not be read of them.
    pub walk_errors: u64,
    /// Shown without the names of their pod.
    pub unresolved: u64,
    /// Names that came after that.
    pub late: u64,
    /// Ids that mean another cgroup than before.
    pub reused: u64,
    /// Forgotten after their end.
    pub expired: u64,
    /// Meant by a condition whose map is full.
    pub unselected: u64,
}

/// What became of what was sent to receivers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExportUse {
    /// One per receiver that is sent to.
    pub now: Vec<kstrobe_export::push::Usage>,
    /// One per receiver that is not any more: its totals stay.
    pub past: Vec<kstrobe_export::push::Usage>,
}

/// What the agent exports about captures. Counters are totals.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CapturesUse {
    /// Captures that run.
    pub running: u64,
    pub stored_bytes: u64,
    /// Removed to keep the limits.
    pub evicted: Evicted,
    /// By who wanted them and what became of them.
    pub ended: Vec<(String, &'static str, u64)>,
}

/// Captures that were removed to keep the limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evicted {
    /// Too old.
    pub ttl: u64,
    /// Too many bytes, or too many captures.
    pub quota: u64,
}

/// Whether a hook is attached.
#[derive(Clone, Debug, PartialEq)]
pub struct Attachment {
    pub probe: String,
    /// As the user wrote it.
    pub hook: String,
    /// What was chosen for it: `tp_btf`, `raw_tp`, `tracepoint`, `poll`, ... ; empty when nothing was.
    pub kind: String,
    /// Why it is not attached, empty when it is.
    pub reason: String,
}

/// What was chosen among several ways.
#[derive(Clone, Debug, PartialEq)]
pub struct Chosen {
    pub probe: String,
    /// What was asked for, or is best.
    pub wanted: String,
    /// What it became.
    pub got: String,
    /// Why not something better, empty when it is the best.
    pub because: String,
}

/// A program's cost, as its hook has measured it.
#[derive(Clone, Debug, PartialEq)]
pub struct ProgramUse {
    /// Probe, or several joined by `+` when they share it.
    pub probe: String,
    pub program: String,
    /// Nanoseconds it ran.
    pub run_ns: u64,
    /// Times it ran.
    pub runs: u64,
    /// Times it did not run as it was running already on that CPU.
    pub missed: u64,
}

/// How full a map is.
#[derive(Clone, Debug, PartialEq)]
pub struct MapUse {
    pub probe: String,
    pub map: String,
    /// Elements in use.
    pub entries: u64,
    /// Most elements.
    pub capacity: u64,
}

/// Events that were not measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Lost {
    pub probe: String,
    /// [`kstrobe_ebpf::layout::Loss::name`].
    pub reason: &'static str,
    /// How many.
    pub events: u64,
}

/// Single events that came.
#[derive(Clone, Debug, PartialEq)]
pub struct EventCount {
    pub probe: String,
    /// How many.
    pub events: u64,
}

/// Label sets that did not stay.
#[derive(Clone, Debug, PartialEq)]
pub struct SeriesUse {
    pub probe: String,
    /// Events counted in a series whose labels are all `other`.
    pub overflowed: u64,
    /// Keys given back after their time to live.
    pub evicted: u64,
    /// Where labels are names of cgroups: keys that wait for them.
    pub waiting: Option<usize>,
}

/// Most bytes of a text of free form in a label; `/api/v1/probes` has all of it.
const MAX_LABEL_BYTES: usize = 256;

/// How a probe stands with its overhead budget.
#[derive(Clone, Debug, PartialEq)]
pub struct BudgetUse {
    pub probe: String,
    /// Of so many events one is measured.
    pub one_of: u64,
    /// Whether events are passed over, or the probe is off its hooks.
    pub over: bool,
    /// Times it was throttled.
    pub throttled: u64,
}

/// What reading a probe's iterators takes.
#[derive(Clone, Debug, PartialEq)]
pub struct IterationUse {
    pub probe: String,
    /// How long the last walk over all objects took.
    pub took: Duration,
    /// Scrapes that could not wait for a walk and showed the one before.
    pub late: u64,
}

type Labels = Vec<(&'static str, String)>;

/// The agent's own metrics.
#[derive(Debug)]
pub struct Telemetry {
    registry: Registry,
    observed: Arc<RwLock<Observed>>,
    scrapes: Counter,
    scrapes_late: Counter,
    scrapes_broken: Counter,
    scrape_duration: Histogram,
    poll_errors: Family<Labels, Counter>,
    read_errors: Family<Labels, Counter>,
    events_unwritten: Counter,
    config: config::Config,
}

impl Telemetry {
    /// Everything at zero. `revision` is the commit it was built from, when known.
    pub fn new(version: &str, revision: Option<&str>) -> Self {
        let mut registry = Registry::default();
        let observed = Arc::new(RwLock::new(Observed::default()));
        let [scrapes, scrapes_late, scrapes_broken] = std::array::from_fn(|_| Counter::default());
        let buckets = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5];
        let scrape_duration = Histogram::new(buckets);
        let (poll_errors, read_errors) = (Family::default(), Family::default());
        let events_unwritten = Counter::default();

        // The registry ends every help text with a full stop.
        let own = registry.sub_registry_with_prefix("kstrobe");
        let mut build: Labels = vec![("version", version.to_owned())];
        build.extend(revision.map(|revision| ("revision", revision.to_owned())));
        own.register("build", "Version of the agent", Info::new(build));
        own.register("scrapes", "Expositions written", scrapes.clone());
        let help = "Scrapes that were answered with the last complete exposition, as reading took too long";
        own.register("scrapes_late", help, scrapes_late.clone());
        let help = "Scrapes whose connection was closed in the middle, as the exposition could not be completed";
        own.register("scrapes_broken", help, scrapes_broken.clone());
        let help = "Time to read all maps and write one exposition";
        own.register_with_unit("scrape_duration", help, Unit::Seconds, scrape_duration.clone());
        own.register("poll_errors", "Poll sources that could not be read, by source", poll_errors.clone());
        let help = "Tables and counters in the kernel that could not be read, by probe";
        own.register("read_errors", help, read_errors.clone());
        let help = "Single events that could not be written to where `events` says";
        own.register("events_unwritten", help, events_unwritten.clone());
        let config = config::Config::new(own);
        own.register_collector(Box::new(ObservedCollector(observed.clone())));
        registry.register_collector(Box::new(process::ProcessCollector::new()));
        Self {
            registry,
            observed,
            scrapes,
            scrapes_late,
            scrapes_broken,
            scrape_duration,
            poll_errors,
            read_errors,
            events_unwritten,
            config,
        }
    }

    /// An exposition was written; what the client took of the time does not count.
    pub fn scraped(&self, took: Duration) {
        self.scrapes.inc();
        self.scrape_duration.observe(took.as_secs_f64());
    }

    /// An exposition is written. It counts as broken unless it ends.
    pub fn exposition(&self) -> Unfinished<'_> {
        Unfinished(Some(&self.scrapes_broken))
    }

    /// A scrape was answered with a reading of this age.
    pub fn scraped_late(&self, age: Duration) {
        self.scrapes_late.inc();
        tracing::debug!(?age, "a scrape is late: the last complete reading was the answer");
    }

    /// A poll source could not be read.
    pub fn poll_failed(&self, source: &str) {
        self.poll_errors.get_or_create(&vec![("source", source.to_owned())]).inc();
    }

    /// Something of a probe could not be read from the kernel.
    pub fn read_failed(&self, probe: &str) {
        self.read_errors.get_or_create(&vec![("probe", probe.to_owned())]).inc();
    }

    /// A single event could not be written out.
    pub fn event_unwritten(&self) {
        self.events_unwritten.inc();
    }

    /// A probe is gone: what was counted of it goes as well.
    pub fn forget(&self, probe: &str) {
        self.read_errors.remove(&vec![("probe", probe.to_owned())]);
    }

    /// The agent runs what files ask for that have this hash, but for so many mistakes.
    pub fn configured(&self, mistakes: usize, hash: &str) {
        self.config.runs(mistakes, hash);
    }

    /// Files were read again, and what they ask for runs or not.
    pub fn reloaded(&self, well: bool) {
        self.config.reloaded(well);
    }

    /// Replaces what is known from the kernel.
    pub fn observe(&self, observed: Observed) {
        *self.observed.write().unwrap_or_else(PoisonError::into_inner) = observed;
    }

    /// What was observed last.
    pub fn observed(&self) -> Observed {
        self.observed.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// All of it as a complete exposition.
    pub fn encode(&self, format: Format) -> Vec<u8> {
        encode(&self.registry, format)
    }
}

/// An exposition that is being written: counted when it is dropped before its end.
pub struct Unfinished<'a>(Option<&'a Counter>);

impl Unfinished<'_> {
    /// All was written that the client takes.
    pub fn ends(mut self) {
        self.0 = None;
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.0.inspect(|broken| _ = broken.inc());
    }
}

/// The last family of an exposition: how old the series of probes are.
pub fn age(format: Format, age: Duration) -> Vec<u8> {
    let mut registry = Registry::default();
    let help = "Age of this exposition: more than 0 when reading takes longer than the scraper waits, and the last complete one is \
                the answer";
    let gauge = Gauge::<f64, AtomicU64>::default();
    gauge.set(age.as_secs_f64());
    registry.sub_registry_with_prefix("kstrobe").register_with_unit("scrape_age", help, Unit::Seconds, gauge);
    encode(&registry, format)
}

fn encode(registry: &Registry, format: Format) -> Vec<u8> {
    let openmetrics = || {
        let mut out = String::new();
        // Writing to a String cannot fail, and our collectors return no error of their own.
        let _ = text::encode(&mut out, registry);
        out
    };
    match format {
        Format::Text004 => to_text_0_0_4(&openmetrics()).into_bytes(),
        Format::OpenMetrics100 => openmetrics().into_bytes(),
        // Neither can writing to a vector.
        Format::Protobuf => prometheus_protobuf::encode_to_vec(registry).unwrap_or_default(),
    }
}

#[derive(Debug)]
struct ObservedCollector(Arc<RwLock<Observed>>);

impl Collector for ObservedCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let observed = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let out = &mut encoder;
        encode_attachments(out, &observed.attachments)?;
        encode_choices(out, &observed.choices)?;
        encode_programs(out, &observed.programs)?;

        let labels = |map: &MapUse| [("probe", map.probe.clone()), ("map", map.map.clone())];
        let entries = observed.maps.iter().map(|map| (labels(map), ConstGauge::new(map.entries)));
        family(out, "map_entries", "Elements in use, by probe and map.", None, entries)?;
        let capacity = observed.maps.iter().map(|map| (labels(map), ConstGauge::new(map.capacity)));
        family(out, "map_capacity", "Most elements, by probe and map.", None, capacity)?;

        let lost = observed.losses.iter().map(|lost| {
            ([("probe", lost.probe.clone()), ("reason", lost.reason.to_owned())], ConstCounter::new(lost.events))
        });
        family(out, "lost", "Events that were not measured, by probe and reason.", None, lost)?;

        let labels = |series: &SeriesUse| [("probe", series.probe.clone())];
        let overflow = observed.series.iter().map(|series| (labels(series), ConstCounter::new(series.overflowed)));
        let help = "Events of label sets beyond max_series, counted in the series whose labels are all other.";
        family(out, "series_overflow", help, None, overflow)?;
        let evicted = observed.series.iter().map(|series| (labels(series), ConstCounter::new(series.evicted)));
        family(out, "series_evicted", "Label sets given back after their time to live.", None, evicted)?;
        let waiting = observed.series.iter().filter_map(|s| Some((labels(s), ConstGauge::new(s.waiting? as u64))));
        let help = "Label sets that are not shown yet, as the names of their cgroups are not known.";
        family(out, "series_waiting", help, None, waiting)?;
        let events = observed.events.iter().map(|e| ([("probe", e.probe.clone())], ConstCounter::new(e.events)));
        family(out, "slow_events", "Single events that came, by probe.", None, events)?;
        encode_iterations(out, &observed.iterations)?;
        encode_budgets(out, &observed.budgets)?;
        captures::encode(out, &observed)?;
        observed.web.iter().try_for_each(|counts| web::encode(out, counts))?;
        observed.history.iter().try_for_each(|usage| history::encode(out, usage))?;
        observed.history_disk.iter().try_for_each(|usage| history::encode_disk(out, usage))?;
        observed.workloads.iter().try_for_each(|used| workloads::encode(out, used))?;
        kubernetes::encode(out, &observed.kubernetes)?;
        observed.unwind.iter().try_for_each(|used| unwind::encode(out, used))?;
        exports::encode(out, &observed)
    }
}

fn encode_iterations(out: &mut DescriptorEncoder, iterations: &[IterationUse]) -> fmt::Result {
    let labels = |i: &IterationUse| [("probe", i.probe.clone())];
    let took = iterations.iter().map(|i| (labels(i), ConstGauge::new(i.took.as_secs_f64())));
    let help = "Time that the last walk over the objects of a probe at iterators took.";
    family(out, "iteration", help, Some(Unit::Seconds), took)?;
    let late = iterations.iter().map(|i| (labels(i), ConstCounter::new(i.late)));
    let help = "Scrapes that could not wait for such a walk and show an older one.";
    family(out, "iterations_late", help, None, late)
}

fn encode_budgets(out: &mut DescriptorEncoder, budgets: &[BudgetUse]) -> fmt::Result {
    let labels = |budget: &BudgetUse| [("probe", budget.probe.clone())];
    let ratio = budgets.iter().map(|budget| (labels(budget), ConstGauge::new(1.0 / budget.one_of.max(1) as f64)));
    let help = "Share of events that the probe samples. Below 1, each sampled event counts for all that it stands for.";
    family(out, "probe_sampling_ratio", help, None, ratio)?;
    let over = budgets.iter().map(|budget| (labels(budget), ConstGauge::new(i64::from(budget.over))));
    let help = "1 while a probe passes events over or is off its hooks because of its own budget or its share.";
    family(out, "probe_over_budget", help, None, over)?;
    let throttled = budgets.iter().map(|budget| (labels(budget), ConstCounter::new(budget.throttled)));
    family(out, "probe_throttled", "Times a probe was sampled at a lower rate or taken off its hooks.", None, throttled)
}

fn encode_attachments(out: &mut DescriptorEncoder, attachments: &[Attachment]) -> fmt::Result {
    let rows = attachments.iter().map(|attachment| {
        let Attachment { probe, hook, kind, reason } = attachment.clone();
        let attached = i64::from(reason.is_empty());
        ([("probe", probe), ("hook", hook), ("kind", kind), ("reason", cut(&reason))], ConstGauge::new(attached))
    });
    family(out, "probe_attached", "1 when the hook is attached, 0 with the reason when it is not.", None, rows)
}

fn encode_choices(out: &mut DescriptorEncoder, choices: &[Chosen]) -> fmt::Result {
    let rows = choices.iter().map(|choice| {
        let Chosen { probe, wanted, got, because } = choice.clone();
        let [wanted, got, because] = [wanted, got, because].map(|text| cut(&text));
        ([("probe", probe), ("wanted", wanted), ("got", got), ("because", because)], ConstGauge::new(1i64))
    });
    family(out, "probe_choice_info", "What was chosen for a probe on this kernel, and why.", None, rows)
}

/// A label's value that may be as long as what a verifier says.
fn cut(text: &str) -> String {
    let end = text.char_indices().map(|(at, _)| at).find(|at| *at >= MAX_LABEL_BYTES);
    end.map_or_else(|| text.to_owned(), |end| format!("{}..", &text[..end]))
}

fn encode_programs(out: &mut DescriptorEncoder, programs: &[ProgramUse]) -> fmt::Result {
    let labels = |program: &ProgramUse| [("probe", program.probe.clone()), ("program", program.program.clone())];
    let seconds = programs.iter().map(|program| (labels(program), ConstCounter::new(program.run_ns as f64 / 1e9)));
    family(
        out,
        "program_run",
        "Time spent in a probe's program, estimated from one of 61 to 244 events.",
        Some(Unit::Seconds),
        seconds,
    )?;
    let runs = programs.iter().map(|program| (labels(program), ConstCounter::new(program.runs)));
    family(out, "program_runs", "Times a probe's program ran, estimated likewise.", None, runs)?;
    let missed = programs.iter().map(|program| (labels(program), ConstCounter::new(program.missed)));
    family(out, "program_missed", "Times a probe's program was skipped as it was running already.", None, missed)
}

/// One family, or nothing at all when it has no rows.
fn family<L: EncodeLabelSet, M: EncodeMetric>(
    out: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    unit: Option<Unit>,
    rows: impl Iterator<Item = (L, M)>,
) -> fmt::Result {
    let mut rows = rows.peekable();
    let Some((_, first)) = rows.peek() else { return Ok(()) };
    let kind = first.metric_type();
    let mut metric = out.encode_descriptor(name, help, unit.as_ref(), kind)?;
    for (labels, value) in rows {
        value.encode(metric.encode_family(&labels)?)?;
    }
    Ok(())
}

/// A metric without labels.
fn single(
    out: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    unit: Option<Unit>,
    metric: impl EncodeMetric,
) -> fmt::Result {
    metric.encode(out.encode_descriptor(name, help, unit.as_ref(), metric.metric_type())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn openmetrics(telemetry: &Telemetry) -> String {
        String::from_utf8(telemetry.encode(Format::OpenMetrics100)).unwrap()
    }

    fn line<'a>(text: &'a str, start: &str) -> &'a str {
        text.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("no {start} in\n{text}"))
    }

    fn observed() -> Observed {
        let probe = || "softirq".to_owned();
        let reason = "no event \"x\"\nhere".to_owned();
        let attached = Attachment { probe: probe(), hook: "a".into(), kind: "tp_btf".into(), reason: String::new() };
        let failed = Attachment { reason, ..attached.clone() };
        Observed {
            attachments: vec![attached, failed],
            choices: vec![Chosen {
                probe: probe(),
                wanted: "tp_btf:a".into(),
                got: "raw_tp:a".into(),
                because: "é".repeat(200),
            }],
            programs: vec![ProgramUse {
                probe: probe(),
                program: "p0".into(),
                run_ns: 1_500_000_000,
                runs: 7,
                missed: 1,
            }],
            maps: vec![MapUse { probe: probe(), map: "keys".into(), entries: 3, capacity: 64 }],
            losses: vec![Lost { probe: probe(), reason: "no_start", events: 2 }],
            series: vec![SeriesUse { probe: probe(), overflowed: 5, evicted: 6, waiting: Some(7) }],
            events: vec![EventCount { probe: probe(), events: 9 }],
            budgets: vec![BudgetUse { probe: probe(), one_of: 8, over: true, throttled: 2 }],
            iterations: vec![IterationUse { probe: probe(), took: Duration::from_millis(250), late: 3 }],
            history: Some(kstrobe_history::Usage {
                seconds: 900,
                bytes: 1 << 20,
                lost: kstrobe_history::Lost { late: 2, memory: 30 },
                lost_marks: 4,
            }),
            history_disk: Some(kstrobe_history::disk::DiskUsage {
                bytes: 1 << 22,
                is_stopped: true,
                lost: kstrobe_history::disk::NotWritten { failed: 5, slow: 6, torn: 1 },
                lost_marks: 2,
            }),
            captures: Some(CapturesUse {
                running: 1,
                stored_bytes: 4096,
                evicted: Evicted { ttl: 2, quota: 3 },
                ended: vec![("api".into(), "done", 4)],
            }),
            rules: vec![("slow_recv".into(), "cooldown", 5)],
            exports: ExportUse {
                now: vec![kstrobe_export::push::Usage {
                    receiver: "otlp".into(),
                    sent: 100,
                    failed: [("refused", 2)].into(),
                    retried: 1,
                    dropped: [("full", 4)].into(),
                    superseded: 8,
                    queue_points: 16,
                    queue_bytes: 32,
                    last_success: Some(std::time::UNIX_EPOCH + Duration::from_secs(1_700_000_000)),
                }],
                past: vec![kstrobe_export::push::Usage { receiver: "gone".into(), sent: 3, ..Default::default() }],
            },
            workloads: Some(WorkloadsUse {
                cgroups: vec![("named", 7), ("waiting", 1), ("ended", 2)],
                pods: 3,
                walk: Duration::from_millis(5),
                walk_errors: 4,
                unresolved: 5,
                late: 6,
                reused: 8,
                expired: 9,
                unselected: 10,
            }),
            kubernetes: kstrobe_kube::Counts {
                failures: [(("pods", "timeout"), 11)].into(),
                events: [("listed", 12)].into(),
            },
            unwind: Some(UnwindUse {
                walks: vec![("complete", 9), ("no_table", 1)],
                processes: 2,
                files: 3,
                rows: 4,
                no_room: 5,
            }),
            web: Some(kstrobe_web::Counts {
                open: 2,
                accepted: 7,
                ended: vec![("idle", 3)],
                requests: 9,
                refused: vec![("unauthorized", 4)],
                reloads: 1,
                reload_ok: true,
                reloaded_at_seconds: 1_700_000_000,
                ..Default::default()
            }),
        }
    }

    #[test]
    fn names_and_values_in_both_formats() {
        let telemetry = Telemetry::new("1.2.3", Some("abc"));
        telemetry.scraped(Duration::from_millis(3));
        telemetry.poll_failed("softnet");
        telemetry.read_failed("softirq");
        telemetry.configured(3, "abc0");
        telemetry.configured(3, "abc1");
        telemetry.reloaded(true);
        telemetry.reloaded(false);
        telemetry.event_unwritten();
        telemetry.observe(observed());
        let open = openmetrics(&telemetry);
        let text = String::from_utf8(telemetry.encode(Format::Text004)).unwrap();
        for text in [&open, &text] {
            for expected in [
                r#"kstrobe_build_info{version="1.2.3",revision="abc"} 1"#,
                "kstrobe_scrapes_total 1",
                r#"kstrobe_scrape_duration_seconds_bucket{le="0.005"} 1"#,
                r#"kstrobe_poll_errors_total{source="softnet"} 1"#,
                r#"kstrobe_read_errors_total{probe="softirq"} 1"#,
                "kstrobe_config_errors 3",
                r#"kstrobe_config_hash{hash="abc1"} 1"#,
                "kstrobe_config_last_reload_successful 0",
                r#"kstrobe_config_reloads_total{result="failure"} 1"#,
                r#"kstrobe_config_reloads_total{result="success"} 1"#,
                r#"kstrobe_probe_attached{probe="softirq",hook="a",kind="tp_btf",reason=""} 1"#,
                r#"kstrobe_probe_attached{probe="softirq",hook="a",kind="tp_btf",reason="no event \"x\"\nhere"} 0"#,
                r#"kstrobe_program_run_seconds_total{probe="softirq",program="p0"} 1.5"#,
                r#"kstrobe_program_runs_total{probe="softirq",program="p0"} 7"#,
                r#"kstrobe_program_missed_total{probe="softirq",program="p0"} 1"#,
                r#"kstrobe_map_entries{probe="softirq",map="keys"} 3"#,
                r#"kstrobe_map_capacity{probe="softirq",map="keys"} 64"#,
                r#"kstrobe_lost_total{probe="softirq",reason="no_start"} 2"#,
                r#"kstrobe_series_overflow_total{probe="softirq"} 5"#,
                r#"kstrobe_series_evicted_total{probe="softirq"} 6"#,
                r#"kstrobe_series_waiting{probe="softirq"} 7"#,
                r#"kstrobe_slow_events_total{probe="softirq"} 9"#,
                "kstrobe_events_unwritten_total 1",
                r#"kstrobe_probe_sampling_ratio{probe="softirq"} 0.125"#,
                r#"kstrobe_probe_over_budget{probe="softirq"} 1"#,
                r#"kstrobe_probe_throttled_total{probe="softirq"} 2"#,
                r#"kstrobe_iteration_seconds{probe="softirq"} 0.25"#,
                r#"kstrobe_iterations_late_total{probe="softirq"} 3"#,
                r#"kstrobe_captures_total{trigger="api",result="done"} 4"#,
                "kstrobe_captures_running 1",
                "kstrobe_captures_stored_bytes 4096",
                r#"kstrobe_captures_evicted_total{reason="ttl"} 2"#,
                r#"kstrobe_captures_evicted_total{reason="quota"} 3"#,
                r#"kstrobe_rule_captures_total{rule="slow_recv",result="cooldown"} 5"#,
                r#"kstrobe_workloads_cgroups{state="waiting"} 1"#,
                "kstrobe_workloads_pods 3",
                "kstrobe_workloads_walk_seconds 0.005",
                "kstrobe_workloads_walk_errors_total 4",
                "kstrobe_workloads_unresolved_total 5",
                "kstrobe_workloads_late_total 6",
                "kstrobe_workloads_reused_total 8",
                "kstrobe_workloads_expired_total 9",
                "kstrobe_workloads_unselected 10",
                r#"kstrobe_kubernetes_failures_total{request="pods",reason="timeout"} 11"#,
                r#"kstrobe_kubernetes_events_total{event="listed"} 12"#,
                r#"kstrobe_user_stacks_total{outcome="complete"} 9"#,
                r#"kstrobe_user_stacks_total{outcome="no_table"} 1"#,
                "kstrobe_unwind_processes 2",
                "kstrobe_unwind_files 3",
                "kstrobe_unwind_rows 4",
                "kstrobe_unwind_no_room_total 5",
                r#"kstrobe_export_points_sent_total{exporter="otlp"} 100"#,
                r#"kstrobe_export_points_sent_total{exporter="gone"} 3"#,
                r#"kstrobe_export_points_dropped_total{exporter="otlp",reason="full"} 4"#,
                r#"kstrobe_export_queue_points{exporter="otlp"} 16"#,
                "kstrobe_http_open_connections 2",
                "kstrobe_http_connections_total 7",
                r#"kstrobe_http_connections_ended_total{reason="idle"} 3"#,
                "kstrobe_http_requests_total 9",
                r#"kstrobe_http_requests_refused_total{reason="unauthorized"} 4"#,
                "kstrobe_web_config_reloads_total 1",
                "kstrobe_web_config_reload_failures_total 0",
                "kstrobe_web_config_last_reload_successful 1",
                "kstrobe_web_config_last_reload_success_timestamp_seconds 1700000000",
            ] {
                assert_eq!(line(text, expected), expected);
            }
            assert!(!text.contains(r#"_queue_points{exporter="gone""#), "nothing waits there");
            let choice =
                line(text, r#"kstrobe_probe_choice_info{probe="softirq",wanted="tp_btf:a",got="raw_tp:a",because="é"#);
            assert!(choice.ends_with(r#"é.."} 1"#) && choice.matches('é').count() == 128, "{choice}");
        }
        assert_eq!(line(&open, "# TYPE kstrobe_program_run"), "# TYPE kstrobe_program_run_seconds counter");
        assert_eq!(line(&text, "# TYPE kstrobe_program_run"), "# TYPE kstrobe_program_run_seconds_total counter");
        assert_eq!(line(&text, "# TYPE kstrobe_build"), "# TYPE kstrobe_build_info gauge");
        assert!(!text.contains("# UNIT") && !text.contains("# EOF"));
    }

    /// Dashboards, rules and docs/metrics.md are made from the recorded list.
    #[test]
    fn the_recorded_list_of_own_metrics_is_this() {
        let telemetry = Telemetry::new("1.2.3", Some("abc"));
        telemetry.poll_failed("softnet");
        telemetry.read_failed("softirq");
        telemetry.configured(0, "abc0");
        telemetry.observe(observed());
        let own = [telemetry.encode(Format::Protobuf), age(Format::Protobuf, Duration::ZERO)].concat();
        let families = kstrobe_export::own::families(&own).unwrap();
        let mut metrics = kstrobe_mixin::own::metrics(&families);
        // Those of exporters are recorded ahead of them.
        let of_exporters = |metric: &kstrobe_mixin::catalogue::Metric| metric.name.starts_with("kstrobe_export_");
        if !metrics.iter().any(of_exporters) {
            metrics.extend(kstrobe_mixin::own::recorded().into_iter().filter(of_exporters));
            metrics.sort_by(|a, b| a.name.cmp(&b.name));
        }
        let list = kstrobe_mixin::own::record(&metrics);
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/mixin/own_metrics.json");
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(path, &list).unwrap();
        }
        let recorded = std::fs::read_to_string(path).unwrap();
        assert_eq!(recorded, list, "run this test with BLESS=1, then `cargo xtask mixin`");
    }

    #[test]
    fn what_is_gone_leaves_no_series() {
        let telemetry = Telemetry::new("1", None);
        telemetry.observe(observed());
        telemetry.observe(Observed::default());
        assert!(!openmetrics(&telemetry).contains("softirq"));
    }

    #[test]
    fn the_process_is_described() {
        let text = openmetrics(&Telemetry::new("1", None));
        let value = |name: &str| line(&text, name).rsplit(' ').next().unwrap().parse::<f64>().unwrap();
        assert!(value("process_resident_memory_bytes ") > 1e5);
        assert!(value("process_open_fds ") >= 3.0);
        assert!(value("process_max_fds ") >= value("process_open_fds "));
        assert!(value("process_cpu_seconds_total ") >= 0.0);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
        let age = now - value("process_start_time_seconds ");
        assert!((-2.0..3600.0).contains(&age), "{age}");
    }
}
