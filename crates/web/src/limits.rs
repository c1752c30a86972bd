//! Limits for connections and requests.

use std::time::Duration;

/// Limits; excess connections and requests are refused and counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum open connections over all addresses. A further one evicts the connection that has been without a request for
    /// longest.
    pub connections: usize,
    /// Maximum concurrent requests over all connections, until the last byte of the response.
    pub requests: usize,
    /// Maximum concurrent HTTP/2 streams per connection.
    pub streams: u32,
    /// Maximum header fields of a request.
    pub headers: usize,
    /// Maximum bytes of a request header.
    pub header_bytes: usize,
    /// Time limit of the TLS handshake.
    pub handshake: Duration,
    /// Time limit of a request header, from its first byte or from connecting.
    pub header_time: Duration,
    /// Idle timeout of a connection; above the usual scrape interval of one minute.
    pub idle: Duration,
    /// Maximum bytes of a request body; routes may set less.
    pub body_bytes: usize,
    /// Time limit of a request body.
    pub body_time: Duration,
    /// Timeout for a client that reads nothing of its response.
    pub stall: Duration,
    /// Time limit for pending responses at shutdown.
    pub drain: Duration,
}

/// Minimum of [`Limits::connections`], so that `/healthz` and `/metrics` respond with few descriptors.
const MIN_CONNECTIONS: usize = 4;
/// Divisor of the free file descriptors for connections: a reload holds those of old and new probes at once, and captures and
/// profiles open files.
const SPARE_SHARE: u64 = 4;

impl Limits {
    /// Caps the connections by the free file descriptors of the process.
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
