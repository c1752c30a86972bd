//! Links: descriptors that keep a program attached until they are closed.

use super::{Command, bpf, owned};
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// `BPF_F_KPROBE_MULTI_RETURN`, and the same bit for uprobes.
const MULTI_RETURN: u32 = 1;

/// `union bpf_attr` of `BPF_RAW_TRACEPOINT_OPEN`.
#[repr(C)]
struct TracepointAttr {
    name: u64,
    prog_fd: u32,
    pad: u32,
}

/// Attaches a program to a raw tracepoint by its name (4.17).
pub fn attach_raw_tracepoint(prog: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    let name = CString::new(name).map_err(io::Error::other)?;
    let mut attr = TracepointAttr { name: name.as_ptr() as u64, prog_fd: prog.as_raw_fd() as u32, pad: 0 };
    // SAFETY: the name ends in NUL and outlives the call. The result is a new descriptor.
    unsafe { bpf(Command::RawTracepointOpen, &mut attr).map(|fd| owned(fd)) }
}

/// Attaches a tracing program to what it was loaded for (5.5).
pub fn attach_tracing(prog: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut attr = TracepointAttr { name: 0, prog_fd: prog.as_raw_fd() as u32, pad: 0 };
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

/// A link of a program at an iterator; closed when dropped.
#[derive(Debug)]
pub struct Iterator(OwnedFd);

/// Readies a program that was loaded for [`super::prog::ATTACH_TRACE_ITER`]: it runs when [`Iterator::run`] reads (5.8).
pub fn attach_iterator(prog: BorrowedFd<'_>) -> io::Result<Iterator> {
    #[repr(C)]
    struct Attr {
        prog_fd: u32,
        target_fd: u32,
        attach_type: u32,
        flags: u32,
    }
    let attach_type = super::prog::ATTACH_TRACE_ITER;
    let mut attr = Attr { prog_fd: prog.as_raw_fd() as u32, target_fd: 0, attach_type, flags: 0 };
    // SAFETY: the structure holds no addresses. The result is a new descriptor.
    unsafe { bpf(Command::LinkCreate, &mut attr).map(|fd| Iterator(owned(fd))) }
}

impl Iterator {
    /// Runs the program once per object, and once more at the end. Objects are those of the namespaces that this thread is in.
    pub fn run(&self) -> io::Result<()> {
        #[repr(C)]
        struct Attr {
            link_fd: u32,
            flags: u32,
        }
        let mut attr = Attr { link_fd: self.0.as_raw_fd() as u32, flags: 0 };
        // SAFETY: the structure holds no addresses. The result is a new descriptor.
        let mut file = File::from(unsafe { bpf(Command::IterCreate, &mut attr).map(|fd| owned(fd)) }?);
        // Our programs write nothing; what there is to read is the end.
        let mut nothing = [0; 64];
        loop {
            match file.read(&mut nothing) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                // After a million objects without output the kernel wants to be asked again.
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
        }
    }
}
