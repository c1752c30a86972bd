//! The server side of HTTP for one agent: listeners, TLS, passwords and limits, as `web-config.yml` of Prometheus' exporters
//! says, and what systemd offers to services.
//!
//! It knows nothing of probes: it is given a router. Decisions are plain functions over data ([`stamp`], [`rate`], [`pace`]);
//! sockets and files are a thin layer around them.
#![forbid(unsafe_code)]

pub mod bind;
pub mod counts;
pub mod hosts;
pub mod limits;
pub mod load;
pub mod pace;
pub mod rate;
pub mod serve;
pub mod source;
pub mod stamp;
pub mod systemd;

mod body;
mod connection;
mod gate;
mod passwords;
mod sans;
mod tls;
mod watched;

pub use bind::{BindError, bind};
pub use body::hold;
pub use counts::{Counters, Counts};
pub use gate::{Identity, OwnCredentials};
pub use hosts::Hosts;
pub use limits::Limits;
pub use load::{LoadError, Settings, load};
pub use serve::{Peer, Server, serve};
pub use source::Source;
