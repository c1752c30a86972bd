//! Links: descriptors that keep a program attached until they are closed.

use super::{Command, bpf, owned};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// `BPF_F_KPROBE_MULTI_RETURN`, and the same bit for uprobes.
const MULTI_RETURN: u32 = 1;

/// Attaches a tracing program to what it was loaded for (5.5).
pub fn attach_tracing(prog: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attr {
        name: u64,
        prog_fd: u32,
        pad: u32,
    }
    let mut attr = Attr { name: 0, prog_fd: prog.as_raw_fd() as u32, pad: 0 };
    // SAFETY: the name's address is null: the program knows where it attaches. The result is a new descriptor.
    unsafe { bpf(Command::RawTracepointOpen, &mut attr).map(|fd| owned(fd)) }
}

/// `union bpf_attr` of `BPF_LINK_CREATE` for a kprobe_multi link.
#[repr(C)]
#[derive(Default)]
struct KprobeMultiAttr {
    prog_fd: u32,
    target_fd: u32,
    attach_type: u32,
    link_flags: u32,
    flags: u32,
    count: u32,
    symbols: u64,
    addresses: u64,
    cookies: u64,
}

/// Runs a program that was loaded for [`super::prog::ATTACH_KPROBE_MULTI`] at the entry, or the return, of all these
/// functions of the kernel and its modules (5.18). All of them or none.
pub fn attach_kprobe_multi(prog: BorrowedFd<'_>, symbols: &[&str], ret: bool) -> io::Result<OwnedFd> {
    let names: Vec<CString> =
        symbols.iter().map(|name| CString::new(*name)).collect::<Result<_, _>>().map_err(io::Error::other)?;
    let pointers: Vec<u64> = names.iter().map(|name| name.as_ptr() as u64).collect();
    let mut attr = KprobeMultiAttr {
        prog_fd: prog.as_raw_fd() as u32,
        attach_type: super::prog::ATTACH_KPROBE_MULTI,
        flags: if ret { MULTI_RETURN } else { 0 },
        count: pointers.len() as u32,
        symbols: pointers.as_ptr() as u64,
        ..KprobeMultiAttr::default()
    };
    // SAFETY: the kernel reads `count` addresses of names that end in NUL and outlive the call; the other addresses are null.
    // The result is a new descriptor.
    unsafe { bpf(Command::LinkCreate, &mut attr).map(|fd| owned(fd)) }
}
