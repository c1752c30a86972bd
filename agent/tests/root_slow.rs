//! Single events: each slow call is one record with what the test itself knows of it, and what is not sent is counted.

mod support;

use kstrobe::config::plan::plan;
use kstrobe::kernel::events::wait;
use kstrobe::kernel::{Loaded, Loader, Wanted, detect, load};
use kstrobe::metrics::events::record::{self, Field};
use kstrobe::metrics::labels::Names;
use kstrobe_config::model::SourceFile;
use kstrobe_ebpf::kernel_target::Ability;
use kstrobe_ebpf::layout::Loss;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, gettid};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use support::agent::{Agent, Setup};
use support::{emulated, load as loads, output, wait_for};

const RECEIVES: &str = "
probe: slow_receives
summary: Receives of this test that take longer than 20 ms.
span: { start: 'syscall:recvfrom:enter', end: 'syscall:recvfrom:exit', where: comm == \"kst-slow\", save: { fd: args.fd } }
metrics:
  receives_seconds: { type: histogram, value: elapsed }
slow:
  when: elapsed > 20ms
  max_per_second: 1000
  fields:
    fd: start.fd
    call: syscall
    comm: comm
    failed: retval < 0
    error: errno(-retval)
    took: elapsed
    waited: elapsed.off_cpu
    kernel: kstack
    user: ustack
";

/// The documents of a page of events.
fn events(agent: &Agent, query: &str) -> Vec<Value> {
    let (status, body) = agent.get(&format!("/api/v1/events{query}")).expect("/api/v1/events does not answer");
    assert_eq!(status, 200, "{body}");
    let document: Value = serde_json::from_str(&body).expect("JSON");
    document["events"].as_array().expect("events").clone()
}

/// The day that `date` says it is, and the seconds of it by this test's clock.
fn now() -> (String, f64) {
    let day = output(std::process::Command::new("date").args(["-u", "+%Y-%m-%d"])).trim().to_owned();
    let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
    (day, seconds % 86_400.0)
}

/// The same of the time of an event.
fn day_and_seconds(time: &Value) -> (String, f64) {
    let (day, rest) = time.as_str().and_then(|text| text.split_once('T')).expect("a time");
    let parts = rest.trim_end_matches('Z').split(':').map(|part| part.parse::<f64>().expect("a number"));
    (day.to_owned(), parts.fold(0.0, |sum, part| sum * 60.0 + part))
}

struct Receives {
    tid: i32,
    fd: i32,
    /// What each slow one took by this test's clock.
    took: Vec<f64>,
}

/// Waits so often in vain for 30 ms, with quick receives in between, in a thread of the probe's.
fn receives(slow: usize, quick: usize) -> Receives {
    use std::os::fd::AsRawFd;
    let mut done = Receives { tid: 0, fd: 0, took: Vec::new() };
    loads::named("kst-slow", || {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(30))).unwrap();
        let own = socket.local_addr().unwrap();
        (done.tid, done.fd) = (gettid().as_raw(), socket.as_raw_fd());
        for _ in 0..slow {
            for _ in 0..quick {
                socket.send_to(b"x", own).unwrap();
                assert_eq!(socket.recv(&mut [0]).unwrap(), 1);
            }
            let begin = Instant::now();
            assert!(socket.recv(&mut [0]).is_err(), "nobody sends here");
            done.took.push(begin.elapsed().as_secs_f64());
        }
    });
    done
}

/// A stream of events, past its head.
fn follow(agent: &Agent, query: &str) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(agent.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    write!(stream, "GET /api/v1/events?follow=true{query} HTTP/1.0\r\nHost: localhost\r\n\r\n").unwrap();
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(reader.read_line(&mut head).unwrap() > 0, "{head}");
    }
    assert!(head.starts_with("HTTP/1.0 200"), "{head}");
    reader
}

#[test]
#[ignore = "needs root"]
fn root_each_slow_call_is_one_record_everywhere() {
    const SLOW: usize = 7;
    let agent = Setup { probes: &[("slow", RECEIVES)], arguments: &["--events", "stderr"], ..Setup::default() }.start();
    let mut stream = follow(&agent, "&probe=slow_receives");
    let begin = now();
    let made = receives(SLOW, 100);
    let end = now();
    let seen = wait_for("all records", Duration::from_secs(20), || {
        let seen = events(&agent, "?probe=slow_receives");
        (seen.len() >= SLOW).then_some(seen)
    });
    assert_eq!(seen.len(), SLOW, "{seen:#?}");
    for (event, took) in seen.iter().zip(&made.took) {
        let fields = &event["fields"];
        assert_eq!((&event["probe"], &event["pid"]), (&"slow_receives".into(), &std::process::id().into()));
        assert_eq!((&event["tid"], &fields["fd"]), (&made.tid.into(), &made.fd.into()), "{event:#}");
        // The kernel restarts no receive that timed out: it says EAGAIN.
        let said = [&fields["call"], &fields["comm"], &fields["error"]].map(|v| v.as_str().unwrap_or_default());
        assert_eq!((said, &fields["failed"]), (["recvfrom", "kst-slow", "EAGAIN"], &true.into()));
        let number = |name: &str| fields[name].as_f64().unwrap_or_else(|| panic!("{name}: {event:#}"));
        assert!((0.020..=*took).contains(&number("took")), "{} of {took} s", number("took"));
        assert!((0.020..=number("took")).contains(&number("waited")), "{event:#}");
        let (day, at) = day_and_seconds(&event["time"]);
        assert!([&begin.0, &end.0].contains(&&day), "{day} is not {}", begin.0);
        let [after, whole] = [at, end.1].map(|time| (time - begin.1).rem_euclid(86_400.0));
        assert!(after <= whole + 0.001, "{at} is not between {begin:?} and {end:?}");
        let frames = |name: &str| fields[name].as_array().unwrap_or_else(|| panic!("{name}: {event:#}")).clone();
        assert!(frames("kernel").iter().any(|f| f.as_str().is_some_and(|f| f.contains("syscall"))), "{event:#}");
        assert!(frames("user")[0].as_str().is_some_and(|f| f.contains("recv")), "{event:#}");
    }
    assert_eq!(events(&agent, "?limit=2"), seen[SLOW - 2..]);

    let streamed: Vec<Value> = (0..SLOW).map(|_| next(&mut stream)).collect();
    assert_eq!(streamed, seen);
    let log = agent.log();
    let written = log.lines().filter(|l| l.starts_with('{')).map(|l| serde_json::from_str(l).expect("JSON"));
    assert_eq!(written.collect::<Vec<Value>>(), seen);

    let metrics = agent.scrape();
    let probe = [("probe", "slow_receives")];
    assert_eq!(metrics.sum("kstrobe_slow_events_total", &probe), SLOW as f64);
    assert_eq!(metrics.sum("kstrobe_receives_seconds_count", &[]), (SLOW * 101) as f64);
    for reason in ["events_limited", "events_full"] {
        let lost: Vec<f64> =
            metrics.series("kstrobe_lost_total", &[probe[0], ("reason", reason)]).map(|(_, n)| n).collect();
        assert_eq!(lost, [0.0], "{reason}");
    }
    // It goes soon although somebody follows.
    agent.stop();
    let mut rest = String::new();
    assert_eq!(stream.read_line(&mut rest).unwrap(), 0, "{rest}");
}

fn next(stream: &mut BufReader<TcpStream>) -> Value {
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
}

fn flood(most: u32) -> String {
    format!(
        "
probe: flood
summary: Every call of the flood.
at: syscall:getppid:enter
where: comm == \"kst-flood\"
budget_cpu_percent: 0
metrics: {{ flooded_total: {{ type: counter }} }}
slow: {{ when: pid != 0, max_per_second: {most}, fields: {{ comm: comm, cpu: cpu }} }}
"
    )
}

/// Records that came, were over the limit, and found no room, once that is all of them.
fn fates(agent: &Agent, calls: u32) -> [f64; 3] {
    wait_for("every call is accounted for", Duration::from_secs(20), || {
        let metrics = agent.scrape();
        assert_eq!(metrics.sum("kstrobe_flooded_total", &[]), f64::from(calls), "all are counted");
        let lost = |reason| metrics.sum("kstrobe_lost_total", &[("probe", "flood"), ("reason", reason)]);
        let sent = metrics.sum("kstrobe_slow_events_total", &[("probe", "flood")]);
        let fates = [sent, lost("events_limited"), lost("events_full")];
        assert!(fates.iter().sum::<f64>() <= f64::from(calls), "{fates:?} of {calls}");
        (fates.iter().sum::<f64>() == f64::from(calls)).then_some(fates)
    })
}

#[test]
#[ignore = "needs root"]
fn root_a_flood_is_limited_and_all_others_are_counted() {
    const CALLS: u32 = 20_000;
    let text = flood(5);
    let file = support::Folder::new();
    let path = file.0.join("events.jsonl").display().to_string();
    let agent = Setup { probes: &[("flood", &text)], arguments: &["--events", &path], ..Setup::default() }.start();
    let begin = Instant::now();
    loads::named("kst-flood", || loads::getppid_calls(CALLS));
    let seconds = begin.elapsed().as_secs() + 2;
    let [sent, limited, full] = fates(&agent, CALLS);
    let cpus = std::thread::available_parallelism().unwrap().get() as u64;
    assert!((5.0..=(5 * cpus * seconds) as f64).contains(&sent), "{sent} sent, {limited} limited");
    assert!(limited > 0.0 && full == 0.0, "{sent} sent, {limited} limited, {full} without room");
    wait_for("all records are shown", Duration::from_secs(20), || {
        (events(&agent, "").len() as f64 == sent).then_some(())
    });
    assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count() as f64, sent, "a line each in the file");
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "fields are of other people's calls");
    let log = agent.log();
    let warned: Vec<&str> = log.lines().filter(|line| line.contains("slow events are lost")).collect();
    assert!(warned.len() == 1, "once: {log}");
    let parts = ["probe=flood", "reason=events_limited", "raise `slow.max_per_second`"];
    assert!(parts.iter().all(|part| warned[0].contains(part)), "{}", warned[0]);
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_records_without_room_are_counted() {
    const CALLS: u32 = 60_000;
    let text = flood(1_000_000);
    let agent = Setup { probes: &[("flood", &text)], ..Setup::default() }.start();
    let pid = Pid::from_raw(agent.pid().cast_signed());
    // Nobody reads meanwhile.
    kill(pid, Signal::SIGSTOP).unwrap();
    loads::named("kst-flood", || loads::getppid_calls(CALLS));
    kill(pid, Signal::SIGCONT).unwrap();
    let [sent, limited, full] = fates(&agent, CALLS);
    assert!(sent > 10_000.0 && full > 10_000.0 && limited == 0.0, "{sent} sent, {limited} limited, {full} no room");
    let kept = format!("{{\"events\":[],\"gone\":{}}}", sent - 1024.0);
    let page = || agent.get("/api/v1/events?limit=0").filter(|(_, body)| *body == kept);
    wait_for("the last 1024 are kept", Duration::from_secs(20), page);
    let log = agent.log();
    for parts in [
        ["probe=flood", "reason=events_full", "raise `slow.buffer`"],
        ["probe=flood", "kept=1024", "limits.kept_events"],
    ] {
        let lines = log.lines().filter(|line| parts.iter().all(|part| line.contains(part)));
        assert_eq!(lines.count(), 1, "{parts:?} in {log}");
    }
    agent.stop();
}

/// A buffer of 8 MiB has room for 60,000 records of some 60 bytes while the agent stands still.
#[test]
#[ignore = "needs root"]
fn root_a_larger_buffer_and_ring_keep_what_others_lose() {
    const CALLS: u32 = 60_000;
    let [noisy, quiet] = ["flood", "trickle"].map(|name| flood(1_000_000).replace("flood", name));
    let noisy = noisy.replace("max_per_second: 1000000,", "max_per_second: 1000000, buffer: 8MiB,");
    let setup = Setup { probes: &[("flood", &noisy), ("trickle", &quiet)], ..Setup::default() };
    let agent = Setup { config: "limits: { budget_percent: 0, kept_events: 2000 }\n", budget: true, ..setup }.start();
    loads::named("kst-trickle", || loads::getppid_calls(5));
    let pid = Pid::from_raw(agent.pid().cast_signed());
    kill(pid, Signal::SIGSTOP).unwrap();
    loads::named("kst-flood", || loads::getppid_calls(CALLS));
    kill(pid, Signal::SIGCONT).unwrap();
    let [sent, limited, full] = fates(&agent, CALLS);
    assert_eq!([sent, limited, full], [f64::from(CALLS), 0.0, 0.0]);
    let kept = |query: &str| events(&agent, query).len();
    wait_for("each probe has its own", Duration::from_secs(20), || {
        ([kept("?probe=flood"), kept("?probe=trickle")] == [2000, 5]).then_some(())
    });
    agent.stop();
}

/// The probe on this kernel as if it had no ring buffer.
fn with_perf_buffers(text: &str) -> Loaded {
    let file = SourceFile { name: "flood".into(), text: text.into() };
    let (probes, diagnostics) = kstrobe_config::probes(&[Arc::new(file)]);
    assert!(diagnostics.is_empty(), "{diagnostics:#?}");
    let plan = plan(probes.into_iter().next().unwrap());
    let wanted = Wanted { syscalls: plan.syscalls().into_iter().collect(), ..Wanted::default() };
    let mut target = detect(&wanted);
    assert!(target.abilities.ringbuf.yes(), "5.8 and later have it: {:?}", target.abilities.ringbuf);
    target.abilities.ringbuf = Ability::No("not in this test".into());
    let artifact = plan.compile(&target).unwrap_or_else(|refusal| panic!("{}", refusal.reason()));
    let choice = artifact.choices.iter().find(|c| c.wanted == "ring buffer").expect("a choice");
    assert_eq!((choice.got.as_str(), choice.because.as_slice()), ("perf buffers", &["not in this test".into()][..]));
    let programs: Vec<_> = artifact.programs.iter().map(|p| (p.name.clone(), p.attach.clone())).collect();
    load(&mut Loader::new(), &artifact.object, &artifact.module.layout, &programs).unwrap()
}

/// Takes all records: thread and fields of each.
fn drained(loaded: &mut Loaded) -> Vec<(u32, Vec<Field>)> {
    let (maps, buffers) = loaded.maps_and_events();
    let layout = maps.layout().events.as_ref().unwrap();
    let (mut names, mut found) = (Names::new(), Vec::new());
    buffers.unwrap().drain(|bytes| {
        let record = record::read(bytes, layout, &mut names, Instant::now()).expect("a whole record");
        found.push((record.tid, record.fields));
    });
    found
}

#[test]
#[ignore = "needs root"]
fn root_perf_buffers_serve_where_there_is_no_ring_buffer() {
    let mut loaded = with_perf_buffers(&flood(1_000_000));
    let mut tid = 0;
    loads::named("kst-flood", || {
        tid = gettid().as_raw().cast_unsigned();
        loads::getppid_calls(20);
    });
    let ready = loaded.maps_and_events().1.unwrap().ready().to_vec();
    let files: Vec<_> = ready.iter().map(|file| file.as_fd()).collect();
    assert!(wait(&files, Duration::from_secs(5)).unwrap().contains(&true), "nobody is woken");
    let found = drained(&mut loaded);
    assert_eq!(found.len(), 20);
    for (of, fields) in &found {
        assert_eq!((*of, &fields[0]), (tid, &Field::Value("kst-flood".into())));
    }
    assert!(wait(&files, Duration::ZERO).unwrap().iter().all(|ready| !ready), "all was read");

    const CALLS: u32 = 60_000;
    loads::named("kst-flood", || loads::getppid_calls(CALLS));
    let sent = drained(&mut loaded).len();
    let losses = loaded.maps().losses().unwrap();
    let lost = |reason| losses.iter().filter(|(loss, _)| *loss == reason).map(|(_, n)| *n as usize).sum::<usize>();
    assert_eq!((sent + lost(Loss::EventsFull), lost(Loss::EventsLimited)), (CALLS as usize, 0), "{losses:?}");
    assert!(sent > 1000 && lost(Loss::EventsFull) > 1000, "{sent} sent, {losses:?}");
    loads::named("kst-flood", || loads::getppid_calls(5));
    assert_eq!(drained(&mut loaded).len(), 5, "there is room again");
}

#[test]
#[ignore = "needs root"]
fn root_shipped_slow_syscalls_tells_work_from_waiting() {
    let agent = Setup { arguments: &["--enable", "slow_syscalls"], ..Setup::default() }.start();
    let own = |agent: &Agent| -> Vec<Value> {
        let pid = std::process::id();
        events(agent, "?probe=slow_syscalls").into_iter().filter(|event| event["pid"] == pid).collect()
    };
    let length = Duration::from_millis(1200);
    loads::named("kst-waits", || {
        loads::pselect_sleeps(1, length);
        std::thread::sleep(length);
    });
    // A blocking lock of a file is a call that should not take long.
    let folder = support::Folder::new();
    let path = folder.write("lock", "");
    let (held, wanted) = (std::fs::File::open(&path).unwrap(), std::fs::File::open(&path).unwrap());
    held.lock().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| loads::named("kst-locks", || wanted.lock().unwrap()));
        std::thread::sleep(length);
        held.unlock().unwrap();
    });
    let seen = wait_for("the record", Duration::from_secs(20), || Some(own(&agent)).filter(|seen| !seen.is_empty()));
    assert_eq!(seen.len(), 1, "{seen:#?}");
    let fields = &seen[0]["fields"];
    assert_eq!(
        (&fields["syscall"], &fields["comm"], &fields["result"]),
        (&"flock".into(), &"kst-locks".into(), &0.into())
    );
    let most = if emulated() { 10.0 } else { 3.0 };
    assert!((1.0..most).contains(&fields["seconds"].as_f64().unwrap()), "{fields:#}");
    assert!(fields["stack"][0].as_str().is_some_and(|frame| frame.contains("flock")), "{fields:#}");
    agent.stop();
}
