//! Call stacks of programs as Debian ships them, whose libraries have no frame pointers: time off the CPU is under `main`.

mod support;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;
use support::agent::{DEFAULT_PACKS, Setup};
use support::postgres::Cluster;
use support::{Folder, wait_for, waits, witnesses};

const PYTHON: &str = "/usr/bin/python3";
const BASH: &str = "/bin/bash";

/// What of the time must be under `main`.
const MIN_SHARE: f64 = 0.95;

/// By the names of processes, what they wait in: parts of names of kernel functions.
type Waits<'a> = &'a [(&'a str, &'a [&'a str])];

/// Programs, and the function that their stacks must have. Only first threads have these names: those of others end in libc.
///
/// Debian's `python3` has no symbol `main`, and no frame of it either: it is a jump to `Py_BytesMain`, which returns to libc.
/// `bash` never waits for a disk (it does not call fsync(2), and what it writes stays in the page cache) nor in a futex.
const PROGRAMS: [(&str, &str, Waits<'_>); 3] = [
    (
        "python3",
        "Py_BytesMain",
        &[("kst-py-futex", &["futex_wait"]), ("kst-py-pipe", &["pipe_read"]), ("kst-py-disk", &["_sys_fsync"])],
    ),
    ("bash", "main", &[("kst-bash-pipe", &["pipe_read", "do_select"]), ("kst-bash-child", &["do_wait", "pipe_read"])]),
    // Its WAL writer, which is awake most often, is forked by a signal handler: `main` is beyond a signal's frame.
    ("postgres", "main", &[("kst-postgres", &["futex_wait", "_sys_fdatasync", "epoll_wait"])]),
];

/// The first thread waits for a lock that another one releases.
const FUTEX: &str = "
import threading, time
lock = threading.Lock()
def release():
    open(f'/proc/self/task/{threading.get_native_id()}/comm', 'w').write('kst-other')
    while True:
        time.sleep(0.005)
        if lock.locked():
            lock.release()
threading.Thread(target=release, daemon=True).start()
while True:
    lock.acquire()
";
const PIPE: &str = "import sys\nfor line in sys.stdin: pass";
/// Sleeps in between: the probe walks a stack at each wait, and would be over its budget on a fast disk.
const DISK: &str = "
import os, sys, time
file = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
while True:
    os.lseek(file, 0, os.SEEK_SET)
    os.write(file, bytes(4096))
    os.fsync(file)
    time.sleep(0.01)
";
/// With a limit it waits in select(2), without one in read(2).
const BASH_PIPE: &str = "while read -r line && read -r -t 5 line; do :; done";
const BASH_CHILD: &str = "while :; do sleep 0.02; text=$(sleep 0.02); done";

/// What clients of the server say, again and again: three commit, one waits in a function that a library calls, and two want
/// the same row.
const CLIENTS: [&str; 6] = [
    "insert into filled values (1);\n",
    "insert into filled values (1);\n",
    "insert into filled values (1);\n",
    "do $$ begin perform pg_sleep(0.01); end $$;\n",
    "begin; update contended set i = i + 1; select pg_sleep(0.01); commit;\n",
    "begin; update contended set i = i + 1; select pg_sleep(0.01); commit;\n",
];

/// A process that ends with the test, or by itself if the test is killed: under timeout(1), which hands signals on.
struct Bounded(Child);

impl Drop for Bounded {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.0.id().cast_signed()), Signal::SIGTERM);
        let _ = self.0.wait();
    }
}

fn bounded(program: &Path) -> Command {
    let mut command = Command::new("timeout");
    command.arg("60").arg(program).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// The program by a link of this name, which its processes have then.
fn renamed(folder: &Folder, comm: &str, program: &Path) -> Command {
    let link = folder.0.join(comm);
    symlink(program, &link).unwrap();
    bounded(&link)
}

/// A server on a socket in the folder.
struct Server<'a> {
    _process: Bounded,
    folder: &'a Folder,
    cluster: Cluster,
}

impl Server<'_> {
    fn start(folder: &Folder) -> Server<'_> {
        let cluster = Cluster::new(folder);
        let mut command = cluster.server(renamed(folder, "kst-postgres", &cluster.program("postgres")));
        // Who commits waits 10 ms with the log's lock, for which others wait in a futex.
        command.args(["-c", "commit_delay=10000", "-c", "commit_siblings=0"]);
        // Idle, it sleeps 50 times as long: by default 10 s, and the stack would be of before the agent knew the process.
        command.args(["-c", "bgwriter_delay=10ms"]);
        let server = Server { _process: Bounded(command.spawn().unwrap()), folder, cluster };
        let tables = "create table filled (i int); create table contended as select 0 as i;";
        wait_for("the server's answer", Duration::from_secs(60), || {
            server.client("tables", tables).status().unwrap().success().then_some(())
        });
        server
    }

    fn client(&self, name: &str, statements: &str) -> Command {
        let statements = self.folder.write(name, statements);
        self.cluster.client(bounded(&self.cluster.program("psql")), statements.as_ref())
    }
}

/// Starts the loads of Python and bash, two of which read a line each 5 ms from a pipe.
fn start(folder: &Folder) -> Vec<Bounded> {
    let file = folder.path("file");
    let loads: [(&str, &str, &[&str]); 5] = [
        ("kst-py-futex", PYTHON, &["-I", "-c", FUTEX]),
        ("kst-py-pipe", PYTHON, &["-I", "-c", PIPE]),
        ("kst-py-disk", PYTHON, &["-I", "-c", DISK, &file]),
        ("kst-bash-pipe", BASH, &["-c", BASH_PIPE]),
        ("kst-bash-child", BASH, &["-c", BASH_CHILD]),
    ];
    let mut started: Vec<_> = loads
        .into_iter()
        .map(|(comm, program, arguments)| {
            Bounded(renamed(folder, comm, Path::new(program)).args(arguments).stdin(Stdio::piped()).spawn().unwrap())
        })
        .collect();
    let mut pipes: Vec<ChildStdin> = [1, 3].into_iter().filter_map(|which| started[which].0.stdin.take()).collect();
    // Until its readers have ended.
    std::thread::spawn(move || {
        while pipes.iter_mut().all(|pipe| pipe.write_all(b"line\n").is_ok()) {
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    started
}

/// A line of folded text: its frames, the first of which is the process's name, and nanoseconds.
type Line<'a> = (Vec<&'a str>, u64);

/// Adds to a table the share of these stacks that have the function, and gives what is wrong with it.
fn row(table: &mut String, what: &str, stacks: &[&Line<'_>], function: &str) -> Option<String> {
    let ns = |stacks: &[&Line<'_>]| stacks.iter().map(|(_, ns)| ns).sum::<u64>() as f64;
    let mut missed: Vec<_> = stacks.iter().copied().filter(|(frames, _)| !frames.contains(&function)).collect();
    let (all, share) = (ns(stacks) / 1e9, 1.0 - ns(&missed) / ns(stacks));
    *table += &format!("{what:32} {share:7.3} {all:9.2} {:7}\n", stacks.len());
    missed.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
    let five = missed.iter().take(5).map(|(frames, ns)| format!("  {ns} {}\n", frames.join(";"))).collect::<String>();
    // Waits for a disk are the shortest: some hundred microseconds, at least a hundred times.
    let enough = all >= 0.02 && share >= MIN_SHARE;
    (!enough).then(|| format!("{what}: {share:.3} of {all:.3} s with {function}; without it\n{five}"))
}

#[test]
#[ignore = "needs root"]
fn root_stacks_of_waiting_python_bash_and_postgres_reach_main() {
    let name = "root_stacks_of_waiting_python_bash_and_postgres_reach_main";
    if !witnesses(name, &[PYTHON, BASH, "postgres", "initdb", "psql"]) {
        return;
    }
    // On a disk, which /tmp may not be.
    let folder = Folder(PathBuf::from(format!("/var/tmp/kstrobe-test-{}", std::process::id())));
    fs::create_dir(&folder.0).unwrap();
    let server = Server::start(&folder);
    // The server runs before the agent, all others begin after it.
    let arguments = &["--enable", "offcpu"];
    let agent = Setup { packs: &DEFAULT_PACKS, arguments, budget: true, ..Setup::default() }.start();
    // Ended before the server, which waits for its clients.
    let mut loads = start(&folder);
    for (number, statements) in CLIENTS.into_iter().enumerate() {
        // More than a minute's.
        let mut client = server.client(&format!("client-{number}"), &statements.repeat(10_000));
        loads.push(Bounded(client.spawn().unwrap()));
    }
    // What the agent takes to know new processes.
    std::thread::sleep(Duration::from_secs(3));
    let count = || {
        PROGRAMS.map(|(_, _, loads)| {
            loads.iter().map(|(comm, _)| waits("/proc", comm).iter().sum::<u64>()).collect::<Vec<_>>()
        })
    };
    let before = count();
    let (status, text) = agent.get("/api/v1/stacks/offcpu_seconds?seconds=10").unwrap();
    let after = count();
    assert_eq!(status, 200, "{text}");
    let parsed = |line| -> Option<Line<'_>> {
        let (stack, ns) = str::rsplit_once(line, ' ')?;
        Some((stack.split(';').collect(), ns.parse().ok()?))
    };
    let lines: Vec<_> = text.lines().map(|line| parsed(line).expect("a stack and a number")).collect();
    let (mut table, mut wrong) = (format!("{:32}   share   seconds  stacks\n", "program, wait"), Vec::new());
    for (which, (program, function, loads)) in PROGRAMS.into_iter().enumerate() {
        let of = |comm: &str| lines.iter().filter(move |(frames, _)| frames[0] == comm).collect::<Vec<_>>();
        let all: Vec<_> = loads.iter().flat_map(|(comm, _)| of(comm)).collect();
        wrong.extend(row(&mut table, program, &all, function));
        for (index, (comm, places)) in loads.iter().enumerate() {
            let waited = after[which][index] - before[which][index];
            assert!(waited >= 100, "{comm} waited {waited} times");
            for place in *places {
                let there = |frame: &&str| frame.ends_with("_[k]") && frame.contains(place);
                let stacks: Vec<_> = of(comm).into_iter().filter(|(frames, _)| frames.iter().any(there)).collect();
                wrong.extend(row(&mut table, &format!("  {comm} {place}"), &stacks, function));
            }
        }
    }
    println!("{table}");
    assert!(wrong.is_empty(), "under {MIN_SHARE}:\n{}", wrong.join("\n"));
    agent.stop();
}
