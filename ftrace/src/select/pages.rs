//! Writes records into pages of the ring buffer: what [`crate::page`] reads.

use crate::format::PageFormat;
use crate::page::{Lost, MISSED_EVENTS, MISSED_STORED, TIME_EXTEND};

/// Longer records have their length in a word of its own.
const MAX_WORDS: usize = 28;
/// Nanoseconds since the record before that have room in its first word.
const DELTA_BITS: u32 = 27;
/// Those that have room in a [`TIME_EXTEND`].
const EXTEND_BITS: u32 = 59;

#[derive(Clone, Debug)]
pub struct PageWriter<'a> {
    format: &'a PageFormat,
    pages: Vec<u8>,
    /// Of the page that is written.
    body: Vec<u8>,
    /// When its first record was.
    begin: u64,
    /// When its last record was.
    last: u64,
    /// Before its first record.
    lost: Lost,
}

impl<'a> PageWriter<'a> {
    pub fn new(format: &'a PageFormat) -> PageWriter<'a> {
        PageWriter { format, pages: Vec::new(), body: Vec::new(), begin: 0, last: 0, lost: Lost::Nothing }
    }

    /// Adds a record, with what was lost before it. A page begins with a time of its own, so that times may go back.
    pub fn push(&mut self, time: u64, lost: Lost, data: &[u8]) {
        let delta = time.wrapping_sub(self.last);
        let fits = self.body.len() + record_bytes(delta, data) <= self.room();
        if self.body.is_empty() || lost != Lost::Nothing || time < self.last || delta >> EXTEND_BITS != 0 || !fits {
            self.end_page();
            (self.begin, self.last, self.lost) = (time, time, lost);
        }
        self.record(time - self.last, data);
        self.last = time;
    }

    /// All pages.
    pub fn finish(mut self) -> Vec<u8> {
        self.end_page();
        self.pages
    }

    /// Bytes for records: the number of lost ones stands behind them.
    fn room(&self) -> usize {
        match self.lost {
            Lost::Count(_) => self.format.data_bytes - self.format.commit_bytes,
            Lost::Nothing | Lost::Unknown => self.format.data_bytes,
        }
    }

    fn record(&mut self, delta: u64, data: &[u8]) {
        let mut word = |word: u32| self.body.extend(word.to_le_bytes());
        let mut low = delta as u32;
        if delta >> DELTA_BITS != 0 {
            word((low << 5) | TIME_EXTEND);
            word((delta >> DELTA_BITS) as u32);
            low = 0;
        }
        match short(data) {
            Some(words) => word(low << 5 | words),
            None => {
                word(low << 5);
                // The word counts itself.
                word(data.len() as u32 + 4);
            }
        }
        self.body.extend(data);
        self.body.resize(self.body.len().next_multiple_of(4), 0);
    }

    fn end_page(&mut self) {
        if self.body.is_empty() {
            return;
        }
        let PageFormat { commit_bytes, data_bytes, .. } = *self.format;
        let end = self.pages.len() + self.format.page_bytes();
        // Of a page whose size is no multiple of four, the last record may lack its alignment.
        self.body.truncate(data_bytes);
        // A record that was first in its page may leave no room for the number.
        let stored = self.body.len() + commit_bytes <= data_bytes;
        let (flags, count) = match self.lost {
            Lost::Nothing => (0, None),
            Lost::Count(count) if stored => (MISSED_EVENTS | MISSED_STORED, Some(count)),
            Lost::Count(_) | Lost::Unknown => (MISSED_EVENTS, None),
        };
        self.pages.extend(self.begin.to_le_bytes());
        self.pages.extend(&(self.body.len() as u64 | flags).to_le_bytes()[..commit_bytes]);
        self.pages.append(&mut self.body);
        if let Some(count) = count {
            self.pages.extend(&count.to_le_bytes()[..commit_bytes]);
        }
        self.pages.resize(end, 0);
        self.lost = Lost::Nothing;
    }
}

/// The words of a record whose length has room in its first word.
fn short(data: &[u8]) -> Option<u32> {
    let words = data.len() / 4;
    (data.len().is_multiple_of(4) && (1..=MAX_WORDS).contains(&words)).then_some(words as u32)
}

fn record_bytes(delta: u64, data: &[u8]) -> usize {
    let time = if delta >> DELTA_BITS != 0 { 8 } else { 0 };
    let head = if short(data).is_some() { 4 } else { 8 };
    time + head + data.len().next_multiple_of(4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::page;
    use proptest::prelude::*;

    const HEADER: &str = "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
        \tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n\
        \tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;\n\
        \tfield: char data;\toffset:16;\tsize:4080;\tsigned:0;\n";

    /// What a reader finds: time, what was lost before, bytes.
    fn read(format: &PageFormat, pages: &[u8]) -> Vec<(u64, Lost, Vec<u8>)> {
        let mut found = Vec::new();
        for bytes in pages.chunks(format.page_bytes()) {
            let page = page(bytes, format).unwrap();
            let mut lost = page.lost;
            for record in page.records {
                let record = record.unwrap();
                found.push((record.time, std::mem::take(&mut lost), record.data.to_vec()));
            }
        }
        found
    }

    fn lost() -> impl Strategy<Value = Lost> {
        prop_oneof![8 => Just(Lost::Nothing), 1 => (1u64..1 << 40).prop_map(Lost::Count), 1 => Just(Lost::Unknown)]
    }

    proptest! {
        #[test]
        fn pages_are_read_as_they_were_written(
            records in prop::collection::vec(
                (prop_oneof![6 => 0u64..1 << 20, 2 => 0u64..1 << 40, 1 => any::<u64>()], lost(), 2usize..1000),
                0..200,
            )
        ) {
            let format = PageFormat::parse(HEADER).unwrap();
            let mut writer = PageWriter::new(&format);
            let mut time = 0u64;
            let mut written = Vec::new();
            for (step, lost, words) in records {
                time = time.wrapping_add(step);
                let data: Vec<u8> = (0..words * 4).map(|at| at as u8).collect();
                writer.push(time, lost, &data);
                written.push((time, lost, data));
            }
            let pages = writer.finish();
            prop_assert_eq!(pages.len() % format.page_bytes(), 0);
            prop_assert_eq!(read(&format, &pages), written);
        }
    }
}
