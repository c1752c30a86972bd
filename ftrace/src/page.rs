//! Records in the pages of the kernel's ring buffer (`include/linux/ring_buffer.h`).
//!
//! A page begins with the time of its first record and the number of bytes that are filled. Each record begins with a word: five
//! bits of type or length, 27 bits of nanoseconds since the record before. Longer gaps, and clocks that may go back, have records of
//! their own; what an event filter threw away is left as padding.

use crate::format::PageFormat;
use crate::value::unsigned;

/// The rest of the page is empty, or the record was discarded.
const PADDING: u32 = 29;
/// 59 bits of time since the record before.
pub(crate) const TIME_EXTEND: u32 = 30;
/// 59 bits of time; the five above are those of the time before.
const TIME_STAMP: u32 = 31;
/// Bits of a commit word that count bytes (`COMMIT_MASK`); flags stand above.
const COMMIT_BYTES: u64 = (1 << 27) - 1;
/// Records were lost before this page.
pub(crate) const MISSED_EVENTS: u64 = 1 << 31;
/// Their number stands behind the records.
pub(crate) const MISSED_STORED: u64 = 1 << 30;

#[derive(Clone, Debug)]
pub struct Page<'a> {
    /// When its first record was written, in units of the trace's clock.
    pub time: u64,
    /// What is missing before it.
    pub lost: Lost,
    pub records: Records<'a>,
}

/// Records that the kernel lost before a place in the trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lost {
    /// None.
    #[default]
    Nothing,
    /// This many.
    Count(u64),
    /// At least one; the kernel had no room to say how many.
    Unknown,
}

impl Lost {
    /// Both together.
    #[must_use]
    pub fn and(self, more: Lost) -> Lost {
        match (self, more) {
            (Lost::Nothing, other) | (other, Lost::Nothing) => other,
            (Lost::Count(one), Lost::Count(two)) => Lost::Count(one.saturating_add(two)),
            _ => Lost::Unknown,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// When, in units of the trace's clock: nanoseconds unless the clock is `counter` or `x86-tsc`.
    pub time: u64,
    /// An event: the common fields and its own.
    pub data: &'a [u8],
}

/// What makes a page unreadable from some place on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageError {
    /// Byte of the page's data.
    pub at: usize,
    /// What is wrong there.
    pub what: &'static str,
}

impl std::fmt::Display for PageError {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "byte {} of a ring-buffer page: {}", self.at, self.what)
    }
}

impl std::error::Error for PageError {}

/// Reads the head of a page.
pub fn page<'a>(bytes: &'a [u8], format: &PageFormat) -> Result<Page<'a>, PageError> {
    let head = bytes.get(..format.data_offset).ok_or(PageError { at: 0, what: "no room for a page's head" })?;
    let time = unsigned(&head[..8]);
    let commit = unsigned(&head[8..8 + format.commit_bytes]);
    let body = &bytes[format.data_offset..];
    let filled = (commit & COMMIT_BYTES) as usize;
    let data = body.get(..filled).ok_or(PageError { at: 0, what: "more bytes filled than the page has" })?;
    let lost = match (commit & MISSED_EVENTS, commit & MISSED_STORED) {
        (0, _) => Lost::Nothing,
        (_, 0) => Lost::Unknown,
        // The number has the size of a `long`.
        _ => body.get(filled..filled + format.commit_bytes).map_or(Lost::Unknown, |count| Lost::Count(unsigned(count))),
    };
    Ok(Page { time, lost, records: Records { data, at: 0, time } })
}

/// The records of a page, in order. After an error there is nothing more.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    data: &'a [u8],
    at: usize,
    time: u64,
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, PageError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let at = self.at;
            let head = self.word(at)?;
            let (kind, delta) = (head & 0x1f, u64::from(head >> 5));
            let (start, end) = match kind {
                0 => {
                    // The word counts itself.
                    let Some(length) = self.word(at + 4).filter(|length| *length >= 4) else {
                        return self.fail("a long record without its length");
                    };
                    (at + 8, at + 4 + length as usize)
                }
                PADDING if delta == 0 => return self.end(),
                PADDING => match self.word(at + 4) {
                    Some(length) => (at + 4, at + 4 + length as usize),
                    None => return self.fail("a discarded record without its length"),
                },
                TIME_EXTEND | TIME_STAMP => (at + 8, at + 8),
                words => (at + 4, at + 4 + words as usize * 4),
            };
            if end > self.data.len() {
                return self.fail("a record that ends behind the page");
            }
            // Records are aligned to four bytes, whatever length was asked for.
            self.at = end.next_multiple_of(4);
            match kind {
                TIME_EXTEND => self.time = self.time.wrapping_add(self.long(at, delta)),
                TIME_STAMP => self.time = absolute(self.long(at, delta), self.time),
                // Discarding sets a zero to one, as a zero would end the page.
                PADDING if delta == 1 => {}
                _ => self.time = self.time.wrapping_add(delta),
            }
            if !matches!(kind, PADDING | TIME_EXTEND | TIME_STAMP) {
                return Some(Ok(Record { time: self.time, data: &self.data[start..end] }));
            }
        }
    }
}

impl<'a> Records<'a> {
    /// Bytes of the page that are filled.
    pub fn bytes(&self) -> usize {
        self.data.len()
    }

    #[inline]
    fn word(&self, at: usize) -> Option<u32> {
        let bytes = self.data.get(at..at + 4)?;
        Some(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn long(&self, at: usize, low: u64) -> u64 {
        u64::from(self.word(at + 4).unwrap_or_default()) << 27 | low
    }

    fn end(&mut self) -> Option<Result<Record<'a>, PageError>> {
        self.at = self.data.len();
        None
    }

    fn fail(&mut self, what: &'static str) -> Option<Result<Record<'a>, PageError>> {
        let at = self.at;
        self.at = self.data.len();
        Some(Err(PageError { at, what }))
    }
}

/// A time of which only the low 59 bits were recorded, near a time before it.
fn absolute(low: u64, before: u64) -> u64 {
    const HIGH: u64 = 0xf8 << 56;
    let time = low | before & HIGH;
    // The low bits began anew in between.
    if before & HIGH != 0 && time < before { time.wrapping_add(1 << 59) } else { time }
}
