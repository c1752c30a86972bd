//! A small verifier: what the kernel's would say of registers, jumps and the stack, without a kernel.

use kstrobe_ebpf::asm::Code;
use kstrobe_ebpf::isa::table::Row;
use kstrobe_ebpf::isa::{Alu, Insn, Op, Reg};

/// Registers and 8-byte words of the stack that hold something.
#[derive(Clone, Copy, PartialEq)]
struct Known {
    regs: u16,
    stack: u64,
}

/// The first rule that `code` breaks. Words of the IR's own stack areas (`slot_bytes` of them) are not followed: helpers
/// write them too.
pub fn broken_rule(code: &Code, slot_bytes: u32) -> Option<String> {
    let areas = (0..slot_bytes / 8).fold(0u64, |set, word| set | 1 << word);
    let mut at_slot: Vec<Option<Known>> = vec![None; code.slots() as usize + 1];
    at_slot[0] = Some(Known { regs: 1 << 1 | 1 << 10, stack: areas });
    let mut slot = 0;
    for insn in &code.insns {
        let next = slot + insn.slots() as usize;
        let Some(mut known) = at_slot[slot] else { return Some(format!("slot {slot} is never reached")) };
        if let Some(broken) = step(insn, &mut known, code.stack_bytes) {
            return Some(format!("slot {slot}: {broken}"));
        }
        let goes_on = !matches!(insn.op, Op::Ja | Op::Exit);
        let jumps = matches!(insn.op, Op::Ja | Op::JmpImm(_) | Op::JmpReg(_));
        if jumps && insn.off < 0 {
            return Some(format!("slot {slot} jumps back"));
        }
        let targets = goes_on.then_some(next).into_iter().chain(jumps.then(|| next + insn.off as usize));
        for target in targets {
            let before = at_slot[target].unwrap_or(known);
            at_slot[target] = Some(Known { regs: before.regs & known.regs, stack: before.stack & known.stack });
        }
        slot = next;
    }
    at_slot[slot].map(|_| "control runs past the end".to_string())
}

fn step(insn: &Insn, known: &mut Known, stack_bytes: u32) -> Option<String> {
    let row = Row::of(insn.op);
    let is_move = matches!(insn.op, Op::AluImm(_, Alu::Mov) | Op::AluReg(_, Alu::Mov));
    let writes_dst = matches!(insn.op, Op::AluImm(..) | Op::AluReg(..) | Op::ToBe | Op::LdImm64 | Op::Ldx(_));
    let mut reads = Vec::new();
    if row.uses("s") || row.uses("ws") {
        reads.push(insn.src);
    }
    if (row.uses("d") || row.uses("wd")) && !is_move && !matches!(insn.op, Op::LdImm64 | Op::Ldx(_)) {
        reads.push(insn.dst);
    }
    if insn.op == Op::Exit {
        reads.push(Reg::R0);
    }
    if let Some(reg) = reads.iter().find(|reg| known.regs >> reg.number() & 1 == 0) {
        return Some(format!("{reg:?} is read before it is set"));
    }
    if let Some(broken) = stack_access(insn, known, stack_bytes) {
        return Some(broken);
    }
    if writes_dst {
        if insn.dst == Reg::R10 {
            return Some("r10 is written".into());
        }
        known.regs |= 1 << insn.dst.number();
    }
    if matches!(insn.op, Op::Call | Op::CallKfunc) {
        known.regs = known.regs & !0b11_1110 | 1;
    }
    None
}

fn stack_access(insn: &Insn, known: &mut Known, stack_bytes: u32) -> Option<String> {
    let (base, store) = match insn.op {
        Op::Ldx(_) => (insn.src, false),
        Op::St(_) | Op::Stx(_) => (insn.dst, true),
        _ => return None,
    };
    if base != Reg::R10 {
        return None;
    }
    let depth = -i32::from(insn.off);
    if depth <= 0 || depth > stack_bytes as i32 {
        return Some(format!("access {depth} bytes into a frame of {stack_bytes}"));
    }
    let word = (depth - 1) / 8;
    if store {
        known.stack |= 1 << word;
    } else if known.stack >> word & 1 == 0 {
        return Some(format!("the stack is read at -{depth} before it is written"));
    }
    None
}
