//! Virtual registers that found no machine register live in the stack; each use and definition gets a temporary.

use super::live::Facts;
use super::vcode::{Base, CallArg, HOT, Inst, Line, Src, Vcode, Vreg};
use crate::ir::Size;
use std::collections::BTreeMap;

/// Where a spilled register lives.
#[derive(Clone, Debug)]
enum Home {
    /// Bytes from the frame pointer.
    Stack(i16),
    /// Nowhere: its definition is repeated before each use.
    Repeat(Inst),
}

/// Homes given so far: registers that are never alive together share one.
pub struct Frame {
    /// Registers by home, nearest to the IR's stack areas first.
    homes: Vec<Vec<Vreg>>,
    slot_bytes: u32,
    /// As they were before anything was spilled.
    original: Vec<Facts>,
}

impl Frame {
    /// No spills yet.
    pub fn new(code: &Vcode, facts: &[Facts]) -> Frame {
        Frame { homes: Vec::new(), slot_bytes: code.slot_bytes, original: facts.to_vec() }
    }
    /// Bytes of stack in all.
    pub fn bytes(&self) -> u32 {
        self.slot_bytes + 8 * self.homes.len() as u32
    }

    fn home(&mut self, vreg: Vreg) -> Home {
        let facts = &self.original[vreg.0 as usize];
        if let Some(inst) = &facts.repeatable {
            return Home::Repeat(inst.clone());
        }
        let apart = |others: &Vec<Vreg>| others.iter().all(|other| !facts.neighbours.contains(other));
        let at = self.homes.iter().position(apart).unwrap_or_else(|| {
            self.homes.push(Vec::new());
            self.homes.len() - 1
        });
        self.homes[at].push(vreg);
        // More than 512 bytes are refused later; the clamp only keeps the arithmetic sane until then.
        let offset = i64::from(self.slot_bytes) + 8 * (at as i64 + 1);
        Home::Stack((-offset).max(i64::from(i16::MIN)) as i16)
    }
}

/// Rewrites the code so that `spilled` need no register of their own.
pub fn spill(code: &mut Vcode, spilled: &[Vreg], frame: &mut Frame) {
    let homes: BTreeMap<Vreg, Home> = spilled.iter().map(|vreg| (*vreg, frame.home(*vreg))).collect();
    let mut rewriter =
        Rewriter { homes, vregs: code.vregs, lines: Vec::with_capacity(code.lines.len() * 2), heat: HOT };
    for line in std::mem::take(&mut code.lines) {
        rewriter.line(line);
    }
    code.lines = rewriter.lines;
    code.vregs = rewriter.vregs;
}

struct Rewriter {
    homes: BTreeMap<Vreg, Home>,
    vregs: u32,
    lines: Vec<Line>,
    heat: u32,
}

impl Rewriter {
    fn push(&mut self, inst: Inst) {
        self.lines.push(Line { inst, heat: self.heat });
    }
    fn stack(&self, vreg: Vreg) -> Option<i16> {
        match self.homes.get(&vreg) {
            Some(Home::Stack(offset)) => Some(*offset),
            _ => None,
        }
    }

    fn line(&mut self, line: Line) {
        self.heat = line.heat;
        let mut inst = line.inst;
        // Copies to or from memory are one load or store.
        if let Inst::Mov { dst, src } = inst {
            match (self.stack(dst), self.homes.contains_key(&src)) {
                (Some(offset), false) => {
                    return self.push(Inst::Store { size: Size::B8, base: Base::Frame, offset, value: Src::Reg(src) });
                }
                (None, true) if !self.homes.contains_key(&dst) => return self.fetch(dst, src),
                _ => {}
            }
        }
        if let Inst::Call { args, .. } = &mut inst {
            args.iter_mut().for_each(|arg| self.in_place(arg));
        }
        let mut fetched: BTreeMap<Vreg, Vreg> = BTreeMap::new();
        for used in inst.uses() {
            if self.homes.contains_key(&used) && !fetched.contains_key(&used) {
                let temp = self.temp();
                fetched.insert(used, temp);
                self.fetch(temp, used);
            }
        }
        inst.map_uses(|used| fetched.get(&used).copied().unwrap_or(used));
        let defined = inst.def().and_then(|dst| self.homes.get(&dst).cloned().map(|home| (dst, home)));
        match defined {
            None => self.push(inst),
            // Every use repeats it: the definition itself is no longer needed.
            Some((_, Home::Repeat(_))) => {}
            Some((dst, Home::Stack(offset))) => {
                let temp = fetched.get(&dst).copied().unwrap_or_else(|| self.temp());
                inst.set_def(temp);
                self.push(inst);
                self.push(Inst::Store { size: Size::B8, base: Base::Frame, offset, value: Src::Reg(temp) });
            }
        }
    }

    fn temp(&mut self) -> Vreg {
        self.vregs += 1;
        Vreg(self.vregs - 1)
    }

    /// Arguments of calls are put into their registers straight from their home.
    fn in_place(&self, arg: &mut CallArg) {
        let CallArg::Reg(vreg) = *arg else { return };
        *arg = match self.homes.get(&vreg) {
            None => return,
            Some(Home::Stack(offset)) => CallArg::Spilled(*offset),
            Some(Home::Repeat(Inst::Const { value, .. })) => CallArg::Imm(*value),
            Some(Home::Repeat(Inst::Address { target, .. })) => CallArg::Address(*target),
            Some(Home::Repeat(_)) => return,
        };
    }

    fn fetch(&mut self, dst: Vreg, spilled: Vreg) {
        match self.homes.get(&spilled).cloned() {
            Some(Home::Stack(offset)) => {
                self.push(Inst::Load { size: Size::B8, dst, base: Base::Frame, offset });
            }
            Some(Home::Repeat(mut inst)) => {
                inst.set_def(dst);
                self.push(inst);
            }
            None => {}
        }
    }
}
