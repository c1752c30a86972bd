//! The agent's HTTP surface: its page, `/metrics`, health, readiness, the list of probes, profiles.
//!
//! It knows nothing of probes or kernels: [`crate::app::Endpoints`] gives it functions to call.

mod access;
mod captures;
mod events;
mod history;
mod negotiate;
mod page;
mod pages;
mod reload;
mod routes;
mod stacks;

pub use negotiate::{accepts_gzip, format};
pub use pages::telemetry_path;
pub use routes::{DEFAULT_ADDRESS, DEFAULT_REQUESTS, router};
pub use stacks::MAX_SECONDS;
