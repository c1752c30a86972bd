//! Metrics of the configuration.

use super::Labels;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use std::sync::atomic::AtomicU64;
use std::time::{SystemTime, UNIX_EPOCH};

/// What became of the files.
#[derive(Debug)]
pub(super) struct Config {
    errors: Gauge,
    hash: Family<Labels, Gauge>,
    reloads: Family<Labels, Counter>,
    successful: Gauge,
    success: Gauge<f64, AtomicU64>,
}

impl Config {
    /// Nothing was read yet.
    pub fn new(own: &mut Registry) -> Config {
        let (errors, hash, reloads) = (Gauge::default(), Family::default(), Family::default());
        let (successful, success) = (Gauge::default(), Gauge::default());
        let help = "Mistakes in configuration and probe files: what they ask for does not run";
        own.register("config_errors", help, Gauge::clone(&errors));
        let help = "The configuration that runs, by a hash of its files";
        own.register("config_hash", help, Family::clone(&hash));
        own.register("config_reloads", "Times files were read again, by what came of it", Family::clone(&reloads));
        let help = "1 when what the files said at the last reading runs, 0 when what ran before runs on";
        own.register("config_last_reload_successful", help, Gauge::clone(&successful));
        let help = "When the files that run were read";
        let success_at = "config_last_reload_success_timestamp";
        own.register_with_unit(success_at, help, Unit::Seconds, Gauge::<f64, AtomicU64>::clone(&success));
        let config = Config { errors, hash, reloads, successful, success };
        // Rates need a beginning.
        for result in ["success", "failure"] {
            drop(config.reloads.get_or_create(&reload(result)));
        }
        config
    }

    /// The agent runs what these files ask for.
    pub fn runs(&self, mistakes: usize, hash: &str) {
        self.errors.set(i64::try_from(mistakes).unwrap_or(i64::MAX));
        self.hash.clear();
        self.hash.get_or_create(&vec![("hash", hash.to_owned())]).set(1);
        self.successful.set(1);
        self.success.set(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64());
    }

    /// Files were read again.
    pub fn reloaded(&self, well: bool) {
        self.successful.set(i64::from(well));
        self.reloads.get_or_create(&reload(if well { "success" } else { "failure" })).inc();
    }
}

fn reload(result: &str) -> Labels {
    vec![("result", result.to_owned())]
}
