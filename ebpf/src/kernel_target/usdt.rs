//! Where the arguments of a static probe point are, as its note says in the assembler's words: `-4@%edi 8@-16(%rbp) 4@$5`.

use super::Arch;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Argument {
    /// 1, 2, 4 or 8.
    pub bytes: u8,
    /// Two's complement.
    pub signed: bool,
    /// Where it is.
    pub operand: Operand,
}

/// Where a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    Constant(i64),
    /// The low bytes of the register at this byte of the context.
    Register(u32),
    /// In the process's memory, at `base + index * scale + displacement`.
    Memory {
        /// Register at this byte of the context.
        base: u32,
        /// Another one and its factor.
        index: Option<(u32, u8)>,
        /// Bytes.
        displacement: i32,
    },
}

/// Why an argument cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArgumentError {
    /// The word of the note.
    #[error("`{0}` is no place that this version understands")]
    NotUnderstood(String),
    /// A number of such a size.
    #[error("it is a floating-point number")]
    Float,
    /// xmm on x86.
    #[error("it lies in a floating-point register")]
    FloatRegister,
    /// `pt_regs` has none of this name.
    #[error("no register `%{0}` is kept")]
    NoRegister(String),
    /// Addressed relative to the instruction pointer.
    #[error("it lies in a variable of the program, whose place differs in each process")]
    Variable,
}

/// Most arguments a probe point can have.
pub const MAX_ARGUMENTS: usize = 12;

/// All arguments of a note.
pub fn arguments(text: &str, arch: Arch) -> Vec<Result<Argument, ArgumentError>> {
    words(text).into_iter().take(MAX_ARGUMENTS).map(|word| argument(word, arch)).collect()
}

/// Parts between spaces; one inside brackets (`8@[sp, 16]`) separates nothing.
fn words(text: &str) -> Vec<&str> {
    let mut open = false;
    let separates = |c: char| {
        match c {
            '[' | '(' => open = true,
            ']' | ')' => open = false,
            _ => {}
        }
        c == ' ' && !open
    };
    text.split(separates).filter(|word| !word.is_empty()).collect()
}

fn argument(word: &str, arch: Arch) -> Result<Argument, ArgumentError> {
    let unclear = || ArgumentError::NotUnderstood(word.to_owned());
    let (size, place) = word.split_once('@').ok_or_else(unclear)?;
    let (signed, digits) = size.strip_prefix('-').map_or((false, size), |digits| (true, digits));
    if digits.ends_with('f') {
        return Err(ArgumentError::Float);
    }
    let bytes = match digits {
        "1" => 1,
        "2" => 2,
        "4" => 4,
        "8" => 8,
        _ => return Err(unclear()),
    };
    let operand = match arch {
        Arch::X86_64 => x86(place, arch),
        Arch::Aarch64 => arm(place, arch),
    };
    Ok(Argument { bytes, signed, operand: operand.map_err(|why| why.unwrap_or_else(unclear))? })
}

/// The error is a reason when there is a better one than that it is not understood.
type Place = Result<Operand, Option<ArgumentError>>;

/// `$5`, `%eax`, `-16(%rbp)`, `8(%rax,%rdx,4)`.
fn x86(place: &str, arch: Arch) -> Place {
    if let Some(constant) = place.strip_prefix('$') {
        return number(constant).map(Operand::Constant).ok_or(None);
    }
    let register = |name: &str| {
        let name = name.trim().strip_prefix('%').ok_or(None)?;
        if name.starts_with("xmm") {
            return Err(Some(ArgumentError::FloatRegister));
        }
        arch.register(name).ok_or_else(|| Some(ArgumentError::NoRegister(name.to_owned())))
    };
    let Some((displacement, rest)) = place.split_once('(') else { return register(place).map(Operand::Register) };
    let inside = rest.strip_suffix(')').ok_or(None)?;
    // Whatever stands before it: `table+8(%rip)`.
    if inside == "%rip" {
        return Err(Some(ArgumentError::Variable));
    }
    let displacement = match displacement {
        "" => 0,
        text => number(text).and_then(|n| i32::try_from(n).ok()).ok_or(None)?,
    };
    let mut parts = inside.split(',');
    let base = register(parts.next().unwrap_or_default())?;
    let index = match (parts.next(), parts.next()) {
        (None, _) => None,
        (Some(index), scale) => {
            let scale = scale.map_or(Some(1), |s| s.trim().parse().ok()).filter(|s| matches!(s, 1 | 2 | 4 | 8));
            Some((register(index)?, scale.ok_or(None)?))
        }
    };
    Ok(Operand::Memory { base, index, displacement })
}

/// `5`, `x1`, `[sp, 16]`, `[x0]`.
fn arm(place: &str, arch: Arch) -> Place {
    if let Some(inside) = place.strip_prefix('[') {
        let inside = inside.strip_suffix(']').ok_or(None)?;
        let (base, displacement) = inside.split_once(',').unwrap_or((inside, "0"));
        let base = arch.register(base.trim()).ok_or(None)?;
        let displacement = number(displacement.trim().trim_start_matches('#'));
        let displacement = displacement.and_then(|n| i32::try_from(n).ok()).ok_or(None)?;
        return Ok(Operand::Memory { base, index: None, displacement });
    }
    let constant = || number(place.trim_start_matches('#')).map(Operand::Constant);
    arch.register(place).map(Operand::Register).or_else(constant).ok_or(None)
}

/// Decimal or `0x` hexadecimal, perhaps negative; constants above the largest signed number are the same 64 bits.
fn number(text: &str) -> Option<i64> {
    let (negative, digits) = text.strip_prefix('-').map_or((false, text), |digits| (true, digits));
    let value = match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok()?,
        None => digits.parse::<u64>().ok()?,
    };
    Some(if negative { (value as i64).wrapping_neg() } else { value as i64 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str, arch: Arch) -> Result<Argument, ArgumentError> {
        let mut all = arguments(text, arch);
        assert_eq!(all.len(), 1, "{text}");
        all.remove(0)
    }

    fn place(text: &str) -> Operand {
        one(text, Arch::X86_64).unwrap().operand
    }

    #[test]
    fn places_on_amd64() {
        let memory = |base, index, displacement| Operand::Memory { base, index, displacement };
        assert_eq!(
            one("-4@%edi", Arch::X86_64),
            Ok(Argument { bytes: 4, signed: true, operand: Operand::Register(112) })
        );
        assert_eq!(place("8@%rbx"), Operand::Register(40));
        assert_eq!(place("1@%al"), Operand::Register(80));
        assert_eq!(place("4@$5"), Operand::Constant(5));
        assert_eq!(place("-8@$-5"), Operand::Constant(-5));
        assert_eq!(place("8@$0xffffffffffffffff"), Operand::Constant(-1));
        assert_eq!(place("8@-16(%rbp)"), memory(32, None, -16));
        assert_eq!(place("8@(%rax)"), memory(80, None, 0));
        assert_eq!(place("8@0x10(%rax)"), memory(80, None, 16));
        assert_eq!(place("4@8(%rax,%rdx,4)"), memory(80, Some((96, 4)), 8));
        assert_eq!(place("4@(%rax,%rdx)"), memory(80, Some((96, 1)), 0));
    }

    #[test]
    fn places_on_arm64() {
        let memory = |base, displacement| Operand::Memory { base, index: None, displacement };
        let all = arguments("-4@x1 8@[sp, 16] 8@[x0] 4@5 -8@w2", Arch::Aarch64);
        let places: Vec<Operand> = all.into_iter().map(|a| a.unwrap().operand).collect();
        let register = Operand::Register;
        assert_eq!(places, [register(8), memory(248, 16), memory(0, 0), Operand::Constant(5), register(16)]);
    }

    #[test]
    fn what_cannot_be_read_says_why() {
        let why = |text| one(text, Arch::X86_64).unwrap_err().to_string();
        assert!(why("8@table+8(%rip)").contains("variable of the program"));
        assert_eq!(why("8f@%xmm0"), "it is a floating-point number");
        assert_eq!(why("8@%xmm0"), "it lies in a floating-point register");
        assert_eq!(why("1@%ah"), "no register `%ah` is kept");
        for unclear in ["%rax", "3@%rax", "8@", "8@(%rax", "8@(%rax,%rdx,3)", "8@99999999999(%rax)", "@", "8@$x"] {
            assert_eq!(why(unclear), format!("`{unclear}` is no place that this version understands"));
        }
    }

    #[test]
    fn a_list_is_split_and_bounded() {
        assert_eq!(arguments("", Arch::X86_64), []);
        assert_eq!(arguments(" 8@%rbx  8@%r15 ", Arch::X86_64).len(), 2);
        assert_eq!(arguments(&"4@$1 ".repeat(100), Arch::X86_64).len(), MAX_ARGUMENTS);
    }
}
