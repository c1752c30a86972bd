//! Log lines on standard error: logfmt or JSON.

use thiserror::Error;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{EnvFilter, Layer, Registry};

/// Why there is no log, or not at this level.
#[derive(Debug, Error)]
pub enum LogError {
    /// No name of a level.
    #[error("`{0}` is not a log level: it is one of {levels}", levels = LEVELS.join(", "))]
    Level(String),
    /// The filter is not taken.
    #[error(transparent)]
    Filter(#[from] ParseError),
    /// There is a log already.
    #[error(transparent)]
    Start(#[from] TryInitError),
    /// The log is gone.
    #[error(transparent)]
    Reload(#[from] reload::Error),
}

const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

/// The log level, which a reload can change.
#[derive(Clone)]
pub struct Level(Handle<EnvFilter, Registry>);

/// Starts logging; `level` is `error` .. `trace`. Libraries log from `warn` on.
pub fn start(level: &str, json: bool) -> Result<Level, LogError> {
    let (filter, handle) = reload::Layer::new(filter(level)?);
    let format = match json {
        true => tracing_subscriber::fmt::layer().json().with_writer(std::io::stderr).boxed(),
        false => tracing_logfmt::builder().with_target(false).layer().with_writer(std::io::stderr).boxed(),
    };
    tracing_subscriber::registry().with(format.with_filter(filter)).try_init()?;
    Ok(Level(handle))
}

impl Level {
    pub fn set(&self, level: &str) -> Result<(), LogError> {
        Ok(self.0.reload(filter(level)?)?)
    }
}

#[cfg(test)]
impl Level {
    /// A level without a log.
    pub fn of_nothing() -> Level {
        Level(reload::Layer::new(EnvFilter::default()).1)
    }
}

fn filter(level: &str) -> Result<EnvFilter, LogError> {
    if !LEVELS.contains(&level) {
        return Err(LogError::Level(level.to_owned()));
    }
    Ok(EnvFilter::try_new(format!("warn,kstrobe={level}"))?)
}
