//! What systemd offers to a service: sockets that it listens on, and to be told how the service is.

use listenfd::ListenFd;
use sd_notify::NotifyState;
use std::io;
use std::net::TcpListener;
use std::time::Duration;
use thiserror::Error;

/// Why systemd's sockets cannot be used.
#[derive(Debug, Error)]
pub enum SocketError {
    /// There are none.
    #[error("--web.systemd-socket: systemd handed over no socket; start the service by its socket unit")]
    None,
    /// One is of another kind.
    #[error("--web.systemd-socket: socket {0} is no TCP socket that listens ({1}): use ListenStream= with a port")]
    Wrong(usize, io::Error),
}

/// The sockets that systemd listens on for us (`LISTEN_FDS`). To be called once, before there are other threads: it changes the
/// environment.
pub fn sockets() -> Result<Vec<TcpListener>, SocketError> {
    let mut handed = ListenFd::from_env();
    let mut listeners = Vec::new();
    for number in 0..handed.len() {
        let wrong = |error| SocketError::Wrong(number, error);
        if let Some(listener) = handed.take_tcp_listener(number).map_err(wrong)? {
            listener.set_nonblocking(true).map_err(wrong)?;
            listeners.push(listener);
        }
    }
    if listeners.is_empty() { Err(SocketError::None) } else { Ok(listeners) }
}

/// What systemd is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// All that was asked for runs.
    Ready,
    /// The configuration is being read again; [`News::Ready`] follows.
    Reloading,
    /// The end has begun.
    Stopping,
    /// Still alive.
    Alive,
}

/// Tells systemd, if it asked (`NOTIFY_SOCKET`). A failure is logged: nothing here depends on it.
pub fn notify(news: News) {
    let told = match news {
        News::Ready => sd_notify::notify(&[NotifyState::Ready]),
        News::Reloading => {
            NotifyState::monotonic_usec_now().and_then(|at| sd_notify::notify(&[NotifyState::Reloading, at]))
        }
        News::Stopping => sd_notify::notify(&[NotifyState::Stopping]),
        News::Alive => sd_notify::notify(&[NotifyState::Watchdog]),
    };
    if let Err(error) = told {
        tracing::warn!(%error, ?news, "cannot tell systemd");
    }
}

/// How often [`News::Alive`] is due: half of what systemd waits (`WATCHDOG_USEC`); `None` when it does not watch.
pub fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|wait| wait / 2).filter(|every| !every.is_zero())
}
