//! Connections, datagrams and local sockets on loopback.

use super::{Made, Oracle, Row, compare, counts, named};
use nix::sys::socket::{setsockopt, sockopt};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Mutex;
use std::time::Duration;

const CONNECTIONS: u32 = 20;
const BYTES: usize = 5000;

/// A server's socket on a port that no load before it has had: rows tell their loads apart by the port, and the kernel gives the
/// same one twice in one of some 70 runs.
fn on_a_new_port() -> TcpListener {
    static PORTS: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    loop {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        if PORTS.lock().unwrap().insert(listener.local_addr().unwrap().port()) {
            return listener;
        }
    }
}

/// A server that takes so many connections, reads a block from each and answers with another, in a thread of this name.
fn served(count: u32, comm: &str, client: impl FnOnce(SocketAddr)) -> u16 {
    let listener = on_a_new_port();
    let address = listener.local_addr().unwrap();
    let serve = move || {
        for _ in 0..count {
            let (mut stream, _) = listener.accept().unwrap();
            let mut block = vec![0; BYTES];
            stream.read_exact(&mut block).unwrap();
            stream.write_all(&block).unwrap();
            // The client closes first.
            assert_eq!(stream.read(&mut block).unwrap(), 0);
        }
    };
    let server = std::thread::Builder::new().name(comm.to_owned()).spawn(serve).unwrap();
    client(address);
    server.join().unwrap();
    address.port()
}

fn exchange(address: SocketAddr) {
    let mut stream = TcpStream::connect(address).unwrap();
    let mut block = vec![7; BYTES];
    stream.write_all(&block).unwrap();
    stream.read_exact(&mut block).unwrap();
}

fn exchanges(address: SocketAddr) {
    (0..CONNECTIONS).for_each(|_| exchange(address));
}

fn connects(comm: &str) -> Made {
    let port = served(CONNECTIONS, "kst-other", |address| named(comm, || exchanges(address)));
    Made::events(CONNECTIONS).with("port", port)
}

fn accepts(comm: &str) -> Made {
    Made::events(CONNECTIONS).with("port", served(CONNECTIONS, comm, exchanges))
}

fn server_port(_: &str) -> Made {
    Made::events(CONNECTIONS).with("port", served(CONNECTIONS, "kst-other", exchanges))
}

fn bytes(_: &str) -> Made {
    let made = server_port("");
    Made { count: f64::from(CONNECTIONS) * BYTES as f64, ..made }
}

fn sends(comm: &str) -> Made {
    served(CONNECTIONS, "kst-other", |address| named(comm, || exchanges(address)));
    // What is sent and what is received.
    Made::events(2.0 * f64::from(CONNECTIONS) * BYTES as f64)
}

fn refusals(_: &str) -> Made {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for _ in 0..CONNECTIONS {
        assert!(TcpStream::connect(("127.0.0.1", port)).is_err(), "nothing listens there");
    }
    Made::events(CONNECTIONS).with("remote_port", port)
}

fn any_refusals(_: &str) -> Made {
    Made { labels: Vec::new(), ..refusals("") }
}

/// More than a small buffer takes.
fn flood(_: &str) -> Made {
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    setsockopt(&receiver, sockopt::RcvBuf, &4096).unwrap();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = receiver.local_addr().unwrap();
    (0..200).for_each(|_| assert_eq!(sender.send_to(&[1; 512], address).unwrap(), 512));
    receiver.set_nonblocking(true).unwrap();
    let mut block = [0; 512];
    let received = std::iter::from_fn(|| receiver.recv(&mut block).ok()).count();
    assert!(received < 200, "all fits the buffer");
    Made::events((200 - received) as f64).with("port", address.port())
}

/// Queries to a server on loopback that knows no name.
fn queries(comm: &str) -> Made {
    let server = UdpSocket::bind("127.77.0.53:53").unwrap();
    let serve = move || {
        let mut packet = [0; 512];
        for _ in 0..CONNECTIONS {
            let (length, from) = server.recv_from(&mut packet).unwrap();
            (packet[2], packet[3]) = (0x81, 0x83);
            server.send_to(&packet[..length], from).unwrap();
        }
    };
    let server = std::thread::spawn(serve);
    named(comm, || {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        for id in 0..CONNECTIONS as u16 {
            let mut query = id.to_be_bytes().to_vec();
            query.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
            query.extend(b"\x03kst\x04test\x00\x00\x01\x00\x01");
            // Half of the queries are from a socket that is not connected.
            let mut answer = [0; 512];
            socket.send_to(&query, "127.77.0.53:53").unwrap();
            assert_eq!(socket.recv(&mut answer).unwrap(), query.len());
        }
    });
    server.join().unwrap();
    Made::events(CONNECTIONS)
}

fn closed_port(_: &str) -> Made {
    let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    (0..CONNECTIONS).for_each(|_| assert_eq!(socket.send_to(&[1; 64], ("127.0.0.1", port)).unwrap(), 64));
    Made::events(CONNECTIONS)
}

/// Datagrams between two addresses of a network of loopback.
fn datagrams(network: u8) -> Made {
    let [from, to] = [1, 2].map(|host| UdpSocket::bind(format!("127.77.{network}.{host}:0")).unwrap());
    let mut block = [0; 64];
    for _ in 0..CONNECTIONS {
        from.send_to(&[1; 64], to.local_addr().unwrap()).unwrap();
        to.recv(&mut block).unwrap();
    }
    Made::events(CONNECTIONS)
}

pub(super) fn flow(_: &str) -> Made {
    datagrams(1)
}

/// Nothing else uses these addresses.
fn own_flow(_: &str) -> Made {
    datagrams(2)
}

fn local_server(count: u32, comm: &str, client: impl FnOnce(&std::path::Path)) {
    let folder = super::support::Folder::new();
    let path = folder.0.join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let serve = move || (0..count).for_each(|_| drop(listener.accept().unwrap()));
    let server = std::thread::Builder::new().name(comm.to_owned()).spawn(serve).unwrap();
    client(&path);
    server.join().unwrap();
}

fn local_accepts(comm: &str) -> Made {
    local_server(CONNECTIONS, comm, |path| (0..CONNECTIONS).for_each(|_| drop(UnixStream::connect(path).unwrap())));
    Made::events(CONNECTIONS)
}

pub(super) fn local_connects(comm: &str) -> Made {
    local_server(CONNECTIONS, "kst-other", |path| {
        named(comm, || (0..CONNECTIONS).for_each(|_| drop(UnixStream::connect(path).unwrap())));
    });
    Made::events(CONNECTIONS)
}

fn binds(comm: &str) -> Made {
    named(comm, || (0..CONNECTIONS).for_each(|_| drop(UdpSocket::bind("127.0.0.1:0").unwrap())));
    Made::events(CONNECTIONS)
}

fn listens(comm: &str) -> Made {
    named(comm, || (0..CONNECTIONS).for_each(|_| drop(TcpListener::bind("127.0.0.1:0").unwrap())));
    Made::events(CONNECTIONS)
}

/// A client that writes to a server which does not read, and stays open.
fn unread(_: &str) -> Made {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(&[1; BYTES]).unwrap();
    // The series has the smaller one of the two ports, whichever end that is.
    let port = address.port().min(client.local_addr().unwrap().port());
    // Both ends and what is between them stay until the test's process ends.
    std::mem::forget((listener.accept().unwrap(), client));
    Made::events(BYTES as f64).with("port", port)
}

pub(super) fn nothing_but_others(_: &str) -> Made {
    closed_port("");
    Made::events(1)
}

const ROWS: &[Row] = &[
    Row {
        probe: "tcp_connects",
        metric: "tcp_connects_total",
        labels: &[("comm", "COMM"), ("family", "ipv4")],
        exact: true,
        oracle: counts(
            "tracepoint:sock:inet_sock_set_state /args->oldstate == 7 && args->newstate == 2 && comm == \"COMM\"/",
        ),
        load: connects,
    },
    Row {
        probe: "tcp_accepts",
        metric: "tcp_accepts_total",
        labels: &[("comm", "COMM")],
        exact: true,
        oracle: counts("tracepoint:syscalls:sys_exit_accept4 /args->ret >= 0 && comm == \"COMM\"/"),
        load: accepts,
    },
    Row {
        probe: "tcp_accept_latency",
        metric: "tcp_accept_wait_seconds_count",
        labels: &[("comm", "COMM")],
        exact: true,
        oracle: counts("tracepoint:syscalls:sys_exit_accept4 /args->ret >= 0 && comm == \"COMM\"/"),
        load: accepts,
    },
    Row {
        probe: "tcp_life",
        metric: "tcp_life_connections_total",
        labels: &[("server", "true")],
        exact: true,
        oracle: Oracle::None,
        load: server_port,
    },
    Row {
        probe: "tcp_life",
        metric: "tcp_life_received_bytes_total",
        labels: &[("server", "true")],
        exact: true,
        oracle: Oracle::None,
        load: bytes,
    },
    Row {
        probe: "tcp_life",
        metric: "tcp_life_sent_bytes_total",
        labels: &[("server", "true")],
        exact: true,
        oracle: Oracle::None,
        load: bytes,
    },
    Row {
        probe: "tcp_life",
        metric: "tcp_life_sent_bytes_total",
        labels: &[("server", "false")],
        exact: true,
        oracle: Oracle::None,
        load: bytes,
    },
    Row {
        probe: "tcp_life",
        metric: "tcp_life_received_bytes_total",
        labels: &[("server", "false")],
        exact: true,
        oracle: Oracle::None,
        load: bytes,
    },
    Row {
        probe: "tcp_states",
        metric: "tcp_state_duration_seconds_count",
        labels: &[("state", "syn_sent"), ("next", "established")],
        exact: false,
        oracle: counts("tracepoint:sock:inet_sock_set_state /args->oldstate == 2 && args->newstate == 1/"),
        load: connects_anywhere,
    },
    Row {
        probe: "tcp_rtt",
        metric: "tcp_rtt_seconds_count",
        labels: &[],
        exact: false,
        oracle: counts("tracepoint:tcp:tcp_probe"),
        load: connects_anywhere,
    },
    Row {
        probe: "tcp_window",
        metric: "tcp_congestion_window_segments_count",
        labels: &[],
        exact: false,
        oracle: counts("tracepoint:tcp:tcp_probe"),
        load: connects_anywhere,
    },
    Row {
        probe: "tcp_first_byte",
        metric: "tcp_first_byte_seconds_count",
        labels: &[("server", "false")],
        exact: true,
        oracle: Oracle::None,
        load: server_port,
    },
    Row {
        probe: "tcp_resets_received",
        metric: "tcp_resets_received_total",
        labels: &[("state", "syn_sent")],
        exact: true,
        oracle: Oracle::None,
        load: refusals,
    },
    Row {
        probe: "tcp_resets_sent",
        metric: "tcp_resets_sent_total",
        labels: &[],
        exact: false,
        oracle: counts("tracepoint:tcp:tcp_send_reset"),
        load: any_refusals,
    },
    Row {
        probe: "socket_traffic",
        metric: "socket_bytes_total",
        labels: &[("comm", "COMM"), ("protocol", "tcp")],
        exact: true,
        oracle: Oracle::None,
        load: sends,
    },
    Row {
        probe: "socket_send_sizes",
        metric: "socket_send_size_bytes_count",
        labels: &[],
        exact: false,
        oracle: counts("tracepoint:sock:sock_send_length /args->ret > 0/"),
        load: flow,
    },
    Row {
        probe: "udp_drops",
        metric: "udp_drops_total",
        labels: &[("errno", "ENOMEM")],
        exact: true,
        oracle: Oracle::None,
        load: flood,
    },
    Row {
        probe: "dns",
        metric: "dns_duration_seconds_count",
        labels: &[("comm", "COMM"), ("server", "127.77.0.53"), ("rcode", "NXDOMAIN")],
        exact: true,
        oracle: Oracle::None,
        load: queries,
    },
    Row {
        probe: "icmp_sent",
        metric: "icmp_sent_total",
        labels: &[("type", "unreachable"), ("code", "3")],
        exact: false,
        oracle: counts("tracepoint:icmp:icmp_send /args->type == 3 && args->code == 3/"),
        load: closed_port,
    },
    Row {
        probe: "icmp_received",
        metric: "icmp_received_total",
        labels: &[("type", "unreachable"), ("device", "lo")],
        exact: false,
        oracle: counts("tracepoint:icmp:icmp_send /args->type == 3 && args->code == 3/"),
        load: closed_port,
    },
    Row {
        probe: "network_counters",
        metric: "network_protocol_events_total",
        labels: &[("name", "UdpNoPorts")],
        exact: false,
        oracle: Oracle::None,
        load: nothing_but_others,
    },
    Row {
        probe: "network_queue_sent",
        metric: "network_queue_sent_packets_total",
        labels: &[("device", "lo")],
        exact: false,
        oracle: counts("tracepoint:net:net_dev_start_xmit /str(args->name) == \"lo\"/"),
        load: flow,
    },
    Row {
        probe: "network_queue_received",
        metric: "network_queue_received_packets_total",
        labels: &[("device", "lo")],
        exact: false,
        oracle: counts("tracepoint:net:netif_receive_skb /str(args->name) == \"lo\"/"),
        load: flow,
    },
    Row {
        probe: "packet_flows",
        metric: "packet_flow_packets_total",
        labels: &[("source", "127.77.2.1"), ("destination", "127.77.2.2")],
        exact: true,
        oracle: Oracle::None,
        load: own_flow,
    },
    Row {
        probe: "napi",
        metric: "napi_poll_packets_count",
        labels: &[],
        exact: false,
        oracle: counts("tracepoint:napi:napi_poll"),
        load: nothing_but_others,
    },
    Row {
        probe: "unix_accept_queue",
        metric: "unix_accept_queue_depth_count",
        labels: &[("comm", "COMM")],
        exact: true,
        oracle: counts("tracepoint:syscalls:sys_exit_accept4 /args->ret >= 0 && comm == \"COMM\"/"),
        load: local_accepts,
    },
    Row {
        probe: "unix_connect",
        metric: "unix_connect_duration_seconds_count",
        labels: &[("comm", "COMM")],
        exact: true,
        oracle: counts("tracepoint:syscalls:sys_exit_connect /comm == \"COMM\"/"),
        load: local_connects,
    },
    Row {
        probe: "unix_sockets",
        metric: "unix_sockets",
        labels: &[],
        exact: false,
        oracle: Oracle::None,
        load: nothing_but_others,
    },
    Row {
        probe: "tcp_queues",
        metric: "tcp_unread_bytes",
        labels: &[],
        exact: true,
        oracle: Oracle::None,
        load: unread,
    },
    Row {
        probe: "binds",
        metric: "binds_total",
        labels: &[("comm", "COMM"), ("family", "ipv4"), ("failed", "false")],
        exact: true,
        oracle: counts("tracepoint:syscalls:sys_exit_bind /comm == \"COMM\"/"),
        load: binds,
    },
    Row {
        probe: "listens",
        metric: "listens_total",
        labels: &[("comm", "COMM"), ("failed", "false")],
        exact: true,
        oracle: counts("tracepoint:syscalls:sys_exit_listen /comm == \"COMM\"/"),
        load: listens,
    },
];

pub(super) fn connects_anywhere(comm: &str) -> Made {
    Made { labels: Vec::new(), ..connects(comm) }
}

#[test]
#[ignore = "needs root"]
fn root_network_probes_count_what_bpftrace_and_loads_do() {
    compare("root_network_probes_count_what_bpftrace_and_loads_do", ROWS);
}
