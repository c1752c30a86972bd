//! systemd socket activation (`LISTEN_FDS`) and notification (`NOTIFY_SOCKET`).

use listenfd::ListenFd;
use sd_notify::NotifyState;
use std::io;
use std::net::TcpListener;
use std::time::Duration;
use thiserror::Error;

/// Why socket activation failed.
#[derive(Debug, Error)]
pub enum SocketError {
    /// No sockets were passed.
    #[error("--web.systemd-socket: systemd handed over no socket; start the service by its socket unit")]
    None,
    /// A passed descriptor is not a listening TCP socket.
    #[error("--web.systemd-socket: socket {0} is no TCP socket that listens ({1}): use ListenStream= with a port")]
    Wrong(usize, io::Error),
}

/// Takes the sockets passed by systemd (`LISTEN_FDS`). Call once, before other threads start: it changes the environment.
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

/// A state for `sd_notify`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// `READY=1`
    Ready,
    /// `RELOADING=1`; [`News::Ready`] follows.
    Reloading,
    /// `STOPPING=1`
    Stopping,
    /// `WATCHDOG=1`
    Alive,
}

/// Notifies systemd if `NOTIFY_SOCKET` is set. Failures are only logged.
pub fn notify(news: News) {
    let sent = match news {
        News::Ready => sd_notify::notify(&[NotifyState::Ready]),
        News::Reloading => {
            NotifyState::monotonic_usec_now().and_then(|at| sd_notify::notify(&[NotifyState::Reloading, at]))
        }
        News::Stopping => sd_notify::notify(&[NotifyState::Stopping]),
        News::Alive => sd_notify::notify(&[NotifyState::Watchdog]),
    };
    if let Err(error) = sent {
        tracing::warn!(%error, ?news, "cannot notify systemd");
    }
}

/// Interval of [`News::Alive`]: half of `WATCHDOG_USEC`; `None` without a watchdog.
pub fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|wait| wait / 2).filter(|every| !every.is_zero())
}
