//! The routes, and the one scrape that may run at a time.

use super::access::guard_reading;
use super::page::Page;
use super::stacks;
use super::{captures, events, history, negotiate, pages, reload};
use crate::app::{Endpoints, Exposition};
use crate::probe::status::Status;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use hyper::body::Frame;
use kstrobe_export::reading::Reading;
use kstrobe_export::{Format, Gone};
use std::pin::{Pin, pin};
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::sync::{Mutex, Semaphore, mpsc};

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

/// Pieces of an exposition that wait for the client.
const MAX_WAITING_PIECES: usize = 4;

pub(super) struct Shared {
    pub endpoints: Endpoints,
    page: Page,
    pub profiles: stacks::Places,
    pub followers: Arc<Semaphore>,
    pub readers: history::Readers,
    pub downloads: Arc<Semaphore>,
    scrapes: Option<Arc<Semaphore>>,
    /// Held by the one scrape that may run.
    turn: Arc<Mutex<()>>,
    last: std::sync::Mutex<Option<Read>>,
}

/// The last complete reading: for the scrapes that were waiting meanwhile, and for those that come too late to wait for the next
/// one.
#[derive(Clone)]
struct Read {
    started: Instant,
    reading: Arc<Reading>,
}

/// All routes.
pub fn router(endpoints: Endpoints) -> Router {
    let followers = Arc::new(Semaphore::new(events::MAX_FOLLOWERS));
    let downloads = Arc::new(Semaphore::new(captures::MAX_DOWNLOADS));
    let scrapes = (endpoints.most_requests > 0).then(|| Arc::new(Semaphore::new(endpoints.most_requests)));
    let path = endpoints.telemetry_path.clone();
    let files = Page::new(&endpoints.version, &path);
    let shared = Arc::new(Shared {
        endpoints,
        page: files,
        profiles: stacks::Places::default(),
        followers,
        readers: history::Readers::default(),
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
        .route("/api/v1/history", get(history::overview))
        .route("/api/v1/query", get(history::query))
        .route("/api/v1/live", get(history::live))
        .route_layer(middleware::from_fn_with_state(shared.clone(), guard_reading));
    let router = Router::new().route(&path, get(metrics));
    let router = if path == "/" { router } else { router.route("/", get(page)).route("/page/{file}", get(page_file)) };
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

async fn page(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    shared.page.answer("", &headers)
}

async fn page_file(State(shared): State<Arc<Shared>>, Path(file): Path<String>, headers: HeaderMap) -> Response {
    shared.page.answer(&file, &headers)
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
    let response = match answer(shared.clone(), arrived, patience(&headers)).await {
        Ok(Some((read, late))) => exposition(shared, read, late, format, gzip),
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

/// A fresh reading, or after `patience` the last complete one with its age; `None` when there is neither.
async fn answer(
    shared: Arc<Shared>,
    arrived: Instant,
    patience: Duration,
) -> Result<Option<(Read, Option<Duration>)>, tokio::task::JoinError> {
    let fresh = |read| Some((read, None));
    let mut reading = pin!(read(shared.clone(), arrived));
    if let Ok(read) = tokio::time::timeout(patience, reading.as_mut()).await {
        return read.map(fresh);
    }
    if let Some(read) = shared.last() {
        let age = read.started.elapsed();
        return Ok(Some((read, Some(age))));
    }
    match tokio::time::timeout(SCRAPE_LIMIT - patience, reading).await {
        Ok(read) => read.map(fresh),
        Err(_) => Ok(None),
    }
}

/// One reading at a time. Who waited takes the one that was made meanwhile, if it was begun after they came: then it is as fresh
/// as their own would have been.
async fn read(shared: Arc<Shared>, arrived: Instant) -> Result<Read, tokio::task::JoinError> {
    // The lock goes into the blocking task: a client that hangs up must not let a second reading begin beside it.
    let turn = shared.turn.clone().lock_owned().await;
    if let Some(read) = shared.last().filter(|read| read.started >= arrived) {
        return Ok(read);
    }
    tokio::task::spawn_blocking(move || {
        let _turn = turn;
        let started = Instant::now();
        let read = Read { started, reading: Arc::new((shared.endpoints.read)()) };
        *shared.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(read.clone());
        read
    })
    .await
}

impl Shared {
    fn last(&self) -> Option<Read> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// An answer that is written while it is sent. A client that takes its time holds up nothing but its own answer.
fn exposition(shared: Arc<Shared>, read: Read, late: Option<Duration>, format: Format, gzip: bool) -> Response {
    let (pieces, received) = mpsc::channel(MAX_WAITING_PIECES);
    tokio::task::spawn_blocking(move || {
        let exposition = Exposition { reading: &read.reading, late, format, gzip };
        let mut send = |piece| pieces.blocking_send(Some(piece)).map_err(|_| Gone);
        // Who hung up misses nothing.
        _ = (shared.endpoints.write)(&exposition, &mut send)
            .and_then(|()| pieces.blocking_send(None).map_err(|_| Gone));
    });
    let mut response = Body::new(Pieces(Some(received))).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
    headers.insert(header::VARY, HeaderValue::from_static("accept, accept-encoding"));
    if gzip {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    response
}

/// The pieces of an exposition, then `None` at its end. Without an end the connection is closed, so that what was sent does not
/// look complete.
struct Pieces(Option<mpsc::Receiver<Option<Bytes>>>);

#[derive(Debug, Error)]
#[error("the exposition could not be completed")]
struct Incomplete;

impl hyper::body::Body for Pieces {
    type Data = Bytes;
    type Error = Incomplete;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Incomplete>>> {
        let Some(pieces) = &mut self.0 else { return Poll::Ready(None) };
        let next = match ready!(pieces.poll_recv(cx)) {
            Some(Some(piece)) => return Poll::Ready(Some(Ok(Frame::data(piece)))),
            Some(None) => None,
            None => Some(Err(Incomplete)),
        };
        self.0 = None;
        Poll::Ready(next)
    }
}

#[cfg(test)]
mod tests;
