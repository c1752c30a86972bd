//! What the agent and its kubectl plugin ask of Kubernetes: pods of a node, custom resources, requests to pods.
//!
//! What is decided is pure and has no clock: [`watch::course`] when to list, watch and wait, [`pods::object`] what an object
//! says, [`custom`] what a node has to do. What is done with sockets and files is thin: [`Client`] and the loops that use it.
#![forbid(unsafe_code)]

mod answer;
mod client;
pub mod config;
mod counters;
mod credentials;
pub mod custom;
mod error;
mod exec;
mod path;
pub mod pods;
mod proxy;
mod tls;
pub mod watch;

pub use answer::{Status, checked};
pub use client::Client;
pub use config::{Config, Surroundings, Wanted};
pub use counters::{Counters, Counts};
pub use error::Error;
pub use path::{Resource, encode};
pub use proxy::PodPort;
