//! `tp_btf`: tracepoints whose arguments are pointers that the verifier knows (Linux 5.5; CONFIG_DEBUG_INFO_BTF; CAP_BPF and
//! CAP_PERFMON).

use super::{AttachError, Link, ProgramType};
use crate::kernel::error::{BtfError, KernelError};
use crate::kernel::kernel_types::KernelTypes;
use crate::kernel::sys::link;
use crate::kernel::sys::prog::{ATTACH_TRACE_RAW_TP, kind};
use std::os::fd::BorrowedFd;

/// How its program is loaded.
pub fn program<'t>(types: &'t mut KernelTypes, event: &str) -> Result<ProgramType<'t>, BtfError> {
    let attach_btf_id = types.tracepoint(event)?;
    Ok(ProgramType { kind: kind::TRACING, attach_type: ATTACH_TRACE_RAW_TP, attach_btf_id, attach_btf: None })
}

/// Attaches it to the tracepoint that it was loaded for.
pub fn attach(prog: BorrowedFd<'_>, event: &str) -> Result<Vec<Link>, AttachError> {
    link::attach_tracing(prog).map(Link::bpf).map_err(|error| super::raw_tracepoint::refused(event, error))
}

/// The name of the call that attaches tracing programs and raw tracepoints.
pub const CALL: &str = "bpf(BPF_RAW_TRACEPOINT_OPEN)";

/// An error of that call.
pub(super) fn open_error(error: std::io::Error) -> KernelError {
    KernelError::bpf(CALL, error)
}
