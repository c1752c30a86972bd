//! Log lines on standard error: logfmt or JSON.

use crate::config::files::diag::{self, Diagnostic};
use std::io::IsTerminal;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry};

/// The log level, which a reload can change.
#[derive(Clone)]
pub struct Level(Handle<EnvFilter, Registry>);

/// Starts logging; `level` is `error` .. `trace`. Libraries log from `warn` on.
pub fn start(level: &str, json: bool) -> Result<Level, String> {
    let (filter, handle) = reload::Layer::new(filter(level)?);
    let format = match json {
        true => tracing_subscriber::fmt::layer().json().with_writer(std::io::stderr).boxed(),
        false => tracing_logfmt::builder().with_target(false).layer().with_writer(std::io::stderr).boxed(),
    };
    tracing_subscriber::registry().with(format.with_filter(filter)).try_init().map_err(|e| e.to_string())?;
    Ok(Level(handle))
}

impl Level {
    /// Logs from this level on.
    pub fn set(&self, level: &str) -> Result<(), String> {
        self.0.reload(filter(level)?).map_err(|e| e.to_string())
    }
}

#[cfg(test)]
impl Level {
    /// A level without a log.
    pub fn of_nothing() -> Level {
        Level(reload::Layer::new(EnvFilter::default()).1)
    }
}

fn filter(level: &str) -> Result<EnvFilter, String> {
    let known = ["error", "warn", "info", "debug", "trace"];
    if !known.contains(&level) {
        return Err(format!("`{level}` is not a log level: it is one of {}", known.join(", ")));
    }
    EnvFilter::try_new(format!("warn,kstrobe={level}")).map_err(|e| e.to_string())
}

/// Prints diagnostics to standard error, coloured on a terminal.
pub fn print_diagnostics(diagnostics: &[Diagnostic]) {
    let text = match std::io::stderr().is_terminal() {
        true => diag::render_ansi(diagnostics),
        false => diag::render(diagnostics),
    };
    eprint!("{text}");
}

/// Logs each diagnostic as one line, and prints it with its source line and caret if standard error is a terminal.
pub fn log_diagnostics(diagnostics: &[Diagnostic]) {
    for d in diagnostics {
        match d.is_error() {
            true => tracing::error!(reason = d.one_line(), "mistake in a file"),
            false => tracing::warn!(reason = d.one_line(), "doubtful"),
        }
    }
    if std::io::stderr().is_terminal() {
        print_diagnostics(diagnostics);
    }
}
