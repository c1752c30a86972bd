//! Requests that a snapshot makes.

use std::ops::Range;

/// A run of one family's series: its position in [`crate::snapshot::Snapshot::families`] and the positions of the series.
pub type Run = (usize, Range<usize>);

/// One request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Part {
    /// The encoded message, not compressed.
    pub body: Vec<u8>,
    /// Data points in it.
    pub points: u64,
    /// Which series of the snapshot they are.
    pub runs: Vec<Run>,
}
