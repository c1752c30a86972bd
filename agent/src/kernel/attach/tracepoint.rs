//! Perf tracepoints: an event's fields as tracefs describes them (Linux 4.7; tracefs for the event's number;
//! perf_event_open(2), for which CAP_PERFMON is enough at the kernel's own levels of kernel.perf_event_paranoid).

use super::{AttachError, Link, ProgramType};
use crate::kernel::error::KernelError;
use crate::kernel::sys::perf;
use crate::kernel::sys::prog::kind;
use crate::kernel::tracefs::Tracefs;
use std::io;
use std::os::fd::BorrowedFd;

/// How its program is loaded.
pub const PROGRAM: ProgramType<'_> =
    ProgramType { kind: kind::TRACEPOINT, attach_type: 0, attach_btf_id: 0, attach_btf: None };

/// Attaches a program to an event on all CPUs; `cpu` is an online one.
pub fn attach(
    prog: BorrowedFd<'_>,
    system: &str,
    event: &str,
    tracefs: &Tracefs,
    cpu: u32,
) -> Result<Vec<Link>, AttachError> {
    let id = tracefs.event_id(system, event).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => AttachError::NoTracepoint(format!("{system}:{event}")),
        _ => AttachError::TracepointId { event: format!("{system}:{event}"), error },
    })?;
    let event = perf::attach_tracepoint(prog, id, cpu).map_err(KernelError::perf)?;
    Ok(vec![Link::Event(event)])
}
