//! Listening TCP sockets by local port, through netlink sock_diag, as `ss -ltn` reads them. No privilege is needed.

use super::sock_diag::{self, Socket};
use super::{Rows, Source, number, small};
use netlink_packet_sock_diag::constants::{TCP_LISTEN, TCP_SYN_RECV};
use netlink_packet_sock_diag::inet::{ExtensionFlags, StateFlags};
use std::collections::BTreeMap;
use std::io;

pub const SOURCE: Source = Source {
    name: "tcp_listen",
    summary: "listening TCP sockets by port, from sock_diag",
    columns: &[small("port"), number("depth"), number("limit"), number("syn")],
    open: || Box::new(read),
};

/// The queues of all listeners on one port, added: with SO_REUSEPORT or separate IPv4 and IPv6 sockets there are several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Queue {
    /// Connections waiting to be accepted.
    depth: u64,
    /// Most that may wait.
    limit: u64,
    /// Handshakes not finished.
    syn: u64,
}

fn read(rows: &mut Rows) -> io::Result<()> {
    let mut listed = Vec::new();
    // SYN_RECV covers the request sockets (TCP_NEW_SYN_RECV) in which a handshake lives since 4.4.
    let states = StateFlags::LISTEN | StateFlags::SYN_RECV;
    sock_diag::each(states, ExtensionFlags::empty(), &mut |socket| listed.push(socket))?;
    for (port, queue) in by_port(&listed) {
        rows.push(&[port.into(), queue.depth.into(), queue.limit.into(), queue.syn.into()]);
    }
    Ok(())
}

fn by_port(listed: &[Socket]) -> BTreeMap<u16, Queue> {
    let port = |socket: &Socket| socket.header.socket_id.source_port;
    let mut ports: BTreeMap<u16, Queue> = BTreeMap::new();
    for socket in listed.iter().filter(|socket| socket.header.state == TCP_LISTEN) {
        let queue = ports.entry(port(socket)).or_default();
        queue.depth += u64::from(socket.header.recv_queue);
        queue.limit += u64::from(socket.header.send_queue);
    }
    // A handshake whose listener has just gone has no row to count in.
    for socket in listed.iter().filter(|socket| socket.header.state == TCP_SYN_RECV) {
        if let Some(queue) = ports.get_mut(&port(socket)) {
            queue.syn += 1;
        }
    }
    ports
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_on_one_port_are_one_row() {
        let socket = |state, port, recv_queue, send_queue| {
            let mut socket = Socket::default();
            socket.header.state = state;
            socket.header.socket_id.source_port = port;
            (socket.header.recv_queue, socket.header.send_queue) = (recv_queue, send_queue);
            socket
        };
        let ports = by_port(&[
            socket(TCP_SYN_RECV, 80, 0, 0),
            socket(TCP_LISTEN, 80, 3, 128),
            socket(TCP_LISTEN, 80, 4, 511),
            socket(TCP_LISTEN, 22, 0, 128),
            socket(TCP_SYN_RECV, 80, 0, 0),
            socket(TCP_SYN_RECV, 9999, 0, 0),
        ]);
        let expected = [(22, Queue { depth: 0, limit: 128, syn: 0 }), (80, Queue { depth: 7, limit: 639, syn: 2 })];
        assert_eq!(ports, BTreeMap::from(expected));
    }
}
