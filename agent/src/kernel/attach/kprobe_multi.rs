//! `kprobe_multi`: one link for any number of kernel functions (Linux 5.18, CONFIG_FPROBE; CAP_BPF and CAP_PERFMON).

use super::{AttachError, Link, ProgramType};
use crate::kernel::error::KernelError;
use crate::kernel::sys::link;
use crate::kernel::sys::prog::{ATTACH_KPROBE_MULTI, kind};
use std::os::fd::BorrowedFd;

/// How its program is loaded.
pub const PROGRAM: ProgramType<'_> =
    ProgramType { kind: kind::KPROBE, attach_type: ATTACH_KPROBE_MULTI, attach_btf_id: 0, attach_btf: None };

/// Attaches a program to functions, as `name` or `module:name`: to all or to none. The kernel looks a name up without its module.
pub fn attach(prog: BorrowedFd<'_>, functions: &[String], ret: bool) -> Result<Vec<Link>, AttachError> {
    let symbols: Vec<&str> = functions.iter().map(|f| f.rsplit(':').next().unwrap_or(f)).collect();
    let link = link::attach_kprobe_multi(prog, &symbols, ret).map_err(|error| {
        let reason = match error.raw_os_error() {
            Some(libc::EOPNOTSUPP) => "this kernel has no kprobe_multi (CONFIG_FPROBE)".into(),
            Some(libc::ESRCH) => format!("one of the functions cannot be traced, or is gone: {}", symbols.join(", ")),
            _ => format!("kprobe_multi: {error}"),
        };
        KernelError::new("bpf(BPF_LINK_CREATE)", error, reason)
    })?;
    Ok(Link::bpf(link))
}
