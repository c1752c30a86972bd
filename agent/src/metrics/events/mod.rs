//! Single events, as `slow:` asks for them: records of the kernel to lines of JSON, and the last of them kept for clients that
//! ask.
//!
//! Pure but for its locks: [`record`] reads bytes by their layout, [`mod@line`] writes text, [`log`] and [`span`] make what
//! receivers take, [`exemplars`] finds the series that an event was counted in, [`tail`] keeps it.

pub mod exemplars;
pub mod id;
pub mod line;
pub mod log;
pub mod record;
pub mod span;
pub mod tail;
