//! One node's way through a capture. It has no clock and no connection: it is told what was heard and when, and says what to do.
//!
//! ```text
//!  asked ─▶ ready ─▶ created ─▶ recording ─▶ recorded ─▶ downloaded
//!    └────────┴─────────┴───────────┴────────────┴─▶ failed
//! ```
//!
//! Times are those since the run began. A node that fails is told with what it was doing; the others do not wait for it.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How long what may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Until an agent has answered for the first time.
    pub greet: Duration,
    /// One question that is no download.
    pub call: Duration,
    /// From one answer of a node that records to the next.
    pub silence: Duration,
    /// After its time for an agent to put together what it recorded.
    pub settle: Duration,
    /// One download.
    pub fetch: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        let seconds = Duration::from_secs;
        Limits {
            greet: seconds(10),
            call: seconds(10),
            silence: seconds(20),
            settle: seconds(120),
            fetch: seconds(600),
        }
    }
}

/// Downloads of one file that are tried.
const MOST_FETCHES: u32 = 3;
/// From one attempt to the next.
const PAUSE: Duration = Duration::from_secs(1);
/// From one look at a capture to the next.
const LOOK: Duration = Duration::from_secs(1);

/// How far a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// Its agent was asked whether it is there.
    Asked,
    /// It is, and will be told when to begin.
    Ready,
    /// It has a capture that begins at the common time.
    Created,
    /// It records.
    Recording,
    /// It has what it recorded.
    Recorded,
    /// We have it.
    Downloaded,
    /// There is nothing of it.
    Failed,
}

impl Stage {
    /// For people.
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

/// What an agent says of a capture.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Standing {
    /// `running`, `done`, `failed` or `cancelled`.
    pub state: String,
    /// Why it failed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// When it was asked for.
    pub started: String,
    /// The same in milliseconds since the Unix epoch.
    pub started_unix_ms: i64,
    /// When it ended.
    pub ended: String,
    /// Of its files.
    pub bytes: u64,
    /// Records in it.
    pub records: u64,
    /// Records that were lost.
    pub lost: u64,
    /// What a reader of it should know.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// How its times and the wall clock belong together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock: Option<TraceClock>,
}

/// The clock of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TraceClock {
    /// `mono`, `boot`, ...
    pub name: String,
    /// What to add to its nanoseconds for those since the Unix epoch, when recording began.
    pub epoch_offset_start_ns: Option<i64>,
    /// The same when it ended.
    pub epoch_offset_end_ns: Option<i64>,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// This; the course is to hear what came of it.
    Do(Action),
    /// Nothing until then, or until it is told to stop.
    Sleep(Duration),
    /// Nothing until it is told when to begin.
    Hold,
    /// Nothing any more.
    End,
}

/// Something to ask of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Whether it is there, what its clock says, what is needed to ask for a capture.
    Greet,
    /// A capture that begins at the common time.
    Create,
    /// How it stands.
    Look,
    /// To end it now; what it has is kept.
    Cancel,
    /// The file.
    Fetch,
    /// To forget it.
    Remove,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// [`Action::Greet`]
    Greeted,
    /// [`Action::Create`], with the capture's id.
    Created(String),
    /// [`Action::Look`]
    Stands(Standing),
    /// [`Action::Cancel`]
    Cancelled,
    /// [`Action::Fetch`]
    Fetched,
    /// [`Action::Remove`]
    Removed,
    /// It did not work.
    Trouble(Trouble),
}

/// Why something did not work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// For people.
    pub text: String,
    /// Whether the same question would have the same answer.
    pub lasts: bool,
}

/// The way of one node.
#[derive(Clone, Debug)]
pub struct Course {
    limits: Limits,
    duration: Duration,
    keep: bool,
    stage: Stage,
    failed_at: Option<Stage>,
    reason: String,
    id: Option<String>,
    standing: Standing,
    begin: Option<Duration>,
    heard: Duration,
    next: Duration,
    tries: u32,
    stop: bool,
    cancelled: bool,
    removed: bool,
    warnings: Vec<String>,
}

impl Course {
    /// Of a node that is to record for so long; `keep` leaves the capture with the agent.
    pub fn new(limits: Limits, duration: Duration, keep: bool) -> Course {
        Course {
            limits,
            duration,
            keep,
            stage: Stage::Asked,
            failed_at: None,
            reason: String::new(),
            id: None,
            standing: Standing::default(),
            begin: None,
            heard: Duration::ZERO,
            next: Duration::ZERO,
            tries: 0,
            stop: false,
            cancelled: false,
            removed: false,
            warnings: Vec::new(),
        }
    }

    /// Of a node that nobody can be asked on.
    pub fn hopeless(reason: &str) -> Course {
        let mut course = Course::new(Limits::default(), Duration::ZERO, false);
        course.fail(reason);
        course
    }

    /// How far it is.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// What it was doing when it failed.
    pub fn failed_at(&self) -> Option<Stage> {
        self.failed_at
    }

    /// Why it failed.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// The capture's id with the agent.
    pub fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// What the agent said of it last.
    pub fn standing(&self) -> &Standing {
        &self.standing
    }

    /// What went wrong and did not matter in the end.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Tells when the common beginning is.
    pub fn begin(&mut self, at: Duration) {
        if self.stage == Stage::Ready {
            self.begin = Some(at);
        }
    }

    /// Ends it: what is recorded is fetched.
    pub fn stop(&mut self) {
        self.stop = true;
    }

    /// Gives it up for a reason from outside.
    pub fn fail(&mut self, reason: &str) {
        if self.stage != Stage::Failed {
            self.failed_at = Some(self.stage);
            self.stage = Stage::Failed;
            self.reason = reason.to_owned();
        }
    }

    /// What to do now.
    pub fn next(&mut self, now: Duration) -> Next {
        match self.stage {
            Stage::Asked | Stage::Ready if self.stop => {
                self.fail("stopped before it began");
                Next::End
            }
            Stage::Asked if now >= self.limits.greet => self.give_up("no answer", self.limits.greet),
            Stage::Asked => self.try_again(now, Action::Greet),
            Stage::Ready if self.begin.is_none() => Next::Hold,
            Stage::Ready => Next::Do(Action::Create),
            Stage::Created | Stage::Recording if self.stop && !self.cancelled => Next::Do(Action::Cancel),
            Stage::Created => {
                let begin = self.begin.unwrap_or(now);
                if now < begin {
                    return Next::Sleep(begin);
                }
                self.stage = Stage::Recording;
                (self.heard, self.next) = (now, now + LOOK.min(self.duration));
                self.next(now)
            }
            Stage::Recording => {
                if now >= self.heard + self.limits.silence {
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

    /// What came of what was to be done.
    pub fn heard(&mut self, now: Duration, heard: Heard) {
        match heard {
            Heard::Trouble(trouble) => self.trouble(now, trouble),
            Heard::Greeted if self.stage == Stage::Asked => self.stage = Stage::Ready,
            Heard::Created(id) if self.stage == Stage::Ready => {
                self.id = Some(id);
                self.stage = Stage::Created;
                self.heard = now;
            }
            Heard::Cancelled => {
                self.cancelled = true;
                // It ends sooner: there is nothing to wait for.
                self.stage = self.stage.max(Stage::Recording);
                (self.heard, self.next, self.begin) = (now, now, Some(now));
                self.duration = Duration::ZERO;
            }
            Heard::Stands(standing) if self.stage == Stage::Recording => {
                self.heard = now;
                self.reason.clear();
                // Shortly after its time, not up to a second later.
                let end = self.begin.unwrap_or_default() + self.duration;
                let soon = end + LOOK / 10;
                self.next = if now < soon { (now + LOOK).min(soon) } else { now + LOOK / 4 };
                self.standing = standing;
                match self.standing.state.as_str() {
                    "running" => {}
                    "done" | "cancelled" if self.standing.error.is_empty() => {
                        self.stage = Stage::Recorded;
                        (self.next, self.tries) = (now, 0);
                    }
                    state => {
                        let reason = match self.standing.error.as_str() {
                            "" => format!("the agent calls it `{state:.40}`"),
                            error => error.to_owned(),
                        };
                        self.fail(&reason);
                    }
                }
            }
            Heard::Fetched if self.stage == Stage::Recorded => self.stage = Stage::Downloaded,
            Heard::Removed => self.removed = true,
            // An answer to what is no longer asked.
            Heard::Greeted | Heard::Created(_) | Heard::Stands(_) | Heard::Fetched => {}
        }
    }

    fn trouble(&mut self, now: Duration, trouble: Trouble) {
        let Trouble { text, lasts } = trouble;
        self.next = now + PAUSE;
        self.tries += 1;
        match self.stage {
            Stage::Downloaded => {
                self.warnings.push(format!("the capture could not be removed from the node: {text}"));
                self.removed = true;
            }
            Stage::Created | Stage::Recording if self.stop && !self.cancelled => {
                // It ends by itself, later.
                self.warnings.push(format!("it could not be stopped: {text}"));
                self.cancelled = true;
            }
            // Whether a capture was made is not known then: asking again might make another.
            Stage::Ready => self.fail(&text),
            Stage::Recorded if self.tries >= MOST_FETCHES => self.fail(&text),
            _ if lasts => self.fail(&text),
            _ => self.reason = text,
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

/// Exit code of a run: 0 when all nodes delivered, 1 when one did not.
pub fn exit_code<'a>(courses: impl IntoIterator<Item = &'a Course>) -> u8 {
    courses.into_iter().any(|course| course.stage != Stage::Downloaded).into()
}

#[cfg(test)]
mod tests;
