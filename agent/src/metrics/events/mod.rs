//! Single events, as `slow:` asks for them: records of the kernel to lines of JSON, and the last of them kept for clients that
//! asks.
//!
//! Pure but for its locks: [`record`] reads bytes by their layout, [`mod@line`] writes text, [`log`] makes a record for receivers,
//! [`exemplars`] finds the series that an event was counted in, [`tail`] keeps it.

pub mod exemplars;
pub mod id;
pub mod line;
pub mod log;
pub mod record;
pub mod tail;
