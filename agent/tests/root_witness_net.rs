//! The probes of packets against the kernel's own counters of namespaces and devices that only the test uses.

mod support;

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;
use support::agent::{Agent, Setup};
use support::netns::Netns;
use support::{Agreement, lab, wait_for, witnesses};

const DROPS: &str = include_str!("../../probes/network/drops.yaml");
/// Bytes of an Ethernet header, and of those of IPv4 and UDP.
const LINK_HEADER: f64 = 14.0;
const HEADERS: f64 = 28.0;

#[test]
#[ignore = "needs root"]
fn root_drops_at_a_closed_port_are_those_of_nstat() {
    if !witnesses("root_drops_at_a_closed_port_are_those_of_nstat", &["ip", "nstat"]) {
        return;
    }
    const DATAGRAMS: u32 = 500;
    let netns = Netns::new("drops");
    let inode = std::fs::metadata(format!("/run/netns/{}", netns.name)).unwrap().ino();
    // Others drop packets too: the shipped probe, of packets of this namespace only.
    let hook = "at: rawtracepoint:kfree_skb\n";
    assert!(DROPS.contains(hook));
    let here = format!("{hook}where: args.skb.dev.nd_net.net.ns.inum == {inode}\n");
    let probe = DROPS.replace(hook, &here);
    let agent = Setup { probes: &[("drops", &probe)], arguments: &["--enable", "packet_drops"], ..Setup::default() };
    let agent = agent.start();
    let send = || {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        // The discard port, where nobody listens in a new namespace.
        (0..DATAGRAMS).for_each(|_| assert_eq!(socket.send_to(&[1; 64], "127.0.0.1:9").unwrap(), 64));
    };
    netns.spawn("kst-drops", send).join().unwrap();
    let dropped = netns.nstat("UdpNoPorts") as f64;
    assert_eq!(dropped, f64::from(DATAGRAMS));
    let reason = if lab().as_deref() == Some("5.10") { "NOT_SPECIFIED" } else { "NO_SOCKET" };
    let name = "kstrobe_packet_drops_total";
    let metrics = wait_for("all drops", Duration::from_secs(5), || {
        let metrics = agent.scrape();
        (metrics.sum(name, &[("reason", reason)]) >= dropped).then_some(metrics)
    });
    // The compiler may put the one into the other; the kernel's next versions do.
    let functions = ["__udp4_lib_rcv", "udp_rcv"];
    let ours: f64 =
        functions.iter().map(|function| metrics.sum(name, &[("reason", reason), ("function", function)])).sum();
    let all: Vec<_> = metrics.series(name, &[]).collect();
    assert_eq!(ours, dropped, "{all:?}");
    Agreement::new("packet_drops", "packet_drops_total", "nstat", ours, dropped).record();
    agent.stop();
}

/// Packets and bytes received, then sent, of a device in a namespace.
fn device_counters(netns: &Netns, device: &str) -> [f64; 4] {
    let read = || std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let text = netns.spawn("kst-counters", read).join().unwrap();
    let counters = text.lines().find_map(|line| line.trim().strip_prefix(device)?.strip_prefix(':'));
    let counters = counters.unwrap_or_else(|| panic!("no {device} in {text}"));
    let n: Vec<f64> = counters.split_whitespace().map(|n| n.parse().unwrap()).collect();
    [n[1], n[0], n[9], n[8]]
}

/// A veth pair whose devices have names of their own, without IPv6, whose announcements would come at any time.
fn quiet_pair() -> [(Netns, String); 2] {
    let (a, b) = Netns::pair();
    [(a, 'a'), (b, 'b')].map(|(netns, letter)| {
        let device = format!("kst{}{letter}", std::process::id());
        netns.ip(&["link", "set", "eth0", "down"]);
        netns.ip(&["link", "set", "eth0", "name", &device]);
        let no_ipv6 = || {
            // A kernel without IPv6 has no such file.
            let _ = std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1");
        };
        netns.spawn("kst-no-ipv6", no_ipv6).join().unwrap();
        netns.ip(&["link", "set", &device, "up"]);
        (netns, device)
    })
}

fn socket(netns: &Netns, address: &str) -> UdpSocket {
    let address: Ipv4Addr = address.parse().unwrap();
    let make = move || UdpSocket::bind(SocketAddr::from((address, 0))).unwrap();
    let socket = netns.spawn("kst-socket", make).join().unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket
}

#[test]
#[ignore = "needs root"]
fn root_packet_sizes_are_those_of_the_devices() {
    if !witnesses("root_packet_sizes_are_those_of_the_devices", &["ip"]) {
        return;
    }
    const EACH: usize = 200;
    // Payloads whose packets are, as received, 58 bytes, exactly at two bounds, and of a full frame.
    const PAYLOADS: [usize; 4] = [30, 100, 484, 1472];
    let [(a, sender), (b, receiver)] = quiet_pair();
    let agent = Setup { arguments: &["--enable", "packet_sizes"], ..Setup::default() }.start();
    let before = [device_counters(&a, &sender), device_counters(&b, &receiver)];
    let (from, to) = (socket(&a, "10.99.0.1"), socket(&b, "10.99.0.2"));
    let address = to.local_addr().unwrap();
    let mut buffer = [0; 2048];
    for payload in PAYLOADS {
        for _ in 0..EACH {
            from.send_to(&buffer[..payload], address).unwrap();
            assert_eq!(to.recv(&mut buffer).unwrap(), payload);
        }
    }
    compare(&agent, [(&a, &sender), (&b, &receiver)], before);
    let metrics = agent.scrape();
    for (name, device, more) in [
        ("kstrobe_received_packet_bytes", &receiver, HEADERS),
        ("kstrobe_sent_packet_bytes", &sender, HEADERS + LINK_HEADER),
    ] {
        let sizes = metrics.histogram(name, &[("device", device)]);
        // ARP's packets are smaller than the first bound.
        for bound in (7..=16).map(|k| f64::from(1 << k)) {
            let fits = |payload: &&usize| (bound / 2.0 + 1.0..=bound).contains(&(**payload as f64 + more));
            let expected = (PAYLOADS.iter().filter(fits).count() * EACH) as f64;
            assert_eq!(sizes.at_most(bound) - sizes.at_most(bound / 2.0), expected, "{name} up to {bound}: {sizes:?}");
        }
    }
    agent.stop();
}

/// Since `before` both ends have as many packets and bytes as the kernel counts. No bytes of the link's header are in
/// received packets. The devices are new: the agent has seen nothing of them before.
fn compare(agent: &Agent, ends: [(&Netns, &String); 2], before: [[f64; 4]; 2]) {
    let metrics = agent.scrape();
    for ((netns, device), before) in ends.into_iter().zip(before) {
        let now = device_counters(netns, device);
        let [received, received_bytes, sent, sent_bytes] = [0, 1, 2, 3].map(|i| now[i] - before[i]);
        let labels = [("device", device.as_str())];
        let ours = metrics.histogram("kstrobe_received_packet_bytes", &labels);
        assert_eq!((ours.count, ours.sum), (received, received_bytes - LINK_HEADER * received), "{device} received");
        let ours = metrics.histogram("kstrobe_sent_packet_bytes", &labels);
        assert_eq!((ours.count, ours.sum), (sent, sent_bytes), "{device} sent");
        Agreement::new("packets_sent", "sent_packet_bytes", "/proc/net/dev", ours.count, sent).record();
    }
}
