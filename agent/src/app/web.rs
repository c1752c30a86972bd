//! The agent's sockets, its web configuration, and notifications of systemd.

use super::WebOptions;
use crate::config::diagnostics::print_diagnostics;
use kstrobe_web::config_watcher::RELOAD_INTERVAL;
use kstrobe_web::systemd::{self, News, notify};
use kstrobe_web::{ConfigWatcher, Counters, LoadError};
use std::net::TcpListener;
use std::process::ExitCode;
use std::sync::Arc;

/// The open sockets. They come before any probe is attached: an address in use must end the agent first.
pub struct Listeners {
    pub listeners: Vec<TcpListener>,
    pub source: Arc<ConfigWatcher>,
}

/// Opens the sockets and reads the configuration. Prints errors.
pub fn open(listen: &[String], options: &WebOptions) -> Result<Listeners, ExitCode> {
    let failed = |error: &dyn std::fmt::Display| {
        eprintln!("error: {error}");
        ExitCode::from(1)
    };
    let counters = Arc::new(Counters::default());
    let source = match &options.config {
        None => ConfigWatcher::plain(counters),
        Some(file) => ConfigWatcher::open(file, RELOAD_INTERVAL, counters).map_err(|error| match error {
            LoadError::Mistakes(mistakes) => {
                print_diagnostics(&mistakes);
                ExitCode::from(1)
            }
            error => failed(&error),
        })?,
    };
    let listeners = match options.systemd_socket {
        true => systemd::sockets().map_err(|error| failed(&error))?,
        false => kstrobe_web::bind(listen).map_err(|error| failed(&error))?,
    };
    Ok(Listeners { listeners, source: Arc::new(source) })
}

/// Notifies systemd's watchdog as long as the runtime schedules tasks.
pub async fn stay_alive() {
    let Some(every) = systemd::watchdog() else { return };
    let mut turns = tokio::time::interval(every);
    loop {
        turns.tick().await;
        notify(News::Alive);
    }
}
