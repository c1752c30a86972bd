//! List and watch of one resource, with recovery after failures.

pub mod backoff;
mod event;
mod follow;
mod lines;
pub mod reflector;
mod store;

pub use event::Event;
pub use follow::{Watched, follow};
pub use lines::{Lines, TooLong};
pub use reflector::{Failure, Next, Page, Reflector};
pub use store::{Change, Object, Store};
