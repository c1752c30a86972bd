//! `/api/v1/events`: the last single events, and those to come.

use super::routes::Shared;
use crate::metrics::events::tail::{Cursor, Excerpt, News, Tail};
use axum::body::{Body, Bytes};
use axum::extract::{RawQuery, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::body::Frame;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};

/// Who follows keeps a connection, of which there are few.
pub(super) const MAX_FOLLOWERS: usize = 8;
/// Lines sent at once.
const MAX_LINES: usize = 64;

/// What was asked for.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    /// Place among the probes that have events.
    probe: Option<usize>,
    limit: Option<usize>,
    follow: bool,
    /// Only the event of this name.
    id: Option<String>,
}

/// `/api/v1/events?probe=NAME&limit=N&follow=true`, `/api/v1/events?id=ID`
pub(super) async fn events(State(shared): State<Arc<Shared>>, RawQuery(query): RawQuery) -> Response {
    let tail = shared.endpoints.events.clone();
    let options = match options(query.as_deref().unwrap_or(""), &tail.probes(), tail.limit()) {
        Ok(options) => options,
        Err((status, message)) => return (status, message + "\n").into_response(),
    };
    if let Some(id) = &options.id {
        let mut excerpt = tail.last(options.probe, usize::MAX);
        // Within a text its quotes would be escaped.
        let own = format!("\"id\":\"{id}\"");
        excerpt.lines.retain(|line| line.contains(&own));
        return answer("application/json", Body::from(document(&excerpt)));
    }
    if !options.follow {
        let excerpt = tail.last(options.probe, options.limit.unwrap_or(usize::MAX));
        return answer("application/json", Body::from(document(&excerpt)));
    }
    let Ok(turn) = shared.followers.clone().try_acquire_owned() else {
        let message = format!("{MAX_FOLLOWERS} clients follow events already: ask again later\n");
        return (StatusCode::TOO_MANY_REQUESTS, message).into_response();
    };
    // The news before the cursor: what comes in between is then both waited for and found.
    let news = tail.news();
    let cursor = tail.follow(options.probe, options.limit.unwrap_or(0));
    let (chunks, received) = mpsc::channel(1);
    tokio::spawn(follow(tail, cursor, news, chunks, turn));
    answer("application/x-ndjson", Body::new(Chunks(received)))
}

fn answer(content_type: &'static str, body: Body) -> Response {
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// The lines are JSON already.
fn document(excerpt: &Excerpt) -> String {
    format!("{{\"events\":[{}],\"gone\":{}}}", excerpt.lines.join(","), excerpt.gone)
}

/// Sends events until the client or the agent ends. A client that does not read delays only itself.
async fn follow(
    tail: Arc<Tail>,
    mut cursor: Cursor,
    mut news: watch::Receiver<News>,
    chunks: mpsc::Sender<Bytes>,
    _turn: OwnedSemaphorePermit,
) {
    loop {
        let News { closed, .. } = *news.borrow_and_update();
        let excerpt = tail.next(&mut cursor, MAX_LINES);
        if excerpt != Excerpt::default() {
            if chunks.send(lines(&excerpt)).await.is_err() {
                return;
            }
            continue;
        }
        if closed {
            return;
        }
        tokio::select! {
            changed = news.changed() => if changed.is_err() { return },
            () = chunks.closed() => return,
        }
    }
}

/// A line each; before them one that says how many were missed.
fn lines(excerpt: &Excerpt) -> Bytes {
    let mut text = String::new();
    if excerpt.gone > 0 {
        text.push_str(&format!("{{\"gone\":{}}}\n", excerpt.gone));
    }
    for line in &excerpt.lines {
        text.push_str(line);
        text.push('\n');
    }
    text.into()
}

/// A body of what comes through a channel.
struct Chunks(mpsc::Receiver<Bytes>);

impl hyper::body::Body for Chunks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|chunk| chunk.map(|bytes| Ok(Frame::data(bytes))))
    }
}

fn options(query: &str, probes: &[String], kept: usize) -> Result<Options, (StatusCode, String)> {
    let mut options = Options { probe: None, limit: None, follow: false, id: None };
    let bad = |message: String| Err((StatusCode::BAD_REQUEST, message));
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        match key {
            "probe" => match probes.iter().position(|name| name == value) {
                Some(probe) => options.probe = Some(probe),
                None => return Err((StatusCode::NOT_FOUND, no_such(value, probes))),
            },
            "limit" => match value.parse() {
                // Clients ask for as many as they show, and do not know how many are kept.
                Ok(limit) => options.limit = Some(usize::min(limit, kept)),
                Err(_) => return bad(format!("limit={value}: it is a whole number")),
            },
            "follow" => match value {
                "true" | "1" | "" => options.follow = true,
                "false" | "0" => options.follow = false,
                _ => return bad(format!("follow={value}: it is true or false")),
            },
            "id" if value.len() == 16 && value.bytes().all(|b| b.is_ascii_hexdigit()) => {
                options.id = Some(value.into())
            }
            "id" => return bad(format!("id={value}: it is 16 hexadecimal digits")),
            _ => return bad(format!("there is no option `{key}`: they are probe, limit, follow and id")),
        }
    }
    Ok(options)
}

fn no_such(name: &str, probes: &[String]) -> String {
    match probes {
        [] => format!("no probe `{name}` has events: no probe that runs has `slow`"),
        probes => format!("no probe `{name}` has events: those with `slow` are {}", probes.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_or_explained() {
        let probes = ["a".to_owned(), "b".to_owned()];
        let ok = |query| options(query, &probes, 1024).unwrap();
        let none = || Options { probe: None, limit: None, follow: false, id: None };
        assert_eq!(ok(""), none());
        assert_eq!(
            ok("probe=b&limit=5&follow=true"),
            Options { probe: Some(1), limit: Some(5), follow: true, ..none() }
        );
        assert_eq!(ok("id=5f0c2a9100000007").id.as_deref(), Some("5f0c2a9100000007"));
        assert_eq!(ok("limit=1025").limit, Some(1024));
        assert!(ok("follow").follow && !ok("follow=0").follow);
        for (query, status, part) in [
            ("probe=c", 404, "those with `slow` are a, b"),
            ("limit=-1", 400, "whole number"),
            ("follow=yes", 400, "true or false"),
            ("n=5", 400, "no option `n`"),
            ("id=%22", 400, "16 hexadecimal digits"),
        ] {
            let (found, message) = options(query, &probes, 1024).unwrap_err();
            assert!(found == status && message.contains(part), "{query}: {message}");
        }
        assert!(options("probe=c", &[], 1024).unwrap_err().1.contains("no probe that runs"));
    }
}
