//! Spans: how starts and ends are paired, and what is saved between them.

use super::access::retrust;
use super::cgroup::{self, Part, both};
use super::expr::Env;
use super::hooks::{self, Point};
use super::key::{SiteKey, hash_key, key_parts, parts, same_types};
use super::metric::Columns;
use super::never::{self, Never};
use super::report::{Checked, Report, Reported, whole};
use super::scope::{Args, Role, Saved, Scope};
use super::{Input, MAX_SAVED, filter, interrupts, measures, objects, slow, stacks, syscalls, walk};
use crate::ast::ExprKind;
use crate::diag::{Diagnostic, Place};
use crate::kernel_target::Ability;
use crate::program::{Edge, HookKind, Span};
use crate::source::SpannedStr;
use crate::typed::{EndSite, Expr, Kind, Select, Shape, SpanKey, StartSite, Trust, Ty};

/// Most elements of a dense key: a map of this many open spans is still small.
pub(super) const MAX_DENSE: u64 = 65_536;

pub(super) fn check(
    input: Input,
    span: &Span,
    columns: &mut Columns,
    never: &mut Never,
    report: &mut Report,
) -> Checked<Shape> {
    check_saved_names(span, report);
    let (start_points, starts_ok) = hooks::resolve(&span.start, input.target, report);
    let (end_points, ends_ok) = hooks::resolve(&span.end, input.target, report);
    let mut outcome = starts_ok.and(ends_ok);
    for points in [&start_points, &end_points] {
        outcome = outcome.and(objects::outside_of_spans(points, report));
    }
    let by_task = is_by_task(input, span);
    if by_task {
        interrupts::check(&span.start, &span.end, report);
    }
    let hooked = start_points.len();
    let (start_points, starts) = starts(input, span, start_points, by_task, never, report);
    if starts.is_empty() && hooked > 0 {
        return outcome.map(|()| Shape::At(Vec::new()));
    }
    let dropped = starts.len() < hooked;
    let (saved, saved_ok) = saved(input, span, &starts, report);
    let selected: Vec<_> = start_points.iter().map(|p| p.numbers.clone()).collect();
    let enters = start_points.iter().all(Point::is_syscall_enter);

    let key_scopes = end_points.iter().map(|p| Scope::at(input, Role::Key, p));
    let by_end = if span.by_end.is_empty() { &span.by } else { &span.by_end };
    let end_keys: Vec<_> = key_scopes.map(|scope| site_key(input, by_end, &scope, by_task, report)).collect();
    // The agent must see which stacks open spans still refer to, and only a hash can be listed.
    let keeps_stacks = !stacks::saved(input.program, Place::default()).is_empty()
        || starts.iter().flat_map(|s| s.values.iter().flatten()).any(stacks::is_stack);
    let key = key(input, span, by_task, keeps_stacks, starts.iter().map(|s| &s.key).chain(&end_keys), report);

    let mut ends = Vec::new();
    outcome = outcome.and(saved_ok);
    let mut unmet = None;
    for (point, site_key) in end_points.into_iter().zip(end_keys) {
        let scope = end_scope(input, span, &point, &saved, by_task);
        let before = Scope::at(input, Role::Ending, &point);
        let before = self::filter(input, &before, &span.filter_end, report);
        if let Some(place) = before.as_ref().ok().and_then(never::place) {
            never.add(place, format!("no span ends at `{}`", input.hook(point.place)));
            continue;
        }
        let mut filter = cgroup::of_probe(input, &scope, Part::AtEnd, report);
        let silent = filter.as_ref().ok().and_then(never::place);
        let (measures, slow) = match silent {
            // It still ends what began.
            Some(place) => {
                (unmet, filter) = (Some(place), Ok(None));
                (Ok(vec![None; input.program.metrics.len()]), Ok(None))
            }
            None => {
                let measures = measures(input, &scope, columns, report);
                (measures, slow::measure(input, &scope, &mut columns.slow, report))
            }
        };
        let (Ok(before), Ok(filter), Ok(measures)) = (before, filter, measures) else {
            outcome = Err(Reported);
            continue;
        };
        let (Ok(slow), Ok(by), Ok(key)) = (slow, site_key, &key) else {
            outcome = Err(Reported);
            continue;
        };
        // A task inside a call that began a span can only return from that very call.
        let implied = *key == SpanKey::Task && enters && covers(&point, &selected);
        let hook = point.select;
        let select = if implied { Select::All } else { hook.clone() };
        let by = key_values(by, key);
        ends.push(EndSite {
            attach: point.attach,
            place: point.place,
            hook,
            select,
            before,
            filter,
            by,
            measures,
            slow,
        });
    }
    outcome?;
    if let Some(place) = unmet.filter(|_| ends.iter().all(|end| end.measures.iter().all(Option::is_none))) {
        never.add(place, "no span is measured".into());
    }
    let mut shape = finish(input, span, start_points, starts, ends, saved, key?)?;
    // A start that never begins a span is as good as filtered.
    if let Shape::Span { filtered, .. } = &mut shape {
        *filtered |= dropped;
    }
    Ok(shape)
}

/// Whether an end's selection has the returns of all calls that may have begun a span.
fn covers(end: &Point, starts: &[Option<Vec<u64>>]) -> bool {
    let returns = matches!(&end.args, Args::Syscall(call) if call.edge == Edge::Exit);
    let selected =
        |ends: &Vec<u64>| starts.iter().all(|s| s.as_ref().is_some_and(|s| s.iter().all(|n| ends.contains(n))));
    returns && end.numbers.as_ref().is_none_or(selected)
}

fn finish(
    input: Input,
    span: &Span,
    points: Vec<Point>,
    starts: Vec<Start>,
    ends: Vec<EndSite>,
    saved: Vec<Saved>,
    key: SpanKey,
) -> Checked<Shape> {
    let mut save: Vec<(String, Ty)> = Vec::new();
    for s in &saved {
        save.push((s.name.clone(), s.ty.ok_or(Reported)?));
    }
    save.extend(stacks::saved(input.program, Place::default()).into_iter().map(|(name, e)| (name, e.ty)));
    let hidden = save.len() as u32;
    let uses_syscall = any_in(&ends, &|kind| *kind == Kind::Saved(hidden));
    if uses_syscall {
        save.push((hidden_name(&save), Ty::U32));
    }
    let mut sites = Vec::new();
    for (point, start) in points.into_iter().zip(starts) {
        let mut values = start.save?;
        values.extend(stacks::saved(input.program, point.place).into_iter().map(|(_, e)| e));
        for (value, (_, ty)) in values.iter_mut().zip(&save) {
            if let Ty::Ptr { trust, .. } = ty {
                *value = retrust(value.clone(), *trust);
            }
        }
        if uses_syscall && let Args::Syscall(call) = &point.args {
            values.push(syscalls::number(input.target, call.edge, call.source, point.place).ok_or(Reported)?);
        }
        let Point { attach, place, select, .. } = point;
        let by = key_values(start.key?, &key);
        sites.push(StartSite { attach, place, select, filter: start.filter?, by, save: values });
    }
    let filtered = sites.iter().any(|s| s.filter.is_some() || s.select != Select::All);
    let off_cpu = any_in(&ends, &|kind| matches!(kind, Kind::OffCpu | Kind::OnCpu));
    let (keep, max_open) = (span.keep, span.max_open);
    Ok(Shape::Span { start: sites, end: ends, key, save, keep, max_open, off_cpu, filtered })
}

/// A name for the saved call number that no saved value of the user has.
fn hidden_name(save: &[(String, Ty)]) -> String {
    let mut name = "syscall".to_string();
    while save.iter().any(|(taken, _)| *taken == name) {
        name.push('_');
    }
    name
}

fn any_in(ends: &[EndSite], test: &dyn Fn(&Kind) -> bool) -> bool {
    let measured = ends.iter().flat_map(|e| e.measures.iter().flatten());
    let sent = ends.iter().flat_map(|e| &e.slow).flat_map(|s| s.fields.iter().chain([&s.when]));
    let mut exprs = ends
        .iter()
        .filter_map(|e| e.filter.as_ref())
        .chain(sent)
        .chain(measured.flat_map(|m| m.filter.iter().chain([&m.value]).chain(&m.labels)));
    exprs.any(|e| walk::any(e, test))
}

fn key_values(key: SiteKey, kind: &SpanKey) -> Vec<Expr> {
    match kind {
        SpanKey::Task => Vec::new(),
        _ => key.into_iter().map(|(expr, _)| expr).collect(),
    }
}

/// One start site, each part checked on its own.
struct Start {
    filter: Checked<Option<Expr>>,
    key: Checked<SiteKey>,
    save: Checked<Vec<Expr>>,
    /// As far as they are right: what ends may read.
    values: Vec<Checked<Expr>>,
    /// Of each, [`Env::network_bits`].
    network: Vec<Option<u8>>,
}

/// Where spans may begin.
fn starts<'a>(
    input: Input<'a>,
    span: &Span,
    points: Vec<Point<'a>>,
    by_task: bool,
    never: &mut Never,
    report: &mut Report,
) -> (Vec<Point<'a>>, Vec<Start>) {
    let (mut kept, mut starts) = (Vec::new(), Vec::new());
    for point in points {
        let scope = Scope::at(input, Role::Start, &point);
        // Whose span it is, is known when it begins: what is of no interest is not even opened.
        let early = cgroup::of_probe(input, &scope, Part::AtStart, report);
        let own = filter(input, &scope, &span.filter, report);
        let filter = early.and_then(|early| Ok(early.into_iter().chain(own?).reduce(both)));
        if let Some(place) = filter.as_ref().ok().and_then(never::place) {
            never.add(place, format!("no span begins at `{}`", input.hook(point.place)));
            continue;
        }
        let key_scope = Scope::at(input, Role::Key, &point);
        let key = site_key(input, &span.by, &key_scope, by_task, report);
        let values: Vec<Checked<Expr>> = span
            .save
            .iter()
            .map(|(_, text)| {
                let ast = input.exprs.0.get(&text.id).ok_or(Reported)?;
                let mut env = Env { target: input.target, scope: &scope, text, report };
                let value = env.value(ast)?;
                let expr = env.typed(value)?;
                match expr.ty {
                    Ty::Bytes(_) => Err(env.fail(ast.span, "raw bytes cannot be saved; read them at the end")),
                    _ => Ok(expr),
                }
            })
            .collect();
        let network = |(_, text): &(SpannedStr, SpannedStr)| {
            let ast = input.exprs.0.get(&text.id)?;
            Env { target: input.target, scope: &scope, text, report: &mut Report::default() }.network_bits(ast)
        };
        let network = span.save.iter().map(network).collect();
        let save = values.iter().cloned().collect();
        starts.push(Start { filter, key, save, values, network });
        kept.push(point);
    }
    (kept, starts)
}

/// What `start.NAME` is: the same at all starts.
fn saved(input: Input, span: &Span, starts: &[Start], report: &mut Report) -> (Vec<Saved>, Checked<()>) {
    let mut all = Vec::new();
    let mut outcome = Ok(());
    for (i, (name, text)) in span.save.iter().enumerate() {
        let mut values = starts.iter().filter_map(|s| s.values[i].as_ref().ok());
        let Some(first) = values.next() else {
            let unknown = Saved { name: name.value.clone(), ty: None, duration: false, identity: None, network: None };
            all.push(unknown);
            continue;
        };
        let ty = at_rest(first.ty);
        if let Some(other) = values.find(|v| at_rest(v.ty) != ty) {
            let (a, b) = (super::expr::describe(input.target, ty), super::expr::describe(input.target, other.ty));
            let message = format!("`{}` is {a} at one start and {b} at another", name.value);
            outcome = Err(report.add(Diagnostic::user(whole(text), message).hint("convert it to one type")));
        }
        let identity = walk::identity(first).filter(|_| !matches!(ty, Ty::Ptr { .. }));
        let network = starts.iter().find_map(|s| s.network[i]);
        all.push(Saved { name: name.value.clone(), ty: Some(ty), duration: first.duration, identity, network });
    }
    (all, outcome)
}

/// A pointer that was kept in a map is only an address to the verifier.
fn at_rest(ty: Ty) -> Ty {
    match ty {
        Ty::Ptr { to, trust: Trust::Btf } => Ty::Ptr { to, trust: Trust::Probe },
        ty => ty,
    }
}

fn check_saved_names(span: &Span, report: &mut Report) {
    if let Some((name, _)) = span.save.get(MAX_SAVED) {
        report.add(Diagnostic::limit(whole(name), format!("a span saves at most {MAX_SAVED} values")));
    }
    for (i, (name, _)) in span.save.iter().enumerate() {
        if span.save[..i].iter().any(|(before, _)| before.value == name.value) {
            report.add(Diagnostic::user(whole(name), format!("`{}` is saved twice", name.value)));
        }
    }
}

fn end_scope<'a>(input: Input<'a>, span: &Span, point: &Point<'a>, saved: &[Saved], by_task: bool) -> Scope<'a> {
    let mut scope = Scope::at(input, Role::End, point);
    scope.saved = saved.to_vec();
    let from_syscalls = span.start.iter().all(|h| matches!(h.kind, HookKind::Syscall { .. }));
    // By another key the call that returns may not be the one that began the span.
    if from_syscalls && (by_task || !matches!(point.args, Args::Syscall(_))) {
        let taken = stacks::saved(input.program, point.place).len();
        scope.saved_syscall = Some((saved.len() + taken) as u32);
    }
    let tp_btf = &input.target.abilities.tp_btf;
    scope.no_switches = if !by_task {
        let message = "time switched out is known only for spans of one task";
        Some((message.into(), "remove `by:`, or write `by: tid`".into()))
    } else if !tp_btf.yes() {
        let reason = if let Ability::No(reason) = tp_btf { reason } else { "it was not tried" };
        Some((format!("this kernel cannot tell when a task is switched out: tp_btf: {reason}"), String::new()))
    } else {
        None
    };
    scope
}

fn is_by_task(input: Input, span: &Span) -> bool {
    let is_tid = |by: &[SpannedStr]| match by {
        [] => true,
        [one] => {
            matches!(input.exprs.0.get(&one.id).map(|e| &e.kind), Some(ExprKind::Name(name)) if name == "tid")
        }
        _ => false,
    };
    is_tid(&span.by) && is_tid(&span.by_end)
}

fn site_key(input: Input, by: &[SpannedStr], scope: &Scope, by_task: bool, report: &mut Report) -> Checked<SiteKey> {
    if by_task {
        let at = by.first().map_or(Place::default(), whole);
        return Ok(vec![(Expr { kind: Kind::Tid, ty: Ty::U32, duration: false, place: at }, None)]);
    }
    key_parts(input, by, scope, report)
}

/// Decides how starts and ends find each other; the types must be the same at all sites.
fn key<'k>(
    input: Input,
    span: &Span,
    by_task: bool,
    keeps_stacks: bool,
    sites: impl Iterator<Item = &'k Checked<SiteKey>>,
    report: &mut Report,
) -> Checked<SpanKey> {
    let abilities = &input.target.abilities;
    if by_task && !keeps_stacks && abilities.task_storage.yes() && abilities.current_task_btf.yes() {
        return Ok(SpanKey::Task);
    }
    if let (false, Some(last)) = (by_task || span.by_end.is_empty(), span.by_end.last())
        && span.by_end.len() != span.by.len()
    {
        let message = format!("the key has {} at the start and {} at the end", parts(&span.by), parts(&span.by_end));
        return Err(report.add(Diagnostic::user(whole(last), message).hint("both ends name the same things")));
    }
    let texts: Vec<&SpannedStr> = span.by.iter().chain(&span.by_end).collect();
    let sites: Vec<&SiteKey> = sites.flatten().collect();
    same_types(input, &texts, &sites, report)?;
    let Some(first) = sites.first() else { return Err(Reported) };
    // What one end says of its range holds for both: they are values of one thing.
    let domain = |i: usize| sites.iter().filter_map(|site| site[i].1).max();
    let domains: Option<Vec<u32>> = (0..first.len()).map(domain).collect();
    if let Some(domains) = domains.filter(|_| !keeps_stacks)
        && domains.iter().try_fold(1u64, |n, d| n.checked_mul(u64::from(*d))).is_some_and(|n| n <= MAX_DENSE)
    {
        return Ok(SpanKey::Dense(domains));
    }
    hash_key(first, span.by.first(), report).map(SpanKey::Hash)
}
