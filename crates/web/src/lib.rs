//! HTTP server of the agent: listeners, TLS, basic authentication and limits, configured by the `web-config.yml` of Prometheus
//! exporters, and systemd socket activation and notification.
//!
//! It knows nothing of probes: it is given a router. Decisions are plain functions over data ([`stamp`], [`rate`], [`connection_state`]);
//! sockets and files are a thin layer around them.
#![forbid(unsafe_code)]

pub mod bind;
pub mod config_watcher;
pub mod connection_state;
pub mod counts;
pub mod hosts;
pub mod limits;
pub mod load;
pub mod rate;
pub mod serve;
pub mod stamp;
pub mod systemd;

mod body;
mod connection;
mod middleware;
mod monitored_io;
mod passwords;
mod sans;
mod tls;

pub use bind::{BindError, bind};
pub use body::hold;
pub use config_watcher::ConfigWatcher;
pub use counts::{Counters, Counts};
pub use hosts::Hosts;
pub use limits::Limits;
pub use load::{LoadError, Settings, load};
pub use middleware::{Identity, OwnCredentials};
pub use serve::{Peer, Server, serve};
