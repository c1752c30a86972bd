//! Every instruction once: its code byte and its text. Encoder, decoder and disassembler all read this table.

use super::insn::{Alu, Jump, Op, Width};
use crate::ir::Size;

/// One instruction's encoding and text.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// What it does.
    pub op: Op,
    /// First byte.
    pub code: u8,
    /// Value of the source field where it selects the instruction; `None` where it is a register (or unused).
    pub src: Option<u8>,
    /// Text as the kernel's verifier writes it. `{d}` and `{s}` are 64-bit registers, `{wd}` and `{ws}` their low halves,
    /// `{imm}` and `{hex}` the constant, `{off}` bytes, `{pc}` slots, `{helper}` a helper's name. A field that the text
    /// does not name is not used.
    pub text: &'static str,
}

const fn row(op: Op, code: u8, text: &'static str) -> Row {
    Row { op, code, src: None, text }
}

/// Fixed parts of code bytes: class (low three bits), and the flag that says the operand is a register.
const LDX: u8 = 0x61;
const ST: u8 = 0x62;
const STX: u8 = 0x63;
const ALU: u8 = 0x04;
const JMP: u8 = 0x05;
const ALU64: u8 = 0x07;
const REG: u8 = 0x08;

macro_rules! table {
    (alu { $($alu:ident $alu_bits:literal $alu_sign:literal)* }
     jump { $($jump:ident $jump_bits:literal $jump_sign:literal)* }
     memory { $($size:ident $size_bits:literal $size_name:literal)* }
     other { $($other:expr,)* }) => {
        /// The instruction set.
        pub const TABLE: &[Row] = &[
            $(
                row(Op::AluImm(Width::W64, Alu::$alu), ALU64 | $alu_bits, concat!("{d} ", $alu_sign, " {imm}")),
                row(Op::AluReg(Width::W64, Alu::$alu), ALU64 | REG | $alu_bits, concat!("{d} ", $alu_sign, " {s}")),
                row(Op::AluImm(Width::W32, Alu::$alu), ALU | $alu_bits, concat!("{wd} ", $alu_sign, " {imm}")),
                row(Op::AluReg(Width::W32, Alu::$alu), ALU | REG | $alu_bits, concat!("{wd} ", $alu_sign, " {ws}")),
            )*
            $(
                row(Op::JmpImm(Jump::$jump), JMP | $jump_bits, concat!("if {d} ", $jump_sign, " {hex} goto {pc}")),
                row(Op::JmpReg(Jump::$jump), JMP | REG | $jump_bits, concat!("if {d} ", $jump_sign, " {s} goto {pc}")),
            )*
            $(
                row(Op::Ldx(Size::$size), LDX | $size_bits, concat!("{d} = *(", $size_name, " *)({s} {off})")),
                row(Op::St(Size::$size), ST | $size_bits, concat!("*(", $size_name, " *)({d} {off}) = {imm}")),
                row(Op::Stx(Size::$size), STX | $size_bits, concat!("*(", $size_name, " *)({d} {off}) = {s}")),
            )*
            $($other,)*
        ];
    };
}

table! {
    alu {
        Add 0x00 "+="
        Sub 0x10 "-="
        Mul 0x20 "*="
        Div 0x30 "/="
        Or 0x40 "|="
        And 0x50 "&="
        Lsh 0x60 "<<="
        Rsh 0x70 ">>="
        Mod 0x90 "%="
        Xor 0xa0 "^="
        Mov 0xb0 "="
        Arsh 0xc0 "s>>="
    }
    jump {
        Eq 0x10 "=="
        Gt 0x20 ">"
        Ge 0x30 ">="
        Set 0x40 "&"
        Ne 0x50 "!="
        SGt 0x60 "s>"
        SGe 0x70 "s>="
        Lt 0xa0 "<"
        Le 0xb0 "<="
        SLt 0xc0 "s<"
        SLe 0xd0 "s<="
    }
    memory {
        B4 0x00 "u32"
        B2 0x08 "u16"
        B1 0x10 "u8"
        B8 0x18 "u64"
    }
    other {
        row(Op::ToBe, 0xdc, "{d} = be{imm} {d}"),
        // A map's address has source 0 as well in an object: the loader sets it when it fills in the map.
        Row { op: Op::LdImm64, code: 0x18, src: Some(0), text: "{d} = {hex} ll" },
        Row { op: Op::LdMap, code: 0x18, src: Some(1), text: "{d} = map {hex}" },
        Row { op: Op::LdMapValue, code: 0x18, src: Some(2), text: "{d} = value {hex}" },
        Row { op: Op::LdFunction, code: 0x18, src: Some(4), text: "{d} = function pc{imm}" },
        row(Op::AtomicAdd, 0xdb, "lock *(u64 *)({d} {off}) += {s}"),
        row(Op::Ja, 0x05, "goto {pc}"),
        Row { op: Op::Call, code: 0x85, src: Some(0), text: "call {helper}" },
        Row { op: Op::CallKfunc, code: 0x85, src: Some(2), text: "call kfunc#{imm}" },
        Row { op: Op::CallLocal, code: 0x85, src: Some(1), text: "call pc{imm}" },
        row(Op::Exit, 0x95, "exit"),
    }
}

impl Row {
    /// The row of an operation.
    pub fn of(op: Op) -> &'static Row {
        TABLE.iter().find(|row| row.op == op).expect("every operation has a row: a test walks them all")
    }
    /// The row of a code byte and a source field.
    pub fn decode(code: u8, src: u8) -> Option<&'static Row> {
        TABLE.iter().find(|row| row.code == code && row.src.is_none_or(|fixed| fixed == src))
    }
    /// Whether the text names `{field}`.
    pub fn uses(&self, field: &str) -> bool {
        self.text.split('{').skip(1).any(|part| part.split('}').next() == Some(field))
    }
}
