//! Functions of probes without spans: one per attach point, or one for the rows of a poll source.

use super::Context;
use super::condition::search;
use super::control;
use super::expr::{Exprs, Inputs};
use super::func::Writer;
use super::{measure, slow};
use crate::diag::{Diagnostic, Place};
use crate::ir::{Calls, CmpOp, Duty, Func, NumberAt, Operand, Stmt};
use crate::typed::{Expr, Kind, Measure, Select, Site, Trust, Ty};

pub(super) fn at(context: &Context<'_>, sites: &[Site]) -> Result<Vec<Func>, Diagnostic> {
    let mut funcs = Vec::new();
    for (i, site) in sites.iter().enumerate() {
        let mut s = begin(context, site.place);
        select(&mut s, &site.select);
        s.inputs.weight = control::sample(context, &mut s.w);
        body(context, &mut s, site.filter.as_ref(), &site.measures);
        slow::send(context, &mut s, site.slow.as_ref());
        let duty = if s.inputs.weight.is_some() { Duty::Begins } else { Duty::Always };
        let func = s.w.finish(name(context, "at", i, sites.len()), Some(site.attach.clone()));
        funcs.push(Func { calls: calls([&site.select]), duty, ..func });
    }
    Ok(funcs)
}

pub(super) fn poll(
    context: &Context<'_>,
    filter: Option<&Expr>,
    measures: &[Option<Measure>],
) -> Result<Vec<Func>, Diagnostic> {
    let mut s = begin(context, Place::default());
    body(context, &mut s, filter, measures);
    Ok(vec![s.w.finish(name(context, "row", 0, 1), None)])
}

fn body(context: &Context<'_>, s: &mut Exprs<'_>, filter: Option<&Expr>, measures: &[Option<Measure>]) {
    if let Some(cond) = filter {
        mark(context, &mut s.w, cond.place);
        s.guard(cond);
    }
    measure::measures(context, s, &measures.iter().map(Option::as_ref).collect::<Vec<_>>());
}

pub(super) fn begin<'a>(context: &'a Context<'a>, place: Place) -> Exprs<'a> {
    let mut w = Writer::new();
    mark(context, &mut w, place);
    Exprs { w, kernel: &context.kernel, memory: context.memory, lines: context.lines, inputs: Inputs::default() }
}

pub(super) fn mark(context: &Context<'_>, w: &mut Writer, place: Place) {
    w.mark(context.lines.get(&place.text).copied().unwrap_or((1, 1)));
}

/// Symbols of BTF have at most this many bytes.
const MAX_NAME: usize = 63;

/// Program names begin with `ks_`, so that `bpftool prog` shows whose they are. A long probe's name is cut: the role, which
/// tells a probe's programs apart, stays whole.
pub(super) fn name(context: &Context<'_>, role: &str, i: usize, n: usize) -> String {
    let role = if n == 1 { role.to_string() } else { format!("{role}{i}") };
    let probe: String = context.probe.name.chars().take(MAX_NAME - "ks__".len() - role.len()).collect();
    format!("ks_{probe}_{role}")
}

/// The system calls that a program with these selections measures.
pub(super) fn calls<'a>(selects: impl IntoIterator<Item = &'a Select>) -> Option<Calls> {
    let (mut number, mut numbers) = (None, Vec::new());
    for select in selects {
        let Select::OneOf(e, values) = select else { return None };
        number = Some(number_at(e)?);
        numbers.extend(values.iter().filter_map(|value| u32::try_from(*value).ok()));
    }
    numbers.sort_unstable();
    numbers.dedup();
    Some(Calls { number: number?, numbers })
}

fn number_at(e: &Expr) -> Option<NumberAt> {
    match &e.kind {
        Kind::Arg { offset } => Some(NumberAt::Context(i16::try_from(*offset).ok()?)),
        Kind::Load { base, offset, bitfield: None } => match (&base.kind, base.ty) {
            (Kind::Arg { offset: 0 }, Ty::Ptr { trust: Trust::Btf, .. }) => {
                Some(NumberAt::FirstArgument(i16::try_from(*offset).ok()?))
            }
            _ => None,
        },
        _ => None,
    }
}

/// Leaves the program unless the event is one the hook means.
pub(super) fn select(s: &mut Exprs<'_>, select: &Select) {
    let (e, values) = match select {
        Select::All => return,
        Select::OneOf(e, values) => (e, values.as_slice()),
        Select::NotNull(e) => (e, [].as_slice()),
    };
    let v = s.var(e);
    match values {
        [] => s.w.leave_if(CmpOp::Eq, v, Operand::Imm(0)),
        [one] => s.w.leave_if(CmpOp::Ne, v, Operand::Imm(*one as i64)),
        values => {
            let code = search(v, values, &vec![], &vec![Stmt::Return]);
            s.w.extend(code);
        }
    }
}
