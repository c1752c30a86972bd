//! One instruction as a value. Irregular encodings stay behind [`encode`](super::encode).

use crate::ir::Size;

/// A register. `R0` holds results, `R1`..`R5` arguments (lost in a call), `R6`..`R9` survive calls, `R10` is the
/// read-only frame pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Reg {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
}

impl Reg {
    /// All registers in order of their numbers.
    pub const ALL: [Reg; 11] =
        [Reg::R0, Reg::R1, Reg::R2, Reg::R3, Reg::R4, Reg::R5, Reg::R6, Reg::R7, Reg::R8, Reg::R9, Reg::R10];
    /// The registers that carry a call's arguments.
    pub const ARGS: [Reg; 5] = [Reg::R1, Reg::R2, Reg::R3, Reg::R4, Reg::R5];

    /// The register of this number, if there is one.
    pub fn of(number: u8) -> Option<Reg> {
        Reg::ALL.get(usize::from(number)).copied()
    }
    pub fn number(self) -> u8 {
        self as u8
    }
    /// Whether a call leaves it alone.
    pub fn survives_calls(self) -> bool {
        self >= Reg::R6
    }
}

/// Which part of the registers arithmetic works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Width {
    W64,
    /// Low halves; the result is zero-extended.
    W32,
}

/// Arithmetic. `Div` and `Mod` are unsigned; division by a zero register gives 0, the remainder leaves `dst`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Alu {
    Add,
    Sub,
    Mul,
    Div,
    Or,
    And,
    Lsh,
    Rsh,
    Mod,
    Xor,
    Mov,
    Arsh,
}

/// Conditions of jumps, on all 64 bits; immediates are sign-extended. The `S` ones are signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Jump {
    Eq,
    Gt,
    Ge,
    /// `dst & src != 0`; the one that has no opposite.
    Set,
    Ne,
    SGt,
    SGe,
    Lt,
    Le,
    SLt,
    SLe,
}

impl Jump {
    /// The condition that holds exactly when this one does not.
    pub fn opposite(self) -> Option<Jump> {
        Some(match self {
            Jump::Eq => Jump::Ne,
            Jump::Ne => Jump::Eq,
            Jump::Gt => Jump::Le,
            Jump::Le => Jump::Gt,
            Jump::Ge => Jump::Lt,
            Jump::Lt => Jump::Ge,
            Jump::SGt => Jump::SLe,
            Jump::SLe => Jump::SGt,
            Jump::SGe => Jump::SLt,
            Jump::SLt => Jump::SGe,
            Jump::Set => return None,
        })
    }
}

/// What an instruction does; [`table`](super::table) gives each its code and text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// `dst op= imm`
    AluImm(Width, Alu),
    /// `dst op= src`
    AluReg(Width, Alu),
    /// Low `imm` (16, 32, 64) bits of `dst` to big-endian order, zero-extended: a byte swap on the little-endian targets.
    ToBe,
    /// `dst = imm`, all 64 bits; takes two slots.
    LdImm64,
    /// `dst = the map of descriptor imm`; takes two slots.
    LdMap,
    /// `dst = address of the value of an array of one element`, by the map's descriptor (low half of `imm`) and the byte in the value
    /// (high half); takes two slots (5.2).
    LdMapValue,
    /// `dst = the function of this program` that begins `imm` slots after this instruction's first and one; takes two slots (5.13).
    LdFunction,
    /// `dst = *(uN *)(src + off)`
    Ldx(Size),
    /// `*(uN *)(dst + off) = imm`
    St(Size),
    /// `*(uN *)(dst + off) = src`
    Stx(Size),
    /// `lock *(u64 *)(dst + off) += src`
    AtomicAdd,
    /// `goto off`
    Ja,
    /// `if dst cond imm goto off`
    JmpImm(Jump),
    /// `if dst cond src goto off`
    JmpReg(Jump),
    /// Call of the helper numbered `imm`.
    Call,
    /// Call of the kernel function whose BTF id is `imm`.
    CallKfunc,
    /// Call of the function of this program that begins `imm` slots after the next instruction.
    CallLocal,
    /// Leave with `r0`.
    Exit,
}

impl Op {
    /// Whether it takes two slots.
    pub fn is_wide(self) -> bool {
        matches!(self, Op::LdImm64 | Op::LdMap | Op::LdMapValue | Op::LdFunction)
    }
}

/// One instruction. Fields its operation does not use are zero (`R0`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Insn {
    /// What it does.
    pub op: Op,
    /// Destination, or the address of a store.
    pub dst: Reg,
    /// Source, or the address of a load.
    pub src: Reg,
    /// Bytes for memory, slots from the next instruction for jumps.
    pub off: i16,
    /// Constant; 32 bits in all but those of two slots.
    pub imm: i64,
}

/// `BPF_FETCH`, the constant of an atomic addition that gives the word as it was before.
pub const FETCH: i64 = 1;

impl Insn {
    const fn new(op: Op, dst: Reg, src: Reg, off: i16, imm: i64) -> Insn {
        Insn { op, dst, src, off, imm }
    }
    /// 8-byte slots it takes.
    pub fn slots(&self) -> u32 {
        if self.op.is_wide() { 2 } else { 1 }
    }
    /// `dst op= imm`
    pub fn alu_imm(width: Width, op: Alu, dst: Reg, imm: i32) -> Insn {
        Insn::new(Op::AluImm(width, op), dst, Reg::R0, 0, i64::from(imm))
    }
    /// `dst op= src`
    pub fn alu_reg(width: Width, op: Alu, dst: Reg, src: Reg) -> Insn {
        Insn::new(Op::AluReg(width, op), dst, src, 0, 0)
    }
    /// `dst = src`
    pub fn mov(dst: Reg, src: Reg) -> Insn {
        Insn::alu_reg(Width::W64, Alu::Mov, dst, src)
    }
    /// Byte swap of the low `bits`.
    pub fn to_be(dst: Reg, bits: u8) -> Insn {
        Insn::new(Op::ToBe, dst, Reg::R0, 0, i64::from(bits))
    }
    /// `dst = value` in the shortest form.
    pub fn load_const(dst: Reg, value: i64) -> Insn {
        if let Ok(imm) = i32::try_from(value) {
            Insn::alu_imm(Width::W64, Alu::Mov, dst, imm)
        } else if let Ok(imm) = u32::try_from(value) {
            Insn::alu_imm(Width::W32, Alu::Mov, dst, imm as i32)
        } else {
            Insn::ld_imm64(dst, value)
        }
    }
    /// `dst = value` in the two-slot form.
    pub fn ld_imm64(dst: Reg, value: i64) -> Insn {
        Insn::new(Op::LdImm64, dst, Reg::R0, 0, value)
    }
    /// `dst = map` by descriptor.
    pub fn ld_map(dst: Reg, descriptor: u32) -> Insn {
        Insn::new(Op::LdMap, dst, Reg::R0, 0, i64::from(descriptor))
    }
    /// `dst = &value[offset]` of an array of one element, by descriptor.
    pub fn ld_map_value(dst: Reg, descriptor: u32, offset: u32) -> Insn {
        Insn::new(Op::LdMapValue, dst, Reg::R0, 0, (u64::from(offset) << 32 | u64::from(descriptor)) as i64)
    }
    /// `dst = function` of the same program, for a helper that calls it; `slots` from the second slot to its first.
    pub fn ld_function(dst: Reg, slots: u32) -> Insn {
        Insn::new(Op::LdFunction, dst, Reg::R0, 0, i64::from(slots))
    }
    /// `dst = *(uN *)(src + off)`
    pub fn ldx(size: Size, dst: Reg, src: Reg, off: i16) -> Insn {
        Insn::new(Op::Ldx(size), dst, src, off, 0)
    }
    /// `*(uN *)(dst + off) = imm`
    pub fn st(size: Size, dst: Reg, off: i16, imm: i32) -> Insn {
        Insn::new(Op::St(size), dst, Reg::R0, off, i64::from(imm))
    }
    /// `*(uN *)(dst + off) = src`
    pub fn stx(size: Size, dst: Reg, off: i16, src: Reg) -> Insn {
        Insn::new(Op::Stx(size), dst, src, off, 0)
    }
    /// `lock *(u64 *)(dst + off) += src`
    pub fn atomic_add(dst: Reg, off: i16, src: Reg) -> Insn {
        Insn::new(Op::AtomicAdd, dst, src, off, 0)
    }
    /// `src = *(u64 *)(dst + off)`, and adds what was in `src` there, at once (`BPF_FETCH`, Linux 5.12).
    pub fn fetch_add(dst: Reg, off: i16, src: Reg) -> Insn {
        Insn::new(Op::AtomicAdd, dst, src, off, FETCH)
    }
    /// `goto +off`
    pub fn ja(off: i16) -> Insn {
        Insn::new(Op::Ja, Reg::R0, Reg::R0, off, 0)
    }
    /// `if dst cond imm goto ..`
    pub fn jmp_imm(cond: Jump, dst: Reg, imm: i32) -> Insn {
        Insn::new(Op::JmpImm(cond), dst, Reg::R0, 0, i64::from(imm))
    }
    /// `if dst cond src goto ..`
    pub fn jmp_reg(cond: Jump, dst: Reg, src: Reg) -> Insn {
        Insn::new(Op::JmpReg(cond), dst, src, 0, 0)
    }
    /// Call of a helper.
    pub fn call(id: u32) -> Insn {
        Insn::new(Op::Call, Reg::R0, Reg::R0, 0, i64::from(id))
    }
    /// Call of a kernel function by BTF id.
    pub fn call_kfunc(btf_id: u32) -> Insn {
        // The field is 32 bits wide: keep the bits, whatever their sign.
        Insn::new(Op::CallKfunc, Reg::R0, Reg::R0, 0, i64::from(btf_id as i32))
    }
    /// Call of a function of the same program; `slots` from the next instruction to its first.
    pub fn call_local(slots: i32) -> Insn {
        Insn::new(Op::CallLocal, Reg::R0, Reg::R0, 0, i64::from(slots))
    }
    /// Leave with `r0`.
    pub fn exit() -> Insn {
        Insn::new(Op::Exit, Reg::R0, Reg::R0, 0, 0)
    }
}
