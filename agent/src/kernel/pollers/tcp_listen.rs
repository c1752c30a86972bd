//! Listening TCP sockets by local port, through netlink sock_diag, as `ss -ltn` reads them. No privilege is needed.

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer, NetlinkHeader, NetlinkMessage, Parseable,
};
use netlink_packet_sock_diag::SockDiagMessage;
use netlink_packet_sock_diag::constants::{
    AF_INET, AF_INET6, IPPROTO_TCP, SOCK_DIAG_BY_FAMILY, TCP_LISTEN, TCP_SYN_RECV,
};
use netlink_packet_sock_diag::inet::{ExtensionFlags, InetRequest, InetResponseHeader, SocketId, StateFlags};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_SOCK_DIAG};
use std::collections::BTreeMap;
use std::io;

/// The kernel fills dump messages up to 32 KiB when the receiver offers as much.
const RECEIVE_BYTES: usize = 64 << 10;

/// The queues of all listeners on one port, added: with SO_REUSEPORT or separate IPv4 and IPv6 sockets there are several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// Connections waiting to be accepted.
    pub depth: u64,
    /// Most that may wait.
    pub limit: u64,
    /// Handshakes not finished.
    pub syn: u64,
}

/// One socket of a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Listed {
    state: u8,
    port: u16,
    receive_queue: u32,
    send_queue: u32,
}

/// The queues by port.
pub fn read() -> io::Result<BTreeMap<u16, Queue>> {
    let socket = Socket::new(NETLINK_SOCK_DIAG)?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut listed = Vec::new();
    for (sequence, family) in [(1, AF_INET), (2, AF_INET6)] {
        dump(&socket, sequence, family, &mut listed).map_err(|error| {
            io::Error::new(error.kind(), format!("listing TCP sockets through sock_diag: {error} (CONFIG_INET_DIAG)"))
        })?;
    }
    Ok(by_port(&listed))
}

fn by_port(listed: &[Listed]) -> BTreeMap<u16, Queue> {
    let mut ports: BTreeMap<u16, Queue> = BTreeMap::new();
    for socket in listed.iter().filter(|socket| socket.state == TCP_LISTEN) {
        let queue = ports.entry(socket.port).or_default();
        queue.depth += u64::from(socket.receive_queue);
        queue.limit += u64::from(socket.send_queue);
    }
    // A handshake whose listener has just gone has no row to count in.
    for socket in listed.iter().filter(|socket| socket.state == TCP_SYN_RECV) {
        if let Some(queue) = ports.get_mut(&socket.port) {
            queue.syn += 1;
        }
    }
    ports
}

fn dump(socket: &Socket, sequence: u32, family: u8, listed: &mut Vec<Listed>) -> io::Result<()> {
    socket.send(&request(sequence, family), 0)?;
    let mut buffer = vec![0; RECEIVE_BYTES];
    loop {
        let received = match socket.recv(&mut &mut buffer[..], 0) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            result => result?,
        };
        if received > buffer.len() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a message was cut off"));
        }
        if parse(&buffer[..received], sequence, listed)? {
            return Ok(());
        }
    }
}

fn request(sequence: u32, family: u8) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    header.sequence_number = sequence;
    let body = InetRequest {
        family,
        protocol: IPPROTO_TCP,
        extensions: ExtensionFlags::empty(),
        // SYN_RECV covers the request sockets (TCP_NEW_SYN_RECV) in which a handshake lives since 4.4.
        states: StateFlags::LISTEN | StateFlags::SYN_RECV,
        socket_id: if family == AF_INET { SocketId::new_v4() } else { SocketId::new_v6() },
    };
    let mut message = NetlinkMessage::new(header, SockDiagMessage::InetRequest(body).into());
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

/// Collects the sockets of one datagram; true when the dump is complete. Only the fixed header of each socket is read:
/// attributes differ from kernel to kernel.
fn parse(mut datagram: &[u8], sequence: u32, listed: &mut Vec<Listed>) -> io::Result<bool> {
    let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    while !datagram.is_empty() {
        let message = NetlinkBuffer::new_checked(datagram).map_err(|error| invalid(error.to_string()))?;
        let length = (message.length() as usize).next_multiple_of(4);
        let payload = message.payload();
        match message.message_type() {
            _ if message.sequence_number() != sequence => {}
            // Both begin with a negative error number; 0 ends a dump that went well.
            NLMSG_DONE | NLMSG_ERROR => match payload.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code)) {
                0 => return Ok(true),
                code => return Err(io::Error::from_raw_os_error(code.wrapping_neg())),
            },
            SOCK_DIAG_BY_FAMILY => {
                let socket = InetResponseHeader::parse(payload).map_err(|error| invalid(error.to_string()))?;
                listed.push(Listed {
                    state: socket.state,
                    port: socket.socket_id.source_port,
                    receive_queue: socket.recv_queue,
                    send_queue: socket.send_queue,
                });
            }
            _ => {}
        }
        datagram = datagram.get(length..).unwrap_or(&[]);
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_on_one_port_are_one_row() {
        let socket = |state, port, receive_queue, send_queue| Listed { state, port, receive_queue, send_queue };
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

    fn message(kind: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = (16 + payload.len() as u32).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(2u16.to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(payload);
        bytes
    }

    #[test]
    fn refusals_are_errors_and_other_answers_are_skipped() {
        let mut listed = vec![];
        let refused = message(NLMSG_ERROR, 7, &(-2i32).to_ne_bytes());
        assert_eq!(parse(&refused, 7, &mut listed).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(!parse(&refused, 8, &mut listed).unwrap(), "the answer to an older request");
        assert!(parse(&message(NLMSG_DONE, 7, &[0; 4]), 7, &mut listed).unwrap());
        assert!(
            parse(&message(NLMSG_DONE, 7, &(-12i32).to_ne_bytes()), 7, &mut listed).is_err(),
            "out of memory half way"
        );
        assert!(parse(&message(SOCK_DIAG_BY_FAMILY, 7, &[2, 10]), 7, &mut listed).is_err(), "cut off");
        assert!(parse(&[1, 2, 3], 7, &mut listed).is_err());
        assert!(listed.is_empty());
    }
}
