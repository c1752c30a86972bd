//! Log lines on standard error: logfmt or JSON.

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// Starts logging; `level` is `error` .. `trace`. Libraries are heard from `warn` on.
pub fn start(level: &str, json: bool) -> Result<(), String> {
    let known = ["error", "warn", "info", "debug", "trace"];
    if !known.contains(&level) {
        return Err(format!("`{level}` is not a log level: it is one of {}", known.join(", ")));
    }
    let filter = EnvFilter::try_new(format!("warn,kstrobe={level}")).map_err(|e| e.to_string())?;
    let format = match json {
        true => tracing_subscriber::fmt::layer().json().with_writer(std::io::stderr).boxed(),
        false => tracing_logfmt::builder().with_target(false).layer().with_writer(std::io::stderr).boxed(),
    };
    tracing_subscriber::registry().with(format.with_filter(filter)).try_init().map_err(|e| e.to_string())
}
