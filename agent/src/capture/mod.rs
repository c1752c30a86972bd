//! Bounded recordings of the kernel's traces: what is asked for, how it runs, where its files lie.

pub mod asked;
pub mod form;
pub mod request;
pub mod service;
pub mod store;
