//! The configuration in use, and when it is read again.

use crate::counts::{Counters, add};
use crate::load::{self, Digest, LoadError, Loaded, Settings, load};
use crate::stamp::{Stamps, must_read};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Files are looked at this often at most, by whoever connects or asks.
pub const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Where settings come from.
pub struct Source {
    file: Option<PathBuf>,
    look_every: Duration,
    current: RwLock<Arc<Settings>>,
    /// One looks, the others wait for what it finds: they must not be served by what has been replaced.
    looked: tokio::sync::Mutex<Looked>,
    looked_at: Mutex<Instant>,
    counters: Arc<Counters>,
}

#[derive(Clone)]
struct Looked {
    stamps: Stamps,
    read_at: Duration,
    digest: Digest,
}

impl Source {
    /// Plain HTTP for everybody.
    pub fn plain(counters: Arc<Counters>) -> Source {
        let nothing = Looked { stamps: Vec::new(), read_at: Duration::ZERO, digest: Digest::default() };
        Source::new(None, LOOK_EVERY, Settings::default(), nothing, counters)
    }

    /// As a `web-config.yml` says, which must be right now; later mistakes leave what is in use. Warnings are logged.
    pub fn open(file: &Path, look_every: Duration, counters: Arc<Counters>) -> Result<Source, LoadError> {
        let read_at = since_1970();
        let Loaded { stamps, warnings, settings, digest, .. } = load(file);
        let settings = settings?;
        for warning in warnings {
            tracing::warn!(reason = warning.one_line(), "the web configuration");
        }
        counters.loaded();
        let looked = Looked { stamps, read_at, digest };
        Ok(Source::new(Some(file.to_owned()), look_every, settings, looked, counters))
    }

    fn new(
        file: Option<PathBuf>,
        look_every: Duration,
        settings: Settings,
        looked: Looked,
        counters: Arc<Counters>,
    ) -> Source {
        let looked = tokio::sync::Mutex::new(looked);
        let (current, looked_at) = (RwLock::new(Arc::new(settings)), Mutex::new(Instant::now()));
        Source { file, look_every, current, looked, looked_at, counters }
    }

    /// What is in use, without looking at files.
    pub fn settings(&self) -> Arc<Settings> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The server's counters.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// What the files say, looked at when that was too long ago.
    pub async fn fresh(self: &Arc<Source>) -> Arc<Settings> {
        if let Some(file) = self.file.clone().filter(|_| self.is_due()) {
            let mut looked = self.looked.lock().await;
            if self.is_due() {
                let source = self.clone();
                let before = looked.clone();
                // After a panic there the next one looks again.
                if let Ok(now) = tokio::task::spawn_blocking(move || source.look(&file, before)).await {
                    *looked = now;
                }
                *self.looked_at.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
            }
        }
        self.settings()
    }

    fn is_due(&self) -> bool {
        self.looked_at.lock().unwrap_or_else(PoisonError::into_inner).elapsed() >= self.look_every
    }

    fn look(&self, file: &Path, before: Looked) -> Looked {
        let read_at = since_1970();
        if !must_read(&before.stamps, before.read_at, &load::stamps(&before.stamps)) {
            return before;
        }
        let loaded = load(file);
        let now = Looked { stamps: loaded.stamps, read_at, digest: loaded.digest };
        if now.digest == before.digest {
            return now;
        }
        match self.acceptable(loaded.settings, loaded.blank) {
            Ok(settings) => {
                add(&self.counters.reloads);
                self.counters.loaded();
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
                tracing::info!(file = %file.display(), "the web configuration was read again");
                loaded.warnings.iter().for_each(|w| tracing::warn!(reason = w.one_line(), "the web configuration"));
            }
            Err(reason) => {
                add(&self.counters.reload_failures);
                self.counters.reload_failing.store(true, Relaxed);
                tracing::error!(reason, "the changed web configuration cannot be used: the one before it stays");
            }
        }
        now
    }

    /// What must not happen behind anybody's back: a file that is just being written, or is emptied by mistake, would open doors.
    fn acceptable(&self, settings: Result<Settings, LoadError>, blank: bool) -> Result<Settings, String> {
        let settings = settings.map_err(|error| error.to_string())?;
        let old = self.settings();
        if old.tls.is_some() != settings.tls.is_some() {
            let what = if old.tls.is_some() { "off" } else { "on" };
            return Err(format!("TLS is not switched {what} while the agent runs: restart it"));
        }
        if blank && !old.users.is_empty() {
            return Err("the file is empty, and there were users: write `basic_auth_users: {}` to remove them".into());
        }
        Ok(settings)
    }
}

fn since_1970() -> Duration {
    // A clock before 1970 makes every file young, which is then read each time.
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
