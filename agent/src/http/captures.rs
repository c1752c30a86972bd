//! `/api/v1/captures`: start, list, download, cancel, remove, and alerts.

mod alerts;
mod picture;

use super::access::{Asker, guard_captures};
use super::routes::{Shared, internal};
use crate::capture::api;
use crate::capture::audit;
use crate::capture::format::Format;
use crate::capture::rules::engine::RuleEngine;
use crate::capture::store::{Id, StoreError, Trigger};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Extension, Path, RawQuery, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use hyper::body::{Frame, SizeHint};
use std::fs::File;
use std::io::{self, Read};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

/// A request for a capture: names and filters, some kilobytes.
const MAX_BODY_BYTES: usize = 64 << 10;
/// A notification of Alertmanager: every alert of a group with all its labels.
const MAX_ALERT_BYTES: usize = 1 << 20;
/// Captures that are read at once: each has a thread.
pub(super) const MAX_DOWNLOADS: usize = 4;
const CHUNK_BYTES: usize = 64 << 10;

type Denial = (StatusCode, String);

pub(super) fn routes(shared: Arc<Shared>) -> Router<Arc<Shared>> {
    Router::new()
        .route("/api/v1/captures", get(list).post(start))
        .route("/api/v1/captures/{id}", get(status).delete(remove))
        .route("/api/v1/captures/{id}/download", get(download))
        .route("/api/v1/captures/{id}/timeline", get(picture::timeline))
        .route("/api/v1/captures/{id}/report", get(picture::report))
        .route("/api/v1/captures/{id}/cancel", post(cancel))
        .route("/api/v1/captures/clock", get(clock))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .route(
            "/api/v1/captures/alertmanager",
            post(alerts::alertmanager).layer(DefaultBodyLimit::max(MAX_ALERT_BYTES)),
        )
        .route_layer(middleware::from_fn_with_state(shared, guard_captures))
}

/// Runs blocking work with the rule engine. The audit line is written afterwards, as it contains the result.
async fn with_rules(
    shared: Arc<Shared>,
    work: impl FnOnce(Arc<RuleEngine>) -> Result<Response, Denial> + Send + 'static,
) -> Response {
    let rules = match (shared.endpoints.captures)().rules {
        Ok(rules) => rules,
        Err(denied) => return (denied.status, format!("{}\n", denied.message)).into_response(),
    };
    match tokio::task::spawn_blocking(move || work(rules)).await {
        Ok(Ok(response)) => response,
        Ok(Err((status, message))) => (status, message.trim_end().to_owned() + "\n").into_response(),
        Err(error) => internal(&error),
    }
}

fn id(text: &str) -> Result<Id, Denial> {
    Id::parse(text).ok_or_else(|| no_such(text))
}

fn no_such(text: &str) -> Denial {
    (StatusCode::NOT_FOUND, format!("there is no capture `{:.40}`", text.escape_debug().to_string()))
}

fn denial(error: StoreError, id: &Id) -> Denial {
    match error {
        StoreError::NoSuch => no_such(&id.to_string()),
        StoreError::Running => (StatusCode::CONFLICT, error.to_string()),
        StoreError::NoFile(_) => (StatusCode::NOT_FOUND, error.to_string()),
        StoreError::Full(_) => (StatusCode::TOO_MANY_REQUESTS, error.to_string()),
        StoreError::Io(_) => {
            tracing::error!(capture = %id, %error, "a capture cannot be read or written");
            (StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
        }
    }
}

/// `POST /api/v1/captures`
async fn start(State(shared): State<Arc<Shared>>, Extension(Asker(asker)): Extension<Asker>, body: Bytes) -> Response {
    with_rules(shared, move |rules| {
        let service = rules.service();
        let request =
            api::from_json(&body, &service.settings()).map_err(|error| (StatusCode::BAD_REQUEST, error.to_string()))?;
        let what = format!("start {}", api::to_json(&request));
        let trigger = Trigger { kind: "api".into(), client: asker.clone(), ..Trigger::default() };
        let started = service.start(request, trigger);
        let id = started.map_err(|refusal| {
            audit(&asker, &what, "", "refused");
            let status = match refusal.is_temporary() {
                true => StatusCode::TOO_MANY_REQUESTS,
                false => StatusCode::SERVICE_UNAVAILABLE,
            };
            (status, refusal.to_string())
        })?;
        audit(&asker, &what, &id.to_string(), "started");
        let location = format!("/api/v1/captures/{id}");
        let body = service.get(&id).map_or_else(|| serde_json::json!({"id": id}), |c| serde_json::json!(c));
        Ok((StatusCode::ACCEPTED, [(header::LOCATION, location)], Json(body)).into_response())
    })
    .await
}

/// `GET /api/v1/captures`
async fn list(State(shared): State<Arc<Shared>>) -> Response {
    with_rules(shared, |rules| Ok(Json(serde_json::json!({"captures": rules.service().list()})).into_response())).await
}

/// `GET /api/v1/captures/clock`: whether captures may be asked for, and what time it is here. Made without waiting for
/// anything, so that who asks can tell how far the clocks are apart.
async fn clock(State(shared): State<Arc<Shared>>) -> Response {
    if let Err(denied) = (shared.endpoints.captures)().rules {
        return (denied.status, format!("{}\n", denied.message)).into_response();
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let unix_ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
    let no_store = [(header::CACHE_CONTROL, "no-store")];
    (no_store, Json(serde_json::json!({"unix_ns": unix_ns, "version": shared.endpoints.version}))).into_response()
}

/// `GET /api/v1/captures/{id}`
async fn status(State(shared): State<Arc<Shared>>, Path(text): Path<String>) -> Response {
    with_rules(shared, move |rules| {
        let capture = rules.service().get(&id(&text)?).ok_or_else(|| no_such(&text))?;
        Ok(Json(capture).into_response())
    })
    .await
}

/// `POST /api/v1/captures/{id}/cancel`
async fn cancel(
    State(shared): State<Arc<Shared>>,
    Extension(Asker(asker)): Extension<Asker>,
    Path(text): Path<String>,
) -> Response {
    with_rules(shared, move |rules| {
        let id = id(&text)?;
        let cancelled = rules.service().cancel(&id).map_err(|error| denial(error, &id))?;
        audit(&asker, "cancel", &text, if cancelled { "cancelled" } else { "had ended" });
        if !cancelled {
            return Err((StatusCode::CONFLICT, "it has ended already".to_owned()));
        }
        Ok((StatusCode::ACCEPTED, Json(rules.service().get(&id))).into_response())
    })
    .await
}

/// `DELETE /api/v1/captures/{id}`
async fn remove(
    State(shared): State<Arc<Shared>>,
    Extension(Asker(asker)): Extension<Asker>,
    Path(text): Path<String>,
) -> Response {
    with_rules(shared, move |rules| {
        let id = id(&text)?;
        let removed = rules.service().remove(&id);
        audit(&asker, "delete", &text, if removed.is_ok() { "removed" } else { "refused" });
        removed.map_err(|error| denial(error, &id))?;
        Ok(StatusCode::NO_CONTENT.into_response())
    })
    .await
}

/// A place among those who read captures.
fn turn(shared: &Shared) -> Result<OwnedSemaphorePermit, Denial> {
    shared.downloads.clone().try_acquire_owned().map_err(|_| {
        let message = format!("{MAX_DOWNLOADS} captures are being read already: ask again later\n");
        (StatusCode::TOO_MANY_REQUESTS, message)
    })
}

/// `GET /api/v1/captures/{id}/download?format=FORM`
async fn download(
    State(shared): State<Arc<Shared>>,
    Extension(Asker(asker)): Extension<Asker>,
    Path(text): Path<String>,
    RawQuery(query): RawQuery,
) -> Response {
    let format = match format(query.as_deref().unwrap_or("")) {
        Ok(format) => format,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    };
    let turn = match turn(&shared) {
        Ok(turn) => turn,
        Err(busy) => return busy.into_response(),
    };
    with_rules(shared, move |rules| {
        let id = id(&text)?;
        let found = rules.service().file(&id, format);
        audit(&asker, &format!("download {}", format.name()), &text, if found.is_ok() { "sent" } else { "refused" });
        let (file, bytes) = found.map_err(|error| denial(error, &id))?;
        let (chunks, received) = mpsc::channel(1);
        tokio::task::spawn_blocking(move || {
            let _turn = turn;
            send(file, bytes, &chunks);
        });
        let mut response = Body::new(FileBody { left: bytes, chunks: received }).into_response();
        let name = format!("attachment; filename=\"{id}-{}\"", format.file());
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.extend(HeaderValue::from_str(&name).ok().map(|name| (header::CONTENT_DISPOSITION, name)));
        Ok(response)
    })
    .await
}

/// What is wrong with the query of a download.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum QueryError {
    #[error("there is no format `{0}`: it is {names}", names = Format::ALL.map(Format::name).join(", "))]
    Format(String),
    #[error("there is no option `{0}`: it is format")]
    Option(String),
}

fn format(query: &str) -> Result<Format, QueryError> {
    let mut format = Format::Dat;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if key != "format" {
            return Err(QueryError::Option(key.to_owned()));
        }
        format = Format::named(value).ok_or_else(|| QueryError::Format(value.to_owned()))?;
    }
    Ok(format)
}

/// Reads so many bytes until the client is gone.
fn send(file: File, bytes: u64, chunks: &mpsc::Sender<io::Result<Bytes>>) {
    let mut file = file.take(bytes);
    loop {
        let mut chunk = vec![0; CHUNK_BYTES];
        let read = match file.read(&mut chunk) {
            Ok(0) => return,
            Ok(read) => {
                chunk.truncate(read);
                Ok(Bytes::from(chunk))
            }
            Err(error) => Err(error),
        };
        let failed = read.is_err();
        if chunks.blocking_send(read).is_err() || failed {
            return;
        }
    }
}

/// A body of known length. One that ends before it has it all is cut off, which clients notice.
struct FileBody {
    left: u64,
    chunks: mpsc::Receiver<io::Result<Bytes>>,
}

impl hyper::body::Body for FileBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let next = self.chunks.poll_recv(cx);
        if let Poll::Ready(Some(Ok(chunk))) = &next {
            self.left = self.left.saturating_sub(chunk.len() as u64);
        }
        next.map(|chunk| chunk.map(|chunk| chunk.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
