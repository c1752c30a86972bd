//! Instructions as text, written as the kernel's verifier writes them.

use super::helpers;
use super::insn::{FETCH, Insn, Op};
use super::table::Row;
use std::fmt::Write;

/// One instruction, e.g. `r1 = *(u32 *)(r6 +16)`.
pub fn text(insn: &Insn) -> String {
    let mut out = String::new();
    let text = match (insn.op, insn.imm) {
        (Op::AtomicAdd, FETCH) => "{s} = atomic64_fetch_add((u64 *)({d} {off}), {s})",
        _ => Row::of(insn.op).text,
    };
    let mut parts = text.split(['{', '}']);
    // The pieces alternate: literal, field, literal, ...
    while let Some(literal) = parts.next() {
        out.push_str(literal);
        if let Some(field) = parts.next() {
            write_field(&mut out, insn, field);
        }
    }
    out
}

fn write_field(out: &mut String, insn: &Insn, field: &str) {
    let (dst, src) = (insn.dst.number(), insn.src.number());
    let written = match field {
        "d" => write!(out, "r{dst}"),
        "s" => write!(out, "r{src}"),
        "wd" => write!(out, "w{dst}"),
        "ws" => write!(out, "w{src}"),
        "imm" => write!(out, "{}", insn.imm),
        "hex" if insn.op.is_wide() => write!(out, "{:#x}", insn.imm),
        "hex" => write!(out, "{:#x}", insn.imm as i32),
        "off" => write!(out, "{:+}", insn.off),
        "pc" => write!(out, "pc{:+}", insn.off),
        "helper" => match helpers::name(insn.imm) {
            Some(name) => write!(out, "bpf_{name}#{}", insn.imm),
            None => write!(out, "helper#{}", insn.imm),
        },
        other => write!(out, "{{{other}}}"),
    };
    written.expect("writing to a String cannot fail");
}

#[cfg(test)]
mod tests {
    use super::super::insn::{Alu, Jump, Reg, Width};
    use super::super::table::TABLE;
    use super::*;
    use crate::ir::Size;

    #[test]
    fn text_is_the_verifiers() {
        let cases = [
            (Insn::ldx(Size::B4, Reg::R1, Reg::R6, 16), "r1 = *(u32 *)(r6 +16)"),
            (Insn::stx(Size::B8, Reg::R10, -8, Reg::R1), "*(u64 *)(r10 -8) = r1"),
            (Insn::st(Size::B1, Reg::R10, -1, -7), "*(u8 *)(r10 -1) = -7"),
            (Insn::alu_imm(Width::W64, Alu::Add, Reg::R2, -8), "r2 += -8"),
            (Insn::alu_reg(Width::W32, Alu::Mov, Reg::R1, Reg::R2), "w1 = w2"),
            (Insn::alu_imm(Width::W64, Alu::Arsh, Reg::R2, 56), "r2 s>>= 56"),
            (Insn { off: 4, ..Insn::jmp_imm(Jump::SLt, Reg::R3, -1) }, "if r3 s< 0xffffffff goto pc+4"),
            (Insn { off: -2, ..Insn::jmp_reg(Jump::Set, Reg::R3, Reg::R4) }, "if r3 & r4 goto pc-2"),
            (Insn::to_be(Reg::R4, 32), "r4 = be32 r4"),
            (Insn::ld_imm64(Reg::R4, -1), "r4 = 0xffffffffffffffff ll"),
            (Insn::atomic_add(Reg::R0, 8, Reg::R1), "lock *(u64 *)(r0 +8) += r1"),
            (Insn::fetch_add(Reg::R0, 8, Reg::R1), "r1 = atomic64_fetch_add((u64 *)(r0 +8), r1)"),
            (Insn::call(1), "call bpf_map_lookup_elem#1"),
            (Insn::call(9999), "call helper#9999"),
            (Insn::call_kfunc(77), "call kfunc#77"),
            (Insn::exit(), "exit"),
        ];
        for (insn, expected) in cases {
            assert_eq!(text(&insn), expected);
        }
    }

    #[test]
    fn no_row_names_a_field_that_does_not_exist_and_no_two_look_alike() {
        let mut seen = std::collections::BTreeSet::new();
        for row in TABLE {
            let text = text(&Insn { op: row.op, dst: Reg::R1, src: Reg::R2, off: 3, imm: 16 });
            assert!(!text.contains('{'), "{text}");
            assert!(seen.insert(text.clone()), "{text}");
        }
    }
}
