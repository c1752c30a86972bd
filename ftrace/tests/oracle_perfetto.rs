//! The Perfetto writer against Perfetto's own descriptors and the kernel's own text.

use flate2::read::GzDecoder;
use kstrobe_ftrace::format::{EventFormat, Formats, PageFormat};
use kstrobe_ftrace::page::Lost;
use kstrobe_ftrace::perfetto::{self, Machine};
use kstrobe_ftrace::symbols::Symbols;
use kstrobe_ftrace::trace::{About, Buffer, CpuPages, CpuStats, Event, Trace};
use kstrobe_ftrace::value::Value;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

/// `tests/fixtures/perfetto`, or another folder of the same form with more recordings.
fn root() -> PathBuf {
    let own = || Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/perfetto");
    std::env::var_os("KSTROBE_RECORDINGS").map_or_else(own, PathBuf::from)
}

/// What a packed file held; nothing when there is none.
fn text(folder: &Path, file: &str) -> String {
    String::from_utf8(bytes(folder, file)).unwrap()
}

fn bytes(folder: &Path, file: &str) -> Vec<u8> {
    let mut plain = Vec::new();
    if let Ok(packed) = std::fs::read(folder.join(format!("{file}.gz"))) {
        GzDecoder::new(&packed[..]).read_to_end(&mut plain).unwrap();
    }
    plain
}

fn folders(of: &Path) -> Vec<PathBuf> {
    let mut folders: Vec<_> = std::fs::read_dir(of).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.retain(|path| path.is_dir());
    folders.sort();
    folders
}

fn recordings() -> Vec<PathBuf> {
    let all: Vec<_> = folders(&root()).iter().flat_map(|kernel| folders(kernel)).collect();
    assert!(all.len() >= 7, "{all:?}");
    all
}

fn load(recording: &Path) -> Trace {
    let kernel = recording.parent().unwrap();
    let mut formats = Formats::default();
    for part in text(kernel, "formats").split("system: ").skip(1) {
        let (system, text) = part.split_once('\n').unwrap();
        formats.add(EventFormat::parse(system, text).unwrap());
    }
    let comm = |line: &str| {
        let (pid, comm) = line.split_once(' ')?;
        Some((pid.parse().ok()?, comm.to_owned()))
    };
    let cpus = [0, 1].map(|cpu| CpuPages {
        cpu,
        pages: bytes(recording, &format!("cpu{cpu}.raw")),
        stats: Some(CpuStats::parse(&text(recording, &format!("cpu{cpu}.stats")))),
    });
    let comms: BTreeMap<i32, String> = text(recording, "saved_cmdlines").lines().filter_map(comm).collect();
    Trace {
        page: PageFormat::parse(&text(kernel, "header_page")).unwrap(),
        header_event: String::new(),
        formats,
        symbols: Symbols::parse(&text(kernel, "kallsyms")),
        printk: BTreeMap::new(),
        // The process of one thread is known, that of the others is not.
        tgids: comms.keys().take(1).map(|pid| (*pid, *pid)).collect(),
        comms,
        buffers: vec![Buffer {
            name: String::new(),
            clock: text(recording, "trace_clock").split(['[', ']']).nth(1).unwrap().to_owned(),
            cpus: cpus.into(),
        }],
        about: About {
            hostname: "node-7".into(),
            uname: format!("Linux {} #1 SMP Debian 1.2 (2025-01-01) x86_64", text(kernel, "uname").trim()),
            cpus: 2,
            epoch_offset_ns: Some(1_700_000_000_000_000_000),
            ..About::default()
        },
    }
}

#[test]
fn every_event_of_a_recording_is_written() {
    for recording in recordings() {
        let trace = load(&recording);
        let mut out = Vec::new();
        let summary = perfetto::write(&trace, &mut out).unwrap();
        assert_eq!(summary.events(), trace.events().count() as u64, "{recording:?}");
        assert_eq!(summary.bytes, out.len() as u64, "{recording:?}");
        assert!(summary.events() > 0, "{recording:?}");
        assert_eq!((summary.unreadable_fields, summary.unreadable_pages, summary.unknown), (0, 0, 0), "{recording:?}");
    }
}

#[test]
#[ignore = "needs the Python package perfetto"]
fn oracle_perfetto_reads_every_recording() {
    for recording in recordings() {
        let trace = load(&recording);
        let said = read_by_perfetto(&trace, &recording);
        let of = |what: &str| said.iter().filter(|line| line["what"] == what).cloned().collect::<Vec<_>>();
        the_whole(&trace, &of);
        events(&trace, of("event"), &recording);
        if !text(&recording, "full.txt").is_empty() {
            calls(&trace, of("slice"), &recording);
        }
        println!("{}: {} events, {} calls", recording.display(), of("event").len(), of("slice").len());
    }
}

#[test]
#[ignore = "needs the Python package perfetto"]
fn oracle_perfetto_reads_several_machines_on_one_timeline() {
    let recordings: Vec<_> = recordings().into_iter().take(3).collect();
    let mut out = Vec::new();
    let mut expected = BTreeMap::new();
    // Each was recorded by a clock of its own; by the wall clock they began a millisecond apart.
    let begin = 1_700_000_000_000_000_000_i64;
    let mut first = None;
    for (number, recording) in recordings.iter().enumerate() {
        let mut trace = load(recording);
        let start = trace.events().next().unwrap().time;
        let offset = begin + 1_000_000 * number as i64 - start as i64;
        trace.about.epoch_offset_ns = Some(offset);
        let first = *first.get_or_insert(offset);
        let name = format!("node-{number}");
        perfetto::write_machine(&trace, Machine::beside(number as u32, &name, offset, first), &mut out).unwrap();
        let mut times: Vec<i64> = trace.events().map(|event| event.time as i64 + offset - first).collect();
        times.sort_unstable();
        expected.insert(name, (times, trace.comms.len() - trace.tgids.len()));
    }
    let said = run_oracle("read_machines.py", &out, "machines");
    assert_eq!(said.len(), 3);
    for (number, machine) in said.iter().enumerate() {
        let (times, threads) = &expected[machine["name"].as_str().unwrap()];
        assert_eq!(machine["id"], number);
        assert_eq!(machine["wall"], begin + 1_000_000 * number as i64);
        let theirs: Vec<i64> =
            machine["events"].as_array().unwrap().iter().map(|event| event[0].as_i64().unwrap()).collect();
        assert_eq!(&theirs, times);
        assert_eq!(machine["threads"].as_object().unwrap().len(), *threads);
    }
}

/// What the script says about a trace.
fn read_by_perfetto(trace: &Trace, recording: &Path) -> Vec<Json> {
    let mut out = Vec::new();
    perfetto::write(trace, &mut out).unwrap();
    run_oracle("read_perfetto.py", &out, &recording.file_name().unwrap().to_string_lossy())
}

/// What a script says about a file; `KSTROBE_PYTHON` is the Python that has the packages.
fn run_oracle(script: &str, contents: &[u8], name: &str) -> Vec<Json> {
    let file = std::env::temp_dir().join(format!("kstrobe-{}-{name}.pftrace", std::process::id()));
    std::fs::write(&file, contents).unwrap();
    let python = std::env::var("KSTROBE_PYTHON").unwrap_or_else(|_| "python3".into());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracles").join(script);
    let output = Command::new(python).arg(script).arg(&file).output().unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn the_whole(trace: &Trace, of: &dyn Fn(&str) -> Vec<Json>) {
    let start = trace.events().next().unwrap().time;
    let clocks = json!({"BUILTIN_CLOCK_BOOTTIME": start, "BUILTIN_CLOCK_REALTIME": start + 1_700_000_000_000_000_000});
    assert_eq!(of("clocks"), [json!({"what": "clocks", "primary": "BUILTIN_CLOCK_BOOTTIME", "clocks": clocks})]);
    let release = trace.about.uname.split(' ').nth(1).unwrap();
    let system = json!({"what": "system", "sysname": "Linux", "release": release, "version": "#1 SMP Debian 1.2 (2025-01-01)",
        "machine": "x86_64", "host": "node-7", "cpus": 2});
    assert_eq!(of("system"), [system]);
    let thread = |(tid, name)| json!({"what": "thread", "tid": tid, "tgid": trace.tgids.get(tid), "name": name});
    let mut threads = of("thread");
    threads.sort_by_key(|thread| thread["tid"].as_i64());
    assert_eq!(threads, trace.comms.iter().map(thread).collect::<Vec<_>>());
    assert_eq!(of("process").len(), trace.tgids.len());
    let stats: Vec<_> = trace.buffers[0].cpus.iter().map(|cpu| (cpu.cpu, cpu.stats.unwrap())).collect();
    let stats = stats.iter().map(|(cpu, stats)| {
        json!({"what": "stats", "cpu": cpu, "entries": stats.entries, "overrun": stats.overrun, "dropped": stats.dropped_events,
            "read": stats.read_events})
    });
    assert_eq!(of("stats"), stats.collect::<Vec<_>>());
}

/// Each event that Perfetto reads is one of ours, in the order of its CPU, with the same values.
fn events(trace: &Trace, said: Vec<Json>, recording: &Path) {
    for cpu in [0, 1] {
        let ours: Vec<_> = trace.events().filter(|event| event.cpu == cpu).collect();
        let theirs: Vec<_> = said.iter().filter(|event| event["cpu"] == cpu).collect();
        assert_eq!(ours.len(), theirs.len(), "{recording:?} CPU {cpu}");
        for (our, their) in ours.iter().zip(theirs) {
            let format = our.format.unwrap();
            let head =
                json!([their["time"], their["pid"], their["flags"], their["name"], their["lost"], their["clock"]]);
            let lost = our.lost != Lost::Nothing;
            let expected = json!([our.time, our.pid(), our.flags(), format.name, lost, "FTRACE_CLOCK_LOCAL"]);
            assert_eq!(head, expected, "{recording:?} {their}");
            let fields = their["fields"].as_object().unwrap();
            if their["typed"] == false {
                let own = format.fields.iter().filter(|field| !field.name.starts_with("common_"));
                assert_eq!(own.count(), fields.len(), "{recording:?} {their}");
            }
            for name in their["absent"].as_array().unwrap() {
                assert!(format.field(name.as_str().unwrap()).is_none(), "{recording:?} no {name} in {their}");
            }
            for (name, value) in fields {
                assert_eq!(&expected_value(trace, our, name), value, "{recording:?} {name} of {their}");
            }
        }
    }
}

fn expected_value(trace: &Trace, event: &Event<'_>, name: &str) -> Json {
    let symbol =
        |address| trace.symbols.find(address).map_or(format!("{address:#x}"), |symbol| symbol.name.to_string());
    let list = |value: Value<'_>| value.elements().map(|number| format!("{number:#x}")).collect::<Vec<_>>().join(",");
    match event.value(name).unwrap_or_else(|| panic!("no {name}")) {
        Value::Unsigned(address)
            if matches!(name, "func" | "parent_ip") || name == "ip" && event.is("ftrace", "function") =>
        {
            json!(symbol(address))
        }
        Value::Unsigned(number) => json!(number),
        Value::Signed(number) => json!(number),
        Value::Text(text) => json!(String::from_utf8_lossy(text)),
        value @ Value::Array { .. } if event.is("raw_syscalls", "sys_enter") => {
            json!(value.elements().collect::<Vec<_>>())
        }
        value @ Value::Array { .. } if name == "caller" => {
            let size = event.number("size").unwrap() as usize;
            json!(value.elements().take(size).map(symbol).collect::<Vec<_>>().join(" < "))
        }
        value @ Value::Array { .. } => json!(format!("{{{}}}", list(value))),
        Value::Bytes(bytes) => json!(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()),
    }
}

/// Slices nest as their depths say, and are those of the kernel's own text, in its order on each CPU, with its durations.
fn calls(trace: &Trace, slices: Vec<Json>, recording: &Path) {
    let wrapped = recording.ends_with("wrapped");
    let kernel = text(recording, "full.txt");
    for cpu in [0, 1] {
        let ours: Vec<_> = slices.iter().filter(|slice| slice["cpu"] == cpu).collect();
        let shown: Vec<_> = kernel.lines().filter_map(|line| ended(line, cpu)).collect();
        let said: Vec<_> = ours.iter().map(|slice| (usecs(slice["ns"].as_u64().unwrap()), name(slice))).collect();
        assert_eq!(said, shown, "{recording:?} CPU {cpu}");
    }
    assert!(!slices.is_empty());
    for slice in &slices {
        let (entry, exit) = (slice["entry"].as_u64(), slice["exit"].as_u64().unwrap());
        assert_eq!(slice["unfinished_inside"], 0, "{recording:?} {slice}");
        // Slices last from record to record, and interrupts come in between: only the kernel's own measure says how long a call took.
        let inside = slice["ns"].as_u64().unwrap() <= exit;
        assert!(inside && entry.map_or(wrapped, |entry| entry < exit), "{recording:?} {slice}");
        let parents = slice["parents"].as_array().unwrap().len() as u64;
        assert!(wrapped || parents <= slice["depth"].as_u64().unwrap(), "{recording:?} {slice}");
    }
    let entries = trace.events().filter(|event| event.is("ftrace", "funcgraph_entry")).count();
    let paired = slices.iter().filter(|slice| !slice["entry"].is_null()).count();
    println!("{}: {entries} entries, {paired} with their exit", recording.display());
    assert!(entries - paired <= if wrapped { 64 } else { 16 }, "{recording:?} {entries} {paired}");
}

fn name(slice: &Json) -> String {
    slice["name"].as_str().unwrap().to_owned()
}

/// Duration and name of the call that ends on a line, if one of the CPU does.
fn ended(line: &str, cpu: u32) -> Option<(String, String)> {
    let (head, call) = line.split_once(" us ")?;
    let number = head.split_once('|')?.1.split_once(')')?.0.trim();
    let duration = head.rsplit(' ').find(|word| !word.is_empty())?;
    let call = call.trim_start_matches(['|', ' ']).trim_end();
    let name = call.strip_suffix("();").or_else(|| call.strip_prefix("} /* ")?.strip_suffix(" */"))?;
    // Modules are named behind functions.
    let name = name.split(' ').next()?;
    (number.parse() == Ok(cpu)).then(|| (duration.to_owned(), name.to_owned()))
}

/// Microseconds as the kernel prints them: seven digits at most.
fn usecs(ns: u64) -> String {
    let whole = (ns / 1000).to_string();
    let fraction = &format!("{:03}", ns % 1000)[..3.min(7_usize.saturating_sub(whole.len()))];
    if fraction.is_empty() { whole } else { format!("{whole}.{fraction}") }
}
