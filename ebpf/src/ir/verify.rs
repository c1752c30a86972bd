//! Checks that a module is well-formed, so that the lowering and the interpreter may rely on it, and so
//! that a mistake of the compiler is found here, with a readable message, and not in the kernel's verifier log.
//!
//! # Rules
//!
//! Module:
//! - `names`: functions are unique C identifiers of 1 to 63 bytes, maps of 1 to 15 bytes (the kernel cuts longer ones);
//! - `maps`: values have at least 1 byte, keys of arrays have 4 and stacks have none, there is at least one entry (task
//!   storage grows by itself).
//!
//! Function:
//! - `vars`: variables and slots exist; [`CTX`] is there and is never assigned;
//! - `assigned`: a variable is assigned on every path before it is used;
//! - `stack`: slots together (each rounded up to 8 bytes) have at most 480 bytes; accesses are in range and aligned, and
//!   every byte that is read, also by a helper, was written on every path before. `probe_read_*_str` counts as writing one
//!   byte, since what lies behind the NUL stays as it was;
//! - `widths`: `Extend` takes 8, 16 or 32 bits, `Swap` takes 16, 32 or 64;
//! - `calls`: arity, kinds and constants of arguments fit the helper, and the map exists and has a kind it takes;
//! - `rodata`: addresses lie inside the read-only bytes; loads whose offset is known are in range and aligned;
//! - `null`: the result of `map_lookup` and `task_storage_get` is compared with 0 before it is used, on every path;
//! - `pointers`: `Store`, `Add` and loads use an address of the space they name; map values and read-only data allow only
//!   `+ number`, `- number` and (map values) comparison with 0, and are never stored or passed as numbers; accesses to map
//!   values whose offset is known are in range and aligned (`Add` is one of 8 bytes); the context plus a number is an
//!   address that only helpers read from;
//! - `return`: no code follows where every path has returned;
//! - `nesting`: blocks nest at most 200 deep;
//! - `marks`: lines and columns count from 1.
//!
//! Not checked: offsets into map values and tables that are computed at run time. The interpreter traps on them, and the
//! kernel's verifier has to see a bound.

mod calls;
mod state;
#[cfg(test)]
mod tests;
mod violation;

use super::{AluOp, Block, CTX, CmpOp, Cond, Func, Module, Op, Operand, Size, Slot, Space, Stmt, Var, print};
use crate::layout::{MapDef, MapKind};
use state::{Kind, State};
use std::collections::HashSet;
use std::fmt::Display;
use violation::Violation;

/// Deepest nesting of blocks.
const MAX_DEPTH: u32 = 200;

/// Checks every rule; all violations, each with its function, place and statement.
pub fn verify(module: &Module) -> Result<(), Vec<String>> {
    let mut errors = Vec::new();
    let mut names = HashSet::new();
    for map in &module.layout.maps {
        errors.extend(check_map(map).into_iter().map(|message| format!("map `{}`: {message}", map.name)));
        if !names.insert(&map.name) {
            errors.push(format!("map `{}`: another map has this name", map.name));
        }
    }
    names.clear();
    for func in &module.funcs {
        if !is_identifier(&func.name, 63) {
            errors.push(format!("function `{}`: not a C identifier of 1 to 63 bytes", func.name));
        }
        if !names.insert(&func.name) {
            errors.push(format!("function `{}`: another function has this name", func.name));
        }
        let mut walk = Walk { module, func, place: None, next_id: 0, errors: Vec::new() };
        walk.run();
        errors.extend(walk.errors);
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

fn is_identifier(name: &str, most: usize) -> bool {
    let start = name.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    start && name.len() <= most && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

fn check_map(map: &MapDef) -> Vec<&'static str> {
    let key_fits = match map.kind {
        MapKind::Array { .. } | MapKind::StackTrace | MapKind::PerfEvents => map.key_bytes == 4,
        MapKind::Stack | MapKind::RingBuf => map.key_bytes == 0,
        MapKind::Hash | MapKind::LruHash => map.key_bytes > 0,
        MapKind::TaskStorage => true,
    };
    let rules = [
        (is_identifier(&map.name, 15), "not a C identifier of 1 to 15 bytes"),
        (map.value_bytes > 0 || map.kind == MapKind::RingBuf, "values have no bytes"),
        (key_fits, "the key's size does not fit the kind of map"),
        (map.entries > 0 || map.kind == MapKind::TaskStorage, "no entries"),
    ];
    rules.into_iter().filter(|(holds, _)| !holds).map(|(_, message)| message).collect()
}

/// The walk over one function.
struct Walk<'a> {
    module: &'a Module,
    func: &'a Func,
    /// The last [`Stmt::Mark`].
    place: Option<(u32, u32)>,
    /// Names the next map value pointer.
    next_id: u32,
    errors: Vec<String>,
}

impl Walk<'_> {
    fn run(&mut self) {
        if self.func.vars == 0 {
            return self.error(&Violation::NoContext);
        }
        let stack: u64 = self.func.slots.iter().map(|&bytes| u64::from(bytes).next_multiple_of(8)).sum();
        if stack > u64::from(crate::ir::MAX_STACK_BYTES) {
            return self.error(&Violation::StackSize(stack));
        }
        if self.func.slots.contains(&0) {
            self.error(&Violation::EmptySlot);
        }
        let state = State::new(self.func);
        self.block(&self.func.body, state, 0);
    }

    fn error(&mut self, message: &impl Display) {
        let place = self.place.map(|(line, column)| format!(" at {line}:{column}")).unwrap_or_default();
        self.errors.push(format!("function `{}`{place}: {message}", self.func.name));
    }

    /// The state after a block; `None` when all its paths return.
    fn block(&mut self, block: &Block, state: State, depth: u32) -> Option<State> {
        if depth > MAX_DEPTH && !block.is_empty() {
            self.error(&Violation::Depth);
            return Some(state);
        }
        let mut state = Some(state);
        for stmt in block {
            match state.take() {
                Some(before) => state = self.stmt(stmt, before, depth),
                None if matches!(stmt, Stmt::Mark { .. }) => {}
                None => {
                    self.report(stmt, Err(Violation::Unreachable));
                    return None;
                }
            }
        }
        state
    }

    fn stmt(&mut self, stmt: &Stmt, mut state: State, depth: u32) -> Option<State> {
        let result = match stmt {
            Stmt::Mark { line, column } => {
                self.place = Some((*line, *column));
                check(*line > 0 && *column > 0, || Violation::Mark)
            }
            Stmt::Set(var, op) => {
                let kind = self.op(op, &mut state);
                // Go on as if it were a number: one mistake, one message.
                let set = state.set(*var, *kind.as_ref().unwrap_or(&Kind::Number));
                kind.and(set)
            }
            Stmt::Call(call) => self.call(call, &mut state).map(|_| ()),
            Stmt::Store { ptr, offset, size, value } => {
                self.value_access(&state, *ptr, *offset, *size).and_then(|()| state.number(*value))
            }
            Stmt::Add { ptr, offset, value, atomic: _ } => {
                self.value_access(&state, *ptr, *offset, Size::B8).and_then(|()| state.number(*value))
            }
            Stmt::StoreSlot { slot, offset, size, value } => aligned(i64::from(*offset), *size)
                .and_then(|()| state.number(*value))
                .and_then(|()| state.write(*slot, *offset, size.bytes())),
            Stmt::If { cond, then, otherwise } => {
                let checked = check_cond(&state, *cond);
                self.report(stmt, checked);
                return self.branches(*cond, then, otherwise, state, depth);
            }
            Stmt::Return => return None,
        };
        self.report(stmt, result);
        Some(state)
    }

    fn report(&mut self, stmt: &Stmt, result: Result<(), Violation>) {
        if let Err(violation) = result {
            self.error(&format_args!("`{}`: {violation}", print::stmt(stmt, &self.module.layout)));
        }
    }

    fn branches(&mut self, cond: Cond, then: &Block, otherwise: &Block, state: State, depth: u32) -> Option<State> {
        let (mut holds, mut fails) = (state.clone(), state);
        match (cond.op, cond.b) {
            (CmpOp::Eq, Operand::Imm(0)) => {
                holds.assume_null(cond.a, true);
                fails.assume_null(cond.a, false);
            }
            (CmpOp::Ne, Operand::Imm(0)) => {
                holds.assume_null(cond.a, false);
                fails.assume_null(cond.a, true);
            }
            _ => {}
        }
        let place = self.place;
        let after_then = self.block(then, holds, depth + 1);
        self.place = place;
        let after_otherwise = self.block(otherwise, fails, depth + 1);
        self.place = place;
        match (after_then, after_otherwise) {
            (Some(a), Some(b)) => Some(a.join(b, &mut self.next_id)),
            (one, other) => one.or(other),
        }
    }

    fn op(&mut self, op: &Op, state: &mut State) -> Result<Kind, Violation> {
        match op {
            Op::Copy(Operand::Var(var)) => state.kind(*var),
            Op::Copy(Operand::Imm(0)) => Ok(Kind::Zero),
            Op::Copy(Operand::Imm(_)) => Ok(Kind::Number),
            Op::Alu(op, a, b) => arithmetic(state, *op, *a, *b),
            Op::Alu32(_, a, b) => state.number(Operand::Var(*a)).and(state.number(*b)).map(|()| Kind::Number),
            Op::Extend { a, bits, .. } => {
                check([8, 16, 32].contains(bits), || Violation::Extend(*bits))?;
                state.number(Operand::Var(*a)).map(|()| Kind::Number)
            }
            Op::Swap { a, bits } => {
                check([16, 32, 64].contains(bits), || Violation::Swap(*bits))?;
                state.number(Operand::Var(*a)).map(|()| Kind::Number)
            }
            Op::Load { ptr, offset, size, space } => {
                self.load(state, *ptr, *offset, *size, *space).map(|()| Kind::Number)
            }
            Op::LoadSlot { slot, offset, size } => {
                aligned(i64::from(*offset), *size)?;
                state.read(*slot, *offset, size.bytes()).map(|()| Kind::Number)
            }
            Op::FetchAdd { ptr, offset, value } => {
                self.value_access(state, *ptr, *offset, Size::B8)?;
                state.number(*value).map(|()| Kind::Number)
            }
            Op::Rodata(offset) => {
                let length = self.module.rodata.len();
                check((*offset as usize) < length, || Violation::Rodata(length))?;
                Ok(Kind::Rodata { offset: Some(i64::from(*offset)) })
            }
            Op::Call(call) => self.call(call, state),
        }
    }

    fn load(&self, state: &State, ptr: Var, offset: i32, size: Size, space: Space) -> Result<(), Violation> {
        match (space, state.kind(ptr)?) {
            (Space::Value, _) => self.value_access(state, ptr, offset, size),
            (Space::Kernel, Kind::Number | Kind::Zero) => Ok(()),
            (Space::Ctx, Kind::Ctx) => {
                check(offset >= 0, || Violation::BeforeContext)?;
                aligned(i64::from(offset), size)
            }
            (Space::Rodata, Kind::Rodata { offset: None }) => Ok(()),
            (Space::Rodata, Kind::Rodata { offset: Some(base) }) => {
                in_range(base.saturating_add(i64::from(offset)), size, self.module.rodata.len() as u64)
            }
            (_, kind) => Err(Violation::Space(ptr, kind)),
        }
    }

    /// An access through a map value pointer.
    fn value_access(&self, state: &State, ptr: Var, offset: i32, size: Size) -> Result<(), Violation> {
        match state.kind(ptr)? {
            Kind::Value { null: true, .. } => Err(Violation::MaybeNull(ptr)),
            Kind::Value { offset: None, .. } => Ok(()),
            Kind::Value { map, offset: Some(base), .. } => {
                let length = self.module.layout.maps.get(map as usize).map_or(0, |map| map.value_bytes);
                in_range(base.saturating_add(i64::from(offset)), size, u64::from(length))
            }
            kind => Err(Violation::NotAValue(ptr, kind)),
        }
    }
}

/// Arithmetic: on numbers anything, on addresses only adding and subtracting a number.
fn arithmetic(state: &State, op: AluOp, a: Var, b: Operand) -> Result<Kind, Violation> {
    let right = match b {
        Operand::Var(var) => state.kind(var)?,
        Operand::Imm(_) => Kind::Number,
    };
    let distance = match (op, b) {
        (AluOp::Add, Operand::Imm(by)) => Some(by),
        (AluOp::Sub, Operand::Imm(by)) => by.checked_neg(),
        _ => None,
    };
    match (state.kind(a)?, right, op) {
        (Kind::Number | Kind::Zero, Kind::Number | Kind::Zero, _) => Ok(Kind::Number),
        // No load takes it, but helpers that read kernel memory do: text in a tracepoint's record.
        (Kind::Ctx, Kind::Number | Kind::Zero, AluOp::Add) => Ok(Kind::Number),
        (pointer, Kind::Number | Kind::Zero, AluOp::Add | AluOp::Sub) => pointer.moved(distance),
        (Kind::Number | Kind::Zero, pointer, AluOp::Add) => pointer.moved(None),
        (Kind::Number | Kind::Zero, pointer, _) | (pointer, ..) => Err(Violation::Arithmetic(pointer)),
    }
}

fn check_cond(state: &State, cond: Cond) -> Result<(), Violation> {
    let is_null_test = matches!((cond.op, cond.b), (CmpOp::Eq | CmpOp::Ne, Operand::Imm(0)));
    match state.kind(cond.a)? {
        Kind::Number | Kind::Zero => state.number(cond.b),
        Kind::Value { .. } if is_null_test => Ok(()),
        kind => Err(Violation::Comparison(cond.a, kind)),
    }
}

fn in_range(at: i64, size: Size, length: u64) -> Result<(), Violation> {
    aligned(at, size)?;
    let end = at.saturating_add(i64::from(size.bytes()));
    check(at >= 0 && end.unsigned_abs() <= length, || Violation::Range { at, bytes: size.bytes(), length })
}

fn aligned(at: i64, size: Size) -> Result<(), Violation> {
    check(at % i64::from(size.bytes()) == 0, || Violation::Unaligned { at, bytes: size.bytes() })
}

fn check(holds: bool, violation: impl FnOnce() -> Violation) -> Result<(), Violation> {
    if holds { Ok(()) } else { Err(violation()) }
}
