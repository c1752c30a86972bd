//! Traces as trace.dat files.

use kstrobe_ftrace::dat::{self, Compression, Options, Version};
use kstrobe_ftrace::trace::{Buffer, Trace};

/// The bytes of a trace's file.
pub fn written(trace: &Trace, version: Version, compression: Compression) -> Vec<u8> {
    let mut out = std::io::Cursor::new(Vec::new());
    dat::write(trace, &Options { version, compression, wall_clock: false }, &mut out).unwrap();
    out.into_inner()
}

/// Fails unless both hold the same. Formats may stand in another order.
pub fn assert_same(found: &Trace, expected: &Trace, what: &str) {
    let formats = |trace: &Trace| {
        let mut all: Vec<_> = trace.formats.all().iter().map(|format| (format.system.clone(), format.text.clone())).collect();
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
    let names = |trace: &Trace| trace.buffers.iter().map(|buffer| (buffer.name.clone(), buffer.clock.clone())).collect::<Vec<_>>();
    assert_eq!(names(found), names(expected), "{what}");
    let cpus = |buffer: &Buffer| buffer.cpus.iter().map(|cpu| (cpu.cpu, cpu.pages.len(), cpu.stats)).collect::<Vec<_>>();
    for (found, expected) in found.buffers.iter().zip(&expected.buffers) {
        assert_eq!(cpus(found), cpus(expected), "{what}");
        let pages = |buffer: &Buffer| buffer.cpus.iter().flat_map(|cpu| cpu.pages.clone()).collect::<Vec<_>>();
        assert!(pages(found) == pages(expected), "{what}: pages");
    }
}

/// A trace that has something in every place.
pub fn everything() -> Trace {
    let mut trace = super::trace("6.12", "recvfrom");
    trace.printk.extend([(0xffff_ffff_8123_4560, "packet %d\n".to_owned()), (0xffff_ffff_8123_4568, "a \"quoted\"\ttext".to_owned())]);
    trace.comms.extend([(77, " two  blanks ".to_owned()), (78, String::new())]);
    let mut instance = super::trace("6.12", "sched").buffers.remove(0);
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
