//! Binds listening sockets, with actionable errors.

use nix::sys::socket::{Backlog, listen};
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use thiserror::Error;

/// Length of the accept queue.
const WAITING: i32 = 1024;

/// Why binding an address failed.
#[derive(Debug, Error)]
pub enum BindError {
    /// The address cannot be parsed.
    #[error("`{0}` is not an address to listen on: write HOST:PORT, e.g. 127.0.0.1:9779, or :9779 for all addresses")]
    NotAnAddress(String),
    /// EADDRINUSE.
    #[error("{0} is already in use: stop the other program or choose another address with --web.listen-address")]
    InUse(String),
    /// EACCES: a privileged port.
    #[error("{0} may not be used without CAP_NET_BIND_SERVICE: choose a port from 1024 up with --web.listen-address")]
    NotPermitted(String),
    /// EADDRNOTAVAIL.
    #[error("{0} is not an address of this machine: choose another one with --web.listen-address")]
    NotHere(String),
    /// Any other error.
    #[error("cannot listen on {0}: {1}")]
    Other(String, #[source] io::Error),
}

/// Binds all addresses or none. `:PORT` means all IPv6 and IPv4 addresses.
pub fn bind(addresses: &[String]) -> Result<Vec<TcpListener>, BindError> {
    addresses.iter().map(|address| bind_one(address)).collect()
}

fn bind_one(address: &str) -> Result<TcpListener, BindError> {
    let not_an_address = || BindError::NotAnAddress(address.to_owned());
    let wanted: SocketAddr = match address.strip_prefix(':') {
        Some(port) => {
            let port: u16 = port.parse().map_err(|_| not_an_address())?;
            // The IPv6 wildcard includes IPv4; without IPv6 only IPv4 is available.
            let ipv6 = TcpListener::bind("[::]:0").is_ok();
            if ipv6 { SocketAddr::from(([0u16; 8], port)) } else { SocketAddr::from(([0u8; 4], port)) }
        }
        None => address.to_socket_addrs().ok().and_then(|mut found| found.next()).ok_or_else(not_an_address)?,
    };
    let listener = TcpListener::bind(wanted).map_err(|error| bind_error(address, error))?;
    listener.set_nonblocking(true).map_err(|error| bind_error(address, error))?;
    // The standard library uses a backlog of 128, too short for a reconnecting fleet; a second `listen` only sets its length.
    let backlog = Backlog::new(WAITING).map_err(|error| bind_error(address, error.into()))?;
    listen(&listener, backlog).map_err(|error| bind_error(address, error.into()))?;
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
