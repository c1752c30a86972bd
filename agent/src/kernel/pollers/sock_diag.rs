//! TCP sockets through netlink sock_diag, as `ss -t` reads them. No privilege is needed.

use super::netlink;
use netlink_packet_core::{DecodeError, NetlinkSerializable, NlasIterator, Parseable};
use netlink_packet_sock_diag::SockDiagMessage;
use netlink_packet_sock_diag::constants::{
    AF_INET, AF_INET6, INET_DIAG_CONG, INET_DIAG_INFO, INET_DIAG_SKMEMINFO, IPPROTO_TCP,
};
use netlink_packet_sock_diag::inet::nlas::{TcpInfo, TcpInfoBuffer};
use netlink_packet_sock_diag::inet::{ExtensionFlags, InetRequest, InetResponseHeader, SocketId, StateFlags};
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use std::io;

/// Bytes of `struct inet_diag_msg`, which attributes follow.
const HEADER_BYTES: usize = 72;

/// One socket, with the extensions that were asked for.
#[derive(Clone, Debug)]
pub struct Socket {
    pub header: InetResponseHeader,
    /// What an older kernel does not know is 0.
    pub info: Option<TcpInfo>,
    /// Algorithm of congestion control.
    pub congestion: String,
    /// Words of `SK_MEMINFO_*`: allocated for receiving, limit; allocated for sending, limit; and so on.
    pub memory: Vec<u32>,
}

impl Default for Socket {
    fn default() -> Socket {
        let header = InetResponseHeader {
            family: AF_INET,
            state: 0,
            timer: None,
            socket_id: SocketId::new_v4(),
            recv_queue: 0,
            send_queue: 0,
            uid: 0,
            inode: 0,
        };
        Socket { header, info: None, congestion: String::new(), memory: Vec::new() }
    }
}

/// A request for the TCP sockets of all families: `struct inet_diag_req` of linux/inet_diag.h, the form before Linux 3.3. The kernel walks
/// its hash of connections for each request, which takes a millisecond for each 16 GiB of the machine's memory; requests of the later form
/// name a family, and it does not take 0 there.
#[derive(Debug)]
struct AllFamilies {
    states: u32,
    extensions: u8,
}

/// Its type, from linux/inet_diag.h.
const TCPDIAG_GETSOCK: u16 = 18;

impl NetlinkSerializable for AllFamilies {
    fn message_type(&self) -> u16 {
        TCPDIAG_GETSOCK
    }

    fn buffer_len(&self) -> usize {
        60
    }

    fn serialize(&self, buffer: &mut [u8]) {
        // The family, lengths of addresses, and ports and addresses, all of them any.
        buffer.fill(0);
        buffer[3] = self.extensions;
        buffer[52..56].copy_from_slice(&self.states.to_ne_bytes());
    }
}

/// The sockets of both families in these states.
pub fn each(states: StateFlags, extensions: ExtensionFlags, each: &mut dyn FnMut(Socket)) -> io::Result<()> {
    let request = AllFamilies { states: states.bits(), extensions: extensions.bits() };
    let mut one = |payload: &[u8]| parse(payload).map(&mut *each);
    match netlink::dump(NETLINK_SOCK_DIAG, request, &mut one) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => {
            each_family(states, extensions, each)
        }
        result => result.map_err(listing),
    }
}

fn listing(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("listing TCP sockets through sock_diag: {error} (CONFIG_INET_DIAG)"))
}

/// The same with a request for each family, for kernels without the other form.
fn each_family(states: StateFlags, extensions: ExtensionFlags, each: &mut dyn FnMut(Socket)) -> io::Result<()> {
    for family in [AF_INET, AF_INET6] {
        let request = InetRequest {
            family,
            protocol: IPPROTO_TCP,
            extensions: extensions.clone(),
            states: states.clone(),
            socket_id: if family == AF_INET { SocketId::new_v4() } else { SocketId::new_v6() },
        };
        let mut one = |payload: &[u8]| parse(payload).map(&mut *each);
        netlink::dump(NETLINK_SOCK_DIAG, SockDiagMessage::InetRequest(request), &mut one).map_err(listing)?;
    }
    Ok(())
}

/// Attributes are read one by one: they differ, and are of other sizes, from kernel to kernel.
fn parse(payload: &[u8]) -> Result<Socket, DecodeError> {
    let mut socket = Socket { header: InetResponseHeader::parse(payload)?, ..Socket::default() };
    for attribute in NlasIterator::new(payload.get(HEADER_BYTES..).unwrap_or(&[])) {
        let attribute = attribute?;
        let value = attribute.value();
        match attribute.kind() {
            INET_DIAG_INFO => {
                let mut whole = value.to_vec();
                whole.resize(value.len().max(size_of::<TcpInfoBuffer>()), 0);
                socket.info = Some(TcpInfo::parse(&whole)?);
            }
            INET_DIAG_CONG => {
                socket.congestion = String::from_utf8_lossy(value).trim_end_matches('\0').to_owned();
            }
            INET_DIAG_SKMEMINFO => {
                socket.memory = value.as_chunks().0.iter().map(|word| u32::from_ne_bytes(*word)).collect();
            }
            _ => {}
        }
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    type List = fn(StateFlags, ExtensionFlags, &mut dyn FnMut(Socket)) -> io::Result<()>;

    #[test]
    fn one_request_lists_the_sockets_of_both_families() {
        // A kernel may be without IPv6.
        let listeners: Vec<_> = ["127.0.0.1:0", "[::1]:0"].into_iter().flat_map(std::net::TcpListener::bind).collect();
        let ports: Vec<u16> = listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
        let list = |list: List| {
            let mut listed = Vec::new();
            let (states, extensions) = (StateFlags::LISTEN | StateFlags::SYN_RECV, ExtensionFlags::CONG);
            list(states, extensions, &mut |socket| {
                let header = socket.header;
                let port = header.socket_id.source_port;
                if ports.contains(&port) {
                    listed.push((
                        ports.iter().position(|own| *own == port),
                        header.family,
                        header.state,
                        socket.congestion,
                    ));
                }
            })
            .unwrap();
            listed.sort();
            listed
        };
        let at_once = list(super::each);
        let summary: Vec<_> = at_once.iter().map(|(at, family, state, _)| (*at, *family, *state)).collect();
        let expected = [(Some(0), AF_INET, 10), (Some(1), AF_INET6, 10)];
        assert_eq!(summary, expected[..listeners.len()]);
        assert!(!summary.is_empty());
        assert_eq!(at_once, list(each_family));
    }

    #[test]
    fn an_older_kernels_shorter_record_is_read() {
        let mut payload = vec![0; HEADER_BYTES];
        (payload[0], payload[1]) = (AF_INET, 1);
        // A tcp_info of 104 bytes, as of Linux 3: 68 is the time of a round trip.
        let mut info = vec![0; 104];
        info[68..72].copy_from_slice(&1234u32.to_ne_bytes());
        payload.extend((4 + info.len() as u16).to_ne_bytes());
        payload.extend(INET_DIAG_INFO.to_ne_bytes());
        payload.extend(info);
        payload.extend([10, 0]);
        payload.extend(INET_DIAG_CONG.to_ne_bytes());
        payload.extend(*b"cubic\0\0\0");
        let socket = parse(&payload).unwrap();
        let info = socket.info.unwrap();
        assert_eq!((socket.header.state, info.rtt, info.bytes_acked), (1, 1234, 0));
        assert_eq!(socket.congestion, "cubic");
        assert!(parse(&[2, 10]).is_err(), "cut off");
    }
}
