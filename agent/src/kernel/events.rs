//! Records of single events: ring buffers and perf buffers, which aya reads.

use crate::kernel::detect::online_cpus;
use crate::kernel::sys::KernelMap;
use crate::kernel::sys::map::kind;
use aya::maps::perf::{PerfBufferError, PerfEvent, PerfEventArrayBuffer};
use aya::maps::{Map, MapData, MapError, PerfEventArray, RingBuf};
use nix::poll::{PollFd, PollFlags, PollTimeout};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// Records taken at once: who sends faster than we read must not keep us for ever.
const MAX_AT_ONCE: usize = 1 << 16;

/// Where the records of one probe come out.
pub struct Buffers {
    kind: Kind,
    /// Readable when there are records; duplicates, so that they can be waited for while the probe goes.
    ready: Vec<Arc<OwnedFd>>,
}

enum Kind {
    Ring(RingBuf<MapData>),
    /// One per CPU that is online; records of others are refused by the kernel and counted by the program.
    Perf(Vec<PerfEventArrayBuffer<MapData>>),
}

/// Why records cannot be read.
#[derive(Debug, Error)]
pub enum BufferError {
    /// The ring buffer or the array of perf buffers is refused.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The perf buffer of a CPU cannot be opened.
    #[error("CPU {cpu}: {error}")]
    Perf {
        cpu: u32,
        /// Of perf_event_open(2) or mmap(2).
        error: PerfBufferError,
    },
    /// Its descriptor cannot be duplicated.
    #[error(transparent)]
    Descriptor(#[from] io::Error),
    /// `BPF_MAP_TYPE_*` of a map that takes no records.
    #[error("a map of kind {0} is no buffer")]
    Kind(u32),
}

impl Buffers {
    /// Reads the records that are sent to a map. `buffer_bytes` are those of each CPU's perf buffer.
    pub fn open(map: &KernelMap, buffer_bytes: u32) -> Result<Buffers, BufferError> {
        let data = || -> Result<MapData, BufferError> { Ok(MapData::from_fd(map.as_fd().try_clone_to_owned()?)?) };
        match map.kind {
            kind::RINGBUF => {
                let ring = RingBuf::try_from(Map::RingBuf(data()?))?;
                let ready = vec![duplicate(ring.as_fd())?];
                Ok(Buffers { kind: Kind::Ring(ring), ready })
            }
            kind::PERF_EVENT_ARRAY => {
                let mut array = PerfEventArray::try_from(Map::PerfEventArray(data()?))?;
                let pages = (buffer_bytes as usize).div_ceil(page_bytes()).next_power_of_two();
                let open = |cpu| array.open(cpu, Some(pages)).map_err(|error| BufferError::Perf { cpu, error });
                let buffers = online_cpus().into_iter().map(open).collect::<Result<Vec<_>, _>>()?;
                let ready = buffers.iter().map(|buffer| duplicate(buffer.as_fd())).collect::<Result<_, _>>()?;
                Ok(Buffers { kind: Kind::Perf(buffers), ready })
            }
            other => Err(BufferError::Kind(other)),
        }
    }

    /// What to [`wait`] for.
    pub fn ready(&self) -> &[Arc<OwnedFd>] {
        &self.ready
    }

    /// Takes the records that are there, the oldest of each CPU first. Perf buffers add up to 7 bytes to a record.
    ///
    /// What a perf buffer says it lost is not counted here: the program that was refused has done so.
    pub fn drain(&mut self, mut each: impl FnMut(&[u8])) {
        match &mut self.kind {
            Kind::Ring(ring) => {
                for _ in 0..MAX_AT_ONCE {
                    match ring.next() {
                        Some(record) => each(&record),
                        None => break,
                    }
                }
            }
            Kind::Perf(buffers) => {
                for buffer in buffers {
                    buffer.for_each(|event| match event {
                        PerfEvent::Sample { head, tail: [] } => each(head),
                        PerfEvent::Sample { head, tail } => each(&[head, tail].concat()),
                        PerfEvent::Lost { .. } => {}
                    });
                }
            }
        }
    }
}

impl std::fmt::Debug for Buffers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match &self.kind {
            Kind::Ring(_) => "ring buffer",
            Kind::Perf(_) => "perf buffers",
        };
        f.debug_tuple("Buffers").field(&kind).finish()
    }
}

/// Ring buffers have whole pages.
pub(super) fn page_bytes() -> usize {
    let bytes = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten();
    bytes.and_then(|bytes| usize::try_from(bytes).ok()).filter(|bytes| *bytes > 0).unwrap_or(4096)
}

fn duplicate(fd: BorrowedFd<'_>) -> io::Result<Arc<OwnedFd>> {
    fd.try_clone_to_owned().map(Arc::new)
}

/// Returns when one of these is readable or closed at the other end, or time is up; which of them are.
pub fn wait(files: &[BorrowedFd<'_>], time: Duration) -> io::Result<Vec<bool>> {
    let mut polled: Vec<_> = files.iter().map(|file| PollFd::new(*file, PollFlags::POLLIN)).collect();
    let timeout = PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX);
    match nix::poll::poll(&mut polled, timeout) {
        Ok(_) => Ok(polled.iter().map(|file| file.any().unwrap_or(false)).collect()),
        // A signal: nothing is known to be ready.
        Err(nix::errno::Errno::EINTR) => Ok(vec![false; files.len()]),
        Err(error) => Err(error.into()),
    }
}
