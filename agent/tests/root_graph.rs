//! Why a receive is slow: a client behind a slow network, recorded with all functions that its recvfrom(2) calls.

mod support;

use kstrobe_ftrace::text;
use kstrobe_ftrace::trace::Trace;
use nix::sys::signal::{Signal, kill};
use nix::unistd::gettid;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc::channel;
use std::time::Duration;
use support::agent::command;
use support::capture::Capture;
use support::netns::Netns;
use support::tracing::{Mounted, graph_root};
use support::{Folder, not_run, output, witnesses};

const ROUNDS: usize = 12;
const DELAY_MS: u32 = 6;
const LIMIT: Duration = Duration::from_secs(90);

/// Answers each byte until the connection ends.
fn echo(listener: &TcpListener) {
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_nodelay(true).unwrap();
    let mut byte = [0];
    while stream.read(&mut byte).unwrap() == 1 {
        stream.write_all(&byte).unwrap();
    }
}

#[test]
#[ignore = "needs root"]
fn root_a_slow_receive_is_explained() {
    let test = "root_a_slow_receive_is_explained";
    let Some(root) = graph_root(test, "recvfrom") else { return };
    if !witnesses(test, &["ip", "tc"]) {
        return;
    }
    let (client, server) = Netns::pair();
    if let Err(reason) = server.delay_leaving(DELAY_MS) {
        return not_run(test, &reason);
    }
    let (listening, address) = channel();
    let echoing = server.spawn("kst-server", move || {
        let listener = TcpListener::bind("10.99.0.2:0").unwrap();
        listening.send(listener.local_addr().unwrap()).unwrap();
        echo(&listener);
    });
    let address = address.recv_timeout(LIMIT).unwrap();
    let ((ready, tid), (go, begin)) = (channel(), channel());
    let asking = client.spawn("kst-client", move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        ready.send(gettid().to_string()).unwrap();
        begin.recv_timeout(LIMIT).unwrap();
        for _ in 0..ROUNDS {
            stream.write_all(&[7]).unwrap();
            assert_eq!(stream.read(&mut [0]).unwrap(), 1);
        }
    });
    let tid = tid.recv_timeout(LIMIT).unwrap();
    let folder = Folder::new();
    let wanted = ["-p", "function_graph", "-g", &root, "-P", &tid, "--flight", "-b", "8192"];
    let capture = Capture::start(&folder, &wanted);
    go.send(()).unwrap();
    asking.join().unwrap();
    echoing.join().unwrap();

    // All of it is still in the ring buffer. The recorder sleeps while we read the kernel's own text.
    kill(capture.pid(), Signal::SIGSTOP).unwrap();
    let tracefs = Mounted::new();
    let place = capture.instances().first().map(|name| format!("instances/{name}/")).unwrap_or_default();
    tracefs.write(&format!("{place}tracing_on"), "0");
    let kernels = tracefs.read(&format!("{place}trace")).unwrap();
    kill(capture.pid(), Signal::SIGCONT).unwrap();
    let file = capture.file.clone();
    let (trace, said) = capture.end();

    let mut ours = Vec::new();
    text::write(&trace, text::Options::default(), &mut ours).unwrap();
    let ours = String::from_utf8(ours).unwrap();
    let lines = |text: &str| text.lines().filter(|l| !l.starts_with('#') && !l.is_empty()).map(str::to_owned).collect();
    let (ours, kernels): (Vec<String>, Vec<String>) = (lines(&ours), lines(&kernels));
    assert!(kernels.len() > 10 * ROUNDS, "{} lines: {said}", kernels.len());
    for (number, (ours, kernels)) in ours.iter().zip(&kernels).enumerate() {
        assert_eq!(ours, kernels, "line {number}");
    }
    assert_eq!(ours.len(), kernels.len());

    // Each receive waited for the network, and says so.
    let report = ["report", "--report", "waits", "--root", "recvfrom", "--slowest", "100", "-o", "json"];
    let report = output(command(&report).arg(&file));
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let calls = report["waits"]["calls"].as_array().expect("calls");
    let slow: Vec<_> =
        calls.iter().filter(|c| c["waited_ns"].as_u64() >= Some(u64::from(DELAY_MS) * 1_000_000)).collect();
    // On a slow processor some of the delay is over when the client gets to ask.
    assert!(calls.len() == ROUNDS && 2 * slow.len() > ROUNDS, "{report:#}");
    for call in slow {
        let ns = |key: &str| call[key].as_u64().unwrap();
        assert_eq!(ns("total_ns"), ns("waited_ns") + ns("interrupted_ns") + ns("worked_ns"), "{call:#}");
        assert!(ns("worked_ns") > 0, "{call:#}");
        let functions = call["functions"].as_array().unwrap();
        assert!(functions.iter().any(|f| f["name"].as_str().is_some_and(|name| name.starts_with("tcp_"))), "{call:#}");
    }
    if witnesses(test, &["trace-cmd"]) {
        trace_cmd_reads_the_same(&trace, &file);
    }
}

/// `trace-cmd report` has the same events at the same times, and nothing to complain about.
fn trace_cmd_reads_the_same(trace: &Trace, file: &std::path::Path) {
    let done = Command::new("trace-cmd").args(["report", "-R", "-t", "-i"]).arg(file).output().unwrap();
    let complaints = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && complaints.trim().is_empty(), "{complaints}");
    let text = String::from_utf8(done.stdout).unwrap();
    // `comm-pid [cpu] seconds.nanoseconds: name: fields`
    let theirs: Vec<(u64, String)> = text
        .lines()
        .filter_map(|line| {
            let mut words = line.split('[').nth(1)?.split_whitespace().skip(1);
            let (seconds, ns) = words.next()?.trim_end_matches(':').split_once('.')?;
            let time = seconds.parse::<u64>().ok()? * 1_000_000_000 + ns.parse::<u64>().ok()?;
            Some((time, words.next()?.trim_end_matches(':').to_owned()))
        })
        .collect();
    let name =
        |event: &kstrobe_ftrace::trace::Event| event.format.map(|format| format.name.clone()).unwrap_or_default();
    let ours: Vec<(u64, String)> = trace.events().map(|event| (event.time, name(&event))).collect();
    assert_eq!(ours, theirs);
}
