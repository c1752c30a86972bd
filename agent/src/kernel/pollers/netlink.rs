//! Tables that the kernel gives through netlink: one request, and its answers until the last.

use netlink_packet_core::{
    DecodeError, NLM_F_DUMP, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NLMSG_NOOP, NLMSG_OVERRUN, NetlinkBuffer,
    NetlinkHeader, NetlinkMessage, NetlinkSerializable,
};
use netlink_sys::{Socket, SocketAddr};
use std::io;

/// The kernel fills dump messages up to 32 KiB when the receiver offers as much.
const RECEIVE_BYTES: usize = 64 << 10;
const SEQUENCE: u32 = 1;

/// What is done with each answer.
pub type Each<'a> = &'a mut dyn FnMut(&[u8]) -> Result<(), DecodeError>;

/// Asks for a table and hands over its rows, without the header that all messages have.
pub fn dump(protocol: isize, request: impl NetlinkSerializable, each: Each<'_>) -> io::Result<()> {
    let socket = Socket::new(protocol)?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.send(&serialized(request), 0)?;
    let mut buffer = vec![0; RECEIVE_BYTES];
    loop {
        let received = match socket.recv(&mut &mut buffer[..], 0) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            result => result?,
        };
        if received > buffer.len() {
            return Err(invalid("a message was cut off"));
        }
        if parse(&buffer[..received], each)? {
            return Ok(());
        }
    }
}

fn serialized(request: impl NetlinkSerializable) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    header.sequence_number = SEQUENCE;
    let mut message = NetlinkMessage::new(header, netlink_packet_core::NetlinkPayload::InnerMessage(request));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

/// Hands over the answers of one datagram; true when the dump is complete.
fn parse(mut datagram: &[u8], each: Each<'_>) -> io::Result<bool> {
    while !datagram.is_empty() {
        let message = NetlinkBuffer::new_checked(datagram).map_err(|error| invalid(&error.to_string()))?;
        let length = (message.length() as usize).next_multiple_of(4);
        let payload = message.payload();
        match message.message_type() {
            _ if message.sequence_number() != SEQUENCE => {}
            // Both begin with a negative error number; 0 ends a dump that went well.
            NLMSG_DONE | NLMSG_ERROR => match payload.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code)) {
                0 => return Ok(true),
                code => return Err(io::Error::from_raw_os_error(code.wrapping_neg())),
            },
            NLMSG_NOOP | NLMSG_OVERRUN => {}
            _ => each(payload).map_err(|error| invalid(&error.to_string()))?,
        }
        datagram = datagram.get(length..).unwrap_or(&[]);
    }
    Ok(false)
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let mut answers = Vec::new();
        let mut each = |payload: &[u8]| match payload {
            [] => Err(DecodeError::from("nothing")),
            payload => {
                answers.push(payload.to_vec());
                Ok(())
            }
        };
        let refused = |sequence| message(NLMSG_ERROR, sequence, &(-2i32).to_ne_bytes());
        assert_eq!(parse(&refused(SEQUENCE), &mut each).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(!parse(&refused(9), &mut each).unwrap(), "the answer to another request");
        let row = message(20, SEQUENCE, &[2, 10, 0, 0]);
        assert!(!parse(&row, &mut each).unwrap());
        let last = [row, message(NLMSG_DONE, SEQUENCE, &[0; 4])].concat();
        assert!(parse(&last, &mut each).unwrap());
        let out_of_memory = message(NLMSG_DONE, SEQUENCE, &(-12i32).to_ne_bytes());
        assert!(parse(&out_of_memory, &mut each).is_err(), "out of memory half way");
        assert!(parse(&message(20, SEQUENCE, &[]), &mut each).is_err(), "an answer that is none");
        assert!(parse(&[1, 2, 3], &mut each).is_err());
        assert_eq!(answers, [[2, 10, 0, 0], [2, 10, 0, 0]]);
    }
}
