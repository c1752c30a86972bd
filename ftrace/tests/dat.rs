//! trace.dat: what is written is read again, and damaged files are refused in words.

mod support;

use kstrobe_ftrace::dat::{self, Compression, Options, Version};
use kstrobe_ftrace::trace::{Buffer, Trace};
use support::{EVENTS, GRAPHS, KERNELS, dat::*};

const FORMS: [(Version, Compression); 4] = [
    (Version::V6, Compression::None),
    (Version::V7, Compression::None),
    (Version::V7, Compression::Zlib),
    (Version::V7, Compression::Zstd),
];

#[test]
fn every_recording_comes_back() {
    for kernel in KERNELS {
        for scenario in GRAPHS.into_iter().chain(EVENTS) {
            let trace = support::trace(kernel, scenario);
            for (version, compression) in FORMS {
                let what = format!("{kernel} {scenario} {version:?} {compression:?}");
                let file = written(&trace, version, compression);
                let found = dat::read(&file).unwrap();
                assert_eq!((found.version, found.compression), (version, compression), "{what}");
                assert_eq!(found.skipped, [], "{what}");
                assert_same(&found.trace, &trace, &what);
                // What is read is written alike.
                assert!(written(&found.trace, version, compression) == file, "{what}");
            }
        }
    }
}

#[test]
fn every_part_comes_back() {
    let trace = everything();
    for (version, compression) in FORMS {
        let found = dat::read(&written(&trace, version, compression)).unwrap().trace;
        assert_same(&found, &trace, &format!("{version:?} {compression:?}"));
    }
}

#[test]
fn compression_makes_files_smaller() {
    let trace = support::trace("6.12", "events");
    let [plain, zlib, zstd] =
        [Compression::None, Compression::Zlib, Compression::Zstd].map(|compression| written(&trace, Version::V7, compression).len());
    assert!(zlib * 3 < plain && zstd * 3 < plain, "{plain} {zlib} {zstd}");
}

#[test]
fn a_file_may_begin_anywhere() {
    use std::io::{Seek, SeekFrom};
    let trace = support::trace("6.12", "stacks");
    let mut out = std::io::Cursor::new(b"before".to_vec());
    out.seek(SeekFrom::End(0)).unwrap();
    dat::write(&trace, &Options::default(), &mut out).unwrap();
    assert!(out.into_inner()[6..] == written(&trace, Version::V7, Compression::Zstd));
}

#[test]
fn the_wall_clock_is_written_on_request() {
    let mut trace = support::trace("6.12", "stacks");
    for epoch_offset_ns in [Some(1_763_726_400_123_456_789), Some(-1), Some(0), None] {
        trace.about.epoch_offset_ns = epoch_offset_ns;
        for wall_clock in [true, false] {
            for (version, compression) in FORMS {
                let mut out = std::io::Cursor::new(Vec::new());
                dat::write(&trace, &Options { version, compression, wall_clock }, &mut out).unwrap();
                let found = dat::read(out.get_ref()).unwrap().trace.about;
                assert_eq!(found.epoch_offset_ns, epoch_offset_ns.filter(|_| wall_clock));
                assert_eq!(found.other_options, []);
            }
        }
    }
}

#[test]
fn an_instance_alone_has_no_top_buffer_beside_it() {
    let mut trace = support::trace("6.12", "stacks");
    trace.buffers[0].name = "other".to_owned();
    for (version, compression) in FORMS {
        assert_same(&dat::read(&written(&trace, version, compression)).unwrap().trace, &trace, "instance");
    }
}

#[test]
fn pages_that_were_cut_off_are_filled_up() {
    let mut trace = support::trace("6.12", "stacks");
    trace.buffers[0].cpus[0].pages.truncate(4000);
    let events = trace.events().count();
    for (version, compression) in FORMS {
        let found = dat::read(&written(&trace, version, compression)).unwrap().trace;
        assert_eq!(found.buffers[0].cpus[0].pages.len(), 4096);
        assert_eq!(found.buffers[0].cpus[0].pages[..4000], trace.buffers[0].cpus[0].pages);
        assert!(found.events().count() >= events);
    }
}

#[test]
fn what_has_no_place_in_a_file_is_refused_in_words() {
    let refused = |change: &dyn Fn(&mut Trace), version| {
        let mut trace = support::trace("6.12", "stacks");
        change(&mut trace);
        let options = Options { version, compression: Compression::None, wall_clock: false };
        dat::write(&trace, &options, std::io::Cursor::new(Vec::new())).unwrap_err().to_string()
    };
    let twice = |trace: &mut Trace| trace.buffers[0].cpus[1].cpu = 0;
    assert_eq!(refused(&twice, Version::V7), "buffer `` has CPU 0 twice");
    assert_eq!(refused(&twice, Version::V6), "buffer `` has CPU 0 twice");
    let far = |trace: &mut Trace| trace.buffers[0].cpus[1].cpu = u32::MAX;
    assert_eq!(refused(&far, Version::V6), "CPU 4294967295 has no place in trace.dat version 6");
    let name = |trace: &mut Trace| trace.buffers.push(Buffer { name: "a\0b".to_owned(), ..Buffer::default() });
    assert_eq!(refused(&name, Version::V7), "a buffer cannot be named \"a\\0b\"");
    let tops = |trace: &mut Trace| trace.buffers.push(Buffer::default());
    assert_eq!(refused(&tops, Version::V7), "two buffers are named ``");
}
