//! The agent's HTTP surface: `/metrics`, health, readiness, the list of probes, profiles.
//!
//! It knows nothing of probes or kernels: [`Endpoints`] gives it functions to call.

mod access;
mod captures;
mod events;
mod negotiate;
mod pages;
mod reload;
mod routes;
mod stacks;

pub use access::{Access, Denied, TOKEN_HEADER, token};
pub use captures::Captures;
pub use kstrobe_web::hosts::Name;
pub use kstrobe_web::{BindError, Peer, bind, serve};
pub use negotiate::{accepts_gzip, format};
pub use pages::telemetry_path;
pub use reload::Reload;
pub use routes::{ChoiceStatus, DEFAULT_ADDRESS, DEFAULT_REQUESTS, Endpoints, HookStatus, ProbeStatus, Status, router};
pub use stacks::{MAX_SECONDS, ProfileError, ProfileRequest, StacksStatus};
