//! The server: takes connections, makes room for new ones, ends in good order.

use crate::connection::{self, asked};
use crate::counts::add;
use crate::gate::{Gate, OwnCredentials};
use crate::hosts::Hosts;
use crate::limits::Limits;
use crate::source::Source;
use crate::watched::Watch;
use axum::Router;
use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

/// Address of the client, among the extensions of each request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

/// How often it is tried to make room while all connections are busy.
const ROOM_EVERY: Duration = Duration::from_millis(100);

/// What is served, to whom and how much of it.
pub struct Server {
    /// Where clients come; they must not block.
    pub listeners: Vec<TcpListener>,
    /// What answers.
    pub router: Router,
    /// TLS and passwords.
    pub source: Arc<Source>,
    /// Bounds.
    pub limits: Limits,
    /// Names that it answers to without TLS and credentials.
    pub hosts: Hosts,
    /// What is as good as a user's password.
    pub own_credentials: Option<OwnCredentials>,
}

impl Server {
    /// Serves until `stop` is done, then lets answers under way finish for a few seconds. Fails only when a listener cannot be
    /// used at all.
    pub async fn run(self, stop: impl Future<Output = ()>) -> io::Result<()> {
        let (stopping, stopped) = watch::channel(false);
        let drain = self.limits.drain;
        let slots = Arc::new(Semaphore::new(self.limits.connections));
        let open = Arc::new(Open::default());
        let gate = Arc::new(Gate::new(self.router, self.source, self.limits, self.hosts, self.own_credentials));
        let mut accepting = JoinSet::new();
        for listener in self.listeners {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            accepting.spawn(accept(listener, gate.clone(), slots.clone(), open.clone(), stopped.clone()));
        }
        stop.await;
        // The receivers are the tasks; when they are gone there is nobody left to tell.
        let _ = stopping.send(true);
        let drained = tokio::time::timeout(drain, async { while accepting.join_next().await.is_some() {} }).await;
        if drained.is_err() {
            tracing::warn!("connections were still open after {drain:?} and are closed");
        }
        Ok(())
    }
}

/// Serves plain HTTP without access control, under any name, within the default limits until `stop` is done.
pub async fn serve(listeners: Vec<TcpListener>, router: Router, stop: impl Future<Output = ()>) -> io::Result<()> {
    let source = Arc::new(Source::plain(Arc::default()));
    let (limits, hosts) = (Limits::default(), Hosts::any());
    Server { listeners, router, source, limits, hosts, own_credentials: None }.run(stop).await
}

/// Connections that are open.
#[derive(Default)]
struct Open(Mutex<(u64, HashMap<u64, Arc<Watch>>)>);

impl Open {
    fn enter(self: &Arc<Self>, watch: Arc<Watch>) -> Entered {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.0 += 1;
        let number = open.0;
        open.1.insert(number, watch);
        Entered { open: self.clone(), number }
    }

    /// Ends the connection that has been without a request for longest, if there is one.
    fn make_room(&self) {
        let now = Instant::now();
        let open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let spare = open.1.values().filter_map(|watch| Some((watch.pace().spare_since(now)?, watch)));
        if let Some((_, watch)) = spare.min_by_key(|(since, _)| *since) {
            watch.unwanted.notify_one();
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
    gate: Arc<Gate>,
    slots: Arc<Semaphore>,
    open: Arc<Open>,
    stopped: watch::Receiver<bool>,
) {
    let counters = gate.source.counters().clone();
    let mut connections = JoinSet::new();
    loop {
        let next = async {
            let accepted = listener.accept().await;
            // Who waits for room has been taken from the kernel's queue; those behind wait there.
            if accepted.is_ok() { Some((accepted, room(&slots, &open).await)) } else { Some((accepted, None)) }
        };
        let next = tokio::select! {
            next = next => next,
            () = asked(stopped.clone()) => break,
        };
        match next {
            Some((Ok((stream, peer)), Some(slot))) => {
                add(&counters.accepted);
                let watch = Arc::new(Watch::new());
                let entered = open.enter(watch.clone());
                let connection = connection::serve(stream, Peer(peer), gate.clone(), watch, stopped.clone());
                let counters = counters.clone();
                connections.spawn(async move {
                    let _held = (entered, slot, Counted::new(counters));
                    connection.await;
                });
            }
            Some((Err(error), _)) => {
                // Out of descriptors, mostly: it passes, and accepting again at once would spin.
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

/// A place among the open connections, if need be that of another one.
async fn room(slots: &Arc<Semaphore>, open: &Open) -> Option<OwnedSemaphorePermit> {
    loop {
        if let Ok(slot) = slots.clone().try_acquire_owned() {
            return Some(slot);
        }
        open.make_room();
        if let Ok(slot) = tokio::time::timeout(ROOM_EVERY, slots.clone().acquire_owned()).await {
            // An error would mean that it was closed, which nobody does.
            return slot.ok();
        }
    }
}

/// A connection among those that are open now.
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
