//! trace.dat: what is written is read again, and damaged files are refused in words.

mod dat_files;
mod support;

use dat_files::*;
use kstrobe_ftrace::dat::{self, Compression, Options, Version};
use kstrobe_ftrace::trace::{About, Buffer, Trace};
use std::fmt::Write;
use std::path::PathBuf;
use support::{EVENTS, GRAPHS, KERNELS};

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
    let [plain, zlib, zstd] = [Compression::None, Compression::Zlib, Compression::Zstd]
        .map(|compression| written(&trace, Version::V7, compression).len());
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
fn pages_may_have_another_size_than_those_of_the_machine() {
    let trace = with_long_pages("6.12", "events");
    let events = decoded(&support::trace("6.12", "events"));
    assert_lines(&decoded(&trace), &events, "made");
    for (version, compression) in FORMS {
        let found = dat::read(&written(&trace, version, compression)).unwrap().trace;
        assert_same(&found, &trace, "long pages");
        assert_lines(&decoded(&found), &events, "read");
    }
    // `header_page` tells of the top buffer at some time: what counts is what stands with the pages.
    let mut outdated = trace.clone();
    outdated.page.text = outdated.page.text.replace("size:8176", "size:4080");
    let found = dat::read(&written(&outdated, Version::V7, Compression::Zstd)).unwrap().trace;
    assert_lines(&decoded(&found), &events, "outdated header_page");
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

#[test]
fn files_of_trace_cmd_have_the_events_that_it_reports() {
    for name in THEIRS {
        let found = dat::read(&fixture(&format!("{name}.dat"))).unwrap();
        let mut lines = decoded(&found.trace);
        // trace-cmd shows times with what the file says has to be added.
        let added = match name {
            "date" => found.trace.about.epoch_offset_ns.unwrap(),
            "tsoffset" => 5000,
            _ => 0,
        };
        lines.iter_mut().for_each(|line| line.time = line.time.wrapping_add_signed(added));
        let text = String::from_utf8(fixture(&format!("{name}.txt"))).unwrap();
        assert_lines(&lines, &reported(&text), name);
    }
}

#[test]
fn files_of_trace_cmd_are_written_again_without_loss() {
    for name in THEIRS {
        let trace = dat::read(&fixture(&format!("{name}.dat"))).unwrap().trace;
        for (version, compression) in FORMS {
            let mut out = std::io::Cursor::new(Vec::new());
            dat::write(&trace, &Options { version, compression, wall_clock: true }, &mut out).unwrap();
            assert_same(
                &dat::read(out.get_ref()).unwrap().trace,
                &trace,
                &format!("{name} {version:?} {compression:?}"),
            );
        }
    }
}

#[test]
fn what_is_read_in_files_of_trace_cmd() {
    let mut found = String::new();
    for name in THEIRS {
        let dat::Dat { trace, version, compression, skipped } = dat::read(&fixture(&format!("{name}.dat"))).unwrap();
        writeln!(found, "{name}: {version:?} {compression:?}, skipped {skipped:?}").unwrap();
        let about = About { other_options: Vec::new(), ..trace.about.clone() };
        writeln!(found, "  {about:?}").unwrap();
        for (id, contents) in &trace.about.other_options {
            writeln!(found, "  option {id}: {}", contents.escape_ascii()).unwrap();
        }
        let (formats, symbols) = (trace.formats.all().len(), trace.symbols.all().len());
        writeln!(
            found,
            "  {formats} formats, {symbols} symbols, {} texts, {} threads",
            trace.printk.len(),
            trace.comms.len()
        )
        .unwrap();
        for buffer in &trace.buffers {
            writeln!(found, "  buffer `{}`, clock {}", buffer.name, buffer.clock).unwrap();
            for cpu in &buffer.cpus {
                writeln!(found, "    CPU {}: {} bytes, {:?}", cpu.cpu, cpu.pages.len(), cpu.stats).unwrap();
            }
        }
    }
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/dat/expected.txt");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&file, &found).unwrap();
    }
    assert_eq!(found, std::fs::read_to_string(file).unwrap());
}
