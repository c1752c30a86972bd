//! Reads the segments of a directory, or of one file that holds several.

use super::{DiskError, SUFFIX};
use crate::query::Past;
use crate::segment::{self, Decoded, FRAME_HEADER, FrameHeader, HEADER, SPAN, decode, start_of};
use crate::store::History;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Seconds by which a mark may be later on the disk than it says: a capture is marked at its end with its beginning.
const MAX_MARK_DELAY: u64 = 120;
/// Segments that are written here are far smaller.
const MAX_SEGMENT: u64 = 1 << 30;

/// Segments that may still grow while they are read.
#[derive(Clone, Debug)]
pub struct Archive {
    path: PathBuf,
    is_file: bool,
}

/// Where a segment is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    pub path: PathBuf,
    pub offset: u64,
    pub bytes: u64,
    /// Of its first second.
    pub start: u64,
}

impl Segment {
    /// Whether it may have seconds from one time to before another.
    pub(super) fn is_within(&self, from: u64, to: u64) -> bool {
        self.start < to && self.start + SPAN > from
    }

    /// Reads it; what is left out is damaged, cut short or about to be written.
    pub fn read(&self) -> io::Result<Decoded> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(self.offset))?;
        let mut bytes = Vec::new();
        file.take(self.bytes.min(MAX_SEGMENT)).read_to_end(&mut bytes)?;
        Ok(decode(&bytes))
    }
}

impl Archive {
    /// A directory of segments, or a file of one or several.
    pub fn open(path: &Path) -> Result<Archive, DiskError> {
        let is_file = fs::metadata(path).map_err(DiskError::at(path))?.is_file();
        let archive = Archive { path: path.to_owned(), is_file };
        if is_file && archive.segments()?.is_empty() {
            return Err(DiskError::NoHistory(path.to_owned()));
        }
        Ok(archive)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All segments, the oldest first.
    pub fn segments(&self) -> Result<Vec<Segment>, DiskError> {
        let mut segments = if self.is_file { in_file(&self.path) } else { in_directory(&self.path) }
            .map_err(DiskError::at(&self.path))?;
        segments.sort_by(|a, b| (a.start, &a.path, a.offset).cmp(&(b.start, &b.path, b.offset)));
        Ok(segments)
    }

    /// The newest segment that has a second.
    pub fn last(&self) -> Option<History> {
        let mut segments = self.segments().ok()?;
        std::iter::from_fn(|| segments.pop()).find_map(|segment| {
            let history = segment.read().ok()?.history;
            history.oldest().map(|_| history)
        })
    }
}

impl Past for Archive {
    fn each(&self, from: u64, to: u64, see: &mut dyn FnMut(&History)) {
        // Files that went since, or cannot be read, have nothing to say: their seconds are missing in the answer.
        for segment in self.segments().unwrap_or_default().into_iter().rev() {
            if segment.is_within(from, to.saturating_add(MAX_MARK_DELAY))
                && let Ok(decoded) = segment.read()
            {
                see(&decoded.history);
            }
        }
    }

    fn newest(&self) -> Option<u64> {
        self.last()?.newest()
    }
}

fn in_directory(path: &Path) -> io::Result<Vec<Segment>> {
    let mut segments = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let name = entry.file_name();
        let start = name.to_str().and_then(|name| name.strip_suffix(SUFFIX)?.strip_suffix('.')?.split_once('-'));
        let Some(start) = start.and_then(|(start, _)| start.parse().ok()) else { continue };
        match entry.metadata() {
            Ok(about) => segments.push(Segment { path: entry.path(), offset: 0, bytes: about.len(), start }),
            // It went meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(segments)
}

/// Finds segments by the heads of their frames, without unpacking any.
fn in_file(path: &Path) -> io::Result<Vec<Segment>> {
    let mut file = io::BufReader::new(File::open(path)?);
    let (mut segments, mut at) = (Vec::<Segment>::new(), 0);
    loop {
        let mut head = [0; HEADER];
        let length = read_some(&mut file, &mut head)?;
        let skipped = match head.starts_with(&segment::MAGIC) {
            true => {
                let Some(start) = start_of(&head).filter(|_| length == HEADER) else { break };
                segments.push(Segment { path: path.to_owned(), offset: at, bytes: 0, start });
                HEADER
            }
            false => {
                let frame = head[..length].first_chunk().copied().and_then(FrameHeader::read);
                let Some(frame) = frame.filter(|_| !segments.is_empty()) else { break };
                FRAME_HEADER + frame.packed
            }
        };
        at += skipped as u64;
        file.seek_relative(skipped as i64 - length as i64)?;
        segments.iter_mut().next_back().into_iter().for_each(|segment| segment.bytes = at - segment.offset);
    }
    Ok(segments)
}

fn read_some(file: &mut impl Read, bytes: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while length < bytes.len() {
        match file.read(&mut bytes[length..])? {
            0 => break,
            read => length += read,
        }
    }
    Ok(length)
}
