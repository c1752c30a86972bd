//! Starts, stops and stores captures, for the API, rules and alerts.

use super::api;
use super::error::{Error, NoFile};
use super::format::Format;
use super::request::Request;
use super::run::Stop;
use super::store::{Capture, Id, Limits, Recorded, State, Store, StoreError, Trigger};
use crate::metrics::telemetry::CapturesUse;
use kstrobe_config::model::Captures;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

/// Records a request into a folder, in files named by [`Format::file`], until its end or until it is stopped; a stopped
/// recording is kept. Enforces the duration and the bytes of the request.
pub type Record = dyn Fn(&Request, &Path, &Stop) -> Result<Recorded, Error> + Send + Sync;

/// Writes what a killed agent left of a recording in this folder, in files named by [`Format::file`].
pub type Rescue = dyn Fn(&Path) -> Result<Recorded, Error> + Send + Sync;

/// Converts a `trace.dat`: from, format, to.
pub type Convert = dyn Fn(&Path, Format, &Path) -> Result<(), Error> + Send + Sync;

/// Called after a capture has ended: the capture, the folder of its files, its begin and end. May block: the next capture
/// does not wait for it.
pub type OnFinished = dyn Fn(&Capture, &Path, (SystemTime, SystemTime)) + Send + Sync;

/// What the service runs.
pub struct Engine {
    pub record: Box<Record>,
    pub rescue: Box<Rescue>,
    pub convert: Box<Convert>,
    /// Called after each capture.
    pub on_finished: Box<OnFinished>,
}

impl Engine {
    /// One that records nothing and says why.
    pub fn absent(reason: &'static str) -> Engine {
        Engine {
            record: Box::new(move |_, _, _| Err(Error::Absent(reason))),
            rescue: Box::new(move |_| Err(Error::Absent(reason))),
            convert: Box::new(move |_, _, _| Err(Error::Absent(reason))),
            on_finished: Box::new(|_, _, _| {}),
        }
    }
}

/// Why a capture was not begun.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    #[error("{0}: ask again when it has ended")]
    Busy(Busy),
    #[error("{0}")]
    Full(#[source] StoreError),
    #[error("captures cannot be stored: {0}")]
    Store(#[source] StoreError),
    #[error("{0}")]
    Thread(#[source] Error),
    #[error("no capture begins any more: the agent stops, or has other captures now")]
    Closed,
}

impl Refusal {
    /// Whether the same request may succeed when other captures have ended.
    pub fn is_temporary(&self) -> bool {
        matches!(self, Refusal::Busy(_) | Refusal::Full(_))
    }
}

/// As many captures run as may: `captures.max_concurrent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy(u32);

impl std::fmt::Display for Busy {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            1 => write!(out, "a capture runs")?,
            max => write!(out, "{max} captures run")?,
        }
        write!(out, " already (`captures.max_concurrent`)")
    }
}

/// The captures of an agent.
pub struct Service {
    settings: RwLock<Arc<Captures>>,
    engine: Engine,
    store: Mutex<Store>,
    running: Mutex<BTreeMap<Id, Stop>>,
    ended: Mutex<BTreeMap<(String, &'static str), u64>>,
    /// One conversion at a time: each reads a whole capture.
    converting: Mutex<()>,
    /// Captures whose finish callback runs.
    finishing: AtomicUsize,
    /// No further ones begin.
    closed: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change is whole before anything that can panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn limits(settings: &Captures) -> Limits {
    Limits { max_total_bytes: settings.max_total_bytes, ttl: Duration::from_nanos(settings.ttl_ns) }
}

fn busy(running: usize, settings: &Captures) -> Option<Busy> {
    (running >= settings.max_concurrent as usize).then_some(Busy(settings.max_concurrent))
}

impl Service {
    /// Opens the store.
    pub fn open(settings: Captures, engine: Engine) -> std::io::Result<Arc<Service>> {
        let store = Mutex::new(Store::open(Path::new(&settings.dir), limits(&settings), &*engine.rescue)?);
        let settings = RwLock::new(Arc::new(settings));
        let (running, ended, converting, finishing, closed) = Default::default();
        Ok(Arc::new(Service { settings, engine, store, running, ended, converting, finishing, closed }))
    }

    /// Its configuration.
    pub fn settings(&self) -> Arc<Captures> {
        self.settings.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Another configuration, of captures in the same folder. Those that run go on as they began.
    pub fn configure(&self, settings: Captures) {
        lock(&self.store).limit(limits(&settings));
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
    }

    /// Begins a capture on a thread of its own.
    pub fn start(self: &Arc<Self>, request: Request, trigger: Trigger) -> Result<Id, Refusal> {
        let kind = trigger.kind.clone();
        let begun = self.begin(request, trigger);
        if begun.is_err() {
            self.count(kind, "refused");
        }
        begun
    }

    /// Why no capture can begin now, while as many run as may.
    pub fn busy(&self) -> Option<Busy> {
        busy(lock(&self.running).len(), &self.settings())
    }

    fn begin(self: &Arc<Self>, request: Request, trigger: Trigger) -> Result<Id, Refusal> {
        let mut running = lock(&self.running);
        if self.closed.load(Relaxed) {
            return Err(Refusal::Closed);
        }
        let settings = self.settings();
        if let Some(busy) = busy(running.len(), &settings) {
            return Err(Refusal::Busy(busy));
        }
        let bytes = request.max_bytes.unwrap_or(settings.max_bytes);
        let begun = lock(&self.store).begin(api::to_json(&request), trigger.clone(), bytes, SystemTime::now());
        let (id, folder) = begun.map_err(|error| match error {
            StoreError::Full(_) => Refusal::Full(error),
            _ => Refusal::Store(error),
        })?;
        let stop = Stop::default();
        running.insert(id.clone(), stop.clone());
        drop(running);
        tracing::info!(capture = %id, by = trigger.kind, rule = trigger.rule, why = trigger.why, "a capture begins");
        let (service, of) = (self.clone(), id.clone());
        let run = move || service.run(&of, &request, trigger, &folder, &stop);
        if let Err(error) = std::thread::Builder::new().name("capture".into()).spawn(run) {
            let error = Error::Thread(error);
            lock(&self.running).remove(&id);
            // The error is returned below.
            let _ = lock(&self.store).end(&id, Err(&error), false, SystemTime::now());
            return Err(Refusal::Thread(error));
        }
        Ok(id)
    }

    fn run(&self, id: &Id, request: &Request, trigger: Trigger, folder: &Path, stop: &Stop) {
        let began = SystemTime::now();
        let recorded = catch_unwind(AssertUnwindSafe(|| (self.engine.record)(request, folder, stop)));
        let times = (began, SystemTime::now());
        let recorded = recorded.unwrap_or(Err(Error::RecorderPanic));
        // Held until the state is stored: a client that sees the end can start the next capture.
        let mut running = lock(&self.running);
        let ended = lock(&self.store).end(id, recorded.as_ref().cloned(), stop.is_stopped(), SystemTime::now());
        let result = match &ended {
            Ok(Capture { state: State::Done, .. }) => "done",
            Ok(Capture { state: State::Cancelled, .. }) => "cancelled",
            _ => "failed",
        };
        match &ended {
            Ok(c) if c.error.is_empty() => {
                tracing::info!(capture = %id, result, bytes = c.bytes, records = c.records, lost = c.lost, "a capture ended");
            }
            Ok(c) => tracing::warn!(capture = %id, result, reason = c.error, "a capture ended"),
            Err(error) => tracing::error!(capture = %id, %error, "a capture cannot be stored"),
        }
        self.count(trigger.kind, result);
        self.finishing.fetch_add(1, Relaxed);
        running.remove(id);
        drop(running);
        if let Ok(capture) = &ended {
            let _turn = lock(&self.converting);
            if catch_unwind(AssertUnwindSafe(|| (self.engine.on_finished)(capture, folder, times))).is_err() {
                tracing::error!(capture = %id, "finish callback panicked: this is an error in kstrobe, please report it");
            }
        }
        self.finishing.fetch_sub(1, Relaxed);
    }

    fn count(&self, kind: String, result: &'static str) {
        *lock(&self.ended).entry((kind, result)).or_default() += 1;
    }

    /// Stops a capture; false when it does not run.
    pub fn cancel(&self, id: &Id) -> Result<bool, StoreError> {
        if lock(&self.store).get(id).is_none() {
            return Err(StoreError::NoSuch);
        }
        let running = lock(&self.running);
        let stop = running.get(id);
        stop.inspect(|stop| stop.stop());
        Ok(stop.is_some())
    }

    /// Removes a capture that has ended.
    pub fn remove(&self, id: &Id) -> Result<(), StoreError> {
        lock(&self.store).remove(id)
    }

    pub fn get(&self, id: &Id) -> Option<Capture> {
        lock(&self.store).get(id).cloned()
    }

    /// All captures, the newest first.
    pub fn list(&self) -> Vec<Capture> {
        let mut store = lock(&self.store);
        store.expire(SystemTime::now());
        store.list().rev().cloned().collect()
    }

    /// Whether there is a capture of this id that has, or will have, something in it.
    pub fn has(&self, id: &Id) -> bool {
        lock(&self.store).get(id).is_some_and(|capture| capture.state != State::Failed)
    }

    /// A file of a capture and its size in bytes; converted now if it does not exist.
    pub fn file(&self, id: &Id, format: Format) -> Result<(File, u64), StoreError> {
        if let Some(found) = lock(&self.store).open_file(id, format)? {
            return Ok(found);
        }
        let _one = lock(&self.converting);
        let (source, to, aside) = {
            let store = lock(&self.store);
            // Another request may have converted it meanwhile.
            if let Some(found) = store.open_file(id, format)? {
                return Ok(found);
            }
            if store.open_file(id, Format::Dat)?.is_none() {
                return Err(NoFile::Empty.into());
            }
            let folder = store.path(id);
            (folder.join(Format::Dat.file()), folder.join(format.file()), folder.join("converted.part"))
        };
        let made = catch_unwind(AssertUnwindSafe(|| (self.engine.convert)(&source, format, &aside)));
        let made = made.unwrap_or(Err(Error::ConversionPanic));
        if let Err(error) = made {
            // It may not have come so far as to write anything.
            let _ = std::fs::remove_file(&aside);
            return Err(NoFile::Conversion { format, error }.into());
        }
        let mut store = lock(&self.store);
        if store.get(id).is_none() {
            return Err(StoreError::NoSuch);
        }
        std::fs::rename(aside, to)?;
        store.add(id, format)?;
        store.open_file(id, format)?.ok_or(StoreError::NoSuch)
    }

    /// What is made of a capture's records, one capture at a time: each is read whole into memory.
    pub fn read<T>(&self, id: &Id, make: impl FnOnce(&[u8]) -> Result<T, Error>) -> Result<T, StoreError> {
        let _one = lock(&self.converting);
        let found = lock(&self.store).open_file(id, Format::Dat)?;
        let (mut file, _) = found.ok_or(NoFile::Empty)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let made = catch_unwind(AssertUnwindSafe(|| make(&bytes))).unwrap_or(Err(Error::ConversionPanic));
        made.map_err(|error| NoFile::Unreadable(error).into())
    }

    /// What the agent exports about captures.
    pub fn usage(&self) -> CapturesUse {
        let running = lock(&self.running).len() as u64;
        let (stored_bytes, evicted) = {
            let mut store = lock(&self.store);
            store.expire(SystemTime::now());
            (store.bytes(), store.evicted())
        };
        let ended = lock(&self.ended).iter().map(|((kind, result), n)| (kind.clone(), *result, *n)).collect();
        CapturesUse { running, stored_bytes, evicted, ended }
    }

    /// Refuses new captures, stops running ones, and waits for them up to `limit`.
    pub fn close(&self, limit: Duration) {
        {
            let running = lock(&self.running);
            self.closed.store(true, Relaxed);
            running.values().for_each(Stop::stop);
        }
        let begun = Instant::now();
        let busy = || !lock(&self.running).is_empty() || self.finishing.load(Relaxed) > 0;
        while busy() && begun.elapsed() < limit {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[cfg(test)]
mod tests;
