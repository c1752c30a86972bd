//! Pages of the ring buffer, made by hand.

use kstrobe_ftrace::format::PageFormat;

/// Bytes of a page's head on 64-bit kernels.
pub const HEAD_BYTES: usize = 16;

/// A page format with room for so many bytes of records.
pub fn page_format(data_bytes: usize) -> PageFormat {
    let text = format!(
        "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
         \tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n\
         \tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;\n\
         \tfield: char data;\toffset:16;\tsize:{data_bytes};\tsigned:1;\n"
    );
    PageFormat::parse(&text).unwrap()
}

/// A page that is being filled.
#[derive(Clone, Debug, Default)]
pub struct Page {
    time: u64,
    flags: u64,
    behind: Vec<u8>,
    data: Vec<u8>,
}

impl Page {
    /// One that begins at a time.
    pub fn at(time: u64) -> Page {
        Page { time, ..Page::default() }
    }

    /// A word of type and delta.
    pub fn head(mut self, kind: u32, delta: u32) -> Page {
        self.data.extend((kind | delta << 5).to_le_bytes());
        self
    }

    /// A word of another meaning.
    pub fn word(mut self, word: u32) -> Page {
        self.data.extend(word.to_le_bytes());
        self
    }

    /// Bytes as they are.
    pub fn raw(mut self, bytes: &[u8]) -> Page {
        self.data.extend(bytes);
        self
    }

    /// A record of up to 112 bytes, so much later than what is before it.
    pub fn record(self, delta: u32, bytes: &[u8]) -> Page {
        let words = bytes.len().div_ceil(4);
        assert!((1..=28).contains(&words));
        self.head(words as u32, delta).aligned(bytes)
    }

    /// A record with its length in a word of its own.
    pub fn long_record(self, delta: u32, bytes: &[u8]) -> Page {
        self.head(0, delta).word(bytes.len() as u32 + 4).aligned(bytes)
    }

    /// 59 bits of time since what is before it.
    pub fn extend(self, delta: u64) -> Page {
        self.head(30, (delta & ((1 << 27) - 1)) as u32).word((delta >> 27) as u32)
    }

    /// The low 59 bits of a time.
    pub fn stamp(self, time: u64) -> Page {
        self.head(31, (time & ((1 << 27) - 1)) as u32).word((time >> 27 & u64::from(u32::MAX)) as u32)
    }

    /// Records were lost before it; with their number behind the records when it is known.
    pub fn lost(mut self, count: Option<u64>) -> Page {
        self.flags = 1 << 31 | if count.is_some() { 1 << 30 } else { 0 };
        self.behind = count.map_or(Vec::new(), |count| count.to_le_bytes().to_vec());
        self
    }

    /// Its bytes, without what is not filled.
    pub fn short(&self) -> Vec<u8> {
        let mut bytes = self.time.to_le_bytes().to_vec();
        bytes.extend((self.data.len() as u64 | self.flags).to_le_bytes());
        bytes.extend(&self.data);
        bytes.extend(&self.behind);
        bytes
    }

    /// Its bytes, a whole page.
    pub fn whole(&self, format: &PageFormat) -> Vec<u8> {
        let mut bytes = self.short();
        assert!(bytes.len() <= format.page_bytes());
        bytes.resize(format.page_bytes(), 0);
        bytes
    }

    fn aligned(mut self, bytes: &[u8]) -> Page {
        self.data.extend(bytes);
        self.data.resize(self.data.len().next_multiple_of(4), 0);
        self
    }
}
