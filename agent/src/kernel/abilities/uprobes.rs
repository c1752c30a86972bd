//! Breakpoints in user space, tried at a place in a file that nothing runs.

use super::{EMPTY, Lack, remove_later};
use crate::kernel::attach::{Link, Places, ProgramType, uprobe, uprobe_multi};
use crate::kernel::sys::prog::{self, ProgSpec};
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

const NO_MULTI: &str = "this kernel has no uprobe_multi links (Linux 6.6 has them)";

/// A perf event for each place.
pub(super) fn try_events() -> Result<(), Lack> {
    let program = load(uprobe::PROGRAM)?;
    at_unused_place(|places| Ok(uprobe::attach(program.as_fd(), places)?))
}

/// One link for many places.
pub(super) fn try_links() -> Result<(), Lack> {
    let program = load(uprobe_multi::PROGRAM).map_err(|lack| match lack {
        Lack::Program(refused) if matches!(refused.error.raw_os_error(), Some(libc::EINVAL | libc::E2BIG)) => {
            NO_MULTI.into()
        }
        other => other,
    })?;
    at_unused_place(|places| {
        uprobe_multi::attach(program.as_fd(), places).map_err(|error| match error.errno() {
            // The number of such links is known where programs are loaded and not where they are attached: no uprobes at all.
            Some(libc::EOPNOTSUPP) => "this kernel was built without uprobes (CONFIG_UPROBES)".into(),
            // Before 6.6 BPF_PROG_LOAD does not look at the attach type of kprobe programs.
            Some(libc::EINVAL) => NO_MULTI.into(),
            _ => error.into(),
        })
    })
}

fn load(program: ProgramType<'static>) -> Result<OwnedFd, Lack> {
    let ProgramType { kind, attach_type, .. } = program;
    Ok(prog::load(&ProgSpec { kind, attach_type, insns: &EMPTY, name: "kstrobe_try", ..ProgSpec::default() })?)
}

fn at_unused_place(attach: impl FnOnce(&Places<'_>) -> Result<Vec<Link>, Lack>) -> Result<(), Lack> {
    let file = memory_file().map_err(|error| Lack::Feature(format!("no file to try it on: {error}")))?;
    let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap_or_default();
    attach(&Places { path: &path, offsets: &[0], semaphores: &[], ids: &[], at_return: false, pid: None })
        .map(remove_later)
}

/// A file in memory with code that never runs: no process maps it, so that no breakpoint is ever set.
fn memory_file() -> io::Result<File> {
    use nix::sys::memfd::{MFdFlags, memfd_create};
    let mut file = File::from(memfd_create(c"kstrobe_try", MFdFlags::MFD_CLOEXEC)?);
    // `nop` on amd64 is a byte, on arm64 a word; anything else would be refused.
    let nop: &[u8] = if cfg!(target_arch = "aarch64") { &[0x1f, 0x20, 0x03, 0xd5] } else { &[0x90] };
    file.write_all(&nop.repeat(4096 / nop.len()))?;
    Ok(file)
}
