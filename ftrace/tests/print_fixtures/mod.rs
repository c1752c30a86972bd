//! The formats and recordings of `fixtures/print`.

#![allow(dead_code, reason = "each test uses some of it")]

use flate2::read::GzDecoder;
use kstrobe_ftrace::format::{EventFormat, Formats, PageFormat};
use kstrobe_ftrace::symbols::Symbols;
use kstrobe_ftrace::trace::{About, Buffer, CpuPages, Trace};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;

/// Where a fixture is.
pub fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/print").join(name)
}

fn bytes(name: &str) -> Vec<u8> {
    let packed = std::fs::read(path(&format!("{name}.gz"))).unwrap();
    let mut plain = Vec::new();
    GzDecoder::new(&packed[..]).read_to_end(&mut plain).unwrap();
    plain
}

/// The text of a packed file.
pub fn text(name: &str) -> String {
    String::from_utf8(bytes(name)).unwrap()
}

/// Formats of the events of a kernel 6.18.
pub fn formats() -> Vec<EventFormat> {
    let mut all = Vec::new();
    for part in 1..=2 {
        for part in format!("\n{}", text(&format!("formats-6.18-{part}"))).split("\nsystem: ").skip(1) {
            let (system, text) = part.split_once('\n').unwrap();
            all.push(EventFormat::parse(system, text).unwrap());
        }
    }
    all
}

/// A trace without anything.
pub fn empty() -> Trace {
    Trace {
        page: PageFormat { commit_bytes: 8, data_offset: 16, data_bytes: 4080, text: String::new() },
        header_event: String::new(),
        formats: Formats::default(),
        symbols: Symbols::default(),
        printk: BTreeMap::new(),
        comms: BTreeMap::new(),
        tgids: BTreeMap::new(),
        buffers: Vec::new(),
        about: About::default(),
    }
}

/// A recording of that kernel.
pub fn trace(scenario: &str) -> Trace {
    let text = |file: &str| text(&format!("6.18/{scenario}/{file}"));
    let mut trace = empty();
    formats().into_iter().for_each(|format| trace.formats.add(format));
    trace.symbols = Symbols::parse(&text("kallsyms"));
    for line in text("printk_formats").lines() {
        let (address, text) = line.split_once(" : ").unwrap();
        let address = u64::from_str_radix(address.strip_prefix("0x").unwrap(), 16).unwrap();
        trace.printk.insert(address, text.trim_matches('"').to_owned());
    }
    for line in text("saved_cmdlines").lines() {
        let (pid, comm) = line.split_once(' ').unwrap();
        trace.comms.insert(pid.parse().unwrap(), comm.to_owned());
    }
    let cpu = |cpu| CpuPages { cpu, pages: bytes(&format!("6.18/{scenario}/cpu{cpu}.raw")), stats: None };
    trace.buffers.push(Buffer { name: String::new(), clock: "local".to_owned(), cpus: [0, 1].map(cpu).into() });
    trace
}
