//! Sends what leaves the agent to receivers that do not ask for it.
//!
//! What is decided is pure and has no clock: [`course`] when to read, send and wait, [`stock`] what there is to send,
//! [`outcome`] what an answer means. What is done with sockets and files is thin: [`mod@run`] and the doors it sends by.

pub mod course;
mod door;
mod files;
mod goods;
mod grpc;
mod http_door;
pub mod outcome;
mod overheard;
pub mod records;
pub mod run;
pub mod settings;
pub mod stock;
mod tls;
mod trouble;
pub mod usage;

pub use records::Outlet;
pub use run::{Legacy, Pusher, Reading, Watch, start, start_logs, start_traces};
pub use settings::{Kind, Receiver};
pub use usage::Usage;
