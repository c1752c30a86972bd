//! Splits a byte stream into lines.

/// Buffer of an incomplete line.
#[derive(Debug)]
pub struct Lines {
    held: Vec<u8>,
    /// Offset where the search for a newline continues.
    searched: usize,
    limit: usize,
}

/// A line exceeds the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

impl Lines {
    /// Limits a line to this many bytes.
    pub fn new(limit: usize) -> Lines {
        Lines { held: Vec::new(), searched: 0, limit }
    }

    /// Appends a piece of the stream.
    pub fn push(&mut self, piece: &[u8]) {
        self.held.extend_from_slice(piece);
    }

    /// Takes the next complete line, without its newline.
    pub fn next_line(&mut self) -> Result<Option<Vec<u8>>, TooLong> {
        let Some(end) = self.held[self.searched..].iter().position(|byte| *byte == b'\n') else {
            self.searched = self.held.len();
            return if self.held.len() > self.limit { Err(TooLong) } else { Ok(None) };
        };
        let end = self.searched + end;
        self.searched = 0;
        if end > self.limit {
            return Err(TooLong);
        }
        let mut line: Vec<u8> = self.held.drain(..=end).collect();
        line.pop();
        Ok(Some(line))
    }

    /// Whether an incomplete line is buffered.
    pub fn is_within(&self) -> bool {
        !self.held.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn lines_are_the_same_wherever_the_stream_is_cut(
            lines in proptest::collection::vec("[a-z]{0,8}", 0..8),
            rest in "[a-z]{0,5}",
            cuts in proptest::collection::vec(1usize..6, 1..40),
        ) {
            let mut bytes: Vec<u8> = lines.iter().flat_map(|line| format!("{line}\n").into_bytes()).collect();
            bytes.extend_from_slice(rest.as_bytes());
            let (mut reader, mut found, mut at) = (Lines::new(8), Vec::new(), 0);
            for cut in cuts.iter().cycle() {
                let end = bytes.len().min(at + cut);
                reader.push(&bytes[at..end]);
                at = end;
                while let Some(line) = reader.next_line().unwrap() {
                    found.push(String::from_utf8(line).unwrap());
                }
                if at == bytes.len() {
                    break;
                }
            }
            prop_assert_eq!(found, lines);
            prop_assert_eq!(reader.is_within(), !rest.is_empty());
        }
    }

    #[test]
    fn a_line_has_an_end() {
        let mut lines = Lines::new(4);
        lines.push(b"abcd\nabcde");
        assert_eq!(lines.next_line(), Ok(Some(b"abcd".to_vec())));
        assert_eq!(lines.next_line(), Err(TooLong));
        let mut lines = Lines::new(4);
        lines.push(b"abcde\n");
        assert_eq!(lines.next_line(), Err(TooLong));
    }
}
