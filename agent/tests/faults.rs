//! Bad input and missing rights, without root: each shows a clear message, and an agent goes on with the rest. Where the
//! tests run as root, the agent's rights are taken away, so that all see the same.

mod support;

use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};
use support::agent::{self, Agent, Setup, without_rights};
use support::metrics::Metrics;
use support::{Done, Folder, done, wait_for};

/// All commands here end by themselves: an agent that runs instead is ended, with the code of timeout(1), which no test expects.
const LIMIT: [&str; 2] = ["timeout", "120"];

fn kstrobe(arguments: &[&str]) -> Done {
    done(&mut agent::command_under(&LIMIT, arguments))
}

fn kstrobe_without_rights(arguments: &[&str]) -> Done {
    done(&mut agent::command_under(&[&LIMIT, without_rights()].concat(), arguments))
}

/// Compares with `tests/faults/NAME`; `BLESS=1` rewrites it.
#[track_caller]
fn as_recorded(name: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults").join(name);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, found).unwrap();
    }
    let recorded = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(found, recorded, "differs from tests/faults/{name} (BLESS=1 rewrites it)");
}

/// A counter at an event that every kernel has.
fn switches(name: &str) -> String {
    format!(
        "probe: {name}\nsummary: Context switches.\nat: rawtracepoint:sched_switch\n\
         metrics:\n  {name}_total: {{ type: counter }}\n"
    )
}

/// Rows of `/proc/net/snmp` and `netstat`, some hundred, under as many labels as are allowed.
fn counters(name: &str, more: &str) -> String {
    format!(
        "probe: {name}\nsummary: Counters.\npoll: {{ source: netstat, every: 100ms }}\n\
         metrics:\n  {name}_total: {{ type: counter, value: args.value, labels: {{ name: args.name }}{more} }}\n"
    )
}

#[test]
fn check_shows_every_mistake_at_its_place() {
    let found = kstrobe(&["check", "--syntax-only", "agent/tests/faults/mistakes.yaml"]);
    as_recorded("mistakes.stderr", &found.err);
    assert_eq!((found.code, found.out.as_str()), (Some(1), "1 probes fine, 8 errors\n"));
    let found = kstrobe(&["check", "--syntax-only", "agent/tests/faults/no_yaml.yaml"]);
    as_recorded("no_yaml.stderr", &found.err);
    assert_eq!((found.code, found.out.as_str()), (Some(1), "0 probes fine, 1 errors\n"));
}

#[test]
fn check_tells_programs_the_same() {
    let found = kstrobe(&["check", "--syntax-only", "-o", "json", "agent/tests/faults/mistakes.yaml"]);
    assert_eq!((found.code, found.err.as_str()), (Some(1), ""));
    let told: serde_json::Value = serde_json::from_str(&found.out).unwrap();
    assert_eq!((&told["fine"], &told["errors"]), (&1.into(), &8.into()));
    let first = &told["diagnostics"][0];
    assert_eq!((&first["line"], &first["column"], &first["severity"]), (&3.into(), &1.into(), &"error".into()));
    assert_eq!(first["file"], "agent/tests/faults/mistakes.yaml");
    assert!(
        first["message"].as_str().unwrap().contains("sumary") && first["hint"].as_str().unwrap().contains("summary")
    );
}

#[test]
fn files_that_cannot_be_read_are_named_and_the_others_are_checked() {
    let folder = Folder::new();
    let good = folder.write("good.yaml", &switches("good"));
    std::fs::write(folder.0.join("bytes.yaml"), b"# fine\nprobe: \xff\n").unwrap();
    folder.write("long.yaml", &"#\n".repeat(600_000));
    folder.write("secret.yaml", &switches("secret"));
    std::fs::set_permissions(folder.0.join("secret.yaml"), std::fs::Permissions::from_mode(0o000)).unwrap();
    std::fs::create_dir(folder.0.join("folder.yaml")).unwrap();
    for (name, why) in [
        ("none.yaml", "No such file"),
        ("folder.yaml", "Is a directory"),
        ("bytes.yaml", "line 2 is not UTF-8"),
        ("long.yaml", "larger than 1 MiB"),
        ("secret.yaml", "Permission denied"),
    ] {
        let bad = folder.0.join(name);
        let files = [bad.to_str().unwrap(), good.to_str().unwrap()];
        let found = kstrobe_without_rights(&[&["check", "--syntax-only"], &files[..]].concat());
        assert_eq!((found.code, found.out.as_str()), (Some(1), "1 probes fine, 1 errors\n"), "{}", found.err);
        assert!(found.err.starts_with(&format!("error: cannot read {}: ", files[0])), "{}", found.err);
        assert!(found.err.contains(why), "{}", found.err);
    }
}

#[test]
fn a_port_in_use_is_said_before_anything_is_attached() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let found = kstrobe(&["run", "--web.listen-address", &address]);
    let message = format!(
        "error: {address} is already in use: stop the other program or choose another address with --web.listen-address\n"
    );
    assert_eq!((found.code, found.err), (Some(1), message));
}

#[test]
fn an_agent_does_not_start_with_mistakes_in_its_configuration() {
    let found = kstrobe(&["run", "--config", "agent/tests/faults/agent.yaml"]);
    as_recorded("agent.stderr", &found.err);
    assert_eq!(found.code, Some(1));
    let found = kstrobe(&["run", "--config", "/nonexistent/kstrobe.yaml"]);
    assert!(found.err.starts_with("error: cannot read /nonexistent/kstrobe.yaml: No such file"), "{}", found.err);
    assert_eq!(found.code, Some(1));
    // A name in the configuration is shown at its place, one on the command line has none.
    let folder = Folder::new();
    let config = folder.write("kstrobe.yaml", "probes:\n  disable: [softrq]\n");
    let found = kstrobe(&["run", "--config", config.to_str().unwrap()]);
    assert!(found.err.contains("kstrobe.yaml:2:13") && found.err.contains("did you mean `softirq`?"), "{}", found.err);
    assert_eq!(found.code, Some(1));
}

#[test]
fn names_and_words_that_mean_nothing_are_refused() {
    for flag in ["--enable", "--disable", "--only"] {
        let found = kstrobe(&["run", flag, "softrq"]);
        let message = "error: there is no probe `softrq`\n |\n = help: did you mean `softirq`?\n";
        assert_eq!((found.code, found.err.as_str()), (Some(1), message), "{flag}");
    }
    let found = kstrobe(&["run", "--log.level", "loud"]);
    assert!(found.err.contains("`loud` is not a log level: it is one of error, warn, info"), "{}", found.err);
    assert_eq!(found.code, Some(2));
    assert_eq!(kstrobe(&["run", "--no-such-flag"]).code, Some(2));
    assert_eq!(kstrobe(&["check"]).code, Some(2));
    let found = kstrobe(&["explain", "softrq"]);
    assert!(found.err.contains("did you mean `softirq`?"), "{}", found.err);
    assert_eq!(found.code, Some(1));
}

#[test]
fn without_rights_the_agent_serves_and_says_what_it_needs() {
    let agent = Setup { packs: &agent::DEFAULT_PACKS, under: without_rights(), ..Setup::default() }.start();
    let (status, body) = agent.get("/readyz").unwrap();
    assert_eq!(status, 503);
    let in_the_kernel = ["syscalls", "recvfrom", "softirq", "softirq_delay", "tcp_retransmits", "tcp_backlog"];
    for probe in in_the_kernel {
        let line = body.lines().find(|line| line.starts_with(&format!("{probe}: ")));
        let line = line.unwrap_or_else(|| panic!("{probe} is not named in:\n{body}"));
        assert!(line.contains("CAP_BPF") && line.contains("CAP_PERFMON"), "{line}");
    }
    assert!(!body.contains("softnet") && !body.contains("tcp_listen"), "polls need no rights:\n{body}");
    let metrics = agent.scrape();
    for probe in in_the_kernel {
        let labels = [("probe", probe)];
        let attached: Vec<_> = metrics.series("kstrobe_probe_attached", &labels).collect();
        assert!(!attached.is_empty(), "{probe}");
        for (labels, value) in attached {
            assert!(value == 0.0 && labels["reason"].contains("CAP_BPF"), "{labels:?} {value}");
        }
    }
    // Polled soon after the start, and this very agent listens.
    let port = agent.address().port().to_string();
    wait_for("the polled listener and the backlog", Duration::from_secs(5), || {
        let metrics = agent.scrape();
        let listens = metrics.has("kstrobe_tcp_listen_queue_limit", &[("port", &port)]);
        (listens && metrics.has("kstrobe_softnet_processed_total", &[])).then_some(())
    });
    assert_eq!(agent.get("/healthz").unwrap().0, 200, "not ready is not dead");
    let told: serde_json::Value = serde_json::from_str(&agent.get("/api/v1/probes").unwrap().1).unwrap();
    let softirq = told["probes"].as_array().unwrap().iter().find(|p| p["name"] == "softirq").unwrap();
    assert!(softirq["attached"] == false && softirq["reason"].as_str().unwrap().contains("CAP_BPF"), "{softirq}");
    let log = agent.log();
    let errors: Vec<&str> = log.lines().filter(|line| line.contains("level=error")).collect();
    let [only] = errors[..] else { panic!("not one error:\n{log}") };
    assert!(only.contains("lacks CAP_BPF and CAP_PERFMON") && only.contains("7 of 10 probes do not run"), "{only}");
    assert!(only.contains("syscalls") && only.contains("sudo "), "{only}");
    assert!(!log.contains("mistake in a file"), "{log}");
    agent.stop();
}

#[test]
fn without_rights_an_agent_that_runs_nothing_ends() {
    let found = kstrobe_without_rights(&["run", "--only", "softirq,syscalls", "--web.listen-address", "127.0.0.1:0"]);
    assert_eq!(found.code, Some(1), "{}", found.err);
    let last = found.err.lines().last().unwrap_or_default();
    assert!(last.starts_with("error: this process lacks CAP_BPF and CAP_PERFMON"), "{}", found.err);
    assert!(last.contains("type `sudo ") && last.contains(" run --only softirq,syscalls"), "{last}");
    assert_eq!(found.err.matches("CAP_BPF").count(), 1, "{}", found.err);
}

/// A pack of one probe that runs without rights and one that does not.
fn half_a_pack() -> String {
    format!("{}---\n{}", counters("polled", ""), switches("hooked"))
}

#[test]
fn a_file_of_probes_is_taken_as_a_folder_is() {
    let folder = Folder::new();
    let file = folder.write("mine.yaml", &counters("polled", ""));
    folder.write("other.yaml", "no probe at all");
    let arguments = ["--probes", file.to_str().unwrap(), "--only", "mine"];
    let agent = Setup { arguments: &arguments, under: without_rights(), ..Setup::default() }.start();
    assert_eq!(agent.get("/readyz"), Some((200, "ready: 1 probes attached\n".to_owned())));
    // It is read again when it changes.
    folder.write("mine.yaml", &counters("renamed", ""));
    wait_for("the renamed probe", Duration::from_secs(30), || {
        agent.scrape().has("kstrobe_renamed_total", &[]).then_some(())
    });
    agent.stop();
}

#[test]
fn a_probe_that_cannot_run_is_left_out_of_its_pack() {
    let folder = Folder::new();
    let file = folder.write("half.yaml", &half_a_pack());
    let start = |more: &[&str]| {
        let arguments = [&["--probes", file.to_str().unwrap(), "--only", "half"], more].concat();
        Setup { arguments: &arguments, under: without_rights(), ..Setup::default() }.start()
    };
    let agent = start(&[]);
    let (status, body) = agent.get("/readyz").unwrap();
    assert!(status == 503 && body.starts_with("not ready: 1 of 2 probes not attached\nhooked: "), "{body}");
    assert!(body.contains("`--disable NAME`"), "the way out is not named:\n{body}");
    agent.stop();
    let agent = start(&["--disable", "hooked"]);
    assert_eq!(agent.get("/readyz"), Some((200, "ready: 1 probes attached\n".to_owned())));
    agent.stop();
}

#[test]
fn names_that_contradict_each_other_are_refused() {
    let found = kstrobe(&["run", "--only", "softnet", "--disable", "softnet"]);
    assert!(found.err.contains("`softnet` is in both `--only` and `--disable`"), "{}", found.err);
    assert_eq!(found.code, Some(1));
    let found = kstrobe(&["run", "--only", "softnet", "--enable", "vfs"]);
    assert!(found.err.contains("'--enable <NAME>'") && found.err.contains("'--only <NAME>'"), "{}", found.err);
    assert_eq!(found.code, Some(2));
}

#[test]
fn doctor_names_the_rights_that_are_missing() {
    let found = kstrobe_without_rights(&["doctor"]);
    assert_eq!(found.code, Some(1), "{}", found.out);
    for what in ["MISSING  CAP_BPF", "MISSING  CAP_PERFMON", "no probe can run here"] {
        assert!(found.out.contains(what), "{what} is not in:\n{}", found.out);
    }
}

#[test]
fn a_foreign_host_gets_nothing_from_an_agent() {
    let agent = Setup { arguments: &["--web.allowed-host", "kstrobe.ops"], ..Setup::default() }.start();
    let status = |path: &str, host: &str| {
        let answer = support::http::ask(agent.address(), "GET", path, &[("Host", host)], "").unwrap();
        (answer.status, String::from_utf8(answer.body).unwrap())
    };
    let paths = [
        "/",
        "/metrics",
        "/healthz",
        "/readyz",
        "/-/reload",
        "/api/v1/probes",
        "/api/v1/stacks",
        "/api/v1/events",
        "/api/v1/captures",
    ];
    for path in paths {
        let (foreign, text) = status(path, "evil.example:9779");
        assert!(foreign == 421 && text.contains("--web.allowed-host"), "{path}: {foreign} {text}");
        for own in ["kstrobe.ops:9779", "localhost", "10.0.0.1"] {
            assert_ne!(status(path, own).0, 421, "{path} {own}");
        }
    }
    assert_eq!(agent.scrape().sum("kstrobe_http_requests_refused_total", &[("reason", "host")]), paths.len() as f64);
    assert!(agent.log().contains("foreign name"), "{}", agent.log());
    agent.stop();
}

#[test]
fn a_memory_limit_below_the_need_is_an_error_in_log_and_doctor() {
    let under = ["env", "CONTAINER_MEMORY_LIMIT=1048576"];
    let agent = Setup { under: &under, ..Setup::default() }.start();
    let log = agent.log();
    assert!(log.contains("the memory limit of 1 MiB (CONTAINER_MEMORY_LIMIT) is too small"), "{log}");
    agent.stop();
    let found = done(&mut agent::command_under(&under, &["doctor"]));
    let line = found.out.lines().find(|line| line.contains("  memory  ")).unwrap_or_else(|| panic!("{}", found.out));
    assert!(line.starts_with("MISSING") && line.contains("raise it to"), "{line}");
    // With a configuration that asks for more.
    let folder = Folder::new();
    let config = folder.write("kstrobe.yaml", "captures: { max_bytes: 512MiB }\n");
    let found = done(&mut agent::command_under(&under, &["doctor", "--config", config.to_str().unwrap()]));
    assert!(found.out.contains("a capture up to 512 MiB"), "{}", found.out);
}

#[test]
fn few_descriptors_mean_few_connections_and_no_failed_accept() {
    let agent = Setup { under: &["prlimit", "--nofile=64"], ..Setup::default() }.start();
    // More than there are descriptors, each with half a request: the oldest make room.
    let mut slow = Vec::new();
    for _ in 0..100 {
        let mut stream = std::net::TcpStream::connect(agent.address()).unwrap();
        // One that had to make room already takes nothing more.
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\n");
        slow.push(stream);
    }
    let metrics = agent.scrape();
    assert_eq!(metrics.sum("kstrobe_http_accept_errors_total", &[]), 0.0);
    assert!(metrics.sum("kstrobe_http_connections_ended_total", &[("reason", "room")]) > 0.0);
    assert!(agent.log().contains("fewer connections than usual"), "{}", agent.log());
    drop(slow);
    agent.stop();
}

/// A thread of the agent that is stopped for good, as one is that waits for a disk or a busy kernel. Dead threads must be waited for by
/// their tracer, or their process never ends; a test that fails before lets it go, so that the agent can be killed.
struct Frozen(Pid);

impl Drop for Frozen {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = ptrace::detach(self.0, None);
        }
    }
}

fn freeze(agent: &Agent, name: &str) -> Frozen {
    let tasks = Path::new("/proc").join(agent.pid().to_string()).join("task");
    let of_name = |task: &std::fs::DirEntry| {
        std::fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim() == name)
    };
    let task = std::fs::read_dir(tasks)
        .unwrap()
        .map(Result::unwrap)
        .find(of_name)
        .unwrap_or_else(|| panic!("no thread {name}"));
    let thread = Pid::from_raw(task.file_name().to_str().unwrap().parse().unwrap());
    ptrace::seize(thread, ptrace::Options::empty()).unwrap();
    ptrace::interrupt(thread).unwrap();
    assert!(matches!(
        waitpid(thread, Some(WaitPidFlag::__WALL)).unwrap(),
        WaitStatus::PtraceEvent(..) | WaitStatus::Stopped(..)
    ));
    Frozen(thread)
}

#[test]
fn a_stop_waits_for_no_thread_that_is_held_up() {
    for name in ["housekeeping", "reload", "rules", "iterate", "workloads"] {
        let agent = Setup { packs: &["tcp_backlog"], under: without_rights(), ..Setup::default() }.start();
        let thread = freeze(&agent, name);
        agent.signal(Signal::SIGTERM);
        wait_for(&format!("the end in spite of {name}"), Duration::from_secs(60), || {
            let status = waitpid(thread.0, Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG)).unwrap();
            matches!(status, WaitStatus::Exited(..) | WaitStatus::Signaled(..)).then_some(())
        });
        assert!(agent.log().contains("message=stopped"), "{name}: {}", agent.log());
        agent.has_stopped();
    }
}

#[test]
fn a_bad_file_costs_only_what_is_in_it() {
    let folder = Folder::new();
    std::fs::copy("tests/faults/mistakes.yaml", folder.0.join("mistakes.yaml")).unwrap();
    std::fs::copy("tests/faults/no_yaml.yaml", folder.0.join("no_yaml.yaml")).unwrap();
    folder.write("polled.yaml", &counters("polled", ""));
    folder.write("again.yaml", &format!("{0}---\n{0}", counters("again", "")));
    std::fs::write(folder.0.join("bytes.yaml"), b"\xff").unwrap();
    symlink("/nonexistent/x.yaml", folder.0.join("dangling.yaml")).unwrap();
    nix::unistd::mkfifo(&folder.0.join("pipe.yaml"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::fs::create_dir(folder.0.join("sub.yaml")).unwrap();
    folder.write("notes.txt", "not a probe");
    let agent = Setup { arguments: &["--probes", folder.0.to_str().unwrap()], ..Setup::default() }.start();
    let metrics = wait_for("the good poll", Duration::from_secs(5), || {
        let metrics = agent.scrape();
        metrics.has("kstrobe_polled_total", &[]).then_some(metrics)
    });
    // 8 and 1 of the two copied files, and one each for `again` twice, no text, no target, no regular file.
    assert_eq!(metrics.sum("kstrobe_config_errors", &[]), 13.0);
    assert!(metrics.has("kstrobe_probe_attached", &[("probe", "good")]), "the good probe among bad ones");
    let (status, body) = agent.get("/readyz").unwrap();
    assert!(status == 503 && body.lines().next().unwrap().ends_with("13 mistakes in files"), "{body}");
    for (file, what) in [
        ("mistakes.yaml:3:1", "a probe has no key `sumary` (did you mean `summary`?)"),
        ("no_yaml.yaml:3:1", "this is not YAML"),
        ("again.yaml", "probe `again` is defined twice"),
        ("bytes.yaml", "not UTF-8"),
        ("dangling.yaml", "No such file"),
        ("pipe.yaml", "not a regular file"),
    ] {
        assert!(body.lines().any(|line| line.contains(file) && line.contains(what)), "{file}: {what}\n{body}");
        assert!(agent.log().contains(file), "{file} is not in the log");
    }
    assert!(!body.contains("notes.txt") && !body.contains("sub.yaml"), "{body}");
    agent.stop();
}

#[test]
fn a_name_of_a_broken_probe_does_not_stop_the_agent() {
    let folder = Folder::new();
    folder.write("mine.yaml", "probe: mine\nsumary: x\n");
    let probes = folder.0.to_str().unwrap();
    let agent = Setup { arguments: &["--probes", probes, "--enable", "mine"], ..Setup::default() }.start();
    let (_, body) = agent.get("/readyz").unwrap();
    assert!(body.contains("there is no probe `mine`") && body.contains("no key `sumary`"), "{body}");
    agent.stop();
}

#[test]
fn a_probes_directory_that_cannot_be_read_is_said_and_the_embedded_ones_run() {
    let folder = Folder::new();
    let closed = folder.0.join("closed");
    std::fs::create_dir(&closed).unwrap();
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o000)).unwrap();
    for (directory, why) in [("/nonexistent/probes", "No such file"), (closed.to_str().unwrap(), "Permission denied")] {
        let arguments = ["--probes", directory];
        let setup =
            Setup { packs: &["tcp_backlog"], arguments: &arguments, under: without_rights(), ..Setup::default() };
        let agent = setup.start();
        let (_, body) = agent.get("/readyz").unwrap();
        let message = format!("cannot read the probes directory {directory}: ");
        assert!(body.lines().any(|line| line.starts_with(&message) && line.contains(why)), "{body}");
        assert_eq!(agent.scrape().sum("kstrobe_config_errors", &[]), 1.0);
        assert!(agent.scrape().has("kstrobe_probe_attached", &[("probe", "softnet")]));
        agent.stop();
    }
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn an_agent_with_nothing_to_do_says_so() {
    let agent = Setup::default().start();
    assert!(agent.log().contains("no probe is enabled"), "{}", agent.log());
    assert_eq!(agent.get("/readyz"), Some((200, "ready: 0 probes attached\n".to_owned())));
    agent.stop();
}

#[test]
fn rows_beyond_max_series_are_counted_under_other() {
    let few = counters("few", ", max_series: 3");
    let all = counters("all", "");
    let agent = Setup { probes: &[("few", &few), ("all", &all)], ..Setup::default() }.start();
    let metrics = wait_for("both polls", Duration::from_secs(5), || {
        let metrics = agent.scrape();
        (metrics.has("kstrobe_few_total", &[]) && metrics.has("kstrobe_all_total", &[])).then_some(metrics)
    });
    let texts = |name| metrics.series(name, &[]).map(|(labels, _)| labels["name"].clone()).collect::<Vec<_>>();
    let (few, all) = (texts("kstrobe_few_total"), texts("kstrobe_all_total"));
    assert_eq!((few.len(), few.contains(&"other".to_owned())), (4, true), "{few:?}");
    assert!(all.len() > 50 && !all.contains(&"other".to_owned()), "{} rows", all.len());
    let overflow = |metrics: &Metrics, probe| metrics.sum("kstrobe_series_overflow_total", &[("probe", probe)]);
    // One reading or more, each with all rows but three.
    let merged = overflow(&metrics, "few");
    assert!(merged >= (all.len() - 3) as f64 && merged % (all.len() - 3) as f64 == 0.0, "{merged} of {}", all.len());
    assert_eq!(overflow(&metrics, "all"), 0.0);
    agent.stop();
}

#[test]
fn polls_and_scrapes_never_wait_for_each_other() {
    let probes: Vec<(String, String)> = (0..20).map(|n| (format!("p{n}"), counters(&format!("p{n}"), ""))).collect();
    let probes: Vec<(&str, &str)> = probes.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    let agent = Setup { probes: &probes, ..Setup::default() }.start();
    let begin = Instant::now();
    let mut scrapes = 0;
    while begin.elapsed() < Duration::from_secs(3) {
        assert_eq!(agent.get("/metrics").map(|(status, _)| status), Some(200), "after {scrapes} scrapes");
        scrapes += 1;
    }
    assert!(scrapes > 10, "{scrapes} scrapes in 3 s");
    agent.stop();
}

#[test]
fn signals_end_the_agent_in_good_order() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let agent = Setup { packs: &["tcp_backlog"], under: without_rights(), ..Setup::default() }.start();
        agent.stop_by(signal);
    }
}

#[test]
fn a_reader_that_goes_away_is_no_fault() {
    // More than a pipe holds, so that it is written to after its reader has gone.
    let mut list = agent::command(&["list", "syscalls"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::with_capacity(16, list.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("syscall"), "{line}");
    let ended = list.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&ended.stderr), "");
}

#[test]
fn the_agent_outlives_the_reader_of_its_log() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut command = agent::command(&["run", "--only", "softnet", "--web.listen-address", &address.to_string()]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    log.read_line(&mut line).unwrap();
    assert!(line.contains("level=info"), "{line}");
    drop(log);
    wait_for("data", Duration::from_secs(20), || {
        agent::get(address, "/metrics").filter(|(_, body)| body.contains("kstrobe_softnet_processed_total"))
    });
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM).unwrap();
    let status = wait_for("its end", Duration::from_secs(10), || child.try_wait().unwrap());
    assert!(status.success(), "{status}");
}
