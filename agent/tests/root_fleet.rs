//! A fleet capture: three agents in network namespaces of their own, reached through an API server as kubectl reaches pods.
//!
//! The three are on one kernel. So each of their recordings must have the same events at the same times by the wall clock, which no
//! three machines could tell so exactly.

mod support;

use kstrobe_fake_api::FakeApi;
use kstrobe_ftrace::dat;
use kstrobe_ftrace::trace::Trace;
use kstrobe_testing::{http, not_asked_for};
use nix::sched::{CloneFlags, setns};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use support::netns::Netns;
use support::tmux::Tmux;
use support::{Done, Folder, done, output, wait_for, witnesses};

const NODES: [&str; 3] = ["n1", "n2", "n3"];
const PORT: u16 = 9779;
const TOKEN: &str = "a-token-of-the-fleet-0123456789";
const MS: i64 = 1_000_000;

/// Each end of the programs that [`Cluster::mark`] runs, as an event.
const ENDS: &str = "\
probe: ends
summary: Ends of the test's programs.
at: syscall:exit_group:enter
where: comm == \"a-mark-of-the-t\"
metrics: { ends_total: { type: counter } }
slow: { when: pid != 0, max_per_second: 1000, fields: { comm: comm } }
";

/// An agent in a namespace where it has the port to itself.
struct Agent {
    netns: Netns,
    child: Child,
    log: PathBuf,
}

impl Agent {
    fn start(node: &str, folder: &Folder) -> Agent {
        let netns = Netns::new(node);
        let own = folder.0.join(node);
        std::fs::create_dir_all(&own).unwrap();
        let (dir, token) = (own.join("captures"), folder.0.join("token"));
        let config = format!(
            "probes: {{ disable: [syscalls, tcp_backlog, tcp_retransmits] }}\nlimits: {{ budget_percent: 0 }}\n\
             captures: {{ dir: {}, token_file: {} }}\n",
            dir.display(),
            token.display()
        );
        let file = own.join("kstrobe.yaml");
        std::fs::write(&file, config).unwrap();
        let probes = own.join("probes");
        std::fs::create_dir(&probes).unwrap();
        std::fs::write(probes.join("ends.yaml"), ENDS).unwrap();
        let log = own.join("log");
        let said = std::fs::File::create(&log).unwrap();
        // `ip netns exec` would hide the host's sysfs as well.
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", netns.name)).arg(env!("CARGO_BIN_EXE_kstrobe"));
        command.args(["run", "--web.listen-address", &format!("0.0.0.0:{PORT}"), "--config"]).arg(file);
        command.arg("--probes").arg(probes);
        let child = command.stdin(Stdio::null()).stdout(said.try_clone().unwrap()).stderr(said).spawn().unwrap();
        Agent { netns, child, log }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("log of {}:\n{}", self.netns.name, std::fs::read_to_string(&self.log).unwrap_or_default());
        }
    }
}

/// A cluster: an API server, an agent on each node, a workload on each.
struct Cluster {
    api: FakeApi,
    agents: BTreeMap<&'static str, Agent>,
    folder: Folder,
}

impl Cluster {
    fn start() -> Cluster {
        let folder = Folder::new();
        folder.write("token", &format!("{TOKEN}\n"));
        symlink(env!("CARGO_BIN_EXE_kstrobe"), folder.0.join("kubectl-kstrobe")).unwrap();
        let api = FakeApi::start();
        folder.write("kubeconfig", &api.kubeconfig());
        let agents: BTreeMap<_, _> = NODES.map(|node| (node, Agent::start(node, &folder))).into();
        for node in NODES {
            let name = format!("kstrobe-{node}");
            api.put(pod(
                "kstrobe",
                &name,
                node,
                &json!({"app.kubernetes.io/part-of": "kstrobe", "app.kubernetes.io/component": "agent"}),
            ));
            api.put(pod("shop", &format!("mysql-{node}"), node, &json!({"app": "mysql"})));
            let place = format!("/run/netns/{}", agents[node].netns.name);
            // The thread that connects is its own: the namespace that it enters is nobody else's.
            let connect = move || {
                let entered = std::fs::File::open(&place)?;
                std::thread::spawn(move || {
                    setns(entered, CloneFlags::CLONE_NEWNET)?;
                    TcpStream::connect_timeout(&([127, 0, 0, 1], PORT).into(), Duration::from_secs(2))
                })
                .join()
                .expect("connecting does not panic")
            };
            api.backend("kstrobe", &name, PORT, Arc::new(connect));
        }
        let cluster = Cluster { api, agents, folder };
        wait_for("the agents", Duration::from_secs(120), || {
            let probes = cluster.kubectl(&["probes", "-o", "json"]);
            (probes.code == Some(0)).then_some(())
        });
        cluster
    }

    fn command(&self, arguments: &[&str]) -> Command {
        self.command_with(&self.folder.0.join("token"), arguments)
    }

    fn command_with(&self, token: &Path, arguments: &[&str]) -> Command {
        let (verb, rest) = arguments.split_first().unwrap();
        let mut command = Command::new(self.folder.0.join("kubectl-kstrobe"));
        command.arg(verb).arg("--kubeconfig").arg(self.folder.0.join("kubeconfig"));
        command.arg("--token-file").arg(token).args(rest).current_dir(&self.folder.0);
        command
    }

    /// Runs the plugin to its end.
    fn kubectl(&self, arguments: &[&str]) -> Done {
        done(&mut self.command(arguments))
    }

    /// What an agent says itself.
    fn own(&self, node: &str, path: &str) -> Value {
        let entered = std::fs::File::open(format!("/run/netns/{}", self.agents[node].netns.name)).unwrap();
        let path = path.to_owned();
        let asking = std::thread::spawn(move || {
            setns(entered, CloneFlags::CLONE_NEWNET).unwrap();
            http::ask(([127, 0, 0, 1], PORT).into(), "GET", &path, &[("X-Kstrobe-Token", TOKEN)], "").unwrap().json()
        });
        asking.join().unwrap()
    }

    /// The merged figures of a metric, once there are any.
    fn top(&self, metric: &str) -> Option<Value> {
        let done = self.kubectl(&["top", metric, "-o", "json"]);
        (done.code == Some(0)).then(|| serde_json::from_str(&done.out).unwrap())
    }

    /// Captures while programs of a name that nobody else has are run; `also` is done once it records.
    fn capture(&mut self, out: &Path, arguments: &[&str], also: impl FnOnce(&mut Cluster)) -> (Done, Vec<i64>) {
        let said = self.folder.0.join("said");
        let mut command = self.command(&["capture", "-l", "app=mysql", "--whole-nodes", "--max-bytes", "16MiB"]);
        command.args(arguments).arg("-o").arg(out);
        command.stderr(std::fs::File::create(&said).unwrap()).stdout(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut also = Some(also);
        let mut marks = Vec::new();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            marks.push(self.mark());
            let now = std::fs::read_to_string(&said).unwrap();
            if now.matches("  recording").count() == NODES.len()
                && let Some(also) = also.take()
            {
                also(self);
            }
            std::thread::sleep(Duration::from_millis(100));
        };
        let err = std::fs::read_to_string(said).unwrap();
        (Done { code: status.code(), out: String::new(), err }, marks)
    }

    /// Runs a program that leaves a trace, and says when it was begun.
    fn mark(&self) -> i64 {
        let mut program = self.marking();
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as i64;
        output(&mut program);
        at
    }

    /// The program that does.
    fn marking(&self) -> Command {
        let program = self.folder.0.join("a-mark-of-the-test");
        if !program.exists() {
            std::fs::copy("/bin/true", &program).unwrap();
        }
        let mut command = Command::new(program);
        // Where it is busybox, that goes by this name.
        command.arg0("true");
        command
    }
}

fn pod(namespace: &str, name: &str, node: &str, labels: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "labels": labels, "creationTimestamp": "2026-11-21T10:00:00Z"},
        "spec": {"nodeName": node, "containers": []},
        "status": {"phase": "Running", "podIP": "10.0.0.1", "hostIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]},
    })
}

fn unpacked(tar: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut archive = tar::Archive::new(std::fs::File::open(tar).unwrap());
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let mut contents = Vec::new();
        entry.read_to_end(&mut contents).unwrap();
        files.insert(entry.path().unwrap().display().to_string(), contents);
    }
    files
}

fn manifest(files: &BTreeMap<String, Vec<u8>>) -> Value {
    serde_json::from_slice(&files[".kstrobe/manifest.json"]).unwrap()
}

/// When the test's programs were begun by the wall clock, as a recording has it.
fn marks(trace: &Trace) -> Vec<i64> {
    let offset = trace.about.epoch_offset_ns.expect("its clock against the wall clock");
    let mark = |event: &kstrobe_ftrace::trace::Event<'_>| {
        event.is("sched", "sched_process_exec")
            && matches!(event.value("filename"), Some(kstrobe_ftrace::value::Value::Text(name)) if name.ends_with(b"a-mark-of-the-test"))
    };
    trace.events().filter(mark).map(|event| event.time as i64 + offset).collect()
}

/// Each has the marks that the others have, at the same times.
fn one_timeline(all: &BTreeMap<String, Vec<i64>>, made: &[i64]) {
    let (first, expected) = all.first_key_value().unwrap();
    assert!(expected.len() >= 5, "{first} has {} marks of {}", expected.len(), made.len());
    for (name, found) in all {
        // The first and the last one may be a moment before or after a recording; an emulated CPU may stand still between two of
        // them that write the same event.
        let pairs: Vec<i64> = expected
            .iter()
            .map(|mark| found.iter().map(|other| (other - mark).abs()).min().unwrap_or(i64::MAX))
            .collect();
        let far = pairs.iter().filter(|apart| **apart > MS).count();
        let may_be_far = if support::emulated() { 2 + pairs.len() / 5 } else { 2 };
        assert!(far <= may_be_far, "{name} against {first}: {pairs:?} ns apart");
        assert!(found.len().abs_diff(expected.len()) <= 2, "{name} has {}, {first} {}", found.len(), expected.len());
    }
    for mark in expected {
        // From the moment before the program was begun to its exec: a busy machine takes its time.
        let near = made.iter().any(|at| (0..2000 * MS).contains(&(mark - at)));
        assert!(near, "nothing was begun within two seconds before {mark}");
    }
}

/// Perfetto's own reader, where its Python package is.
fn read_by_perfetto(merged: &[u8], folder: &Folder) -> Option<Vec<Value>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let own = root.join("target/perfetto/bin/python");
    let python = std::env::var_os("KSTROBE_PYTHON").map(PathBuf::from).or_else(|| own.exists().then_some(own));
    let Some(python) = python else {
        not_asked_for("root_fleet", "no Python with the package perfetto (KSTROBE_PYTHON)");
        return None;
    };
    let file = folder.0.join("merged.pftrace");
    std::fs::write(&file, merged).unwrap();
    let said = output(Command::new(python).arg(root.join("ftrace/tests/oracles/read_machines.py")).arg(file));
    Some(said.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

#[test]
#[ignore = "needs root"]
fn root_fleet_three_nodes_become_one_file() {
    if !witnesses("root_fleet_three_nodes_become_one_file", &["trace-cmd", "ip", "nsenter"]) {
        return;
    }
    let mut cluster = Cluster::start();
    let out = cluster.folder.0.join("out.tar");
    // An emulated processor spends the first seconds with switching events on.
    let duration = if support::emulated() { "10s" } else { "3s" };
    let events = ["--probe", "softirq", "-e", "sched:sched_process_exec", "--duration", duration];
    let (ended, made) = cluster.capture(&out, &events, |_| {});
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let files = unpacked(&out);
    let manifest = manifest(&files);
    println!("{}", ended.err);
    assert_eq!((&manifest["downloaded"], &manifest["failed"]), (&json!(3), &json!(0)), "{manifest:#}");
    let started = manifest["started_unix_ns"].as_i64().unwrap();
    // An emulated processor takes seconds to switch events on for three recorders at once.
    let late = if support::emulated() { 10_000 * MS } else { 1000 * MS };
    for node in manifest["nodes"].as_array().unwrap() {
        let name = node["node"].as_str().unwrap();
        assert_eq!(node["pods"], json!([format!("shop/mysql-{name}")]));
        // They have one clock, whatever the way to them takes.
        assert_eq!(node["corrected_ns"], 0, "{node:#}");
        let first = node["events_unix_ns"][0].as_i64().unwrap();
        assert!((-MS..late).contains(&(first - started)), "{name} began {} ns after the common time", first - started);
        let clock = &node["capture"]["clock"];
        let moved = clock["epoch_offset_end_ns"].as_i64().unwrap() - clock["epoch_offset_start_ns"].as_i64().unwrap();
        assert!(clock["name"] == "mono" && moved.abs() < 100 * MS, "{clock}");
    }
    let dat = |node: &str| dat::read(&files[&format!(".kstrobe/nodes/{node}.dat")]).unwrap().trace;
    let recorded: BTreeMap<String, Vec<i64>> = NODES.map(|node| (node.to_owned(), marks(&dat(node)))).into();
    one_timeline(&recorded, &made);
    let softirqs = dat("n1").events().filter(|event| event.is("irq", "softirq_entry")).count();
    assert!(softirqs > 0, "what the probe sees is recorded");

    // trace-cmd shows the three as one.
    for (path, contents) in &files {
        let file = cluster.folder.0.join("unpacked").join(path);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, contents).unwrap();
    }
    let mut words = manifest["trace_cmd"].as_str().unwrap().split(' ');
    let mut report = Command::new(words.next().unwrap());
    let report = output(report.args(words).current_dir(cluster.folder.0.join("unpacked")));
    let times: Vec<f64> =
        report.lines().filter_map(|line| line.split(':').nth(1)?.rsplit(' ').next()?.parse().ok()).collect();
    let named: BTreeSet<&str> = report.lines().filter_map(|line| line.split(':').next()).collect();
    assert!(named.len() >= 3 && times.len() > 100, "{named:?} {}", times.len());
    assert!(times.is_sorted(), "trace-cmd shows all by time");
    let behind = times[0] - started as f64 / 1e9;
    assert!(behind.abs() < 1.0 + late as f64 / 1e9, "by the wall clock: {} is {behind} s after the start", times[0]);

    if let Some(machines) = read_by_perfetto(&files["fleet.pftrace"], &cluster.folder) {
        let names: Vec<_> = machines.iter().map(|machine| machine["name"].as_str().unwrap()).collect();
        assert_eq!(names, NODES);
        let marks = |machine: &Value| -> Vec<i64> {
            let wall = machine["wall"].as_i64().unwrap() - machine["boot"].as_i64().unwrap();
            let events = machine["events"].as_array().unwrap().iter();
            let marks = events.filter(|event| event[3] == "sched_process_exec");
            // The name of the program is not shown here: those that trace.dat has are among them.
            marks.map(|event| event[0].as_i64().unwrap() + wall).collect()
        };
        for machine in &machines {
            let name = machine["name"].as_str().unwrap();
            let found = marks(machine);
            assert!(
                recorded[name].iter().all(|mark| found.contains(mark)),
                "{name}: another time than in its trace.dat"
            );
            assert!(machine["events"].as_array().unwrap().is_sorted_by_key(|event| event[0].as_i64()));
        }
    }
    // Nothing is left on the nodes, nor beside the file.
    let left: Vec<_> = std::fs::read_dir(&cluster.folder.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().starts_with(".out.tar")), "{left:?}");
    for node in NODES {
        let kept = std::fs::read_dir(cluster.folder.0.join(node).join("captures")).unwrap();
        let kept: Vec<_> = kept.map(|entry| entry.unwrap().file_name()).filter(|name| name != ".lock").collect();
        assert!(kept.is_empty(), "{node}: {kept:?}");
    }

    // Tables over all nodes, by the same way.
    let top = cluster.kubectl(&["top", "--once"]);
    assert_eq!(top.code, Some(0), "{}", top.err);
    assert!(top.out.contains("softirq_duration_seconds") && top.out.starts_with("kstrobe  3 nodes  "), "{}", top.out);
    let probes = cluster.kubectl(&["probes"]);
    assert!(probes.out.lines().any(|line| line.starts_with("softirq ") && line.contains("3/3")), "{}", probes.out);
    // All three see the one kernel: the last program ended on each of them.
    let pid = cluster.marking().spawn().map(|mut child| (child.id(), child.wait().unwrap())).unwrap().0;
    let ends = wait_for("the program's end on all nodes", Duration::from_secs(20), || {
        let events = cluster.kubectl(&["events", "--probe", "ends", "-o", "json"]);
        let events: Value = serde_json::from_str(&events.out).unwrap();
        assert_eq!(events["failed"], json!([]));
        let all = events["events"].as_array().unwrap();
        assert!(all.is_sorted_by_key(|event| event["time"].as_str().unwrap().to_owned()));
        let ends: Vec<Value> = all.iter().filter(|event| event["pid"] == pid).cloned().collect();
        (ends.len() == NODES.len()).then_some(ends)
    });
    assert_eq!(ends.iter().filter_map(|end| end["node"].as_str()).collect::<BTreeSet<_>>(), NODES.into());
    for end in &ends {
        assert_eq!((&end["probe"], &end["fields"]), (&json!("ends"), &json!({"comm": "a-mark-of-the-t"})));
    }
    let table = cluster.kubectl(&["events", "--probe", "ends"]).out;
    let row = |line: &str| line.contains(" ends ") && line.ends_with("comm=a-mark-of-the-t");
    assert!(
        table.starts_with("TIME") && table.lines().skip(1).all(row) && table.lines().count() > NODES.len(),
        "{table}"
    );
    // The token is the agents'; the API server takes `Authorization` for itself.
    assert!(cluster.api.count("create pods/proxy") >= 3, "{:?}", cluster.api.asked().last());
    let file = cluster.folder.write("wrong", "a-token-that-nobody-asked-for");
    let wrong = done(&mut cluster.command_with(&file, &["capture", "--all-nodes", "-e", "sched:sched_switch"]));
    assert_eq!(wrong.code, Some(1), "{}", wrong.err);
    assert!(wrong.err.contains("3 of 3 nodes failed") && wrong.err.contains("the token is wrong"), "{}", wrong.err);
    // Who may see one namespace alone is told how to ask for it.
    cluster.api.forbid("list pods");
    let forbidden = cluster.kubectl(&["top"]);
    assert!(forbidden.code == Some(1) && forbidden.err.contains("name it: --agent-namespace"), "{}", forbidden.err);
}

#[test]
#[ignore = "needs root"]
fn root_fleet_a_node_that_dies_is_told_and_spoils_nothing() {
    if !witnesses("root_fleet_a_node_that_dies_is_told_and_spoils_nothing", &["ip", "nsenter"]) {
        return;
    }
    let mut cluster = Cluster::start();
    let out = cluster.folder.0.join("out.tar");
    let events = ["--probe", "recvfrom", "-e", "sched:sched_process_exec", "--duration", "4s"];
    let (ended, made) = cluster.capture(&out, &events, |cluster| {
        let agent = cluster.agents.get_mut("n2").unwrap();
        agent.child.kill().unwrap();
        agent.child.wait().unwrap();
    });
    println!("{}", ended.err);
    assert_eq!(ended.code, Some(1), "{}", ended.err);
    assert!(ended.err.contains("1 of 3 nodes failed:"), "{}", ended.err);
    let line = ended.err.lines().find(|line| line.starts_with("  n2: ")).expect("the node that failed");
    assert!(line.contains("stopped answering") && line.to_lowercase().contains("connection refused"), "{line}");
    let files = unpacked(&out);
    let manifest = manifest(&files);
    assert_eq!((&manifest["downloaded"], &manifest["failed"]), (&json!(2), &json!(1)));
    let status: Vec<_> = manifest["nodes"].as_array().unwrap().iter().map(|node| &node["status"]).collect();
    assert_eq!(status, ["downloaded", "failed", "downloaded"]);
    assert_eq!(manifest["nodes"][1]["failed_at"], "recording");
    let dats: BTreeMap<String, Vec<i64>> = ["n1", "n3"]
        .map(|node| {
            let trace = dat::read(&files[&format!(".kstrobe/nodes/{node}.dat")]).unwrap().trace;
            assert!(trace.events().any(|event| event.is("syscalls", "sys_enter_recvfrom")), "{node}");
            (node.to_owned(), marks(&trace))
        })
        .into();
    one_timeline(&dats, &made);
    if let Some(machines) = read_by_perfetto(&files["fleet.pftrace"], &cluster.folder) {
        let names: Vec<_> = machines.iter().map(|machine| machine["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["n1", "n3"]);
    }
    // What the killed agent left in tracefs is put right by the next recorder.
    let file = cluster.folder.0.join("swept.dat");
    let sweep = ["capture", "-e", "sched:sched_process_exec", "--duration", "10ms", "-o", file.to_str().unwrap()];
    let swept = done(&mut support::agent::command(&sweep));
    assert_eq!(swept.code, Some(0), "{}", swept.err);
    // A node without an agent is one that fails.
    let missing = cluster.kubectl(&["probes", "--node", "n1,n9"]);
    assert_eq!(missing.code, Some(1));
    assert!(missing.err.contains("n9: no agent runs there") && missing.out.contains("softirq"), "{}", missing.err);
}

/// Counts of each label set by column and bucket. The newest column may have gained seconds since, and is left out.
fn counts(query: &Value) -> BTreeMap<String, BTreeMap<(usize, String), u64>> {
    let number = |name: &str| query[name].as_u64().unwrap();
    let columns = usize::try_from((number("to") - number("from")) / number("step")).unwrap() - 1;
    let group = |group: &Value| {
        let mut counts = BTreeMap::new();
        for (column, heat) in group["heat"].as_array().unwrap().iter().take(columns).enumerate() {
            for pair in heat.as_array().unwrap().chunks(2) {
                let bounds = query["bounds"][pair[0].as_u64().unwrap() as usize].to_string();
                *counts.entry((column, bounds)).or_default() += pair[1].as_u64().unwrap();
            }
        }
        (group["labels"].to_string(), counts)
    };
    query["groups"].as_array().unwrap().iter().map(group).filter(|(_, counts)| !counts.is_empty()).collect()
}

#[test]
#[ignore = "needs root"]
fn root_fleet_top_adds_the_figures_of_all_nodes() {
    const METRIC: &str = "softirq_duration_seconds";
    const MARKS: usize = 7;
    if !witnesses("root_fleet_top_adds_the_figures_of_all_nodes", &["ip", "nsenter"]) {
        return;
    }
    let mut cluster = Cluster::start();
    (0..MARKS).for_each(|_| _ = cluster.mark());
    // All three see the one kernel. A metric without labels has a row for each node.
    let rows = wait_for("the ends on all nodes", Duration::from_secs(60), || {
        let query = &cluster.top("ends_total")?["query"];
        let count =
            |group: &Value| Some((group["labels"]["node"].as_str()?.to_owned(), group["total"]["count"].as_f64()?));
        let rows: BTreeMap<_, _> = query["groups"].as_array()?.iter().filter_map(count).collect();
        (rows.len() == NODES.len() && rows.values().all(|count| *count >= MARKS as f64)).then_some(rows)
    });
    assert_eq!(rows, NODES.map(|node| (node.to_owned(), MARKS as f64)).into());

    let merged = wait_for("two columns", Duration::from_secs(60), || {
        let merged = cluster.top(METRIC)?;
        (counts(&merged["query"]).values().flatten().count() > 0).then_some(merged)
    });
    assert_eq!((&merged["nodes"], &merged["failed"]), (&json!(NODES), &json!([])));
    let query = &merged["query"];
    let labels: Vec<&String> = query["groups"][0]["labels"].as_object().unwrap().keys().collect();
    let [label] = labels[..] else { panic!("{labels:?}") };
    let mut sums = BTreeMap::new();
    for node in NODES {
        let (from, to, step) = (&query["from"], &query["to"], &query["step"]);
        let own = format!("/api/v1/query?metric={METRIC}&from={from}&to={to}&step={step}&by={label}&top=1000");
        for (labels, of_node) in counts(&cluster.own(node, &own)) {
            let sum: &mut BTreeMap<_, u64> = sums.entry(labels).or_default();
            of_node.into_iter().for_each(|(at, count)| *sum.entry(at).or_default() += count);
        }
    }
    assert_eq!(counts(query), sums);

    let cpus: u64 =
        NODES.iter().map(|node| cluster.own(node, "/api/v1/probes")["node"]["cpus"].as_u64().unwrap()).sum();
    let all: Value = serde_json::from_str(&cluster.kubectl(&["top", "-o", "json"]).out).unwrap();
    assert_eq!((&all["node"]["cpus"], &all["node"]["name"]), (&json!(cpus), &json!("3 nodes")));
    let softirqs =
        all["history"]["metrics"].as_array().unwrap().iter().find(|one| one["metric"] == format!("kstrobe_{METRIC}"));
    let softirqs = softirqs.unwrap();
    assert_eq!(softirqs["labels"], json!([label, "node"]));
    assert!(
        softirqs["p50"].as_f64().unwrap() > 0.0 && softirqs["p99"].as_f64() >= softirqs["p50"].as_f64(),
        "{softirqs}"
    );

    let screen = (support::lab().is_none()).then(|| {
        let command = cluster.command(&["top"]);
        let words: Vec<String> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        let program = cluster.folder.0.join("kubectl-kstrobe");
        let screen = Tmux::start("fleet", &["NO_COLOR=1"], &format!("{} {}", program.display(), words.join(" ")));
        screen.until("all nodes", |screen| screen.starts_with("kstrobe  3 nodes  ") && screen.contains("ends_total"));
        screen.press(&["/", "softirq_dur", "Enter", "Enter"]);
        screen.until("rows of all nodes", |screen| screen.contains("TIMER") || screen.to_lowercase().contains("rcu"));
        // To the label of the node, and to one of them.
        screen.press(&["b"]);
        let nodes =
            screen.until("rows by node", |screen| NODES.iter().all(|node| screen.contains(&format!("\n{node} "))));
        assert!(nodes.contains("\nNODE "), "{nodes}");
        screen.press(&["Enter"]);
        screen.until("one node", |screen| screen.contains("{node=\"n"));
        screen.press(&["BSpace", "BSpace", "e"]);
        let events = screen.until("events", |screen| screen.contains("a-mark-of-the-t"));
        assert!(events.contains("NODE") && NODES.iter().any(|node| events.contains(node)), "{events}");
        screen.press(&["BSpace"]);
        screen
    });
    let agent = cluster.agents.get_mut("n2").unwrap();
    agent.child.kill().unwrap();
    agent.child.wait().unwrap();
    if let Some(screen) = screen {
        let rest = screen.until("two of three", |screen| screen.contains("2 of 3 nodes") && screen.contains("n2: "));
        assert!(rest.contains("softirq_duration_seconds"), "{rest}");
        screen.press(&["q"]);
        screen.until("the end", |screen| screen.contains("ended"));
    } else {
        not_asked_for("root_fleet_top_adds_the_figures_of_all_nodes", "the guests have no tmux");
    }
    let once = cluster.kubectl(&["top", "--once"]);
    assert_eq!(once.code, Some(1));
    assert!(once.out.starts_with("kstrobe  2 of 3 nodes  ") && once.out.contains(METRIC), "{}", once.out);
    assert!(once.err.starts_with("n2: ") && once.err.to_lowercase().contains("connection refused"), "{}", once.err);
}
