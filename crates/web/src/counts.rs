//! Server counters.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

/// Counters shared by the server tasks.
#[derive(Debug, Default)]
pub struct Counters {
    pub(crate) open: AtomicU64,
    pub(crate) accepted: AtomicU64,
    pub(crate) accept_failed: AtomicU64,
    pub(crate) ended: [AtomicU64; Ended::ALL.len()],
    pub(crate) requests: AtomicU64,
    pub(crate) refused: [AtomicU64; Refused::ALL.len()],
    pub(crate) reloads: AtomicU64,
    pub(crate) reload_failures: AtomicU64,
    pub(crate) reload_failing: AtomicBool,
    pub(crate) reloaded_at: AtomicU64,
}

/// Why the server ended a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The TLS handshake failed, or the client certificate was rejected.
    Handshake,
    /// The TLS handshake timed out.
    HandshakeTime,
    /// The request header timed out.
    HeaderTime,
    /// Idle timeout.
    Idle,
    /// The client did not read its response in time.
    Stall,
    /// Evicted in favour of a newer connection.
    Room,
}

/// Why a request was refused before the router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Missing or wrong credentials.
    Unauthorized,
    /// Too many pending password checks.
    AuthBusy,
    /// Over `rate_limit`.
    Rate,
    /// Too many concurrent requests.
    Busy,
    /// The request body is too large.
    Body,
    /// The `Host` is not a name of the server.
    Host,
}

impl Ended {
    /// All variants.
    pub const ALL: [Ended; 6] =
        [Ended::Handshake, Ended::HandshakeTime, Ended::HeaderTime, Ended::Idle, Ended::Stall, Ended::Room];

    /// Label value for metrics.
    pub fn name(self) -> &'static str {
        match self {
            Ended::Handshake => "handshake",
            Ended::HandshakeTime => "handshake_time",
            Ended::HeaderTime => "header_time",
            Ended::Idle => "idle",
            Ended::Stall => "stall",
            Ended::Room => "room",
        }
    }
}

impl Refused {
    /// All variants.
    pub const ALL: [Refused; 6] =
        [Refused::Unauthorized, Refused::AuthBusy, Refused::Rate, Refused::Busy, Refused::Body, Refused::Host];

    /// Label value for metrics.
    pub fn name(self) -> &'static str {
        match self {
            Refused::Unauthorized => "unauthorized",
            Refused::AuthBusy => "auth_busy",
            Refused::Rate => "rate",
            Refused::Busy => "busy",
            Refused::Body => "body",
            Refused::Host => "host",
        }
    }
}

/// Snapshot of all counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Open connections.
    pub open: u64,
    /// Accepted connections.
    pub accepted: u64,
    /// Failed accepts, mostly for lack of file descriptors.
    pub accept_failed: u64,
    /// Connections closed by the server, by reason.
    pub ended: Vec<(&'static str, u64)>,
    /// Requests with a complete header.
    pub requests: u64,
    /// Refused requests, by reason.
    pub refused: Vec<(&'static str, u64)>,
    /// Successful reloads of the web configuration.
    pub reloads: u64,
    /// Failed reloads; the previous configuration stays in use.
    pub reload_failures: u64,
    /// Whether the last reload succeeded.
    pub reload_ok: bool,
    /// Time of the last successful load, in seconds since 1970.
    pub reloaded_at_seconds: u64,
}

impl Counters {
    /// Returns a snapshot.
    pub fn counts(&self) -> Counts {
        Counts {
            open: self.open.load(Relaxed),
            accepted: self.accepted.load(Relaxed),
            accept_failed: self.accept_failed.load(Relaxed),
            ended: Ended::ALL.iter().map(|why| (why.name(), self.ended[*why as usize].load(Relaxed))).collect(),
            requests: self.requests.load(Relaxed),
            refused: Refused::ALL.iter().map(|why| (why.name(), self.refused[*why as usize].load(Relaxed))).collect(),
            reloads: self.reloads.load(Relaxed),
            reload_failures: self.reload_failures.load(Relaxed),
            reload_ok: !self.reload_failing.load(Relaxed),
            reloaded_at_seconds: self.reloaded_at.load(Relaxed),
        }
    }

    pub(crate) fn ended(&self, why: Ended) {
        add(&self.ended[why as usize]);
    }

    pub(crate) fn refused(&self, why: Refused) {
        add(&self.refused[why as usize]);
    }

    pub(crate) fn loaded(&self) {
        // With a clock before 1970 the time is unknown.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.reloaded_at.store(now.as_secs(), Relaxed);
        self.reload_failing.store(false, Relaxed);
    }
}

pub(crate) fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}
