//! How much of what a client may take.

use std::time::Duration;

/// Bounds on connections and requests; what is over them is refused and counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections open at once, over all addresses. One more takes the place of the one that has been idle, or slow to ask,
    /// for longest.
    pub connections: usize,
    /// Requests at once, over all connections, from their first byte to the last of the answer.
    pub requests: usize,
    /// Requests at once on a connection of HTTP/2.
    pub streams: u32,
    /// Header fields of a request.
    pub headers: usize,
    /// Bytes of a request's header.
    pub header_bytes: usize,
    /// Until the handshake of TLS is done.
    pub handshake: Duration,
    /// From the first byte of a request's header, or a new connection, to the header's end.
    pub header_time: Duration,
    /// A connection without a request is kept so long; above the usual scrape interval of a minute.
    pub idle: Duration,
    /// Bytes of a request's body; routes may ask for less.
    pub body_bytes: usize,
    /// Until a request's body is there.
    pub body_time: Duration,
    /// A client that takes nothing of its answer for so long is given up.
    pub stall: Duration,
    /// How long answers under way may take once the server stops.
    pub drain: Duration,
}

/// Fewest connections, however few descriptors there are: `/healthz` and `/metrics` must answer.
const MIN_CONNECTIONS: usize = 4;
/// Of the descriptors that a process has left, one in so many is a connection's: a reload holds the descriptors of old and new
/// probes at once, and captures and profiles open files.
const SPARE_SHARE: u64 = 4;

impl Limits {
    /// These limits with no more connections than the free descriptors of the process allow.
    pub fn within(self, spare_descriptors: u64) -> Limits {
        let allowed = usize::try_from(spare_descriptors / SPARE_SHARE).unwrap_or(usize::MAX).max(MIN_CONNECTIONS);
        Limits { connections: self.connections.min(allowed), ..self }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 128,
            requests: 128,
            streams: 32,
            headers: 64,
            header_bytes: 16 << 10,
            handshake: Duration::from_secs(10),
            header_time: Duration::from_secs(10),
            idle: Duration::from_secs(75),
            body_bytes: 2 << 20,
            body_time: Duration::from_secs(30),
            stall: Duration::from_secs(60),
            drain: Duration::from_secs(5),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_descriptors_allow_few_connections() {
        let allowed = |spare| Limits::default().within(spare).connections;
        assert_eq!([0, 15, 40, 400, 512, 1 << 30].map(allowed), [4, 4, 10, 100, 128, 128]);
    }
}
