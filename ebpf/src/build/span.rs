//! Functions of spans: what opens one, what closes and measures it, and what watches the task being switched out between.

use super::Context;
use super::control;
use super::expr::{Exprs, Inputs};
use super::func::Writer;
use super::measure::{self, lost, write_key};
use super::memory::{OFF_SINCE, OFF_TOTAL, START, key_layout, types};
use super::open_tasks;
use super::site::{begin, calls, mark, name, select};
use super::slow;
use crate::diag::{Diagnostic, Place};
use crate::ir::{AluOp, Arg, CTX, Call, CmpOp, Cond, Duty, Func, Helper, Op, Operand, Size, Slot, Space, Stmt, Var};
use crate::kernel_target::btf;
use crate::layout::Loss;
use crate::program::Keep;
use crate::typed::{Attach, EndSite, Expr, Measure, Shape, SpanKey, StartSite, Ty};

/// `BPF_LOCAL_STORAGE_GET_F_CREATE`
const CREATE: i64 = 1;

/// The functions of a span, in the order they attach: what closes spans first, so that none opens unwatched.
pub(super) fn span(context: &Context<'_>) -> Result<Vec<Func>, Diagnostic> {
    let Shape::Span { start, end, off_cpu, .. } = &context.probe.shape else { return Ok(vec![]) };
    let mut funcs = Vec::new();
    if *off_cpu {
        funcs.push(switch(context)?);
    }
    for (i, site) in end.iter().enumerate() {
        funcs.push(close(context, site, name(context, "end", i, end.len())));
    }
    for (i, site) in start.iter().enumerate() {
        funcs.push(open(context, site, name(context, "start", i, start.len())));
    }
    Ok(funcs)
}

fn key<'a>(context: &'a Context<'_>) -> &'a SpanKey {
    match &context.probe.shape {
        Shape::Span { key, .. } => key,
        _ => &SpanKey::Task,
    }
}

fn keep(context: &Context<'_>) -> Keep {
    match &context.probe.shape {
        Shape::Span { keep, .. } => *keep,
        _ => Keep::Last,
    }
}

/// This duty where the spans have weights: else each event has to be seen.
fn duty(context: &Context<'_>, weighted: Duty) -> Duty {
    if context.memory.layout.control.is_some() { weighted } else { Duty::Always }
}

fn watches_switches(context: &Context<'_>) -> bool {
    matches!(&context.probe.shape, Shape::Span { off_cpu: true, .. })
}

/// Where a span's state is found.
enum Found {
    State(Var),
    /// In the storage of this task.
    OfTask {
        state: Var,
        task: Var,
    },
    /// A hash key in a stack area: the state may not exist yet.
    Keyed(Slot),
}

fn open(context: &Context<'_>, site: &StartSite, name: String) -> Func {
    let mut s = begin(context, site.place);
    select(&mut s, &site.select);
    // Chance knows nothing of the condition, so that it may decide first: a call that is passed over costs no look at its file.
    let weight = control::sample_call(context, &mut s.w);
    if let Some(cond) = &site.filter {
        s.guard(cond);
    }
    match locate(context, &mut s, &site.by, CREATE) {
        Found::State(state) => {
            s.w.leave_if(CmpOp::Eq, state, Operand::Imm(0));
            open_at(context, &mut s, site, (state, None), weight);
        }
        Found::OfTask { state, task } => {
            let miss = s.w.block(|w| {
                lost(context, w, Loss::NoStorage);
                w.push(Stmt::Return);
            });
            let cond = Cond { op: CmpOp::Eq, a: state, b: Operand::Imm(0) };
            s.w.push(Stmt::If { cond, then: miss, otherwise: vec![] });
            open_at(context, &mut s, site, (state, Some(task)), weight);
        }
        Found::Keyed(key) => open_hashed(context, &mut s, site, key),
    }
    Func {
        calls: calls([&site.select]),
        duty: duty(context, Duty::Begins),
        ..s.w.finish(name, Some(site.attach.clone()))
    }
}

/// `task` is the one whose storage has the state.
fn open_at(
    context: &Context<'_>,
    s: &mut Exprs<'_>,
    site: &StartSite,
    (state, task): (Var, Option<Var>),
    weight: Option<Var>,
) {
    let Some(open) = &context.memory.open else { return };
    keep_first(context, s, state);
    match (open.weight_at, weight) {
        (Some(offset), Some(weight)) => {
            s.w.push(Stmt::Store { ptr: state, offset, size: Size::B8, value: Operand::Var(weight) });
            control::mark_call(context, &mut s.w);
        }
        (Some(weight_at), None) => {
            let pass_over = |w: &mut Writer| {
                if let Some(task) = task {
                    let started = w.load(state, START, Size::B8, Space::Value);
                    open_tasks::count_closed(open, w, task, started);
                }
            };
            control::sample_start(context, &mut s.w, (state, START, weight_at), pass_over);
        }
        (None, _) => {}
    }
    if let Some(task) = task {
        open_tasks::count_opened(open, &mut s.w, task, state);
    }
    fill_state(context, s, site, state);
}

fn keep_first(context: &Context<'_>, s: &mut Exprs<'_>, state: Var) {
    if keep(context) == Keep::First {
        let started = s.w.load(state, START, Size::B8, Space::Value);
        s.w.leave_if(CmpOp::Ne, started, Operand::Imm(0));
    }
}

/// Writes a span's state where it lies; the clock is read last, so that our own work is not part of the span.
fn fill_state(context: &Context<'_>, s: &mut Exprs<'_>, site: &StartSite, state: Var) {
    let Some(memory) = &context.memory.open else { return };
    for (e, at) in site.save.iter().zip(&memory.saved) {
        if e.ty.is_scalar() {
            let value = s.kept(e);
            let size = Size::of(e.ty.bytes()).unwrap_or(Size::B8);
            s.w.push(Stmt::Store { ptr: state, offset: *at as i32, size, value });
        } else {
            let bytes = e.ty.bytes().next_multiple_of(8);
            let area = s.w.slot(bytes);
            s.text(e, area, 0);
            for w in (0..bytes).step_by(8) {
                let v = s.w.load_slot(area, w, Size::B8);
                let value = Operand::Var(v);
                s.w.push(Stmt::Store { ptr: state, offset: (*at + w) as i32, size: Size::B8, value });
            }
            s.w.release(area);
        }
    }
    if watches_switches(context) {
        for offset in [OFF_TOTAL, OFF_SINCE] {
            s.w.push(Stmt::Store { ptr: state, offset, size: Size::B8, value: Operand::Imm(0) });
        }
    }
    let now = s.w.call(Helper::KtimeGetNs, vec![]);
    s.w.push(Stmt::Store { ptr: state, offset: START, size: Size::B8, value: Operand::Var(now) });
}

/// Reuses the state of a key that has one; puts a new one in otherwise.
fn open_hashed(context: &Context<'_>, s: &mut Exprs<'_>, site: &StartSite, key: Slot) {
    let Some(memory) = &context.memory.open else { return };
    let state = s.w.call(Helper::MapLookup, vec![Arg::Map(memory.map), Arg::Slot(key, 0)]);
    let reuse = s.block(|s| {
        keep_first(context, s, state);
        fill_state(context, s, site, state);
    });
    let insert = s.block(|s| {
        let value = s.w.slot(memory.bytes);
        for w in (0..memory.bytes).step_by(8) {
            s.w.store_slot(value, w, Size::B8, Operand::Imm(0));
        }
        for (e, at) in site.save.iter().zip(&memory.saved) {
            if e.ty.is_scalar() {
                let v = s.kept(e);
                s.w.store_slot(value, *at, Size::of(e.ty.bytes()).unwrap_or(Size::B8), v);
            } else {
                s.text(e, value, *at);
            }
        }
        let now = s.w.call(Helper::KtimeGetNs, vec![]);
        s.w.store_slot(value, START as u32, Size::B8, Operand::Var(now));
        let args = vec![Arg::Map(memory.map), Arg::Slot(key, 0), Arg::Slot(value, 0), Arg::Imm(0)];
        let failed = s.w.call(Helper::MapUpdate, args);
        s.w.when(CmpOp::Ne, failed, Operand::Imm(0), |w| lost(context, w, Loss::SpansFull));
    });
    let cond = Cond { op: CmpOp::Ne, a: state, b: Operand::Imm(0) };
    s.w.push(Stmt::If { cond, then: reuse, otherwise: insert });
}

/// Finds the state of the current key. Task states may be created here; others exist (arrays) or are looked up (hashes).
fn locate(context: &Context<'_>, s: &mut Exprs<'_>, by: &[Expr], flags: i64) -> Found {
    let map = context.memory.open.as_ref().map(|o| o.map).unwrap_or(crate::layout::MapId(0));
    match key(context) {
        SpanKey::Task => {
            let task = s.w.call(Helper::GetCurrentTaskBtf, vec![]);
            Found::OfTask { state: task_state(&mut s.w, map, task, flags), task }
        }
        SpanKey::Dense(domains) => {
            let values: Vec<Var> = by.iter().map(|e| s.var(e)).collect();
            let mut index = values[0];
            for (i, (v, d)) in values.iter().zip(domains).enumerate() {
                let outside = s.w.block(|w| {
                    // An end outside has no start, which was counted when it came.
                    if flags == CREATE {
                        lost(context, w, Loss::OutOfRange);
                    }
                    w.push(Stmt::Return);
                });
                let cond = Cond { op: CmpOp::Ge, a: *v, b: Operand::Imm(i64::from(*d)) };
                s.w.push(Stmt::If { cond, then: outside, otherwise: vec![] });
                if i > 0 {
                    let scaled = s.w.alu(AluOp::Mul, index, Operand::Imm(i64::from(*d)));
                    index = s.w.alu(AluOp::Add, scaled, Operand::Var(*v));
                }
            }
            Found::State(s.w.array_element(map, Operand::Var(index)))
        }
        SpanKey::Hash(_) => {
            let (offsets, bytes) = key_layout(&types(by));
            let area = s.w.slot(bytes);
            write_key(s, area, bytes, &offsets, by);
            Found::Keyed(area)
        }
    }
}

fn task_state(w: &mut Writer, map: crate::layout::MapId, task: Var, flags: i64) -> Var {
    w.call(Helper::TaskStorageGet, vec![Arg::Map(map), Arg::Var(task), Arg::Imm(0), Arg::Imm(flags)])
}

fn close(context: &Context<'_>, site: &EndSite, name: String) -> Func {
    let mut s = begin(context, site.place);
    select(&mut s, &site.select);
    if let Some(cond) = &site.before {
        mark(context, &mut s.w, cond.place);
        s.guard(cond);
    }
    control::leave_closed_call(context, &mut s.w);
    let words = control::words(context, &mut s.w);
    let place = locate(context, &mut s, &site.by, 0);
    let (state, area, task) = match place {
        Found::State(state) => (state, None, None),
        Found::OfTask { state, task } => (state, None, Some(task)),
        Found::Keyed(key) => {
            let map = context.memory.open.as_ref().map(|o| o.map).unwrap_or(crate::layout::MapId(0));
            (s.w.call(Helper::MapLookup, vec![Arg::Map(map), Arg::Slot(key, 0)]), Some((map, key)), None)
        }
    };
    unmatched_if(context, &mut s, state, words);
    let started = s.w.load(state, START, Size::B8, Space::Value);
    if let (Some(open), Some(task)) = (&context.memory.open, task) {
        open_tasks::count_closed(open, &mut s.w, task, started);
    }
    match words {
        Some(words) => control::unmatched(context, &mut s.w, words, state, START, started),
        None => unmatched_if(context, &mut s, started, None),
    }
    // The span is closed before anything can leave the program.
    s.w.push(Stmt::Store { ptr: state, offset: START, size: Size::B8, value: Operand::Imm(0) });
    let now = s.w.call(Helper::KtimeGetNs, vec![]);
    let elapsed = s.w.alu(AluOp::Sub, now, Operand::Var(started));
    let off_cpu = watches_switches(context).then(|| s.w.load(state, OFF_TOTAL, Size::B8, Space::Value));
    let offsets: &[u32] = context.memory.open.as_ref().map_or(&[], |o| &o.saved);
    let weight_at = context.memory.open.as_ref().and_then(|open| open.weight_at);
    let weight = weight_at.map(|at| s.w.load(state, at, Size::B8, Space::Value));
    s.inputs = Inputs { elapsed: Some(elapsed), off_cpu, saved: Some((state, offsets)), state: None, weight };
    let measured: Vec<_> = site.measures.iter().map(Option::as_ref).collect();
    if let Some(cond) = &site.filter {
        mark(context, &mut s.w, cond.place);
        match area {
            // A hash entry is deleted on every way out.
            Some(_) => s.when(cond, |s| measure(context, s, &measured, site)),
            None => {
                s.guard(cond);
                measure(context, &mut s, &measured, site);
            }
        }
    } else {
        measure(context, &mut s, &measured, site);
    }
    if let Some((map, key)) = area {
        let args = vec![Arg::Map(map), Arg::Slot(key, 0)];
        s.w.push(Stmt::Call(Call { helper: Helper::MapDelete, args }));
    }
    let duty = if matches!(key(context), SpanKey::Dense(_)) { duty(context, Duty::Ends) } else { Duty::Always };
    Func { calls: calls([&site.hook]), duty, ..s.w.finish(name, Some(site.attach.clone())) }
}

fn measure(context: &Context<'_>, s: &mut Exprs<'_>, measured: &[Option<&Measure>], site: &EndSite) {
    measure::measures(context, s, measured);
    slow::send(context, s, site.slow.as_ref());
}

fn unmatched_if(context: &Context<'_>, s: &mut Exprs<'_>, v: Var, words: Option<Var>) {
    let leave = s.w.block(|w| {
        control::no_start(context, w, words);
        w.push(Stmt::Return);
    });
    s.w.push(Stmt::If { cond: Cond { op: CmpOp::Eq, a: v, b: Operand::Imm(0) }, then: leave, otherwise: vec![] });
}

/// At `sched_switch(preempt, prev, next, ..)`: stamps the span of the task going off the CPU, and adds the time it was off
/// to the span of the task coming on.
fn switch(context: &Context<'_>) -> Result<Func, Diagnostic> {
    let attach = Attach::TpBtf { event: "sched_switch".into() };
    let mut s = begin(context, Place::default());
    for (argument, comes_on) in [(8, false), (16, true)] {
        let task = s.w.load(CTX, argument, Size::B8, Space::Ctx);
        match context.memory.open.as_ref().and_then(|open| open.tasks.map(|tasks| (tasks, open.map))) {
            Some((tasks, map)) => open_tasks::when_open(tasks, &mut s.w, task, |w| {
                let state = task_state(w, map, task, 0);
                switched(w, state, comes_on);
            }),
            None => {
                let state = other_task_state(context, &mut s, task)?;
                switched(&mut s.w, state, comes_on);
            }
        }
    }
    let is_counted = context.memory.open.as_ref().is_some_and(|open| open.tasks.is_some());
    let duty = if is_counted { duty(context, Duty::Watches) } else { Duty::Always };
    Ok(Func { duty, ..s.w.finish(name(context, "switch", 0, 1), Some(attach)) })
}

/// Notes in a span's state, if there is one, that its task comes on a CPU or leaves it.
fn switched(w: &mut Writer, state: Var, comes_on: bool) {
    w.when(CmpOp::Ne, state, Operand::Imm(0), |w| {
        let started = w.load(state, START, Size::B8, Space::Value);
        w.when(CmpOp::Ne, started, Operand::Imm(0), |w| if comes_on { on(w, state) } else { off(w, state) });
    });
}

fn off(w: &mut Writer, state: Var) {
    let now = w.call(Helper::KtimeGetNs, vec![]);
    w.push(Stmt::Store { ptr: state, offset: OFF_SINCE, size: Size::B8, value: Operand::Var(now) });
}

fn on(w: &mut Writer, state: Var) {
    let since = w.load(state, OFF_SINCE, Size::B8, Space::Value);
    w.when(CmpOp::Ne, since, Operand::Imm(0), |w| {
        let now = w.call(Helper::KtimeGetNs, vec![]);
        let away = w.alu(AluOp::Sub, now, Operand::Var(since));
        w.push(Stmt::Add { ptr: state, offset: OFF_TOTAL, value: Operand::Var(away), atomic: false });
        w.push(Stmt::Store { ptr: state, offset: OFF_SINCE, size: Size::B8, value: Operand::Imm(0) });
    });
}

/// The state of a task that is not (yet, or any more) the current one.
fn other_task_state(context: &Context<'_>, s: &mut Exprs<'_>, task: Var) -> Result<Var, Diagnostic> {
    let map = context.memory.open.as_ref().map(|o| o.map).unwrap_or(crate::layout::MapId(0));
    match key(context) {
        SpanKey::Task => Ok(task_state(&mut s.w, map, task, 0)),
        _ => {
            let pid = context.kernel.btf.and_then(|b| {
                let id = b.find("task_struct", btf::Kind::Struct)?;
                Some(b.member(id, "pid")?.bit_offset / 8)
            });
            let Some(pid) = pid else {
                return Err(Diagnostic::bug("no task_struct.pid in BTF for a span that watches switches"));
            };
            let (offsets, bytes) = key_layout(&[Ty::U32]);
            let area = s.w.slot(bytes);
            s.w.store_slot(area, 0, Size::B8, Operand::Imm(0));
            let tid = s.w.load(task, pid as i32, Size::B4, Space::Kernel);
            s.w.store_slot(area, offsets[0], Size::B4, Operand::Var(tid));
            Ok(s.w.set(Op::Call(Call { helper: Helper::MapLookup, args: vec![Arg::Map(map), Arg::Slot(area, 0)] })))
        }
    }
}
