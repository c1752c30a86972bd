//! Traces as trace.dat files, and files that trace-cmd wrote.

#![allow(dead_code, reason = "each test uses some of it")]

use flate2::read::GzDecoder;
use kstrobe_ftrace::dat::{self, Compression, Options, Version};
use kstrobe_ftrace::trace::{Buffer, Event, Trace};
use std::io::Read;
use std::path::PathBuf;

/// The bytes of a trace's file.
pub fn written(trace: &Trace, version: Version, compression: Compression) -> Vec<u8> {
    let mut out = std::io::Cursor::new(Vec::new());
    dat::write(trace, &Options { version, compression, wall_clock: false }, &mut out).unwrap();
    out.into_inner()
}

/// Files that trace-cmd wrote, in `fixtures/dat`; see the README there.
pub const THEIRS: [&str; 12] = [
    "default",
    "none",
    "cpu1",
    "instances",
    "onlyinstance",
    "v6",
    "v6instances",
    "date",
    "tsoffset",
    "tsc",
    "procmap",
    "hook",
];

/// One of those files, or what trace-cmd reports of it: `default.dat`, `default.txt`.
pub fn fixture(name: &str) -> Vec<u8> {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/dat").join(format!("{name}.gz"));
    let mut plain = Vec::new();
    GzDecoder::new(&std::fs::read(file).unwrap()[..]).read_to_end(&mut plain).unwrap();
    plain
}

/// One event, as trace-cmd and we tell it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Line {
    pub buffer: String,
    pub cpu: u32,
    pub time: u64,
    pub task: String,
    pub event: String,
}

/// The events of `trace-cmd report`, those of each buffer and CPU in order. Lines of other forms belong to the one before.
pub fn reported(text: &str) -> Vec<Line> {
    let mut lines: Vec<Line> = text.lines().filter_map(line).collect();
    lines.sort_by_key(|line| (line.buffer.clone(), line.cpu));
    lines
}

/// `other:    sleep-418   [000]    71.958083702: sched_switch:         ...`; nothing stands before lines of the top buffer.
fn line(line: &str) -> Option<Line> {
    let (task, rest) = line.split_once(" [")?;
    let (buffer, task) = match task.split_once(": ") {
        Some((buffer, task)) if !buffer.starts_with(' ') => (buffer, task),
        _ => ("", task),
    };
    let (cpu, rest) = rest.split_once(']')?;
    let (time, rest) = rest.trim_start().split_once(": ")?;
    Some(Line {
        buffer: buffer.to_owned(),
        cpu: cpu.parse().ok()?,
        time: time.replace('.', "").parse().ok()?,
        task: task.trim().to_owned(),
        event: rest.trim_start().split_once(':')?.0.to_owned(),
    })
}

/// The events of a trace in the same order.
pub fn decoded(trace: &Trace) -> Vec<Line> {
    let mut events = trace.events();
    let task = |pid: i32| match trace.comms.get(&pid) {
        _ if pid == 0 => "<idle>-0".to_owned(),
        Some(comm) => format!("{comm}-{pid}"),
        None => format!("<...>-{pid}"),
    };
    let line = |event: Event<'_>| Line {
        buffer: trace.buffers[event.buffer].name.clone(),
        cpu: event.cpu,
        time: event.time,
        task: task(event.pid()),
        event: event.format.expect("a known event").name.clone(),
    };
    let mut lines: Vec<Line> = events.by_ref().map(line).collect();
    assert_eq!(events.unreadable(), []);
    lines.sort_by_key(|line| (line.buffer.clone(), line.cpu));
    lines
}

pub fn assert_lines(found: &[Line], expected: &[Line], what: &str) {
    assert!(!expected.is_empty(), "{what}");
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found, expected, "{what}");
    }
    assert_eq!(found.len(), expected.len(), "{what}");
}

/// Fails unless both hold the same. Formats may stand in another order.
pub fn assert_same(found: &Trace, expected: &Trace, what: &str) {
    let formats = |trace: &Trace| {
        let mut all: Vec<_> =
            trace.formats.all().iter().map(|format| (format.system.clone(), format.text.clone())).collect();
        all.sort();
        all
    };
    assert_eq!(found.page, expected.page, "{what}");
    assert_eq!(found.header_event, expected.header_event, "{what}");
    assert!(formats(found) == formats(expected), "{what}: formats");
    assert!(found.symbols == expected.symbols, "{what}: symbols");
    assert_eq!(found.printk, expected.printk, "{what}");
    assert_eq!(found.comms, expected.comms, "{what}");
    assert_eq!(found.about, expected.about, "{what}");
    let names = |trace: &Trace| {
        trace.buffers.iter().map(|buffer| (buffer.name.clone(), buffer.clock.clone())).collect::<Vec<_>>()
    };
    assert_eq!(names(found), names(expected), "{what}");
    let cpus =
        |buffer: &Buffer| buffer.cpus.iter().map(|cpu| (cpu.cpu, cpu.pages.len(), cpu.stats)).collect::<Vec<_>>();
    for (found, expected) in found.buffers.iter().zip(&expected.buffers) {
        assert_eq!(cpus(found), cpus(expected), "{what}");
        let pages = |buffer: &Buffer| buffer.cpus.iter().flat_map(|cpu| cpu.pages.clone()).collect::<Vec<_>>();
        assert!(pages(found) == pages(expected), "{what}: pages");
    }
}

/// A trace that has something in every place.
pub fn everything() -> Trace {
    let mut trace = crate::support::trace("6.12", "recvfrom");
    trace.printk.extend([
        (0xffff_ffff_8123_4560, "packet %d\n".to_owned()),
        (0xffff_ffff_8123_4568, "a \"quoted\"\ttext".to_owned()),
    ]);
    trace.comms.extend([(77, " two  blanks ".to_owned()), (78, String::new())]);
    let mut instance = crate::support::trace("6.12", "sched").buffers.remove(0);
    (instance.name, instance.clock) = ("irq-off".to_owned(), "mono".to_owned());
    let mut silent = instance.clone();
    silent.name = "silent".to_owned();
    silent.cpus.iter_mut().for_each(|cpu| cpu.stats = None);
    trace.buffers.extend([instance, silent]);
    trace.about.uname = "Linux node1 6.12.1 x86_64".to_owned();
    trace.about.hostname = "node1".to_owned();
    trace.about.recorder = "kstrobe 0.1".to_owned();
    trace.about.trace_id = 0x1234_5678_9abc_def0;
    // PROCMAPS: id 10.
    trace.about.other_options.push((10, b"2a 1 /bin/sh\n1000 2000 /bin/sh\n\0".to_vec()));
    trace
}

/// A recording as it were with pages of twice the size (`buffer_subbuf_size_kb`), half of each empty.
pub fn with_long_pages(kernel: &str, scenario: &str) -> Trace {
    let mut trace = crate::support::trace(kernel, scenario);
    trace.page.text = trace.page.text.replace("size:4080", "size:8176");
    trace.page.data_bytes = 8176;
    for cpu in &mut trace.buffers[0].cpus {
        cpu.pages = cpu.pages.chunks(4096).flat_map(|page| [page, &[0; 4096]].concat()).collect();
    }
    trace
}
