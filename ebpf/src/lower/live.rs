//! Which virtual registers are alive at the same time, found in one backward walk (jumps only go forward).
//!
//! On the way, instructions with unused results are dropped.

use super::vcode::{CallArg, Inst, Line, Src, Vcode, Vreg, commutes};
use crate::asm::Label;
use crate::diag::Diagnostic;
use crate::isa::{Reg, helpers};
use std::collections::{BTreeSet, HashMap};

/// A register that a virtual one would like to share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// This machine register.
    Machine(Reg),
    /// The same as this virtual register.
    Same(Vreg),
}

/// What register allocation needs to know of one virtual register.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Those it must not share a register with.
    pub neighbours: BTreeSet<Vreg>,
    /// It is alive across a call.
    pub crosses_call: bool,
    /// How much it is read and written, weighted by heat; 0 when it is never used.
    pub cost: u64,
    /// Registers that would save a move, with the heat of that move.
    pub wishes: Vec<(Wish, u32)>,
    /// Its only definition, when that can be repeated anywhere at no more than the cost of a load.
    pub repeatable: Option<Inst>,
    defs: u32,
}

/// A set of virtual registers.
#[derive(Clone, Debug, PartialEq)]
struct Set(Vec<u64>);

impl Set {
    fn new(size: u32) -> Set {
        Set(vec![0; size as usize / 64 + 1])
    }
    fn has(&self, reg: Vreg) -> bool {
        self.0[reg.0 as usize / 64] >> (reg.0 % 64) & 1 == 1
    }
    fn add(&mut self, reg: Vreg) {
        self.0[reg.0 as usize / 64] |= 1 << (reg.0 % 64);
    }
    fn remove(&mut self, reg: Vreg) {
        self.0[reg.0 as usize / 64] &= !(1 << (reg.0 % 64));
    }
    fn add_all(&mut self, other: &Set) {
        for (word, more) in self.0.iter_mut().zip(&other.0) {
            *word |= more;
        }
    }
    fn iter(&self) -> impl Iterator<Item = Vreg> + '_ {
        self.0.iter().zip(0u32..).flat_map(|(word, at)| {
            let mut word = *word;
            std::iter::from_fn(move || {
                let bit = (word != 0).then(|| word.trailing_zeros())?;
                word &= word - 1;
                Some(Vreg(at * 64 + bit))
            })
        })
    }
}

/// Drops what is never read and gathers facts, indexed by virtual register.
pub fn analyse(code: &mut Vcode) -> Result<Vec<Facts>, Diagnostic> {
    let mut facts: Vec<Facts> = vec![Facts::default(); code.vregs as usize];
    let mut at_label: HashMap<Label, Set> = HashMap::new();
    let mut live = Set::new(code.vregs);
    let mut kept: Vec<Line> = Vec::with_capacity(code.lines.len());
    for mut line in std::mem::take(&mut code.lines).into_iter().rev() {
        match &line.inst {
            Inst::Exit => live = Set::new(code.vregs),
            Inst::Bind(label) => _ = at_label.insert(*label, live.clone()),
            Inst::Jump(label) => live = live_at(&at_label, *label)?.clone(),
            Inst::Branch { to, .. } => live.add_all(live_at(&at_label, *to)?),
            _ => {}
        }
        if let Some(dst) = line.inst.def().filter(|dst| !live.has(*dst)) {
            match &mut line.inst {
                Inst::FetchAdd { base, offset, value, .. } => {
                    line.inst = Inst::AtomicAdd { base: *base, offset: *offset, value: *value };
                }
                Inst::Call { helper, dst, .. } if !helpers::only_gives_a_value(*helper) => *dst = None,
                _ => {
                    // Whatever it was, the register holds nothing that anyone reads.
                    facts[dst.0 as usize].defs += 1;
                    continue;
                }
            }
        }
        gather(&line, &live, &mut facts);
        if let Some(dst) = line.inst.def() {
            live.remove(dst);
        }
        for used in line.inst.uses() {
            live.add(used);
        }
        kept.push(line);
    }
    if let Some(reg) = live.iter().next() {
        return Err(Diagnostic::bug(format!("v{} is read where it may not have been set", reg.0)));
    }
    for facts in facts.iter_mut().filter(|facts| facts.defs != 1) {
        facts.repeatable = None;
    }
    kept.reverse();
    code.lines = kept;
    Ok(facts)
}

fn live_at(at_label: &HashMap<Label, Set>, label: Label) -> Result<&Set, Diagnostic> {
    at_label.get(&label).ok_or_else(|| Diagnostic::bug(format!("a jump back to label {}", label.0)))
}

/// Takes note of one instruction; `live` is what is alive after it.
fn gather(line: &Line, live: &Set, facts: &mut [Facts]) {
    let inst = &line.inst;
    let dst = inst.def();
    for reg in inst.uses().into_iter().chain(dst) {
        facts[reg.0 as usize].cost += u64::from(line.heat);
    }
    if let Inst::Call { .. } = inst {
        for reg in live.iter().filter(|reg| Some(*reg) != dst) {
            facts[reg.0 as usize].crosses_call = true;
        }
    }
    if let Some(dst) = dst {
        // After a copy both hold the same value: no reason to keep them apart.
        let copied = match inst {
            Inst::Mov { src, .. } => Some(*src),
            _ => None,
        };
        for other in live.iter().filter(|other| Some(*other) != copied) {
            part(facts, dst, other);
        }
        let fact = &mut facts[dst.0 as usize];
        fact.defs += 1;
        fact.repeatable = match inst {
            Inst::Const { .. } | Inst::Address { .. } => Some(inst.clone()),
            _ => None,
        };
    }
    if let Inst::Alu { op, dst, a, b: Src::Reg(b), .. } = inst
        && !commutes(*op)
        && a != b
    {
        // `dst = a; dst op= b`: the first step must not destroy `b`.
        part(facts, *dst, *b);
    }
    if let Inst::FetchAdd { dst, base, .. } = inst {
        // `dst = value`, and then the address is read.
        part(facts, *dst, *base);
    }
    wish(line, facts);
}

fn part(facts: &mut [Facts], a: Vreg, b: Vreg) {
    if a != b {
        facts[a.0 as usize].neighbours.insert(b);
        facts[b.0 as usize].neighbours.insert(a);
    }
}

fn wish(line: &Line, facts: &mut [Facts]) {
    let heat = line.heat;
    let mut same = |a: Vreg, b: Vreg, heat: u32| {
        facts[a.0 as usize].wishes.push((Wish::Same(b), heat));
        facts[b.0 as usize].wishes.push((Wish::Same(a), heat));
    };
    match &line.inst {
        Inst::Entry(dst) => facts[dst.0 as usize].wishes.push((Wish::Machine(Reg::R1), heat)),
        Inst::Mov { dst, src: a } | Inst::Swap { dst, a, .. } | Inst::FetchAdd { dst, value: a, .. } => {
            same(*dst, *a, heat);
        }
        Inst::Alu { op, dst, a, b, .. } => {
            same(*dst, *a, heat);
            if let (Src::Reg(b), true) = (b, commutes(*op)) {
                same(*dst, *b, heat / 2);
            }
        }
        Inst::Call { args, dst, .. } => {
            for (arg, reg) in args.iter().zip(Reg::ARGS) {
                if let CallArg::Reg(vreg) = arg {
                    facts[vreg.0 as usize].wishes.push((Wish::Machine(reg), heat));
                }
            }
            if let Some(dst) = dst {
                facts[dst.0 as usize].wishes.push((Wish::Machine(Reg::R0), heat));
            }
        }
        _ => {}
    }
}
