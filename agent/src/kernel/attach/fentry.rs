//! `fentry` and `fexit`: entry and exit of kernel functions, by BTF (Linux 5.5 with the function tracer and direct calls,
//! 6.0 on arm64; functions of modules 5.11, CAP_SYS_ADMIN; others CAP_BPF and CAP_PERFMON).

use super::{AttachError, Link, ProgramType};
use crate::kernel::error::{BtfError, KernelError};
use crate::kernel::kernel_types::KernelTypes;
use crate::kernel::sys::link;
use crate::kernel::sys::map::ENOTSUPP;
use crate::kernel::sys::prog::{ATTACH_TRACE_FENTRY, ATTACH_TRACE_FEXIT, kind};
use kstrobe_ebpf::typed::Attach;
use std::os::fd::BorrowedFd;

/// How a program at a function's entry is loaded.
pub fn at_entry<'t>(
    types: &'t mut KernelTypes,
    function: &str,
    module: Option<&str>,
) -> Result<ProgramType<'t>, BtfError> {
    program(types, function, module, ATTACH_TRACE_FENTRY)
}

/// How a program at a function's exit is loaded.
pub fn at_exit<'t>(
    types: &'t mut KernelTypes,
    function: &str,
    module: Option<&str>,
) -> Result<ProgramType<'t>, BtfError> {
    program(types, function, module, ATTACH_TRACE_FEXIT)
}

/// A tracing program that names what it attaches to by a function.
pub(super) fn program<'t>(
    types: &'t mut KernelTypes,
    function: &str,
    module: Option<&str>,
    attach_type: u32,
) -> Result<ProgramType<'t>, BtfError> {
    let (attach_btf_id, attach_btf) = types.function(function, module)?;
    Ok(ProgramType { kind: kind::TRACING, attach_type, attach_btf_id, attach_btf })
}

/// Attaches a program to the function that it was loaded for.
pub fn attach(prog: BorrowedFd<'_>, attach: &Attach) -> Result<Vec<Link>, AttachError> {
    let link = link::attach_tracing(prog).map_err(|error| {
        let reason = match error.raw_os_error() {
            Some(ENOTSUPP | libc::EOPNOTSUPP) => format!("this kernel cannot trace functions by BTF ({attach})"),
            Some(libc::EBUSY) => format!("something else holds the entry of {attach}, such as a live patch"),
            _ => format!("{attach}: {error}"),
        };
        KernelError::new(super::tp_btf::CALL, error, reason)
    })?;
    Ok(Link::bpf(link))
}
