//! Where the registers of the interrupted code lie in the context of kprobes and uprobes: bytes into what user space knows
//! as `struct pt_regs` (`user_pt_regs` on arm64). The order is part of the kernel's interface with ptrace(2).

use super::Arch;

/// amd64: `r15 r14 r13 r12 bp bx r11 r10 r9 r8 ax cx dx si di orig_ax ip cs flags sp ss`, 8 bytes each.
const X86_64: [(&str, u32); 16] = [
    ("r15", 0),
    ("r14", 8),
    ("r13", 16),
    ("r12", 24),
    ("bp", 32),
    ("bx", 40),
    ("r11", 48),
    ("r10", 56),
    ("r9", 64),
    ("r8", 72),
    ("ax", 80),
    ("cx", 88),
    ("dx", 96),
    ("si", 104),
    ("di", 112),
    ("sp", 152),
];
/// arm64: `regs[31] sp pc pstate`.
const AARCH64_SP: u32 = 31 * 8;

impl Arch {
    /// Integer and pointer arguments of a C function at its entry, in order (System V amd64, AAPCS64).
    pub fn call_args(self) -> &'static [u32] {
        match self {
            Arch::X86_64 => &[112, 104, 96, 88, 72, 64],
            Arch::Aarch64 => &[0, 8, 16, 24, 32, 40, 48, 56],
        }
    }

    /// An integer or pointer that a C function returns.
    pub fn call_result(self) -> u32 {
        match self {
            Arch::X86_64 => 80,
            Arch::Aarch64 => 0,
        }
    }

    /// The register that an assembler's name means, without its `%`: where all of it lies. Narrower names of a register
    /// mean its low bits, which is where it begins.
    pub fn register(self, name: &str) -> Option<u32> {
        match self {
            Arch::X86_64 => {
                let whole = x86_whole(name);
                X86_64.iter().find(|(known, _)| *known == whole).map(|(_, offset)| *offset)
            }
            Arch::Aarch64 if name == "sp" => Some(AARCH64_SP),
            Arch::Aarch64 => {
                let number: u32 = name.strip_prefix(['x', 'w'])?.parse().ok()?;
                (number < 31).then_some(number * 8)
            }
        }
    }
}

/// The kernel's name of the whole register: `ax` for `rax`, `eax`, `ax` and `al`; `r8` for `r8d`. `ah` and the like are the
/// second byte, which no whole register begins with.
fn x86_whole(name: &str) -> &str {
    if let Some(rest) = name.strip_prefix('r')
        && rest.starts_with(|c: char| c.is_ascii_digit())
    {
        return name.strip_suffix(['d', 'w', 'b']).unwrap_or(name);
    }
    match name {
        "al" => "ax",
        "bl" => "bx",
        "cl" => "cx",
        "dl" => "dx",
        "sil" | "dil" | "bpl" | "spl" => &name[..2],
        _ => name.strip_prefix(['r', 'e']).filter(|rest| rest.len() == 2).unwrap_or(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_every_width_mean_one_register() {
        let x86 = |name| Arch::X86_64.register(name);
        for names in [
            ["rax", "eax", "ax", "al"],
            ["rsi", "esi", "si", "sil"],
            ["rbp", "ebp", "bp", "bpl"],
            ["r8", "r8d", "r8w", "r8b"],
            ["r15", "r15d", "r15w", "r15b"],
        ] {
            assert!(x86(names[0]).is_some());
            assert!(names.iter().all(|name| x86(name) == x86(names[0])), "{names:?}");
        }
        for none in ["ah", "bh", "xmm0", "rip", "eip", "cs", "", "r16", "axl", "ral", "r8dw", "é"] {
            assert_eq!(x86(none), None, "{none}");
        }
        let arm = |name| Arch::Aarch64.register(name);
        assert_eq!((arm("x0"), arm("w1"), arm("x30"), arm("sp")), (Some(0), Some(8), Some(240), Some(248)));
        assert_eq!((arm("x31"), arm("d0"), arm("xzr")), (None, None, None));
    }

    #[test]
    fn calls_follow_the_conventions() {
        let names = ["rdi", "rsi", "rdx", "rcx", "r8", "r9"];
        let places: Vec<u32> = names.iter().filter_map(|name| Arch::X86_64.register(name)).collect();
        assert_eq!(places, Arch::X86_64.call_args());
        assert_eq!(Arch::X86_64.register("rax"), Some(Arch::X86_64.call_result()));
        assert_eq!(Arch::Aarch64.register("x7"), Arch::Aarch64.call_args().last().copied());
    }
}
