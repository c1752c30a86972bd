//! Records of single events: ring buffers and perf buffers. With [`load`](mod@super::load) and [`attach`](super::attach) one
//! of the three files that name aya.

use crate::kernel::detect::online_cpus;
use crate::kernel::load::chain;
use aya::maps::perf::{PerfEvent, PerfEventArrayBuffer};
use aya::maps::{Map, MapData, PerfEventArray, RingBuf};
use nix::poll::{PollFd, PollFlags, PollTimeout};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

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

impl Buffers {
    /// Takes the map that records are sent to. `buffer_bytes` are those of each CPU's perf buffer.
    pub(super) fn open(map: Map, buffer_bytes: u32) -> Result<Buffers, String> {
        match map {
            Map::RingBuf(_) => {
                let ring = RingBuf::try_from(map).map_err(|error| chain(&error))?;
                let ready = vec![duplicate(ring.as_fd())?];
                Ok(Buffers { kind: Kind::Ring(ring), ready })
            }
            Map::PerfEventArray(_) => {
                let mut array = PerfEventArray::try_from(map).map_err(|error| chain(&error))?;
                let pages = (buffer_bytes as usize).div_ceil(page_bytes()).next_power_of_two();
                let open = |cpu| array.open(cpu, Some(pages)).map_err(|error| format!("CPU {cpu}: {}", chain(&error)));
                let buffers = online_cpus().into_iter().map(open).collect::<Result<Vec<_>, _>>()?;
                let ready = buffers.iter().map(|buffer| duplicate(buffer.as_fd())).collect::<Result<_, _>>()?;
                Ok(Buffers { kind: Kind::Perf(buffers), ready })
            }
            _ => Err("it is no buffer".into()),
        }
    }

    /// Takes a ring buffer that the agent made itself.
    pub(super) fn of_ring(map: OwnedFd) -> Result<Buffers, String> {
        let data = MapData::from_fd(map).map_err(|error| chain(&error))?;
        Buffers::open(Map::RingBuf(data), 0)
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

fn page_bytes() -> usize {
    let bytes = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten();
    bytes.and_then(|bytes| usize::try_from(bytes).ok()).filter(|bytes| *bytes > 0).unwrap_or(4096)
}

fn duplicate(fd: BorrowedFd<'_>) -> Result<Arc<OwnedFd>, String> {
    fd.try_clone_to_owned().map(Arc::new).map_err(|error| error.to_string())
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
