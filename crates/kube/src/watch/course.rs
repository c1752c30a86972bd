//! When to list, watch and wait: a state machine that is told the time.
//!
//! It begins with a list that the server may answer from its cache: a thousand nodes that start at once would otherwise be a
//! thousand reads of etcd. Then it watches from the list's version, and goes on from the last version that it saw, whatever
//! breaks. Only when the server no longer knows that version (410), or when an event may have been missed, it lists again, and
//! then what is there by quorum. What comes of a list are differences to what was told before.

use super::backoff::Backoff;
use super::event::Event;
use super::known::{Change, Known, Object};
use crate::answer::Status;
use crate::error::Error;
use std::time::Duration;

/// A watch that lasts as long is no failure, even when nothing comes.
const LASTING: Duration = Duration::from_secs(5);

/// What to do now. Times are since the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next<'a> {
    /// Ask for a page, then [`Course::page`] or [`Course::failed`].
    List {
        /// `resourceVersion`: `0` for what the server has in its cache, empty for what is there.
        version: &'a str,
        /// `continue`: empty for the first page.
        token: &'a str,
    },
    /// Watch from this version on: [`Course::event`] for each, then [`Course::ended`] or [`Course::failed`].
    Watch {
        /// `resourceVersion`
        version: &'a str,
    },
    /// Nothing until then.
    Wait(Duration),
}

/// A page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T> {
    /// `metadata.resourceVersion`
    pub version: String,
    /// `metadata.continue`, if there is more.
    pub token: Option<String>,
    /// What is on it.
    pub objects: Vec<Object<T>>,
}

/// Why something did not work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The server no longer knows the version or the token.
    Gone,
    /// What was missed is not known.
    Lost,
    /// The server does not let us watch.
    Refused,
    /// Anything else: the same again, not before this time when the server says so.
    Again(Option<Duration>),
}

impl Failure {
    /// What a refusal means.
    pub fn of(status: &Status) -> Failure {
        match status.code {
            _ if status.is_gone() => Failure::Gone,
            // 401 may be a token that is just being replaced.
            401 | 429 => Failure::Again(status.retry_after),
            400..500 => Failure::Refused,
            _ => Failure::Again(status.retry_after),
        }
    }

    /// What an error means.
    pub fn of_error(error: &Error) -> Failure {
        error.status().map_or(Failure::Again(None), Failure::of)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    List,
    Watch,
}

/// The state.
#[derive(Debug)]
pub struct Course<T> {
    stage: Stage,
    /// `0` until a version was lost, then empty.
    list_version: &'static str,
    token: String,
    gathered: Vec<Object<T>>,
    most_gathered: usize,
    version: String,
    known: Known,
    backoff: Backoff,
    /// In a row; only what comes through a watch, or one that lasts, ends the row.
    failures: u32,
    hold: Option<Duration>,
}

impl<T> Course<T> {
    /// At most `limit` objects are told.
    pub fn new(backoff: Backoff, limit: usize) -> Course<T> {
        Course {
            stage: Stage::List,
            list_version: "0",
            token: String::new(),
            gathered: Vec::new(),
            most_gathered: limit.saturating_mul(2).max(1),
            version: String::new(),
            known: Known::new(limit),
            backoff,
            failures: 0,
            hold: None,
        }
    }

    /// What to do at this time.
    pub fn next(&self, now: Duration) -> Next<'_> {
        match (self.hold.filter(|hold| *hold > now), self.stage) {
            (Some(hold), _) => Next::Wait(hold),
            // A token has its version with it; servers refuse both.
            (None, Stage::List) if !self.token.is_empty() => Next::List { version: "", token: &self.token },
            (None, Stage::List) => Next::List { version: self.list_version, token: "" },
            (None, Stage::Watch) => Next::Watch { version: &self.version },
        }
    }

    /// A page came.
    pub fn page(&mut self, page: Page<T>) -> Vec<Change<T>> {
        self.hold = None;
        // A list without an end would fill the memory. One that is over the limit is counted when it is told.
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
                self.known.replace(std::mem::take(&mut self.gathered))
            }
        }
    }

    /// An event came that is no `ERROR`.
    pub fn event(&mut self, event: Event<T>) -> Option<Change<T>> {
        self.failures = 0;
        match event {
            Event::Changed(object) => {
                self.version.clone_from(&object.version);
                self.known.seen(object)
            }
            Event::Deleted(uid, version) => {
                self.version = version;
                self.known.gone(&uid)
            }
            Event::Version(version) => {
                self.version = version;
                None
            }
            Event::Error(_) => None,
        }
    }

    /// The server ended the watch in good order, after this time.
    pub fn ended(&mut self, now: Duration, lasted: Duration, random: f64) {
        if lasted >= LASTING {
            self.failures = 0;
        } else {
            self.failed(now, Failure::Again(None), random);
        }
    }

    /// It did not work. `random` is in `0..1`.
    pub fn failed(&mut self, now: Duration, failure: Failure, random: f64) {
        self.failures = self.failures.saturating_add(1);
        let mut pause = self.backoff.pause(self.failures, random);
        match failure {
            Failure::Gone | Failure::Lost => {
                self.start_again("");
                // This happens to whoever was away for some minutes, and is no reason to wait, unless it goes on.
                if failure == Failure::Gone && self.failures == 1 {
                    pause = Duration::ZERO;
                }
            }
            // Who may list and not watch lists now and then.
            Failure::Refused if self.stage == Stage::Watch => self.start_again(self.list_version),
            Failure::Refused => {}
            Failure::Again(asked) => pause = pause.max(asked.unwrap_or_default()),
        }
        self.hold = Some(now.saturating_add(pause));
    }

    fn start_again(&mut self, version: &'static str) {
        self.stage = Stage::List;
        self.list_version = version;
        self.token.clear();
        self.gathered.clear();
    }

    /// Objects that have been told.
    pub fn known(&mut self) -> &mut Known {
        &mut self.known
    }

    /// Failures in a row.
    pub fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
#[path = "course_tests.rs"]
mod tests;
