//! A socket that reports its progress to a [`ConnectionState`].

use crate::connection_state::ConnectionState;
use crate::limits::Limits;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::counts::Ended;

/// Shared state of a connection, with notification of changes.
#[derive(Debug)]
pub struct ConnectionMonitor {
    state: Mutex<ConnectionState>,
    changed: Notify,
    /// Notified when a newer connection needs the slot.
    pub evicted: Notify,
}

impl ConnectionMonitor {
    pub fn new() -> ConnectionMonitor {
        ConnectionMonitor {
            state: Mutex::new(ConnectionState::new(Instant::now())),
            changed: Notify::new(),
            evicted: Notify::new(),
        }
    }

    pub fn state(&self) -> MutexGuard<'_, ConnectionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Updates the state; wakes [`ConnectionMonitor::over`] if it changed.
    pub fn update<T>(&self, change: impl FnOnce(&mut ConnectionState, Instant) -> T) -> T {
        let mut state = self.state();
        let before = state.clone();
        let result = change(&mut state, Instant::now());
        if *state != before {
            self.changed.notify_one();
        }
        result
    }

    /// Resolves when a deadline has passed or the connection is evicted.
    pub async fn over(&self, limits: &Limits) -> Ended {
        loop {
            let deadline = self.state().deadline(limits);
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
                () = self.evicted.notified() => return Ended::Room,
                () = self.changed.notified() => {}
            }
        }
    }
}

/// A monitored TCP stream.
#[derive(Debug)]
pub struct MonitoredIo {
    stream: TcpStream,
    monitor: Arc<ConnectionMonitor>,
    one_by_one: bool,
}

impl MonitoredIo {
    pub fn new(stream: TcpStream, monitor: Arc<ConnectionMonitor>) -> MonitoredIo {
        MonitoredIo { stream, monitor, one_by_one: true }
    }

    /// Peeks at the first bytes.
    pub async fn peek(&self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.peek(bytes).await
    }

    /// Marks the connection as multiplexed (HTTP/2).
    pub fn many_at_once(&mut self) {
        self.one_by_one = false;
    }

    fn written(&self, written: &Poll<io::Result<usize>>) {
        match written {
            Poll::Pending => self.monitor.update(ConnectionState::stalled),
            Poll::Ready(_) => self.monitor.update(ConnectionState::progressed),
        }
    }
}

impl AsyncRead for MonitoredIo {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if read.is_ready() && buffer.filled().len() > before {
            let one_by_one = self.one_by_one;
            self.monitor.update(|state, now| state.received(one_by_one, now));
        }
        read
    }
}

impl AsyncWrite for MonitoredIo {
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
