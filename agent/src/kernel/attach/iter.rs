//! `iter`: a program that runs once for each object of a kind, when the iterator is read (Linux 5.8; CAP_BPF and CAP_PERFMON).

use super::{AttachError, Link, ProgramType, fentry};
use crate::kernel::error::{BtfError, KernelError};
use crate::kernel::kernel_types::KernelTypes;
use crate::kernel::sys::link;
use crate::kernel::sys::prog::ATTACH_TRACE_ITER;
use kstrobe_ebpf::kernel_target::btf::ITERATOR;
use std::os::fd::BorrowedFd;

/// How its program is loaded: the kernel names an iterator by a function, `bpf_iter_OBJECT`.
pub fn program<'t>(types: &'t mut KernelTypes, object: &str) -> Result<ProgramType<'t>, BtfError> {
    fentry::program(types, &format!("{ITERATOR}{object}"), None, ATTACH_TRACE_ITER)
}

/// Makes an iterator of a program.
pub fn attach(prog: BorrowedFd<'_>, object: &str) -> Result<Vec<Link>, AttachError> {
    let iterator = link::attach_iterator(prog).map_err(|error| {
        let reason = format!("this kernel gives no iterator over {object}: {error}");
        KernelError::new("bpf(BPF_LINK_CREATE)", error, reason)
    })?;
    Ok(vec![Link::Iterator(iterator)])
}
