//! Request bodies with a time limit, and response bodies that report their progress to the [`ConnectionMonitor`].

use crate::limits::Limits;
use crate::monitored_io::ConnectionMonitor;
use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use http_body_util::Limited;
use hyper::body::{Frame, Incoming, SizeHint};
use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Sleep;

/// Maximum bytes per frame of a response, so that stalls of the client are visible.
const PIECE_BYTES: usize = 64 << 10;

/// Applies the limits to a request body.
pub fn arriving(body: Incoming, limits: &Limits) -> Body {
    if body.is_end_stream() {
        return Body::empty();
    }
    let late = Box::pin(tokio::time::sleep(limits.body_time));
    Body::new(Limited::new(Arriving { body, late }, limits.body_bytes))
}

struct Arriving {
    body: Incoming,
    late: Pin<Box<Sleep>>,
}

impl HttpBody for Arriving {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.late.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(Err("the body took too long".into())));
        }
        Pin::new(&mut self.body).poll_frame(cx).map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A request in progress. Dropping it, with the response body, ends the request.
pub struct Turn {
    monitor: Arc<ConnectionMonitor>,
    request: u64,
}

impl Turn {
    pub fn begin(monitor: Arc<ConnectionMonitor>) -> Turn {
        let request = monitor.update(|state, now| state.began(now));
        Turn { monitor, request }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.monitor.update(|state, now| state.ended(self.request, now));
    }
}

/// Wraps a response with its request guard and its concurrency permit.
pub fn answering(response: Response, turn: Turn, place: Option<OwnedSemaphorePermit>) -> Response {
    response.map(|body| Body::new(Answering { body, rest: Bytes::new(), turn, _place: place }))
}

struct Answering {
    body: Body,
    /// Rest of an oversized frame.
    rest: Bytes,
    turn: Turn,
    _place: Option<OwnedSemaphorePermit>,
}

impl HttpBody for Answering {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.turn.monitor.update(|state, _| state.body_polled(self.turn.request));
        if self.rest.is_empty() {
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(frame) => return Poll::Ready(Some(Ok(frame))),
                },
                other => return other,
            }
        }
        let bytes = self.rest.len().min(PIECE_BYTES);
        let piece = self.rest.split_to(bytes);
        if !self.is_end_stream() {
            self.turn.monitor.update(|state, now| state.body_yielded(self.turn.request, now));
        }
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, body) = (self.rest.len() as u64, self.body.size_hint());
        let mut hint = SizeHint::new();
        hint.set_lower(rest + body.lower());
        if let Some(upper) = body.upper() {
            hint.set_upper(rest + upper);
        }
        hint
    }
}

/// Ties a permit to a response: it is released after the last byte is queued.
pub fn hold(response: Response, place: OwnedSemaphorePermit) -> Response {
    response.map(|body| Body::new(Holding { body, _place: place }))
}

struct Holding {
    body: Body,
    _place: OwnedSemaphorePermit,
}

impl HttpBody for Holding {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
