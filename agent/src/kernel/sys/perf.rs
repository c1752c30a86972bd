//! perf events that run a program: tracepoints, clocks and counters.

use super::owned;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// `PERF_TYPE_HARDWARE`: counters of the processor.
pub const HARDWARE: u32 = 0;
/// `PERF_TYPE_SOFTWARE`: events that the kernel itself counts.
pub const SOFTWARE: u32 = 1;
const PERF_TYPE_TRACEPOINT: u32 = 2;
const PERF_COUNT_SW_CPU_CLOCK: u64 = 0;
const DISABLED: u64 = 1;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;
const PERF_EVENT_IOC_ENABLE: libc::Ioctl = 0x2400;
const PERF_EVENT_IOC_SET_BPF: libc::Ioctl = 0x4004_2408;

/// `struct perf_event_attr` in its second published size (2.6.33), which every kernel takes.
#[repr(C)]
#[derive(Default)]
struct EventAttr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    config1: u64,
    config2: u64,
}

fn open(kind: u32, config: u64, sample_period: u64, cpu: u32) -> io::Result<OwnedFd> {
    let any_process = -1;
    // SAFETY: the attribute's other words are zero, so that there are no addresses in it.
    unsafe { open_event(EventAttr { kind, config, sample_period, ..EventAttr::default() }, any_process, cpu as i32) }
}

/// A disabled event.
///
/// # Safety
/// Where the kind takes `config1` as an address, it must be that of a text that ends in NUL.
unsafe fn open_event(attr: EventAttr, process: i32, cpu: i32) -> io::Result<OwnedFd> {
    let attr = EventAttr { size: size_of::<EventAttr>() as u32, flags: DISABLED, ..attr };
    let no_group = -1;
    // SAFETY: `attr` outlives the call and says its own size; the result is a new descriptor.
    unsafe {
        let fd =
            libc::syscall(libc::SYS_perf_event_open, &raw const attr, process, cpu, no_group, PERF_FLAG_FD_CLOEXEC);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(owned(fd as i32)) }
    }
}

/// A place in code, as perf events of the kinds `kprobe` and `uprobe` take it.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Flags of that kind.
    pub config: u64,
    /// A file or a function.
    pub path: &'a CStr,
    /// Bytes into it.
    pub offset: u64,
}

/// Opens an event at a place, for all processes or one of them. One event is enough for all CPUs, as with tracepoints.
pub fn open_place(kind: u32, place: &Place<'_>, process: Option<u32>, cpu: u32) -> io::Result<OwnedFd> {
    let Place { config, path, offset } = *place;
    let attr = EventAttr { kind, config, config1: path.as_ptr() as u64, config2: offset, ..EventAttr::default() };
    // An event of one process is on whatever CPU that is.
    let (process, cpu) = process.map_or((-1, cpu as i32), |pid| (pid as i32, -1));
    // SAFETY: `path` ends in NUL and outlives the call.
    unsafe { open_event(attr, process, cpu) }
}

/// Lets a disabled event run a program; it stays disabled, so that it makes no samples.
pub fn run(event: &OwnedFd, prog: BorrowedFd<'_>) -> io::Result<()> {
    ioctl(event, PERF_EVENT_IOC_SET_BPF, prog.as_raw_fd())
}

fn ioctl(event: &OwnedFd, request: libc::Ioctl, argument: i32) -> io::Result<()> {
    // SAFETY: both requests used here take a plain number.
    if unsafe { libc::ioctl(event.as_raw_fd(), request, argument) } < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Runs a program at a tracepoint on every CPU, until the returned event is closed.
///
/// One event is enough: the kernel hangs the program on the tracepoint, not on the event's CPU. The event itself stays
/// disabled, so the tracepoint makes no samples.
pub fn attach_tracepoint(prog: BorrowedFd<'_>, tracepoint_id: u64, cpu: u32) -> io::Result<OwnedFd> {
    let event = open(PERF_TYPE_TRACEPOINT, tracepoint_id, 1, cpu)?;
    ioctl(&event, PERF_EVENT_IOC_SET_BPF, prog.as_raw_fd())?;
    Ok(event)
}

/// Runs a program every `period_ns` on one CPU, until the returned event is closed.
pub fn attach_interval(prog: BorrowedFd<'_>, period_ns: u64, cpu: u32) -> io::Result<OwnedFd> {
    attach_counter(prog, (SOFTWARE, PERF_COUNT_SW_CPU_CLOCK), period_ns, cpu)
}

/// Runs a program on one CPU after every `period` events of a kind ([`HARDWARE`] or [`SOFTWARE`] and its number), until the
/// returned event is closed.
pub fn attach_counter(prog: BorrowedFd<'_>, (kind, number): (u32, u64), period: u64, cpu: u32) -> io::Result<OwnedFd> {
    let event = open(kind, number, period, cpu)?;
    ioctl(&event, PERF_EVENT_IOC_SET_BPF, prog.as_raw_fd())?;
    ioctl(&event, PERF_EVENT_IOC_ENABLE, 0)?;
    Ok(event)
}

/// A disabled CPU clock event: opening one tells whether this process may open events at all.
pub fn cpu_clock(period_ns: u64, cpu: u32) -> io::Result<OwnedFd> {
    open(SOFTWARE, PERF_COUNT_SW_CPU_CLOCK, period_ns, cpu)
}
