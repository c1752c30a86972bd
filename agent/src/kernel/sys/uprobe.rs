//! Programs at places of a file: uprobe_multi links, and perf events of the kind `uprobe`.

use super::{Command, bpf, owned, perf};
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// `BPF_TRACE_UPROBE_MULTI`: what a program at many places says at loading and at attaching.
pub const ATTACH_UPROBE_MULTI: u32 = 48;
/// `BPF_F_UPROBE_MULTI_RETURN`
const AT_RETURN: u32 = 1;

#[repr(C)]
#[derive(Default)]
struct LinkAttr {
    prog_fd: u32,
    target_fd: u32,
    attach_type: u32,
    flags: u32,
    path: u64,
    offsets: u64,
    ref_ctr_offsets: u64,
    cookies: u64,
    count: u32,
    multi_flags: u32,
    pid: u32,
    pad: u32,
}

/// Places in a file.
#[derive(Clone, Copy, Debug)]
pub struct Places<'a> {
    /// The file.
    pub path: &'a CStr,
    /// Instructions, in bytes from its start.
    pub offsets: &'a [u64],
    /// For each of them the semaphore, likewise (0 for none); or nothing at all.
    pub semaphores: &'a [u64],
    /// For each of them what `bpf_get_attach_cookie` gives there, where one link has all places; or nothing at all.
    pub ids: &'a [u64],
    /// Where the functions return rather than there.
    pub at_return: bool,
    /// Only in this process.
    pub pid: Option<u32>,
}

/// Attaches a program that was loaded for it to all places with one link (6.6), until that is closed.
pub fn attach_multi(prog: BorrowedFd<'_>, places: &Places<'_>) -> io::Result<OwnedFd> {
    let (semaphores, ids) = (places.semaphores, places.ids);
    if [semaphores, ids].iter().any(|list| !list.is_empty() && list.len() != places.offsets.len()) {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let mut attr = LinkAttr {
        prog_fd: prog.as_raw_fd() as u32,
        attach_type: ATTACH_UPROBE_MULTI,
        path: places.path.as_ptr() as u64,
        offsets: places.offsets.as_ptr() as u64,
        ref_ctr_offsets: if semaphores.is_empty() { 0 } else { semaphores.as_ptr() as u64 },
        cookies: if ids.is_empty() { 0 } else { ids.as_ptr() as u64 },
        count: places.offsets.len() as u32,
        multi_flags: if places.at_return { AT_RETURN } else { 0 },
        pid: places.pid.unwrap_or(0),
        ..LinkAttr::default()
    };
    // SAFETY: the path ends in NUL, the arrays have `count` elements, and all outlive the call; the result is a new
    // descriptor.
    unsafe { bpf(Command::LinkCreate, &mut attr).map(|fd| owned(fd)) }
}

/// How this kernel's perf events of the kind `uprobe` are opened: numbers from sysfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventKind {
    /// `perf_event_attr.type`
    pub kind: u32,
    /// Bit of `config` that says: at the return.
    pub return_bit: u32,
}

/// Bits of `config` below the semaphore's offset (`ref_ctr_offset` in sysfs, 4.20).
const SEMAPHORE_SHIFT: u32 = 32;

/// Attaches a program to the place number `index` with one perf event, until that is closed.
pub fn attach_event(
    prog: BorrowedFd<'_>,
    event: EventKind,
    places: &Places<'_>,
    index: usize,
    cpu: u32,
) -> io::Result<OwnedFd> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
    let offset = *places.offsets.get(index).ok_or_else(invalid)?;
    let semaphore = places.semaphores.get(index).copied().unwrap_or(0);
    // It shares a word with the flags: 4 GiB into a file is as far as it reaches.
    let semaphore = u32::try_from(semaphore).map_err(|_| invalid())?;
    let at_return = u64::from(places.at_return) << event.return_bit;
    let config = at_return | u64::from(semaphore) << SEMAPHORE_SHIFT;
    perf::attach_uprobe(prog, event.kind, config, (places.path, offset), places.pid, cpu)
}
