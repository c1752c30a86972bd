//! Instructions to bytes and back. Targets are little-endian (x86-64, arm64).

use super::insn::{Insn, Reg};
use super::table::Row;

pub const SLOT_BYTES: u32 = 8;

/// The bytes of a program.
pub fn encode(insns: &[Insn]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(insns.len() * SLOT_BYTES as usize);
    for insn in insns {
        let row = Row::of(insn.op);
        let src = row.src.unwrap_or(insn.src.number());
        slot(&mut bytes, row.code, insn.dst.number() | src << 4, insn.off, insn.imm as u32);
        if insn.op.is_wide() {
            slot(&mut bytes, 0, 0, 0, (insn.imm as u64 >> 32) as u32);
        }
    }
    bytes
}

fn slot(bytes: &mut Vec<u8>, code: u8, registers: u8, off: i16, imm: u32) {
    bytes.extend([code, registers]);
    bytes.extend(off.to_le_bytes());
    bytes.extend(imm.to_le_bytes());
}

/// The program in slots, as BPF_PROG_LOAD takes it.
pub fn slots(insns: &[Insn]) -> Vec<u64> {
    encode(insns).as_chunks::<8>().0.iter().map(|slot| u64::from_le_bytes(*slot)).collect()
}

/// The program in slots, as [`decode`].
pub fn decode_slots(slots: &[u64]) -> Result<Vec<Insn>, DecodeError> {
    decode(&slots.iter().flat_map(|slot| slot.to_le_bytes()).collect::<Vec<u8>>())
}

/// Why bytes are no program of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// The bytes end inside an instruction.
    Truncated,
    /// The table has no such code; the slot's number.
    Unknown(u32),
    /// A register above `r10`; the slot's number.
    Register(u32),
}

impl std::fmt::Display for DecodeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DecodeError::Truncated => write!(f, "the bytes end inside an instruction"),
            DecodeError::Unknown(slot) => write!(f, "unknown instruction in slot {slot}"),
            DecodeError::Register(slot) => write!(f, "no such register in slot {slot}"),
        }
    }
}

impl std::error::Error for DecodeError {}

/// The program in `bytes`.
pub fn decode(bytes: &[u8]) -> Result<Vec<Insn>, DecodeError> {
    let (slots, rest) = bytes.as_chunks::<8>();
    if !rest.is_empty() {
        return Err(DecodeError::Truncated);
    }
    let mut insns = Vec::new();
    let mut slots = slots.iter().zip(0u32..);
    while let Some((bytes, at)) = slots.next() {
        let [code, registers, off0, off1, imm @ ..] = *bytes;
        let (dst, src) = (registers & 0xf, registers >> 4);
        let row = Row::decode(code, src).ok_or(DecodeError::Unknown(at))?;
        let src = if row.src.is_some() { 0 } else { src };
        let register = |number| Reg::of(number).ok_or(DecodeError::Register(at));
        let mut imm = i64::from(i32::from_le_bytes(imm));
        if row.op.is_wide() {
            let (high, _) = slots.next().ok_or(DecodeError::Truncated)?;
            let high = u32::from_le_bytes([high[4], high[5], high[6], high[7]]);
            imm = (u64::from(high) << 32 | u64::from(imm as u32)) as i64;
        }
        let off = i16::from_le_bytes([off0, off1]);
        insns.push(Insn { op: row.op, dst: register(dst)?, src: register(src)?, off, imm });
    }
    Ok(insns)
}

#[cfg(test)]
mod tests {
    use super::super::insn::{Alu, Jump, Op, Width};
    use super::super::table::TABLE;
    use super::*;
    use crate::ir::Size;

    /// An instruction with every field that its row uses set to something telling.
    fn filled(row: &Row) -> Insn {
        let dst = if row.uses("d") || row.uses("wd") { Reg::R3 } else { Reg::R0 };
        let src = if row.uses("s") || row.uses("ws") { Reg::R10 } else { Reg::R0 };
        let off = if row.uses("off") || row.uses("pc") { -264 } else { 0 };
        let imm = match row.op {
            op if op.is_wide() => 0x0123_4567_89ab_cdef,
            Op::ToBe => 32,
            _ if row.uses("imm") || row.uses("hex") || row.uses("helper") => -2,
            _ => 0,
        };
        Insn { op: row.op, dst, src, off, imm }
    }

    #[test]
    fn every_row_survives_encode_and_decode_and_no_two_collide() {
        for row in TABLE {
            let insn = filled(row);
            assert_eq!(decode(&encode(&[insn])), Ok(vec![insn]), "{row:?}");
            assert_eq!(Row::of(row.op).code, row.code, "two rows for {:?}", row.op);
            let twins = TABLE.iter().filter(|r| r.code == row.code && (r.src == row.src || r.src.is_none())).count();
            assert_eq!(twins, 1, "two rows for code {:#x}", row.code);
        }
        let program: Vec<Insn> = TABLE.iter().map(filled).collect();
        assert_eq!(decode(&encode(&program)), Ok(program));
    }

    #[test]
    fn known_bytes() {
        // As `llvm-objdump` shows them for the same assembly text.
        let cases: &[(Insn, &[u8])] = &[
            (Insn::alu_imm(Width::W64, Alu::Mov, Reg::R1, 5), &[0xb7, 0x01, 0, 0, 5, 0, 0, 0]),
            (Insn::mov(Reg::R6, Reg::R1), &[0xbf, 0x16, 0, 0, 0, 0, 0, 0]),
            (Insn::alu_reg(Width::W32, Alu::Mov, Reg::R1, Reg::R1), &[0xbc, 0x11, 0, 0, 0, 0, 0, 0]),
            (Insn::alu_imm(Width::W64, Alu::Add, Reg::R2, -8), &[0x07, 0x02, 0, 0, 0xf8, 0xff, 0xff, 0xff]),
            (Insn::alu_imm(Width::W64, Alu::Arsh, Reg::R2, 48), &[0xc7, 0x02, 0, 0, 48, 0, 0, 0]),
            (Insn::ldx(Size::B8, Reg::R3, Reg::R10, -16), &[0x79, 0xa3, 0xf0, 0xff, 0, 0, 0, 0]),
            (Insn::ldx(Size::B1, Reg::R3, Reg::R1, 4), &[0x71, 0x13, 4, 0, 0, 0, 0, 0]),
            (Insn::stx(Size::B2, Reg::R10, -2, Reg::R0), &[0x6b, 0x0a, 0xfe, 0xff, 0, 0, 0, 0]),
            (Insn::st(Size::B4, Reg::R0, 8, -1), &[0x62, 0x00, 8, 0, 0xff, 0xff, 0xff, 0xff]),
            (Insn::atomic_add(Reg::R0, 16, Reg::R1), &[0xdb, 0x10, 16, 0, 0, 0, 0, 0]),
            (Insn::fetch_add(Reg::R0, 16, Reg::R1), &[0xdb, 0x10, 16, 0, 1, 0, 0, 0]),
            (Insn::to_be(Reg::R4, 16), &[0xdc, 0x04, 0, 0, 16, 0, 0, 0]),
            (Insn { off: 3, ..Insn::jmp_imm(Jump::Eq, Reg::R0, 0) }, &[0x15, 0x00, 3, 0, 0, 0, 0, 0]),
            (Insn { off: -1, ..Insn::jmp_reg(Jump::SGt, Reg::R1, Reg::R2) }, &[0x6d, 0x21, 0xff, 0xff, 0, 0, 0, 0]),
            (Insn::ja(2), &[0x05, 0, 2, 0, 0, 0, 0, 0]),
            (Insn::call(1), &[0x85, 0, 0, 0, 1, 0, 0, 0]),
            (Insn::call_kfunc(0x1_e240), &[0x85, 0x20, 0, 0, 0x40, 0xe2, 1, 0]),
            (Insn::call_local(7), &[0x85, 0x10, 0, 0, 7, 0, 0, 0]),
            (Insn::ld_map(Reg::R2, 9), &[0x18, 0x12, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            (Insn::ld_map_value(Reg::R1, 9, 16), &[0x18, 0x21, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0]),
            (Insn::exit(), &[0x95, 0, 0, 0, 0, 0, 0, 0]),
            (
                Insn::ld_imm64(Reg::R1, 0x1122_3344_5566_7788),
                &[0x18, 0x01, 0, 0, 0x88, 0x77, 0x66, 0x55, 0, 0, 0, 0, 0x44, 0x33, 0x22, 0x11],
            ),
        ];
        for (insn, bytes) in cases {
            assert_eq!(encode(&[*insn]), *bytes, "{insn:?}");
        }
    }

    #[test]
    fn what_is_no_program_is_refused() {
        assert_eq!(decode(&[0x95; 7]), Err(DecodeError::Truncated));
        assert_eq!(decode(&[0xff, 0, 0, 0, 0, 0, 0, 0]), Err(DecodeError::Unknown(0)));
        assert_eq!(decode(&[0xb7, 0x0b, 0, 0, 0, 0, 0, 0]), Err(DecodeError::Register(0)));
        assert_eq!(decode(&encode(&[Insn::ld_imm64(Reg::R1, 1)])[..8]), Err(DecodeError::Truncated));
    }
}
