//! Bodies of requests that come in time, and bodies of answers that tell how they are taken.

use crate::limits::Limits;
use crate::watched::Watch;
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

/// An answer is handed on in pieces of so many bytes, so that it shows whether the client takes them.
const PIECE_BYTES: usize = 64 << 10;

/// A request's body within the limits.
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

/// A request under way on a connection: its end is the end of its answer, whatever way that ends.
pub struct Turn {
    watch: Arc<Watch>,
    request: u64,
}

impl Turn {
    pub fn begin(watch: Arc<Watch>) -> Turn {
        let request = watch.tell(|pace, now| pace.began(now));
        Turn { watch, request }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.watch.tell(|pace, now| pace.ended(self.request, now));
    }
}

/// The answer, which takes its request's turn along, and its place among those that may be served at once.
pub fn answering(response: Response, turn: Turn, place: Option<OwnedSemaphorePermit>) -> Response {
    response.map(|body| Body::new(Answering { body, rest: Bytes::new(), turn, _place: place }))
}

struct Answering {
    body: Body,
    /// What is left of the last piece that was too large.
    rest: Bytes,
    turn: Turn,
    _place: Option<OwnedSemaphorePermit>,
}

impl HttpBody for Answering {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.turn.watch.tell(|pace, _| pace.asked(self.turn.request));
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
            self.turn.watch.tell(|pace, now| pace.gave(self.turn.request, now));
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

/// The response, which holds a place until its last byte is on its way.
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
