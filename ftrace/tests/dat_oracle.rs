//! Files of ours, read by Debian's trace-cmd, and files of its, read by us.
//!
//! These tests need `trace-cmd` (3.0 or newer, with zstd) and fail without it:
//! `cargo test -p kstrobe-ftrace --test dat_oracle -- --ignored`

mod dat_files;
mod support;

use dat_files::*;
use kstrobe_ftrace::dat::{self, Compression, Options, Version};
use kstrobe_ftrace::select::{Events, Filter, Selection, part};
use kstrobe_ftrace::trace::Buffer;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::{EVENTS, GRAPHS, KERNELS};

/// The forms that Debian's trace-cmd reads: it is built without zlib.
const FORMS: [(&str, Version, Compression); 3] = [
    ("v6", Version::V6, Compression::None),
    ("none", Version::V7, Compression::None),
    ("zstd", Version::V7, Compression::Zstd),
];

/// A folder for the files of one test, which goes away with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("kstrobe-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What trace-cmd says of a file; it must succeed, and without a warning.
fn trace_cmd(arguments: &[&str], file: &Path) -> String {
    let output = Command::new("trace-cmd").args(arguments).arg("-i").arg(file).output().expect("trace-cmd is needed");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && complaint.is_empty(), "{arguments:?} {}: {complaint}", file.display());
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The events of `trace-cmd report`. Raw: otherwise it leaves out exits of leaf functions.
fn report(file: &Path) -> Vec<Line> {
    reported(&trace_cmd(&["report", "-t", "-R"], file))
}

fn all(mut each: impl FnMut(&str, &str)) {
    KERNELS.iter().for_each(|kernel| GRAPHS.iter().chain(&EVENTS).for_each(|scenario| each(kernel, scenario)));
}

#[test]
#[ignore = "needs trace-cmd"]
fn oracle_trace_cmd_reports_the_same_events() {
    let folder = Folder::new("dat-report");
    all(|kernel, scenario| {
        let trace = support::trace(kernel, scenario);
        let expected = decoded(&trace);
        for (name, version, compression) in FORMS {
            let file = folder.file("trace.dat");
            std::fs::write(&file, written(&trace, version, compression)).unwrap();
            assert_lines(&report(&file), &expected, &format!("{kernel} {scenario} {name}"));
        }
    });
}

/// The kernel's own text, but for the flags between CPU and time: `  ping-392     [000] d.h..    70.955127: softirq_raise: ...`.
fn kernels_lines(text: &str) -> Vec<Line> {
    let known = |line: &&str| !line.starts_with('#') && !line.starts_with(" => ") && !line.is_empty();
    let one = |line: &str| {
        let (task, rest) = line.split_once(" [").unwrap();
        let (cpu, rest) = rest.split_once("] ").unwrap();
        let (time, what) = rest.trim_start().split_once(' ').unwrap().1.trim_start().split_once(": ").unwrap();
        let event = match what {
            _ if what.starts_with("<stack trace>") => "kernel_stack",
            _ if what.contains(" <-") => "function",
            event => event.split([':', '(', ' ']).next().unwrap(),
        };
        let cpu = cpu.parse().unwrap();
        Line {
            buffer: String::new(),
            cpu,
            time: time.replace('.', "").parse().unwrap(),
            task: task.trim().to_owned(),
            event: event.to_owned(),
        }
    };
    let mut lines: Vec<Line> = text.lines().filter(known).map(one).collect();
    lines.sort_by_key(|line| line.cpu);
    lines
}

#[test]
#[ignore = "needs trace-cmd"]
fn oracle_trace_cmd_prints_what_the_kernel_printed() {
    let folder = Folder::new("dat-text");
    for kernel in KERNELS {
        for scenario in EVENTS {
            let file = folder.file("trace.dat");
            std::fs::write(&file, written(&support::trace(kernel, scenario), Version::V7, Compression::Zstd)).unwrap();
            let mut lines = reported(&trace_cmd(&["report", "-R"], &file));
            for line in &mut lines {
                // The kernel prints entry and exit of a system call under one name.
                let call = line.event.strip_prefix("sys_enter_").or_else(|| line.event.strip_prefix("sys_exit_"));
                line.event = call.map_or_else(|| line.event.clone(), |call| format!("sys_{call}"));
            }
            let expected = kernels_lines(&support::text(kernel, scenario, "trace.txt"));
            assert_lines(&lines, &expected, &format!("{kernel} {scenario}"));
        }
    }
}

#[test]
#[ignore = "needs trace-cmd"]
fn oracle_trace_cmd_dumps_every_part() {
    let folder = Folder::new("dat-dump");
    let trace = everything();
    for (name, version, compression) in FORMS {
        let file = folder.file("trace.dat");
        std::fs::write(&file, written(&trace, version, compression)).unwrap();
        assert!(trace_cmd(&["dump", "-v"], &file).contains("is a valid trace-cmd file"), "{name}");
        let summary = trace_cmd(&["dump", "--summary"], &file);
        assert!(summary.contains("[Ftrace format, 18 events]"), "{name} {summary}");
        let dump = trace_cmd(&["dump", "--all"], &file);
        for part in
            ["Linux node1 6.12.1 x86_64", "kstrobe 0.1", "irq-off", "entries: 1004", "__sys_recvfrom", "packet %d\\n"]
        {
            assert!(dump.contains(part), "{name}: no {part} in {dump}");
        }
    }
}

#[test]
#[ignore = "needs trace-cmd"]
fn oracle_trace_cmd_reports_instances() {
    let folder = Folder::new("dat-instances");
    let mut trace = support::trace("6.12", "sched");
    trace.buffers[0].name = "other".to_owned();
    trace.buffers[0].clock = "mono".to_owned();
    let only_instance = trace.clone();
    trace.buffers.insert(
        0,
        Buffer {
            name: String::new(),
            clock: "local".to_owned(),
            ..support::trace("6.12", "stacks").buffers[0].clone()
        },
    );
    for (name, version, compression) in FORMS {
        for (trace, top) in [(&trace, true), (&only_instance, false)] {
            let file = folder.file("trace.dat");
            std::fs::write(&file, written(trace, version, compression)).unwrap();
            assert_lines(&report(&file), &decoded(trace), &format!("{name} {top}"));
        }
    }
}

#[test]
#[ignore = "needs trace-cmd"]
fn oracle_trace_cmd_reports_long_pages() {
    let folder = Folder::new("dat-long");
    let trace = with_long_pages("6.12", "events");
    for (name, version, compression) in FORMS {
        let file = folder.file("trace.dat");
        std::fs::write(&file, written(&trace, version, compression)).unwrap();
        assert_lines(&report(&file), &decoded(&trace), name);
    }
}

#[test]
#[ignore = "needs trace-cmd"]
fn oracle_trace_cmd_adds_the_wall_clock() {
    let folder = Folder::new("dat-clock");
    let mut trace = support::trace("6.12", "events");
    for offset_ns in [1_763_726_400_123_456_789, 5, -3_000_000_001] {
        trace.about.epoch_offset_ns = Some(offset_ns);
        let mut expected = decoded(&trace);
        expected.iter_mut().for_each(|line| line.time = line.time.wrapping_add_signed(offset_ns));
        for (name, version, compression) in FORMS {
            let file = folder.file("trace.dat");
            let mut out = std::io::Cursor::new(Vec::new());
            dat::write(&trace, &Options { version, compression, wall_clock: true }, &mut out).unwrap();
            std::fs::write(&file, out.get_ref()).unwrap();
            assert_lines(&report(&file), &expected, &format!("{name} {offset_ns}"));
            assert_eq!(dat::read(out.get_ref()).unwrap().trace.about.epoch_offset_ns, Some(offset_ns));
        }
    }
}

#[test]
#[ignore = "needs trace-cmd"]
fn oracle_trace_cmd_converts_and_we_read() {
    let folder = Folder::new("dat-convert");
    all(|kernel, scenario| {
        let trace = support::trace(kernel, scenario);
        for (name, version, compression) in FORMS {
            let ours = folder.file("ours.dat");
            std::fs::write(&ours, written(&trace, version, compression)).unwrap();
            for (file_version, compression) in [("6", "none"), ("7", "none"), ("7", "zstd")] {
                let theirs = folder.file("theirs.dat");
                let mut convert = Command::new("trace-cmd");
                convert
                    .args(["convert", "--file-version", file_version, "--compression", compression, "-i"])
                    .arg(&ours)
                    .arg("-o")
                    .arg(&theirs);
                assert!(convert.output().expect("trace-cmd is needed").status.success());
                let found = dat::read(&std::fs::read(&theirs).unwrap()).unwrap();
                assert_eq!(found.skipped, []);
                assert_same(
                    &found.trace,
                    &trace,
                    &format!("{kernel} {scenario} {name} to {file_version} {compression}"),
                );
            }
        }
    });
}

#[test]
#[ignore = "needs trace-cmd"]
fn oracle_trace_cmd_reports_its_own_files_alike_after_us() {
    let folder = Folder::new("dat-theirs");
    for name in THEIRS {
        let trace = dat::read(&fixture(&format!("{name}.dat"))).unwrap().trace;
        let expected = String::from_utf8(fixture(&format!("{name}.txt"))).unwrap();
        for (form, version, compression) in FORMS {
            let file = folder.file("trace.dat");
            let mut out = std::io::Cursor::new(Vec::new());
            dat::write(&trace, &Options { version, compression, wall_clock: true }, &mut out).unwrap();
            std::fs::write(&file, out.get_ref()).unwrap();
            // `-N`: the recorded machine had none of the plugins that read what follows an event's name.
            let found = trace_cmd(&["report", "-t", "-N"], &file);
            let events =
                |text: &str| text.lines().filter(|line| line.contains(" [0")).map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(events(&found), events(&expected), "{name} {form}");
        }
    }
}

/// trace-cmd wants conditions without blanks.
#[test]
#[ignore = "needs trace-cmd"]
fn oracle_trace_cmd_chooses_the_same_events_by_fields() {
    const CONDITION: &str = "prev_state!=0&&next_pid>1";
    let folder = Folder::new("dat-part");
    let mut found = 0;
    all(|kernel, scenario| {
        let trace = support::trace(kernel, scenario);
        let switches = Events::named(&["sched:sched_switch"], &trace.formats).ok();
        let Some(events) = switches.filter(|_| trace.events().any(|event| event.is("sched", "sched_switch"))) else {
            return;
        };
        let fields = Some(Filter::parse(CONDITION).unwrap());
        let part = part(&trace, &Selection { events: Some(events), fields, ..Selection::default() });
        let (whole, ours) = (folder.file("whole.dat"), folder.file("part.dat"));
        std::fs::write(&whole, written(&trace, Version::V7, Compression::Zstd)).unwrap();
        std::fs::write(&ours, written(&part.trace, Version::V7, Compression::Zstd)).unwrap();
        let theirs = trace_cmd(&["report", "-t", "-R", "-F", &format!("sched/sched_switch:{CONDITION}")], &whole);
        let mut theirs = reported(&theirs);
        theirs.retain(|line| line.event == "sched_switch");
        let mut lines = report(&ours);
        lines.retain(|line| line.event == "sched_switch");
        assert_lines(&lines, &theirs, &format!("{kernel} {scenario}"));
        found += lines.len();
    });
    assert!(found > 10, "{found}");
}
