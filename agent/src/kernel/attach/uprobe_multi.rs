//! `uprobe_multi`: one link for all places of a file (Linux 6.6, CONFIG_UPROBES; CAP_BPF and CAP_PERFMON).

use super::uprobe::place_refusal;
use super::{AttachError, Link, Places, ProgramType};
use crate::kernel::abilities::explain;
use crate::kernel::error::KernelError;
use crate::kernel::sys::prog::{ATTACH_UPROBE_MULTI, kind};
use crate::kernel::sys::uprobe;
use std::os::fd::BorrowedFd;

/// How its program is loaded.
pub const PROGRAM: ProgramType<'_> =
    ProgramType { kind: kind::KPROBE, attach_type: ATTACH_UPROBE_MULTI, attach_btf_id: 0, attach_btf: None };

/// Attaches a loaded program to places of one file: to all or to none.
pub fn attach(prog: BorrowedFd<'_>, places: &Places<'_>) -> Result<Vec<Link>, AttachError> {
    let link = uprobe::attach_multi(prog, places).map_err(|error| {
        let reason = match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => explain(&error),
            _ => place_refusal(&error).unwrap_or_else(|| error.to_string()),
        };
        KernelError::new("bpf(BPF_LINK_CREATE)", error, reason)
    })?;
    Ok(Link::bpf(link))
}
