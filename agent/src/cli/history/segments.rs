//! kstrobe's own format: the segments of a range in one file.

use super::HistoryError;
use super::export::Writer;
use kstrobe_history::disk::Replayed;
use kstrobe_history::segment::Encoder;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

/// As large as the agent's own with the default size.
const SEGMENT_BYTES: usize = 8 << 20;

pub struct Segments {
    path: PathBuf,
    file: BufWriter<File>,
    encoder: Encoder,
}

impl Segments {
    pub fn create(path: &Path) -> Result<Segments, HistoryError> {
        let file = File::create(path).map_err(HistoryError::at(path))?;
        Ok(Segments { path: path.to_owned(), file: BufWriter::new(file), encoder: Encoder::new(SEGMENT_BYTES) })
    }
}

impl Writer for Segments {
    fn second(&mut self, replayed: &Replayed) -> Result<(), HistoryError> {
        let frame = self.encoder.encode(replayed.second, &replayed.probes, &replayed.marks);
        self.file.write_all(&frame.bytes).map_err(HistoryError::at(&self.path))
    }

    fn end(mut self: Box<Self>) -> Result<Vec<String>, HistoryError> {
        self.file.flush().map_err(HistoryError::at(&self.path))?;
        Ok(Vec::new())
    }
}
