//! The shipped probes against independent witnesses: each test makes a load of known size and compares what the agent
//! exports with what another tool says about the same load in the same run.

mod support;

use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;
use support::agent::Agent;
use support::bpftrace::Bpftrace;
use support::metrics::Metrics;
use support::netns::Netns;
use support::trace_instance::TraceInstance;
use support::{Agreement, emulated, load, not_run, output, softirqs, wait_for, witnesses};
use syscalls::Sysno;

/// Each tool times the other's programs too, so that a duration differs by about this much between them.
const TOOL_OVERHEAD_NS: u64 = 3_000;

const SYSCALL_SCRIPT: &str = "
    tracepoint:raw_syscalls:sys_enter { @start[tid] = nsecs; }
    tracepoint:raw_syscalls:sys_exit /@start[tid]/ {
        @ns[args->id] = hist(nsecs - @start[tid]);
        @calls[args->id] = count();
        delete(@start[tid]);
    }
    END { clear(@start); }";

#[track_caller]
fn within(what: &str, ours: f64, theirs: f64, share: f64, slack: f64) {
    let limit = theirs * share + slack;
    assert!((ours - theirs).abs() <= limit, "{what}: we say {ours}, the witness {theirs} (allowed: {limit:.1} apart)");
}

#[test]
#[ignore = "needs root"]
fn root_syscall_counts_and_buckets_agree_with_bpftrace() {
    if !witnesses("root_syscall_counts_and_buckets_agree_with_bpftrace", &["bpftrace"]) {
        return;
    }
    let agent = Agent::start(&["syscalls"]);
    let bpftrace = Bpftrace::start(SYSCALL_SCRIPT);
    let before = agent.scrape();
    load::getppid_calls(20_000);
    for (count, each_us) in [(400, 100), (200, 700), (100, 3_000), (20, 12_000)] {
        load::pselect_sleeps(count, Duration::from_micros(each_us));
    }
    let after = agent.scrape();
    let maps = bpftrace.stop();
    let name = "kstrobe_syscall_duration_seconds";
    // Calls that little else makes: the two windows are not exactly the same.
    for (call, made) in [(Sysno::getppid, 20_000), (Sysno::pselect6, 720)] {
        let (syscall, number) = (call.name(), call.id().to_string());
        let labels = [("syscall", syscall)];
        let ours = after.histogram(name, &labels).since(&before.histogram(name, &labels));
        let theirs = maps.number("@calls", &number) as f64;
        assert!(ours.count >= f64::from(made), "{syscall}: {} counted, {made} made", ours.count);
        within(&format!("{syscall} count"), ours.count, theirs, 0.01, 2.0);
        let hist = maps.hist("@ns", &number);
        let below = |ns: u64| hist.iter().filter(|(_, max, _)| *max < ns).map(|(_, _, n)| *n).sum::<u64>() as f64;
        let slack = theirs * 0.01 + 2.0;
        let plain = Agreement::new("syscalls", "syscall_duration_seconds", "bpftrace", ours.count, theirs);
        Agreement { bounds: ours.buckets.len(), ..plain }.record();
        for (le, at_most) in &ours.buckets {
            // bpftrace's bounds are powers of two: the count at ours lies between those around it.
            let ns = if le.is_finite() { (le * 1e9).round() as u64 } else { u64::MAX / 4 };
            let least = below(1 << ns.saturating_sub(TOOL_OVERHEAD_NS).max(1).ilog2());
            let most = below((ns + TOOL_OVERHEAD_NS).next_power_of_two() + 1);
            assert!(
                (least - slack..=most + slack).contains(at_most),
                "{syscall} le={le}: {at_most}, bpftrace has {least}..={most}\n{ours:?}\n{hist:?}"
            );
        }
    }
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_receive_time_of_a_slow_peer_is_waiting_not_work() {
    let agent = Agent::start(&["recvfrom"]);
    let (requests, delay) = (150, Duration::from_millis(6));
    let before = agent.scrape();
    let (address, server) = load::delayed_echo(delay);
    let witness: Vec<f64> = load::ask(address, requests, "kst-client").iter().map(Duration::as_secs_f64).collect();
    server.join().unwrap();
    let after = agent.scrape();
    let labels = [("syscall", "recvfrom"), ("comm", "kst-client")];
    let since = |name| after.histogram(name, &labels).since(&before.histogram(name, &labels));
    let [whole, wait, work] =
        ["kstrobe_recv_duration_seconds", "kstrobe_recv_wait_seconds", "kstrobe_recv_work_seconds"].map(since);
    for histogram in [&whole, &wait, &work] {
        assert_eq!(histogram.count, f64::from(requests), "{histogram:?}");
    }
    // The client's clock sees a call from outside: never shorter, and longer by what interrupts it there.
    let (longest, calls) = (witness.iter().copied().fold(0.0, f64::max), f64::from(requests));
    let sum: f64 = witness.iter().sum();
    assert!((0.9 * sum..=sum).contains(&whole.sum), "{} s of calls, the client says {sum} s", whole.sum);
    for le in [0.005, 0.01, 0.025] {
        let theirs = witness.iter().filter(|s| **s <= le).count() as f64;
        within(&format!("calls of up to {le} s (longest {longest} s)"), whole.at_most(le), theirs, 0.0, 0.05 * calls);
    }
    // Work that held the waiting would never take less than 5 ms; a CPU may be taken away during some calls.
    let (worked, share) = if emulated() { (0.005, 0.7) } else { (0.001, 0.8) };
    assert!(work.at_most(worked) >= share * calls, "work: {work:?}");
    let share = if emulated() { 0.5 } else { 0.8 };
    assert!(wait.at_most(0.005) <= 0.1 * calls && wait.sum > share * whole.sum, "wait: {wait:?} of {whole:?}");
    // The parts make the whole, of the same calls.
    within("wait + work", wait.sum + work.sum, whole.sum, 0.001, 1e-6);
    let counted = Agreement::new("recvfrom", "recv_wait_seconds", "the load", wait.count, f64::from(requests));
    counted.record();
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_softirq_counts_agree_with_proc_softirqs() {
    let agent = Agent::start(&["softirq"]);
    let in_init = TraceInstance::of_init("irq/softirq_entry");
    let outer_before = softirqs();
    let before = agent.scrape();
    let inner_before = softirqs();
    load::datagrams(20_000);
    // An idle machine has few softirqs besides the network's, and a busy CPU alone does not make one at each tick.
    load::receive_timeouts(200);
    let inner_after = softirqs();
    let after = agent.scrape();
    let outer_after = softirqs();
    let count =
        |metrics: &Metrics, vector: &str| metrics.sum("kstrobe_softirq_duration_seconds_count", &[("vector", vector)]);
    // A CPU that is taken away in the middle of a program may keep another from its work, which is counted.
    let losses = ["kstrobe_lost_total", "kstrobe_program_missed_total"];
    let all_lost =
        |metrics: &Metrics| losses.map(|name| metrics.sum(name, &[("probe", "softirq")])).iter().sum::<f64>();
    let lost = all_lost(&after) - all_lost(&before);
    assert!(lost < 100.0, "{lost} events lost");
    // `vec=9 [action=RCU]`
    let hidden = in_init.map(|recorded| recorded.counts("action=", "]")).unwrap_or_default();
    let mut compared = 0;
    for (i, (vector, from)) in inner_before.iter().enumerate() {
        let (inner, outer) = (inner_after[i].1 - from, outer_after[i].1 - outer_before[i].1);
        let ours = count(&after, vector) - count(&before, vector);
        // The scrape lies between two reads of the file on either side.
        let slack = outer * 0.01 + 3.0;
        let unseen = lost + hidden.get(vector.as_str()).copied().unwrap_or_default();
        assert!(
            (inner - slack - unseen..=outer + slack).contains(&ours),
            "{vector}: {ours}, /proc/softirqs {inner}..={outer}, {lost} lost and {unseen} not seen"
        );
        Agreement::new("softirq", "softirq_duration_seconds", "/proc/softirqs", ours, outer).record();
        compared += u32::from(inner > 100.0);
    }
    assert!(compared >= 2, "too little happened to compare: {inner_after:?}");
    assert!(count(&after, "net_rx") - count(&before, "net_rx") > 1_000.0, "the load did not reach net_rx");
    let delay = "kstrobe_softirq_delay_seconds_count";
    assert!(after.sum(delay, &[("vector", "net_rx")]) > before.sum(delay, &[("vector", "net_rx")]), "no delays");
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_retransmitted_segments_agree_with_snmp() {
    if !witnesses("root_retransmitted_segments_agree_with_snmp", &["ip", "nft", "nstat"]) {
        return;
    }
    let (client, server) = Netns::pair();
    server.drop_arriving_tcp(5);
    let (ours, theirs) = retransmits(&client, &server, 64 << 20);
    // Others use the network of this machine too.
    within("retransmitted segments", ours, theirs, 0.01, 2.0);
    Agreement::new("tcp_retransmits", "tcp_retransmits_total", "nstat", ours, theirs).record();
}

#[test]
#[ignore = "needs root"]
fn root_retransmits_under_netem_loss_agree_with_snmp() {
    let test = "root_retransmits_under_netem_loss_agree_with_snmp";
    if !witnesses(test, &["ip", "tc", "nstat"]) {
        return;
    }
    let (client, server) = Netns::pair();
    if let Err(reason) = client.lose_leaving(5).and_then(|()| server.lose_leaving(5)) {
        not_run(test, &reason);
        return;
    }
    // Without segmentation offload each packet can be lost by itself.
    for end in [&client, &server] {
        end.ip(&["link", "set", "eth0", "gso_max_segs", "1"]);
    }
    let (ours, theirs) = retransmits(&client, &server, 1 << 20);
    assert_eq!(ours, theirs, "retransmitted segments: we say {ours}, the witness {theirs}");
}

/// Sends so many bytes over a link that loses some: how many segments were sent again as the agent counted, and as both ends'
/// stacks did.
fn retransmits(client: &Netns, server: &Netns, bytes: u64) -> (f64, f64) {
    let agent = Agent::start(&["tcp_retransmits"]);
    let segments = |metrics: &Metrics| {
        metrics.sum("kstrobe_tcp_retransmits_total", &[]) + metrics.sum("kstrobe_tcp_synack_retransmits_total", &[])
    };
    let before = agent.scrape();
    let (ready, address) = std::sync::mpsc::channel();
    let receiver = server.spawn("kst-receiver", move || {
        let listener = TcpListener::bind("10.99.0.2:0").unwrap();
        ready.send(listener.local_addr().unwrap()).unwrap();
        load::receive_all(&listener)
    });
    let address = address.recv_timeout(Duration::from_secs(5)).unwrap();
    let sender = client.spawn("kst-sender", move || load::send_bytes(address, bytes, Duration::from_secs(20)));
    let sent = sender.join().unwrap();
    // Its end is retransmitted too until it has arrived, so the counters rest once the receiver has seen it.
    assert!(receiver.join().unwrap() <= sent);
    std::thread::sleep(Duration::from_millis(500));
    let ours = segments(&agent.scrape()) - segments(&before);
    let theirs = (client.nstat("TcpRetransSegs") + server.nstat("TcpRetransSegs")) as f64;
    assert!(theirs >= 20.0, "only {theirs} segments were lost of {sent} bytes: nothing to compare");
    let family = [("family", "ipv4")];
    assert!(agent.scrape().has("kstrobe_tcp_retransmits_total", &family), "no series for IPv4");
    agent.stop();
    (ours, theirs)
}

#[test]
#[ignore = "needs root"]
fn root_accept_queue_agrees_with_ss() {
    if !witnesses("root_accept_queue_agrees_with_ss", &["ss"]) {
        return;
    }
    const WAITING: usize = 7;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let clients: Vec<TcpStream> = (0..WAITING).map(|_| TcpStream::connect(address).unwrap()).collect();
    // Polled at the start, then each 15 s.
    let agent = Agent::start(&["tcp_backlog"]);
    let port = address.port().to_string();
    let text = output(Command::new("ss").args(["-Hltn", &format!("sport = :{port}")]));
    // State, Recv-Q (the depth), Send-Q (the limit).
    let columns: Vec<&str> = text.split_whitespace().collect();
    let (depth, limit): (f64, f64) = (columns[1].parse().unwrap(), columns[2].parse().unwrap());
    assert_eq!(depth, WAITING as f64, "ss: {text}");
    let labels = [("port", port.as_str())];
    let polled = wait_for("the polled depth", Duration::from_secs(12), || {
        let metrics = agent.scrape();
        (metrics.sum("kstrobe_tcp_listen_queue_depth", &labels) == depth).then_some(metrics)
    });
    assert_eq!(polled.sum("kstrobe_tcp_listen_queue_limit", &labels), limit);
    Agreement::new("tcp_listen", "tcp_listen_queue_depth", "ss", depth, depth).record();
    for _ in 0..WAITING {
        listener.accept().unwrap();
    }
    let accepted = agent.scrape().histogram("kstrobe_tcp_accept_queue_depth", &labels);
    assert_eq!(accepted.count, WAITING as f64);
    // 7 + 6 + .. + 1: each accept found one less.
    assert_eq!(accepted.sum, (WAITING * (WAITING + 1) / 2) as f64);
    let our_limit = agent.scrape().sum("kstrobe_tcp_accept_queue_limit", &labels);
    assert_eq!(our_limit, limit);
    Agreement::new("tcp_backlog", "tcp_accept_queue_limit", "ss", our_limit, limit).record();
    drop(clients);
    agent.stop();
}

#[test]
fn the_text_format_is_read_as_it_is_written() {
    let text = "# TYPE a histogram\na_bucket{le=\"0.1\",x=\"\\\"q\\\\\\n\"} 1\na_bucket{le=\"+Inf\",x=\"\\\"q\\\\\\n\"} 3\n\
                a_sum{x=\"\\\"q\\\\\\n\"} 2.5e-3\na_count{x=\"\\\"q\\\\\\n\"} 3\nb 7 1700000000\n";
    let metrics = Metrics::parse(text);
    let a = metrics.histogram("a", &[("x", "\"q\\\n")]);
    assert_eq!(a.buckets, [(0.1, 1.0), (f64::INFINITY, 3.0)]);
    assert_eq!((a.sum, a.count, a.at_most(0.1)), (0.0025, 3.0, 1.0));
    assert_eq!(metrics.sum("b", &[]), 7.0);
    assert!(!metrics.has("a_bucke", &[]));
}
