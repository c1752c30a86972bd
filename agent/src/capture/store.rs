//! Captures on disk: a folder each, with a `capture.json` that says what it is.
//!
//! What is on disk is the truth: an agent that was killed finds its captures again, and what was being written then is
//! known by its state.

use super::error::{Error, NoFile};
use super::format::Format;
use super::service::Rescue;
use crate::metrics::events::line::rfc3339;
use crate::metrics::telemetry::Evicted;
use kstrobe_fleet::node_session::TraceClock;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Name of the file that describes a capture.
const ABOUT: &str = "capture.json";
/// Most bytes of it that are read.
const MAX_ABOUT_BYTES: u64 = 1 << 20;
/// Limit of kept captures: failed ones have no bytes, but use inodes.
pub const MAX_CAPTURES: usize = 1000;

/// Name of a capture: when it was started, and six digits of chance. Sorts by time, and is safe in paths and URLs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Id(String);

impl Id {
    /// An id as it was given out; anything else is none.
    pub fn parse(text: &str) -> Option<Id> {
        let bytes = text.as_bytes();
        let fits = |(at, byte): (usize, &u8)| match at {
            8 => *byte == b'T',
            18 => *byte == b'Z',
            19 => *byte == b'-',
            20.. => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
            _ => byte.is_ascii_digit(),
        };
        (bytes.len() == 26 && bytes.iter().enumerate().all(fits)).then(|| Id(text.to_owned()))
    }

    fn new(now: SystemTime) -> Id {
        let text: String = rfc3339(now).chars().filter(char::is_ascii_digit).collect();
        // Seeded by the system for each of them.
        let chance = RandomState::new().build_hasher().finish() & 0xff_ffff;
        let (day, time) = text.split_at_checked(8).unwrap_or(("00000000", "000000000"));
        Id(format!("{day}T{}Z-{chance:06x}", time.get(..9).unwrap_or("000000000")))
    }
}

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// State of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It is being recorded.
    Running,
    /// It was recorded to its end.
    Done,
    /// It was not, and left nothing.
    Failed,
    /// It was stopped by a request; the recording until then is kept.
    Cancelled,
}

/// The origin of a capture.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trigger {
    /// `api`, `rule` or `alertmanager`.
    pub kind: String,
    /// Address of the client, if there was one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub client: String,
    /// The rule whose capture it is.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rule: String,
    /// What was seen, e.g. the condition with the value found.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
}

/// A capture, as in `capture.json` and the API.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Capture {
    pub id: String,
    /// How it stands.
    pub state: State,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// Its origin.
    pub trigger: Trigger,
    /// The request, in the names of the API.
    pub request: Value,
    /// When it began, UTC.
    pub started: String,
    /// The same in milliseconds since the Unix epoch.
    pub started_unix_ms: u64,
    /// When it ended, UTC.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ended: String,
    /// Of all its files.
    #[serde(default)]
    pub bytes: u64,
    #[serde(default)]
    pub records: u64,
    /// Records that were lost while it was recorded.
    #[serde(default)]
    pub lost: u64,
    /// How its times and the wall clock belong together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock: Option<TraceClock>,
    /// What a reader of it should know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    #[serde(default)]
    pub files: Vec<Stored>,
}

impl Capture {
    /// Takes over what came of recording into `folder`.
    fn take(&mut self, folder: &Path, recorded: Recorded) {
        self.records = recorded.records;
        self.lost = recorded.lost;
        self.clock = recorded.clock;
        self.notes = recorded.notes;
        let there = recorded.formats.iter().filter(|format| folder.join(format.file()).is_file());
        self.files = there.map(|format| Stored { format: format.name().to_owned(), bytes: 0 }).collect();
    }

    /// Ends a capture whose agent was killed, with what was rescued of it.
    fn conclude(&mut self, folder: &Path, rescued: Result<Recorded, Error>, now: SystemTime) {
        self.ended = rfc3339(now);
        match rescued {
            Ok(recorded) => {
                self.state = State::Done;
                self.take(folder, recorded);
                tracing::warn!(
                    capture = self.id,
                    records = self.records,
                    lost = self.lost,
                    "an interrupted capture was rescued"
                );
            }
            Err(error) => {
                self.state = State::Failed;
                self.error =
                    format!("interrupted: the agent ended while it was running, and nothing can be rescued: {error}");
                self.files.clear();
                tracing::warn!(capture = self.id, %error, "a capture was interrupted");
            }
        }
    }
}

/// A file of a capture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stored {
    /// [`Format::name`]
    pub format: String,
    /// Its size.
    pub bytes: u64,
}

/// What came of recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// Formats that were written.
    pub formats: Vec<Format>,
    pub records: u64,
    /// Records that were lost.
    pub lost: u64,
    /// How its times and the wall clock belong together.
    pub clock: Option<TraceClock>,
    /// What a reader of it should know.
    pub notes: Vec<String>,
}

/// Limits of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Of all captures together.
    pub max_total_bytes: u64,
    /// Age at which a capture goes; zero for never.
    pub ttl: Duration,
}

/// Why something cannot be done with a capture.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// There is none of that id.
    #[error("there is no such capture")]
    NoSuch,
    /// It is being recorded.
    #[error("it is still running: cancel it, or wait until it has ended")]
    Running,
    /// It has no file of that format.
    #[error(transparent)]
    NoFile(#[from] NoFile),
    /// Captures that run need all the room there is.
    #[error("captures that run may need all of the {0} bytes there are for captures: ask again when they have ended")]
    Full(u64),
    /// The disk.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// All captures of an agent.
pub struct Store {
    folder: PathBuf,
    /// Held while this lives: two agents would take one another's captures for those of a dead one.
    _lock: File,
    limits: Limits,
    captures: BTreeMap<Id, Capture>,
    /// Bytes that running captures may still write.
    promised: BTreeMap<Id, u64>,
    evicted: Evicted,
}

impl Store {
    /// Opens or makes the folder. Captures that were running belong to an agent that is dead: `rescue` puts together what it left of
    /// them, and where it cannot, they become failed ones.
    pub fn open(folder: &Path, limits: Limits, rescue: &Rescue) -> io::Result<Store> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", folder.display()));
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(named)?;
        let lock = folder.join(".lock");
        let lock = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(lock).map_err(named)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(io::Error::other(format!("{}: another agent uses it", folder.display())));
            }
            Err(TryLockError::Error(error)) => return Err(named(error)),
        }
        let mut store = Store {
            folder: folder.to_owned(),
            _lock: lock,
            limits,
            captures: BTreeMap::new(),
            promised: BTreeMap::new(),
            evicted: Evicted::default(),
        };
        store.find(rescue).map_err(named)?;
        Ok(store)
    }

    /// Other limits, which hold from the next look on.
    pub fn limit(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Reads what is there.
    fn find(&mut self, rescue: &Rescue) -> io::Result<()> {
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            // Leave entries that are not named as captures.
            let Some(id) = entry.file_name().to_str().and_then(Id::parse) else { continue };
            if !entry.file_type()?.is_dir() {
                continue;
            }
            let Some(mut capture) = read_about(&entry.path()).filter(|capture| capture.id == id.0) else {
                tracing::warn!(capture = %id, "removed: an agent died before or after it was a capture");
                fs::remove_dir_all(entry.path())?;
                continue;
            };
            if capture.state == State::Running {
                capture.conclude(&entry.path(), rescue(&entry.path()), SystemTime::now());
            }
            let path = entry.path();
            capture
                .files
                .retain(|file| Format::named(&file.format).is_some_and(|format| path.join(format.file()).is_file()));
            self.captures.insert(id.clone(), capture);
            self.settle(&id)?;
        }
        Ok(())
    }

    /// Begins a capture that may take so many bytes, and says into which folder it is to be written.
    pub fn begin(
        &mut self,
        request: Value,
        trigger: Trigger,
        most_bytes: u64,
        now: SystemTime,
    ) -> Result<(Id, PathBuf), StoreError> {
        self.expire(now);
        self.make_room(most_bytes, None)?;
        let id = Id::new(now);
        let path = self.path(&id);
        DirBuilder::new().mode(0o700).create(&path)?;
        let capture = Capture {
            id: id.0.clone(),
            state: State::Running,
            error: String::new(),
            trigger,
            request,
            started: rfc3339(now),
            started_unix_ms: unix_ms(now),
            ended: String::new(),
            bytes: 0,
            records: 0,
            lost: 0,
            clock: None,
            notes: Vec::new(),
            files: Vec::new(),
        };
        if let Err(error) = write_about(&path, &capture) {
            // The capture has not begun: remove its folder.
            let _ = fs::remove_dir_all(&path);
            return Err(error.into());
        }
        self.captures.insert(id.clone(), capture);
        self.promised.insert(id.clone(), most_bytes);
        Ok((id, path))
    }

    /// Ends a capture. Of one that failed no file is kept.
    pub fn end(
        &mut self,
        id: &Id,
        outcome: Result<Recorded, &Error>,
        cancelled: bool,
        now: SystemTime,
    ) -> Result<Capture, StoreError> {
        let path = self.path(id);
        let capture = self.captures.get_mut(id).ok_or(StoreError::NoSuch)?;
        capture.ended = rfc3339(now);
        match outcome {
            Ok(recorded) => {
                capture.state = if cancelled { State::Cancelled } else { State::Done };
                capture.take(&path, recorded);
            }
            Err(error) => {
                capture.state = if cancelled { State::Cancelled } else { State::Failed };
                capture.error = error.to_string();
                capture.files.clear();
            }
        }
        self.promised.remove(id);
        self.settle(id)?;
        let ended = self.captures.get(id).cloned().ok_or(StoreError::NoSuch);
        // The limits hold whatever a capture took in the end; the newest is the last to go.
        let _ = self.make_room(0, Some(id));
        ended
    }

    /// Notes a file that was made of a capture afterwards.
    pub fn add(&mut self, id: &Id, format: Format) -> Result<(), StoreError> {
        let capture = self.captures.get_mut(id).ok_or(StoreError::NoSuch)?;
        if !capture.files.iter().any(|file| file.format == format.name()) {
            capture.files.push(Stored { format: format.name().to_owned(), bytes: 0 });
        }
        self.settle(id)?;
        let _ = self.make_room(0, Some(id));
        Ok(())
    }

    /// Removes files that are none of the capture's, measures those that are, and writes it all down.
    fn settle(&mut self, id: &Id) -> io::Result<()> {
        let path = self.path(id);
        let Some(capture) = self.captures.get_mut(id) else { return Ok(()) };
        let mut bytes = 0;
        for entry in fs::read_dir(&path)? {
            let entry = entry?;
            let name = entry.file_name();
            let file =
                capture.files.iter_mut().find(|f| Format::named(&f.format).is_some_and(|format| name == format.file()));
            match file {
                Some(file) => {
                    file.bytes = entry.metadata()?.len();
                    bytes += file.bytes;
                }
                None if name == ABOUT => {}
                None if entry.file_type()?.is_dir() => fs::remove_dir_all(entry.path())?,
                None => fs::remove_file(entry.path())?,
            }
        }
        capture.bytes = bytes;
        write_about(&path, capture)
    }

    /// Removes captures that are too old.
    pub fn expire(&mut self, now: SystemTime) {
        if self.limits.ttl.is_zero() {
            return;
        }
        let oldest = unix_ms(now).saturating_sub(self.limits.ttl.as_millis() as u64);
        let old = |capture: &&Capture| capture.state != State::Running && capture.started_unix_ms < oldest;
        let ids: Vec<Id> = self.captures.values().filter(old).filter_map(|capture| Id::parse(&capture.id)).collect();
        for id in ids {
            self.evicted.ttl += 1;
            self.drop_capture(&id, "it is older than `captures.ttl`");
        }
    }

    /// Removes the oldest captures until so many bytes more are within the limits; never `keep`, never one that runs.
    fn make_room(&mut self, bytes: u64, keep: Option<&Id>) -> Result<(), StoreError> {
        // Nothing is removed for what cannot be had anyway.
        let promised: u64 = self.promised.values().sum();
        if promised.saturating_add(bytes) > self.limits.max_total_bytes && bytes > 0 {
            return Err(StoreError::Full(self.limits.max_total_bytes));
        }
        loop {
            let taken = self.bytes().saturating_add(promised);
            let full = taken.saturating_add(bytes) > self.limits.max_total_bytes;
            if !full && self.captures.len() < MAX_CAPTURES {
                return Ok(());
            }
            let can_go = |(id, capture): &(&Id, &Capture)| capture.state != State::Running && Some(*id) != keep;
            let Some(oldest) = self.captures.iter().find(can_go).map(|(id, _)| id.clone()) else {
                return Err(StoreError::Full(self.limits.max_total_bytes));
            };
            self.evicted.quota += 1;
            self.drop_capture(&oldest, "captures take more than `captures.max_total_bytes`");
        }
    }

    fn drop_capture(&mut self, id: &Id, reason: &str) {
        self.captures.remove(id);
        match fs::remove_dir_all(self.path(id)) {
            Ok(()) => tracing::info!(capture = %id, reason, "removed a capture"),
            Err(error) => tracing::error!(capture = %id, %error, "a capture cannot be removed"),
        }
    }

    /// Removes a capture.
    pub fn remove(&mut self, id: &Id) -> Result<(), StoreError> {
        match self.captures.get(id) {
            None => Err(StoreError::NoSuch),
            Some(capture) if capture.state == State::Running => Err(StoreError::Running),
            Some(_) => {
                fs::remove_dir_all(self.path(id))?;
                self.captures.remove(id);
                Ok(())
            }
        }
    }

    pub fn get(&self, id: &Id) -> Option<&Capture> {
        self.captures.get(id)
    }

    /// All captures, the oldest first.
    pub fn list(&self) -> impl DoubleEndedIterator<Item = &Capture> {
        self.captures.values()
    }

    /// Opens a file of a capture; its size is in bytes. `None` when it has no such file.
    pub fn open_file(&self, id: &Id, format: Format) -> Result<Option<(File, u64)>, StoreError> {
        let capture = self.captures.get(id).ok_or(StoreError::NoSuch)?;
        if capture.state == State::Running {
            return Err(StoreError::Running);
        }
        if !capture.files.iter().any(|file| file.format == format.name()) {
            return Ok(None);
        }
        let file = File::open(self.path(id).join(format.file()))?;
        let bytes = file.metadata()?.len();
        Ok(Some((file, bytes)))
    }

    /// The folder of a capture.
    pub fn path(&self, id: &Id) -> PathBuf {
        self.folder.join(&id.0)
    }

    /// Bytes of all captures.
    pub fn bytes(&self) -> u64 {
        self.captures.values().map(|capture| capture.bytes).sum()
    }

    /// What was removed so far to keep the limits.
    pub fn evicted(&self) -> Evicted {
        self.evicted
    }
}

fn unix_ms(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

fn read_about(folder: &Path) -> Option<Capture> {
    let mut text = Vec::new();
    File::open(folder.join(ABOUT)).ok()?.take(MAX_ABOUT_BYTES).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Whole or not at all: it is written aside and takes its name then.
fn write_about(folder: &Path, capture: &Capture) -> io::Result<()> {
    let aside = folder.join("capture.json.part");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&aside)?;
    file.write_all(&serde_json::to_vec_pretty(capture)?)?;
    file.sync_all()?;
    fs::rename(aside, folder.join(ABOUT))
}

#[cfg(test)]
mod tests;
