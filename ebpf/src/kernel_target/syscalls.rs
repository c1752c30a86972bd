//! System calls by name on architectures and kernels other than the one described: architectures lack some (arm64 has
//! `ppoll` and no `poll`), and so do older kernels.

use ::syscalls::{aarch64, x86_64};
use std::str::FromStr;

/// The value of `SYS_name` where the kernel has no such call. Not -1, which the kernel puts in place of a call that ptrace(2) or
/// seccomp(2) took away.
pub const NO_SYSTEM_CALL: u32 = u32::MAX - 1;

/// Whether Linux has a system call of this name on some architecture that kstrobe runs on.
pub fn is_system_call(name: &str) -> bool {
    x86_64::Sysno::from_str(name).is_ok() || aarch64::Sysno::from_str(name).is_ok()
}
