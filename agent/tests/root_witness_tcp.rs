//! Probes with steps: connections whose number and life the test knows.

mod support;

use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use support::agent::Setup;
use support::metrics::{Histogram, Metrics};
use support::netns::Netns;
use support::{emulated, not_run, wait_for, witnesses};

const SHORT: (usize, Duration) = (40, Duration::from_millis(20));
const LONG: (usize, Duration) = (10, Duration::from_millis(150));
const REFUSED: usize = 7;

/// Connections over IPv6, which nothing else here uses, in a network of its own. Seconds that all of them lived, both ends:
/// at least, and at most.
fn connections() -> (f64, f64) {
    let listener = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let (tell, closed) = channel();
    let server = std::thread::spawn(move || {
        for _ in 0..SHORT.0 + LONG.0 {
            let (mut peer, _) = listener.accept().unwrap();
            // Closes when the client has.
            assert_eq!(std::io::copy(&mut peer, &mut std::io::sink()).unwrap(), 0);
            drop(peer);
            tell.send(()).unwrap();
        }
        listener
    });
    let (mut least, mut most) = (Duration::ZERO, Duration::ZERO);
    for (count, life) in [SHORT, LONG] {
        for _ in 0..count {
            let before = Instant::now();
            let stream = TcpStream::connect(address).unwrap();
            let begin = Instant::now();
            std::thread::sleep(life);
            least += begin.elapsed();
            drop(stream);
            closed.recv().unwrap();
            most += before.elapsed();
        }
    }
    drop(server.join().unwrap());
    let nobody = SocketAddr::from((Ipv6Addr::LOCALHOST, address.port()));
    for _ in 0..REFUSED {
        assert!(TcpStream::connect(nobody).is_err());
    }
    (least.as_secs_f64(), most.as_secs_f64())
}

fn of(metrics: &Metrics, name: &str, label: (&str, &str)) -> Histogram {
    metrics.histogram(name, &[("family", "ipv6"), label])
}

#[test]
#[ignore = "needs root"]
fn root_connections_and_their_lives_are_those_of_the_load() {
    let agent = Setup { arguments: &["--enable", "tcp_sessions,tcp_connect"], ..Setup::default() }.start();
    let netns = Netns::new("tcp");
    let (least, most) = netns.spawn("kst-tcp", connections).join().unwrap();
    let all = (SHORT.0 + LONG.0) as f64;
    let sessions = "kstrobe_tcp_session_duration_seconds";
    let metrics = wait_for("both ends of all connections", Duration::from_secs(10), || {
        let metrics = agent.scrape();
        let ended = |server| of(&metrics, sessions, ("server", server)).count;
        (ended("true") >= all && ended("false") >= all).then_some(metrics)
    });
    for server in ["true", "false"] {
        let ours = of(&metrics, sessions, ("server", server));
        assert_eq!(ours.count, all, "server={server}");
        // The last packets of a connection may be handled after the calls that sent them have returned: tenths of a second after,
        // where a hypervisor takes the CPU away that handles them.
        let slack = all * if emulated() { 1e-2 } else { 1e-3 };
        let bounds = least - slack..most + slack + 0.5;
        assert!(bounds.contains(&ours.sum), "server={server}: {} s, the load says {bounds:?}", ours.sum);
        let short = ours.at_most(0.1);
        assert!(short <= SHORT.0 as f64 && short >= SHORT.0 as f64 * 0.8, "server={server}: {ours:?}");
    }
    let connects = "kstrobe_tcp_connect_duration_seconds";
    assert_eq!(of(&metrics, connects, ("established", "true")).count, all);
    assert_eq!(of(&metrics, connects, ("established", "false")).count, REFUSED as f64);
    for probe in ["tcp_sessions", "tcp_connect"] {
        let lost = [("probe", probe), ("reason", "state_evicted")];
        assert!(metrics.has("kstrobe_lost_total", &lost), "{probe}");
        assert_eq!(metrics.sum("kstrobe_lost_total", &lost), 0.0, "{probe}");
    }
    agent.stop();
}

/// How long the slow link holds back what leaves one end, and how many connections are made over it.
const SLOW_MS: u32 = 40;
const OVER_IT: u32 = 10;

#[test]
#[ignore = "needs root"]
fn root_connecting_over_a_slow_link_takes_as_long_as_the_client_says() {
    let test = "root_connecting_over_a_slow_link_takes_as_long_as_the_client_says";
    if !witnesses(test, &["ip", "tc"]) {
        return;
    }
    let (client, server) = Netns::pair();
    if let Err(reason) = server.delay_leaving(SLOW_MS) {
        return not_run(test, &reason);
    }
    let (tell, address) = channel();
    let accepting = server.spawn("kst-accepts", move || {
        let listener = TcpListener::bind("10.99.0.2:0").unwrap();
        tell.send(listener.local_addr().unwrap()).unwrap();
        (0..OVER_IT).for_each(|_| drop(listener.accept().unwrap()));
    });
    let address = address.recv_timeout(Duration::from_secs(5)).unwrap();
    let agent = Setup { arguments: &["--enable", "tcp_connect"], ..Setup::default() }.start();
    let labels = [("family", "ipv4"), ("established", "true")];
    let counted = || agent.scrape().histogram("kstrobe_tcp_connect_duration_seconds", &labels);
    let before = counted();
    let connecting = client.spawn("kst-connects", move || {
        let one = |_| {
            let begin = Instant::now();
            drop(TcpStream::connect(address).unwrap());
            begin.elapsed().as_secs_f64()
        };
        (0..OVER_IT).map(one).sum::<f64>()
    });
    let (theirs, ours) = (connecting.join().unwrap(), counted().since(&before));
    accepting.join().unwrap();
    // Nothing else here is as slow, while others may connect to what is near.
    let (count, delay) = (f64::from(OVER_IT), f64::from(SLOW_MS) / 1e3);
    assert_eq!(ours.count - ours.at_most(0.025), count, "{ours:?}");
    assert!(ours.sum >= count * delay && ours.sum <= theirs * 1.01, "{ours:?}, the client says {theirs} s");
    let share = if emulated() { 0.4 } else { 0.8 };
    assert!(ours.sum >= share * theirs, "{ours:?}, the client says {theirs} s");
    agent.stop();
}

const FEW: &str = "
probe: few_states
summary: More keys than there is room for.
state: { by: args.prev_pid, fields: { seen: u64 }, max_entries: 64 }
steps:
  - at: tracepoint:sched:sched_switch
    where: starts_with(args.prev_comm, \"kst-many\")
    observe: [few_switches_total]
    set: { seen: state.seen + 1 }
metrics:
  few_switches_total: { type: counter, where: '!has(state)', labels: { comm: args.prev_comm } }
";

#[test]
#[ignore = "needs root"]
fn root_states_that_find_no_room_are_counted() {
    const TASKS: usize = 4_000;
    let agent = Setup { probes: &[("few_states", FEW)], ..Setup::default() }.start();
    for _ in 0..TASKS {
        std::thread::Builder::new()
            .name("kst-many".into())
            .spawn(|| std::thread::sleep(Duration::from_micros(50)))
            .unwrap()
            .join()
            .unwrap();
    }
    let metrics = agent.scrape();
    let evicted = metrics.sum("kstrobe_lost_total", &[("probe", "few_states"), ("reason", "state_evicted")]);
    let came = metrics.sum("kstrobe_few_switches_total", &[]);
    let there = metrics.sum("kstrobe_map_entries", &[("probe", "few_states"), ("map", "ks_state")]);
    // Each task is new once; an evicted one that runs again is new again.
    assert!(came >= TASKS as f64, "{came}");
    assert!(there > 0.0 && there <= 512.0, "{there}");
    assert_eq!(evicted, came - there, "{came} came, {there} are there");
    agent.stop();
}
