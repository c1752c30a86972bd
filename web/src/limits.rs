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
