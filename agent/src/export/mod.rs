//! A snapshot as text: pure functions, no state, no clock.

mod number;
pub mod prometheus;
mod transcode;

pub use number::{bound_text, decimal};
pub use prometheus::{Format, exposition, write};
pub use transcode::to_text_0_0_4;
