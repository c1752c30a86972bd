//! A socket that tells a [`Pace`] what it does.

use crate::limits::Limits;
use crate::pace::Pace;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::counts::Ended;

/// A connection's pace, and who waits for what comes of it.
#[derive(Debug)]
pub struct Watch {
    pace: Mutex<Pace>,
    changed: Notify,
    /// Another connection needs the room.
    pub unwanted: Notify,
}

impl Watch {
    pub fn new() -> Watch {
        Watch { pace: Mutex::new(Pace::new(Instant::now())), changed: Notify::new(), unwanted: Notify::new() }
    }

    pub fn pace(&self) -> MutexGuard<'_, Pace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the pace; whoever waits looks again when that changed what it is.
    pub fn tell<T>(&self, change: impl FnOnce(&mut Pace, Instant) -> T) -> T {
        let mut pace = self.pace();
        let before = pace.clone();
        let told = change(&mut pace, Instant::now());
        if *pace != before {
            self.changed.notify_one();
        }
        told
    }

    /// Done when the client has let a deadline pass, or must make room.
    pub async fn over(&self, limits: &Limits) -> Ended {
        loop {
            let deadline = self.pace().deadline(limits);
            let passed = async {
                match deadline {
                    Some((at, why)) => {
                        tokio::time::sleep_until(at.into()).await;
                        why
                    }
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                why = passed => return why,
                () = self.unwanted.notified() => return Ended::Room,
                () = self.changed.notified() => {}
            }
        }
    }
}

/// The socket.
#[derive(Debug)]
pub struct Watched {
    stream: TcpStream,
    watch: Arc<Watch>,
    one_by_one: bool,
}

impl Watched {
    pub fn new(stream: TcpStream, watch: Arc<Watch>) -> Watched {
        Watched { stream, watch, one_by_one: true }
    }

    /// The first bytes, which stay there.
    pub async fn peek(&self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.peek(bytes).await
    }

    /// Bytes that come may be anything from now on.
    pub fn many_at_once(&mut self) {
        self.one_by_one = false;
    }

    fn written(&self, written: &Poll<io::Result<usize>>) {
        match written {
            Poll::Pending => self.watch.tell(Pace::stalled),
            Poll::Ready(_) => self.watch.tell(Pace::moved),
        }
    }
}

impl AsyncRead for Watched {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if read.is_ready() && buffer.filled().len() > before {
            let one_by_one = self.one_by_one;
            self.watch.tell(|pace, now| pace.received(one_by_one, now));
        }
        read
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.written(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.written(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
