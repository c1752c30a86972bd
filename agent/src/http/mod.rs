//! The agent's HTTP surface: `/metrics`, health, readiness, the list of probes.
//!
//! It knows nothing of probes or kernels: [`Endpoints`] gives it functions to call.

mod negotiate;
mod pages;
mod routes;
mod serve;

pub use negotiate::{accepts_gzip, format};
pub use routes::{ChoiceStatus, DEFAULT_ADDRESS, Endpoints, HookStatus, ProbeStatus, Status, router};
pub use serve::{BindError, bind, serve};
