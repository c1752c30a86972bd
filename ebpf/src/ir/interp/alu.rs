//! Arithmetic and comparisons, as eBPF defines them.

use super::Trap;
use crate::ir::{AluOp, CmpOp};

pub(super) fn alu64(op: AluOp, a: u64, b: u64) -> u64 {
    match op {
        AluOp::Add => a.wrapping_add(b),
        AluOp::Sub => a.wrapping_sub(b),
        AluOp::Mul => a.wrapping_mul(b),
        AluOp::Div => a.checked_div(b).unwrap_or(0),
        AluOp::Mod => a.checked_rem(b).unwrap_or(a),
        AluOp::And => a & b,
        AluOp::Or => a | b,
        AluOp::Xor => a ^ b,
        AluOp::Shl => a.wrapping_shl(b as u32),
        AluOp::Shr => a.wrapping_shr(b as u32),
        AluOp::Sar => (a as i64).wrapping_shr(b as u32) as u64,
    }
}

pub(super) fn alu32(op: AluOp, a: u32, b: u32) -> u32 {
    match op {
        AluOp::Add => a.wrapping_add(b),
        AluOp::Sub => a.wrapping_sub(b),
        AluOp::Mul => a.wrapping_mul(b),
        AluOp::Div => a.checked_div(b).unwrap_or(0),
        AluOp::Mod => a.checked_rem(b).unwrap_or(a),
        AluOp::And => a & b,
        AluOp::Or => a | b,
        AluOp::Xor => a ^ b,
        AluOp::Shl => a.wrapping_shl(b),
        AluOp::Shr => a.wrapping_shr(b),
        AluOp::Sar => (a as i32).wrapping_shr(b) as u32,
    }
}

pub(super) fn extend(a: u64, bits: u8, signed: bool) -> Result<u64, Trap> {
    Ok(match (bits, signed) {
        (8, false) => u64::from(a as u8),
        (16, false) => u64::from(a as u16),
        (32, false) => u64::from(a as u32),
        (8, true) => a as i8 as u64,
        (16, true) => a as i16 as u64,
        (32, true) => a as i32 as u64,
        _ => return Err(Trap::new(format!("cannot extend {bits} bits"))),
    })
}

pub(super) fn swap(a: u64, bits: u8) -> Result<u64, Trap> {
    Ok(match bits {
        16 => (a as u16).swap_bytes().into(),
        32 => (a as u32).swap_bytes().into(),
        64 => a.swap_bytes(),
        _ => return Err(Trap::new(format!("cannot swap {bits} bits"))),
    })
}

pub(super) fn compare(op: CmpOp, a: u64, b: u64) -> bool {
    let (signed_a, signed_b) = (a as i64, b as i64);
    match op {
        CmpOp::Eq => a == b,
        CmpOp::Ne => a != b,
        CmpOp::Lt => a < b,
        CmpOp::Le => a <= b,
        CmpOp::Gt => a > b,
        CmpOp::Ge => a >= b,
        CmpOp::SLt => signed_a < signed_b,
        CmpOp::SLe => signed_a <= signed_b,
        CmpOp::SGt => signed_a > signed_b,
        CmpOp::SGe => signed_a >= signed_b,
        CmpOp::Test => a & b != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn division_by_zero_is_defined() {
        assert_eq!((alu64(AluOp::Div, 7, 0), alu64(AluOp::Mod, 7, 0)), (0, 7));
        assert_eq!((alu32(AluOp::Div, 7, 0), alu32(AluOp::Mod, 7, 0)), (0, 7));
        assert_eq!((alu64(AluOp::Div, u64::MAX, 2), alu64(AluOp::Mod, 7, 4)), (u64::MAX / 2, 3));
    }

    #[test]
    fn shift_counts_are_taken_modulo_the_width() {
        assert_eq!((alu64(AluOp::Shl, 1, 65), alu32(AluOp::Shl, 1, 33)), (2, 2));
        assert_eq!((alu64(AluOp::Shr, 4, 64), alu32(AluOp::Shr, 4, 32)), (4, 4));
        assert_eq!(alu64(AluOp::Sar, (-8i64) as u64, 1), (-4i64) as u64);
        assert_eq!(alu32(AluOp::Sar, 0x8000_0000, 31), u32::MAX);
        assert_eq!(alu64(AluOp::Shl, 1, u64::MAX), 1 << 63);
    }

    #[test]
    fn arithmetic_wraps() {
        assert_eq!((alu64(AluOp::Add, u64::MAX, 2), alu64(AluOp::Sub, 0, 1)), (1, u64::MAX));
        assert_eq!((alu32(AluOp::Add, u32::MAX, 2), alu32(AluOp::Sub, 0, 1)), (1, u32::MAX));
        assert_eq!((alu64(AluOp::Mul, 1 << 63, 2), alu32(AluOp::Mul, 1 << 31, 2)), (0, 0));
    }

    #[test]
    fn extensions_and_swaps() {
        assert_eq!(extend(0x1_80, 8, true), Ok(0xffff_ffff_ffff_ff80));
        assert_eq!(extend(0x1_80, 8, false), Ok(0x80));
        assert_eq!(extend(0xffff_ffff, 32, true), Ok(u64::MAX));
        assert_eq!(extend(0x1_8000, 16, true), Ok(0xffff_ffff_ffff_8000));
        assert!(extend(0, 64, false).is_err());
        assert_eq!(swap(0xff_1234, 16), Ok(0x3412));
        assert_eq!(swap(0xff_1234_5678, 32), Ok(0x7856_3412));
        assert_eq!(swap(0x1, 64), Ok(1 << 56));
        assert!(swap(0, 8).is_err());
    }

    #[test]
    fn comparisons_keep_signs_apart() {
        let minus = u64::MAX;
        assert!(compare(CmpOp::Gt, minus, 1) && compare(CmpOp::SLt, minus, 1));
        assert!(compare(CmpOp::Le, 1, 1) && compare(CmpOp::SGe, 1, 1) && !compare(CmpOp::SGt, 1, 1));
        assert!(compare(CmpOp::Test, 6, 2) && !compare(CmpOp::Test, 4, 3));
    }
}
