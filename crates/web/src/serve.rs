//! The server: accepts connections, evicts idle ones, shuts down gracefully.

use crate::config_watcher::ConfigWatcher;
use crate::connection::{self, stop_requested};
use crate::counts::add;
use crate::hosts::Hosts;
use crate::limits::Limits;
use crate::middleware::{Middleware, OwnCredentials};
use crate::monitored_io::ConnectionMonitor;
use axum::Router;
use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

/// Client address, an extension of each request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

/// Retry interval of eviction while all connections are busy.
const ROOM_EVERY: Duration = Duration::from_millis(100);

/// Server parameters.
pub struct Server {
    /// Listeners in non-blocking mode.
    pub listeners: Vec<TcpListener>,
    /// Routes.
    pub router: Router,
    /// TLS, users and rate limit.
    pub config: Arc<ConfigWatcher>,
    /// Connection and request limits.
    pub limits: Limits,
    /// Host names accepted without TLS and credentials.
    pub hosts: Hosts,
    /// Credentials accepted in place of a password.
    pub own_credentials: Option<OwnCredentials>,
}

impl Server {
    /// Serves until `stop` resolves, then lets pending responses finish within [`Limits::drain`]. Fails only if a listener is
    /// unusable.
    pub async fn run(self, stop: impl Future<Output = ()>) -> io::Result<()> {
        let (stopping, stopped) = watch::channel(false);
        let drain = self.limits.drain;
        let slots = Arc::new(Semaphore::new(self.limits.connections));
        let open = Arc::new(Open::default());
        let middleware =
            Arc::new(Middleware::new(self.router, self.config, self.limits, self.hosts, self.own_credentials));
        let mut accepting = JoinSet::new();
        for listener in self.listeners {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            accepting.spawn(accept(listener, middleware.clone(), slots.clone(), open.clone(), stopped.clone()));
        }
        stop.await;
        // Without receivers all tasks have ended.
        let _ = stopping.send(true);
        let drained = tokio::time::timeout(drain, async { while accepting.join_next().await.is_some() {} }).await;
        if drained.is_err() {
            tracing::warn!("connections were still open after {drain:?} and are closed");
        }
        Ok(())
    }
}

/// Serves plain HTTP without access control, for any `Host`, with default limits until `stop` resolves.
pub async fn serve(listeners: Vec<TcpListener>, router: Router, stop: impl Future<Output = ()>) -> io::Result<()> {
    let config = Arc::new(ConfigWatcher::plain(Arc::default()));
    let (limits, hosts) = (Limits::default(), Hosts::any());
    Server { listeners, router, config, limits, hosts, own_credentials: None }.run(stop).await
}

#[derive(Default)]
struct Open(Mutex<(u64, HashMap<u64, Arc<ConnectionMonitor>>)>);

impl Open {
    fn enter(self: &Arc<Self>, monitor: Arc<ConnectionMonitor>) -> Entered {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.0 += 1;
        let number = open.0;
        open.1.insert(number, monitor);
        Entered { open: self.clone(), number }
    }

    /// Evicts the connection that has been without a request for longest.
    fn make_room(&self) {
        let now = Instant::now();
        let open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let spare = open.1.values().filter_map(|monitor| Some((monitor.state().spare_since(now)?, monitor)));
        if let Some((_, monitor)) = spare.min_by_key(|(since, _)| *since) {
            monitor.evicted.notify_one();
        }
    }
}

struct Entered {
    open: Arc<Open>,
    number: u64,
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.open.0.lock().unwrap_or_else(PoisonError::into_inner).1.remove(&self.number);
    }
}

async fn accept(
    listener: tokio::net::TcpListener,
    middleware: Arc<Middleware>,
    slots: Arc<Semaphore>,
    open: Arc<Open>,
    stopped: watch::Receiver<bool>,
) {
    let counters = middleware.config.counters().clone();
    let mut connections = JoinSet::new();
    loop {
        let next = async {
            let accepted = listener.accept().await;
            // This connection waits accepted for a slot; later ones wait in the accept queue.
            if accepted.is_ok() { Some((accepted, room(&slots, &open).await)) } else { Some((accepted, None)) }
        };
        let next = tokio::select! {
            next = next => next,
            () = stop_requested(stopped.clone()) => break,
        };
        match next {
            Some((Ok((stream, peer)), Some(slot))) => {
                add(&counters.accepted);
                let monitor = Arc::new(ConnectionMonitor::new());
                let entered = open.enter(monitor.clone());
                let connection = connection::serve(stream, Peer(peer), middleware.clone(), monitor, stopped.clone());
                let counters = counters.clone();
                connections.spawn(async move {
                    let _held = (entered, slot, Counted::new(counters));
                    connection.await;
                });
            }
            Some((Err(error), _)) => {
                // Mostly EMFILE, which is temporary; accepting at once would spin.
                add(&counters.accept_failed);
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Some((Ok(_), None)) | None => {}
        }
        while connections.try_join_next().is_some() {}
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Acquires a connection slot, by eviction if necessary.
async fn room(slots: &Arc<Semaphore>, open: &Open) -> Option<OwnedSemaphorePermit> {
    loop {
        if let Ok(slot) = slots.clone().try_acquire_owned() {
            return Some(slot);
        }
        open.make_room();
        if let Ok(slot) = tokio::time::timeout(ROOM_EVERY, slots.clone().acquire_owned()).await {
            // The semaphore is never closed.
            return slot.ok();
        }
    }
}

/// Registration of an open connection.
struct Counted(Arc<crate::counts::Counters>);

impl Counted {
    fn new(counters: Arc<crate::counts::Counters>) -> Counted {
        counters.open.fetch_add(1, Relaxed);
        Counted(counters)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Relaxed);
    }
}
