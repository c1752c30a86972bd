//! Kubernetes client of the agent and its kubectl plugin: pods of a node, custom resources, requests to pods.
//!
//! The state machines are pure and take the time as an argument: [`watch::reflector`] decides when to list, watch and wait,
//! [`pods::object`] reads pods, [`crd`] computes the steps of a node. Sockets and files are a thin layer: [`Client`] and its loops.
#![forbid(unsafe_code)]

mod answer;
mod client;
pub mod config;
mod counters;
pub mod crd;
mod credentials;
pub mod error;
mod exec;
mod path;
pub mod pods;
mod proxy;
mod tls;
pub mod watch;

pub use answer::{Status, checked};
pub use client::Client;
pub use config::{Config, Env, Wanted};
pub use counters::{Counters, Counts};
pub use error::Error;
pub use path::{Resource, encode};
pub use proxy::PodPort;
