//! The bucket index as code: the hottest instructions of the product.
//!
//! Only the search for the row branches (three steps for the default seconds, so at most 2^3 + 1 paths for the kernel's
//! verifier). Comparisons are subtractions whose sign bit is added to the index: no branch to mispredict, no path to
//! verify, and the loads do not wait for one another. After the mask the paths differ in dead variables only, so the
//! verifier merges them behind the index.

use super::{Fast, Scheme};
use crate::ir::{AluOp, Block, CmpOp, Cond, Op, Operand, Size, Space, Stmt, Var};

/// Where a scheme's tables lie in the module's read-only bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tables {
    /// Offset of the start table.
    pub start: u32,
    /// Offset of the padded upper bounds.
    pub upper: u32,
}

impl Scheme {
    /// The tables as bytes: upper bounds, then start values, little-endian. Their size is a multiple of 8.
    pub fn rodata(&self) -> Vec<u8> {
        let fast = self.fast();
        let mut bytes: Vec<u8> = fast.upper.iter().flat_map(|upper| upper.to_le_bytes()).collect();
        if fast.wide() {
            bytes.extend(fast.start.iter().flat_map(|start| start.to_le_bytes()));
        } else {
            // Fewer than 256 buckets: the cast loses nothing.
            bytes.extend(fast.start.iter().map(|&start| start as u8));
        }
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes
    }

    /// Appends the tables to a module's read-only bytes, 8-byte aligned. Once per scheme and module is enough.
    pub fn append_rodata(&self, rodata: &mut Vec<u8>) -> Tables {
        rodata.resize(rodata.len().next_multiple_of(8), 0);
        let upper = rodata.len() as u32;
        rodata.extend(self.rodata());
        Tables { upper, start: upper + 8 * self.fast().upper.len() as u32 }
    }

    /// Code that sets `out` to the bucket of `v`; `out` must be another variable than `v`, which keeps its value.
    ///
    /// `fresh` makes new variables. To the kernel's verifier `out` is bounded, but only by the padded tables (at most a
    /// few hundred; below 1,030): code that addresses a record with it adds a test `out < buckets()`.
    pub fn emit(&self, v: Var, out: Var, tables: Tables, fresh: &mut impl FnMut() -> Var) -> Block {
        let last_bucket = Operand::Imm(self.fast().overflow.into());
        vec![Stmt::If {
            cond: Cond { op: CmpOp::Gt, a: v, b: Operand::Imm(self.fast().last as i64) },
            then: vec![Stmt::Set(out, Op::Copy(last_bucket))],
            otherwise: look_up(self.fast(), v, out, tables, fresh),
        }]
    }
}

fn look_up(fast: &Fast, v: Var, out: Var, tables: Tables, fresh: &mut impl FnMut() -> Var) -> Block {
    let (top, group) = (fresh(), fresh());
    let mut code = vec![
        Stmt::Set(top, if fast.shift == 0 { Op::Copy(Operand::Var(v)) } else { alu(AluOp::Shr, v, fast.shift.into()) }),
        Stmt::Set(group, Op::Copy(Operand::Imm(0))),
    ];
    for &step in &fast.steps {
        code.push(Stmt::If {
            cond: Cond { op: CmpOp::Ge, a: top, b: Operand::Imm(fast.threshold(step) as i64) },
            then: vec![
                Stmt::Set(top, alu(AluOp::Shr, top, step.into())),
                Stmt::Set(group, alu(AluOp::Add, group, fast.groups_skipped(step) as i64)),
            ],
            otherwise: vec![],
        });
    }
    code.push(Stmt::Set(group, Op::Alu(AluOp::Add, group, Operand::Var(top))));
    code.push(Stmt::Set(group, alu(AluOp::And, group, fast.group_mask() as i64)));
    if fast.wide() {
        code.push(Stmt::Set(group, alu(AluOp::Shl, group, 1)));
    }
    let start = fresh();
    code.push(Stmt::Set(start, Op::Rodata(tables.start)));
    code.push(Stmt::Set(start, Op::Alu(AluOp::Add, start, Operand::Var(group))));
    let size = if fast.wide() { Size::B2 } else { Size::B1 };
    code.push(Stmt::Set(out, Op::Load { ptr: start, offset: 0, size, space: Space::Rodata }));
    if fast.wide() {
        code.push(Stmt::Set(out, alu(AluOp::And, out, fast.start_mask() as i64)));
    }
    if fast.compares > 0 {
        compare(fast, v, out, tables, fresh, &mut code);
    }
    code
}

/// `out += #{ j < compares : v > upper[out + j] }`, for v and upper below 2^63.
fn compare(fast: &Fast, v: Var, out: Var, tables: Tables, fresh: &mut impl FnMut() -> Var, code: &mut Block) {
    let (offset, upper, above) = (fresh(), fresh(), fresh());
    code.push(Stmt::Set(offset, alu(AluOp::Shl, out, 3)));
    code.push(Stmt::Set(upper, Op::Rodata(tables.upper)));
    code.push(Stmt::Set(upper, Op::Alu(AluOp::Add, upper, Operand::Var(offset))));
    for j in 0..i32::from(fast.compares) {
        let load = Op::Load { ptr: upper, offset: 8 * j, size: Size::B8, space: Space::Rodata };
        code.push(Stmt::Set(above, load));
        code.push(Stmt::Set(above, Op::Alu(AluOp::Sub, above, Operand::Var(v))));
        code.push(Stmt::Set(above, alu(AluOp::Shr, above, 63)));
        code.push(Stmt::Set(out, Op::Alu(AluOp::Add, out, Operand::Var(above))));
    }
}

fn alu(op: AluOp, a: Var, b: i64) -> Op {
    Op::Alu(op, a, Operand::Imm(b))
}
