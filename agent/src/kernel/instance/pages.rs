//! Pages of one CPU's ring buffer, as the kernel hands them out (`trace_pipe_raw`).
//!
//! A page that is read is gone from the buffer. Mapping the buffer (6.10) would save a copy, but it keeps splice out and has to be
//! written a second time for older kernels; full pages go to a file without a copy already.

use nix::errno::Errno;
use nix::fcntl::{SpliceFFlags, splice};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Pages that go through a pipe at a time: a pipe has room for 16 of them unless it is asked for more.
const PAGES_AT_ONCE: usize = 16;

/// Reads the pages of one CPU, without ever waiting for one.
#[derive(Debug)]
pub struct PageReader {
    file: File,
    page_bytes: usize,
    pipe: Option<(OwnedFd, OwnedFd)>,
}

impl PageReader {
    pub(super) fn new(file: File, page_bytes: usize) -> PageReader {
        PageReader { file, page_bytes, pipe: None }
    }

    /// Waits until the kernel wakes the readers of this CPU (`buffer_percent` filled; before 6.1: any record), or time is up.
    /// Says whether it was woken.
    pub fn wait(&self, limit: Duration) -> io::Result<bool> {
        let limit = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(self.file.as_fd(), PollFlags::POLLIN)], limit) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::EINTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes the next page, full or not, into the start of `page`; false when nothing is recorded.
    pub fn read_page(&mut self, page: &mut [u8]) -> io::Result<bool> {
        let page = page.get_mut(..self.page_bytes).ok_or_else(|| io::Error::other("no room for a page"))?;
        loop {
            match self.file.read(page) {
                Ok(0) => return Ok(false),
                Ok(bytes) if bytes == page.len() => return Ok(true),
                Ok(bytes) => return Err(io::Error::other(format!("a page of {bytes} bytes, not {}", page.len()))),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Moves full pages to the end of a file without copying them, at most `most`, and says how many bytes; 0 when there is
    /// no full page now.
    pub fn splice_pages(&mut self, to: &File, most: usize) -> io::Result<usize> {
        if self.pipe.is_none() {
            self.pipe = Some(nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?);
        }
        let Some((from_pipe, into_pipe)) = &self.pipe else { return Ok(0) };
        let most = most.min(PAGES_AT_ONCE) * self.page_bytes;
        let none = SpliceFFlags::empty();
        let moved = match splice(&self.file, None, into_pipe, None, most, SpliceFFlags::SPLICE_F_NONBLOCK) {
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(0),
            moved => moved?,
        };
        let mut left = moved;
        while left > 0 {
            match splice(from_pipe, None, to, None, left, none) {
                Ok(0) => return Err(io::Error::other("the file takes no more")),
                Ok(bytes) => left -= bytes,
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(moved)
    }
}
