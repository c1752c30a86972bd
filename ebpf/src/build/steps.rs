//! Functions of steps: one per attach point, which does what each of its steps says, in the user's order.
//!
//! A step works on a copy of its key's state in the stack, so that all it reads is of one moment; what it sets is written to
//! the map itself. Nothing leaves the program before the last step: what one passes over is the next one's affair, and a
//! state that is to go goes whatever a metric's condition says.

use super::Context;
use super::expr::Exprs;
use super::func::Writer;
use super::measure::{self, lost, write_key};
use super::memory::{StateMemory, key_layout, types};
use super::site::{begin, calls, mark, name};
use super::slow;
use crate::diag::{Diagnostic, Place};
use crate::ir::{Arg, CmpOp, Cond, Func, Helper, Operand, Size, Slot, Space, Stmt, Var};
use crate::layout::Loss;
use crate::typed::{Attach, Expr, Kind, Measure, Select, Shape, StepSite, Ty};

/// `BPF_NOEXIST`
const NO_EXIST: i64 = 1;

pub(super) fn steps<'a>(context: &'a Context<'a>) -> Result<Vec<Func>, Diagnostic> {
    let (Shape::Steps { sites, .. }, Some(memory)) = (&context.probe.shape, &context.memory.state) else {
        return Ok(vec![]);
    };
    let mut attaches: Vec<&Attach> = Vec::new();
    for site in sites {
        if !attaches.contains(&&site.attach) {
            attaches.push(&site.attach);
        }
    }
    let function = |(i, attach): (usize, &&Attach)| {
        let here: Vec<&StepSite> = sites.iter().filter(|s| s.attach == **attach).collect();
        let mut s = begin(context, here.first().map_or(Place::default(), |site| site.place));
        let calls = calls(here.iter().map(|site| &site.select));
        for site in here {
            // A block of its own: what one step has read, another may have changed.
            let code = s.block(|s| step(context, s, memory, site));
            s.w.extend(code);
        }
        Func { calls, ..s.w.finish(name(context, "step", i, attaches.len()), Some((*attach).clone())) }
    };
    Ok(attaches.iter().enumerate().map(function).collect())
}

fn step<'a>(context: &'a Context<'a>, s: &mut Exprs<'a>, memory: &StateMemory, site: &StepSite) {
    let body = |s: &mut Exprs<'a>| on_state(context, s, memory, site);
    match selection(site) {
        Some(cond) => s.when(&cond, body),
        None => body(s),
    }
}

/// What selects the step's events before the map is asked.
fn selection(site: &StepSite) -> Option<Expr> {
    let condition = |kind| Expr { kind, ty: Ty::Bool, duration: false, place: Place::default() };
    let Select::OneOf(e, values) = &site.select else { return site.filter.clone() };
    let selected = condition(Kind::OneOf(Box::new(e.clone()), values.clone()));
    match &site.filter {
        Some(filter) => Some(condition(Kind::And(Box::new(selected), Box::new(filter.clone())))),
        None => Some(selected),
    }
}

/// The state of an event's key.
struct Found {
    key: Slot,
    /// In the map; null when there is none.
    state: Var,
    /// Its copy, all zero when there is none.
    copy: Slot,
}

fn on_state<'a>(context: &'a Context<'a>, s: &mut Exprs<'a>, memory: &StateMemory, site: &StepSite) {
    let (offsets, bytes) = key_layout(&types(&site.by));
    let key = s.w.slot(bytes);
    write_key(s, key, bytes, &offsets, &site.by);
    let state = s.w.call(Helper::MapLookup, vec![Arg::Map(memory.map), Arg::Slot(key, 0)]);
    let copy = s.w.slot(memory.bytes);
    let words = || (0..memory.bytes).step_by(8);
    words().for_each(|at| s.w.store_slot(copy, at, Size::B8, Operand::Imm(0)));
    s.w.when(CmpOp::Ne, state, Operand::Imm(0), |w| {
        for at in words() {
            let word = w.load(state, at as i32, Size::B8, Space::Value);
            w.store_slot(copy, at, Size::B8, Operand::Var(word));
        }
    });
    let found = Found { key, state, copy };
    s.inputs.state = Some((copy, &context.memory.state_offsets));
    let body = |s: &mut Exprs<'a>| act(context, s, memory, site, &found);
    match &site.state_filter {
        Some(cond) => s.when(cond, body),
        None => body(s),
    }
    s.inputs.state = None;
}

/// Measures what the step observes, and sends what is slow of it.
fn observe<'a>(context: &'a Context<'a>, s: &mut Exprs<'a>, site: &StepSite) {
    if !site.observe.is_empty() {
        let all: Vec<Option<&Measure>> = (0..context.probe.metrics.len())
            .map(|metric| site.observe.iter().find(|(n, _)| *n as usize == metric).map(|(_, measure)| measure))
            .collect();
        measure::measures(context, s, &all);
    }
    slow::send(context, s, site.slow.as_ref());
}

fn act<'a>(context: &'a Context<'a>, s: &mut Exprs<'a>, memory: &StateMemory, site: &StepSite, found: &Found) {
    match &site.measured {
        Some(cond) => s.when(cond, |s| observe(context, s, site)),
        None => observe(context, s, site),
    }
    mark(context, &mut s.w, site.place);
    if site.delete {
        // Before it goes: what is neither there nor counted looks evicted.
        count(&mut s.w, memory, DELETED, 1);
        let args = vec![Arg::Map(memory.map), Arg::Slot(found.key, 0)];
        let failed = s.w.call(Helper::MapDelete, args);
        s.w.when(CmpOp::Ne, failed, Operand::Imm(0), |w| count(w, memory, DELETED, -1));
    } else if !site.set.is_empty() {
        set(context, s, memory, site, found);
    }
}

/// What is to be stored: computed before anything is.
enum New {
    Number(Operand, Size),
    /// In an area of so many bytes, the rest of which is zero.
    Text(Slot, u32),
}

fn set(context: &Context<'_>, s: &mut Exprs<'_>, memory: &StateMemory, site: &StepSite, found: &Found) {
    let Shape::Steps { fields, .. } = &context.probe.shape else { return };
    let mut values: Vec<(u32, New)> = Vec::new();
    for (field, e) in &site.set {
        let at = context.memory.state_offsets[*field as usize];
        let ty = fields[*field as usize].1;
        let new = if ty.is_scalar() {
            New::Number(s.kept(e), Size::of(ty.bytes()).unwrap_or(Size::B8))
        } else {
            let bytes = ty.bytes().next_multiple_of(8);
            let area = s.w.slot(bytes);
            (0..bytes).step_by(8).for_each(|at| s.w.store_slot(area, at, Size::B8, Operand::Imm(0)));
            s.text(e, area, 0);
            New::Text(area, bytes)
        };
        values.push((at, new));
    }
    let present = (memory.present, New::Number(Operand::Imm(1), Size::B1));
    values.push(present);
    let known = s.w.block(|w| store(w, found.state, &values));
    let new = s.w.block(|w| {
        for (at, new) in &values {
            match new {
                New::Number(value, size) => w.store_slot(found.copy, *at, *size, *value),
                New::Text(area, bytes) => {
                    for word in (0..*bytes).step_by(8) {
                        let value = w.load_slot(*area, word, Size::B8);
                        w.store_slot(found.copy, *at + word, Size::B8, Operand::Var(value));
                    }
                }
            }
        }
        let args = vec![Arg::Map(memory.map), Arg::Slot(found.key, 0), Arg::Slot(found.copy, 0), Arg::Imm(NO_EXIST)];
        let failed = w.call(Helper::MapUpdate, args);
        w.either(
            CmpOp::Eq,
            failed,
            Operand::Imm(0),
            |w| count(w, memory, INSERTED, 1),
            |w| {
                // Another CPU was faster, or there is no memory.
                let again = w.call(Helper::MapLookup, vec![Arg::Map(memory.map), Arg::Slot(found.key, 0)]);
                w.either(
                    CmpOp::Ne,
                    again,
                    Operand::Imm(0),
                    |w| store(w, again, &values),
                    |w| lost(context, w, Loss::StateEvicted),
                );
            },
        );
    });
    let cond = Cond { op: CmpOp::Ne, a: found.state, b: Operand::Imm(0) };
    s.w.push(Stmt::If { cond, then: known, otherwise: new });
}

/// Writes values into a state where it lies.
fn store(w: &mut Writer, state: Var, values: &[(u32, New)]) {
    for (at, new) in values {
        match new {
            New::Number(value, size) => {
                w.push(Stmt::Store { ptr: state, offset: *at as i32, size: *size, value: *value });
            }
            New::Text(area, bytes) => {
                for word in (0..*bytes).step_by(8) {
                    let value = Operand::Var(w.load_slot(*area, word, Size::B8));
                    let offset = (*at + word) as i32;
                    w.push(Stmt::Store { ptr: state, offset, size: Size::B8, value });
                }
            }
        }
    }
}

/// Words of a CPU's counts.
const INSERTED: i32 = 0;
const DELETED: i32 = 8;

/// The kernel does not say what it evicts: the agent tells from how many states came, went and are there.
fn count(w: &mut Writer, memory: &StateMemory, word: i32, by: i64) {
    let cpu = w.call(Helper::GetSmpProcessorId, vec![]);
    let counts = w.array_element(memory.counts, Operand::Var(cpu));
    w.when(CmpOp::Ne, counts, Operand::Imm(0), |w| {
        w.push(Stmt::Add { ptr: counts, offset: word, value: Operand::Imm(by), atomic: true });
    });
}
