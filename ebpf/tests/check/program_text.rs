//! Programs from a few lines of text:
//!
//! ```text
//! at: rawtracepoint:tcp_event            one hook or several, split by `;` (also `start:`, `end:`); `A or B` is first_of
//! let sk: args.sk                        a name for an expression
//! by: cpu                                one part of the key a line (also `by.end:`)
//! save fd: args.fd
//! start.where: true                      (also `end.where:`)
//! where: true
//! also: cpu == 0                        what a configuration adds to `where`
//! owner: args.sk                         or `none` (also `owner.start:`, after it)
//! keep: first
//! poll: softnet
//! state: args.n                          one part of a state's key a line
//! field born: u64
//! step: rawtracepoint:tcp_event          begins a step; what follows is of it
//! step.where: has(state)
//! set born: nsecs
//! observe: 0                             number of a metric
//! delete: yes
//! metric: gauge depth                    begins a metric; `counter x_total` when there is none before value or label
//! metric: kernel+user/start where        sums by stacks, here of both halves, taken at the start of the span
//! value: args.n
//! metric.where: true
//! label port: args.sk.sk_num
//! slow: elapsed > 1s                     begins `slow:`
//! slow.most: 10                          records a second, 1 when there is none
//! show fd: start.fd
//! span duration: elapsed                 what makes a record a span of OpenTelemetry
//! engine: ftrace
//! high: yes                              allow_high_cardinality for labels that follow
//! ```

use kstrobe_ebpf::buckets::BucketSpec;
use kstrobe_ebpf::program::*;
use kstrobe_ebpf::source::{Location, SourceFile, Spanned, SpannedStr, TextId};
use std::sync::Arc;

struct Reader {
    file: Arc<SourceFile>,
    texts: Vec<SpannedStr>,
    high: bool,
}

impl Reader {
    fn text(&mut self, text: &str) -> SpannedStr {
        let id = TextId(self.texts.len() as u32);
        let at = Location { file: self.file.clone(), start: 0, end: 0, line: id.0 + 1, column: 1 };
        let text = Spanned { value: text.to_string(), at, id };
        self.texts.push(text.clone());
        text
    }

    fn hooks(&mut self, list: &str) -> Vec<Hook> {
        let mut hook = |text: &str| match text.trim().split_once(" or ") {
            None => Hook { kind: hook_kind(text.trim()), text: self.text(text.trim()) },
            Some(_) => {
                let alternatives =
                    text.split(" or ").map(|one| Hook { kind: hook_kind(one.trim()), text: self.text(one.trim()) });
                Hook { kind: HookKind::FirstOf(alternatives.collect()), text: self.text(text.trim()) }
            }
        };
        list.split(';').map(&mut hook).collect()
    }
}

fn hook_kind(text: &str) -> HookKind {
    let parts: Vec<&str> = text.split(':').collect();
    match parts.as_slice() {
        ["tracepoint", system, event] => HookKind::Tracepoint { system: system.to_string(), event: event.to_string() },
        ["rawtracepoint", event] => HookKind::RawTracepoint { event: event.to_string() },
        ["hardware", event, count] => HookKind::Sample(Sampling {
            event: PerfEvent::Hardware(event.to_string()),
            every: Every::Events(count.parse().expect("events")),
        }),
        ["iter", object] => HookKind::Iter { object: object.to_string() },
        ["interval", "s", n] => HookKind::Interval { period_ns: n.parse::<u64>().expect("seconds") * 1_000_000_000 },
        ["syscall", names, edge] => {
            let names = names.trim_matches(['[', ']']).split(',').map(|n| n.trim().to_string());
            let names = names.filter(|n| n != "*").collect();
            HookKind::Syscall { names, edge: if *edge == "exit" { Edge::Exit } else { Edge::Enter } }
        }
        [kind @ ("uprobe" | "uretprobe"), path, symbol] => {
            let (symbol, offset) = symbol.split_once('+').unwrap_or((symbol, "0"));
            HookKind::User {
                binary: Binary { path: path.to_string(), pid: None },
                symbol: symbol.to_string(),
                offset: offset.parse().expect("bytes"),
                edge: if *kind == "uprobe" { Edge::Enter } else { Edge::Exit },
            }
        }
        ["function", name, edge] => HookKind::Function {
            name: name.to_string(),
            module: None,
            offset: 0,
            edge: if *edge == "return" { Edge::Exit } else { Edge::Enter },
            via: Via::Best,
        },
        ["usdt", path, provider, name] => HookKind::Usdt {
            binary: Binary { path: path.to_string(), pid: None },
            provider: provider.to_string(),
            name: name.to_string(),
        },
        _ => panic!("no hook: {text}"),
    }
}

fn metric(reader: &mut Reader, text: &str) -> Metric {
    let (kind, name) = text.split_once(' ').expect("a kind and a name");
    let kind = match kind {
        "counter" => MetricKind::Counter,
        "gauge" => MetricKind::Gauge(None),
        "last" => MetricKind::Gauge(Some(Aggregate::Last)),
        "min" => MetricKind::Gauge(Some(Aggregate::Min)),
        "max" => MetricKind::Gauge(Some(Aggregate::Max)),
        "sum" => MetricKind::Gauge(Some(Aggregate::Sum)),
        stacks if stacks.contains("kernel") || stacks.contains("user") => MetricKind::Stacks(StackSpec {
            kernel: stacks.contains("kernel"),
            user: stacks.contains("user"),
            depth: 127,
            at_start: stacks.ends_with("/start"),
            unwind: kstrobe_ebpf::program::Unwind::Tables,
        }),
        _ => {
            MetricKind::Histogram(BucketSpec { schema: 3, raw_per_unit: 1, min: 1, max: 1 << 30, classic: Vec::new() })
        }
    };
    Metric {
        name: reader.text(name),
        kind,
        value: None,
        filter: None,
        labels: Vec::new(),
        allow_high_cardinality: false,
        max_series: 1024,
    }
}

fn empty_span() -> Span {
    Span {
        start: Vec::new(),
        end: Vec::new(),
        by: Vec::new(),
        by_end: Vec::new(),
        save: Vec::new(),
        filter: None,
        filter_end: None,
        keep: Keep::Last,
        max_open: 16384,
    }
}

fn slow(program: &mut Program) -> &mut Slow {
    program.slow.as_mut().expect("`slow` before its keys")
}

fn span_field(name: &str) -> SpanField {
    use SpanField::*;
    let all = [Duration, TraceHigh, Trace, Parent, Id, Name];
    match name {
        "trace_id.high" => TraceHigh,
        // Two have this name: the low half is found last.
        _ => all.into_iter().rfind(|field| field.key() == name).unwrap_or_else(|| panic!("no field `{name}`")),
    }
}

/// The program and all its texts by id.
pub fn read(case: &str) -> (Program, Vec<SpannedStr>) {
    let file = Arc::new(SourceFile { name: "test.yaml".into(), text: String::new() });
    let mut r = Reader { file, texts: Vec::new(), high: false };
    let mut program = Program {
        name: r.text("test"),
        engine: Engine::Bpf,
        shape: Shape::At(Vec::new()),
        filter: None,
        extra_filter: None,
        lets: Vec::new(),
        owner: Owner::Current,
        metrics: Vec::new(),
        slow: None,
        limits: Limits::default(),
    };
    let mut span = empty_span();
    let mut steps = Steps { by: Vec::new(), fields: Vec::new(), max_entries: 16384, steps: Vec::new() };
    for line in case.lines().filter(|l| !l.trim().is_empty() && !l.starts_with('#')) {
        let (key, value) = line.split_once(": ").unwrap_or_else(|| panic!("no `key: value`: {line}"));
        if matches!(key, "value" | "metric.where") || key.starts_with("label ") {
            if program.metrics.is_empty() {
                program.metrics.push(metric(&mut r, "counter x_total"));
            }
            let text = r.text(value);
            let m = program.metrics.last_mut().expect("just made");
            match key.strip_prefix("label ") {
                Some(name) => {
                    let name = r.text(name);
                    m.labels.push(Label { name, value: text });
                    m.allow_high_cardinality |= r.high;
                }
                None if key == "value" => m.value = Some(text),
                None => m.filter = Some(text),
            }
            continue;
        }
        match key {
            "at" => program.shape = Shape::At(r.hooks(value)),
            "start" => span.start = r.hooks(value),
            "end" => span.end = r.hooks(value),
            "by" => span.by.push(r.text(value)),
            "by.end" => span.by_end.push(r.text(value)),
            "keep" => span.keep = if value == "first" { Keep::First } else { Keep::Last },
            "start.where" => span.filter = Some(r.text(value)),
            "end.where" => span.filter_end = Some(r.text(value)),
            "also" => program.extra_filter = Some(r.text(value)),
            "owner" if value == "none" => program.owner = Owner::None,
            "owner" => program.owner = Owner::Of { end: r.text(value), start: None },
            "owner.start" => match &mut program.owner {
                Owner::Of { start, .. } => *start = Some(r.text(value)),
                _ => panic!("`owner` before `owner.start`"),
            },
            "where" => program.filter = Some(r.text(value)),
            "poll" => program.shape = Shape::Poll { source: r.text(value), every_ns: 5_000_000_000 },
            "metric" => {
                let m = metric(&mut r, value);
                program.metrics.push(m);
            }
            "high" => r.high = true,
            "engine" => program.engine = Engine::Ftrace,
            "state" => steps.by.push(r.text(value)),
            "step" => steps.steps.push(Step {
                hooks: r.hooks(value),
                filter: None,
                by: Vec::new(),
                set: Vec::new(),
                observe: Vec::new(),
                delete: false,
            }),
            "step.where" => steps.steps.last_mut().expect("a step").filter = Some(r.text(value)),
            "step.by" => steps.steps.last_mut().expect("a step").by.push(r.text(value)),
            "observe" => steps.steps.last_mut().expect("a step").observe.push(value.parse().expect("a number")),
            "delete" => steps.steps.last_mut().expect("a step").delete = true,
            "target" => {}
            "slow" => {
                let when = r.text(value);
                let (fields, otlp_span) = (Vec::new(), Vec::new());
                program.slow = Some(Slow { when, fields, otlp_span, max_per_second: 1, buffer_bytes: None });
            }
            "slow.most" => slow(&mut program).max_per_second = value.parse().expect("a number"),
            _ => {
                let (what, name) = key.split_once(' ').unwrap_or_else(|| panic!("unknown key `{key}`"));
                if what == "span" {
                    let text = r.text(value);
                    slow(&mut program).otlp_span.push((span_field(name), text));
                    continue;
                }
                let pair = (r.text(name), r.text(value));
                match what {
                    "let" => program.lets.push(pair),
                    "save" => span.save.push(pair),
                    "show" => slow(&mut program).fields.push(pair),
                    "field" => steps.fields.push(pair),
                    "set" => steps.steps.last_mut().expect("a step").set.push(pair),
                    _ => panic!("unknown key `{key}`"),
                }
            }
        }
    }
    if !span.start.is_empty() {
        program.shape = Shape::Span(span);
    } else if !steps.steps.is_empty() {
        program.shape = Shape::Steps(steps);
    }
    (program, r.texts)
}
