//! Damaged and made-up trace.dat files: errors in words, no panic, little memory.

mod dat_files;
mod support;

use dat_files::{everything, written};
use kstrobe_ftrace::dat::{self, Compression, Version};
use kstrobe_ftrace::format::Formats;
use kstrobe_ftrace::symbols::Symbols;
use kstrobe_ftrace::trace::Trace;
use proptest::prelude::*;
use std::io::Write;
use std::process::Command;

const FORMS: [(Version, Compression); 4] = [
    (Version::V6, Compression::None),
    (Version::V7, Compression::None),
    (Version::V7, Compression::Zlib),
    (Version::V7, Compression::Zstd),
];

/// Runs a test once more, as a process that may use 384 MiB of addresses, and returns whether this is that process.
fn in_little_memory(test: &str) -> bool {
    const CHILD: &str = "KSTROBE_LITTLE_MEMORY";
    if std::env::var_os(CHILD).is_some() {
        return true;
    }
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -v 393216 && exec \"$0\" --exact \"$1\" --test-threads 1"]);
    let output = shell.arg(std::env::current_exe().unwrap()).arg(test).env(CHILD, "1").output().unwrap();
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
    false
}

/// Reads a file, and uses what was read: every record, and writing it again.
fn read(file: &[u8]) -> Result<dat::Dat, dat::DatError> {
    let result = dat::read(file);
    if let Ok(dat) = &result {
        dat.trace.events().for_each(drop);
        for (version, compression) in [(Version::V6, Compression::None), (Version::V7, Compression::Zlib)] {
            let options = dat::Options { version, compression, wall_clock: true };
            let _ = dat::write(&dat.trace, &options, std::io::Cursor::new(Vec::new()));
        }
    }
    result
}

fn error(file: &[u8]) -> String {
    read(file).err().map_or("no error".to_owned(), |error| error.to_string())
}

/// A trace of two pages and few texts.
fn small() -> Trace {
    let mut trace = everything();
    let mut formats = Formats::default();
    let wanted = |name: &str| ["funcgraph_entry", "funcgraph_exit", "sched_switch"].contains(&name);
    trace.formats.all().iter().filter(|format| wanted(&format.name)).for_each(|format| formats.add(format.clone()));
    trace.formats = formats;
    trace.symbols = Symbols::new(trace.symbols.all()[..20].to_vec());
    for buffer in &mut trace.buffers {
        buffer.cpus.iter_mut().for_each(|cpu| cpu.pages.truncate(4096));
    }
    trace
}

#[test]
fn a_file_that_ends_too_early_is_an_error() {
    for (version, compression) in FORMS {
        let file = written(&small(), version, compression);
        assert!(read(&file).is_ok());
        let steps = (0..300).chain((300..file.len() - 1).step_by(61));
        for length in steps {
            // Zeros fill the last page of version 6 up: without them nothing is missing.
            assert!(read(&file[..length]).is_err(), "{version:?} {compression:?} {length}");
        }
    }
}

#[test]
fn damaged_files_never_panic() {
    if !in_little_memory("damaged_files_never_panic") {
        return;
    }
    // More for who has the time.
    let cases = std::env::var("KSTROBE_CASES").map_or(600, |cases| cases.parse().unwrap());
    for (version, compression) in FORMS {
        let file = written(&small(), version, compression);
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        let (mut read_anyway, mut refused) = (0, 0);
        for _ in 0..cases {
            let mut damaged = file.clone();
            for _ in 0..1 + random(4) {
                let at = random(damaged.len());
                match random(4) {
                    0 => damaged[at] ^= 1 << random(8),
                    1 => damaged[at] = [0, 0xff, 0x7f, 0x80][random(4)],
                    2 => {
                        let length = random(9).min(damaged.len() - at);
                        damaged[at..at + length].fill(0xff);
                    }
                    _ => {
                        damaged.remove(at);
                    }
                }
            }
            match read(&damaged) {
                Ok(_) => read_anyway += 1,
                Err(error) => {
                    assert!(error.at <= damaged.len() as u64, "{error}");
                    refused += 1;
                }
            }
        }
        assert!(read_anyway > 10 && refused > 10, "{version:?} {compression:?}: {read_anyway} {refused}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_never_panic(version in 6..8, name in "none|zlib|zstd", bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let mut file = b"\x17\x08\x44tracing".to_vec();
        file.extend(format!("{version}\0\0\x08\0\x10\0\0").bytes());
        if version == 7 {
            file.extend(format!("{name}\x001\0").bytes());
        }
        file.extend(&bytes);
        prop_assert!(read(&file).is_err());
        prop_assert!(read(&bytes).is_err());
    }

    /// What is compressed by us is understood by ours again; the recordings are not all there is.
    #[test]
    fn any_pages_come_back(pages in proptest::collection::vec(0..40_u8, 0..30_000), repeat in 0..20_usize) {
        let mut trace = small();
        trace.buffers.truncate(1);
        let mut pages = pages.repeat(repeat + 1);
        pages.resize(pages.len().next_multiple_of(4096), 0);
        trace.buffers[0].cpus[0].pages = pages;
        for (version, compression) in FORMS {
            let found = dat::read(&written(&trace, version, compression)).unwrap().trace;
            let pages = |trace: &Trace| trace.buffers[0].cpus.iter().find(|cpu| cpu.cpu == 0).map(|cpu| cpu.pages.clone()).unwrap_or_default();
            prop_assert!(pages(&found) == pages(&trace));
        }
    }
}

#[test]
fn other_files_are_refused_in_words() {
    let good = written(&small(), Version::V6, Compression::None);
    let changed = |at: usize, to: u8| {
        let mut file = good.clone();
        file[at] = to;
        error(&file)
    };
    assert_eq!(
        error(b""),
        "trace.dat, byte 0: what trace.dat files begin with (17 08 44 `tracing`): 10 bytes are needed, 0 are there"
    );
    assert_eq!(
        error(b"PERFILE2 and more"),
        "trace.dat, byte 0: what trace.dat files begin with (17 08 44 `tracing`) is missing"
    );
    assert_eq!(changed(10, b'5'), "trace.dat, byte 10: version `5`; only 6 and 7 are known");
    assert_eq!(changed(12, 1), "trace.dat, byte 12: from a big-endian machine; only little-endian files are read");
    assert_eq!(changed(13, 4), "trace.dat, byte 13: from a 32-bit system; only files of 64-bit systems are read");
    assert_eq!(changed(18, b'H'), "trace.dat, byte 18: `header_page` is missing");

    let mut old = small();
    old.page.text = old
        .page
        .text
        .replace("commit;\toffset:8;\tsize:8", "commit;\toffset:8;\tsize:4")
        .replace("data;\toffset:16", "data;\toffset:12");
    let old = written(&old, Version::V6, Compression::None);
    assert_eq!(error(&old), "trace.dat, byte 30: from a 32-bit kernel; only files of 64-bit kernels are read");

    let mut long = small();
    long.page.text = long.page.text.replace("size:4080", "size:9999999");
    let long = written(&long, Version::V7, Compression::None);
    assert_eq!(error(&long), "trace.dat, byte 60: header_page: no ring buffer has pages of 10000015 bytes");

    let mut lzma = written(&small(), Version::V7, Compression::Zlib);
    lzma[18..22].copy_from_slice(b"lzma");
    assert_eq!(error(&lzma), "trace.dat, byte 18: compressed with `lzma`; only none, zlib and zstd are known");
}

/// The head of a file of version 7, with the offset of its options: they come next.
fn head(compression: &str) -> Vec<u8> {
    let mut file = b"\x17\x08\x44tracing7\0\0\x08\0\x10\0\0".to_vec();
    file.extend(format!("{compression}\x001\0").bytes());
    let options = file.len() as u64 + 8;
    file.extend(options.to_le_bytes());
    file
}

fn section(id: u16, flags: u16, contents: &[u8]) -> Vec<u8> {
    [&id.to_le_bytes()[..], &flags.to_le_bytes(), &[0; 4], &(contents.len() as u64).to_le_bytes(), contents].concat()
}

fn option(id: u16, contents: &[u8]) -> Vec<u8> {
    [&id.to_le_bytes()[..], &(contents.len() as u32).to_le_bytes(), contents].concat()
}

/// Options, the last of which names more options at an offset.
fn options(all: &[Vec<u8>], next: u64) -> Vec<u8> {
    section(0, 0, &[&all.concat()[..], &option(0, &next.to_le_bytes())].concat())
}

#[test]
fn options_that_lead_nowhere() {
    let file = |next| [head("none"), options(&[], next)].concat();
    let first = head("none").len() as u64;
    assert_eq!(error(&file(first)), format!("trace.dat, byte {}: options at {first} a second time", first + 16));
    assert_eq!(
        error(&file(9999)),
        format!("trace.dat, byte {}: options: DONE at 9999, behind the end of the file", first + 16)
    );
    assert_eq!(error(&file(0)), "trace.dat, byte 0: no `header_page` says how pages are read");
}

#[test]
fn unknown_parts_are_listed() {
    let good = written(&small(), Version::V7, Compression::None);
    // More options, put in front of those that are there.
    let at = 18 + b"none\0\0".len();
    let first = u64::from_le_bytes(good[at..at + 8].try_into().unwrap());
    let mut file = good.clone();
    file[at..at + 8].copy_from_slice(&(good.len() as u64).to_le_bytes());
    let more = [
        option(99, b"abc"),
        option(12, &[0; 16]),
        option(6, b"hook\0"),
        option(8, b"x"),
        option(22, &[0; 10]),
        option(2, b"nonsense\0"),
    ];
    file.extend(options(&more, first));
    file.extend(section(77, 0, b"contents"));
    let found = read(&file).unwrap();
    let skipped: Vec<_> = found.skipped.iter().map(|skipped| skipped.what.as_str()).collect();
    assert_eq!(
        skipped,
        [
            "unknown section 77 of 8 bytes",
            "unknown option 99 of 3 bytes",
            "option TIME_SHIFT: times are left as they were recorded",
            "option CPUCOUNT: `x` is not understood",
            "option BUFFER_TEXT: the text of a latency tracer",
            "option CPUSTAT: `nonsense\\x00` is not understood",
        ]
    );
    let ids: Vec<u16> = found.trace.about.other_options.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, [12, 6, 10]);
}

/// A section, and options that point to it.
fn with_section(compression: &str, id: u16, section: Vec<u8>) -> Vec<u8> {
    let mut file = head(compression);
    let at = file.len() as u64 + options(&[option(id, &[0; 8])], 0).len() as u64;
    file.extend(options(&[option(id, &at.to_le_bytes())], 0));
    file.extend(section);
    file
}

fn zlib(bytes: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

#[test]
fn what_unpacks_to_too_much_is_refused() {
    if !in_little_memory("what_unpacks_to_too_much_is_refused") {
        return;
    }
    let packed = zlib(&vec![b'x'; 64 << 20]);
    let piece =
        |says: u32, packed: &[u8]| [&(packed.len() as u32).to_le_bytes()[..], &says.to_le_bytes(), packed].concat();
    // It says what it is,
    let file = with_section("zlib", 19, section(19, 1, &piece(64 << 20, &packed)));
    let too_much = error(&file);
    assert!(too_much.ends_with("67108864 bytes of texts: more than a file of this size can hold"), "{too_much}");
    // or it lies.
    let file = with_section("zlib", 19, section(19, 1, &piece(1000, &packed)));
    let lie = error(&file);
    assert!(lie.ends_with("KALLSYMS: 1001 bytes were packed here, not 1000"), "{lie}");
    let file = with_section("zstd", 19, section(19, 1, &piece(u32::MAX, b"\x28\xb5\x2f\xfd")));
    assert!(error(&file).ends_with("4294967295 bytes of texts: more than a file of this size can hold"));
    // A frame of zstd that wants a window of 2 GiB.
    let file = with_section("zstd", 19, section(19, 1, &piece(100, b"\x28\xb5\x2f\xfd\x00\xa8\x01\x00\x00")));
    let window = error(&file);
    assert!(window.contains("KALLSYMS: no zstd data: "), "{window}");
}

#[test]
fn many_options_for_the_same_pages_do_not_multiply_them() {
    if !in_little_memory("many_options_for_the_same_pages_do_not_multiply_them") {
        return;
    }
    let good = written(&small(), Version::V7, Compression::None);
    let at = 18 + b"none\0\0".len();
    let first = u64::from_le_bytes(good[at..at + 8].try_into().unwrap());
    // Any section of buffers will do.
    let section_at = (0..good.len() as u64).find(|at| good[*at as usize..].starts_with(&[3, 0, 0, 0])).unwrap();
    let whole = (good.len() as u64).to_le_bytes();
    let row = [&0_u32.to_le_bytes()[..], &0_u64.to_le_bytes(), &whole].concat();
    let buffer =
        [&section_at.to_le_bytes()[..], b"name\0local\0", &4096_u32.to_le_bytes(), &1_u32.to_le_bytes(), &row].concat();
    let mut file = good.clone();
    file[at..at + 8].copy_from_slice(&(good.len() as u64).to_le_bytes());
    file.extend(options(&vec![option(3, &buffer); 20_000], first));
    let refused = error(&file);
    assert!(refused.ends_with("bytes of pages: more than a file of this size can hold"), "{refused}");
}

#[test]
fn a_table_of_more_cpus_than_there_are_bytes_is_refused() {
    if !in_little_memory("a_table_of_more_cpus_than_there_are_bytes_is_refused") {
        return;
    }
    let mut file = written(&small(), Version::V6, Compression::None);
    let cpus = file.windows(10).position(|bytes| bytes == b"options  \0").unwrap() - 4;
    file[cpus..cpus + 4].fill(0xff);
    let refused = error(&file);
    assert!(refused.ends_with("68719476720 bytes of texts: more than a file of this size can hold"), "{refused}");
}

#[test]
fn long_names_are_not_held_many_times() {
    if !in_little_memory("long_names_are_not_held_many_times") {
        return;
    }
    let long = vec![b'x'; 1 << 20];
    let text = b"name:a\nID:1\n";
    let format = [&(text.len() as u64).to_le_bytes()[..], text].concat();
    let count = 30_000_u32;
    let formats =
        [&1_u32.to_le_bytes()[..], &long, b"\0", &count.to_le_bytes(), &format.repeat(count as usize)].concat();
    let refused = error(&with_section("none", 18, section(18, 0, &formats)));
    assert!(refused.ends_with("1048576 bytes of texts: more than a file of this size can hold"), "{refused}");

    let mut all = vec![option(2, &[b"Buffer: ", &long[..], b"\0"].concat())];
    all.extend(vec![option(2, b"CPU: 1\n\0"); count as usize]);
    let good = written(&small(), Version::V7, Compression::None);
    let at = 18 + b"none\0\0".len();
    let first = u64::from_le_bytes(good[at..at + 8].try_into().unwrap());
    let mut file = good.clone();
    file[at..at + 8].copy_from_slice(&(good.len() as u64).to_le_bytes());
    file.extend(options(&all, first));
    let skipped = read(&file).unwrap().skipped;
    assert!(skipped[0].what.starts_with("30002 options CPUSTAT of a buffer that the file does not have: `xxx"));
}
