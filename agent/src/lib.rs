//! The kstrobe agent: everything that touches the outside world.
#![deny(unsafe_code)]

pub mod kernel;
