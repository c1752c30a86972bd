//! Virtual instructions to real ones, now that every virtual register has its own.

use super::vcode::{Base, CallArg, Inst, Line, Src, Vreg, commutes};
use super::{Options, moves};
use crate::asm::Item;
use crate::diag::Diagnostic;
use crate::ir::Helper;
use crate::isa::{Alu, Insn, Reg, Width, helpers};

/// Emits the whole function.
pub fn emit(lines: &[Line], colours: &[Option<Reg>], options: &Options) -> Result<Vec<Item>, Diagnostic> {
    let mut out = Emitter { items: Vec::with_capacity(lines.len() * 2), colours };
    for line in lines {
        out.inst(&line.inst, options)?;
    }
    Ok(out.items)
}

struct Emitter<'a> {
    items: Vec<Item>,
    colours: &'a [Option<Reg>],
}

impl Emitter<'_> {
    fn push(&mut self, insn: Insn) {
        self.items.push(Item::Insn(insn));
    }
    fn mov(&mut self, dst: Reg, src: Reg) {
        if dst != src {
            self.push(Insn::mov(dst, src));
        }
    }
    fn reg(&self, vreg: Vreg) -> Result<Reg, Diagnostic> {
        let colour = self.colours.get(vreg.0 as usize).copied().flatten();
        colour.ok_or_else(|| Diagnostic::bug(format!("v{} has no register", vreg.0)))
    }
    fn base(&self, base: Base) -> Result<Reg, Diagnostic> {
        match base {
            Base::Reg(vreg) => self.reg(vreg),
            Base::Frame => Ok(Reg::R10),
        }
    }

    fn inst(&mut self, inst: &Inst, options: &Options) -> Result<(), Diagnostic> {
        match inst {
            Inst::Entry(dst) => self.mov(self.reg(*dst)?, Reg::R1),
            Inst::Mov { dst, src } => self.mov(self.reg(*dst)?, self.reg(*src)?),
            Inst::Zext { dst, a } => {
                self.push(Insn::alu_reg(Width::W32, Alu::Mov, self.reg(*dst)?, self.reg(*a)?));
            }
            Inst::Const { dst, value } => self.push(Insn::load_const(self.reg(*dst)?, *value)),
            Inst::Address { dst, target } => {
                let load = Insn::ld_imm64(self.reg(*dst)?, 0);
                self.items.push(Item::Address(load, *target));
            }
            Inst::Alu { width, op, dst, a, b } => self.alu(*width, *op, *dst, *a, *b)?,
            Inst::Swap { bits, dst, a } => {
                let dst = self.reg(*dst)?;
                self.mov(dst, self.reg(*a)?);
                self.push(Insn::to_be(dst, *bits));
            }
            Inst::Load { size, dst, base, offset } => {
                self.push(Insn::ldx(*size, self.reg(*dst)?, self.base(*base)?, *offset));
            }
            Inst::Store { size, base, offset, value } => {
                let base = self.base(*base)?;
                match value {
                    Src::Reg(value) => self.push(Insn::stx(*size, base, *offset, self.reg(*value)?)),
                    Src::Imm(imm) => self.push(Insn::st(*size, base, *offset, *imm)),
                }
            }
            Inst::AtomicAdd { base, offset, value } => {
                self.push(Insn::atomic_add(self.reg(*base)?, *offset, self.reg(*value)?));
            }
            Inst::FetchAdd { dst, base, offset, value } => {
                let dst = self.reg(*dst)?;
                self.mov(dst, self.reg(*value)?);
                self.push(Insn::fetch_add(self.reg(*base)?, *offset, dst));
            }
            Inst::Call { helper, args, dst } => self.call(*helper, args, *dst, options)?,
            Inst::Jump(to) => self.items.push(Item::Jump(Insn::ja(0), *to)),
            Inst::Branch { op, a, b, to } => {
                let a = self.reg(*a)?;
                let jump = match b {
                    Src::Reg(b) => Insn::jmp_reg(*op, a, self.reg(*b)?),
                    Src::Imm(imm) => Insn::jmp_imm(*op, a, *imm),
                };
                self.items.push(Item::Jump(jump, *to));
            }
            Inst::Bind(label) => self.items.push(Item::Bind(*label)),
            Inst::Mark { line, column } => self.items.push(Item::Mark { line: *line, column: *column }),
            Inst::Exit => {
                self.push(Insn::load_const(Reg::R0, 0));
                self.push(Insn::exit());
            }
        }
        Ok(())
    }

    fn alu(&mut self, width: Width, op: Alu, dst: Vreg, a: Vreg, b: Src) -> Result<(), Diagnostic> {
        let (dst, a) = (self.reg(dst)?, self.reg(a)?);
        let b = match b {
            Src::Imm(imm) => {
                self.mov(dst, a);
                self.push(Insn::alu_imm(width, op, dst, imm));
                return Ok(());
            }
            Src::Reg(b) => self.reg(b)?,
        };
        if dst == a {
            self.push(Insn::alu_reg(width, op, dst, b));
        } else if dst == b && commutes(op) {
            self.push(Insn::alu_reg(width, op, dst, a));
        } else if dst == b {
            return Err(Diagnostic::bug(format!("{op:?} would overwrite its second operand")));
        } else {
            self.mov(dst, a);
            self.push(Insn::alu_reg(width, op, dst, b));
        }
        Ok(())
    }

    fn call(
        &mut self,
        helper: Helper,
        args: &[CallArg],
        dst: Option<Vreg>,
        options: &Options,
    ) -> Result<(), Diagnostic> {
        let mut copies = Vec::new();
        for (arg, to) in args.iter().zip(Reg::ARGS) {
            if let CallArg::Reg(vreg) = arg {
                copies.push((to, self.reg(*vreg)?));
            }
        }
        // `r0` holds at most a source here: the call is about to overwrite it.
        for (to, from) in moves::in_sequence(&copies, Reg::R0) {
            self.mov(to, from);
        }
        for (arg, to) in args.iter().zip(Reg::ARGS) {
            match *arg {
                CallArg::Reg(_) => {}
                CallArg::Imm(value) => self.push(Insn::load_const(to, value)),
                CallArg::Frame(offset) => {
                    self.mov(to, Reg::R10);
                    self.push(Insn::alu_imm(Width::W64, Alu::Add, to, offset));
                }
                CallArg::Address(target) => self.items.push(Item::Address(Insn::ld_imm64(to, 0), target)),
                CallArg::Spilled(offset) => self.push(Insn::ldx(crate::ir::Size::B8, to, Reg::R10, offset)),
            }
        }
        let call = match (helper, helpers::id(helper), options.rdonly_cast_btf_id) {
            (_, Some(id), _) => Insn::call(id),
            (Helper::RdonlyCast, None, Some(btf_id)) => Insn::call_kfunc(btf_id),
            _ => {
                return Err(Diagnostic::bug(format!("{helper:?} is used but this kernel's number of it is not known")));
            }
        };
        self.push(call);
        if let Some(dst) = dst {
            self.mov(self.reg(dst)?, Reg::R0);
        }
        Ok(())
    }
}
