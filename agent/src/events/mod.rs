//! Single events, as `slow:` asks for them: records of the kernel to lines of JSON, and the last of them kept for whoever
//! asks.
//!
//! Pure but for its locks: [`record`] reads bytes by their layout, [`mod@line`] writes text, [`tail`] keeps it.

pub mod line;
pub mod record;
pub mod tail;
