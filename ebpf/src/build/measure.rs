//! One measurement: find the record of a label set, then add to each metric's cell in it.

use super::expr::Exprs;
use super::func::Writer;
use super::memory::Memory;
use super::site::mark;
use super::{Context, ShardRule};
use crate::diag::Place;
use crate::ir::{AluOp, Arg, Call, CmpOp, Helper, Op, Operand, Size, Slot, Space, Stmt, Var};
use crate::layout::{Cell, CellKind, Extreme, FreshSlots, Index, Loss, MapId, Table};
use crate::typed::{Expr, Measure};

/// `BPF_NOEXIST`: fail when another CPU was faster.
const NO_EXIST: i64 = 1;

/// Words of [`FreshSlots`].
const TAKEN: i32 = 0;
const ADDED: i32 = 8;

/// Writes all measurements of a site.
pub(super) fn measures(context: &Context<'_>, s: &mut Exprs<'_>, measures: &[Option<&Measure>]) {
    for (n, group) in context.memory.groups.iter().enumerate() {
        let Some(first) = measures[group[0]] else { continue };
        let measures: Vec<&Measure> = group.iter().filter_map(|m| measures[*m]).collect();
        match &first.filter {
            Some(cond) => s.when(cond, |s| table(context, s, n, &measures)),
            None => table(context, s, n, &measures),
        }
    }
}

/// `measures` are those of the table's metrics, in its order.
fn table(context: &Context<'_>, s: &mut Exprs<'_>, n: usize, measures: &[&Measure]) {
    let written = |(measure, metric): (&&Measure, &usize)| match measure.value.place {
        place if place == Place::default() => context.probe.metrics[*metric].place,
        place => place,
    };
    let spans: Vec<Place> = measures.iter().zip(&context.memory.groups[n]).map(written).collect();
    mark(context, &mut s.w, spans[0]);
    let table = &context.memory.layout.tables[n];
    let atomic = context.memory.atomic[n];
    // Values first: what they call would otherwise push the record's address out of a register.
    let values: Vec<Value> = measures.iter().zip(&table.cells).map(|(m, cell)| weighted(s, &m.value, cell)).collect();
    let labels = &measures[0].labels;
    let slot = slot(context, s, table, labels);
    let element = element(context, s, table, slot);
    let record = s.w.array_element(table.values, element);
    let body = s.block(|s| {
        for ((cell, value), place) in table.cells.iter().zip(&values).zip(&spans) {
            mark(context, &mut s.w, *place);
            add(context, &mut s.w, cell, record, value, atomic);
        }
        if let Some(changes) = table.changes {
            changed(&mut s.w, changes, element);
        }
    });
    let cond = crate::ir::Cond { op: CmpOp::Ne, a: record, b: Operand::Imm(0) };
    s.w.push(Stmt::If { cond, then: body, otherwise: vec![] });
}

/// Says that a record has changed, after it has. The step is no atomic one: where CPUs share a shard, one that was held up between its load
/// and its store may undo steps of the other, which readers find when they fold the block all the same.
fn changed(w: &mut Writer, changes: MapId, element: Operand) {
    let word = w.array_element(changes, element);
    w.when(CmpOp::Ne, word, Operand::Imm(0), |w| {
        w.push(Stmt::Add { ptr: word, offset: 0, value: Operand::Imm(1), atomic: false });
    });
}

/// A measured value.
struct Value {
    /// Of one event.
    own: Operand,
    /// Of all events that this one stands for.
    all: Operand,
    /// How many these are.
    events: Operand,
}

fn weighted(s: &mut Exprs<'_>, value: &Expr, cell: &Cell) -> Value {
    let own = s.value(value);
    let Some(weight) = s.inputs.weight else { return Value { own, all: own, events: Operand::Imm(1) } };
    let all = match own {
        Operand::Imm(1) => weight,
        // One value, however many there were.
        _ if matches!(cell.kind, CellKind::Gauge { .. } | CellKind::Extreme { .. }) => weight,
        own => s.w.alu(AluOp::Mul, weight, own),
    };
    Value { own, all: Operand::Var(all), events: Operand::Var(weight) }
}

fn add(context: &Context<'_>, w: &mut Writer, cell: &Cell, record: Var, value: &Value, atomic: bool) {
    let at = cell.offset as i32;
    let Value { own, all, events } = *value;
    match &cell.kind {
        CellKind::Counter | CellKind::Stacks(_) => w.push(Stmt::Add { ptr: record, offset: at, value: all, atomic }),
        CellKind::Gauge { .. } => {
            w.push(Stmt::Store { ptr: record, offset: at, size: Size::B8, value: own });
            w.push(Stmt::Store { ptr: record, offset: at + 8, size: Size::B8, value: Operand::Imm(1) });
        }
        CellKind::Sum { .. } => {
            w.push(Stmt::Add { ptr: record, offset: at, value: all, atomic });
            w.push(Stmt::Store { ptr: record, offset: at + 8, size: Size::B8, value: Operand::Imm(1) });
        }
        CellKind::Extreme { signed, end } => extreme(w, *end, *signed, (record, at), own),
        CellKind::Histogram(scheme) => {
            let v = match own {
                Operand::Var(v) => v,
                Operand::Imm(i) => w.imm(i),
            };
            let bucket = w.fresh();
            let tables = context.tables[&cell.metric];
            let code = scheme.emit(v, bucket, tables, &mut || w.fresh());
            w.extend(code);
            w.push(Stmt::Add { ptr: record, offset: at, value: all, atomic });
            // The verifier knows the index only from this test.
            w.when(CmpOp::Lt, bucket, Operand::Imm(scheme.buckets() as i64), |w| {
                let bytes = w.alu(AluOp::Shl, bucket, Operand::Imm(3));
                let ptr = w.alu(AluOp::Add, record, Operand::Var(bytes));
                w.push(Stmt::Add { ptr, offset: at + 8, value: events, atomic });
            });
        }
    }
}

/// Stores `value` where none is yet, or where it lies further out.
fn extreme(w: &mut Writer, end: Extreme, signed: bool, (record, at): (Var, i32), value: Operand) {
    let further = match (end, signed) {
        (Extreme::Min, false) => CmpOp::Gt,
        (Extreme::Min, true) => CmpOp::SGt,
        (Extreme::Max, false) => CmpOp::Lt,
        (Extreme::Max, true) => CmpOp::SLt,
    };
    let store = |w: &mut Writer, offset, value| w.push(Stmt::Store { ptr: record, offset, size: Size::B8, value });
    let is_set = w.load(record, at + 8, Size::B8, Space::Value);
    w.either(
        CmpOp::Eq,
        is_set,
        Operand::Imm(0),
        |w| {
            store(w, at, value);
            // After the value: who reads looks at this word first.
            store(w, at + 8, Operand::Imm(1));
        },
        |w| {
            let before = w.load(record, at, Size::B8, Space::Value);
            w.when(further, before, value, |w| store(w, at, value));
        },
    );
}

/// Index of the record in the values array: `shard * slots + slot`.
fn element(context: &Context<'_>, s: &mut Exprs<'_>, table: &Table, slot: Operand) -> Operand {
    if table.shards == 1 {
        return slot;
    }
    let cpu = Expr {
        kind: crate::typed::Kind::Cpu,
        ty: crate::typed::Ty::U32,
        duration: false,
        place: crate::diag::Place::default(),
    };
    let cpu = s.var(&cpu);
    let shard = shard(context, &mut s.w, table, cpu);
    let first = s.w.alu(AluOp::Mul, shard, Operand::Imm(i64::from(table.slots)));
    match slot {
        Operand::Imm(0) => Operand::Var(first),
        _ => Operand::Var(s.w.alu(AluOp::Add, first, slot)),
    }
}

fn shard(context: &Context<'_>, w: &mut Writer, table: &Table, cpu: Var) -> Var {
    let mask = Operand::Imm(i64::from(table.shards) - 1);
    match context.shard_rules.get(&table.shards) {
        None if table.shards.is_power_of_two() => w.alu(AluOp::And, cpu, mask),
        None => cpu,
        Some(ShardRule::Bits { shift: 0 }) => w.alu(AluOp::And, cpu, mask),
        Some(ShardRule::Bits { shift }) => {
            let high = w.alu(AluOp::Shr, cpu, Operand::Imm(i64::from(*shift)));
            w.alu(AluOp::And, high, mask)
        }
        Some(ShardRule::Rodata(at)) => {
            let out = w.imm(0);
            // The verifier knows the number of a CPU only from this test.
            w.when(CmpOp::Lt, cpu, Operand::Imm(i64::from(context.memory.layout.cpus)), |w| {
                let first = w.set(Op::Rodata(*at));
                let bytes = w.alu(AluOp::Shl, cpu, Operand::Imm(1));
                let ptr = w.alu(AluOp::Add, first, Operand::Var(bytes));
                w.assign(out, Op::Load { ptr, offset: 0, size: Size::B2, space: Space::Rodata });
            });
            out
        }
    }
}

fn slot(context: &Context<'_>, s: &mut Exprs<'_>, table: &Table, labels: &[Expr]) -> Operand {
    match &table.index {
        Index::Single => Operand::Imm(0),
        Index::Dense(domains) => Operand::Var(dense(context, s, domains, labels)),
        Index::Hash { key_bytes, .. } => {
            let key = s.w.slot(*key_bytes);
            let offsets: Vec<u32> = table.key.iter().map(|k| k.offset).collect();
            write_key(s, key, *key_bytes, &offsets, labels);
            let slot = hashed(context, &mut s.w, table, key);
            s.w.release(key);
            Operand::Var(slot)
        }
    }
}

/// Writes a key so that every byte of it is defined: padding would otherwise make equal keys differ.
pub(super) fn write_key(s: &mut Exprs<'_>, key: Slot, bytes: u32, offsets: &[u32], fields: &[Expr]) {
    if has_padding(bytes, offsets, fields) {
        for w in (0..bytes).step_by(8) {
            s.w.store_slot(key, w, Size::B8, Operand::Imm(0));
        }
    }
    for (i, (e, at)) in fields.iter().zip(offsets).enumerate() {
        if offsets[..i].contains(at) {
            continue;
        }
        if e.ty.is_scalar() {
            let value = s.kept(e);
            s.w.store_slot(key, *at, Size::of(e.ty.bytes()).unwrap_or(Size::B8), value);
        } else {
            s.text(e, key, *at);
        }
    }
}

/// Whether some byte of a key belongs to no field. Text writes whole words: what follows it in its last word is covered.
fn has_padding(bytes: u32, offsets: &[u32], fields: &[Expr]) -> bool {
    let mut end = 0;
    for (e, at) in fields.iter().zip(offsets) {
        if *at > end {
            return true;
        }
        let size = e.ty.bytes();
        end = end.max(at + if e.ty.is_scalar() { size } else { size.next_multiple_of(8) });
    }
    end < bytes
}

/// `((k0 * d1) + k1) * d2 ...`, or the overflow slot when some label is outside its domain.
fn dense(context: &Context<'_>, s: &mut Exprs<'_>, domains: &[u32], labels: &[Expr]) -> Var {
    let out = s.w.fresh();
    let values: Vec<Var> = labels.iter().map(|l| s.var(l)).collect();
    let w = &mut s.w;
    let overflow = w.block(|w| {
        let product: u32 = domains.iter().product();
        w.assign(out, Op::Copy(Operand::Imm(i64::from(product))));
        lost(context, w, Loss::SeriesOverflow);
    });
    let inside = w.block(|w| {
        let mut index = values[0];
        for (v, d) in values.iter().zip(domains).skip(1) {
            let scaled = w.alu(AluOp::Mul, index, Operand::Imm(i64::from(*d)));
            index = w.alu(AluOp::Add, scaled, Operand::Var(*v));
        }
        w.assign(out, Op::Copy(Operand::Var(index)));
    });
    let mut code = inside;
    for (v, d) in values.iter().zip(domains).rev() {
        let cond = crate::ir::Cond { op: CmpOp::Lt, a: *v, b: Operand::Imm(i64::from(*d)) };
        code = vec![Stmt::If { cond, then: code, otherwise: overflow.clone() }];
    }
    w.extend(code);
    out
}

/// Looks the key up; a new key takes a slot that no key has had yet, or one that was given back, or the overflow slot when there is
/// neither.
fn hashed(context: &Context<'_>, w: &mut Writer, table: &Table, key: Slot) -> Var {
    let Index::Hash { map, free, fresh, .. } = table.index else { return w.imm(0) };
    let out = w.imm(0);
    let found = w.call(Helper::MapLookup, vec![Arg::Map(map), Arg::Slot(key, 0)]);
    let known = w.block(|w| w.assign(out, Op::Load { ptr: found, offset: 0, size: Size::B4, space: Space::Value }));
    let new = w.block(|w| {
        let slot = w.slot(4);
        w.store_slot(slot, 0, Size::B8, Operand::Imm(0));
        // Where it fails, the slot stays 0.
        let pop = Stmt::Call(Call { helper: Helper::MapPop, args: vec![Arg::Map(free), Arg::Slot(slot, 0)] });
        let counts = fresh.map(|fresh| take_fresh(w, table, fresh, slot));
        if counts.is_some() {
            let taken = w.load_slot(slot, 0, Size::B4);
            w.when(CmpOp::Eq, taken, Operand::Imm(0), |w| w.push(pop));
        } else {
            w.push(pop);
        }
        let taken = w.load_slot(slot, 0, Size::B4);
        w.when(CmpOp::Ne, taken, Operand::Imm(0), |w| {
            let args = vec![Arg::Map(map), Arg::Slot(key, 0), Arg::Slot(slot, 0), Arg::Imm(NO_EXIST)];
            let failed = w.call(Helper::MapUpdate, args);
            w.either(
                CmpOp::Eq,
                failed,
                Operand::Imm(0),
                |w| {
                    w.assign(out, Op::LoadSlot { slot, offset: 0, size: Size::B4 });
                    if let Some(counts) = counts {
                        w.when(CmpOp::Ne, counts, Operand::Imm(0), |w| {
                            w.push(Stmt::Add { ptr: counts, offset: ADDED, value: Operand::Imm(1), atomic: true });
                        });
                    }
                },
                |w| {
                    // Another CPU put the key in meanwhile, or the map is full: give the slot back and look again.
                    let args = vec![Arg::Map(free), Arg::Slot(slot, 0), Arg::Imm(0)];
                    w.push(Stmt::Call(Call { helper: Helper::MapPush, args }));
                    let again = w.call(Helper::MapLookup, vec![Arg::Map(map), Arg::Slot(key, 0)]);
                    w.when(CmpOp::Ne, again, Operand::Imm(0), |w| {
                        w.assign(out, Op::Load { ptr: again, offset: 0, size: Size::B4, space: Space::Value });
                    });
                },
            );
        });
        w.when(CmpOp::Eq, out, Operand::Imm(0), |w| lost(context, w, Loss::SeriesOverflow));
    });
    w.push(Stmt::If {
        cond: crate::ir::Cond { op: CmpOp::Ne, a: found, b: Operand::Imm(0) },
        then: known,
        otherwise: new,
    });
    out
}

/// Puts a slot that no key has had yet into `slot`, if there is one. Returns the address of the counts, which may be null.
fn take_fresh(w: &mut Writer, table: &Table, fresh: FreshSlots, slot: Slot) -> Var {
    let last = Operand::Imm(i64::from(table.slots) - 1);
    let counts = w.array_element(fresh.map, Operand::Imm(i64::from(fresh.element)));
    w.when(CmpOp::Ne, counts, Operand::Imm(0), |w| {
        // A full table is not counted further, so that its CPUs do not fight for the word.
        let before = w.load(counts, TAKEN, Size::B8, Space::Value);
        w.when(CmpOp::Lt, before, last, |w| {
            let before = w.set(Op::FetchAdd { ptr: counts, offset: TAKEN, value: Operand::Imm(1) });
            w.when(CmpOp::Lt, before, last, |w| {
                let next = w.alu(AluOp::Add, before, Operand::Imm(1));
                w.store_slot(slot, 0, Size::B4, Operand::Var(next));
            });
        });
    });
    counts
}

/// Counts a loss. Rare, so that its cost does not matter; several programs may count at once, so it is atomic.
pub(super) fn lost(context: &Context<'_>, w: &mut Writer, loss: Loss) {
    lost_in(context.memory, w, loss);
}

/// The same where there is only the memory.
pub(super) fn lost_in(memory: &Memory, w: &mut Writer, loss: Loss) {
    let Some(losses) = &memory.layout.losses else { return };
    let Some(at) = losses.reasons.iter().position(|r| *r == loss) else { return };
    let cpu = w.call(Helper::GetSmpProcessorId, vec![]);
    let counts = w.array_element(losses.map, Operand::Var(cpu));
    w.when(CmpOp::Ne, counts, Operand::Imm(0), |w| {
        w.push(Stmt::Add { ptr: counts, offset: at as i32 * 8, value: Operand::Imm(1), atomic: true });
    });
}
