//! `/api/v1/history`, `/api/v1/query` and `/api/v1/live`: the metrics of the last minutes, and those to come.

use super::routes::{Shared, internal};
use crate::app::{HistoryOff, HistoryStore, Recorded};
use axum::extract::{Query as Options, State};
use axum::http::{StatusCode, header};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Json, Response};
use bytes::Bytes;
use futures_core::Stream;
use kstrobe_history::{Query, QueryError};
use serde::Serialize;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

/// Each has a connection: half of those that the server takes.
const MAX_READERS: usize = 64;
/// Queries that are answered at once; others wait. Each takes memory for its answer.
const MAX_QUERIES: usize = 8;
/// Answers to queries that are kept for others that ask the same.
const MAX_ANSWERS: usize = 16;
const MAX_ANSWER_BYTES: usize = 512 << 10;
/// How long what was written is kept: the numbers of seconds begin anew when the history was off, and stand still in a view.
const KEPT: Duration = Duration::from_secs(1);
/// Seconds that wait for a reader beside what the socket takes. With more it is too slow.
const MAX_WAITING: usize = 8;

/// Why a request has no answer.
#[derive(Clone, Debug, Error)]
enum Refusal {
    #[error(transparent)]
    Off(#[from] HistoryOff),
    #[error(transparent)]
    Query(#[from] QueryError),
    #[error("heat={0} is neither true nor false")]
    Heat(String),
    #[error("there is no option `{0}`")]
    Option(String),
    #[error("the answer cannot be written as JSON: {0}")]
    Write(Arc<serde_json::Error>),
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
            Refusal::Heat(_) | Refusal::Option(_) => {
                (StatusCode::BAD_REQUEST, "the one option is heat: with heat=true, counts by bucket".to_owned())
            }
            Refusal::Write(_) => {
                (StatusCode::INTERNAL_SERVER_ERROR, "report it: it is a fault of the agent".to_owned())
            }
            Refusal::Busy => (StatusCode::TOO_MANY_REQUESTS, "close one of them, or ask again later".to_owned()),
        };
        (status, Json(Problem { error: self.to_string(), hint })).into_response()
    }
}

fn json(value: &impl Serialize) -> Result<String, Refusal> {
    serde_json::to_string(value).map_err(|error| Refusal::Write(Arc::new(error)))
}

/// Answers with JSON, which is made on a blocking thread: a long range takes milliseconds.
async fn answer(
    shared: Arc<Shared>,
    make: impl FnOnce(&Shared) -> Result<Bytes, Refusal> + Send + 'static,
) -> Response {
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
    match tokio::task::spawn_blocking(move || make(&shared)).await {
        Ok(Ok(body)) => (headers, body).into_response(),
        Ok(Err(refusal)) => refusal.into_response(),
        Err(error) => internal(&error),
    }
}

/// `/api/v1/history?heat=true`
pub(super) async fn overview(State(shared): State<Arc<Shared>>, Options(options): Pairs) -> Response {
    let heat = match with_heat(&options) {
        Ok(heat) => heat,
        Err(refusal) => return refusal.into_response(),
    };
    answer(shared, move |shared| Ok(json(&shared.endpoints.history.overview(heat)?)?.into())).await
}

fn with_heat(options: &[(String, String)]) -> Result<bool, Refusal> {
    let mut heat = false;
    for (name, value) in options {
        heat = match (name.as_str(), value.as_str()) {
            ("heat", "true") => true,
            ("heat", "false") => false,
            ("heat", _) => return Err(Refusal::Heat(value.clone())),
            _ => return Err(Refusal::Option(name.clone())),
        };
    }
    Ok(heat)
}

type Pairs = Options<Vec<(String, String)>>;

/// Who reads the history, and what was written for them.
pub(super) struct Readers {
    /// Of `/api/v1/live`.
    places: Arc<Semaphore>,
    queries: Arc<Semaphore>,
    seconds: Once<Result<Option<Arc<str>>, Refusal>>,
    answers: Once<Result<Bytes, Refusal>>,
}

impl Default for Readers {
    fn default() -> Readers {
        Readers {
            places: Arc::new(Semaphore::new(MAX_READERS)),
            queries: Arc::new(Semaphore::new(MAX_QUERIES)),
            seconds: Once::new(2 * MAX_READERS),
            answers: Once::new(MAX_ANSWERS),
        }
    }
}

/// What several clients ask for while the same second is the newest: made once.
struct Once<T> {
    most: usize,
    made: Mutex<Vec<Entry<T>>>,
}

struct Entry<T> {
    options: Arc<[(String, String)]>,
    number: u64,
    begun: Instant,
    value: Arc<OnceLock<T>>,
}

impl<T: Clone> Once<T> {
    fn new(most: usize) -> Once<T> {
        Once { most, made: Mutex::default() }
    }

    /// The value for these options and the second of this number. What is not worth keeping is made for each client.
    fn get(
        &self,
        options: &Arc<[(String, String)]>,
        number: u64,
        make: impl FnOnce() -> T,
        is_kept: impl Fn(&T) -> bool,
    ) -> T {
        let lock = || self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let value = {
            let mut made = lock();
            made.retain(|one| one.number >= number && one.begun.elapsed() < KEPT);
            match made.iter().find(|one| one.number == number && one.options == *options) {
                Some(one) => one.value.clone(),
                None => {
                    let value = Arc::default();
                    if made.len() < self.most {
                        let (options, begun) = (options.clone(), Instant::now());
                        made.push(Entry { options, number, begun, value: Arc::clone(&value) });
                    }
                    value
                }
            }
        };
        let found = value.get_or_init(make).clone();
        if !is_kept(&found) {
            lock().retain(|one| !Arc::ptr_eq(&one.value, &value));
        }
        found
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
    let options: Arc<[(String, String)]> = options.into();
    let turn = shared.readers.queries.clone().acquire_owned().await;
    answer(shared, move |shared| {
        // Until the answer is made, even where the client has gone.
        let _turn = turn;
        let history = &shared.endpoints.history;
        // Not from what was kept while it was on.
        if !history.is_on() {
            return Err(HistoryOff.into());
        }
        let newest = history.follow().borrow().end;
        let make = || Ok(json(&history.query(&query)??)?.into());
        let is_kept = |made: &Result<Bytes, Refusal>| made.as_ref().is_ok_and(|bytes| bytes.len() <= MAX_ANSWER_BYTES);
        shared.readers.answers.get(&options, newest, make, is_kept)
    })
    .await
}

/// `/api/v1/live`, with the options of a query or without any.
pub(super) async fn live(State(shared): State<Arc<Shared>>, Options(options): Pairs) -> Response {
    let refuse = |refusal: Refusal| refusal.into_response();
    let query = match parse(&options) {
        Ok(query) => query,
        Err(error) => return refuse(error.into()),
    };
    let Ok(place) = shared.readers.places.clone().try_acquire_owned() else { return refuse(Refusal::Busy) };
    let history = shared.endpoints.history.clone();
    // From before the answer begins: a client that has its head misses no second.
    let recorded = history.follow();
    let next = recorded.borrow().end;
    let asked = query.clone();
    // A query that has no answer is refused here, while there is a status to say so.
    let checked = tokio::task::spawn_blocking(move || -> Result<(), Refusal> {
        match asked {
            Some(query) => history.query(&query)?.map(drop)?,
            None => history.overview(false).map(drop)?,
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
            let written = move || {
                let make = || second(&shared.endpoints.history, asked.query.as_ref(), number);
                shared.readers.seconds.get(&asked.options, number, make, |_| true)
            };
            match tokio::task::spawn_blocking(written).await {
                Ok(Ok(Some(text))) => {
                    if events.try_send(Message::Second(text)).is_err() {
                        return;
                    }
                }
                // It went before it was read: such a reader is too slow as well.
                Ok(Ok(None)) => return,
                Ok(Err(_)) => return finish(&events),
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

/// A second as JSON; `None` when it is not kept.
fn second(history: &HistoryStore, query: Option<&Query>, number: u64) -> Result<Option<Arc<str>>, Refusal> {
    let text = match query {
        Some(query) => history.query_second(query, number)??.map(|answer| json(&answer)),
        None => history.summary(number)?.map(|summary| json(&summary)),
    };
    Ok(text.transpose()?.map(Arc::from))
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

#[cfg(test)]
mod tests {
    use super::Once;
    use std::cell::Cell;
    use std::sync::Arc;

    #[test]
    fn what_many_ask_for_is_made_once_a_second() {
        let (once, made) = (Once::new(2), Cell::new(0));
        let make = || {
            made.set(made.get() + 1);
            made.get()
        };
        let options = |metric: &str| Arc::from([("metric".to_owned(), metric.to_owned())]);
        let get = |metric: &str, number| once.get(&options(metric), number, make, |_| true);
        assert_eq!([get("a", 7), get("a", 7), get("b", 7), get("a", 7)], [1, 1, 2, 1]);
        // No room for a third, and none of the second before.
        assert_eq!([get("c", 7), get("c", 7), get("a", 8), get("a", 8)], [3, 4, 5, 5]);
        let large = |number| once.get(&options("d"), number, make, |_| false);
        assert_eq!([large(8), large(8), get("a", 8)], [6, 7, 5]);
    }
}
