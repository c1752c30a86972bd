//! Probes that run. `start` chooses an engine for each; [`Probe`] is what the agent has of it, whichever engine that is.
//!
//! | file | engine |
//! |---|---|
//! | `kernel` | programs in the kernel, read by scrapes and swept in between |
//! | `iterator` | programs in the kernel that a scrape runs once per object |
//! | `poll` | rows that the agent reads in user space |
//! | `ftrace` | records of an ftrace session, over which the agent interprets the probe |
//! | `stopped` | none: it waits for a program, has nothing to measure here, or cannot run |

pub mod budget;
pub mod conditions;
mod drain;
pub mod engine;
pub mod error;
pub mod event_buffer;
mod ftrace;
pub mod iterator;
pub mod kernel;
pub mod lock;
pub mod meter;
mod poll;
mod running;
mod start;
pub mod status;
mod stopped;
mod user_hooks;

pub use lock::lock;
pub use running::{Probe, Throttling};
pub use start::Tried;
