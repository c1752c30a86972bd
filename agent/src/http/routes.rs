//! The routes, and the one scrape that may run at a time.

use super::access::guard_reading;
use super::stacks;
use super::{captures, events, negotiate, pages, reload};
use crate::app::Endpoints;
use crate::probe::status::Status;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware;
use axum::response::{Html, IntoResponse, Json, Response};
use axum::routing::{get, post};
use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use kstrobe_export::Format;
use std::io::{Read, Write};
use std::pin::pin;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, Semaphore};

/// Loopback: remote clients need an explicit setting.
pub const DEFAULT_ADDRESS: &str = "127.0.0.1:9779";

/// Scrapes at once, as node_exporter has it.
pub const DEFAULT_REQUESTS: usize = 40;

/// A scrape that takes longer is answered with 503 where there is nothing older to answer with; it goes on, and the next one waits
/// for it.
const SCRAPE_LIMIT: Duration = Duration::from_secs(30);
/// Prometheus' own limit where a scraper names none.
const SCRAPER_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest limit of a scraper that is looked at: a day.
const MAX_SCRAPER_SECONDS: f64 = 86_400.0;
/// Name of the header in which Prometheus and vmagent say their limit in seconds.
const TIMEOUT_HEADER: &str = "x-prometheus-scrape-timeout-seconds";

pub(super) struct Shared {
    pub endpoints: Endpoints,
    pub profiles: stacks::Places,
    pub followers: Arc<Semaphore>,
    pub downloads: Arc<Semaphore>,
    scrapes: Option<Arc<Semaphore>>,
    /// Held by the one scrape that may run.
    turn: Arc<Mutex<()>>,
    /// The last of each format: two scrapers that ask for different ones do not displace each other's.
    last: std::sync::Mutex<Vec<Exposition>>,
}

/// The last complete answer: for the scrapes that were waiting while it was made, and for those that come too late to wait for the
/// next one.
#[derive(Clone)]
struct Exposition {
    started: Instant,
    format: Format,
    gzip: bool,
    body: Bytes,
}

/// All routes.
pub fn router(endpoints: Endpoints) -> Router {
    let followers = Arc::new(Semaphore::new(events::MAX_FOLLOWERS));
    let downloads = Arc::new(Semaphore::new(captures::MAX_DOWNLOADS));
    let scrapes = (endpoints.most_requests > 0).then(|| Arc::new(Semaphore::new(endpoints.most_requests)));
    let path = endpoints.telemetry_path.clone();
    let shared = Arc::new(Shared {
        endpoints,
        profiles: stacks::Places::default(),
        followers,
        downloads,
        scrapes,
        turn: Arc::default(),
        last: Default::default(),
    });
    let reading = Router::new()
        .route("/api/v1/probes", get(probes))
        .route("/api/v1/stacks", get(stacks::list))
        .route("/api/v1/stacks/{metric}", get(stacks::profile))
        .route("/api/v1/events", get(events::events))
        .route_layer(middleware::from_fn_with_state(shared.clone(), guard_reading));
    let router = Router::new().route(&path, get(metrics));
    let router = if path == "/" { router } else { router.route("/", get(landing)) };
    router
        .route("/healthz", get(healthy))
        .route("/-/healthy", get(healthy))
        .route("/readyz", get(ready))
        .route("/-/ready", get(ready))
        .merge(reading)
        .merge(captures::routes(shared.clone()))
        .route("/-/reload", post(reload::reload).put(reload::reload))
        .with_state(shared)
}

async fn landing(State(shared): State<Arc<Shared>>) -> Html<String> {
    Html(pages::landing(&shared.endpoints.version, &shared.endpoints.telemetry_path))
}

async fn healthy() -> &'static str {
    "ok\n"
}

async fn ready(State(shared): State<Arc<Shared>>) -> Response {
    match status(shared).await {
        Ok(status) => {
            let (ready, text) = pages::readiness(&status);
            (if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, text).into_response()
        }
        Err(failed) => failed,
    }
}

async fn probes(State(shared): State<Arc<Shared>>) -> Response {
    match status(shared).await {
        Ok(status) => Json(status).into_response(),
        Err(failed) => failed,
    }
}

async fn status(shared: Arc<Shared>) -> Result<Status, Response> {
    tokio::task::spawn_blocking(move || (shared.endpoints.status)()).await.map_err(|error| internal(&error))
}

pub(super) fn internal(error: &tokio::task::JoinError) -> Response {
    tracing::error!(%error, "a request failed");
    (StatusCode::INTERNAL_SERVER_ERROR, "internal error, see the agent's log\n").into_response()
}

async fn metrics(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    let arrived = Instant::now();
    let place = match shared.scrapes.clone().map(Semaphore::try_acquire_owned).transpose() {
        Ok(place) => place,
        Err(_) => {
            let most = shared.endpoints.most_requests;
            let text =
                format!("{most} scrapes are under way, which is the limit (--web.max-requests): try again later\n");
            return (StatusCode::SERVICE_UNAVAILABLE, text).into_response();
        }
    };
    let header =
        |name| headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect::<Vec<_>>().join(",");
    let format = negotiate::format(Some(&header(header::ACCEPT)));
    let gzip = negotiate::accepts_gzip(Some(&header(header::ACCEPT_ENCODING)));
    let response = match answer(shared, arrived, patience(&headers), format, gzip).await {
        Ok(Some((body, gzip))) => exposition_response(body, format, gzip),
        Ok(None) => (StatusCode::SERVICE_UNAVAILABLE, "reading the kernel's maps takes too long\n").into_response(),
        Err(error) => internal(&error),
    };
    match place {
        Some(place) => kstrobe_web::hold(response, place),
        None => response,
    }
}

/// How long a scraper can wait for a fresh answer: four fifths of its own limit, as the answer has to arrive within it.
fn patience(headers: &HeaderMap) -> Duration {
    let seconds = headers.get(TIMEOUT_HEADER).and_then(|value| value.to_str().ok()?.parse::<f64>().ok());
    let seconds = seconds.filter(|seconds| (0.0..MAX_SCRAPER_SECONDS).contains(seconds));
    (seconds.map_or(SCRAPER_TIMEOUT, Duration::from_secs_f64) * 4 / 5).min(SCRAPE_LIMIT)
}

/// A fresh body, or after `patience` the last complete one in this format, and whether it is packed; `None` when there is neither.
async fn answer(
    shared: Arc<Shared>,
    arrived: Instant,
    patience: Duration,
    format: Format,
    gzip: bool,
) -> Result<Option<(Bytes, bool)>, tokio::task::JoinError> {
    let fresh = |body| Some((body, gzip));
    let mut scraping = pin!(scrape(shared.clone(), arrived, format, gzip));
    if let Ok(body) = tokio::time::timeout(patience, scraping.as_mut()).await {
        return body.map(fresh);
    }
    if let Some(made) = shared.last(format) {
        let old = tokio::task::spawn_blocking(move || {
            let whole = if made.gzip { unpack(&made.body) } else { made.body.into() };
            (shared.endpoints.late)(format, whole, made.started.elapsed()).into()
        });
        return old.await.map(|body| Some((body, false)));
    }
    match tokio::time::timeout(SCRAPE_LIMIT - patience, scraping).await {
        Ok(body) => body.map(fresh),
        Err(_) => Ok(None),
    }
}

fn exposition_response(body: Bytes, format: Format, gzip: bool) -> Response {
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
    headers.insert(header::VARY, HeaderValue::from_static("accept, accept-encoding"));
    if gzip {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    response
}

/// One scrape at a time. Who waited takes the answer that was made meanwhile, if it was begun after they came: then it is
/// as fresh as their own would have been.
async fn scrape(
    shared: Arc<Shared>,
    arrived: Instant,
    format: Format,
    gzip: bool,
) -> Result<Bytes, tokio::task::JoinError> {
    // The lock goes into the blocking task: a client that hangs up must not let a second scrape begin beside it.
    let turn = shared.turn.clone().lock_owned().await;
    if let Some(made) = shared.last(format)
        && made.started >= arrived
        && made.gzip == gzip
    {
        return Ok(made.body);
    }
    tokio::task::spawn_blocking(move || {
        let _turn = turn;
        let started = Instant::now();
        let text = (shared.endpoints.scrape)(format);
        let body = Bytes::from(if gzip { compress(&text) } else { text });
        shared.keep(Exposition { started, format, gzip, body: body.clone() });
        body
    })
    .await
}

impl Shared {
    fn last(&self, format: Format) -> Option<Exposition> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.iter().find(|made| made.format == format).cloned()
    }

    fn keep(&self, made: Exposition) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.retain(|other| other.format != made.format);
        last.push(made);
    }
}

/// What [`compress`] packed.
fn unpack(packed: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(packed.len() * 16);
    GzDecoder::new(packed).read_to_end(&mut text).expect("it was packed here");
    text
}

/// The fastest level: expositions repeat themselves so much that it already takes off more than nine tenths.
fn compress(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(text.len() / 16 + 1024), Compression::fast());
    let written = encoder.write_all(text).and_then(|()| encoder.finish());
    written.expect("writing to memory cannot fail")
}

#[cfg(test)]
mod tests;
