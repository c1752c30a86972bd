//! `kprobe` and `kretprobe`: breakpoints at kernel functions, one perf event each (Linux 4.17, CONFIG_KPROBE_EVENTS;
//! perf_event_open(2)).

use super::{AttachError, Link, ProgramType};
use crate::kernel::abilities::perf_refusal;
use crate::kernel::error::KernelError;
use crate::kernel::sys::perf::{self, Place};
use crate::kernel::sys::prog::kind;
use std::io;
use std::os::fd::BorrowedFd;

/// How its program is loaded.
pub const PROGRAM: ProgramType<'_> =
    ProgramType { kind: kind::KPROBE, attach_type: 0, attach_btf_id: 0, attach_btf: None };

const EVENT_KIND: &str = "/sys/bus/event_source/devices/kprobe/type";

/// The number of the perf events that are kprobes.
pub fn event_kind() -> io::Result<u32> {
    std::fs::read_to_string(EVENT_KIND)?.trim().parse().map_err(io::Error::other)
}

/// Attaches a program to functions, as `name` or `module:name`. Functions that allow no kprobe are left out with a warning,
/// as long as one is left.
pub fn attach(
    prog: BorrowedFd<'_>,
    functions: &[String],
    offset: u64,
    ret: bool,
    cpu: u32,
) -> Result<Vec<Link>, AttachError> {
    let kind = event_kind().map_err(|error| {
        let reason = format!("this kernel has no perf kprobes: {error}");
        KernelError::new("open", error, reason)
    })?;
    let (mut links, mut refused) = (Vec::new(), Vec::new());
    for function in functions {
        match perf::attach_kprobe(prog, kind, Place::Symbol { name: function, offset }, ret, cpu) {
            Ok(event) => links.push(Link::Event(event)),
            Err(error) => refused.push(refusal(function, error)),
        }
    }
    let others = refused.len().saturating_sub(1);
    match refused.into_iter().next() {
        Some(first) if links.is_empty() => return Err(first.into()),
        Some(first) => tracing::warn!(reason = %first, others, "some functions of a pattern are not hooked"),
        None => {}
    }
    Ok(links)
}

fn refusal(function: &str, error: io::Error) -> KernelError {
    let reason = match error.raw_os_error() {
        Some(libc::ENOENT) => format!("this kernel has no function {function}"),
        Some(libc::EADDRNOTAVAIL) => format!("several functions have the name {function}"),
        Some(libc::EILSEQ) => format!("no instruction of {function} begins at this offset"),
        Some(libc::EINVAL) => format!("the kernel allows no kprobe in {function}, or none at this offset"),
        _ => format!("{function}: {}", perf_refusal(&error)),
    };
    KernelError::new("perf_event_open", error, reason)
}
