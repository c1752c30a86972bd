//! Captures that run, those that have, and who may ask for more: one place for the API, rules and alerts.

use super::api;
use super::format::Format;
use super::request::Request;
use super::run::Stop;
use super::store::{Capture, Id, Limits, Recorded, State, Store, StoreError, Trigger};
use crate::metrics::telemetry::CapturesUse;
use kstrobe_config::model::Captures;
use std::collections::BTreeMap;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

/// Records what is asked for into a folder, with the names that [`Format::file`] gives, until it has what it wants or is
/// told to stop; what was recorded until then is of use. It keeps the duration and the bytes of the request itself.
pub type Record = dyn Fn(&Request, &Path, &Stop) -> Result<Recorded, String> + Send + Sync;

/// Makes another form of a `trace.dat`: from, form, to.
pub type Convert = dyn Fn(&Path, Format, &Path) -> Result<(), String> + Send + Sync;

/// Is told of a capture that has ended: what it is, the folder with its files, when it began and ended. It may take its time:
/// the next capture does not wait for it.
pub type OnFinished = dyn Fn(&Capture, &Path, (SystemTime, SystemTime)) + Send + Sync;

/// What the service runs.
pub struct Engine {
    /// Records.
    pub record: Box<Record>,
    /// Converts.
    pub convert: Box<Convert>,
    /// Is told.
    pub on_finished: Box<OnFinished>,
}

impl Engine {
    /// One that records nothing and says why.
    pub fn absent(reason: &'static str) -> Engine {
        Engine {
            record: Box::new(move |_, _, _| Err(reason.to_owned())),
            convert: Box::new(move |_, _, _| Err(reason.to_owned())),
            on_finished: Box::new(|_, _, _| {}),
        }
    }
}

/// Why a capture was not begun.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Too many run, or there is no room: it may be asked again.
    #[error("{0}")]
    Busy(String),
    /// Something is broken.
    #[error("{0}")]
    Broken(String),
}

/// All of it.
pub struct Service {
    settings: RwLock<Arc<Captures>>,
    engine: Engine,
    store: Mutex<Store>,
    running: Mutex<BTreeMap<Id, Stop>>,
    ended: Mutex<BTreeMap<(String, &'static str), u64>>,
    /// One conversion at a time: each reads a whole capture.
    converting: Mutex<()>,
    /// Captures that have ended and are being told of.
    telling: AtomicUsize,
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

fn busy(running: usize, settings: &Captures) -> Option<String> {
    let run = match settings.max_concurrent as usize {
        max if running < max => return None,
        1 => "a capture runs".to_owned(),
        max => format!("{max} captures run"),
    };
    Some(format!("{run} already (`captures.max_concurrent`)"))
}

impl Service {
    /// Opens the store.
    pub fn open(settings: Captures, engine: Engine) -> std::io::Result<Arc<Service>> {
        let store = Mutex::new(Store::open(Path::new(&settings.dir), limits(&settings))?);
        let settings = RwLock::new(Arc::new(settings));
        let (running, ended, converting, telling, closed) = Default::default();
        Ok(Arc::new(Service { settings, engine, store, running, ended, converting, telling, closed }))
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
    pub fn busy(&self) -> Option<String> {
        busy(lock(&self.running).len(), &self.settings())
    }

    fn begin(self: &Arc<Self>, request: Request, trigger: Trigger) -> Result<Id, Refusal> {
        let mut running = lock(&self.running);
        if self.closed.load(Relaxed) {
            return Err(Refusal::Broken(
                "no capture begins any more: the agent stops, or has other captures now".to_owned(),
            ));
        }
        let settings = self.settings();
        if let Some(run) = busy(running.len(), &settings) {
            return Err(Refusal::Busy(format!("{run}: ask again when it has ended")));
        }
        let bytes = request.max_bytes.unwrap_or(settings.max_bytes);
        let begun = lock(&self.store).begin(api::to_json(&request), trigger.clone(), bytes, SystemTime::now());
        let (id, folder) = begun.map_err(|error| match error {
            StoreError::Full(_) => Refusal::Busy(error.to_string()),
            _ => Refusal::Broken(format!("captures cannot be stored: {error}")),
        })?;
        let stop = Stop::default();
        running.insert(id.clone(), stop.clone());
        drop(running);
        tracing::info!(capture = %id, by = trigger.kind, rule = trigger.rule, why = trigger.why, "a capture begins");
        let (service, of) = (self.clone(), id.clone());
        let run = move || service.run(&of, &request, trigger, &folder, &stop);
        if let Err(error) = std::thread::Builder::new().name("capture".into()).spawn(run) {
            let reason = format!("no thread for a capture: {error}");
            lock(&self.running).remove(&id);
            // That it could not begin is told by what is returned.
            let _ = lock(&self.store).end(&id, Err(reason.clone()), false, SystemTime::now());
            return Err(Refusal::Broken(reason));
        }
        Ok(id)
    }

    fn run(&self, id: &Id, request: &Request, trigger: Trigger, folder: &Path, stop: &Stop) {
        let began = SystemTime::now();
        let recorded = catch_unwind(AssertUnwindSafe(|| (self.engine.record)(request, folder, stop)));
        let times = (began, SystemTime::now());
        let recorded = recorded.unwrap_or_else(|_| {
            Err("the recorder failed: this is an error in kstrobe, please report it with the agent's log".to_owned())
        });
        // Held to the end: who sees that it has ended can begin the next, and cannot cancel this one.
        let mut running = lock(&self.running);
        let ended = lock(&self.store).end(id, recorded, stop.is_stopped(), SystemTime::now());
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
        self.telling.fetch_add(1, Relaxed);
        running.remove(id);
        drop(running);
        if let Ok(capture) = &ended {
            let _turn = lock(&self.converting);
            if catch_unwind(AssertUnwindSafe(|| (self.engine.on_finished)(capture, folder, times))).is_err() {
                tracing::error!(capture = %id, "it was not told: this is an error in kstrobe, please report it");
            }
        }
        self.telling.fetch_sub(1, Relaxed);
    }

    fn count(&self, kind: String, result: &'static str) {
        *lock(&self.ended).entry((kind, result)).or_default() += 1;
    }

    /// Tells a capture to stop; false when it does not run.
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

    /// A capture.
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

    /// A file of a capture and its size in bytes; made now when it is of a form that was not recorded.
    pub fn file(&self, id: &Id, form: Format) -> Result<(File, u64), StoreError> {
        if let Some(found) = lock(&self.store).open_file(id, form)? {
            return Ok(found);
        }
        let _one = lock(&self.converting);
        let (source, to, aside) = {
            let store = lock(&self.store);
            // Who was before us may have made it.
            if let Some(found) = store.open_file(id, form)? {
                return Ok(found);
            }
            if store.open_file(id, Format::Dat)?.is_none() {
                return Err(StoreError::NoForm("nothing was recorded".to_owned()));
            }
            let folder = store.path(id);
            (folder.join(Format::Dat.file()), folder.join(form.file()), folder.join("converted.part"))
        };
        let made = catch_unwind(AssertUnwindSafe(|| (self.engine.convert)(&source, form, &aside)));
        let made = made.unwrap_or_else(|_| Err("the conversion failed, see the agent's log".to_owned()));
        if let Err(reason) = made {
            // It may not have come so far as to write anything.
            let _ = std::fs::remove_file(&aside);
            return Err(StoreError::NoForm(format!("there is no {} of it: {reason}", form.name())));
        }
        let mut store = lock(&self.store);
        if store.get(id).is_none() {
            return Err(StoreError::NoSuch);
        }
        std::fs::rename(aside, to)?;
        store.add(id, form)?;
        store.open_file(id, form)?.ok_or(StoreError::NoSuch)
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

    /// Lets no capture begin any more, stops those that run and waits for them, for a while.
    pub fn close(&self, limit: Duration) {
        {
            let running = lock(&self.running);
            self.closed.store(true, Relaxed);
            running.values().for_each(Stop::stop);
        }
        let begun = Instant::now();
        let busy = || !lock(&self.running).is_empty() || self.telling.load(Relaxed) > 0;
        while busy() && begun.elapsed() < limit {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[cfg(test)]
mod tests;
