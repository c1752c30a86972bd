//! Records of single events: the condition, the limit of so many a second, then the record on the stack and off it goes.

use super::Context;
use super::expr::Exprs;
use super::measure::{lost, write_key};
use super::memory::{add_map, key_layout};
use super::site::mark;
use crate::diag::Place;
use crate::ir::{AluOp, Arg, CTX, CmpOp, Cond, Helper, Operand, Size, Space, Stmt, Var};
use crate::kernel_target::Target;
use crate::layout::{EventMap, KeyField, Layout, Loss, MapKind};
use crate::typed::{Expr, Kind, Label, Probe, Slow, SlowMeasure, Ty};

const SECOND_NS: i64 = 1_000_000_000;
/// `BPF_F_CURRENT_CPU`: into the perf buffer of the CPU the program runs on.
const THIS_CPU: i64 = 0xffff_ffff;
/// Offsets in the element of a CPU: the second that is counted, and how many records it had.
const COUNTED: i32 = 0;
const COUNT: i32 = 8;
const LIMIT_BYTES: u32 = 16;

/// What every record begins with; see [`EventMap`].
fn header() -> [Expr; 3] {
    let expr = |kind, ty| Expr { kind, ty, duration: false, place: Place::default() };
    [expr(Kind::Now, Ty::U64), expr(Kind::Pid, Ty::U32), expr(Kind::Tid, Ty::U32)]
}

/// The maps of a probe that sends records.
pub(super) fn plan(probe: &Probe, target: &Target, layout: &mut Layout) -> Option<EventMap> {
    let slow = probe.slow.as_ref()?;
    let types: Vec<Ty> = header().iter().map(|e| e.ty).chain(slow.fields.iter().map(|f| f.ty)).collect();
    let (offsets, bytes) = key_layout(&types);
    let field = |(field, offset): (&Label, &u32)| KeyField {
        names: vec![field.name.clone()],
        ty: field.ty,
        offset: *offset,
        decoder: field.decoder.clone(),
    };
    let mut fields: Vec<KeyField> = slow.fields.iter().zip(&offsets[header().len()..]).map(field).collect();
    let of_span = fields.split_off(fields.len() - slow.otlp_span.len());
    let otlp_span = slow.otlp_span.iter().copied().zip(of_span).collect();
    let (kind, key, value, entries, buffer_bytes) = match target.abilities.ringbuf.yes() {
        true => {
            let bytes = buffer_bytes(slow, bytes, layout.cpus, 64 << 10);
            (MapKind::RingBuf, 0, 0, bytes, bytes)
        }
        // One buffer a CPU: the agent rounds up to pages.
        false => (MapKind::PerfEvents, 4, 4, layout.cpus, buffer_bytes(slow, bytes, 1, 4 << 10)),
    };
    let cpus = layout.cpus;
    let map = add_map(layout, "ks_events".into(), kind, key, value, entries);
    let limit = add_map(layout, "ks_limit".into(), MapKind::Array { mmap: false }, 4, LIMIT_BYTES, cpus);
    Some(EventMap { map, limit, bytes, buffer_bytes, fields, otlp_span })
}

/// As many bytes as the user says, or room for what the senders of a buffer may send in two seconds: a reader that is late by less
/// loses nothing. A power of two; the kernel wants whole pages, and those of some machines have 64 KiB.
fn buffer_bytes(slow: &Slow, record: u32, cpus: u32, least: u64) -> u32 {
    const MAX_BY_DEFAULT: u64 = 1 << 20;
    if let Some(bytes) = slow.buffer_bytes {
        return u64::from(bytes).clamp(least, 1 << 30).next_power_of_two() as u32;
    }
    // The kernel puts 8 bytes before each record of a ring buffer, and 12 before that of a perf buffer.
    let second = u64::from(slow.max_per_second).saturating_mul(u64::from(record) + 16);
    second.saturating_mul(2 * u64::from(cpus)).clamp(least, MAX_BY_DEFAULT).next_power_of_two() as u32
}

/// Sends a record of the event at hand if it is worth one. To be called where the site's values can be read; never leaves
/// the program.
pub(super) fn send(context: &Context<'_>, s: &mut Exprs<'_>, slow: Option<&SlowMeasure>) {
    let (Some(events), Some(probe), Some(slow)) = (&context.memory.layout.events, &context.probe.slow, slow) else {
        return;
    };
    mark(context, &mut s.w, probe.place);
    s.when(&slow.when, |s| {
        let now = s.var(&header()[0]);
        let cpu = s.w.call(Helper::GetSmpProcessorId, vec![]);
        let limit = s.w.array_element(events.limit, Operand::Var(cpu));
        let body = s.block(|s| {
            let count = count(s, limit, now);
            let limited = s.w.block(|w| lost(context, w, Loss::EventsLimited));
            let sent = s.block(|s| {
                s.w.push(Stmt::Add { ptr: limit, offset: COUNT, value: Operand::Imm(1), atomic: true });
                record(context, s, events, slow);
            });
            let cond = Cond { op: CmpOp::Ge, a: count, b: Operand::Imm(i64::from(probe.max_per_second)) };
            s.w.push(Stmt::If { cond, then: limited, otherwise: sent });
        });
        s.w.push(Stmt::If {
            cond: Cond { op: CmpOp::Ne, a: limit, b: Operand::Imm(0) },
            then: body,
            otherwise: vec![],
        });
    });
}

/// Records that this CPU sent in the current second. An interrupt between reading and adding can let one more pass, never
/// one fewer be counted as sent or lost.
fn count(s: &mut Exprs<'_>, limit: Var, now: Var) -> Var {
    let second = s.w.alu(AluOp::Div, now, Operand::Imm(SECOND_NS));
    let counted = s.w.load(limit, COUNTED, Size::B8, Space::Value);
    s.w.when(CmpOp::Ne, counted, Operand::Var(second), |w| {
        w.push(Stmt::Store { ptr: limit, offset: COUNTED, size: Size::B8, value: Operand::Var(second) });
        w.push(Stmt::Store { ptr: limit, offset: COUNT, size: Size::B8, value: Operand::Imm(0) });
    });
    s.w.load(limit, COUNT, Size::B8, Space::Value)
}

fn record(context: &Context<'_>, s: &mut Exprs<'_>, events: &EventMap, slow: &SlowMeasure) {
    let area = s.w.slot(events.bytes);
    let fields: Vec<Expr> = header().into_iter().chain(slow.fields.iter().cloned()).collect();
    let types: Vec<Ty> = fields.iter().map(|e| e.ty).collect();
    write_key(s, area, events.bytes, &key_layout(&types).0, &fields);
    let (bytes, slot) = (Arg::Imm(i64::from(events.bytes)), Arg::Slot(area, 0));
    let failed = match context.memory.layout.map(events.map).kind {
        // Without flags the reader is woken when it has read all before.
        MapKind::RingBuf => s.w.call(Helper::RingbufOutput, vec![Arg::Map(events.map), slot, bytes, Arg::Imm(0)]),
        _ => {
            let args = vec![Arg::Var(CTX), Arg::Map(events.map), Arg::Imm(THIS_CPU), slot, bytes];
            s.w.call(Helper::PerfEventOutput, args)
        }
    };
    s.w.release(area);
    s.w.when(CmpOp::Ne, failed, Operand::Imm(0), |w| lost(context, w, Loss::EventsFull));
}
