//! Where the agent is asked, and how: its sockets, its web configuration, and what systemd is told.

use super::WebOptions;
use super::logging::print_diagnostics;
use kstrobe_web::source::LOOK_EVERY;
use kstrobe_web::systemd::{self, News, notify};
use kstrobe_web::{Counters, LoadError, Source};
use std::net::TcpListener;
use std::process::ExitCode;
use std::sync::Arc;

/// All that is needed before anything is attached: nothing is, for an agent that nobody could ask.
pub struct Door {
    pub listeners: Vec<TcpListener>,
    pub source: Arc<Source>,
}

/// Opens the sockets and reads the configuration. What is wrong is told.
pub fn open(listen: &[String], options: &WebOptions) -> Result<Door, ExitCode> {
    let told = |error: &dyn std::fmt::Display| {
        eprintln!("error: {error}");
        ExitCode::from(1)
    };
    let counters = Arc::new(Counters::default());
    let source = match &options.config {
        None => Source::plain(counters),
        Some(file) => Source::open(file, LOOK_EVERY, counters).map_err(|error| match error {
            LoadError::Mistakes(mistakes) => {
                print_diagnostics(&mistakes);
                ExitCode::from(1)
            }
            error => told(&error),
        })?,
    };
    let listeners = match options.systemd_socket {
        true => systemd::sockets().map_err(|error| told(&error))?,
        false => kstrobe_web::bind(listen).map_err(|error| told(&error))?,
    };
    Ok(Door { listeners, source: Arc::new(source) })
}

/// Tells systemd's watchdog, while requests can be answered, that they can.
pub async fn stay_alive() {
    let Some(every) = systemd::watchdog() else { return };
    let mut turns = tokio::time::interval(every);
    loop {
        turns.tick().await;
        notify(News::Alive);
    }
}
