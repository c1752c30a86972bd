//! The cheapest form of arithmetic with a constant.

use crate::isa::{Alu, Width};

/// How to compute `a op constant`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The result is this constant, whatever `a` is.
    Const(i64),
    /// The result is `a` (its low half for 32-bit arithmetic).
    Same,
    /// The result is the low half of `a`.
    Zext,
    /// `a op imm`.
    Imm(Alu, i32),
    /// `a op constant`, the constant in a register.
    Reg,
}

/// Chooses. The verifier refuses a constant divisor of 0 and constant shifts past the width, so neither may remain.
pub fn with_constant(width: Width, op: Alu, constant: i64) -> Form {
    let bits = match width {
        Width::W64 => 64,
        Width::W32 => 32,
    };
    // Zero-extended, the constant as this width sees it.
    let value = match width {
        Width::W64 => constant as u64,
        Width::W32 => u64::from(constant as u32),
    };
    let shift = (value.is_power_of_two()).then(|| value.trailing_zeros() as i32);
    match (op, shift) {
        (Alu::Lsh | Alu::Rsh | Alu::Arsh, _) => match value % bits {
            0 => Form::Same,
            count => Form::Imm(op, count as i32),
        },
        (Alu::Mul, _) | (Alu::And, _) if value == 0 => Form::Const(0),
        (Alu::Div, _) if value == 0 => Form::Const(0),
        (Alu::Mod, _) if value == 0 => Form::Same,
        (Alu::Mod, _) if value == 1 => Form::Const(0),
        (Alu::Add | Alu::Sub | Alu::Or | Alu::Xor, _) if value == 0 => Form::Same,
        (Alu::Mul | Alu::Div, Some(0)) => Form::Same,
        (Alu::Mul, Some(shift)) => Form::Imm(Alu::Lsh, shift),
        (Alu::Div, Some(shift)) => Form::Imm(Alu::Rsh, shift),
        (Alu::Mod, Some(_)) => with_constant(width, Alu::And, (value - 1) as i64),
        (Alu::And, _) if value == u64::from(u32::MAX) => Form::Zext,
        // A 64-bit subtraction of i32::MIN has no positive twin that fits; all others become additions, as compilers do.
        (Alu::Sub, _) if i32::try_from((value as i64).wrapping_neg()).is_ok() => {
            Form::Imm(Alu::Add, (value as i64).wrapping_neg() as i32)
        }
        _ => match (width, i32::try_from(constant)) {
            (Width::W32, _) => Form::Imm(op, value as u32 as i32),
            (Width::W64, Ok(imm)) => Form::Imm(op, imm),
            (Width::W64, Err(_)) => Form::Reg,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms() {
        use Form::*;
        use Width::*;
        let cases = [
            (W64, Alu::Mul, 8, Imm(Alu::Lsh, 3)),
            (W64, Alu::Mul, 0, Const(0)),
            (W64, Alu::Mul, 1, Same),
            (W64, Alu::Div, 0, Const(0)),
            (W64, Alu::Div, 1 << 40, Imm(Alu::Rsh, 40)),
            (W64, Alu::Div, 10, Imm(Alu::Div, 10)),
            (W64, Alu::Mod, 0, Same),
            (W64, Alu::Mod, 8, Imm(Alu::And, 7)),
            (W64, Alu::Mod, 1 << 32, Zext),
            (W64, Alu::And, 0xffff_ffff, Zext),
            (W32, Alu::And, 0xffff_ffff, Zext),
            (W64, Alu::And, 1 << 40, Reg),
            (W64, Alu::Lsh, 65, Imm(Alu::Lsh, 1)),
            (W32, Alu::Rsh, 32, Same),
            (W64, Alu::Add, i64::MAX, Reg),
            (W32, Alu::Add, 0xffff_ffff, Imm(Alu::Add, -1)),
            (W64, Alu::Sub, 5, Imm(Alu::Add, -5)),
            (W64, Alu::Sub, i64::from(i32::MIN), Imm(Alu::Sub, i32::MIN)),
            (W64, Alu::Sub, 1 << 31, Imm(Alu::Add, i32::MIN)),
            (W64, Alu::Xor, -1, Imm(Alu::Xor, -1)),
        ];
        for (width, op, constant, expected) in cases {
            assert_eq!(with_constant(width, op, constant), expected, "{width:?} {op:?} {constant}");
        }
    }
}
