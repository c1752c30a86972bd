//! perf events that run a program: tracepoints, clocks and counters.

use super::owned;
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

/// `struct perf_event_attr` in its first published size, which every kernel takes.
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
}

fn open(kind: u32, config: u64, sample_period: u64, cpu: u32) -> io::Result<OwnedFd> {
    let size = size_of::<EventAttr>() as u32;
    let attr = EventAttr { kind, size, config, sample_period, flags: DISABLED, ..EventAttr::default() };
    let (any_process, no_group) = (-1, -1);
    // SAFETY: `attr` outlives the call and says its own size; the result is a new descriptor.
    unsafe {
        let fd =
            libc::syscall(libc::SYS_perf_event_open, &raw const attr, any_process, cpu, no_group, PERF_FLAG_FD_CLOEXEC);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(owned(fd as i32)) }
    }
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
