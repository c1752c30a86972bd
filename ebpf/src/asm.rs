//! Assembly: instructions with labels, map references and line marks, turned into slots once.

use crate::diag::{Diagnostic, Fault};
use crate::ir::Helper;
use crate::isa::encode::{encode, slots};
use crate::isa::{Insn, Reg, disasm, helpers};
use crate::layout::MapId;

/// A place in the code that jumps can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Label(pub u32);

/// What a two-slot load gets from the loader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// The map's address.
    Map(MapId),
    /// The address of this byte of the read-only tables.
    Rodata(u32),
}

/// One line of assembly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    /// An instruction that needs nothing resolved.
    Insn(Insn),
    /// A jump; its offset is filled in.
    Jump(Insn, Label),
    /// A two-slot load of an address that only the loader knows.
    Address(Insn, Target),
    /// The label stands for the next instruction.
    Bind(Label),
    /// What follows comes from this place in the YAML file (1-based).
    Mark { line: u32, column: u32 },
}

/// Says what the loader has to fill in where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reloc {
    /// Slot of the two-slot load.
    pub slot: u32,
    pub target: Target,
}

/// Says where instructions come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// First slot it holds for, up to the next mark.
    pub slot: u32,
    /// 1-based line in the YAML file.
    pub line: u32,
    /// 1-based column.
    pub column: u32,
}

/// One program, ready to be put into an object.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Code {
    /// Instructions; jump offsets count slots.
    pub insns: Vec<Insn>,
    /// What the loader fills in, by slot.
    pub relocs: Vec<Reloc>,
    /// Source places, by slot, ascending; the first one is at slot 0.
    pub marks: Vec<Mark>,
    /// Bytes of stack it uses.
    pub stack_bytes: u32,
}

impl Code {
    /// Its length in 8-byte slots: what the kernel counts as instructions.
    pub fn slots(&self) -> u32 {
        self.insns.iter().map(Insn::slots).sum()
    }
    /// The bytes of the program, addresses not filled in.
    pub fn bytes(&self) -> Vec<u8> {
        let mut insns = self.insns.clone();
        let mut slot = 0;
        for insn in &mut insns {
            // Both loaders add the constant to the address of the symbol that the relocation names.
            if let Some(Reloc { target: Target::Rodata(offset), .. }) = self.reloc_at(slot) {
                insn.imm = i64::from(*offset);
            }
            slot += insn.slots();
        }
        encode(&insns)
    }
    /// The text of the program, one instruction a line, each with its slot.
    pub fn listing(&self) -> String {
        let mut out = String::new();
        let mut slot = 0;
        for insn in &self.insns {
            let line = match self.reloc_at(slot) {
                Some(Reloc { target: Target::Map(map), .. }) => format!("r{} = map[{}]", insn.dst.number(), map.0),
                Some(Reloc { target: Target::Rodata(at), .. }) => format!("r{} = rodata[{at}]", insn.dst.number()),
                None => disasm::text(insn),
            };
            out.push_str(&format!("{slot}: {line}\n"));
            slot += insn.slots();
        }
        out
    }
    fn reloc_at(&self, slot: u32) -> Option<&Reloc> {
        let at = self.relocs.binary_search_by_key(&slot, |reloc| reloc.slot).ok()?;
        self.relocs.get(at)
    }
}

/// Why assembly has no code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsmError {
    /// A jump names a label that is nowhere.
    Unbound(Label),
    /// A label stands in two places.
    Twice(Label),
    /// A jump is longer than 16 bits can say.
    TooFar {
        /// Slots to skip.
        slots: i64,
    },
}

impl From<AsmError> for Diagnostic {
    fn from(error: AsmError) -> Self {
        match error {
            AsmError::Unbound(label) => Diagnostic::bug(format!("label {} is used but not bound", label.0)),
            AsmError::Twice(label) => Diagnostic::bug(format!("label {} is bound twice", label.0)),
            AsmError::TooFar { slots } => Diagnostic {
                fault: Fault::Limit,
                at: None,
                message: format!("the program is too long: a jump over {slots} instructions, eBPF allows 32767"),
                hint: Some("split the probe, or measure fewer metrics in it".into()),
                absent: false,
            },
        }
    }
}

/// Resolves labels and marks.
pub fn assemble(items: &[Item], stack_bytes: u32) -> Result<Code, AsmError> {
    let places = label_places(items)?;
    let mut code = Code { stack_bytes, ..Code::default() };
    let mut slot = 0;
    for item in items {
        let mut insn = match *item {
            Item::Insn(insn) | Item::Jump(insn, _) | Item::Address(insn, _) => insn,
            Item::Bind(_) => continue,
            Item::Mark { line, column } => {
                add_mark(&mut code.marks, Mark { slot, line, column });
                continue;
            }
        };
        match *item {
            Item::Jump(_, label) => {
                let target = place_of(&places, label).ok_or(AsmError::Unbound(label))?;
                let slots = i64::from(target) - i64::from(slot) - 1;
                insn.off = i16::try_from(slots).map_err(|_| AsmError::TooFar { slots })?;
            }
            Item::Address(_, target) => code.relocs.push(Reloc { slot, target }),
            _ => {}
        }
        code.insns.push(insn);
        slot += insn.slots();
    }
    // A mark after the last instruction names nothing.
    code.marks.retain(|mark| mark.slot < slot);
    if let Some(first) = code.marks.first_mut() {
        // The kernel wants line info for a function's first instruction.
        first.slot = 0;
    }
    Ok(code)
}

/// Writes code by hand, of maps by descriptor, with the functions that it calls behind it.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    items: Vec<Item>,
    labels: u32,
    /// Slots so far.
    at: u32,
    /// Slots whose instructions name a function, and which.
    functions: Vec<(u32, usize)>,
}

impl Writer {
    pub(crate) fn add(&mut self, insn: Insn) {
        self.at += insn.slots();
        self.items.push(Item::Insn(insn));
    }
    pub(crate) fn jump(&mut self, insn: Insn, to: Label) {
        self.at += insn.slots();
        self.items.push(Item::Jump(insn, to));
    }
    pub(crate) fn bind(&mut self, label: Label) {
        self.items.push(Item::Bind(label));
    }
    /// A label above 0 that no other is equal to.
    pub(crate) fn fresh(&mut self) -> Label {
        self.labels += 1;
        Label(self.labels)
    }
    pub(crate) fn call(&mut self, helper: Helper) {
        // Only helpers with a number are called here.
        self.add(Insn::call(helpers::id(helper).unwrap_or_default()));
    }
    /// Calls a function, or loads its address: [`Insn::call_local`] or [`Insn::ld_function`], whose distance is filled in.
    pub(crate) fn function(&mut self, insn: Insn, function: usize) {
        self.functions.push((self.at, function));
        self.add(insn);
    }
    pub(crate) fn leave(&mut self, result: i64) {
        self.add(Insn::load_const(Reg::R0, result));
        self.add(Insn::exit());
    }
    /// The code with the functions behind it.
    pub(crate) fn finish(self, functions: &[&[u64]]) -> Result<Vec<u64>, AsmError> {
        let mut code = slots(&assemble(&self.items, 0)?.insns);
        let starts: Vec<usize> = functions
            .iter()
            .map(|function| {
                code.extend_from_slice(function);
                code.len() - function.len()
            })
            .collect();
        for (at, function) in self.functions {
            let distance = starts[function] as u64 - u64::from(at) - 1;
            // The upper half of a slot is its constant.
            code[at as usize] = code[at as usize] & 0xffff_ffff | distance << 32;
        }
        Ok(code)
    }
}

fn label_places(items: &[Item]) -> Result<Vec<Option<u32>>, AsmError> {
    let mut places: Vec<Option<u32>> = Vec::new();
    let mut slot = 0;
    for item in items {
        match item {
            Item::Insn(insn) | Item::Jump(insn, _) | Item::Address(insn, _) => slot += insn.slots(),
            Item::Mark { .. } => {}
            Item::Bind(label) => {
                let at = label.0 as usize;
                if places.len() <= at {
                    places.resize(at + 1, None);
                }
                if places[at].replace(slot).is_some() {
                    return Err(AsmError::Twice(*label));
                }
            }
        }
    }
    Ok(places)
}

fn place_of(places: &[Option<u32>], label: Label) -> Option<u32> {
    places.get(label.0 as usize).copied().flatten()
}

fn add_mark(marks: &mut Vec<Mark>, mark: Mark) {
    // Two marks in one place: the later one is nearer to the code.
    if marks.last().is_some_and(|last| last.slot == mark.slot) {
        marks.pop();
    }
    let same = |last: &Mark| (last.line, last.column) == (mark.line, mark.column);
    if !marks.last().is_some_and(same) {
        marks.push(mark);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::{Alu, Width};

    fn nop() -> Item {
        Item::Insn(Insn::alu_imm(Width::W64, Alu::Mov, Reg::R0, 0))
    }

    #[test]
    fn jumps_count_slots_and_two_slot_loads_count_twice() {
        let address = Item::Address(Insn::ld_imm64(Reg::R1, 0), Target::Map(MapId(2)));
        let items = [Item::Jump(Insn::ja(0), Label(0)), address, nop(), Item::Bind(Label(0)), nop()];
        let code = assemble(&items, 0).expect("label 0 is bound");
        assert_eq!(code.insns[0].off, 3);
        assert_eq!(code.relocs, [Reloc { slot: 1, target: Target::Map(MapId(2)) }]);
        assert_eq!(code.listing(), "0: goto pc+3\n1: r1 = map[2]\n3: r0 = 0\n4: r0 = 0\n");
    }

    #[test]
    fn marks_are_merged_and_start_at_the_first_instruction() {
        let mark = |line| Item::Mark { line, column: 1 };
        let items = [nop(), mark(1), mark(2), nop(), mark(2), nop(), mark(3), nop(), mark(4)];
        let code = assemble(&items, 0).expect("no labels");
        let marks: Vec<_> = code.marks.iter().map(|m| (m.slot, m.line)).collect();
        assert_eq!(marks, [(0, 2), (3, 3)]);
    }

    #[test]
    fn labels_that_are_missing_doubled_or_too_far_are_errors() {
        let jump = Item::Jump(Insn::ja(0), Label(7));
        assert_eq!(assemble(&[jump], 0), Err(AsmError::Unbound(Label(7))));
        let twice = [Item::Bind(Label(1)), Item::Bind(Label(1))];
        assert_eq!(assemble(&twice, 0), Err(AsmError::Twice(Label(1))));
        let mut far = vec![jump];
        far.extend(std::iter::repeat_n(nop(), 32_768));
        far.push(Item::Bind(Label(7)));
        assert_eq!(assemble(&far, 0), Err(AsmError::TooFar { slots: 32_768 }));
    }
}
