//! Functions whose frames are known to the instruction: written in assembly, so that no compiler inlines them, merges them or
//! leaves out their frame pointers, and with system calls of their own, as those of libc have no frame.

use std::arch::naked_asm;
use std::time::Duration;

/// Counts down to 0 from a number that is not 0.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub extern "C" fn kst_burn_three(rounds: u64) {
    #[cfg(target_arch = "x86_64")]
    naked_asm!("2: sub rdi, 1", "jnz 2b", "ret");
    #[cfg(target_arch = "aarch64")]
    naked_asm!("2: subs x0, x0, #1", "b.ne 2b", "ret");
}

/// The same, elsewhere.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub extern "C" fn kst_burn_one(rounds: u64) {
    #[cfg(target_arch = "x86_64")]
    naked_asm!("2: sub rdi, 1", "nop", "jnz 2b", "ret");
    #[cfg(target_arch = "aarch64")]
    naked_asm!("2: subs x0, x0, #1", "nop", "b.ne 2b", "ret");
}

/// Sleeps in [`kst_inner_wait`].
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub extern "C" fn kst_outer_wait(time: &libc::timespec) -> i64 {
    #[cfg(target_arch = "x86_64")]
    naked_asm!("push rbp", "mov rbp, rsp", "call {inner}", "pop rbp", "ret", inner = sym kst_inner_wait);
    #[cfg(target_arch = "aarch64")]
    naked_asm!("stp x29, x30, [sp, #-16]!", "mov x29, sp", "bl {inner}", "ldp x29, x30, [sp], #16", "ret",
               inner = sym kst_inner_wait);
}

/// Sleeps by `nanosleep(2)`; 0 when for all of the time.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub extern "C" fn kst_inner_wait(time: &libc::timespec) -> i64 {
    #[cfg(target_arch = "x86_64")]
    naked_asm!("push rbp", "mov rbp, rsp", "xor esi, esi", "mov eax, {number}", "syscall", "pop rbp", "ret",
               number = const libc::SYS_nanosleep);
    #[cfg(target_arch = "aarch64")]
    naked_asm!("stp x29, x30, [sp, #-16]!", "mov x29, sp", "mov x1, #0", "mov x8, {number}", "svc #0",
               "ldp x29, x30, [sp], #16", "ret", number = const libc::SYS_nanosleep);
}

/// A function that calls `inner` with its first argument, below one frame of itself for each bit of its second, which is not 0.
/// A bit decides from which of two places it calls itself: every path is a stack of its own.
macro_rules! below_a_path {
    ($again:ident, $inner:path) => {
        #[cfg(target_arch = "x86_64")]
        naked_asm!("push rbp", "mov rbp, rsp", "shr rsi, 1", "jz 3f", "jc 2f", "call {again}", "pop rbp", "ret",
                   "2: call {again}", "pop rbp", "ret", "3: call {inner}", "pop rbp", "ret",
                   again = sym $again, inner = sym $inner);
        #[cfg(target_arch = "aarch64")]
        naked_asm!("stp x29, x30, [sp, #-16]!", "mov x29, sp", "mov x2, x1", "lsr x1, x1, #1", "cbz x1, 3f",
                   "tbnz x2, #0, 2f", "bl {again}", "ldp x29, x30, [sp], #16", "ret",
                   "2: bl {again}", "ldp x29, x30, [sp], #16", "ret",
                   "3: bl {inner}", "ldp x29, x30, [sp], #16", "ret", again = sym $again, inner = sym $inner);
    };
}

/// Sleeps in [`kst_inner_wait`] below frames of its own.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub extern "C" fn kst_descend(time: &libc::timespec, path: u64) -> i64 {
    below_a_path! {kst_descend, kst_inner_wait}
}

/// Counts down in [`kst_burn_three`] below frames of its own.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub extern "C" fn kst_dig(rounds: u64, path: u64) {
    below_a_path! {kst_dig, kst_burn_three}
}

/// As the kernel takes it.
pub fn timespec(time: Duration) -> libc::timespec {
    *nix::sys::time::TimeSpec::from(time).as_ref()
}
