//! The web configuration in use, reloaded when its files change.

use crate::counts::{Counters, add};
use crate::load::{self, Digest, LoadError, Loaded, Settings, load};
use crate::stamp::{Stamps, must_read};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Minimum interval between checks of the files, which connections and requests trigger.
pub const RELOAD_INTERVAL: Duration = Duration::from_secs(1);

/// Why changed files are not used.
#[derive(Debug, thiserror::Error)]
enum ReloadError {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("TLS is not switched {} while the agent runs: restart it", if *on { "on" } else { "off" })]
    TlsSwitched { on: bool },
    #[error("the file is empty, and there were users: write `basic_auth_users: {{}}` to remove them")]
    NoUsers,
}

/// Current settings and the state of their files.
pub struct ConfigWatcher {
    file: Option<PathBuf>,
    reload_interval: Duration,
    current: RwLock<Arc<Settings>>,
    /// Serialises checks; concurrent requests wait, since they must not use replaced settings.
    snapshot: tokio::sync::Mutex<Snapshot>,
    checked_at: Mutex<Instant>,
    counters: Arc<Counters>,
}

#[derive(Clone)]
struct Snapshot {
    stamps: Stamps,
    read_at: Duration,
    digest: Digest,
}

impl ConfigWatcher {
    /// Plain HTTP without access control.
    pub fn plain(counters: Arc<Counters>) -> ConfigWatcher {
        let nothing = Snapshot { stamps: Vec::new(), read_at: Duration::ZERO, digest: Digest::default() };
        ConfigWatcher::new(None, RELOAD_INTERVAL, Settings::default(), nothing, counters)
    }

    /// Loads a `web-config.yml`. Errors of later reloads keep the settings in use. Warnings are logged.
    pub fn open(file: &Path, reload_interval: Duration, counters: Arc<Counters>) -> Result<ConfigWatcher, LoadError> {
        let read_at = since_1970();
        let Loaded { stamps, warnings, settings, digest, .. } = load(file);
        let settings = settings?;
        for warning in warnings {
            tracing::warn!(reason = warning.one_line(), "the web configuration");
        }
        counters.loaded();
        let snapshot = Snapshot { stamps, read_at, digest };
        Ok(ConfigWatcher::new(Some(file.to_owned()), reload_interval, settings, snapshot, counters))
    }

    fn new(
        file: Option<PathBuf>,
        reload_interval: Duration,
        settings: Settings,
        snapshot: Snapshot,
        counters: Arc<Counters>,
    ) -> ConfigWatcher {
        let snapshot = tokio::sync::Mutex::new(snapshot);
        let (current, checked_at) = (RwLock::new(Arc::new(settings)), Mutex::new(Instant::now()));
        ConfigWatcher { file, reload_interval, current, snapshot, checked_at, counters }
    }

    /// Current settings, without a check of the files.
    pub fn settings(&self) -> Arc<Settings> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Server counters.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Current settings, after a check of the files if one is due.
    pub async fn fresh(self: &Arc<ConfigWatcher>) -> Arc<Settings> {
        if let Some(file) = self.file.clone().filter(|_| self.is_due()) {
            let mut snapshot = self.snapshot.lock().await;
            if self.is_due() {
                let watcher = self.clone();
                let before = snapshot.clone();
                // After a panic the next check repeats the work.
                if let Ok(now) = tokio::task::spawn_blocking(move || watcher.look(&file, before)).await {
                    *snapshot = now;
                }
                *self.checked_at.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
            }
        }
        self.settings()
    }

    fn is_due(&self) -> bool {
        self.checked_at.lock().unwrap_or_else(PoisonError::into_inner).elapsed() >= self.reload_interval
    }

    fn look(&self, file: &Path, before: Snapshot) -> Snapshot {
        let read_at = since_1970();
        if !must_read(&before.stamps, before.read_at, &load::stamps(&before.stamps)) {
            return before;
        }
        let loaded = load(file);
        let now = Snapshot { stamps: loaded.stamps, read_at, digest: loaded.digest };
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
            Err(error) => {
                add(&self.counters.reload_failures);
                self.counters.reload_failing.store(true, Relaxed);
                tracing::error!(reason = %error, "the changed web configuration cannot be used: the one before it stays");
            }
        }
        now
    }

    /// Rejects reloads that would silently drop access control: a half-written or accidentally emptied file.
    fn acceptable(&self, settings: Result<Settings, LoadError>, blank: bool) -> Result<Settings, ReloadError> {
        let settings = settings?;
        let old = self.settings();
        if old.tls.is_some() != settings.tls.is_some() {
            return Err(ReloadError::TlsSwitched { on: settings.tls.is_some() });
        }
        if blank && !old.users.is_empty() {
            return Err(ReloadError::NoUsers);
        }
        Ok(settings)
    }
}

fn since_1970() -> Duration {
    // With a clock before 1970 every file counts as young and is read each time.
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
