//! `raw_tp`: tracepoints with their own C arguments, read through a helper (Linux 4.17; CAP_BPF and CAP_PERFMON).

use super::tp_btf::open_error;
use super::{AttachError, Link, ProgramType};
use crate::kernel::sys::link;
use crate::kernel::sys::prog::kind;
use std::io;
use std::os::fd::BorrowedFd;

/// How its program is loaded.
pub const PROGRAM: ProgramType<'_> =
    ProgramType { kind: kind::RAW_TRACEPOINT, attach_type: 0, attach_btf_id: 0, attach_btf: None };

/// Attaches a program to a tracepoint by its name.
pub fn attach(prog: BorrowedFd<'_>, event: &str) -> Result<Vec<Link>, AttachError> {
    if event.contains('\0') {
        return Err(AttachError::NulInName);
    }
    link::attach_raw_tracepoint(prog, event).map(Link::bpf).map_err(|error| refused(event, error))
}

pub(super) fn refused(event: &str, error: io::Error) -> AttachError {
    match error.raw_os_error() {
        Some(libc::ENOENT) => AttachError::NoTracepoint(event.to_owned()),
        _ => open_error(error).into(),
    }
}
