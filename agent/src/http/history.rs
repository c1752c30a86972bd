//! `/api/v1/history`, `/api/v1/query` and `/api/v1/live`: the metrics of the last minutes, and those to come.

use super::routes::{Shared, internal};
use crate::app::{HistoryOff, HistoryStore, Recorded};
use axum::extract::{Query as Options, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Json, Response};
use futures_core::Stream;
use kstrobe_history::{Query, QueryError};
use serde::Serialize;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, ready};
use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

/// Each has a connection: half of those that the server takes.
const MAX_READERS: usize = 64;
/// Seconds that wait for a reader beside what the socket takes. With more it is too slow.
const MAX_WAITING: usize = 8;

/// Why a request has no answer.
#[derive(Debug, Error)]
enum Refusal {
    #[error(transparent)]
    Off(#[from] HistoryOff),
    #[error(transparent)]
    Query(#[from] QueryError),
    #[error("{MAX_READERS} clients read /api/v1/live already")]
    Busy,
}

#[derive(Serialize)]
struct Problem {
    error: String,
    hint: String,
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, hint) = match &self {
            Refusal::Off(_) => (StatusCode::NOT_FOUND, "set `history: { enabled: true }` in kstrobe.yaml".to_owned()),
            Refusal::Query(error) => (StatusCode::BAD_REQUEST, error.hint()),
            Refusal::Busy => (StatusCode::TOO_MANY_REQUESTS, "close one of them, or ask again later".to_owned()),
        };
        (status, Json(Problem { error: self.to_string(), hint })).into_response()
    }
}

/// Answers on a blocking thread: a long range takes milliseconds.
async fn answer<T: Serialize + Send + 'static>(
    shared: Arc<Shared>,
    make: impl FnOnce(&HistoryStore) -> Result<T, Refusal> + Send + 'static,
) -> Response {
    match tokio::task::spawn_blocking(move || make(&shared.endpoints.history)).await {
        Ok(Ok(value)) => {
            let mut response = Json(value).into_response();
            response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
            response
        }
        Ok(Err(refusal)) => refusal.into_response(),
        Err(error) => internal(&error),
    }
}

/// `/api/v1/history`
pub(super) async fn overview(State(shared): State<Arc<Shared>>) -> Response {
    answer(shared, |history| Ok(history.overview()?)).await
}

type Pairs = Options<Vec<(String, String)>>;

/// Who reads `/api/v1/live`, and the last seconds as they are sent.
pub(super) struct Live {
    places: Arc<Semaphore>,
    written: Mutex<Vec<Written>>,
}

/// A second as the readers with the same options get it: written once, however many they are.
struct Written {
    options: Arc<[(String, String)]>,
    number: u64,
    text: Arc<OnceLock<Made>>,
}

/// A second as JSON.
#[derive(Clone)]
enum Made {
    Text(Arc<str>),
    /// It is not kept any more.
    Gone,
    /// The history is off, or no longer has what is asked for.
    Refused,
}

impl Default for Live {
    fn default() -> Live {
        Live { places: Arc::new(Semaphore::new(MAX_READERS)), written: Mutex::default() }
    }
}

impl Live {
    fn second(&self, history: &HistoryStore, asked: &Asked, number: u64) -> Made {
        let text = {
            let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
            // Those of the last two seconds: who is further behind has it written anew.
            written.retain(|one| one.number + 1 >= number);
            match written.iter().find(|one| one.number == number && one.options == asked.options) {
                Some(one) => one.text.clone(),
                None if written.len() < 2 * MAX_READERS => {
                    let text = Arc::default();
                    written.push(Written { options: asked.options.clone(), number, text: Arc::clone(&text) });
                    text
                }
                None => Arc::default(),
            }
        };
        text.get_or_init(|| made(history, asked.query.as_ref(), number)).clone()
    }
}

/// What a reader asked for.
struct Asked {
    options: Arc<[(String, String)]>,
    query: Option<Query>,
}

fn parse(options: &[(String, String)]) -> Result<Option<Query>, QueryError> {
    Query::parse(options.iter().map(|(name, value)| (name.as_str(), value.as_str())))
}

/// `/api/v1/query?metric=M&match=..&by=..&from=..&to=..&step=..&top=..&sort=..`
pub(super) async fn query(State(shared): State<Arc<Shared>>, Options(options): Pairs) -> Response {
    let query = match parse(&options).and_then(|query| query.ok_or(QueryError::NoMetric)) {
        Ok(query) => query,
        Err(error) => return Refusal::from(error).into_response(),
    };
    answer(shared, move |history| Ok(history.query(&query)??)).await
}

/// `/api/v1/live`, with the options of a query or without any.
pub(super) async fn live(State(shared): State<Arc<Shared>>, Options(options): Pairs) -> Response {
    let refuse = |refusal: Refusal| refusal.into_response();
    let query = match parse(&options) {
        Ok(query) => query,
        Err(error) => return refuse(error.into()),
    };
    let Ok(place) = shared.live.places.clone().try_acquire_owned() else { return refuse(Refusal::Busy) };
    let history = shared.endpoints.history.clone();
    // From before the answer begins: a client that has its head misses no second.
    let recorded = history.follow();
    let next = recorded.borrow().end;
    let asked = query.clone();
    // A query that has no answer is refused here, while there is a status to say so.
    let checked = tokio::task::spawn_blocking(move || -> Result<(), Refusal> {
        match asked {
            Some(query) => history.query(&query)?.map(drop)?,
            None => history.overview().map(drop)?,
        }
        Ok(())
    });
    match checked.await {
        Ok(Ok(())) => {}
        Ok(Err(refusal)) => return refuse(refusal),
        Err(error) => return internal(&error),
    }
    let (events, received) = mpsc::channel(MAX_WAITING);
    let asked = Asked { options: options.into(), query };
    tokio::spawn(follow(shared, recorded, next, asked, events, place));
    Sse::new(Seconds(Some(received))).into_response()
}

/// What a reader gets.
enum Message {
    Second(Arc<str>),
    /// The agent ends, or the history is off.
    End,
}

/// Sends each second from the one numbered `next` on as it comes, until the client or the agent ends. A reader that does not take them
/// loses its place: no other waits for it.
async fn follow(
    shared: Arc<Shared>,
    mut recorded: watch::Receiver<Recorded>,
    mut next: u64,
    asked: Asked,
    events: mpsc::Sender<Message>,
    _place: OwnedSemaphorePermit,
) {
    let asked = Arc::new(asked);
    loop {
        let Recorded { end, closed } = *recorded.borrow_and_update();
        for number in next..end {
            let (shared, asked) = (shared.clone(), asked.clone());
            let second = move || shared.live.second(&shared.endpoints.history, &asked, number);
            match tokio::task::spawn_blocking(second).await {
                Ok(Made::Text(text)) => {
                    if events.try_send(Message::Second(text)).is_err() {
                        return;
                    }
                }
                // It went before it was read: such a reader is too slow as well.
                Ok(Made::Gone) => return,
                Ok(Made::Refused) => return finish(&events),
                Err(error) => {
                    internal(&error);
                    return finish(&events);
                }
            }
        }
        next = end;
        if closed {
            return finish(&events);
        }
        tokio::select! {
            changed = recorded.changed() => if changed.is_err() { return },
            () = events.closed() => return,
        }
    }
}

/// A reader that has no room for it was too slow.
fn finish(events: &mpsc::Sender<Message>) {
    _ = events.try_send(Message::End);
}

fn made(history: &HistoryStore, query: Option<&Query>, number: u64) -> Made {
    match text(history, query, number) {
        // Keys are texts and numbers are finite: nothing of it cannot be written.
        Ok(Some(Ok(text))) => Made::Text(text.into()),
        Ok(_) => Made::Gone,
        Err(_) => Made::Refused,
    }
}

fn text(
    history: &HistoryStore,
    query: Option<&Query>,
    number: u64,
) -> Result<Option<serde_json::Result<String>>, Refusal> {
    Ok(match query {
        Some(query) => history.query_second(query, number)??.map(|answer| serde_json::to_string(&answer)),
        None => history.summary(number)?.map(|summary| serde_json::to_string(&summary)),
    })
}

/// The seconds that wait for a reader. When there will be no more without a message that says so, the reader was too slow, and the
/// last event says that.
struct Seconds(Option<mpsc::Receiver<Message>>);

impl Stream for Seconds {
    type Item = Result<Event, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(received) = &mut self.0 else { return Poll::Ready(None) };
        let event = match ready!(received.poll_recv(cx)) {
            Some(Message::Second(text)) => return Poll::Ready(Some(Ok(Event::default().event("second").data(text)))),
            Some(Message::End) => None,
            None => Some(Ok(Event::default().event("dropped").data("{}"))),
        };
        self.0 = None;
        Poll::Ready(event)
    }
}
