//! Programs and libraries: `uprobe:`, `uretprobe:` and `usdt:` hooks, and what their registers and notes say.

use super::expr::{Env, Value};
use super::hooks::{Point, cannot_attach, reason};
use super::report::{Checked, Report, whole};
use super::scope::Args;
use super::walk;
use crate::ast::Ident;
use crate::diag::{Diagnostic, Place, Span};
use crate::kernel_target::usdt::{Argument, ArgumentError, Operand, arguments};
use crate::kernel_target::{Arch, Target, usdt_name};
use crate::program::{Binary, Edge, Hook};
use crate::typed::{Arith, Attach, Choice, Expr, Kind, Measure, Select, Shape, SlowMeasure, Trust, Ty};

/// What a place in a program or library shows.
#[derive(Clone, Debug)]
pub(super) enum UserArgs {
    /// Entry of a function (or the middle of it): argument registers.
    Call(Arch),
    /// Return of a function: the result.
    Return(Arch),
    /// A static probe point: each argument, or why it cannot be read.
    Static(Vec<Result<Argument, ArgumentError>>),
    /// A static probe point that was not found.
    Absent(String),
}

impl UserArgs {
    pub(super) fn names(&self) -> Vec<&'static str> {
        const NAMES: [&str; 12] =
            ["arg0", "arg1", "arg2", "arg3", "arg4", "arg5", "arg6", "arg7", "arg8", "arg9", "arg10", "arg11"];
        let count = match self {
            UserArgs::Call(arch) => arch.call_args().len(),
            UserArgs::Static(all) => all.len(),
            UserArgs::Return(_) | UserArgs::Absent(_) => 0,
        };
        NAMES[..count.min(NAMES.len())].to_vec()
    }
}

/// Whether the kernel takes many places at once.
fn multi(hook: &Hook, target: &Target, report: &mut Report) -> Checked<bool> {
    let (multi, single) = (&target.abilities.uprobe_multi, &target.abilities.uprobe);
    if !multi.yes() && !single.yes() {
        cannot_attach(hook, format!("uprobe_multi: {}; uprobe: {}", reason(multi), reason(single)), target, report)?;
        return Ok(false);
    }
    let (got, because) = match multi.yes() {
        true => ("uprobe_multi: one link for all places in a file", vec![]),
        false => ("uprobe: a perf event for each place", vec![format!("uprobe_multi: {}", reason(multi))]),
    };
    report.choose(Choice { wanted: hook.text.value.clone(), got: got.into(), because });
    Ok(multi.yes())
}

/// `uprobe:` and `uretprobe:`.
pub(super) fn function<'a>(
    hook: &'a Hook,
    (binary, symbol, offset): (&Binary, &str, u64),
    edge: Edge,
    target: &'a Target,
    report: &mut Report,
) -> Checked<Point<'a>> {
    let multi = multi(hook, target, report)?;
    let ret = edge == Edge::Exit;
    let attach = Attach::Uprobe { binary: binary.clone(), symbol: symbol.into(), offset, ret, multi };
    let args = if ret { UserArgs::Return(target.arch) } else { UserArgs::Call(target.arch) };
    Ok(Point { attach, place: whole(&hook.text), select: Select::All, numbers: None, args: Args::User(args) })
}

/// `usdt:`: one point for each way in which the notes of its places say where the arguments are.
pub(super) fn usdt<'a>(
    hook: &'a Hook,
    binary: &Binary,
    (provider, name): (&str, &str),
    target: &'a Target,
    report: &mut Report,
) -> Checked<Vec<Point<'a>>> {
    let multi = multi(hook, target, report)?;
    let found = target.usdts.get(&usdt_name(binary, provider, name)).map(Vec::as_slice).unwrap_or_default();
    let point = |text: Option<&String>| {
        let (binary, provider, name) = (binary.clone(), provider.to_string(), name.to_string());
        let args = match text {
            Some(text) => UserArgs::Static(arguments(text, target.arch)),
            None => UserArgs::Absent(hook.text.value.clone()),
        };
        let attach = Attach::Usdt { binary, provider, name, args: text.cloned(), multi };
        Point { attach, place: whole(&hook.text), select: Select::All, numbers: None, args: Args::User(args) }
    };
    match found {
        [] => Ok(vec![point(None)]),
        texts if texts.len() <= MAX_WAYS => Ok(texts.iter().map(|text| point(Some(text))).collect()),
        texts => {
            let message = format!("its arguments lie in {} different ways, more than {MAX_WAYS}", texts.len());
            let hint = "name one binary or one probe point rather than a pattern";
            Err(report.add(Diagnostic::limit(whole(&hook.text), message).hint(hint)))
        }
    }
}

/// Programs that one `usdt:` hook may become.
const MAX_WAYS: usize = 8;

/// `args.NAME` and `argN` at such a hook.
pub(super) fn arg(env: &mut Env, args: &UserArgs, field: &Ident, span: Span) -> Checked<Value> {
    let place = env.place(span);
    let index = || field.name.strip_prefix("arg")?.parse::<usize>().ok();
    let register = |offset, ty| Value::Typed(Expr { kind: Kind::Arg { offset }, ty, duration: false, place });
    match args {
        UserArgs::Call(arch) => match index().and_then(|i| arch.call_args().get(i)) {
            Some(offset) => Ok(register(*offset, Ty::U64)),
            None => Err(env.unknown_arg(field, "a function's entry")),
        },
        UserArgs::Return(_) => {
            let message = "the arguments are gone when a function returns";
            Err(env.fail_hint(span, message, "save them at the entry: `span: { save: { NAME: arg0 } }`"))
        }
        UserArgs::Absent(hook) => {
            let message = format!("the arguments of `{hook}` are known once there is such a probe point");
            let hint = "`kstrobe list usdt FILE` shows those of a file";
            let diagnostic = Diagnostic::target(place, message).hint(hint);
            Err(env.report.add(diagnostic))
        }
        UserArgs::Static(all) => match index().and_then(|i| all.get(i)) {
            Some(Ok(argument)) => Ok(Value::Typed(value(*argument, place))),
            Some(Err(why)) => {
                let diagnostic = Diagnostic::target(place, format!("`{}` cannot be read: {why}", field.name));
                Err(env.report.add(diagnostic))
            }
            None => Err(env.unknown_arg(field, "this probe point")),
        },
    }
}

/// `retval` at a function's return.
pub(super) fn retval(arch: Arch, place: Place) -> Value {
    Value::Typed(Expr { kind: Kind::Arg { offset: arch.call_result() }, ty: Ty::U64, duration: false, place })
}

/// An argument of a static probe point.
fn value(argument: Argument, place: Place) -> Expr {
    let ty = Ty::Int { bits: argument.bytes * 8, signed: argument.signed };
    let node = |kind, ty| Expr { kind, ty, duration: false, place };
    let register = |offset| node(Kind::Arg { offset }, Ty::U64);
    let kind = match argument.operand {
        Operand::Constant(n) => Kind::Const(extend(n, argument)),
        Operand::Register(offset) => Kind::Arg { offset },
        Operand::Memory { base, index, displacement } => {
            let mut address = register(base);
            if let Some((offset, scale)) = index {
                let scale = node(Kind::Const(scale.into()), Ty::U64);
                let scaled = node(Kind::Arith(Arith::Mul, Box::new(register(offset)), Box::new(scale)), Ty::U64);
                address = node(Kind::Arith(Arith::Add, Box::new(address), Box::new(scaled)), Ty::U64);
            }
            let pointer = node(Kind::Convert(Box::new(address)), Ty::Ptr { to: 0, trust: Trust::User });
            Kind::Load { base: Box::new(pointer), offset: displacement, bitfield: None }
        }
    };
    node(kind, ty)
}

/// The 64 bits of a constant as the type's register holds them.
fn extend(n: i64, argument: Argument) -> u64 {
    let unused = 64 - u32::from(argument.bytes) * 8;
    let top = (n as u64) << unused;
    if argument.signed { ((top as i64) >> unused) as u64 } else { top >> unused }
}

/// A number that is an address in the process: at these hooks every argument is one or none.
pub(super) fn as_pointer(args: &Args, value: Expr) -> Expr {
    match (args, value.ty) {
        (Args::User(_), Ty::Int { bits: 64, .. }) => {
            let place = value.place;
            let ty = Ty::Ptr { to: 0, trust: Trust::User };
            Expr { kind: Kind::Convert(Box::new(value)), ty, duration: false, place }
        }
        _ => value,
    }
}

/// Sites that read no arguments take all places, also those of binaries that come later and have them elsewhere; such sites
/// of one hook are one.
pub(super) fn join(shape: &mut Shape, arch: Arch) {
    match shape {
        Shape::At(sites) => {
            for s in sites.iter_mut() {
                forget(&mut s.attach, arch, s.filter.iter().chain(of_measures(&s.measures)).chain(of_slow(&s.slow)));
            }
            unique(sites);
        }
        Shape::Span { start, end, .. } => {
            for s in start.iter_mut() {
                forget(&mut s.attach, arch, s.filter.iter().chain(&s.by).chain(&s.save));
            }
            for s in end.iter_mut() {
                let filters = s.before.iter().chain(&s.filter);
                let read = filters.chain(&s.by).chain(of_measures(&s.measures)).chain(of_slow(&s.slow));
                forget(&mut s.attach, arch, read);
            }
            unique(start);
            unique(end);
        }
        Shape::Steps { sites, .. } => {
            for s in sites.iter_mut() {
                let set = s.set.iter().map(|(_, value)| value);
                let observed = s.observe.iter().flat_map(|(_, m)| of_measure(m));
                let filters = s.filter.iter().chain(&s.state_filter).chain(&s.measured);
                let read = filters.chain(&s.by).chain(set).chain(observed).chain(of_slow(&s.slow));
                forget(&mut s.attach, arch, read);
            }
            unique(sites);
        }
        Shape::Poll { .. } => {}
    }
}

fn of_measure(m: &Measure) -> impl Iterator<Item = &Expr> {
    m.filter.iter().chain([&m.value]).chain(&m.labels)
}

fn of_measures(measures: &[Option<Measure>]) -> impl Iterator<Item = &Expr> {
    measures.iter().flatten().flat_map(of_measure)
}

fn of_slow(slow: &Option<SlowMeasure>) -> impl Iterator<Item = &Expr> {
    slow.iter().flat_map(|s| [&s.when].into_iter().chain(&s.fields))
}

fn forget<'e>(attach: &mut Attach, arch: Arch, mut read: impl Iterator<Item = &'e Expr>) {
    let Attach::Usdt { args: Some(text), .. } = attach else { return };
    // A constant leaves no trace in what is read.
    let constant =
        |a: &Result<Argument, ArgumentError>| matches!(a, Ok(Argument { operand: Operand::Constant(_), .. }));
    let reads = |e: &Expr| walk::any(e, &|kind| matches!(kind, Kind::Arg { .. }));
    if !arguments(text, arch).iter().any(constant)
        && !read.any(reads)
        && let Attach::Usdt { args, .. } = attach
    {
        *args = None;
    }
}

fn unique<S: PartialEq>(sites: &mut Vec<S>) {
    let mut kept: Vec<S> = Vec::new();
    for site in sites.drain(..) {
        if !kept.contains(&site) {
            kept.push(site);
        }
    }
    *sites = kept;
}
