//! Recordings by `kstrobe capture`: of loads of known size, compared with the kernel's own count.

mod support;

use kstrobe_ftrace::trace::{CpuStats, Trace};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use support::agent::command;
use support::capture::{Capture, instances, trace};
use support::load::{ask, delayed_echo, getpgid_calls, getppid_calls, named};
use support::tracing::{Mounted, graph_root};
use support::{Done, Folder, done, wait_for};

const LIMIT: Duration = Duration::from_secs(60);

/// Runs one to its end.
fn capture(folder: &Folder, arguments: &[&str]) -> (Trace, Done) {
    let file = folder.0.join("trace.dat");
    let done = done(command(&["capture", "-o"]).arg(&file).args(arguments));
    assert_eq!(done.code, Some(0), "{}", done.err);
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "it holds what everybody did");
    (trace(&file), done)
}

/// What one says that fails.
fn refused(arguments: &[&str]) -> String {
    let folder = Folder::new();
    let done = done(command(&["capture", "-o"]).arg(folder.0.join("x.dat")).args(arguments));
    assert_ne!(done.code, Some(0), "{}", done.err);
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 0, "a refused recording leaves no file");
    done.err
}

fn count(trace: &Trace, name: &str) -> usize {
    trace.events().filter(|event| event.format.is_some_and(|format| format.name == name)).count()
}

fn stats(trace: &Trace) -> Vec<CpuStats> {
    let cpus = trace.buffers.iter().flat_map(|buffer| &buffer.cpus);
    cpus.map(|cpu| cpu.stats.expect("the kernel's count")).collect()
}

#[test]
#[ignore = "needs root"]
fn root_capture_has_every_call_of_a_process_and_nobody_elses() {
    let folder = Folder::new();
    let pid = std::process::id().to_string();
    let events = ["-e", "sched", "-e", "irq", "-e", "syscalls:sys_enter_getppid", "-e", "syscalls:sys_exit_getpgid"];
    let filter = ["-f", "ret >= 0", "-v", "-e", "sched:sched_stat*"];
    let capture = Capture::start(&folder, &[&events[..], &filter, &["-P", &pid]].concat());
    getppid_calls(5000);
    getpgid_calls(0, 300);
    getpgid_calls(i32::MAX, 200);
    let (trace, said) = capture.end();
    assert_eq!(count(&trace, "sys_enter_getppid"), 5000, "{said}");
    assert_eq!(count(&trace, "sys_exit_getpgid"), 300, "the filter leaves calls out that failed");
    assert!(trace.formats.named("sched", "sched_switch").is_some());
    assert!(trace.formats.all().iter().all(|format| !format.name.starts_with("sched_stat")));
    let own: Vec<i32> = trace.tgids.iter().filter(|(_, tgid)| tgid.to_string() == pid).map(|(tid, _)| *tid).collect();
    let own = |event: &kstrobe_ftrace::trace::Event<'_>| own.is_empty() || own.contains(&event.pid());
    // Of switches and wakeups one side is ours.
    let others = trace.events().filter(|event| !own(event) && event.format.is_some_and(|f| f.system == "syscalls"));
    assert_eq!(others.count(), 0);
    assert_eq!(trace.buffers[0].clock, "mono");
    assert!(said.contains("clock mono"), "{said}");
}

#[test]
#[ignore = "needs root"]
fn root_capture_finds_threads_by_name_when_they_begin() {
    let folder = Folder::new();
    let capture = Capture::start(&folder, &["-e", "syscalls:sys_enter_getppid", "--comm", "kst-na*"]);
    getppid_calls(100);
    let work = || {
        // New threads are looked for five times a second.
        std::thread::sleep(Duration::from_secs(2));
        getppid_calls(700);
    };
    named("kst-named", work);
    named("kst-other", || getppid_calls(100));
    let (trace, said) = capture.end();
    assert_eq!(count(&trace, "sys_enter_getppid"), 700, "{said}");
}

#[test]
#[ignore = "needs root"]
fn root_capture_follows_a_command_and_its_children() {
    let script = "true; sh -c 'exec true'; exit 3";
    let run = |flags: &[&str]| {
        let folder = Folder::new();
        let words = [&["-e", "sched:sched_process_exec"], flags, &["sh", "-c", script]].concat();
        capture(&folder, &words)
    };
    let (alone, done) = run(&["-F"]);
    assert_eq!(count(&alone, "sched_process_exec"), 1, "it is recorded from its exec on: {}", done.err);
    assert!(done.err.contains("the command ended with exit status: 3"), "{}", done.err);
    let (with_children, done) = run(&["-F", "-c"]);
    // `sh`, and in it `sh` and `true`; `true` alone may be built in.
    assert!((3..=4).contains(&count(&with_children, "sched_process_exec")), "{}", done.err);
    assert!(refused(&["-e", "sched", "-F", "/no/such/program"]).contains("cannot run `/no/such/program`"));
}

#[test]
#[ignore = "needs root"]
fn root_capture_has_stacks_and_obeys_triggers() {
    let folder = Folder::new();
    let pid = std::process::id().to_string();
    let first = Capture::start(&folder, &["-e", "syscalls:sys_enter_getppid", "-T", "-P", &pid]);
    getppid_calls(50);
    let (trace, said) = first.end();
    assert_eq!((count(&trace, "sys_enter_getppid"), count(&trace, "kernel_stack")), (50, 50), "{said}");

    // An option of tracing is one of the recording alone.
    let words = ["-e", "syscalls:sys_enter_getppid", "-O", "userstacktrace", "-P", &pid];
    let with_option = Capture::start(&folder, &words);
    getppid_calls(50);
    let (trace, said) = with_option.end();
    assert_eq!((count(&trace, "sys_enter_getppid"), count(&trace, "user_stack")), (50, 50), "{said}");

    // A flight recorder keeps what was before its end, and nothing after.
    let stop = "syscalls:sys_enter_getpgid if pid == 4242";
    let words = ["-e", "syscalls:sys_enter_getppid", "-P", &pid, "--flight", "--stop-on", stop];
    let mut flight = Capture::start(&folder, &words);
    getppid_calls(40);
    getpgid_calls(1, 1);
    getppid_calls(2);
    getpgid_calls(4242, 1);
    getppid_calls(30);
    let status = wait_for("the trigger's end", LIMIT, || flight.child.try_wait().unwrap());
    assert!(status.success() && flight.said().contains("ended by a trigger"), "{}", flight.said());
    assert_eq!(count(&self::trace(&flight.file), "sys_enter_getppid"), 42);

    let after = [&words[..], &["--stop-after", "300ms"]].concat();
    let mut flight = Capture::start(&folder, &after);
    getppid_calls(40);
    getpgid_calls(4242, 1);
    getppid_calls(30);
    let status = wait_for("the end some time after", LIMIT, || flight.child.try_wait().unwrap());
    assert!(status.success(), "{}", flight.said());
    assert_eq!(count(&self::trace(&flight.file), "sys_enter_getppid"), 70, "it goes on for a while");
}

/// Calls until it is told to stop, on all CPUs.
fn flood(time: Duration) {
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().unwrap().get() {
            scope.spawn(|| {
                while !end.load(Ordering::Relaxed) {
                    getppid_calls(1000);
                }
            });
        }
        std::thread::sleep(time);
        end.store(true, Ordering::Relaxed);
    });
}

#[test]
#[ignore = "needs root"]
fn root_capture_counts_what_a_flood_loses() {
    let folder = Folder::new();
    let capture = Capture::start(&folder, &["-e", "raw_syscalls", "-b", "64", "--max-bytes", "2G"]);
    flood(Duration::from_secs(5));
    let (trace, said) = capture.end();
    let stats = stats(&trace);
    let read: u64 = stats.iter().map(|stats| stats.read_events).sum();
    let lost: u64 = stats.iter().map(CpuStats::lost).sum();
    assert!(lost > 0, "so small a buffer is too small: {said}");
    assert_eq!(stats.iter().map(|stats| stats.entries).sum::<u64>(), 0, "nothing is left behind");
    let mut events = trace.events();
    assert_eq!(events.by_ref().count() as u64, read, "{said}");
    assert!(events.unreadable().is_empty(), "{:?}", events.unreadable());
    assert!(said.contains(&format!("{read} records")) && said.contains(&format!("{lost} records were lost")), "{said}");
    eprintln!("flood: {read} read, {lost} lost of {} in 5 s", read + lost);
}

#[test]
#[ignore = "needs root"]
fn root_capture_ends_when_all_bytes_are_there() {
    let folder = Folder::new();
    let mut capture = Capture::start(&folder, &["-e", "raw_syscalls", "--max-bytes", "1M"]);
    flood(Duration::from_secs(2));
    let status = wait_for("the end", LIMIT, || capture.child.try_wait().unwrap());
    assert!(status.success(), "{}", capture.said());
    let trace = trace(&capture.file);
    let bytes: usize = trace.buffers[0].cpus.iter().map(|cpu| cpu.pages.len()).sum();
    assert_eq!(bytes, 1 << 20, "{}", capture.said());
    let left: u64 = stats(&trace).iter().map(|stats| stats.entries).sum();
    assert!(capture.said().contains("the most bytes were there"), "{}", capture.said());
    assert!(capture.said().contains(&format!("{left} records were left")), "{}", capture.said());
}

#[test]
#[ignore = "needs root"]
fn root_capture_that_is_killed_is_swept_and_others_are_left_alone() {
    let tracefs = Mounted::new();
    let foreign = "instances/kstrobe-foreign";
    tracefs.make(foreign);
    let enable = "instances/kstrobe-foreign/events/sched/sched_process_exec/enable";
    tracefs.write(enable, "1");

    let folder = Folder::new();
    let mut killed = Capture::start(&folder, &["-e", "sched"]);
    let lives = Capture::start(&Folder::new(), &["-e", "irq"]);
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    let of = |capture: &Capture| capture.instances().len();
    assert_eq!((of(&killed), of(&lives)), (1, 1));
    let folder = Folder::new();
    let (_, done) = capture(&folder, &["-e", "sched:sched_process_exec", "true"]);
    assert!(done.err.contains("removed what a killed recorder left: tracing instance kstrobe-"), "{}", done.err);
    assert_eq!((of(&killed), of(&lives)), (0, 1), "the living one stays");
    assert_eq!(tracefs.read(enable).as_deref(), Some("1"));
    drop(lives);
    tracefs.remove(foreign);
    capture(&folder, &["-e", "sched:sched_process_exec", "true"]);
    assert!(instances().iter().all(|name| !name.starts_with("kstrobe-")), "{:?}", instances());
}

#[test]
#[ignore = "needs root"]
fn root_a_killed_recording_is_rescued_with_every_record() {
    let pid = std::process::id().to_string();
    let all = ["-e", "syscalls:sys_enter_getppid", "-P", &pid];
    for words in [&all[..], &[&all[..], &["--flight"]].concat()] {
        let folder = Folder::new();
        let mut killed = Capture::start(&folder, words);
        getppid_calls(200_000);
        // What a recorder has taken from the kernel and not written yet goes with it.
        std::thread::sleep(Duration::from_millis(500));
        killed.child.kill().unwrap();
        killed.child.wait().unwrap();
        // The kernel goes on for a recorder that is gone.
        getppid_calls(1000);
        let file = folder.0.join("trace.dat");
        let again = done(command(&["capture", "-o"]).arg(&file).args(words));
        assert!(again.err.contains("holds what a killed recorder left") && again.code == Some(2), "{}", again.err);
        let rescued = done(command(&["rescue"]).arg(&file));
        assert_eq!(rescued.code, Some(0), "{}", rescued.err);
        let trace = self::trace(&file);
        let (calls, counted) = (count(&trace, "sys_enter_getppid"), stats(&trace));
        let overwritten: u64 = counted.iter().map(CpuStats::lost).sum();
        assert_eq!(calls as u64 + overwritten, 201_000, "{}", rescued.err);
        assert!(rescued.err.contains("its recorder was killed"), "{}", rescued.err);
        assert!(killed.instances().is_empty() && !folder.0.join("trace.dat.unfinished").exists());
        let twice = done(command(&["rescue"]).arg(&file));
        assert!(twice.err.contains("no recording that was interrupted") && twice.code == Some(1), "{}", twice.err);
    }
}

#[test]
#[ignore = "needs root"]
fn root_capture_says_in_the_kernels_words_what_is_wrong() {
    let said = refused(&["-e", "sched:sched_switch", "-f", "nosuch == 1", "-d", "1s"]);
    assert!(said.contains("sched:sched_switch does not take the filter `nosuch == 1`"), "{said}");
    assert!(said.contains("Field not found") && said.contains('^') && said.contains("prev_comm"), "{said}");
    let said = refused(&["-e", "sched:sched_switch", "-R", "nonsense", "-d", "1s"]);
    assert!(said.contains("does not take the trigger `nonsense`"), "{said}");
    assert!(refused(&["-e", "nosuch:event", "-d", "1s"]).contains("no event of this kernel is `nosuch:event`"));
    assert!(refused(&["-e", "sched", "-C", "sundial", "-d", "1s"]).contains("no clock `sundial`; it has local"));
    let said = refused(&["-e", "sched", "-O", "usrstacktrace", "-d", "1s"]);
    assert!(said.contains("no option `usrstacktrace`") && said.contains("did you mean `userstacktrace`?"), "{said}");
    assert!(refused(&["-e", "sched", "-O", "overwrite=off"]).contains("`flight` sets it"));
    assert!(refused(&["-p", "sundial", "-d", "1s"]).contains("no tracer `sundial`; it has"));
    assert!(refused(&["-e", "sched", "-P", "2147483647"]).contains("there is no process or thread 2147483647"));
    assert!(refused(&["-e", "sched", "-b", "99999999999"]).contains("more than half of the free memory"));
}

/// All settings of the global buffer that a recording may change.
fn global_settings() -> Vec<(String, String)> {
    let tracefs = Mounted::new();
    let mut files: Vec<String> = "current_tracer trace_clock buffer_percent set_event set_event_pid set_event_notrace_pid \
        set_ftrace_pid set_ftrace_notrace_pid set_ftrace_filter set_ftrace_notrace set_graph_function set_graph_notrace \
        max_graph_depth tracing_cpumask tracing_thresh tracing_on trace_options"
        .split_whitespace()
        .map(str::to_owned)
        .collect();
    files.extend(tracefs.list("per_cpu").into_iter().map(|cpu| format!("per_cpu/{cpu}/buffer_size_kb")));
    files.sort();
    files.into_iter().filter_map(|file| Some((tracefs.read(&file)?, file))).map(|(text, file)| (file, text)).collect()
}

#[test]
#[ignore = "needs root"]
fn root_capture_follows_the_calls_of_a_thread_that_waits() {
    let Some(root) = graph_root("root_capture_follows_the_calls_of_a_thread_that_waits", "recvfrom") else { return };
    let tracefs = Mounted::new();
    // The buffer gets its memory at the first use, and keeps it.
    tracefs.write("buffer_size_kb", "512");
    tracefs.write("tracing_on", "0");
    tracefs.write("max_graph_depth", "0");
    let before = global_settings();
    let folder = Folder::new();
    let capture = Capture::start(&folder, &["-p", "function_graph", "-g", &root, "--comm", "kst-client"]);
    let (address, server) = delayed_echo(Duration::from_millis(2));
    ask(address, 400, "kst-client");
    server.join().unwrap();
    let (trace, said) = capture.end();
    assert_eq!(global_settings(), before, "{said}");
    let roots: Vec<_> = trace
        .events()
        .filter(|event| event.is("ftrace", "funcgraph_entry") && event.number("depth") == Some(0))
        .filter_map(|event| trace.symbols.find(event.number("func")?).map(|symbol| symbol.name.to_string()))
        .collect();
    // Threads by name are looked for five times a second. One that is found within a call may show what it returns to.
    let others: Vec<_> = roots.iter().filter(|name| **name != root).collect();
    assert!(roots.len() > 50 && others.len() <= roots.len() / 50, "{} {others:?} {said}", roots.len());
    let exits = count(&trace, "funcgraph_exit");
    assert!(exits > roots.len(), "{exits}");
}

#[test]
#[ignore = "needs root"]
fn root_capture_puts_global_settings_back_after_a_kill_and_leaves_those_in_use() {
    let test = "root_capture_puts_global_settings_back_after_a_kill_and_leaves_those_in_use";
    let Some(root) = graph_root(test, "getpgid") else { return };
    let tracefs = Mounted::new();
    for (file, text) in
        [("buffer_size_kb", "256"), ("trace_clock", "boot"), ("set_event_pid", "1\n"), ("tracing_on", "1")]
    {
        tracefs.write(file, text);
    }
    tracefs.write("options/sym-offset", "1");
    let before = global_settings();
    let folder = Folder::new();
    let words = [
        "-p",
        "function_graph",
        "-g",
        &root,
        "--max-graph-depth",
        "3",
        "-e",
        "sched:sched_switch",
        "-f",
        "prev_pid == 1",
    ];
    let mut killed = Capture::start(&folder, &words);
    assert_ne!(global_settings(), before, "roots and depth are settings of all");
    let second = refused(&words);
    assert!(second.contains("in use: kstrobe (process"), "{second}");
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    let (_, done) = capture(&folder, &["-e", "sched:sched_process_exec", "true"]);
    assert!(done.err.contains("left: settings of the global trace"), "{}", done.err);
    assert_eq!(global_settings(), before);
    assert_eq!(tracefs.read("events/sched/sched_switch/filter").as_deref(), Some("none"));

    // What somebody else set, before or now, is theirs.
    tracefs.write("set_graph_function", &root);
    tracefs.write("current_tracer", "function_graph");
    let in_use = global_settings();
    let said = refused(&words);
    assert!(said.contains("in use: ") && said.contains("function_graph"), "{said}");
    assert_eq!(global_settings(), in_use);
    let restore =
        [("current_tracer", "nop"), ("set_graph_function", ""), ("set_event_pid", ""), ("trace_clock", "local")];
    for (file, text) in [&restore[..], &[("options/sym-offset", "0"), ("trace", "")]].concat() {
        tracefs.write(file, text);
    }
}
