//! Recordings of real kernels (`fixtures/kernels`, see its README) as traces.

#![allow(dead_code, reason = "each test uses some of it")]

pub mod graph;
pub mod made;
pub mod tree;

use flate2::read::GzDecoder;
use kstrobe_ftrace::format::{EventFormat, Formats, PageFormat};
use kstrobe_ftrace::symbols::Symbols;
use kstrobe_ftrace::trace::{About, Buffer, CpuPages, CpuStats, Trace};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;

/// Kernels of which there are recordings.
pub const KERNELS: [&str; 4] = ["5.10", "6.1", "6.12", "sid"];
/// Recordings by the function_graph tracer.
pub const GRAPHS: [&str; 4] = ["recvfrom", "sched", "roots", "wrapped"];
/// Recordings of events and by the function tracer.
pub const EVENTS: [&str; 4] = ["events", "stacks", "function", "funcstack"];
/// CPUs of the recorded machines.
pub const CPUS: [u32; 2] = [0, 1];

/// What a file of a kernel, or of one of its recordings (`recvfrom/trace.txt`), held; `None` when there is no such file.
pub fn bytes(kernel: &str, file: &str) -> Option<Vec<u8>> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/kernels");
    // `../report/6.12` is a kernel whose recordings are for reports.
    let packed = std::fs::read(root.join(kernel).join(format!("{file}.gz"))).ok()?;
    let mut plain = Vec::new();
    GzDecoder::new(&packed[..]).read_to_end(&mut plain).unwrap();
    Some(plain)
}

/// The text of a file of a recording, e.g. `trace.txt`, `full.txt`, `nocpu.txt`, `args.txt`, `latency.txt`, `raw.txt`.
pub fn text(kernel: &str, scenario: &str, file: &str) -> String {
    kernel_text(kernel, &format!("{scenario}/{file}"))
}

/// The text of a file of a kernel: `header_page`, `header_event`, `formats`, `kallsyms`, `uname`.
pub fn kernel_text(kernel: &str, file: &str) -> String {
    let bytes = bytes(kernel, file).unwrap_or_else(|| panic!("no {file} of {kernel}"));
    String::from_utf8(bytes).unwrap()
}

/// Formats of the events that occur in a kernel's recordings, and of all of the subsystem `ftrace`.
pub fn formats(kernel: &str) -> Formats {
    let mut formats = Formats::default();
    for part in kernel_text(kernel, "formats").split("system: ").skip(1) {
        let (system, text) = part.split_once('\n').unwrap();
        formats.add(EventFormat::parse(system, text).unwrap());
    }
    formats
}

/// A recording.
pub fn trace(kernel: &str, scenario: &str) -> Trace {
    let text = |file: &str| text(kernel, scenario, file);
    let comm = |line: &str| {
        let (pid, comm) = line.split_once(' ')?;
        Some((pid.parse().ok()?, comm.to_owned()))
    };
    let cpus = CPUS.map(|cpu| CpuPages {
        cpu,
        pages: bytes(kernel, &format!("{scenario}/cpu{cpu}.raw")).unwrap(),
        stats: Some(CpuStats::parse(&text(&format!("cpu{cpu}.stats")))),
    });
    let clocks = text("trace_clock");
    let clock = clocks.split(['[', ']']).nth(1).unwrap().to_owned();
    Trace {
        page: PageFormat::parse(&kernel_text(kernel, "header_page")).unwrap(),
        header_event: kernel_text(kernel, "header_event"),
        formats: formats(kernel),
        symbols: Symbols::parse(&kernel_text(kernel, "kallsyms")),
        printk: BTreeMap::new(),
        comms: text("saved_cmdlines").lines().filter_map(comm).collect(),
        tgids: BTreeMap::new(),
        buffers: vec![Buffer { name: String::new(), clock, cpus: cpus.into() }],
        about: About {
            uname: format!("Linux {} x86_64", kernel_text(kernel, "uname").trim()),
            cpus: CPUS.len() as u32,
            ..About::default()
        },
    }
}
