//! Appends frames to the files of a directory, one file a segment, and drops the oldest ones.

use super::{Archive, DiskError, SUFFIX};
use crate::segment::{Frame, SPAN, whole};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

/// Holds a lock while an appender has the directory.
const LOCK: &str = "lock";

/// How much is kept. Whole segments go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    pub seconds: u64,
    pub bytes: u64,
}

impl Retention {
    /// Bytes of a segment, so that the oldest of them is a small part of all.
    pub fn segment_bytes(&self) -> usize {
        (self.bytes / 16).clamp(64 << 10, 8 << 20) as usize
    }
}

/// The one writer of a directory.
#[derive(Debug)]
pub struct Appender {
    directory: PathBuf,
    retention: Retention,
    /// The last segment, while it may grow.
    file: Option<(PathBuf, File)>,
    /// Start, path and size of each segment, the oldest first.
    segments: Vec<(u64, PathBuf, u64)>,
    _lock: File,
}

impl Appender {
    /// Takes a directory, which it makes if it is not there, and cuts the end of its last segment where a write was cut short.
    /// Returns the bytes that were cut, too.
    pub fn open(directory: &Path, retention: Retention) -> Result<(Appender, u64), DiskError> {
        fs::create_dir_all(directory).map_err(DiskError::at(directory))?;
        let path = directory.join(LOCK);
        let lock = OpenOptions::new().create(true).append(true).open(&path).map_err(DiskError::at(&path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(DiskError::InUse(directory.to_owned())),
            Err(TryLockError::Error(error)) => return Err(DiskError::at(&path)(error)),
        }
        let segments = Archive::open(directory)?.segments()?;
        let mut segments: Vec<_> =
            segments.into_iter().map(|segment| (segment.start, segment.path, segment.bytes)).collect();
        let cut = segments.last_mut().map_or(Ok(0), |(_, path, bytes)| {
            let cut = cut(path)?;
            *bytes -= cut;
            Ok(cut)
        })?;
        Ok((Appender { directory: directory.to_owned(), retention, file: None, segments, _lock: lock }, cut))
    }

    pub fn set_retention(&mut self, retention: Retention) {
        self.retention = retention;
    }

    /// Appends a frame, which is on the disk when this returns. After an error nothing of the frame is there, and the next one has
    /// to begin a segment: any other is refused by `false`.
    pub fn append(&mut self, frame: &Frame) -> Result<bool, DiskError> {
        if frame.is_first {
            self.file = None;
            self.drop_old(frame.second.start)?;
            self.begin(frame.second.start)?;
        }
        let Some((path, file)) = &mut self.file else { return Ok(false) };
        let size = self.segments.last_mut().map(|(_, _, bytes)| bytes);
        match file.write_all(&frame.bytes).and_then(|()| file.sync_data()) {
            Ok(()) => size.into_iter().for_each(|size| *size += frame.bytes.len() as u64),
            Err(error) => {
                let error = DiskError::at(path)(error);
                let length = size.map_or(0, |size| *size);
                // Where even this fails, the next start cuts it.
                let _ = file.set_len(length);
                if length == 0 {
                    let _ = fs::remove_file(&*path);
                    self.segments.pop();
                }
                self.file = None;
                return Err(error);
            }
        }
        Ok(true)
    }

    /// Bytes of all segments.
    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|(_, _, bytes)| bytes).sum()
    }

    fn begin(&mut self, start: u64) -> Result<(), DiskError> {
        // An agent that was started again within a second has the same start as before.
        let name = |number: u32| self.directory.join(format!("{start:010}-{number}.{SUFFIX}"));
        let path = (0..u32::MAX).map(name).find(|path| !path.exists()).unwrap_or_else(|| name(u32::MAX));
        let file = OpenOptions::new().create_new(true).append(true).open(&path).map_err(DiskError::at(&path))?;
        // A new name is on the disk when its directory is.
        let directory = File::open(&self.directory).and_then(|directory| directory.sync_all());
        directory.map_err(DiskError::at(&self.directory))?;
        self.segments.push((start, path.clone(), 0));
        self.file = Some((path, file));
        Ok(())
    }

    /// Drops segments that are too old, and the oldest ones until another one has room.
    fn drop_old(&mut self, now: u64) -> Result<(), DiskError> {
        let oldest = now.saturating_sub(self.retention.seconds);
        let room = self.retention.bytes.saturating_sub(self.retention.segment_bytes() as u64);
        while let Some((start, path, _)) = self.segments.first()
            && (start + SPAN <= oldest || self.bytes() > room)
        {
            match fs::remove_file(path) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(DiskError::at(path)(error)),
                _ => self.segments.remove(0),
            };
        }
        Ok(())
    }
}

/// Cuts what comes after the last whole frame. A file without any goes. Returns the bytes that were cut.
fn cut(path: &Path) -> Result<u64, DiskError> {
    let bytes = fs::read(path).map_err(DiskError::at(path))?;
    let valid = whole(&bytes);
    let cut = (bytes.len() - valid) as u64;
    if cut > 0 {
        let file = OpenOptions::new().write(true).open(path).map_err(DiskError::at(path))?;
        file.set_len(valid as u64).and_then(|()| file.sync_all()).map_err(DiskError::at(path))?;
    }
    Ok(cut)
}
