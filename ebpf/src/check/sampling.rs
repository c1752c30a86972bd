//! Perf events: whether they can be had, and what their context shows of the moment.

use super::expr::{Env, Value};
use super::hooks::{Point, cannot_attach, reason};
use super::report::{Checked, Report, whole};
use super::scope::Args;
use crate::ast::Ident;
use crate::diag::{Place, Span};
use crate::kernel_target::{Ability, Arch, Target};
use crate::program::{Hook, PerfEvent, Sampling};
use crate::typed::{Arith, Attach, Cmp, Expr, Kind, Select, Trust, Ty};

/// What `args` has at a perf event.
pub(super) const NAMES: [&str; 4] = ["sample_period", "addr", "ip", "user_mode"];

pub(super) fn sample<'a>(
    hook: &'a Hook,
    sampling: &Sampling,
    target: &'a Target,
    report: &mut Report,
) -> Checked<Point<'a>> {
    let place = whole(&hook.text);
    let counter = match &sampling.event {
        PerfEvent::Hardware(name) => target.counters.get(name),
        PerfEvent::CpuClock | PerfEvent::Software(_) => None,
    };
    if !target.abilities.perf_event.yes() {
        cannot_attach(hook, format!("perf events: {}", reason(&target.abilities.perf_event)), target, report)?;
    } else if let Some(Ability::No(why)) = counter {
        cannot_attach(hook, why.clone(), target, report)?;
    }
    let attach = Attach::Sample(sampling.clone());
    Ok(Point { attach, place, select: Select::All, numbers: None, args: Args::Sample(target.arch) })
}

/// Byte offsets in `struct bpf_perf_event_data`, which is UAPI: the user-visible registers, `sample_period`, `addr`.
struct Context {
    ip: u32,
    /// Register that tells whether the interrupted code is the kernel's, and its bits that are 0 for one of the two.
    mode: (u32, u64),
    /// Whether those bits are 0 in user mode (rather than in the kernel).
    zero_is_user: bool,
    registers_end: u32,
}

fn context(arch: Arch) -> Context {
    match arch {
        // `cs`: its low bits are the privilege level, 3 in user mode and 0 in the kernel.
        Arch::X86_64 => Context { ip: 16 * 8, mode: (17 * 8, 3), zero_is_user: false, registers_end: 21 * 8 },
        // `pstate`: the low bits are the exception level, 0 in user mode.
        Arch::Aarch64 => Context { ip: 32 * 8, mode: (33 * 8, 15), zero_is_user: true, registers_end: 34 * 8 },
    }
}

/// `args.NAME` at a perf event.
pub(super) fn arg(env: &mut Env, arch: Arch, field: &Ident, span: Span) -> Checked<Value> {
    let (at, place) = (context(arch), env.place(span));
    let word = |offset, ty| Expr { kind: Kind::Arg { offset }, ty, duration: false, place };
    let address = Ty::Ptr { to: 0, trust: Trust::Probe };
    Ok(Value::Typed(match field.name.as_str() {
        "sample_period" => word(at.registers_end, Ty::U64),
        "addr" => word(at.registers_end + 8, address),
        "ip" => word(at.ip, address),
        "user_mode" => user_mode(&at, word(at.mode.0, Ty::U64), place),
        _ => return Err(env.unknown_arg(field, "a perf event")),
    }))
}

fn user_mode(at: &Context, register: Expr, place: Place) -> Expr {
    let constant = |n| Box::new(Expr { kind: Kind::Const(n), ty: Ty::U64, duration: false, place });
    let kind = Kind::Arith(Arith::And, Box::new(register), constant(at.mode.1));
    let bits = Box::new(Expr { kind, ty: Ty::U64, duration: false, place });
    let op = if at.zero_is_user { Cmp::Eq } else { Cmp::Ne };
    Expr { kind: Kind::Cmp(op, bits, constant(0)), ty: Ty::Bool, duration: false, place }
}
