//! Random IR functions that follow the IR's rules, from a string of numbers: shorter and smaller numbers give simpler
//! functions, so that a failure shrinks well.

use kstrobe_ebpf::ir::{
    AluOp, Arg, Block, CTX, Call, CmpOp, Cond, Func, Helper, Op, Operand, Size, Slot, Space, Stmt, Var,
};
use kstrobe_ebpf::layout::MapId;

/// 64-bit words of context that functions read.
pub const CTX_WORDS: u32 = 8;
/// Bytes of a value of map 0, where every function leaves what it computed.
const OUT_BYTES: u32 = 512;

/// Stack areas: a key, and 32 bytes to store into.
const KEY: Slot = Slot(0);
const AREA: Slot = Slot(1);
const AREA_BYTES: u32 = 32;

const ALU: [AluOp; 11] = [
    AluOp::Add,
    AluOp::Sub,
    AluOp::Mul,
    AluOp::Div,
    AluOp::Mod,
    AluOp::And,
    AluOp::Or,
    AluOp::Xor,
    AluOp::Shl,
    AluOp::Shr,
    AluOp::Sar,
];
const CMP: [CmpOp; 11] = [
    CmpOp::Eq,
    CmpOp::Ne,
    CmpOp::Lt,
    CmpOp::Le,
    CmpOp::Gt,
    CmpOp::Ge,
    CmpOp::SLt,
    CmpOp::SLe,
    CmpOp::SGt,
    CmpOp::SGe,
    CmpOp::Test,
];
const SIZES: [Size; 4] = [Size::B1, Size::B2, Size::B4, Size::B8];
const CONSTANTS: [i64; 12] = [0, 1, 2, 7, 8, 255, 0xffff, i32::MAX as i64, 0xffff_ffff, 1 << 32, i64::MAX, i64::MIN];
const NEGATIVE: [i64; 5] = [-1, -2, -128, i32::MIN as i64, i32::MIN as i64 - 1];

struct Source<'a> {
    numbers: std::slice::Iter<'a, u32>,
    vars: u32,
    /// Variables that hold a number on every path to here.
    numeric: Vec<Var>,
}

/// The function that `numbers` describe. With `pressure`, that many values are alive from start to end.
pub fn function(numbers: &[u32], pressure: u32) -> Func {
    let mut source = Source { numbers: numbers.iter(), vars: 1, numeric: Vec::new() };
    let mut body = vec![zero(KEY, 0)];
    body.extend((0..AREA_BYTES / 8).map(|word| zero(AREA, word * 8)));
    for n in 0..pressure.max(1) {
        let var = source.new_var();
        let offset = (n % CTX_WORDS * 8) as i32;
        body.push(Stmt::Set(var, Op::Load { ptr: CTX, offset, size: Size::B8, space: Space::Ctx }));
        source.numeric.push(var);
    }
    source.statements(&mut body, 0);
    source.report(&mut body);
    Func { vars: source.vars, ..super::func(0, &[8, AREA_BYTES], body) }
}

fn zero(slot: Slot, offset: u32) -> Stmt {
    Stmt::StoreSlot { slot, offset, size: Size::B8, value: Operand::Imm(0) }
}

impl Source<'_> {
    /// A number below `n`, 0 once the numbers have run out.
    fn below(&mut self, n: usize) -> usize {
        self.numbers.next().map_or(0, |number| *number as usize % n)
    }
    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
    fn new_var(&mut self) -> Var {
        self.vars += 1;
        Var(self.vars - 1)
    }
    fn number(&mut self) -> Var {
        let at = self.below(self.numeric.len());
        self.numeric[at]
    }
    fn operand(&mut self) -> Operand {
        match self.below(4) {
            0 => Operand::Imm(self.pick(&CONSTANTS)),
            1 => Operand::Imm(self.pick(&NEGATIVE)),
            _ => Operand::Var(self.number()),
        }
    }
    /// A place of this size in the stack area.
    fn place(&mut self, size: Size) -> u32 {
        self.below((AREA_BYTES / size.bytes()) as usize) as u32 * size.bytes()
    }
    fn has_more(&self) -> bool {
        self.numbers.len() > 0
    }

    fn statements(&mut self, body: &mut Block, depth: u32) {
        let count = if depth == 0 { 1000 } else { 1 + self.below(6) };
        for _ in 0..count {
            if !self.has_more() {
                return;
            }
            match self.below(16) {
                0..=7 => {
                    let op = self.op();
                    let var = if self.below(3) == 0 { self.number() } else { self.new_var() };
                    body.push(Stmt::Set(var, op));
                    if !self.numeric.contains(&var) {
                        self.numeric.push(var);
                    }
                }
                8 | 9 => {
                    let size = self.pick(&SIZES);
                    let offset = self.place(size);
                    let value = self.operand();
                    body.push(Stmt::StoreSlot { slot: AREA, offset, size, value });
                }
                10 => self.lookup(body, depth),
                11 => {
                    let args = vec![Arg::Map(MapId(1)), Arg::Slot(AREA, 0), Arg::Slot(AREA, 16), Arg::Imm(0)];
                    body.push(Stmt::Call(Call { helper: Helper::MapUpdate, args }));
                }
                12 => body.push(Stmt::Mark { line: 1 + self.below(9) as u32, column: 3 }),
                _ if depth < 4 => self.branch(body, depth),
                _ => {}
            }
        }
    }

    fn op(&mut self) -> Op {
        let alu = self.pick(&ALU);
        match self.below(10) {
            0 => Op::Copy(Operand::Var(self.number())),
            // Small negative constants would meet rbpf's jumps.
            1 => Op::Copy(Operand::Imm(self.pick(&CONSTANTS))),
            2 | 3 => Op::Alu(alu, self.number(), self.operand()),
            4 | 5 => {
                // rbpf keeps the high half in a 32-bit remainder by 0.
                let b = if alu == AluOp::Mod { Operand::Imm(self.pick(&[1, 3, 8, -1])) } else { self.operand() };
                Op::Alu32(alu, self.number(), b)
            }
            6 => Op::Extend { a: self.number(), bits: self.pick(&[8, 16, 32]), signed: self.below(2) == 1 },
            7 => Op::Swap { a: self.number(), bits: self.pick(&[16, 32, 64]) },
            8 => {
                let size = self.pick(&SIZES);
                Op::LoadSlot { slot: AREA, offset: self.place(size), size }
            }
            _ => {
                let helper = self.pick(&[Helper::KtimeGetNs, Helper::GetCurrentPidTgid, Helper::GetSmpProcessorId]);
                Op::Call(Call { helper, args: vec![] })
            }
        }
    }

    /// A condition that rbpf judges as the kernel does.
    fn cond(&mut self) -> Cond {
        let op = self.pick(&CMP);
        let signed = matches!(op, CmpOp::SLt | CmpOp::SLe | CmpOp::SGt | CmpOp::SGe | CmpOp::Test);
        let b = match self.below(4) {
            0 => Operand::Var(self.number()),
            1 if signed => Operand::Imm(self.pick(&NEGATIVE)),
            _ => Operand::Imm(self.pick(&CONSTANTS)),
        };
        Cond { op, a: self.number(), b }
    }

    fn branch(&mut self, body: &mut Block, depth: u32) {
        let cond = self.cond();
        let before = self.numeric.clone();
        let mut arms = [Vec::new(), Vec::new()];
        let mut after: Option<Vec<Var>> = None;
        for arm in &mut arms {
            self.numeric.clone_from(&before);
            if self.below(4) != 0 {
                self.statements(arm, depth + 1);
            }
            if self.below(8) == 1 {
                if self.below(2) == 0 {
                    self.report(arm);
                }
                arm.push(Stmt::Return);
                continue;
            }
            after = Some(match after {
                None => self.numeric.clone(),
                Some(other) => other.into_iter().filter(|var| self.numeric.contains(var)).collect(),
            });
        }
        // With both arms gone nothing that follows is reached: any set of variables will do.
        self.numeric = after.unwrap_or(before);
        let [then, otherwise] = arms;
        body.push(Stmt::If { cond, then, otherwise });
    }

    /// Looks a key up in the small map and works on the value if it is there.
    fn lookup(&mut self, body: &mut Block, depth: u32) {
        let key = Operand::Imm(self.pick(&[0, 1, 2, 9]));
        body.push(Stmt::StoreSlot { slot: KEY, offset: 0, size: Size::B4, value: key });
        let ptr = self.new_var();
        let args = vec![Arg::Map(MapId(1)), Arg::Slot(KEY, 0)];
        body.push(Stmt::Set(ptr, Op::Call(Call { helper: Helper::MapLookup, args })));
        let before = self.numeric.clone();
        let mut found = Vec::new();
        let size = self.pick(&SIZES);
        let value = self.operand();
        let old = self.new_var();
        found.push(Stmt::Set(old, Op::Load { ptr, offset: 8, size: Size::B4, space: Space::Value }));
        self.numeric.push(old);
        if depth < 4 {
            self.statements(&mut found, depth + 1);
        }
        found.push(Stmt::Store { ptr, offset: 8, size, value });
        let value = self.operand();
        found.push(Stmt::Add { ptr, offset: 0, value, atomic: false });
        self.numeric = before;
        let (cond, then, otherwise) = match self.below(2) {
            0 => (CmpOp::Ne, found, Vec::new()),
            _ => (CmpOp::Eq, Vec::new(), found),
        };
        body.push(Stmt::If { cond: Cond { op: cond, a: ptr, b: Operand::Imm(0) }, then, otherwise });
    }

    /// Leaves every number in map 0, and one byte of the tables with them.
    fn report(&mut self, body: &mut Block) {
        let (out, table, byte) = (self.new_var(), self.new_var(), self.new_var());
        body.push(Stmt::Set(table, Op::Rodata(8)));
        body.push(Stmt::Set(byte, Op::Load { ptr: table, offset: 5, size: Size::B2, space: Space::Rodata }));
        body.push(Stmt::StoreSlot { slot: KEY, offset: 0, size: Size::B4, value: Operand::Imm(1) });
        let args = vec![Arg::Map(MapId(0)), Arg::Slot(KEY, 0)];
        body.push(Stmt::Set(out, Op::Call(Call { helper: Helper::MapLookup, args })));
        let numbers = std::iter::once(byte).chain(self.numeric.iter().copied());
        let stores = numbers.zip((0..OUT_BYTES as i32).step_by(8)).map(|(var, offset)| Stmt::Store {
            ptr: out,
            offset,
            size: Size::B8,
            value: Operand::Var(var),
        });
        let cond = Cond { op: CmpOp::Ne, a: out, b: Operand::Imm(0) };
        body.push(Stmt::If { cond, then: stores.collect(), otherwise: Vec::new() });
    }
}
