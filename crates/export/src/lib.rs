//! What leaves the agent, as data: a [`snapshot::Snapshot`] of all series, and what each world wants of it. Pure functions, no
//! state, no clock, no network but in [`push`], which sends it.
#![forbid(unsafe_code)]

mod classic;
pub mod delta;
mod exposition;
mod gzip;
pub mod native;
mod number;
pub mod otlp;
pub mod own;
mod part;
mod protobuf;
pub mod push;
pub mod quantile;
pub mod reading;
pub mod remote_write;
pub mod snapshot;
#[cfg(test)]
mod test_data;
mod text;
mod transcode;
pub mod varint;

pub use exposition::{END, Form, Format, Gone, Send, exposition, write};
pub use gzip::KeptBytes;
pub use number::{bound_text, decimal, quotient};
pub use part::{Part, Run};
pub use protobuf::{message, text_0_0_4};
pub use transcode::to_text_0_0_4;
