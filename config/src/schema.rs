//! The keys of `kstrobe.yaml`: what each mapping may hold is taken from these tables, and `docs/configuration.md` is made from
//! them.

use std::fmt;

/// A mapping of the configuration.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// Where it stands, such as `log` or `rules[].capture`.
    pub path: &'static str,
    /// What it is for, one sentence or more.
    pub about: &'static str,
    /// Its keys in the order of the page.
    pub keys: &'static [Key],
    /// A whole configuration with such a mapping; `KEYS` stands for its entries.
    pub around: &'static str,
    /// Entries without which such a mapping is not complete.
    pub beside: &'static str,
}

/// A key of a mapping.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// As it is written.
    pub name: &'static str,
    /// What its value may be.
    pub ty: Type,
    /// Value that means the same as leaving the key out; empty when there is no such value.
    pub default: &'static str,
    /// A value other than the default.
    pub example: &'static str,
    /// Entries that the key needs beside it, in place of [`Block::beside`].
    pub beside: Option<&'static str>,
    /// Whether the agent takes a change only when it is started again.
    pub restart: bool,
    /// What it does.
    pub about: &'static str,
}

/// What a value may be. Ranges include both ends; the largest number there is stands for no upper end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// Text of a form of its own, in words: "a path".
    Text(&'static str),
    /// One text or number, or a list of them.
    List(&'static str),
    /// A mapping of names to texts.
    Texts(&'static str),
    /// A mapping of names to `true` or `false`.
    Bools(&'static str),
    /// `true` or `false`.
    Bool,
    /// A whole number.
    Integer(u64, u64),
    /// Nanoseconds.
    Duration(u64, u64),
    /// The same, or `0` for ever.
    DurationOrZero(u64, u64),
    /// Bytes.
    Size(u64, u64),
    /// One of these words.
    Choice(&'static [&'static str]),
    /// The mapping of this path.
    Block(&'static str),
    /// One mapping of this path, or a list of them.
    Blocks(&'static str),
    /// A list of mappings of this path.
    ListOf(&'static str),
}

impl Key {
    const fn new(name: &'static str, ty: Type, default: &'static str, example: &'static str) -> Key {
        Key { name, ty, default, example, beside: None, restart: false, about: "" }
    }

    const fn about(self, about: &'static str) -> Key {
        Key { about, ..self }
    }

    const fn beside(self, beside: &'static str) -> Key {
        Key { beside: Some(beside), ..self }
    }

    const fn restart(self) -> Key {
        Key { restart: true, ..self }
    }

    /// A configuration that has this key and what it needs beside it. `None` leaves the key out.
    pub fn document(&self, block: &Block, value: Option<&str>) -> String {
        let own = value.map(|value| format!("{}: {value}", self.name));
        let beside = self.beside.unwrap_or(block.beside);
        let beside = (!beside.is_empty()).then(|| beside.to_owned());
        let entries: Vec<String> = beside.into_iter().chain(own).collect();
        block.around.replace("KEYS", &format!("{{ {} }}", entries.join(", ")))
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use crate::quantity::show_bytes;
        let show_ns = |ns: u64| if ns == 0 { "0s".to_owned() } else { crate::quantity::show_ns(ns) };
        let range = |f: &mut fmt::Formatter<'_>, what: &str, least: u64, most: u64, show: fn(u64) -> String| match most
        {
            u64::MAX => write!(f, "{what}, at least {}", show(least)),
            most => write!(f, "{what}, {} to {}", show(least), show(most)),
        };
        match self {
            Type::Text(what) => f.write_str(what),
            Type::List(what) => write!(f, "{what}: one or a list"),
            Type::Texts(what) | Type::Bools(what) => write!(f, "mapping of {what}"),
            Type::Bool => f.write_str("`true` or `false`"),
            Type::Integer(least, most) => range(f, "whole number", *least, *most, |n| n.to_string()),
            Type::Duration(least, most) => range(f, "duration", *least, *most, show_ns),
            Type::DurationOrZero(least, most) => {
                range(f, "duration", *least, *most, show_ns)?;
                f.write_str(", or `0` for ever")
            }
            Type::Size(least, most) => range(f, "size", *least, *most, show_bytes),
            Type::Choice(words) => {
                let words: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
                f.write_str(&words.join(", "))
            }
            Type::Block(path) => write!(f, "[mapping](#{})", anchor(path)),
            Type::Blocks(path) => write!(f, "[mapping](#{}), or a list of them", anchor(path)),
            Type::ListOf(path) => write!(f, "list of [mappings](#{})", anchor(path)),
        }
    }
}

/// The anchor that a page gives the heading of a path: small letters, digits, hyphens and underscores.
fn anchor(path: &str) -> String {
    let kept = path.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
    kept.map(|c| c.to_ascii_lowercase()).collect()
}

/// Names of keys, for what reads a mapping.
pub(crate) const fn names<const N: usize>(keys: &[Key; N]) -> [&'static str; N] {
    let mut names = [""; N];
    let mut at = 0;
    while at < N {
        names[at] = keys[at].name;
        at += 1;
    }
    names
}

const US: u64 = 1_000;
const MS: u64 = 1_000 * US;
const S: u64 = 1_000 * MS;
const MIN: u64 = 60 * S;
const H: u64 = 60 * MIN;
const YEAR: u64 = 365 * 24 * H;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;
const NO_END: u64 = u64::MAX;

pub(crate) const AGENT: [Key; 11] = [
    Key::new("listen", Type::List("`ADDRESS:PORT`, `[V6]:PORT` or `:PORT`"), "\"127.0.0.1:9779\"", "\":9780\"")
        .restart()
        .about("Addresses to serve on; `:PORT` is every address. `--web.listen-address` stands over it."),
    Key::new("probes", Type::Block("probes"), "", "{ enable: vfs }").about("Which probes run."),
    Key::new("kubernetes", Type::Block("kubernetes"), "", "{ source: api }")
        .restart()
        .about("Where the agent gets the pods of this node."),
    Key::new("workloads", Type::Block("workloads"), "", "{ wait: 5s }").about("How control groups are followed."),
    Key::new("limits", Type::Block("limits"), "", "{ budget_percent: 1 }").about("What probes may cost."),
    Key::new("history", Type::Block("history"), "", "{ keep: 5m }")
        .about("What the agent keeps of its metrics, second by second."),
    Key::new("events", Type::Text("`stderr`, `none` or a path"), "none", "stderr")
        .about("Where records of slow events are written as lines of JSON. `--events` stands over it."),
    Key::new("captures", Type::Block("captures"), "", "{}")
        .about("Recordings of the kernel's trace. Without this block and without `rules` there are none."),
    Key::new("rules", Type::ListOf("rules[]"), "", "[{ name: example, capture: { events: sched } }]")
        .about("When a capture starts by itself; at most 200."),
    Key::new("exporters", Type::Block("exporters"), "", "{ otlp: { endpoint: 'http://collector:4317' } }")
        .about("Receivers that metrics are sent to, besides being scraped."),
    Key::new("log", Type::Block("log"), "", "{ level: debug }").about("The agent's own log."),
];

pub(crate) const PROBES: [Key; 4] = [
    Key::new("enable", Type::List("probe or pack"), "[]", "vfs").about("Run these besides those that are on by default."),
    Key::new("disable", Type::List("probe or pack"), "[]", "syscalls")
        .about("Do not run these. A probe's own name stands over its pack's."),
    Key::new("directory", Type::Text("a path"), "", "/etc/kstrobe/probes").about(
        "File of probes, or directory of such files; one replaces the built-in file of its name. `--probes` stands over it.",
    ),
    Key::new("override", Type::Block("probes.override.NAME"), "{}", "{ softirq: { max_series: 9 } }")
        .about("What is added to a probe or pack without its file being changed, by its name."),
];

pub(crate) const OVERRIDE: [Key; 3] = [
    Key::new("labels", Type::List("`namespace`, `pod`, `container`, `workload` or `unit`"), "", "pod")
        .about("Split its metrics by these labels, too."),
    Key::new("where", Type::Text("a condition"), "", "pid > 1").about("A condition besides those of the probe."),
    Key::new("max_series", Type::Integer(1, 1_000_000), "", "9").about("Label sets of each of its metrics."),
];

pub(crate) const KUBERNETES: [Key; 5] = [
    Key::new("source", Type::Choice(&["auto", "api", "kubelet", "none"]), "auto", "api").restart().about(
        "Source of pods. `auto` is the API server where there is a service account or a kubeconfig, else `none`.",
    ),
    Key::new("node", Type::Text("the name of a node"), "", "worker-3")
        .restart()
        .about("This node. By default the variable `NODE_NAME`, else the host's name."),
    Key::new("kubelet_url", Type::Text("a URL"), "", "'https://10.0.0.7:10250'")
        .beside("source: kubelet")
        .restart()
        .about("By default port 10250 of the address in the variable `NODE_IP`, else of 127.0.0.1."),
    Key::new("kubelet_ca", Type::Text("a path"), "", "/etc/kubernetes/pki/kubelet-ca.crt").restart().about(
        "Authorities of the kubelet's certificate. By default those of the system; a kubelet on this host is taken as it is.",
    ),
    Key::new("kubeconfig", Type::Text("a path"), "", "/etc/kstrobe/kubeconfig")
        .restart()
        .about("By default the service account of the agent's pod."),
];

pub(crate) const WORKLOADS: [Key; 4] = [
    Key::new("walk", Type::Duration(500 * MS, NO_END), "5s", "9s")
        .restart()
        .about("Time between two looks at which control groups there are."),
    Key::new("grace", Type::Duration(S, NO_END), "60s", "9s")
        .restart()
        .about("Names and series of a control group are kept so long after its end."),
    Key::new("wait", Type::Duration(S, NO_END), "30s", "9s")
        .about("A series waits so long for the names of its control group before it is shown without."),
    Key::new("sandboxes", Type::Choice(&["pod", "node", "apart"]), "pod", "node").restart().about(
        "Where a pod's sandbox is counted: with its main container, with the node, or apart with an empty container.",
    ),
];

pub(crate) const LIMITS: [Key; 3] = [
    Key::new("budget_percent", Type::Text("percent of all CPUs, 0.0001 to 10000, or 0"), "2", "0.5")
        .about("What probes without a `budget_cpu_percent` of their own may cost together; 0 for no budget."),
    Key::new("native_bucket_limit", Type::Integer(0, 1024), "160", "80")
        .about("Populated buckets of a native histogram; beyond them its schema is lowered. 0 for no limit."),
    Key::new("kept_events", Type::Integer(1, 65_536), "1024", "80")
        .about("Records of slow events that the agent keeps of each probe."),
];

pub(crate) const HISTORY: [Key; 5] = [
    Key::new("enabled", Type::Bool, "true", "false").about("Whether there is a history."),
    Key::new("keep", Type::Duration(10 * S, 30 * 24 * H), "15m", "5m")
        .about("Age at which a second goes. With `dir` 24h by default, of which memory has the last 15 minutes."),
    Key::new("dir", Type::Text("a path"), "", "/var/lib/kstrobe/history")
        .about("A folder for this agent alone, to which each second is written as well. Without it the history ends with the agent."),
    Key::new("max_bytes", Type::Size(MIB, TIB), "512MiB", "1GiB")
        .beside("dir: /var/lib/kstrobe/history")
        .about("Of the files in `dir`; the oldest seconds go first."),
    Key::new("max_memory", Type::Size(MIB, GIB), "32MiB", "64MiB")
        .about("Of all seconds and the labels of their series; the oldest seconds go first."),
];

pub(crate) const CAPTURES: [Key; 8] = [
    Key::new("dir", Type::Text("a path"), "/var/lib/kstrobe/captures", "/srv/captures")
        .about("A folder for this agent alone; each capture has a folder in it."),
    Key::new("max_total_bytes", Type::Size(64 * KIB, TIB), "1GiB", "4GiB")
        .about("Of all captures; the oldest ones go first."),
    Key::new("ttl", Type::DurationOrZero(S, YEAR), "24h", "9h").about("Age at which a capture is removed."),
    Key::new("max_concurrent", Type::Integer(1, 16), "1", "2").about("Captures at once."),
    Key::new("max_duration", Type::Duration(S, H), "60s", "30s").about("Of one capture."),
    Key::new("max_bytes", Type::Size(64 * KIB, TIB), "256MiB", "64MiB")
        .beside("max_total_bytes: 1TiB")
        .about("Of one capture; at most `max_total_bytes`."),
    Key::new("token_file", Type::Text("a path"), "", "/etc/kstrobe/token").about(
        "The API's bearer token, 16 bytes or more. Without it: loopback addresses, passwords or client certificates.",
    ),
    Key::new("alertmanager_default", Type::Block("rules[].capture"), "", "{ events: sched }")
        .about("What an alert starts that names no rule."),
];

/// The kernel's clocks of traces.
pub(crate) const CLOCKS: [&str; 8] = ["local", "global", "counter", "uptime", "perf", "mono", "mono_raw", "boot"];

pub(crate) const CAPTURE: [Key; 20] = [
    Key::new("tracer", Type::Text("a tracer of the kernel"), "", "function_graph")
        .about("`function`, `function_graph` or another one. `tracer`, `events` or both are needed."),
    Key::new("events", Type::Blocks("rules[].capture.events[]"), "", "['sched:sched_switch', net]")
        .beside("tracer: function")
        .about("A text stands for a mapping with that `event`."),
    Key::new("functions", Type::List("name or pattern"), "", "'tcp_*'")
        .beside("tracer: function")
        .about("Functions to record. Needs `tracer: function` or `function_graph`."),
    Key::new("not_functions", Type::List("name or pattern"), "", "tcp_poll")
        .beside("tracer: function")
        .about("Functions not to record. Needs `tracer: function` or `function_graph`."),
    Key::new("graph", Type::List("name or pattern"), "", "__x64_sys_recvfrom")
        .beside("tracer: function_graph")
        .about("Functions that are recorded with all that they call. Needs `tracer: function_graph`."),
    Key::new("depth", Type::Integer(1, 256), "", "4")
        .beside("tracer: function_graph")
        .about("Levels of calls below those. Needs `tracer: function_graph`."),
    Key::new("stacks", Type::Bool, "false", "true").about("A kernel stack with each event."),
    Key::new("function_stacks", Type::Bool, "false", "true")
        .beside("tracer: function, functions: tcp_sendmsg")
        .about("A kernel stack with each function. Needs `tracer: function` and `functions`."),
    Key::new("pids", Type::List("thread"), "", "[1, 2]").about("Of these threads."),
    Key::new("comms", Type::List("name of threads"), "", "'mysql*'")
        .about("Of threads with these names, with `*` and `?`."),
    Key::new("cgroups", Type::List("path"), "", "system.slice/mysql.service")
        .about("Of the tasks in these control groups, by their paths below `/sys/fs/cgroup`."),
    Key::new("pods", Type::List("`NAME` or `NAMESPACE/NAME`"), "", "default/web-0").about("Of these pods."),
    Key::new("children", Type::Bool, "false", "true").about("Also of what these threads start."),
    Key::new("cpus", Type::List("CPU"), "", "[0, 1]").about("On these CPUs."),
    Key::new("clock", Type::Choice(&CLOCKS), "", "boot").about("By default `mono`, where the kernel has it."),
    Key::new("buffer_kib", Type::Integer(4, 64 * KIB), "", "4096")
        .about("Ring buffer of each CPU, in KiB. By default the CPUs share 64 MiB."),
    Key::new("options", Type::Bools("options of tracing to `true` or `false`"), "{}", "{ sleep-time: false }").about(
        "Options in the kernel's `options` folder, by their names; the others have the kernel's defaults. Those that another key sets are refused.",
    ),
    Key::new("duration", Type::Duration(10 * MS, NO_END), "", "5s")
        .about("By default 10s; at most `captures.max_duration`."),
    Key::new("max_bytes", Type::Size(4 * KIB, NO_END), "", "4MiB")
        .about("By default, and at most, `captures.max_bytes`."),
    Key::new("flight", Type::Block("rules[].capture.flight"), "", "{ stop_on: 'oom:mark_victim' }")
        .about("Keeps the last records until an event."),
];

pub(crate) const EVENT: [Key; 4] = [
    Key::new("event", Type::Text("`SYSTEM:EVENT`, `SYSTEM` or `EVENT`"), "", "'net:*'")
        .beside("")
        .about("Needed; with `*` and `?`."),
    Key::new("filter", Type::Text("a filter in the kernel's language"), "", "prev_pid > 1")
        .about("Which of its records are kept."),
    Key::new("triggers", Type::List("trigger in the kernel's language"), "", "'traceoff if prev_pid > 1'")
        .about("What else the kernel does at the event."),
    Key::new("exclude", Type::Bool, "false", "true").about("Takes the event out of those that a pattern named."),
];

pub(crate) const FLIGHT: [Key; 2] = [
    Key::new("stop_on", Type::Blocks("rules[].capture.events[]"), "", "'oom:mark_victim'").beside("").about(
        "Events that end the capture, each with a filter or none. A text stands for a mapping with that `event`.",
    ),
    Key::new("after", Type::Duration(0, MIN), "0s", "1s").about("Recording goes on so long after such an event."),
];

pub(crate) const RULE: [Key; 6] = [
    Key::new("name", Type::Text("an identifier"), "", "slow_recv")
        .beside("capture: { events: sched }")
        .about("Needed; unique among rules."),
    Key::new("when", Type::Text("a condition on a metric"), "", "'p99(recv_wait_seconds) > 50ms for 30s'")
        .about("See [captures.md](captures.md#rules). A rule without it waits for an alert that names it."),
    Key::new("capture", Type::Block("rules[].capture"), "", "{ events: sched }")
        .beside("name: example")
        .about("Needed: what is recorded."),
    Key::new("every", Type::Duration(100 * MS, MIN), "1s", "5s")
        .about("Time from one look at the condition to the next."),
    Key::new("cooldown", Type::Duration(0, YEAR), "10m", "5m").about("Time from one capture of the rule to the next."),
    Key::new("max_per_hour", Type::Integer(1, 3600), "3", "9").about("Captures of the rule."),
];

pub(crate) const EXPORTERS: [Key; 2] = [
    Key::new("otlp", Type::Blocks("exporters.otlp"), "", "{ endpoint: 'http://collector:4317' }")
        .about("OpenTelemetry, at most 16."),
    Key::new(
        "remote_write",
        Type::Blocks("exporters.remote_write"),
        "",
        "{ url: 'http://prometheus:9090/api/v1/write' }",
    )
    .about("Prometheus remote write 2.0, at most 16."),
];

const HEADERS: Key = Key::new("headers", Type::Texts("names of headers to texts"), "{}", "{ X-Scope-OrgID: nodes }")
    .about("None that the exporter sets itself. Secrets go to `headers_file`.");
const HEADERS_FILE: Key = Key::new("headers_file", Type::Text("a path"), "", "/run/secrets/headers")
    .about("Lines `Name: value`; read anew for each request.");
const INTERVAL: Key = Key::new("interval", Type::Duration(S, H), "60s", "30s").about("Time between two reports.");
const QUEUE_BYTES: Key = Key::new("queue_bytes", Type::Size(MIB, 4 * GIB), "64MiB", "16MiB")
    .about("Reports that wait; the oldest are dropped.");
const RESOURCE: Key = Key::new("resource", Type::Texts("names of attributes to texts"), "{}", "{ tier: prod }")
    .about("Attributes besides, or instead of, those that the agent finds; an empty text leaves one out.");

pub(crate) const OTLP: [Key; 15] = [
    Key::new("name", Type::Text("a name"), "otlp", "collector")
        .about("In logs and metrics; `otlp_1`, `otlp_2` where there are several."),
    Key::new("endpoint", Type::Text("a URL"), "", "'https://collector:4317'")
        .beside("")
        .about("Needed. OTLP over HTTP appends the path of the signal."),
    Key::new("protocol", Type::Choice(&["grpc", "http"]), "grpc", "http").about("OTLP over gRPC or HTTP."),
    Key::new("temporality", Type::Choice(&["cumulative", "delta"]), "cumulative", "delta")
        .about("Totals, or differences."),
    INTERVAL,
    Key::new("timeout", Type::Duration(100 * MS, H), "10s", "5s").about("Of one request."),
    HEADERS,
    HEADERS_FILE,
    Key::new("compression", Type::Choice(&["gzip", "none"]), "gzip", "none").about("Of requests."),
    Key::new("tls", Type::Block("exporters.otlp.tls"), "{}", "{ ca_file: /ca.pem }")
        .about("Files of TLS, and the name of the server. `tls_config` of remote write."),
    Key::new("retry_on_failure", Type::Block("exporters.otlp.retry_on_failure"), "", "{ max_interval: 9s }")
        .about("Pauses after failures."),
    QUEUE_BYTES,
    RESOURCE,
    Key::new("logs", Type::Bool, "false", "true").about("Slow events are sent as logs."),
    Key::new("traces", Type::Bool, "false", "true").about("Captures, and slow events with `span`, are sent as spans."),
];

pub(crate) const REMOTE_WRITE: [Key; 10] = [
    Key::new("name", Type::Text("a name"), "remote_write", "prometheus")
        .about("In logs and metrics; numbered where there are several."),
    Key::new("url", Type::Text("a URL"), "", "'https://prometheus:9090/api/v1/write'").beside("").about("Needed."),
    INTERVAL,
    Key::new("remote_timeout", Type::Duration(100 * MS, H), "30s", "5s").about("Of one request."),
    HEADERS,
    HEADERS_FILE,
    Key::new("tls_config", Type::Block("exporters.otlp.tls"), "{}", "{ ca_file: /ca.pem }")
        .about("Files of TLS, and the name of the server."),
    Key::new("queue_config", Type::Block("exporters.remote_write.queue_config"), "", "{ max_backoff: 9s }")
        .about("Pauses after failures."),
    QUEUE_BYTES,
    RESOURCE,
];

pub(crate) const TLS: [Key; 4] = [
    Key::new("ca_file", Type::Text("a path"), "", "/ca.pem").about("Authorities; by default those of the system."),
    Key::new("cert_file", Type::Text("a path"), "", "/cert.pem")
        .beside("key_file: /key.pem")
        .about("The agent's certificate; needs `key_file`."),
    Key::new("key_file", Type::Text("a path"), "", "/key.pem")
        .beside("cert_file: /cert.pem")
        .about("Its key; needs `cert_file`."),
    Key::new("server_name", Type::Text("a host name"), "", "collector")
        .about("Name in the receiver's certificate; by default that of the URL."),
];

pub(crate) const RETRY: [Key; 2] = [
    Key::new("initial_interval", Type::Duration(10 * MS, H), "5s", "9s").about("First pause."),
    Key::new("max_interval", Type::Duration(10 * MS, H), "30s", "9s")
        .beside("initial_interval: 10ms")
        .about("Longest pause."),
];

pub(crate) const QUEUE: [Key; 2] = [
    Key::new("min_backoff", Type::Duration(10 * MS, H), "5s", "9s").about("First pause."),
    Key::new("max_backoff", Type::Duration(10 * MS, H), "30s", "9s")
        .beside("min_backoff: 10ms")
        .about("Longest pause."),
];

pub(crate) const LOG: [Key; 2] = [
    Key::new("level", Type::Choice(&["error", "warn", "info", "debug", "trace"]), "info", "debug")
        .about("Least severe messages. `--log.level` stands over it."),
    Key::new("format", Type::Choice(&["logfmt", "json"]), "logfmt", "json")
        .restart()
        .about("`--log.format` stands over it."),
];

/// All mappings of the configuration, the whole first.
pub const BLOCKS: &[Block] = &[
    Block { path: "kstrobe.yaml", about: "The configuration.", keys: &AGENT, around: "KEYS", beside: "" },
    Block { path: "probes", about: "Which probes run.", keys: &PROBES, around: "probes: KEYS", beside: "" },
    Block {
        path: "probes.override.NAME",
        about: "What is added to a probe, or to all of a pack.",
        keys: &OVERRIDE,
        around: "probes: { override: { softirq: KEYS } }",
        beside: "",
    },
    Block {
        path: "kubernetes",
        about: "Where the names of pods come from: [workloads.md](workloads.md).",
        keys: &KUBERNETES,
        around: "kubernetes: KEYS",
        beside: "",
    },
    Block {
        path: "workloads",
        about: "How control groups are followed: [workloads.md](workloads.md).",
        keys: &WORKLOADS,
        around: "workloads: KEYS",
        beside: "",
    },
    Block { path: "limits", about: "What probes may cost.", keys: &LIMITS, around: "limits: KEYS", beside: "" },
    Block {
        path: "history",
        about: "What the agent keeps of its metrics: [history.md](history.md).",
        keys: &HISTORY,
        around: "history: KEYS",
        beside: "",
    },
    Block {
        path: "captures",
        about: "Where captures lie and what they may take: [captures.md](captures.md).",
        keys: &CAPTURES,
        around: "captures: KEYS",
        beside: "",
    },
    Block {
        path: "rules[]",
        about: "When a capture starts by itself: [captures.md](captures.md#rules).",
        keys: &RULE,
        around: "rules: [KEYS]",
        beside: "name: example, capture: { events: sched }",
    },
    Block {
        path: "rules[].capture",
        about: "What is recorded. `captures.alertmanager_default`, `Capture` objects and requests to the API have the same keys.",
        keys: &CAPTURE,
        around: "rules: [{ name: example, capture: KEYS }]",
        beside: "events: sched",
    },
    Block {
        path: "rules[].capture.events[]",
        about: "An event, where its name alone does not say enough.",
        keys: &EVENT,
        around: "rules: [{ name: example, capture: { events: [KEYS] } }]",
        beside: "event: 'sched:sched_switch'",
    },
    Block {
        path: "rules[].capture.flight",
        about: "A flight recorder: what was recorded before an event is kept.",
        keys: &FLIGHT,
        around: "rules: [{ name: example, capture: { events: sched, flight: KEYS } }]",
        beside: "stop_on: 'oom:mark_victim'",
    },
    Block {
        path: "exporters",
        about: "Receivers that metrics are sent to: [exporters.md](exporters.md).",
        keys: &EXPORTERS,
        around: "exporters: KEYS",
        beside: "",
    },
    Block {
        path: "exporters.otlp",
        about: "OTLP: keys are those of the OpenTelemetry Collector's exporter where it has them.",
        keys: &OTLP,
        around: "exporters: { otlp: KEYS }",
        beside: "endpoint: 'https://collector:4317'",
    },
    Block {
        path: "exporters.otlp.tls",
        about: "TLS towards a receiver. Its URL begins with `https://`.",
        keys: &TLS,
        around: "exporters: { otlp: { endpoint: 'https://collector:4317', tls: KEYS } }",
        beside: "",
    },
    Block {
        path: "exporters.otlp.retry_on_failure",
        about: "Pauses after failures, which grow from the first to the longest.",
        keys: &RETRY,
        around: "exporters: { otlp: { endpoint: 'https://collector:4317', retry_on_failure: KEYS } }",
        beside: "",
    },
    Block {
        path: "exporters.remote_write",
        about: "Prometheus remote write: keys are those of Prometheus where it has them.",
        keys: &REMOTE_WRITE,
        around: "exporters: { remote_write: KEYS }",
        beside: "url: 'https://prometheus:9090/api/v1/write'",
    },
    Block {
        path: "exporters.remote_write.queue_config",
        about: "Pauses after failures, which grow from the first to the longest.",
        keys: &QUEUE,
        around: "exporters: { remote_write: { url: 'https://prometheus:9090/api/v1/write', queue_config: KEYS } }",
        beside: "",
    },
    Block { path: "log", about: "The agent's own log.", keys: &LOG, around: "log: KEYS", beside: "" },
];
