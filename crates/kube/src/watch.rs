//! Following the objects of one kind: a list, then what changes, whatever breaks in between.

pub mod backoff;
pub mod course;
mod event;
mod follow;
mod known;
mod lines;

pub use course::{Course, Failure, Next, Page};
pub use event::Event;
pub use follow::{Watched, follow};
pub use known::{Change, Known, Object};
pub use lines::{Lines, TooLong};
