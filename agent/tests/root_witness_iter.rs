//! Iterators against procfs: the sockets of a network namespace of the test's own, and tasks of known number and name.

mod support;

use std::collections::BTreeMap;
use std::io::Read;
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Barrier};
use std::time::Duration;
use support::agent::{Agent, Setup};
use support::metrics::Metrics;
use support::netns::Netns;
use support::{lab, wait_for};

/// What is read is at most a second old; the rest is for a slow machine.
const SOON: Duration = Duration::from_secs(20);

/// Lines of a table in procfs of this thread's network namespace, without its heading.
fn table(name: &str) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap();
    text.lines().skip(1).map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
}

/// Sockets by state as the kernel's own tables have them, in hexadecimal.
fn witnessed(name: &str) -> BTreeMap<String, usize> {
    let mut states = BTreeMap::new();
    table(name).into_iter().for_each(|row| *states.entry(row[3].clone()).or_default() += 1);
    states
}

/// Connections with both ends here: `open` of them stay, of `half` one end has said that it is done.
struct Sockets {
    listeners: Vec<TcpListener>,
    _ends: Vec<TcpStream>,
    datagrams: Vec<UdpSocket>,
    _local: Vec<(UnixDatagram, UnixDatagram)>,
}

fn sockets(listeners: usize, open: usize, half: usize, datagrams: usize) -> Sockets {
    let mut made = Sockets { listeners: vec![], _ends: vec![], datagrams: vec![], _local: vec![] };
    made.listeners.extend((0..listeners).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()));
    made.listeners.extend((0..2).map(|_| TcpListener::bind("[::1]:0").unwrap()));
    let address = made.listeners[0].local_addr().unwrap();
    for i in 0..open + half {
        let client = TcpStream::connect(address).unwrap();
        let mut server = made.listeners[0].accept().unwrap().0;
        if i >= open {
            client.shutdown(Shutdown::Write).unwrap();
            assert_eq!(server.read(&mut [0]).unwrap(), 0);
        }
        made._ends.extend([client, server]);
    }
    made.datagrams.extend((0..datagrams).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()));
    for n in 1..40 {
        made.datagrams[0].send_to(&vec![0; 100 * n], made.datagrams[1].local_addr().unwrap()).unwrap();
    }
    made._local.extend((0..9).map(|_| UnixDatagram::pair().unwrap()));
    made
}

const UNIX: &str = "
probe: unix_sockets
summary: Local sockets by type.
at: iter:unix
metrics:
  unix_sockets: { type: gauge, value: 1, labels: { type: 'map(u32(args.sk.sk_type), 1 => \"stream\", 2 => \"dgram\", _ => \"other_type\")' } }
";

fn sockets_are_counted() {
    let agent = Setup {
        probes: &[("unix_sockets", UNIX)],
        arguments: &["--enable", "tcp_sockets,udp_sockets"],
        ..Setup::default()
    };
    let agent = agent.start();
    let empty = agent.scrape();
    assert!(!empty.has("kstrobe_tcp_sockets", &[("state", "close_wait")]), "absent is not zero");
    assert!(!empty.has("kstrobe_udp_sockets", &[]));

    let made = sockets(31, 23, 11, 29);
    let tcp = |m: &Metrics, state: &str, family: &str| {
        m.sum("kstrobe_tcp_sockets", &[("state", state), ("family", family)]) as usize
    };
    let metrics = wait_for("all sockets are counted", SOON, || {
        let (v4, v6, metrics) = (witnessed("tcp"), witnessed("tcp6"), agent.scrape());
        // Each scrape has a connection of its own, whose ends are not there when we look ourselves.
        let of = |states: &BTreeMap<String, usize>, state: &str| states.get(state).copied().unwrap_or(0);
        let expected = [of(&v4, "01") + 2, of(&v4, "08"), of(&v4, "05"), of(&v4, "0A"), of(&v6, "0A")];
        let (state, family) = (["established", "close_wait", "fin_wait2", "listen", "listen"], ["ipv4"; 4]);
        let ours: Vec<usize> =
            state.iter().zip(family.iter().chain(&["ipv6"])).map(|(s, f)| tcp(&metrics, s, f)).collect();
        // The last end to be closed says so with some delay.
        (ours == expected && ours[2] == 11).then_some(metrics)
    });
    assert_eq!([tcp(&metrics, "close_wait", "ipv4"), tcp(&metrics, "fin_wait2", "ipv4")], [11, 11]);
    assert_eq!(tcp(&metrics, "established", "ipv4"), 2 * 23 + 2);
    assert_eq!(tcp(&metrics, "listen", "ipv4"), 31 + 1, "ours and the agent's");
    assert_eq!(tcp(&metrics, "listen", "ipv6"), 2);

    let udp = table("udp");
    assert_eq!((udp.len(), metrics.sum("kstrobe_udp_sockets", &[("family", "ipv4")])), (29, 29.0));
    let queued = |row: &Vec<String>| u64::from_str_radix(row[4].split(':').nth(1).unwrap(), 16).unwrap();
    let waiting: u64 = udp.iter().map(queued).sum();
    assert!(waiting > 39 * 100);
    assert_eq!(metrics.sum("kstrobe_udp_queued_bytes", &[("family", "ipv4")]), waiting as f64);

    unix_sockets(&agent);
    drop(made);
    wait_for("series without sockets are gone", SOON, || {
        let metrics = agent.scrape();
        let gone = !metrics.has("kstrobe_udp_sockets", &[]) && !metrics.has("kstrobe_udp_queued_bytes", &[]);
        (gone && tcp(&metrics, "listen", "ipv4") == 1 && !metrics.has("kstrobe_tcp_sockets", &[("family", "ipv6")]))
            .then_some(())
    });
    assert_eq!(agent.scrape().sum("kstrobe_series_overflow_total", &[]), 0.0);
    agent.stop();
}

/// Local sockets, where the kernel has an iterator over them (5.15).
fn unix_sockets(agent: &Agent) {
    let (_, listed) = agent.get("/api/v1/probes").unwrap();
    if listed.contains("this kernel has no iterator over `unix`") {
        assert!(lab().is_none_or(|kernel| kernel == "5.10"), "{listed}");
        assert!(agent.scrape().has("kstrobe_probe_attached", &[("probe", "unix_sockets")]));
        return;
    }
    let rows = table("unix");
    let datagrams = rows.iter().filter(|row| row[4] == "0002").count();
    let metrics = agent.scrape();
    assert!(datagrams >= 18);
    assert_eq!(metrics.sum("kstrobe_unix_sockets", &[("type", "dgram")]), datagrams as f64);
    assert_eq!(metrics.sum("kstrobe_unix_sockets", &[]), rows.len() as f64);
}

#[test]
#[ignore = "needs root"]
fn root_sockets_of_the_agents_namespace_are_those_of_procfs() {
    let netns = Netns::new("iter");
    // The thread's children are in the namespace as well.
    if let Err(panic) = netns.spawn("kst-sockets", sockets_are_counted).join() {
        std::panic::resume_unwind(panic);
    }
}

const OWN: &str = "
probe: own_tasks
summary: Tasks of the test.
at: iter:task
where: starts_with(args.task.comm, \"kst-it\")
metrics:
  own_tasks: { type: gauge, value: 1, labels: { comm: args.task.comm } }
  own_task_tgids: { type: gauge, value: args.task.tgid, labels: { comm: args.task.comm } }
---
probe: no_tasks
summary: Tasks that are not there.
at: iter:task
where: args.task.comm == \"kst-nobody\"
metrics:
  no_tasks: { type: gauge, value: 1 }
  no_tasks_by_name: { type: gauge, value: 1, labels: { comm: args.task.comm } }
";

/// Threads that do nothing until they are let go.
fn idle(count: usize, comm: &str) -> (Arc<Barrier>, Vec<std::thread::JoinHandle<()>>) {
    let gate = Arc::new(Barrier::new(count + 1));
    let thread = |_| {
        let gate = gate.clone();
        let wait = move || {
            gate.wait();
        };
        std::thread::Builder::new().name(comm.to_owned()).spawn(wait).unwrap()
    };
    let threads = (0..count).map(thread).collect();
    (gate, threads)
}

/// State letter and flags of each task, by procfs. Tasks that end meanwhile are left out.
fn procfs_tasks() -> Vec<(String, u64)> {
    let folder = |path: &str| std::fs::read_dir(path).into_iter().flatten().flatten();
    let numbered = |e: &std::fs::DirEntry| e.file_name().to_string_lossy().parse::<u32>().is_ok();
    let processes = folder("/proc").filter(numbered);
    let tasks = processes.flat_map(|e| folder(&format!("{}/task", e.path().display())).collect::<Vec<_>>());
    let stat = |e: std::fs::DirEntry| {
        let text = std::fs::read_to_string(e.path().join("stat")).ok()?;
        let fields: Vec<&str> = text.rsplit_once(") ")?.1.split(' ').collect();
        Some((fields[0].to_owned(), fields[6].parse().ok()?))
    };
    tasks.filter_map(stat).collect()
}

/// A child that is stopped, or a zombie, until it is dropped.
struct Still(Child);

impl Drop for Still {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// It has closed its output when it is about to be still.
fn still(script: &str) -> Still {
    let mut child = Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    child.stdout.take().unwrap().read_to_end(&mut Vec::new()).unwrap();
    Still(child)
}

#[test]
#[ignore = "needs root"]
fn root_tasks_are_those_of_procfs_and_threads_are_counted_by_name() {
    let agent = Setup { probes: &[("own_tasks", OWN)], arguments: &["--enable", "tasks"], ..Setup::default() }.start();
    let (first, second) = (idle(17, "kst-iter-one"), idle(5, "kst-iter-two"));
    let own = |m: &Metrics, comm: &str| m.sum("kstrobe_own_tasks", &[("comm", comm)]);
    let metrics = wait_for("all threads are counted", SOON, || {
        let metrics = agent.scrape();
        (own(&metrics, "kst-iter-one") == 17.0 && own(&metrics, "kst-iter-two") == 5.0).then_some(metrics)
    });
    let tgids = metrics.sum("kstrobe_own_task_tgids", &[("comm", "kst-iter-two")]);
    assert_eq!(tgids, 5.0 * f64::from(std::process::id()), "values are added up");
    assert!(metrics.has("kstrobe_no_tasks", &[]), "without labels, none is a number");
    assert!(!metrics.has("kstrobe_no_tasks_by_name", &[]), "absent is not zero");

    first.0.wait();
    first.1.into_iter().for_each(|thread| thread.join().unwrap());
    wait_for("ended threads are gone", SOON, || {
        let metrics = agent.scrape();
        (!metrics.has("kstrobe_own_tasks", &[("comm", "kst-iter-one")])).then(|| {
            assert_eq!(own(&metrics, "kst-iter-two"), 5.0, "the others stay, and are counted anew each time");
        })
    });

    let _stopped: Vec<Still> = (0..3).map(|_| still("exec >&-; kill -STOP $$")).collect();
    let _zombies: Vec<Still> = (0..2).map(|_| still("exit")).collect();
    wait_for("the same as procfs", SOON, || {
        let (metrics, tasks) = (agent.scrape(), procfs_tasks());
        let state = |letter: &str, name: &str| {
            let theirs = tasks.iter().filter(|(state, _)| state == letter).count();
            let ours = metrics.sum("kstrobe_tasks", &[("state", name)]);
            (theirs as f64 == ours).then_some(theirs)
        };
        let (stopped, zombies, idle) = (state("T", "stopped")?, state("Z", "zombie")?, state("I", "idle")?);
        let kernel = tasks.iter().filter(|(_, flags)| flags & 0x20_0000 != 0).count() as f64;
        let ours = metrics.sum("kstrobe_tasks", &[("kernel", "true")]);
        let (all, total) = (tasks.len() as f64, metrics.sum("kstrobe_tasks", &[]));
        // Others come and go on the machine: what both saw differs by few.
        let near = (ours - kernel).abs() <= 4.0 && (total - all).abs() <= 0.05 * all + 10.0;
        (stopped >= 3 && zombies >= 2 && idle > 0 && near).then_some(())
    });
    second.0.wait();
    second.1.into_iter().for_each(|thread| thread.join().unwrap());
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_an_iterator_is_read_once_a_second_at_most_and_not_at_all_unasked() {
    let agent = Setup { probes: &[("own_tasks", OWN)], ..Setup::default() }.start();
    let took = |m: &Metrics| m.sum("kstrobe_iteration_seconds", &[("probe", "own_tasks")]);
    // Whether a walk was made shows by how long it took: no two take the same nanoseconds.
    std::thread::sleep(Duration::from_millis(1100));
    let first = took(&agent.scrape());
    let again = took(&agent.scrape());
    assert!(first > 0.0 && again == first, "{first} {again}");
    std::thread::sleep(Duration::from_millis(1100));
    assert_ne!(took(&agent.scrape()), first);
    assert_eq!(agent.scrape().sum("kstrobe_read_errors_total", &[]), 0.0);
    agent.stop();
}
