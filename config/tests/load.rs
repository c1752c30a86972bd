//! What is loaded from good files: values, defaults, places, and names across files.

use kstrobe_config::model::{
    Agent, BucketSpec, Edge, HookKind, Keep, Metric, MetricKind, MetricMeta, Owner, Probe, Shape, SourceFile,
};
use kstrobe_config::{Severity, agent, area, embedded, probes, probes_replacing, render, unique_metrics};
use std::collections::BTreeSet;
use std::sync::Arc;

fn file(name: &str, text: &str) -> Arc<SourceFile> {
    Arc::new(SourceFile { name: name.into(), text: text.into() })
}

fn load(text: &str) -> Vec<Probe> {
    let (probes, diagnostics) = probes(&[file("etc/my-probes.yaml", text)]);
    assert!(diagnostics.is_empty(), "{}", render(&diagnostics));
    probes
}

fn metric(body: &str) -> (Metric, MetricMeta) {
    let text = format!("probe: p\nsummary: A probe.\nat: rawtracepoint:sched_switch\nmetrics:\n  {body}\n");
    let mut probe = load(&text).remove(0);
    (probe.program.metrics.remove(0), probe.metrics.remove(0))
}

fn buckets(body: &str) -> BucketSpec {
    match metric(body).0.kind {
        MetricKind::Histogram(buckets) => buckets,
        other => panic!("{other:?} is no histogram"),
    }
}

#[test]
fn no_shipped_probe_is_forgotten_or_wrong() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../probes");
    let entries = |folder: &std::path::Path| std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
    let on_disk: BTreeSet<String> = entries(&folder)
        .filter(|entry| entry.is_dir())
        .flat_map(|area| entries(&area).collect::<Vec<_>>())
        .map(|path| format!("<embedded>/{}", path.strip_prefix(&folder).unwrap().display()))
        .collect();
    let files = embedded();
    let stems: BTreeSet<_> = files.iter().map(|f| f.name.rsplit('/').next().unwrap()).collect();
    assert_eq!(stems.len(), files.len(), "a file of one's own replaces the built-in one of its name");
    assert_eq!(area(&files[0]), Some("block"));
    assert_eq!(area(&SourceFile { name: "etc/block/mine.yaml".into(), text: String::new() }), None);
    assert_eq!(files.iter().map(|f| f.name.clone()).collect::<BTreeSet<_>>(), on_disk);
    let (probes, diagnostics) = probes(&files);
    assert!(diagnostics.is_empty(), "{}", render(&diagnostics));
    assert_eq!(unique_metrics(probes.clone()).1, [], "all of them can run together");
    for (name, pack, enabled) in [
        ("recvfrom", "recvfrom", true),
        ("softirq_delay", "softirq", true),
        ("syscalls", "syscalls", true),
        ("softnet", "tcp_backlog", true),
        ("tcp_retransmits_by_port", "tcp_retransmits", false),
    ] {
        let probe = probes.iter().find(|p| p.name() == name).unwrap_or_else(|| panic!("{name} is missing"));
        assert_eq!((probe.pack.as_str(), probe.enabled), (pack, enabled));
    }
}

#[test]
fn every_shipped_probe_says_what_it_costs() {
    let (probes, _) = probes(&embedded());
    let without: Vec<_> = probes.iter().filter(|probe| probe.cost.is_none()).map(|probe| probe.name()).collect();
    assert!(without.is_empty(), "{without:?}");
}

#[test]
fn a_tool_is_answered_by_one_shipped_probe() {
    let (probes, _) = probes(&embedded());
    let names = |tool: &str| probes_replacing(tool, &probes).iter().map(|p| p.name().to_owned()).collect::<Vec<_>>();
    for probe in &probes {
        for tool in &probe.replaces {
            assert_eq!(names(tool), [probe.name()], "{tool}");
            assert!(probes.iter().all(|other| other.name() != tool || other.name() == probe.name()), "{tool}");
        }
    }
    for tool in ["runqlat", "RUNQLAT", "runqlat-bpfcc", "runqlat.bt", "runqlat.py"] {
        assert_eq!(names(tool), ["runqueue_latency"], "{tool}");
    }
    assert!(names("execsnoop-perf") == ["execs"] && names("bpfcc").is_empty() && names("").is_empty());
}

#[test]
fn a_span_has_its_parts_in_file_order() {
    let text = "\
probe: recv
summary: >
  Two
  lines.
span:
  start: [\"syscall:[recvfrom, read]:enter\", \"syscall:recvmsg:enter\"]
  end: syscall:*:exit
  by: [cpu, softirq(args.vec_nr)]
  save: { z: args.fd, a: 1 }
  where: args.fd > 0
  keep: first
  max_entries: 99
where: retval >= 0
max_map_bytes: 64KiB
metrics:
  z_total: { type: counter }
  a: { type: gauge, value: 0x10, labels: { z: start.z, a: start.a }, help: Some help. }
";
    let probe = load(text).remove(0);
    assert_eq!((probe.summary.as_str(), probe.pack.as_str()), ("Two lines.", "my-probes"));
    assert_eq!((probe.enabled, probe.program.limits.map_bytes), (true, 65536));
    assert_eq!(probe.program.filter.unwrap().value, "retval >= 0");
    let Shape::Span(span) = probe.program.shape else { panic!("not a span") };
    let read = HookKind::Syscall { names: vec!["recvfrom".into(), "read".into()], edge: Edge::Enter };
    assert_eq!((span.start.len(), &span.start[0].kind), (2, &read));
    assert_eq!(span.end[0].kind, HookKind::Syscall { names: vec![], edge: Edge::Exit });
    assert_eq!(span.by.iter().map(|b| b.value.as_str()).collect::<Vec<_>>(), ["cpu", "softirq(args.vec_nr)"]);
    assert_eq!(
        span.save.iter().map(|(n, e)| (&*n.value, &*e.value)).collect::<Vec<_>>(),
        [("z", "args.fd"), ("a", "1")]
    );
    assert_eq!(span.filter.unwrap().value, "args.fd > 0");
    assert_eq!(span.keep, Keep::First);
    assert_eq!(span.max_open, 99);
    assert_eq!(probe.program.metrics.iter().map(|m| m.name.value.as_str()).collect::<Vec<_>>(), ["z_total", "a"]);
    assert_eq!(probe.program.metrics[1].value.as_ref().unwrap().value, "0x10");
    assert_eq!(probe.program.metrics[1].labels.iter().map(|l| l.name.value.as_str()).collect::<Vec<_>>(), ["z", "a"]);
    assert_eq!(probe.metrics[1].help, "Some help.");
}

#[test]
fn defaults_are_filled_in() {
    let text = "probe: p\nsummary: A probe.\nspan: { start: syscall:*:enter, end: syscall:*:exit }\nmetrics: { n_total: { type: counter } }\n---\nprobe: q\nsummary: Polled.\npoll: { source: softnet }\nmetrics: { m_total: { type: counter } }\n";
    let probes = load(text);
    assert_eq!(probes[0].program.limits.map_bytes, 16 << 20);
    let Shape::Span(span) = &probes[0].program.shape else { panic!("not a span") };
    assert!(span.by.is_empty() && span.save.is_empty() && span.keep == Keep::Last);
    assert_eq!(span.max_open, 16384);
    let Shape::Poll { source, every_ns } = &probes[1].program.shape else { panic!("not a poll") };
    assert_eq!((source.value.as_str(), *every_ns, source.at.line), ("softnet", 5_000_000_000, 8));
    let (metric, meta) = probes[1].metrics().next().unwrap();
    assert_eq!((metric.max_series, meta.ttl_ns, meta.raw_per_unit), (1024, 900_000_000_000, 1));
    assert!(meta.help == "Polled." && meta.unit.is_empty() && !metric.allow_high_cardinality);
}

#[test]
fn units_come_from_the_name_or_from_unit() {
    let unit = |body: &str| {
        let (_, meta) = metric(body);
        (meta.unit, meta.raw_per_unit)
    };
    assert_eq!(unit("wait_seconds: { type: gauge, value: 1 }"), ("seconds".into(), 1_000_000_000));
    assert_eq!(unit("busy_seconds_total: { type: counter, value: 1 }"), ("seconds".into(), 1_000_000_000));
    assert_eq!(unit("size_bytes: { type: gauge, value: 1 }"), ("bytes".into(), 1));
    assert_eq!(unit("depth: { type: gauge, value: 1, unit: connections }"), ("connections".into(), 1));
    assert_eq!(unit("depth: { type: gauge, value: 1 }"), (String::new(), 1));
}

#[test]
fn buckets_keep_decimal_text_and_clip_defaults_to_a_given_range() {
    let default = buckets("w_seconds: { type: histogram, value: elapsed }");
    assert_eq!((default.schema, default.min, default.max), (3, 1_000, 16_000_000_000));
    assert_eq!((default.classic.len(), default.classic[21].as_str()), (22, "10"));
    let plain = buckets("depth: { type: histogram, value: 1 }");
    assert_eq!((plain.min, plain.max, plain.classic.len()), (1, 1 << 30, 16));
    let given = buckets(
        "w_seconds: { type: histogram, value: 1, buckets: { schema: 0, min: 1ms, max: 1h, classic: [0.010, 1.0] } }",
    );
    assert_eq!(
        given,
        BucketSpec {
            schema: 0,
            raw_per_unit: 1_000_000_000,
            min: 1_000_000,
            max: 3_600_000_000_000,
            classic: vec!["0.010".into(), "1.0".into()]
        }
    );
    let clipped = buckets("w_seconds: { type: histogram, value: 1, buckets: { min: 1ms, max: 10ms } }");
    assert_eq!(clipped.classic, ["0.001", "0.0025", "0.005", "0.01"]);
    let bytes = buckets("w_bytes: { type: histogram, value: 1, buckets: { min: 4KiB, max: 1MiB } }");
    assert_eq!((bytes.min, bytes.max, bytes.classic.first().map(String::as_str)), (4096, 1 << 20, Some("4096")));
    let linear = |spec: &str| {
        buckets(&format!("w_seconds: {{ type: histogram, value: 1, buckets: {{ linear: {spec} }} }}")).classic
    };
    assert_eq!(linear("{ from: 0.25, step: 0.25, count: 5 }"), ["0.25", "0.5", "0.75", "1", "1.25"]);
    assert_eq!(linear("{ from: 0.000000001, step: 1, count: 2 }"), ["0.000000001", "1.000000001"]);
    assert_eq!(metric("n_total: { type: counter, ttl: 0 }").1.ttl_ns, 0);
}

#[test]
fn places_of_expressions_are_exact_in_every_document() {
    let text = "# x\nprobe: p\nsummary: A probe.\nat: rawtracepoint:a\nmetrics: { a_total: { type: counter } }\n---\nprobe: q\nsummary: A probe.\nat: rawtracepoint:a\nwhere: |\n  pid == 1\n    && tid == 2\nmetrics: { b_total: { type: counter, value: \"args.é + args.x\" } }\n";
    let probes = load(text);
    let filter = probes[1].program.filter.as_ref().unwrap();
    assert_eq!((filter.at.line, filter.at.column), (11, 3));
    let start = filter.value.find("tid").unwrap();
    let tid = filter.at.sub(&filter.value, start..start + 3);
    assert_eq!((tid.line, tid.column, &text[tid.start..tid.end]), (12, 8, "tid"));
    let value = probes[1].program.metrics[0].value.as_ref().unwrap();
    let start = value.value.rfind("args").unwrap();
    let x = value.at.sub(&value.value, start..start + 6);
    assert_eq!((x.line, x.column, &text[x.start..x.end]), (13, 55, "args.x"));
}

#[test]
fn aliases_and_merges_are_expanded() {
    let text = "probe: p\nsummary: A probe.\nat: rawtracepoint:a\nmetrics:\n  a_total: &a { type: counter, where: x, labels: &l { cpu: cpu } }\n  b_total: { <<: *a, where: y }\n  c: { type: gauge, value: 1, labels: *l }\n";
    let metrics = load(text).remove(0).program.metrics;
    let filter = |i: usize| metrics[i].filter.as_ref().map(|f| f.value.as_str());
    assert_eq!((filter(0), filter(1), filter(2)), (Some("x"), Some("y"), None));
    assert!(metrics.iter().all(|m| m.labels.len() == 1 && m.labels[0].value.value == "cpu"));
}

#[test]
fn names_are_unique_across_files_and_the_first_stands() {
    let body = "summary: A probe.\nat: rawtracepoint:a\nmetrics: { n_total: { type: counter } }\n";
    let first = file("a.yaml", &format!("probe: p\n{body}"));
    let second = file("b.yaml", &format!("probe: q\n{body}---\nprobe: p\n{}", body.replace("n_total", "m_total")));
    let (probes, mut diagnostics) = probes(&[first, second]);
    let (probes, mut twice) = unique_metrics(probes);
    diagnostics.append(&mut twice);
    assert_eq!(probes.iter().map(|p| p.program.name.at.file.name.as_str()).collect::<Vec<_>>(), ["a.yaml"]);
    let text = render(&diagnostics);
    assert!(text.contains("metric `n_total` is defined twice\n --> b.yaml:4:12"), "{text}");
    assert!(text.contains("probe `p` is defined twice\n --> b.yaml:6:8"), "{text}");
    assert!(text.contains("the first is in a.yaml, line 1"), "{text}");
}

#[test]
fn an_agent_file_among_probes_is_recognised() {
    let (none, diagnostics) = probes(&[file("kstrobe.yaml", "captures: {}\nlog: { level: debug }\n")]);
    assert_eq!(none.len(), 0);
    let lines: Vec<String> = diagnostics.iter().map(|d| d.one_line()).collect();
    let expected = "kstrobe.yaml:1:1: this is the agent's configuration, not a probe (`kstrobe check --config kstrobe.yaml` checks it)";
    assert_eq!(lines, [expected]);
}

#[test]
fn an_agent_file_gives_values_and_defaults() {
    let (empty, diagnostics) = agent(&file("kstrobe.yaml", ""));
    assert!(diagnostics.is_empty());
    assert_eq!(empty.unwrap().listen, Agent::default().listen);
    let text = "listen: \":1\"\nprobes: { enable: a, disable: [b, c], directory: /etc/x }\nlog: { level: warn, format: json }\n";
    let (full, diagnostics) = agent(&file("kstrobe.yaml", text));
    assert!(diagnostics.is_empty(), "{}", render(&diagnostics));
    let full = full.unwrap();
    assert_eq!((full.listen, full.log_level, full.log_json), (vec![":1".to_owned()], "warn".to_owned(), true));
    assert_eq!(full.enable.iter().chain(&full.disable).map(|n| n.value.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(full.probes_directory.unwrap().value, "/etc/x");
    let (none, diagnostics) = agent(&file("kstrobe.yaml", "lisen: \":1\"\n"));
    assert!(none.is_none() && diagnostics[0].severity == Severity::Error);
}

#[test]
fn whose_events_are() {
    let owner = |shape: &str, owner: &str| {
        let text =
            format!("probe: p\nsummary: A probe.\n{shape}\n{owner}\nmetrics: {{ x_total: {{ type: counter }} }}\n");
        load(&text).remove(0).program.owner
    };
    let at = "at: rawtracepoint:sched_waking";
    let span = "span: { start: rawtracepoint:sched_waking, end: rawtracepoint:sched_switch, by: cpu }";
    assert_eq!(owner(at, ""), Owner::Current);
    assert_eq!(owner(at, "owner: none"), Owner::None);
    let Owner::Of { end, start: None } = owner(at, "owner: args.p") else { panic!("an owner") };
    assert_eq!(end.value, "args.p");
    let Owner::Of { end, start: Some(start) } = owner(span, "owner: { end: args.next, start: args.p }") else {
        panic!("two owners")
    };
    assert_eq!((end.value.as_str(), start.value.as_str()), ("args.next", "args.p"));
}
