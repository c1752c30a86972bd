//! BTF that the kernel has loaded.

use super::{Command, bpf, owned};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Longer than any module's name (`MODULE_NAME_LEN` is 56).
const NAME_BYTES: usize = 64;

/// `struct bpf_btf_info`
#[repr(C)]
#[derive(Default)]
struct Info {
    btf: u64,
    bytes: u32,
    id: u32,
    name: u64,
    name_bytes: u32,
    kernel: u32,
}

/// A module's BTF by the module's name (5.11). Walks all BTF there is, of programs too; needs `CAP_SYS_ADMIN`.
pub fn of_module(module: &str) -> io::Result<OwnedFd> {
    let mut id = 0;
    loop {
        id = next_id(id)?;
        match by_id(id) {
            Ok(fd) if is_of(fd.as_fd(), module)? => return Ok(fd),
            Ok(_) => {}
            // Gone since its number was read.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
            Err(error) => return Err(error),
        }
    }
}

/// The number that follows; `ENOENT` at the end.
fn next_id(after: u32) -> io::Result<u32> {
    let mut attr = [after, 0, 0, 0];
    // SAFETY: `start_id`, `next_id`, `open_flags` and padding are plain numbers.
    unsafe { bpf(Command::BtfNextId, &mut attr)? };
    Ok(attr[1])
}

fn by_id(id: u32) -> io::Result<OwnedFd> {
    let mut attr = [id, 0, 0, 0];
    // SAFETY: `btf_id`, `next_id`, `open_flags` and padding are plain numbers; the result is a new descriptor.
    unsafe { bpf(Command::BtfFdById, &mut attr).map(|fd| owned(fd)) }
}

fn is_of(btf: BorrowedFd<'_>, module: &str) -> io::Result<bool> {
    let mut name = [0u8; NAME_BYTES];
    let mut info = Info { name: name.as_mut_ptr() as u64, name_bytes: NAME_BYTES as u32, ..Info::default() };
    // SAFETY: `name` is valid for the bytes given and outlives the call; the address of the data is null.
    unsafe { super::info(btf, &mut info)? };
    let end = name.iter().position(|b| *b == 0).unwrap_or(NAME_BYTES);
    Ok(info.kernel == 1 && &name[..end] == module.as_bytes())
}
