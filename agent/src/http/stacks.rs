//! `/api/v1/stacks`: which stacks metrics there are, and profiles of them.

use super::routes::{Shared, internal};
use crate::app::{ProfileError, ProfileRequest};
use crate::metrics::profiles::Format;
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Longest profile.
pub const MAX_SECONDS: u64 = 600;
/// Profiles taken at once. Each has a thread that sleeps and sums in memory; names are found for one after another.
const MAX_AT_ONCE: usize = 16;
/// Those of them that last longer than [`LONG_SECONDS`]: the others' places are free again soon.
const MAX_LONG: usize = 4;
const LONG_SECONDS: u64 = 60;
/// When to ask again, by `Retry-After`.
const RETRY_SECONDS: u16 = 10;

/// Places for profiles that are being taken.
pub(super) struct Places {
    all: Arc<Semaphore>,
    long: Arc<Semaphore>,
}

impl Default for Places {
    fn default() -> Places {
        let semaphore = |places| Arc::new(Semaphore::new(places));
        Places { all: semaphore(MAX_AT_ONCE), long: semaphore(MAX_LONG) }
    }
}

/// As many profiles are being taken as may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum Busy {
    #[error("{MAX_AT_ONCE} profiles are being taken already")]
    Any,
    #[error("{MAX_LONG} profiles of more than {LONG_SECONDS} seconds are being taken already")]
    Long,
}

/// What is wrong with the query of a profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum QueryError {
    #[error("there is no format `{0}`: it is {names}", names = Format::ALL.map(Format::name).join(", "))]
    Format(String),
    #[error("seconds={0}: it is a whole number up to {MAX_SECONDS}, or 0 for all since the start")]
    Seconds(String),
    #[error("there is no option `{0}`: they are format and seconds")]
    Option(String),
}

impl Places {
    /// What a profile holds while it is being taken.
    fn take(&self, seconds: u64) -> Result<Vec<OwnedSemaphorePermit>, Busy> {
        let take = |places: &Arc<Semaphore>| places.clone().try_acquire_owned().ok();
        let any = take(&self.all).ok_or(Busy::Any)?;
        if seconds <= LONG_SECONDS {
            return Ok(vec![any]);
        }
        Ok(vec![any, take(&self.long).ok_or(Busy::Long)?])
    }
}

/// `/api/v1/stacks`
pub(super) async fn list(State(shared): State<Arc<Shared>>) -> Response {
    match tokio::task::spawn_blocking(move || (shared.endpoints.stacks)()).await {
        Ok(stacks) => Json(serde_json::json!({ "stacks": stacks })).into_response(),
        Err(error) => internal(&error),
    }
}

/// `/api/v1/stacks/METRIC?format=folded|pprof|svg&seconds=N`
pub(super) async fn profile(
    State(shared): State<Arc<Shared>>,
    Path(metric): Path<String>,
    RawQuery(query): RawQuery,
) -> Response {
    let (format, seconds) = match options(query.as_deref().unwrap_or("")) {
        Ok(options) => options,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    };
    let places = match shared.profiles.take(seconds) {
        Ok(places) => places,
        Err(busy) => {
            let again = [(header::RETRY_AFTER, HeaderValue::from(RETRY_SECONDS))];
            return (StatusCode::TOO_MANY_REQUESTS, again, format!("{busy}: ask again later\n")).into_response();
        }
    };
    // Dropped with this future when the client hangs up.
    let waiting = Waiting(Arc::default());
    let request = ProfileRequest { metric: metric.clone(), seconds, format, cancelled: waiting.0.clone() };
    let made = tokio::task::spawn_blocking(move || {
        let _places = places;
        (shared.endpoints.profile)(&request)
    });
    match made.await {
        Ok(Ok(body)) => answer(&metric, format, body),
        Ok(Err(error)) => {
            let status = match error {
                ProfileError::NoSuch(_) => StatusCode::NOT_FOUND,
                ProfileError::NotAttached(_) => StatusCode::SERVICE_UNAVAILABLE,
                ProfileError::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
            };
            (status, format!("{error}\n")).into_response()
        }
        Err(error) => internal(&error),
    }
}

struct Waiting(Arc<AtomicBool>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn options(query: &str) -> Result<(Format, u64), QueryError> {
    let (mut format, mut seconds) = (Format::default(), 0);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        match key {
            "format" => format = Format::named(value).ok_or_else(|| QueryError::Format(value.to_owned()))?,
            "seconds" => {
                let number = value.parse().ok().filter(|seconds| *seconds <= MAX_SECONDS);
                seconds = number.ok_or_else(|| QueryError::Seconds(value.to_owned()))?;
            }
            _ => return Err(QueryError::Option(key.to_owned())),
        }
    }
    Ok((format, seconds))
}

fn answer(metric: &str, format: Format, body: Vec<u8>) -> Response {
    let mut response = body.into_response();
    let headers = response.headers_mut();
    let content_type = match format {
        Format::Folded => "text/plain; charset=utf-8",
        Format::Pprof => "application/octet-stream",
        Format::Svg => "image/svg+xml",
    };
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if format == Format::Svg {
        // The picture's own script zooms and searches; nothing else is wanted of it.
        let policy = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; sandbox allow-scripts";
        headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    }
    let name = format!("attachment; filename=\"{metric}{}\"", format.suffix());
    if let (Format::Pprof, Ok(name)) = (format, HeaderValue::from_str(&name)) {
        headers.insert(header::CONTENT_DISPOSITION, name);
    }
    response
}
