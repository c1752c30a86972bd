//! Things that are sent once, put together into requests of bounded size.

use super::{MAX_REQUEST_BYTES, NESTED_BYTES};
use crate::part::Part;
use prost::Message;

/// As many requests as it takes, each made of some of the messages.
pub(super) fn bundle<M: Message>(
    messages: impl Iterator<Item = M>,
    envelope_bytes: usize,
    request: impl Fn(Vec<M>) -> Vec<u8>,
) -> Vec<Part> {
    let envelope_bytes = envelope_bytes + 3 * NESTED_BYTES;
    let (mut done, mut some, mut bytes) = (Vec::new(), Vec::new(), envelope_bytes);
    let part = |some: Vec<M>| Part { points: some.len() as u64, body: request(some), runs: Vec::new() };
    for message in messages {
        let size = message.encoded_len() + NESTED_BYTES;
        if bytes + size > MAX_REQUEST_BYTES && !some.is_empty() {
            done.push(part(std::mem::take(&mut some)));
            bytes = envelope_bytes;
        }
        bytes += size;
        some.push(message);
    }
    if !some.is_empty() {
        done.push(part(some));
    }
    done
}
