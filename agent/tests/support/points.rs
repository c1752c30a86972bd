//! A function with a static probe point whose every argument is known: written in assembly with the note that
//! `<sys/sdt.h>` makes of a `DTRACE_PROBE`, and its semaphore.

use std::arch::naked_asm;

/// What the next instruction after the probe point is at, as `+BYTES` from [`kst_steps`].
pub const BEYOND: &str = if cfg!(target_arch = "x86_64") { "+5" } else { "+8" };

/// The semaphore has a page of its own: lld's files have one in which relocated constants end and data begins, which is mapped
/// twice, and the kernel counts in the mapping that comes first.
///
/// The note: where its point is, that it has a semaphore, and where its arguments are: 8 bytes in a register, 4 with a sign,
/// 1 without, 8 in memory behind an address, and a constant.
macro_rules! with_note {
    ($arguments:literal, $($code:literal),+) => {
        naked_asm!(
            $($code,)+
            ".pushsection .note.stapsdt, \"\", \"note\"",
            ".balign 4",
            ".4byte 992f-991f, 994f-993f, 3",
            "991: .asciz \"stapsdt\"",
            "992: .balign 4",
            "993: .8byte 990b",
            ".8byte _.stapsdt.base",
            ".8byte kst_semaphore",
            ".asciz \"kst\"",
            ".asciz \"step\"",
            concat!(".asciz \"", $arguments, "\""),
            "994: .balign 4",
            ".popsection",
            ".pushsection .stapsdt.base, \"aG\", \"progbits\", .stapsdt.base, comdat",
            ".weak _.stapsdt.base",
            ".hidden _.stapsdt.base",
            "_.stapsdt.base: .space 1",
            ".size _.stapsdt.base, 1",
            ".popsection",
            ".pushsection .probes, \"aw\"",
            ".globl kst_semaphore",
            ".type kst_semaphore, @object",
            ".balign 4096",
            "kst_semaphore: .2byte 0",
            ".size kst_semaphore, 2",
            ".popsection",
        )
    };
}

/// `whole` and 5. The probe point `kst:step` lies behind the addition.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub extern "C" fn kst_steps(whole: u64, signed: i32, byte: u8, memory: &[u64; 2]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    with_note!("8@%rdi -4@%esi 1@%dl 8@8(%rcx) -4@$-3", "add rdi, 5", "990: nop", "mov rax, rdi", "ret");
    #[cfg(target_arch = "aarch64")]
    with_note!("8@x0 -4@w1 1@w2 8@[x3, 8] -4@-3", "add x0, x0, #5", "990: nop", "nop", "ret");
}

/// How many listen to the point: its semaphore, which the kernel counts up and down.
#[unsafe(naked)]
pub extern "C" fn kst_listeners() -> u16 {
    #[cfg(target_arch = "x86_64")]
    naked_asm!("movzx eax, word ptr [rip + kst_semaphore]", "ret");
    #[cfg(target_arch = "aarch64")]
    naked_asm!("adrp x0, kst_semaphore", "ldrh w0, [x0, :lo12:kst_semaphore]", "ret");
}
