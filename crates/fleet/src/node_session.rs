//! State machine of one node in a capture, without clock or connection: responses and times are arguments, actions are results.
//!
//! ```text
//!  asked ─▶ ready ─▶ created ─▶ recording ─▶ recorded ─▶ downloaded
//!    └────────┴─────────┴───────────┴────────────┴─▶ failed
//! ```
//!
//! Times are since the start of the run. A failed node reports its last stage; the others do not wait for it.

use crate::Error;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Time limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Until the first response of an agent.
    pub hello: Duration,
    /// One request other than a download.
    pub call: Duration,
    /// Between two responses of a recording node.
    pub silence: Duration,
    /// For an agent to finish its files after the recording.
    pub settle: Duration,
    /// One download.
    pub fetch: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        let seconds = Duration::from_secs;
        Limits {
            hello: seconds(10),
            call: seconds(10),
            silence: seconds(20),
            settle: seconds(120),
            fetch: seconds(600),
        }
    }
}

/// Download attempts per file.
const MAX_FETCHES: u32 = 3;
/// Pause between attempts.
const PAUSE: Duration = Duration::from_secs(1);
/// Polling interval of a running capture.
const LOOK: Duration = Duration::from_secs(1);

/// Progress of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// Waiting for the first response of the agent.
    Asked,
    /// The agent responded; waiting for the common start time.
    Ready,
    /// The capture is created and starts at the common time.
    Created,
    Recording,
    /// The recording is complete on the node.
    Recorded,
    /// The recording is downloaded.
    Downloaded,
    /// No recording was obtained.
    Failed,
}

impl Stage {
    /// Display name.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Asked => "asked",
            Stage::Ready => "ready",
            Stage::Created => "waiting",
            Stage::Recording => "recording",
            Stage::Recorded => "downloading",
            Stage::Downloaded => "done",
            Stage::Failed => "failed",
        }
    }
}

/// Status of a capture in the API of an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CaptureStatus {
    /// `running`, `done`, `failed` or `cancelled`.
    pub state: String,
    /// Reason of a failure.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// Time of the request.
    pub started: String,
    /// The same in milliseconds since the Unix epoch.
    pub started_unix_ms: i64,
    /// End time.
    pub ended: String,
    /// Size of its files.
    pub bytes: u64,
    /// Number of records.
    pub records: u64,
    /// Number of lost records.
    pub lost: u64,
    /// Notes for the reader of the recording.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Offset of its timestamps to the wall clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock: Option<TraceClock>,
}

/// Trace clock of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TraceClock {
    /// `mono`, `boot`, ...
    pub name: String,
    /// Nanoseconds to add for Unix time, measured at the start of the recording.
    pub epoch_offset_start_ns: Option<i64>,
    /// The same at its end.
    pub epoch_offset_end_ns: Option<i64>,
}

/// The next operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Run this action, then call [`NodeSession::on_response`].
    Do(Action),
    /// Wait until this time or a stop request.
    Sleep(Duration),
    /// Wait for [`NodeSession::begin`].
    Hold,
    /// Finished.
    End,
}

/// A request to an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Check access, measure its clock, read the hooks of the probe.
    Hello,
    /// Create a capture that starts at the common time.
    Create,
    /// Get the status of the capture.
    Look,
    /// Stop the capture and keep its records.
    Cancel,
    /// Download the file.
    Fetch,
    /// Delete the capture.
    Remove,
}

/// Result of an [`Action`].
#[derive(Debug)]
pub enum Response {
    /// [`Action::Hello`]
    Hello,
    /// [`Action::Create`], with the capture's id.
    Created(String),
    /// [`Action::Look`]
    Status(CaptureStatus),
    /// [`Action::Cancel`]
    Cancelled,
    /// [`Action::Fetch`]
    Fetched,
    /// [`Action::Remove`]
    Removed,
    /// The request failed.
    Failed(Error),
}

/// State of one node.
#[derive(Clone, Debug)]
pub struct NodeSession {
    limits: Limits,
    duration: Duration,
    keep: bool,
    stage: Stage,
    failed_at: Option<Stage>,
    reason: String,
    id: Option<String>,
    status: CaptureStatus,
    begin: Option<Duration>,
    last_response: Duration,
    next: Duration,
    tries: u32,
    stop: bool,
    cancelled: bool,
    removed: bool,
    warnings: Vec<String>,
}

impl NodeSession {
    /// Creates the session of a node that records for `duration`; `keep` leaves the capture on the agent.
    pub fn new(limits: Limits, duration: Duration, keep: bool) -> NodeSession {
        NodeSession {
            limits,
            duration,
            keep,
            stage: Stage::Asked,
            failed_at: None,
            reason: String::new(),
            id: None,
            status: CaptureStatus::default(),
            begin: None,
            last_response: Duration::ZERO,
            next: Duration::ZERO,
            tries: 0,
            stop: false,
            cancelled: false,
            removed: false,
            warnings: Vec::new(),
        }
    }

    /// Session of a node without an agent, in stage [`Stage::Failed`].
    pub fn failed(reason: &str) -> NodeSession {
        let mut session = NodeSession::new(Limits::default(), Duration::ZERO, false);
        session.fail(reason);
        session
    }

    /// Current stage.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// Stage before the failure.
    pub fn failed_at(&self) -> Option<Stage> {
        self.failed_at
    }

    /// Reason of a failure.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Capture id in the API of the agent.
    pub fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// Last status of the capture.
    pub fn status(&self) -> &CaptureStatus {
        &self.status
    }

    /// Errors that did not fail the session.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Sets the common start time of a node in [`Stage::Ready`].
    pub fn begin(&mut self, at: Duration) {
        if self.stage == Stage::Ready {
            self.begin = Some(at);
        }
    }

    /// Stops the capture; its records are downloaded.
    pub fn stop(&mut self) {
        self.stop = true;
    }

    /// Fails the session for an external reason.
    pub fn fail(&mut self, reason: &str) {
        if self.stage != Stage::Failed {
            self.failed_at = Some(self.stage);
            self.stage = Stage::Failed;
            self.reason = reason.to_owned();
        }
    }

    /// The operation to run at `now`.
    pub fn next(&mut self, now: Duration) -> Next {
        match self.stage {
            Stage::Asked | Stage::Ready if self.stop => {
                self.fail("stopped before it began");
                Next::End
            }
            Stage::Asked if now >= self.limits.hello => self.give_up("no answer", self.limits.hello),
            Stage::Asked => self.try_again(now, Action::Hello),
            Stage::Ready if self.begin.is_none() => Next::Hold,
            Stage::Ready => Next::Do(Action::Create),
            Stage::Created | Stage::Recording if self.stop && !self.cancelled => Next::Do(Action::Cancel),
            Stage::Created => {
                let begin = self.begin.unwrap_or(now);
                if now < begin {
                    return Next::Sleep(begin);
                }
                self.stage = Stage::Recording;
                (self.last_response, self.next) = (now, now + LOOK.min(self.duration));
                self.next(now)
            }
            Stage::Recording => {
                if now >= self.last_response + self.limits.silence {
                    return self.give_up("it stopped answering: nothing", self.limits.silence);
                }
                let end = self.begin.unwrap_or_default() + self.duration + self.limits.settle;
                if now >= end {
                    let after = self.limits.settle.as_secs();
                    self.fail(&format!("it still records {after} s after its time"));
                    return Next::End;
                }
                self.try_again(now, Action::Look)
            }
            Stage::Recorded => self.try_again(now, Action::Fetch),
            Stage::Downloaded if self.removed || self.keep => Next::End,
            Stage::Downloaded => Next::Do(Action::Remove),
            Stage::Failed => Next::End,
        }
    }

    /// Handles the result of an action.
    pub fn on_response(&mut self, now: Duration, response: Response) {
        match response {
            Response::Failed(error) => self.on_error(now, &error),
            Response::Hello if self.stage == Stage::Asked => self.stage = Stage::Ready,
            Response::Created(id) if self.stage == Stage::Ready => {
                self.id = Some(id);
                self.stage = Stage::Created;
                self.last_response = now;
            }
            Response::Cancelled => {
                self.cancelled = true;
                // The capture ends early: poll at once.
                self.stage = self.stage.max(Stage::Recording);
                (self.last_response, self.next, self.begin) = (now, now, Some(now));
                self.duration = Duration::ZERO;
            }
            Response::Status(status) if self.stage == Stage::Recording => {
                self.last_response = now;
                self.reason.clear();
                // Polls shortly after the expected end, not up to a second later.
                let end = self.begin.unwrap_or_default() + self.duration;
                let soon = end + LOOK / 10;
                self.next = if now < soon { (now + LOOK).min(soon) } else { now + LOOK / 4 };
                self.status = status;
                match self.status.state.as_str() {
                    "running" => {}
                    "done" | "cancelled" if self.status.error.is_empty() => {
                        self.stage = Stage::Recorded;
                        (self.next, self.tries) = (now, 0);
                    }
                    state => {
                        let reason = match self.status.error.as_str() {
                            "" => format!("the agent calls it `{state:.40}`"),
                            error => error.to_owned(),
                        };
                        self.fail(&reason);
                    }
                }
            }
            Response::Fetched if self.stage == Stage::Recorded => self.stage = Stage::Downloaded,
            Response::Removed => self.removed = true,
            // A late response to an action of an earlier stage.
            Response::Hello | Response::Created(_) | Response::Status(_) | Response::Fetched => {}
        }
    }

    fn on_error(&mut self, now: Duration, error: &Error) {
        self.next = now + PAUSE;
        self.tries += 1;
        match self.stage {
            Stage::Downloaded => {
                self.warnings.push(format!("the capture could not be removed from the node: {error}"));
                self.removed = true;
            }
            Stage::Created | Stage::Recording if self.stop && !self.cancelled => {
                // The capture ends by itself at its end time.
                self.warnings.push(format!("it could not be stopped: {error}"));
                self.cancelled = true;
            }
            // The capture may have been created: a retry could create another one.
            Stage::Ready => self.fail(&error.to_string()),
            Stage::Recorded if self.tries >= MAX_FETCHES => self.fail(&error.to_string()),
            _ if error.is_permanent() => self.fail(&error.to_string()),
            _ => self.reason = error.to_string(),
        }
    }

    fn try_again(&self, now: Duration, action: Action) -> Next {
        if now < self.next { Next::Sleep(self.next) } else { Next::Do(action) }
    }

    fn give_up(&mut self, what: &str, limit: Duration) -> Next {
        let last = if self.reason.is_empty() { String::new() } else { format!("; last: {}", self.reason) };
        self.fail(&format!("{what} within {} s{last}", limit.as_secs()));
        Next::End
    }
}

/// Exit code of a run: 0 if all nodes delivered, else 1.
pub fn exit_code<'a>(sessions: impl IntoIterator<Item = &'a NodeSession>) -> u8 {
    sessions.into_iter().any(|session| session.stage != Stage::Downloaded).into()
}

#[cfg(test)]
mod tests;
