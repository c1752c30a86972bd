//! What happened at the server's doors, as numbers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

/// Counters that the server's tasks add to.
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
    /// The handshake of TLS failed, or the client had no right certificate.
    Handshake,
    /// The handshake took too long.
    HandshakeTime,
    /// The header of a request took too long.
    HeaderTime,
    /// Nothing was asked for long.
    Idle,
    /// The client did not take its answer.
    Stall,
    /// A newer connection needed the room.
    Room,
}

/// Why a request got no answer of the router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// No name and password, or wrong ones.
    Unauthorized,
    /// Too many passwords to look at.
    AuthBusy,
    /// More often than `rate_limit` allows.
    Rate,
    /// Too many requests at once.
    Busy,
    /// The body is too large.
    Body,
    /// For a name that is not the server's.
    Host,
}

impl Ended {
    /// All of them.
    pub const ALL: [Ended; 6] =
        [Ended::Handshake, Ended::HandshakeTime, Ended::HeaderTime, Ended::Idle, Ended::Stall, Ended::Room];

    /// As a label.
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
    /// All of them.
    pub const ALL: [Refused; 6] =
        [Refused::Unauthorized, Refused::AuthBusy, Refused::Rate, Refused::Busy, Refused::Body, Refused::Host];

    /// As a label.
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

/// All counters at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections that are open.
    pub open: u64,
    /// Connections that came.
    pub accepted: u64,
    /// Times that no connection could be taken from the kernel, mostly for want of descriptors.
    pub accept_failed: u64,
    /// Connections that the server ended, by the reason's name.
    pub ended: Vec<(&'static str, u64)>,
    /// Requests whose header was read.
    pub requests: u64,
    /// Requests that the router did not see, by the reason's name.
    pub refused: Vec<(&'static str, u64)>,
    /// Times that a changed web configuration was taken over.
    pub reloads: u64,
    /// Times that a changed web configuration was wrong and the one before it stayed.
    pub reload_failures: u64,
    /// Whether what the files say is what is in use.
    pub reload_ok: bool,
    /// When what is in use was read, seconds since 1970.
    pub reloaded_at_seconds: u64,
}

impl Counters {
    /// All of them now.
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
        // A clock before 1970 says nothing about this file.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.reloaded_at.store(now.as_secs(), Relaxed);
        self.reload_failing.store(false, Relaxed);
    }
}

pub(crate) fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}
