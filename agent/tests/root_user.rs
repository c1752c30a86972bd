//! Hooks in programs and libraries: functions of the C library against bpftrace, static probe points of a PostgreSQL server
//! against its own log.

mod support;

use std::fs;
use std::net::ToSocketAddrs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use support::agent::{Agent, Setup};
use support::bpftrace::Bpftrace;
use support::postgres::Cluster;
use support::{Agreement, Folder, emulated, load, output, program, wait_for, witnesses};

/// A call takes at least some 30 µs; each tool times the other's breakpoints too, some µs each.
const TOOL_OVERHEAD_NS: u64 = 20_000;

const GETADDRINFO_SCRIPT: &str = "
    uprobe:/lib/x86_64-linux-gnu/libc.so.6:getaddrinfo /comm == \"kst-names\"/ { @start[tid] = nsecs; }
    uretprobe:/lib/x86_64-linux-gnu/libc.so.6:getaddrinfo /@start[tid]/ {
        @ns[1] = hist(nsecs - @start[tid]);
        @calls[1] = count();
        delete(@start[tid]);
    }
    END { clear(@start); }";

#[test]
#[ignore = "needs root"]
fn root_time_of_getaddrinfo_agrees_with_bpftrace() {
    const CALLS: u32 = 400;
    if !witnesses("root_time_of_getaddrinfo_agrees_with_bpftrace", &["bpftrace"]) {
        return;
    }
    let agent = Setup { arguments: &["--enable", "name_resolution"], ..Setup::default() }.start();
    let bpftrace = Bpftrace::start(&GETADDRINFO_SCRIPT.replace("x86_64", std::env::consts::ARCH));
    load::named("kst-names", || {
        for i in 0..CALLS {
            // Neither needs a server: the one is in /etc/hosts, the other is no name.
            let found = (if i % 4 == 0 { "no name:80" } else { "localhost:80" }).to_socket_addrs();
            assert_eq!(found.is_err(), i % 4 == 0, "{found:?}");
        }
    });
    let metrics = agent.scrape();
    let maps = bpftrace.stop();
    let of = |failed: &str| {
        let labels = [("comm", "kst-names"), ("failed", failed)];
        metrics.histogram("kstrobe_name_resolution_duration_seconds", &labels)
    };
    let (good, bad) = (of("false"), of("true"));
    assert_eq!((good.count, bad.count), (f64::from(CALLS * 3 / 4), f64::from(CALLS / 4)));
    let theirs = maps.number("@calls", "1");
    assert_eq!(theirs, u64::from(CALLS), "bpftrace counts them too");
    let metric = "name_resolution_duration_seconds";
    let plain = Agreement::new("name_resolution", metric, "bpftrace", good.count + bad.count, theirs as f64);
    Agreement { bounds: good.buckets.len(), ..plain }.record();
    let hist = maps.hist("@ns", "1");
    let below = |ns: u64| hist.iter().filter(|(_, max, _)| *max < ns).map(|(_, _, n)| *n).sum::<u64>() as f64;
    let slack = f64::from(CALLS) * if emulated() { 0.2 } else { 0.05 };
    for ((le, a), (_, b)) in good.buckets.iter().zip(&bad.buckets) {
        let ns = if le.is_finite() { (le * 1e9).round() as u64 } else { u64::MAX / 4 };
        let least = below(1 << ns.saturating_sub(TOOL_OVERHEAD_NS).max(1).ilog2());
        let most = below((ns + TOOL_OVERHEAD_NS).next_power_of_two() + 1);
        assert!((least - slack..=most + slack).contains(&(a + b)), "le={le}: {a} + {b}, bpftrace {hist:?}");
    }
    agent.stop();
}

/// A server of the test's own, on a socket in a folder of its own. Dropping it stops it.
struct Server {
    process: Child,
    folder: Folder,
    cluster: Cluster,
}

impl Server {
    fn start() -> Server {
        let folder = Folder::new();
        let cluster = Cluster::new(&folder);
        let log = fs::File::create(folder.0.join("log")).unwrap();
        let process = cluster
            .server(Command::new(cluster.program("postgres")))
            .args(["-c", "log_min_duration_statement=0"])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let server = Server { process, folder, cluster };
        wait_for("the server's socket", Duration::from_secs(60), || {
            server.folder.0.join(".s.PGSQL.5432").exists().then_some(())
        });
        wait_for("the server's answer", Duration::from_secs(60), || server.ask("select 1").then_some(()));
        server
    }

    fn binary(&self) -> PathBuf {
        self.cluster.program("postgres")
    }

    fn log(&self) -> PathBuf {
        self.folder.0.join("log")
    }

    /// Sends statements over one connection, each as a query of its own.
    fn ask(&self, statements: &str) -> bool {
        let psql = Command::new(program("psql").expect("the package"));
        let mut psql = self.cluster.client(psql, self.folder.write("statements.sql", statements).as_ref());
        psql.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let id = nix::unistd::Pid::from_raw(self.process.id().cast_signed());
        let _ = nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGINT);
        let _ = self.process.wait();
    }
}

/// Seconds of each statement, as the server's log says from a byte on.
fn logged(log: &Path, from: usize) -> Vec<f64> {
    let text = fs::read_to_string(log).unwrap();
    let lines = text[from..].lines().filter_map(|line| line.split_once("duration: ")?.1.split_once(" ms"));
    lines.map(|(ms, _)| ms.parse::<f64>().unwrap() / 1e3).collect()
}

#[test]
#[ignore = "needs root"]
fn root_queries_of_a_postgresql_server_take_as_long_as_its_log_says() {
    if !witnesses("root_queries_of_a_postgresql_server_take_as_long_as_its_log_says", &["postgres", "initdb", "psql"]) {
        return;
    }
    // Before the server runs: it is found by its path's pattern, and by its name once it runs.
    let agent = Setup { arguments: &["--enable", "postgresql"], ..Setup::default() }.start();
    let server = Server::start();
    wait_for("the probes to be attached", Duration::from_secs(30), || {
        attached(&agent, "postgresql", &server.binary()).then_some(())
    });
    let histogram = |name: &str| agent.scrape().histogram(name, &[]);
    let (before, from) =
        (histogram("kstrobe_postgresql_query_duration_seconds"), fs::read(server.log()).unwrap().len());
    // The server waits for its disk as it starts.
    let waited = histogram("kstrobe_postgresql_query_wait_seconds");
    let mut statements = String::new();
    for _ in 0..40 {
        statements += "select 1;\nselect count(*) from generate_series(1, 20000);\n";
    }
    for _ in 0..10 {
        statements += "select pg_sleep(0.03);\n";
    }
    assert!(server.ask(&statements));
    let theirs = logged(&server.log(), from);
    assert_eq!(theirs.len(), 90);
    let ours = histogram("kstrobe_postgresql_query_duration_seconds").since(&before);
    assert_eq!(ours.count, 90.0);
    let sum: f64 = theirs.iter().sum();
    // The log's time begins a little earlier and ends before the answer is sent.
    assert!((ours.sum / sum - 1.0).abs() < 0.1, "{} s, the log says {sum} s", ours.sum);
    for le in [1e-3, 1e-2, 2.5e-2] {
        let at_most = |seconds: f64| theirs.iter().filter(|s| **s <= seconds).count() as f64;
        let (low, high) = (at_most(le * 0.7) - 2.0, at_most(le * 1.3) + 2.0);
        assert!((low..=high).contains(&ours.at_most(le)), "le={le}: {ours:?}, the log says {theirs:?}");
    }
    let wait = histogram("kstrobe_postgresql_query_wait_seconds").since(&waited);
    assert!((0.3..ours.sum).contains(&wait.sum), "10 sleeps of 30 ms: {wait:?}");
    assert!(histogram("kstrobe_postgresql_plan_duration_seconds").count >= 90.0);
    agent.stop();
}

/// Whether a probe says that it hooks a file.
fn attached(agent: &Agent, probe: &str, file: &Path) -> bool {
    let Some((200, text)) = agent.get("/api/v1/probes") else { return false };
    let all: serde_json::Value = serde_json::from_str(&text).unwrap();
    let probe = all["probes"].as_array().unwrap().iter().find(|p| p["name"] == probe).expect("the probe");
    let files = probe["files"].as_array().into_iter().flatten().filter_map(|f| f.as_str()?.strip_suffix(": 1 place"));
    // It may be known by a link.
    files.into_iter().any(|f| fs::canonicalize(f).is_ok_and(|f| f == file))
}

/// What [`mark`] is called with, and how often in a run.
const MARKS: (u64, u64) = (7, 300);
/// Names the file that a program of marks waits for.
const GO: &str = "KSTROBE_TEST_GO";

#[inline(never)]
fn mark(value: u64) -> u64 {
    std::hint::black_box(value) + 1
}

fn make_marks() {
    (0..MARKS.1).for_each(|_| assert_eq!(std::hint::black_box(mark(std::hint::black_box(MARKS.0))), MARKS.0 + 1));
}

/// A program of these tests, under whatever name it has: waits until it may, and calls.
#[test]
#[ignore = "other tests run it"]
fn a_program_of_marks() {
    let Some(go) = std::env::var_os(GO) else { return };
    wait_for("the word to go", Duration::from_secs(300), || Path::new(&go).exists().then_some(()));
    make_marks();
}

fn marks(program: &Path, go: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(["a_program_of_marks", "--exact", "--ignored", "--test-threads=1"]).env(GO, go);
    command
}

#[test]
#[ignore = "needs root"]
fn root_functions_of_programs_are_found_by_path_pattern_name_and_process_also_in_containers_and_later() {
    let folder = Folder::new();
    let at = |name: &str| folder.0.join(name);
    let (here, own) = (at("kst-here"), std::env::current_exe().unwrap());
    fs::copy(&own, &here).unwrap();
    fs::create_dir(at("inside")).unwrap();
    let probe = |name: &str, hook: String, value: &str| {
        let text = format!(
            "probe: {name}\nsummary: S.\nat: {hook}\nmetrics:\n  {name}_calls_total: {{ type: counter }}\n  \
             {name}_values_total: {{ type: counter, value: {value} }}\n"
        );
        (name.to_owned(), text)
    };
    let hook = |kind: &str, file: &Path, symbol: &str| format!("\"{kind}:{}:{symbol}\"", file.display());
    let of_process =
        |file: &Path, pid: u32| format!("{{ hook: {}, pid: {pid} }}", hook("uprobe", file, "root_user::mark"));
    let probes = [
        probe("by_name", hook("uprobe", &here, "root_user::mark"), "arg0"),
        probe("by_return", hook("uretprobe", &here, "root_user::mark"), "retval"),
        probe("by_pattern", hook("uprobe", &here, "*root_user*4mark17h*"), "arg0"),
        probe("by_path_pattern", hook("uprobe", &at("kst-he?e"), "root_user::mark"), "arg0"),
        probe("by_process", of_process(&own, std::process::id()), "arg0"),
        probe("of_later", hook("uprobe", &at("kst-later"), "root_user::mark"), "arg0"),
        probe("of_inside", hook("uprobe", &at("inside/kst-inside"), "root_user::mark"), "arg0"),
    ];
    let probes: Vec<(&str, &str)> = probes.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    let agent = Setup { probes: &probes, ..Setup::default() }.start();
    let counts = |name: &str| {
        let metrics = agent.scrape();
        let of = |what: &str| metrics.sum(&format!("kstrobe_{name}_{what}_total"), &[]) as u64;
        (of("calls"), of("values"))
    };
    let is_there = |probe: &str| {
        let (_, body) = agent.get("/api/v1/probes").unwrap();
        let status: serde_json::Value = serde_json::from_str(&body).unwrap();
        let mut all = status["probes"].as_array().unwrap().iter();
        let found = all.find(|status| status["name"] == probe).unwrap_or_else(|| panic!("no {probe} in {body}"));
        (found["attached"] == true).then_some(())
    };
    let limit = Duration::from_secs(if emulated() { 200 } else { 40 });
    for name in ["by_name", "by_return", "by_pattern", "by_path_pattern", "by_process"] {
        wait_for(&format!("{name} to be attached"), limit, || is_there(name));
    }
    let go = folder.write("go", "");
    output(&mut marks(&here, &go));
    let all = (MARKS.1, MARKS.0 * MARKS.1);
    assert_eq!(counts("by_name"), all);
    assert_eq!(counts("by_return"), (MARKS.1, (MARKS.0 + 1) * MARKS.1));
    assert_eq!(counts("by_pattern"), all);
    assert_eq!(counts("by_path_pattern"), all);
    // The same program in another process is none of this one's.
    output(&mut marks(&own, &go));
    assert_eq!(counts("by_process"), (0, 0));
    make_marks();
    assert_eq!(counts("by_process"), all);

    // A file that comes later, and one that only a container's mounts have.
    fs::copy(&own, at("kst-later")).unwrap();
    let later = at("go-later");
    let script = format!(
        "mount -t tmpfs none {0} && cp {1} {0}/kst-inside && exec {0}/kst-inside a_program_of_marks --exact --ignored",
        at("inside").display(),
        own.display()
    );
    let mut inside = Command::new("unshare");
    inside.args(["--mount", "--propagation", "private", "sh", "-c", &script]).env(GO, &later);
    let mut started = [marks(&at("kst-later"), &later), inside].map(|mut command| command.spawn().unwrap());
    for name in ["of_later", "of_inside"] {
        wait_for(&format!("{name} to be attached"), limit, || is_there(name));
    }
    assert_eq!((counts("of_later"), counts("of_inside")), ((0, 0), (0, 0)));
    fs::write(&later, "").unwrap();
    started.iter_mut().for_each(|child| assert!(child.wait().unwrap().success()));
    assert_eq!((counts("of_later"), counts("of_inside")), (all, all));
    assert!(!at("inside/kst-inside").exists(), "it is in the container alone");
}
