//! For tests only: an API server and a kubelet that speak the real protocol over TLS, with faults on demand.
//!
//! Objects are stored as they are put, with versions and a history; lists come in pages, watches as lines of JSON in chunks,
//! refusals as Kubernetes words them, and requests to pods are passed on to whatever socket a test gives.
#![forbid(unsafe_code)]
// A test that cannot go on says so by a panic.
#![allow(clippy::missing_panics_doc, reason = "a crate for tests")]

mod api;
mod authority;
mod faults;
mod kubelet;
pub mod objects;
mod proxy;
mod refusal;
mod route;
mod selector;
mod serve;
mod store;
mod watch;

pub use api::{Asked, FakeApi};
pub use authority::{Authority, Identity};
pub use faults::{End, Fault};
pub use kubelet::FakeKubelet;
pub use proxy::Connect;
