//! perf events that run a program: tracepoints, kprobes, clocks and counters.

use super::owned;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// `PERF_TYPE_HARDWARE`: counters of the processor.
pub const HARDWARE: u32 = 0;
/// `PERF_TYPE_SOFTWARE`: events that the kernel itself counts.
pub const SOFTWARE: u32 = 1;
const PERF_TYPE_TRACEPOINT: u32 = 2;
const PERF_COUNT_SW_CPU_CLOCK: u64 = 0;
const DISABLED: u64 = 1;
const PERF_FORMAT_TOTAL_TIME_ENABLED: u64 = 1;
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

/// A place in the kernel's code.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// Bytes into a function; `module:name` for one of a module.
    Symbol {
        /// Its symbol.
        name: &'a str,
        /// Bytes.
        offset: u64,
    },
    Address(u64),
}

fn open(kind: u32, config: u64, sample_period: u64, cpu: u32) -> io::Result<OwnedFd> {
    open_attr(EventAttr { kind, config, sample_period, ..EventAttr::default() }, None, cpu)
}

fn open_attr(attr: EventAttr, process: Option<u32>, cpu: u32) -> io::Result<OwnedFd> {
    let size = size_of::<EventAttr>() as u32;
    let attr = EventAttr { size, flags: DISABLED, ..attr };
    // An event of one process is on whatever CPU that is.
    let (process, cpu) = process.map_or((-1, cpu as i32), |pid| (pid as i32, -1));
    let no_group = -1;
    // SAFETY: `attr` and the name it may point to outlive the call, and it says its own size; the result is a new descriptor.
    unsafe {
        let fd =
            libc::syscall(libc::SYS_perf_event_open, &raw const attr, process, cpu, no_group, PERF_FLAG_FD_CLOEXEC);
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

/// Runs a program at a place of the kernel's code, or at the return of the function there, on every CPU until the returned
/// event is closed. `kind` is the type of the perf events that are kprobes.
pub fn attach_kprobe(prog: BorrowedFd<'_>, kind: u32, place: Place<'_>, ret: bool, cpu: u32) -> io::Result<OwnedFd> {
    let name = match place {
        Place::Symbol { name, .. } => std::ffi::CString::new(name).map_err(io::Error::other)?,
        Place::Address(_) => Default::default(),
    };
    let (config1, config2) = match place {
        Place::Symbol { offset, .. } => (name.as_ptr() as u64, offset),
        Place::Address(address) => (0, address),
    };
    let attr = EventAttr { kind, config: ret.into(), sample_period: 1, config1, config2, ..EventAttr::default() };
    let event = open_attr(attr, None, cpu)?;
    // As with tracepoints the program hangs on the breakpoint itself, so that the event can stay disabled.
    ioctl(&event, PERF_EVENT_IOC_SET_BPF, prog.as_raw_fd())?;
    Ok(event)
}

/// Runs a program at a place of a file (its path and bytes from its start), in all processes or one, on every CPU until the
/// returned event is closed. `kind` is the type of the perf events that are uprobes, `config` has their flags.
pub fn attach_uprobe(
    prog: BorrowedFd<'_>,
    kind: u32,
    config: u64,
    (path, offset): (&std::ffi::CStr, u64),
    process: Option<u32>,
    cpu: u32,
) -> io::Result<OwnedFd> {
    let (config1, config2) = (path.as_ptr() as u64, offset);
    let attr = EventAttr { kind, config, sample_period: 1, config1, config2, ..EventAttr::default() };
    let event = open_attr(attr, process, cpu)?;
    ioctl(&event, PERF_EVENT_IOC_SET_BPF, prog.as_raw_fd())?;
    Ok(event)
}

/// Runs a program every `period_ns` on one CPU, until the returned event is closed.
pub fn attach_interval(prog: BorrowedFd<'_>, period_ns: u64, cpu: u32) -> io::Result<OwnedFd> {
    attach_counter(prog, (SOFTWARE, PERF_COUNT_SW_CPU_CLOCK), period_ns, cpu)
}

/// Runs a program on one CPU after every `period` events of a kind ([`HARDWARE`] or [`SOFTWARE`] and its number), until the
/// returned event is closed.
pub fn attach_counter(
    prog: BorrowedFd<'_>,
    (kind, config): (u32, u64),
    sample_period: u64,
    cpu: u32,
) -> io::Result<OwnedFd> {
    let read_format = PERF_FORMAT_TOTAL_TIME_ENABLED;
    let event = open_attr(EventAttr { kind, config, sample_period, read_format, ..EventAttr::default() }, None, cpu)?;
    ioctl(&event, PERF_EVENT_IOC_SET_BPF, prog.as_raw_fd())?;
    ioctl(&event, PERF_EVENT_IOC_ENABLE, 0)?;
    Ok(event)
}

/// How long an event of [`attach_counter`] or [`attach_interval`] has been enabled. It stands still for good once its CPU
/// was offline, also when that CPU is back.
pub fn enabled_for(event: &OwnedFd) -> io::Result<Duration> {
    let mut values = [0; 16];
    match nix::unistd::read(event, &mut values)? {
        16 => Ok(Duration::from_nanos(u64::from_ne_bytes(values[8..].try_into().map_err(io::Error::other)?))),
        // No bytes: the event is in error.
        _ => Ok(Duration::ZERO),
    }
}

/// A disabled event of a kind ([`HARDWARE`] or [`SOFTWARE`] and its number): opening one shows whether there is a counter.
pub fn counter((kind, config): (u32, u64), period: u64, cpu: u32) -> io::Result<OwnedFd> {
    open(kind, config, period, cpu)
}

/// A disabled CPU clock event: opening one tells whether this process may open events at all.
pub fn cpu_clock(period_ns: u64, cpu: u32) -> io::Result<OwnedFd> {
    open(SOFTWARE, PERF_COUNT_SW_CPU_CLOCK, period_ns, cpu)
}
