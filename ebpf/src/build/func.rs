//! Writes one IR function: fresh variables, stack areas, nested blocks, and the values already computed in each.

use std::collections::HashMap;

use crate::ir::{
    AluOp, Arg, Block, CTX, Call, CmpOp, Cond, Duty, Func, Helper, Op, Operand, Size, Slot, Space, Stmt, Var,
};
use crate::layout::MapId;
use crate::typed::{Attach, Expr};

/// A function being written. Statements go to the innermost open block.
pub(super) struct Writer {
    vars: u32,
    slots: Vec<u32>,
    /// Areas that nothing needs any more.
    free: Vec<Slot>,
    open: Vec<Scope>,
    /// Line and column of what is being written.
    place: (u32, u32),
}

/// An open block and the expressions whose values are known in it: an inner block sees those of outer ones, and what it
/// computes is forgotten at its end, as it may not have run.
#[derive(Default)]
struct Scope {
    code: Block,
    known: HashMap<Expr, Var>,
    /// Text that lies in an area of the stack.
    texts: HashMap<Expr, Slot>,
    /// Areas taken in it and not released.
    slots: Vec<Slot>,
}

impl Writer {
    pub(super) fn new() -> Self {
        // Variable 0 is the context.
        Self { vars: CTX.0 + 1, slots: Vec::new(), free: Vec::new(), open: vec![Scope::default()], place: (1, 1) }
    }

    pub(super) fn finish(mut self, name: String, attach: Option<Attach>) -> Func {
        let body = self.open.pop().map(|s| s.code).unwrap_or_default();
        Func { name, attach, calls: None, duty: Duty::Always, vars: self.vars, slots: self.slots, body }
    }

    pub(super) fn fresh(&mut self) -> Var {
        self.vars += 1;
        Var(self.vars - 1)
    }

    /// A stack area of at least `bytes` bytes, until the block ends or it is released. What it held before is still in it.
    pub(super) fn slot(&mut self, bytes: u32) -> Slot {
        let bytes = bytes.next_multiple_of(8);
        let size = |slot: &Slot| self.slots[slot.0 as usize];
        let fits = (0..self.free.len()).filter(|i| size(&self.free[*i]) >= bytes);
        let slot = match fits.min_by_key(|i| size(&self.free[*i])) {
            Some(i) => self.free.swap_remove(i),
            None => {
                self.slots.push(bytes);
                Slot(self.slots.len() as u32 - 1)
            }
        };
        if let Some(scope) = self.open.last_mut() {
            scope.slots.push(slot);
        }
        slot
    }

    /// Lets others have an area that was taken in this block: the stack has 512 bytes for all.
    pub(super) fn release(&mut self, slot: Slot) {
        if let Some(scope) = self.open.last_mut()
            && let Some(i) = scope.slots.iter().position(|s| *s == slot)
        {
            scope.slots.swap_remove(i);
            self.free.push(slot);
        }
    }

    /// What follows comes from this place.
    pub(super) fn mark(&mut self, place: (u32, u32)) {
        self.place = place;
        let (line, column) = place;
        self.push(Stmt::Mark { line, column });
    }

    /// The same, where it is another place than that of what was written last.
    pub(super) fn mark_if_new(&mut self, place: (u32, u32)) {
        if self.place != place {
            self.mark(place);
        }
    }

    pub(super) fn push(&mut self, stmt: Stmt) {
        if let Some(scope) = self.open.last_mut() {
            scope.code.push(stmt);
        }
    }

    pub(super) fn extend(&mut self, block: Block) {
        if let Some(scope) = self.open.last_mut() {
            scope.code.extend(block);
        }
    }

    pub(super) fn known(&self, e: &Expr) -> Option<Var> {
        self.open.iter().rev().find_map(|s| s.known.get(e).copied())
    }

    pub(super) fn remember(&mut self, e: &Expr, v: Var) {
        if let Some(scope) = self.open.last_mut() {
            scope.known.insert(e.clone(), v);
        }
    }

    pub(super) fn known_text(&self, e: &Expr) -> Option<Slot> {
        self.open.iter().rev().find_map(|s| s.texts.get(e).copied())
    }

    pub(super) fn remember_text(&mut self, e: &Expr, slot: Slot) {
        if let Some(scope) = self.open.last_mut() {
            scope.texts.insert(e.clone(), slot);
        }
    }

    pub(super) fn begin(&mut self) {
        self.open.push(Scope::default());
    }

    pub(super) fn end(&mut self) -> Block {
        let scope = self.open.pop().unwrap_or_default();
        self.free.extend(scope.slots);
        scope.code
    }

    pub(super) fn block(&mut self, body: impl FnOnce(&mut Self)) -> Block {
        self.begin();
        body(self);
        self.end()
    }

    pub(super) fn set(&mut self, op: Op) -> Var {
        let v = self.fresh();
        self.push(Stmt::Set(v, op));
        v
    }

    pub(super) fn assign(&mut self, v: Var, op: Op) {
        self.push(Stmt::Set(v, op));
    }

    pub(super) fn imm(&mut self, value: i64) -> Var {
        self.set(Op::Copy(Operand::Imm(value)))
    }

    pub(super) fn alu(&mut self, op: AluOp, a: Var, b: Operand) -> Var {
        self.set(Op::Alu(op, a, b))
    }

    pub(super) fn call(&mut self, helper: Helper, args: Vec<Arg>) -> Var {
        self.set(Op::Call(Call { helper, args }))
    }

    pub(super) fn load(&mut self, ptr: Var, offset: i32, size: Size, space: Space) -> Var {
        self.set(Op::Load { ptr, offset, size, space })
    }

    pub(super) fn load_slot(&mut self, slot: Slot, offset: u32, size: Size) -> Var {
        self.set(Op::LoadSlot { slot, offset, size })
    }

    pub(super) fn store_slot(&mut self, slot: Slot, offset: u32, size: Size, value: Operand) {
        self.push(Stmt::StoreSlot { slot, offset, size, value });
    }

    pub(super) fn when(&mut self, op: CmpOp, a: Var, b: Operand, body: impl FnOnce(&mut Self)) {
        self.either(op, a, b, body, |_| {});
    }

    pub(super) fn either(
        &mut self,
        op: CmpOp,
        a: Var,
        b: Operand,
        then: impl FnOnce(&mut Self),
        otherwise: impl FnOnce(&mut Self),
    ) {
        let then = self.block(then);
        let otherwise = self.block(otherwise);
        self.push(Stmt::If { cond: Cond { op, a, b }, then, otherwise });
    }

    /// Leaves the program when the comparison holds.
    pub(super) fn leave_if(&mut self, op: CmpOp, a: Var, b: Operand) {
        self.when(op, a, b, |w| w.push(Stmt::Return));
    }

    /// `map[u32 index]` of an array; null when out of range.
    pub(super) fn array_element(&mut self, map: MapId, index: Operand) -> Var {
        let key = self.slot(4);
        self.store_slot(key, 0, Size::B4, index);
        let found = self.call(Helper::MapLookup, vec![Arg::Map(map), Arg::Slot(key, 0)]);
        self.release(key);
        found
    }
}
