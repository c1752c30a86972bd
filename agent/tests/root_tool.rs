//! Tools in a terminal, against loads of known size and bpftrace on the same load.

mod support;

use kstrobe_mixin::coverage::{Answer, questions};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use support::agent::command;
use support::bpftrace::Bpftrace;
use support::tmux::Tmux;
use support::tracing::Mounted;
use support::{Folder, load};

/// A running tool. Dropping it kills it.
struct Tool {
    child: Child,
    /// `None` once it is closed.
    out: Option<BufReader<ChildStdout>>,
    err: BufReader<ChildStderr>,
}

impl Tool {
    /// Starts it and waits until its probe is attached.
    fn start(arguments: &[&str]) -> Tool {
        let mut child = command(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let out = child.stdout.take().map(BufReader::new);
        let mut err = BufReader::new(child.stderr.take().unwrap());
        let mut said = String::new();
        while !said.contains("Tracing ") {
            assert!(err.read_line(&mut said).unwrap() > 0, "{arguments:?} ended: {said}");
        }
        Tool { child, out, err }
    }

    /// A probe that `docs/coverage.md` has the text of.
    fn of_the_page(id: &str, probe: &str) -> Tool {
        let question = questions().into_iter().find(|question| question.id == id).unwrap();
        let Answer::Given { yaml: Some(text), .. } = question.answer else { panic!("{id} has no text of a probe") };
        let folder = Folder::new();
        let file = folder.write("probe.yaml", &text);
        Tool::start(&["tool", probe, "--probes", file.to_str().unwrap(), "--exact", "-o", "json"])
    }

    /// Interrupts it as Ctrl-C does, and returns what it printed since.
    fn interrupt(mut self) -> String {
        kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGINT).unwrap();
        let (mut out, mut err) = (String::new(), String::new());
        self.out.take().unwrap().read_to_string(&mut out).unwrap();
        self.err.read_to_string(&mut err).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {out}{err}");
        out
    }
}

impl Drop for Tool {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Counts of the bars: what stands before `|`.
fn bars(text: &str) -> u64 {
    let counts = text.lines().filter(|line| line.contains('|')).map(|line| {
        let count = line.split('|').next().unwrap().split_whitespace().last().unwrap();
        count.replace(',', "").parse::<u64>().unwrap_or_else(|e| panic!("{line}: {e}"))
    });
    counts.sum()
}

/// The only object of that kind in each line.
fn objects(text: &str, kind: &str) -> Vec<Value> {
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap_or_else(|e| panic!("{line}: {e}")));
    lines.filter_map(|line| line.get(kind).cloned()).collect()
}

/// What the first metric has counted with this label.
fn sum(text: &str, label: &str, value: &str) -> f64 {
    let series = |interval: &Value| interval["metrics"][0]["series"].as_array().unwrap().clone();
    let all = objects(text, "interval");
    let own = all.iter().flat_map(series).filter(|one| one["labels"][label] == value);
    own.map(|one| one["value"].as_f64().unwrap()).sum()
}

fn fsyncs(count: u32, comm: &str) {
    let folder = Folder::new();
    let file = File::create(folder.0.join("synced")).unwrap();
    load::named(comm, || (0..count).for_each(|_| file.sync_all().unwrap()));
}

#[test]
#[ignore = "needs root"]
fn root_bars_add_up_to_the_calls_of_the_load() {
    let tool = Tool::start(&["syncsnoop", "--comm", "kst-fsync", "--exact"]);
    let witness = Bpftrace::start(
        "tracepoint:syscalls:sys_enter_fsync /comm == \"kst-fsync\"/ { @began[tid] = nsecs; }
         tracepoint:syscalls:sys_exit_fsync /@began[tid]/ { @calls = count(); delete(@began[tid]); }",
    );
    fsyncs(300, "kst-fsync");
    // Another program's calls are not meant.
    fsyncs(20, "kst-other");
    let seen = witness.stop().total("@calls");
    let text = tool.interrupt();
    assert_eq!((bars(&text), seen), (300, 300), "{text}");
    let last = text.lines().last().unwrap();
    assert!(last.starts_with("300 events   p50 ") && last.ends_with("nothing lost"), "{text}");
}

#[test]
#[ignore = "needs root"]
fn root_intervals_share_the_calls_between_them() {
    let tool = Tool::start(&["tool", "naptime", "--pid", &std::process::id().to_string(), "-i", "200ms", "-o", "json"]);
    let begun = Instant::now();
    let mut calls = 0u64;
    load::named("kst-nap", || {
        while begun.elapsed() < Duration::from_secs(1) {
            std::thread::sleep(Duration::from_millis(2));
            calls += 1;
        }
    });
    let text = tool.interrupt();
    let intervals = objects(&text, "interval");
    let of = |interval: &Value| -> Vec<Value> {
        let series = interval["metrics"][0]["series"].as_array().unwrap();
        series.iter().filter(|one| one["labels"]["comm"] == "kst-nap").cloned().collect()
    };
    let counts: Vec<u64> = intervals.iter().flat_map(of).map(|one| one["count"].as_u64().unwrap()).collect();
    assert_eq!(counts.iter().sum::<u64>(), calls, "{text}");
    assert!(counts.len() >= 4, "{counts:?}");
    let shortest = intervals.iter().flat_map(of).map(|one| one["buckets"][0][1].as_f64().unwrap());
    assert!(shortest.fold(1.0, f64::min) >= 0.002, "no sleep is shorter than it was to be: {text}");
}

#[test]
#[ignore = "needs root"]
fn root_a_terminal_shows_bars_that_grow_in_place() {
    if support::lab().is_some() {
        return support::not_asked_for("root_a_terminal_shows_bars_that_grow_in_place", "the guests have no tmux");
    }
    let tool = format!("{} syncsnoop --comm kst-grow --exact", env!("CARGO_BIN_EXE_kstrobe"));
    let terminal = Tmux::start("grow", &[], &tool);
    let shows = |events: &str| {
        let begin = format!("{events} events");
        terminal.until(&begin, |screen| screen.lines().any(|line| line.starts_with(&begin)))
    };
    terminal.until("its begin", |screen| screen.contains("0 records   nothing lost"));
    fsyncs(30, "kst-grow");
    assert_eq!(bars(&shows("30")), 30);
    fsyncs(70, "kst-grow");
    assert_eq!(bars(&shows("100")), 100, "the bars before are gone");
    terminal.press(&["C-c"]);
    let screen = terminal.until("its end", |screen| screen.contains("ended"));
    assert_eq!(bars(&screen), 100, "{screen}");
    let lines: Vec<&str> = screen.lines().filter(|line| !line.trim().is_empty()).collect();
    assert!(
        lines[0].starts_with("Tracing ") && lines.iter().filter(|line| line.contains("events")).count() == 1,
        "{screen}"
    );
}

#[test]
#[ignore = "needs root"]
fn root_a_tool_in_the_background_draws_at_its_end() {
    if support::lab().is_some() {
        return support::not_asked_for("root_a_tool_in_the_background_draws_at_its_end", "the guests have no tmux");
    }
    let go_on = std::env::temp_dir().join(format!("kst-back-{}", std::process::id()));
    let tool = format!("{} syncsnoop --comm kst-back --exact -d 6s", env!("CARGO_BIN_EXE_kstrobe"));
    let shell = format!("set -m; {tool} & until [ -e {} ]; do sleep 0.1; done; echo prompt; wait", go_on.display());
    let terminal = Tmux::start("back", &[], &format!("bash -c '{shell}'"));
    terminal.until("its begin", |screen| screen.contains("Tracing "));
    // By then it would have drawn.
    std::thread::sleep(Duration::from_millis(2_500));
    std::fs::write(&go_on, "").unwrap();
    terminal.until("the shell", |screen| screen.contains("prompt"));
    std::fs::remove_file(&go_on).unwrap();
    fsyncs(30, "kst-back");
    let screen = terminal.until("its end", |screen| screen.contains("ended"));
    let lines: Vec<&str> = screen.lines().filter(|line| !line.trim().is_empty()).collect();
    assert!(lines[0].starts_with("Tracing ") && lines[1] == "prompt", "{screen}");
    assert_eq!(bars(&screen), 30, "{screen}");
}

/// Debian's bpftrace tools count the same execs, and ours shows one line for each.
#[test]
#[ignore = "needs root"]
fn root_events_are_a_line_for_each_exec() {
    let folder = Folder::new();
    let program = folder.0.join("kst-true");
    std::fs::copy("/bin/true", &program).unwrap();
    let tool = Tool::start(&["execsnoop", "--comm", "kst-true"]);
    let witness = Bpftrace::start("tracepoint:sched:sched_process_exec /comm == \"kst-true\"/ { @execs = count(); }");
    for _ in 0..40 {
        assert!(Command::new(&program).status().unwrap().success());
    }
    assert_eq!(witness.stop().total("@execs"), 40);
    let text = tool.interrupt();
    let file = program.to_str().unwrap();
    assert_eq!(
        text.lines().filter(|line| line.contains("kst-true") && line.contains(&file[..20])).count(),
        40,
        "{text}"
    );
    assert!(text.lines().last().unwrap().starts_with("40 records   nothing lost"), "{text}");
}

#[test]
#[ignore = "needs root"]
fn root_tables_name_the_largest_label_sets() {
    let tool = Tool::start(&["syncs", "--by", "comm", "--top", "1", "--metric", "sync_duration_seconds", "--exact"]);
    fsyncs(60, "kst-many");
    fsyncs(5, "kst-few");
    fsyncs(4, "kst-fewer");
    let text = tool.interrupt();
    let row = |comm: &str| {
        text.lines()
            .find(|line| line.starts_with(comm))
            .map(|line| line.split_whitespace().find_map(|word| word.parse::<u64>().ok()).unwrap())
    };
    assert_eq!(row("kst-many"), Some(60), "{text}");
    assert!(text.contains("other (") && row("kst-few").is_none(), "{text}");
}

#[test]
#[ignore = "needs root"]
fn root_a_closed_output_ends_a_tool_quietly() {
    let mut tool = Tool::start(&["runqlat", "-i", "100ms"]);
    let mut line = String::new();
    tool.out.as_mut().unwrap().read_line(&mut line).unwrap();
    // As `head -1` does.
    drop(tool.out.take());
    let begun = Instant::now();
    while tool.child.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < Duration::from_secs(20), "it runs on");
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut said = String::new();
    tool.err.read_to_string(&mut said).unwrap();
    assert_eq!(said, "");
}

#[test]
#[ignore = "needs root"]
fn root_conditions_that_do_not_fit_are_refused() {
    let refused = |arguments: &[&str]| {
        let done = support::done(&mut command(arguments));
        assert_eq!(done.code, Some(2), "{arguments:?}: {}", done.err);
        done.err
    };
    let said = refused(&["softirqs", "--pid", "1", "-d", "1s"]);
    assert!(said.contains("`--pid` does not fit the probe `softirq`") && said.contains("--by vector"), "{said}");
    let said = refused(&["tcprtt", "--pid", "1", "-d", "1s"]);
    assert!(
        said.contains("a condition does not fit the probe `tcp_rtt`") && said.contains("(args.sk).tgid == 1"),
        "{said}"
    );
}

#[test]
#[ignore = "needs root"]
fn root_marks_of_programs_are_events_with_their_text() {
    let tool = Tool::of_the_page("S207", "trace_marks");
    let tracefs = Mounted::new();
    (0..30).for_each(|number| tracefs.write("trace_marker", &format!("mark {number}\n")));
    let text = tool.interrupt();
    let mut seen: Vec<String> = objects(&text, "event")
        .iter()
        .map(|event| event["fields"]["text"].as_str().unwrap().trim_end().to_owned())
        .collect();
    let mut written: Vec<String> = (0..30).map(|number| format!("mark {number}")).collect();
    seen.sort();
    written.sort();
    assert_eq!(seen, written, "{text}");
}

#[test]
#[ignore = "needs root"]
fn root_calls_of_many_functions_are_told_apart() {
    let tool = Tool::of_the_page("S160", "library_calls");
    // Functions that no program calls besides.
    let calls = "import ctypes
libc = ctypes.CDLL('libc.so.6')
mutex, number = ctypes.create_string_buffer(64), ctypes.c_int()
for _ in range(300): libc.pthread_mutex_getprioceiling(mutex, ctypes.byref(number))
for _ in range(200): libc.pthread_mutex_setprioceiling(mutex, 1, ctypes.byref(number))";
    assert!(Command::new("/usr/bin/python3").args(["-c", calls]).status().unwrap().success());
    let text = tool.interrupt();
    assert_eq!(sum(&text, "function", "pthread_mutex_getprioceiling"), 300.0, "{text}");
    assert_eq!(sum(&text, "function", "pthread_mutex_setprioceiling"), 200.0, "{text}");
}

#[test]
#[ignore = "needs root"]
fn root_switches_of_a_command_are_those_of_procfs() {
    /// Of the thread that asks.
    fn switches() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let lines = status.lines().filter(|line| line.contains("ctxt_switches:"));
        lines.map(|line| line.split_whitespace().last().unwrap().parse::<u64>().unwrap()).sum()
    }
    let tool = Tool::of_the_page("S068", "counts_of_one");
    let mut counted = 0;
    load::named("make", || {
        let before = switches();
        (0..400).for_each(|_| std::thread::sleep(Duration::from_millis(1)));
        counted = switches() - before;
    });
    let text = tool.interrupt();
    let seen = sum(&text, "hook", "software:context-switches:1");
    assert!(counted >= 400, "{counted}");
    // Besides, the thread has begun, was named, and ended.
    assert!((counted as f64..counted as f64 + 5.0).contains(&seen), "{seen} of {counted}: {text}");
}

#[test]
#[ignore = "needs root"]
fn root_memory_that_the_kernel_gave_back_is_not_outstanding() {
    const PIPES: usize = 200;
    let outstanding = |close: bool| {
        let tool = Tool::of_the_page("S149", "kmalloc_outstanding");
        let mut pipes: Vec<_> = (0..PIPES).map(|_| std::io::pipe().unwrap()).collect();
        if close {
            pipes.clear();
        }
        sum(&tool.interrupt(), "function", "alloc_pipe_info")
    };
    // A pipe has its own object and an array of buffers.
    let (held, closed) = (outstanding(false), outstanding(true));
    assert!(held >= PIPES as f64 * 512.0, "{held} bytes of {PIPES} pipes");
    assert!(closed < held / 10.0, "{closed} of {held} bytes stay when the pipes are closed");
}
