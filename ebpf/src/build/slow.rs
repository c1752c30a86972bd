//! Records of single events: the condition, the limit of so many a second, then the record on the stack and off it goes.

use super::expr::Exprs;
use super::measure::{lost, write_key};
use super::memory::{add_map, key_layout};
use super::site::mark;
use super::{Room, STACK_BYTES};
use crate::diag::{Diagnostic, Place};
use crate::ir::{AluOp, Arg, CTX, CmpOp, Cond, Func, Helper, Op, Operand, Size, Space, Stmt, Var};
use crate::layout::{EventMap, KeyField, Layout, Loss, MapKind};
use crate::target::Target;
use crate::typed::{Expr, Kind, Probe, Slow, SlowMeasure, Ty};

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
    let fields = slow.fields.iter().zip(&offsets[header().len()..]).map(|(field, offset)| KeyField {
        names: vec![field.name.clone()],
        ty: field.ty,
        offset: *offset,
        decoder: field.decoder.clone(),
    });
    let cpus = layout.cpus;
    let (kind, key, value, entries, buffer_bytes) = match target.abilities.ringbuf.yes() {
        true => {
            let bytes = buffer_bytes(slow, bytes, cpus);
            (MapKind::RingBuf, 0, 0, bytes, bytes)
        }
        false => (MapKind::PerfEvents, 4, 4, cpus, buffer_bytes(slow, bytes, 1)),
    };
    let map = add_map(layout, "ks_events".into(), kind, key, value, entries);
    let limit = add_map(layout, "ks_limit".into(), MapKind::Array { mmap: false }, 4, LIMIT_BYTES, cpus);
    Some(EventMap { map, limit, bytes, buffer_bytes, fields: fields.collect() })
}

/// Room for what so many CPUs may send in two seconds: readers that are late by less lose nothing. A power of two, and
/// whole pages of every architecture.
fn buffer_bytes(slow: &Slow, record: u32, cpus: u32) -> u32 {
    const LEAST: u64 = 64 << 10;
    const MOST: u64 = 1 << 20;
    // The kernel puts 8 bytes before each record of a ring buffer, and 16 around that of a perf buffer.
    let second = u64::from(slow.max_per_second).saturating_mul(u64::from(record) + 16);
    second.saturating_mul(2 * u64::from(cpus)).clamp(LEAST, MOST).next_power_of_two() as u32
}

/// Sends a record of the event at hand if it is worth one. To be called where the site's values can be read.
pub(super) fn send(room: &Room<'_>, s: &mut Exprs<'_>, slow: &SlowMeasure) {
    let (Some(events), Some(probe)) = (&room.memory.layout.events, &room.probe.slow) else { return };
    mark(room, &mut s.w, probe.place);
    s.when(&slow.when, |s| {
        let now = s.var(&header()[0]);
        let second = s.w.alu(AluOp::Div, now, Operand::Imm(SECOND_NS));
        let cpu = s.w.call(Helper::GetSmpProcessorId, vec![]);
        let limit = s.w.array_element(events.limit, Operand::Var(cpu));
        s.w.leave_if_null(limit, |w, limit| {
            let counted = w.load(limit, COUNTED, Size::B8, Space::Value);
            w.when(CmpOp::Ne, counted, Operand::Var(second), |w| {
                w.push(Stmt::Store { ptr: limit, offset: COUNTED, size: Size::B8, value: Operand::Var(second) });
                w.push(Stmt::Store { ptr: limit, offset: COUNT, size: Size::B8, value: Operand::Imm(0) });
            });
        });
    });
}
