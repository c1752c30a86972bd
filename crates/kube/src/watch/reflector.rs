//! State machine of list and watch; the time is an argument.
//!
//! The first list may be served from the cache of the API server (`resourceVersion=0`): a thousand nodes that start at once
//! would otherwise cause a thousand etcd reads. The watch starts from the version of the list and resumes from the last version
//! after failures. If that version expired (410) or an event may have been missed, the reflector lists again, then by quorum.
//! Each list is reduced to the differences from the store.

use super::backoff::Backoff;
use super::event::Event;
use super::store::{Change, Object, Store};
use crate::answer::Status;
use crate::error::Error;
use std::time::Duration;

/// Minimum duration of a watch without events that counts as a success.
const LASTING: Duration = Duration::from_secs(5);

/// The next operation. Times are since the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next<'a> {
    /// Request a page, then call [`Reflector::page`] or [`Reflector::failed`].
    List {
        /// `resourceVersion`: `0` permits a cached list, empty requires a quorum read.
        version: &'a str,
        /// `continue`: empty for the first page.
        token: &'a str,
    },
    /// Watch from this version: call [`Reflector::event`] for each event, then [`Reflector::ended`] or [`Reflector::failed`].
    Watch {
        /// `resourceVersion`
        version: &'a str,
    },
    /// Wait until this time.
    Wait(Duration),
}

/// Page of a list response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T> {
    /// `metadata.resourceVersion`
    pub version: String,
    /// `metadata.continue`, if there are more pages.
    pub token: Option<String>,
    /// Items of the page.
    pub objects: Vec<Object<T>>,
}

/// Classification of a failed list or watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The version or token expired (410).
    Gone,
    /// Events may have been missed.
    Lost,
    /// The request was refused (4xx).
    Refused,
    /// Retry the same request, after `Retry-After` if given.
    Again(Option<Duration>),
}

impl Failure {
    /// Classifies an error response.
    pub fn of(status: &Status) -> Failure {
        match status.code {
            _ if status.is_gone() => Failure::Gone,
            // A 401 may be a token in rotation.
            401 | 429 => Failure::Again(status.retry_after),
            400..500 => Failure::Refused,
            _ => Failure::Again(status.retry_after),
        }
    }

    /// Classifies an error.
    pub fn of_error(error: &Error) -> Failure {
        error.status().map_or(Failure::Again(None), Failure::of)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    List,
    Watch,
}

/// State of list and watch.
#[derive(Debug)]
pub struct Reflector<T> {
    stage: Stage,
    /// `0` until a version expired, then empty.
    list_version: &'static str,
    token: String,
    gathered: Vec<Object<T>>,
    most_gathered: usize,
    version: String,
    store: Store,
    backoff: Backoff,
    /// Consecutive failures; reset by a watch event or a watch of at least [`LASTING`].
    failures: u32,
    hold: Option<Duration>,
}

impl<T> Reflector<T> {
    /// Stores at most `limit` objects.
    pub fn new(backoff: Backoff, limit: usize) -> Reflector<T> {
        Reflector {
            stage: Stage::List,
            list_version: "0",
            token: String::new(),
            gathered: Vec::new(),
            most_gathered: limit.saturating_mul(2).max(1),
            version: String::new(),
            store: Store::new(limit),
            backoff,
            failures: 0,
            hold: None,
        }
    }

    /// The operation to run at `now`.
    pub fn next(&self, now: Duration) -> Next<'_> {
        match (self.hold.filter(|hold| *hold > now), self.stage) {
            (Some(hold), _) => Next::Wait(hold),
            // A continue token includes the version; servers reject a request with both.
            (None, Stage::List) if !self.token.is_empty() => Next::List { version: "", token: &self.token },
            (None, Stage::List) => Next::List { version: self.list_version, token: "" },
            (None, Stage::Watch) => Next::Watch { version: &self.version },
        }
    }

    /// Handles a page; the last page returns the changes.
    pub fn page(&mut self, page: Page<T>) -> Vec<Change<T>> {
        self.hold = None;
        // Bounds the memory of an endless list. The store counts objects over the limit.
        let room = self.most_gathered.saturating_sub(self.gathered.len());
        self.gathered.extend(page.objects.into_iter().take(room));
        match page.token {
            Some(token) if !token.is_empty() => {
                self.token = token;
                Vec::new()
            }
            _ => {
                self.token.clear();
                self.version = page.version;
                self.stage = Stage::Watch;
                self.store.replace(std::mem::take(&mut self.gathered))
            }
        }
    }

    /// Handles an event other than `ERROR`.
    pub fn event(&mut self, event: Event<T>) -> Option<Change<T>> {
        self.failures = 0;
        match event {
            Event::Changed(object) => {
                self.version.clone_from(&object.version);
                self.store.seen(object)
            }
            Event::Deleted(uid, version) => {
                self.version = version;
                self.store.gone(&uid)
            }
            Event::Version(version) => {
                self.version = version;
                None
            }
            Event::Error(_) => None,
        }
    }

    /// The server ended the watch regularly after `lasted`.
    pub fn ended(&mut self, now: Duration, lasted: Duration, random: f64) {
        if lasted >= LASTING {
            self.failures = 0;
        } else {
            self.failed(now, Failure::Again(None), random);
        }
    }

    /// Handles a failure. `random` is in `0..1`.
    pub fn failed(&mut self, now: Duration, failure: Failure, random: f64) {
        self.failures = self.failures.saturating_add(1);
        let mut pause = self.backoff.pause(self.failures, random);
        match failure {
            Failure::Gone | Failure::Lost => {
                self.start_again("");
                // Expiry is normal after minutes offline, so the first one is retried at once.
                if failure == Failure::Gone && self.failures == 1 {
                    pause = Duration::ZERO;
                }
            }
            // With the `list` but not the `watch` permission, lists repeat with backoff.
            Failure::Refused if self.stage == Stage::Watch => self.start_again(self.list_version),
            Failure::Refused => {}
            Failure::Again(retry_after) => pause = pause.max(retry_after.unwrap_or_default()),
        }
        self.hold = Some(now.saturating_add(pause));
    }

    fn start_again(&mut self, version: &'static str) {
        self.stage = Stage::List;
        self.list_version = version;
        self.token.clear();
        self.gathered.clear();
    }

    /// The object store.
    pub fn store(&mut self) -> &mut Store {
        &mut self.store
    }

    /// Consecutive failures.
    pub fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
#[path = "reflector_tests.rs"]
mod tests;
