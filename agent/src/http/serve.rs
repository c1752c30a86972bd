//! Sockets: binding with errors a person can act on, and connections with limits.

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

/// Connections open at once, over all addresses: a scraper, a person and some slack, and a bound on memory.
const MOST_CONNECTIONS: usize = 64;
/// Also how long an idle connection is kept; above the usual scrape interval of a minute.
const HEADER_TIMEOUT: Duration = Duration::from_secs(75);
const MOST_HEADERS: usize = 64;
const READ_BUFFER_BYTES: usize = 16 << 10;
/// How long answers under way may take once the agent stops.
const DRAIN: Duration = Duration::from_secs(5);

/// Why an address cannot be listened on.
#[derive(Debug, Error)]
pub enum BindError {
    /// Not an address.
    #[error("`{0}` is not an address to listen on: write HOST:PORT, e.g. 127.0.0.1:9779, or :9779 for all addresses")]
    NotAnAddress(String),
    /// Somebody has it.
    #[error("{0} is already in use: stop the other program or choose another address with --web.listen-address")]
    InUse(String),
    /// A low port without the right to it.
    #[error("{0} may not be used without CAP_NET_BIND_SERVICE: choose a port from 1024 up with --web.listen-address")]
    NotPermitted(String),
    /// No interface has it.
    #[error("{0} is not an address of this machine: choose another one with --web.listen-address")]
    NotHere(String),
    /// Anything else.
    #[error("cannot listen on {0}: {1}")]
    Other(String, #[source] io::Error),
}

/// Binds every address, or none. `:PORT` means all addresses, IPv6 and IPv4.
pub fn bind(addresses: &[String]) -> Result<Vec<TcpListener>, BindError> {
    addresses.iter().map(|address| bind_one(address)).collect()
}

fn bind_one(address: &str) -> Result<TcpListener, BindError> {
    let not_an_address = || BindError::NotAnAddress(address.to_owned());
    let wanted: SocketAddr = match address.strip_prefix(':') {
        Some(port) => {
            let port: u16 = port.parse().map_err(|_| not_an_address())?;
            // The IPv6 wildcard takes IPv4 too; IPv4 alone is left where IPv6 is switched off.
            let ipv6 = TcpListener::bind("[::]:0").is_ok();
            if ipv6 { SocketAddr::from(([0u16; 8], port)) } else { SocketAddr::from(([0u8; 4], port)) }
        }
        None => address.to_socket_addrs().ok().and_then(|mut found| found.next()).ok_or_else(not_an_address)?,
    };
    let listener = TcpListener::bind(wanted).map_err(|error| bind_error(address, error))?;
    listener.set_nonblocking(true).map_err(|error| bind_error(address, error))?;
    Ok(listener)
}

fn bind_error(address: &str, error: io::Error) -> BindError {
    let address = address.to_owned();
    match error.kind() {
        io::ErrorKind::AddrInUse => BindError::InUse(address),
        io::ErrorKind::PermissionDenied => BindError::NotPermitted(address),
        io::ErrorKind::AddrNotAvailable => BindError::NotHere(address),
        _ => BindError::Other(address, error),
    }
}

/// Serves until `shutdown` is done, then lets answers under way finish for a few seconds. Fails only when a listener
/// cannot be used at all.
pub async fn serve(listeners: Vec<TcpListener>, router: Router, shutdown: impl Future<Output = ()>) -> io::Result<()> {
    let (stop, stopped) = watch::channel(false);
    let slots = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let mut accepting = JoinSet::new();
    for listener in listeners {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        accepting.spawn(accept(listener, router.clone(), slots.clone(), stopped.clone()));
    }
    shutdown.await;
    // The receivers are the tasks; when they are gone there is nobody left to tell.
    let _ = stop.send(true);
    let drained = tokio::time::timeout(DRAIN, async { while accepting.join_next().await.is_some() {} }).await;
    if drained.is_err() {
        tracing::warn!("connections were still open after {DRAIN:?} and are closed");
    }
    Ok(())
}

async fn accept(
    listener: tokio::net::TcpListener,
    router: Router,
    slots: Arc<Semaphore>,
    stopped: watch::Receiver<bool>,
) {
    let mut connections = JoinSet::new();
    loop {
        // Beyond the limit clients wait in the kernel's accept queue.
        let next = async {
            let slot = slots.clone().acquire_owned().await;
            (slot, listener.accept().await)
        };
        let (slot, accepted) = tokio::select! {
            next = next => next,
            () = asked(stopped.clone()) => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                let connection = serve_connection(stream, Peer(peer), router.clone(), stopped.clone());
                connections.spawn(async move {
                    let _slot = slot;
                    connection.await;
                });
            }
            Err(error) => {
                // Out of descriptors, mostly: it passes, and accepting again at once would spin.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Address of the client, among the extensions of each request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

async fn serve_connection(stream: TcpStream, peer: Peer, router: Router, stopped: watch::Receiver<bool>) {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_headers(MOST_HEADERS)
        .max_buf_size(READ_BUFFER_BYTES);
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer);
        router.call(request)
    });
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = asked(stopped) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "connection ended");
    }
}

/// Done when the server is to stop, or is gone.
async fn asked(mut stopped: watch::Receiver<bool>) {
    // An error means that nobody is left who could ask.
    let _ = stopped.wait_for(|stop| *stop).await;
}
