//! The meaning of IR functions, word for word from the IR's documentation: what lowered code is compared with.

use super::{Outcome, answer};
use kstrobe_ebpf::ir::{AluOp, Arg, Block, Call, CmpOp, Cond, Func, Helper, Module, Op, Operand, Stmt};
use kstrobe_ebpf::isa::helpers;

/// Regions have addresses that no arithmetic of a test reaches by accident.
const MAPS: u64 = 0x1000_0000_0000;
const MAP_STRIDE: u64 = 0x1_0000_0000;
const CTX: u64 = 0x2000_0000_0000;
const RODATA: u64 = 0x3000_0000_0000;

struct State<'a> {
    module: &'a Module,
    vars: Vec<u64>,
    slots: Vec<Vec<u8>>,
    ctx: Vec<u8>,
    out: Outcome,
}

/// Runs `func` with `ctx` as its context.
pub fn run(func: &Func, module: &Module, ctx: &[u64]) -> Outcome {
    let maps = &module.layout.maps;
    let mut state = State {
        module,
        vars: vec![0; func.vars as usize],
        slots: func.slots.iter().map(|bytes| vec![0; *bytes as usize]).collect(),
        ctx: ctx.iter().flat_map(|word| word.to_le_bytes()).collect(),
        out: Outcome {
            maps: maps.iter().map(|m| vec![0; (m.value_bytes * m.entries) as usize]).collect(),
            updates: vec![],
        },
    };
    state.vars[0] = CTX;
    state.block(&func.body);
    state.out
}

impl State<'_> {
    fn block(&mut self, block: &Block) -> bool {
        block.iter().all(|stmt| self.stmt(stmt))
    }

    fn operand(&self, operand: Operand) -> u64 {
        match operand {
            Operand::Var(var) => self.vars[var.0 as usize],
            Operand::Imm(value) => value as u64,
        }
    }

    fn memory(&mut self, address: u64, bytes: usize) -> &mut [u8] {
        let (region, at) = match address {
            RODATA.. => panic!("tables are read-only"),
            CTX.. => (&mut self.ctx, address - CTX),
            _ => {
                let map = (address - MAPS) / MAP_STRIDE;
                (&mut self.out.maps[map as usize], (address - MAPS) % MAP_STRIDE)
            }
        };
        &mut region[at as usize..at as usize + bytes]
    }

    fn load(&mut self, address: u64, bytes: usize) -> u64 {
        if address >= RODATA {
            let at = (address - RODATA) as usize;
            return little(&self.module.rodata[at..at + bytes]);
        }
        little(self.memory(address, bytes))
    }

    fn stmt(&mut self, stmt: &Stmt) -> bool {
        match stmt {
            Stmt::Mark { .. } => {}
            Stmt::Set(var, op) => self.vars[var.0 as usize] = self.op(op),
            Stmt::Call(call) => _ = self.call(call),
            Stmt::Store { ptr, offset, size, value } => {
                let value = self.operand(*value).to_le_bytes();
                let address = self.vars[ptr.0 as usize].wrapping_add_signed(i64::from(*offset));
                let bytes = size.bytes() as usize;
                self.memory(address, bytes).copy_from_slice(&value[..bytes]);
            }
            Stmt::Add { ptr, offset, value, atomic: _ } => {
                let address = self.vars[ptr.0 as usize].wrapping_add_signed(i64::from(*offset));
                let sum = self.load(address, 8).wrapping_add(self.operand(*value));
                self.memory(address, 8).copy_from_slice(&sum.to_le_bytes());
            }
            Stmt::StoreSlot { slot, offset, size, value } => {
                let value = self.operand(*value).to_le_bytes();
                let (at, bytes) = (*offset as usize, size.bytes() as usize);
                self.slots[slot.0 as usize][at..at + bytes].copy_from_slice(&value[..bytes]);
            }
            Stmt::If { cond, then, otherwise } => {
                return if self.holds(cond) { self.block(then) } else { self.block(otherwise) };
            }
            Stmt::Return => return false,
        }
        true
    }

    fn holds(&self, cond: &Cond) -> bool {
        let (a, b) = (self.vars[cond.a.0 as usize], self.operand(cond.b));
        let (sa, sb) = (a as i64, b as i64);
        match cond.op {
            CmpOp::Eq => a == b,
            CmpOp::Ne => a != b,
            CmpOp::Lt => a < b,
            CmpOp::Le => a <= b,
            CmpOp::Gt => a > b,
            CmpOp::Ge => a >= b,
            CmpOp::SLt => sa < sb,
            CmpOp::SLe => sa <= sb,
            CmpOp::SGt => sa > sb,
            CmpOp::SGe => sa >= sb,
            CmpOp::Test => a & b != 0,
        }
    }

    fn op(&mut self, op: &Op) -> u64 {
        match op {
            Op::Copy(operand) => self.operand(*operand),
            Op::Alu(op, a, b) => alu64(*op, self.vars[a.0 as usize], self.operand(*b)),
            Op::Alu32(op, a, b) => u64::from(alu32(*op, self.vars[a.0 as usize] as u32, self.operand(*b) as u32)),
            Op::Extend { a, bits, signed } => {
                let shift = 64 - u32::from(*bits);
                let high = self.vars[a.0 as usize] << shift;
                if *signed { ((high as i64) >> shift) as u64 } else { high >> shift }
            }
            Op::Swap { a, bits } => self.vars[a.0 as usize].swap_bytes() >> (64 - u32::from(*bits)),
            Op::Load { ptr, offset, size, space: _ } => {
                let address = self.vars[ptr.0 as usize].wrapping_add_signed(i64::from(*offset));
                self.load(address, size.bytes() as usize)
            }
            Op::LoadSlot { slot, offset, size } => {
                let at = *offset as usize;
                little(&self.slots[slot.0 as usize][at..at + size.bytes() as usize])
            }
            Op::FetchAdd { ptr, offset, value } => {
                let address = self.vars[ptr.0 as usize].wrapping_add_signed(i64::from(*offset));
                let before = self.load(address, 8);
                let sum = before.wrapping_add(self.operand(*value));
                self.memory(address, 8).copy_from_slice(&sum.to_le_bytes());
                before
            }
            Op::Rodata(at) => RODATA + u64::from(*at),
            Op::Call(call) => self.call(call),
        }
    }

    fn call(&mut self, call: &Call) -> u64 {
        match (call.helper, call.args.as_slice()) {
            (helper, []) => answer(helpers::id(helper).expect("a helper without arguments has a number")),
            (Helper::MapLookup, [Arg::Map(map), Arg::Slot(key, offset)]) => {
                let def = self.module.layout.map(*map);
                let key = little(&self.slots[key.0 as usize][*offset as usize..][..4]);
                let value = MAPS + u64::from(map.0) * MAP_STRIDE + key * u64::from(def.value_bytes);
                if key < u64::from(def.entries) { value } else { 0 }
            }
            (Helper::MapUpdate, [Arg::Map(map), Arg::Slot(key, key_at), Arg::Slot(value, value_at), _]) => {
                let def = self.module.layout.map(*map);
                let key = &self.slots[key.0 as usize][*key_at as usize..][..def.key_bytes as usize];
                let value = &self.slots[value.0 as usize][*value_at as usize..][..def.value_bytes as usize];
                self.out.updates.push((key.to_vec(), value.to_vec()));
                0
            }
            other => panic!("no meaning for {other:?}"),
        }
    }
}

fn little(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

fn alu64(op: AluOp, a: u64, b: u64) -> u64 {
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

fn alu32(op: AluOp, a: u32, b: u32) -> u32 {
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
