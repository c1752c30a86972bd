//! Kernels whose formats and functions pages are read with.

use flate2::read::GzDecoder;
use kstrobe_ftrace::format::{EventFormat, Formats, PageFormat};
use kstrobe_ftrace::symbols::Symbols;
use kstrobe_ftrace::trace::{About, Buffer, CpuPages, Trace};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Read;

/// What a kernel's folder of the fixtures has.
struct Packed {
    header_page: &'static [u8],
    header_event: &'static [u8],
    formats: &'static [u8],
    kallsyms: &'static [u8],
}

macro_rules! packed {
    ($($kernel:literal),+) => {
        [$(Packed {
            header_page: fixture!($kernel, "header_page"),
            header_event: fixture!($kernel, "header_event"),
            formats: fixture!($kernel, "formats"),
            kallsyms: fixture!($kernel, "kallsyms"),
        }),+]
    };
}

macro_rules! fixture {
    ($kernel:literal, $file:literal) => {
        include_bytes!(concat!("../../../../ftrace/tests/fixtures/kernels/", $kernel, "/", $file, ".gz"))
    };
}

const KERNELS: [Packed; 4] = packed!["5.10", "6.1", "6.12", "sid"];
/// Bytes for records in a page: the kernel's, and less, so that a small case has several pages.
const DATA_BYTES: [usize; 2] = [4080, 496];

thread_local! {
    /// By kernel and length of pages.
    static TRACES: RefCell<Vec<Trace>> =
        RefCell::new(KERNELS.iter().flat_map(|kernel| DATA_BYTES.map(|bytes| trace(kernel, bytes))).collect());
}

fn unpacked(packed: &[u8]) -> String {
    let mut text = String::new();
    GzDecoder::new(packed).read_to_string(&mut text).expect("a fixture");
    text
}

fn trace(kernel: &Packed, data_bytes: usize) -> Trace {
    let mut formats = Formats::default();
    for part in unpacked(kernel.formats).split("system: ").skip(1) {
        let (system, text) = part.split_once('\n').expect("a fixture");
        formats.add(EventFormat::parse(system, text).expect("a fixture"));
    }
    let header_page = unpacked(kernel.header_page).replace("size:4080", &format!("size:{data_bytes}"));
    Trace {
        page: PageFormat::parse(&header_page).expect("a fixture"),
        header_event: unpacked(kernel.header_event),
        formats,
        symbols: Symbols::parse(&unpacked(kernel.kallsyms)),
        printk: BTreeMap::from([(0, "%d %s %pS\n".to_owned()), (1, "%*pbl".to_owned())]),
        comms: BTreeMap::from([(1, "init".to_owned())]),
        tgids: BTreeMap::new(),
        buffers: Vec::new(),
        about: About::default(),
    }
}

/// Lends the empty trace of a kernel.
pub fn with(number: usize, work: impl FnOnce(&mut Trace)) {
    TRACES.with_borrow_mut(|traces| {
        let count = traces.len();
        work(&mut traces[number % count]);
    });
}

/// Lends a trace with these pages: the first byte chooses the kernel and the length of pages, the second how many buffers and CPUs share
/// them, and the clock.
pub fn filled(choices: [u8; 4], pages: &[u8], work: impl FnOnce(&Trace)) {
    with(choices[0].into(), |trace| {
        let (buffers, cpus) = (1 + usize::from(choices[1] & 1), 1 + u32::from(choices[1] >> 1 & 3));
        let clock = ["local", "mono", "counter", "x86-tsc"][usize::from(choices[1] >> 3 & 3)];
        // Whole pages for each, so that what a fixture's page says stays together.
        let all = pages.len().div_ceil(trace.page.page_bytes());
        let share = all.div_ceil(buffers * cpus as usize).max(1) * trace.page.page_bytes();
        let mut parts = pages.chunks(share);
        let of_cpu =
            |cpu, pages: Option<&[u8]>| CpuPages { cpu, pages: pages.unwrap_or_default().to_vec(), stats: None };
        trace.buffers = (0..buffers)
            .map(|number| Buffer {
                name: ["", "second"][number].to_owned(),
                clock: clock.to_owned(),
                cpus: (0..cpus).map(|cpu| of_cpu(cpu, parts.next())).collect(),
            })
            .collect();
        work(trace);
        trace.buffers.clear();
    });
}
