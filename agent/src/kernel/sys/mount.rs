//! Mounts in a private namespace, and files below a directory descriptor.

use super::owned;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

fn c_string(text: &str) -> io::Result<CString> {
    CString::new(text).map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a NUL byte in a path"))
}

/// Mounts a file system without putting it anywhere: the root is reachable through the descriptor alone and the mount
/// goes away with it (5.2).
pub fn detached_mount(file_system: &str) -> io::Result<OwnedFd> {
    const FSOPEN_CLOEXEC: libc::c_long = 1;
    const FSCONFIG_CMD_CREATE: libc::c_long = 6;
    const FSMOUNT_CLOEXEC: libc::c_long = 1;
    let name = c_string(file_system)?;
    let check = |r: libc::c_long| if r < 0 { Err(io::Error::last_os_error()) } else { Ok(r as i32) };
    // SAFETY: `name` outlives the call; descriptors that the calls return are new and ours.
    unsafe {
        let context = owned(check(libc::syscall(libc::SYS_fsopen, name.as_ptr(), FSOPEN_CLOEXEC))?);
        let null = std::ptr::null::<libc::c_char>();
        check(libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), FSCONFIG_CMD_CREATE, null, null, 0))?;
        Ok(owned(check(libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), FSMOUNT_CLOEXEC, 0))?))
    }
}

/// Opens a file or directory below `root` for reading.
pub fn open_below(root: BorrowedFd<'_>, path: &str) -> io::Result<File> {
    let path = c_string(path)?;
    // SAFETY: `path` outlives the call; the result is a new descriptor.
    unsafe {
        let fd = libc::openat(root.as_raw_fd(), path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(File::from(owned(fd))) }
    }
}

/// The kind of file system a descriptor lies on (`statfs.f_type`).
pub fn file_system_magic(fd: BorrowedFd<'_>) -> io::Result<i64> {
    // SAFETY: all-zero bytes are a valid `statfs`, and the call writes one.
    unsafe {
        let mut found: libc::statfs = std::mem::zeroed();
        if libc::fstatfs(fd.as_raw_fd(), &mut found) < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(found.f_type as i64)
        }
    }
}
