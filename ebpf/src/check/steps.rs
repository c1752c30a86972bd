//! Steps: what a state holds, and what each event does with the state of its key.

use super::access::convert;
use super::cgroup::{self, Part, both, flatten};
use super::expr::{Env, Value, describe};
use super::hooks::{self, Point};
use super::key::{SiteKey, hash_key, key_parts, parts, same_types};
use super::metric::{self, Columns};
use super::never::{self, Never};
use super::report::{Checked, Report, Reported, whole};
use super::scope::{Role, Saved, Scope};
use super::{Input, MAX_SAVED, MAX_TEXT, filter, objects, slow, walk};
use crate::diag::Diagnostic;
use crate::program::{Step, Steps};
use crate::source::SpannedStr;
use crate::typed::{Attach, Expr, Kind, Measure, PerfEvent, Shape, StepSite, Ty};

/// Most bytes of a state: programs hold it on their stack, beside keys and text.
pub(super) const MAX_STATE_BYTES: u32 = 128;
/// Bytes of a text whose length the type does not say: those of `comm`.
const TEXT_BYTES: u16 = 16;

pub(super) fn check(
    input: Input,
    steps: &Steps,
    columns: &mut Columns,
    never: &mut Never,
    report: &mut Report,
) -> Checked<Shape> {
    let (mut fields, fields_ok) = fields(steps, report);
    let mut outcome = same_parts(steps, report).and(fields_ok);
    let mut points = Vec::new();
    for step in &steps.steps {
        let (found, resolved) = hooks::resolve(&step.hooks, input.target, report);
        let (no_object, no_lock) = (objects::outside_of_spans(&found, report), outside_of_locks(&found, report));
        outcome = outcome.and(resolved).and(no_object).and(no_lock);
        points.push(found);
    }
    learn(input, steps, &points, &mut fields);
    let mut keys: Vec<SiteKey> = Vec::new();
    let mut sites = Vec::new();
    for (step, points) in steps.steps.iter().zip(points) {
        for point in points {
            match site(input, steps, step, point, &fields, columns, never, report) {
                Ok(Some((site, key))) => {
                    sites.push(site);
                    keys.push(key);
                }
                Ok(None) => {}
                Err(reported) => outcome = Err(reported),
            }
        }
    }
    outcome?;
    if sites.is_empty() {
        return Ok(Shape::At(Vec::new()));
    }
    let texts: Vec<&SpannedStr> = steps.by.iter().chain(steps.steps.iter().flat_map(|step| &step.by)).collect();
    same_types(input, &texts, &keys.iter().collect::<Vec<_>>(), report)?;
    let key = hash_key(keys.first().ok_or(Reported)?, steps.by.first(), report)?;
    let mut kept: Vec<(String, Ty)> = Vec::new();
    for field in fields {
        kept.push((field.name, field.ty.ok_or(Reported)?));
    }
    Ok(Shape::Steps { key, fields: kept, max_entries: steps.max_entries, sites })
}

/// Whether each step's key has as many parts as that of the state.
fn same_parts(steps: &Steps, report: &mut Report) -> Checked<()> {
    let mut outcome = Ok(());
    for step in &steps.steps {
        if let Some(last) = step.by.last()
            && step.by.len() != steps.by.len()
        {
            let message = format!("the key has {} in `state` and {} here", parts(&steps.by), parts(&step.by));
            let hint = "both name the same things";
            outcome = Err(report.add(Diagnostic::user(whole(last), message).hint(hint)));
        }
    }
    outcome
}

/// The kernel's locks of the states are those of an LRU hash, which wait for themselves for ever where a program runs while its own CPU
/// holds one: in the middle of anything at a hardware event (an NMI on most machines), and at the tracepoints of locks.
fn outside_of_locks(points: &[Point], report: &mut Report) -> Checked<()> {
    let within = |point: &&Point| match &point.attach {
        Attach::Sample(sampling) => matches!(sampling.event, PerfEvent::Hardware(_)),
        attach => attach.event().is_some_and(|event| event.starts_with("contention_")),
    };
    let Some(point) = points.iter().find(within) else { return Ok(()) };
    let message = "a step here could run while the kernel changes the states, and would wait for that for ever";
    Err(report.add(Diagnostic::user(point.place, message).hint("use it with `at:` or in a `span:`")))
}

/// The declared fields. The second result says whether all are right.
fn fields(steps: &Steps, report: &mut Report) -> (Vec<Saved>, Checked<()>) {
    let mut all: Vec<Saved> = Vec::new();
    let mut outcome = Ok(());
    if let Some((name, _)) = steps.fields.get(MAX_SAVED) {
        let message = format!("a state has at most {MAX_SAVED} fields");
        outcome = Err(report.add(Diagnostic::limit(whole(name), message)));
    }
    for (name, text) in &steps.fields {
        if all.iter().any(|field| field.name == name.value) {
            outcome = Err(report.add(Diagnostic::user(whole(name), format!("field `{}` is there twice", name.value))));
        }
        let ty = field_type(&text.value);
        if ty.is_none() {
            let message = format!("`{}` is no type of a field", text.value);
            let hint = format!("types are u8 to u64, s8 to s64, bool, string and string(1) to string({MAX_TEXT})");
            outcome = Err(report.add(Diagnostic::user(whole(text), message).hint(hint)));
        }
        all.push(Saved { name: name.value.clone(), ty, duration: false, identity: None, network: None });
    }
    let bytes: u32 = all.iter().filter_map(|field| field.ty).map(|ty| ty.bytes().next_multiple_of(8)).sum();
    if bytes > MAX_STATE_BYTES
        && let Some((name, _)) = steps.fields.last()
    {
        let message = format!("the state takes {bytes} bytes, at most {MAX_STATE_BYTES} are possible");
        outcome = Err(report.add(Diagnostic::limit(whole(name), message).hint("shorten text: `string(n)`")));
    }
    (all, outcome)
}

fn field_type(text: &str) -> Option<Ty> {
    let int = |bits, signed| Some(Ty::Int { bits, signed });
    match text.trim() {
        "u8" => int(8, false),
        "u16" => int(16, false),
        "u32" => int(32, false),
        "u64" => int(64, false),
        "s8" => int(8, true),
        "s16" => int(16, true),
        "s32" => int(32, true),
        "s64" => int(64, true),
        "bool" => Some(Ty::Bool),
        "string" => Some(Ty::Str(TEXT_BYTES)),
        other => {
            let bytes = other.strip_prefix("string(")?.strip_suffix(')')?.trim().parse().ok()?;
            (1..=MAX_TEXT).contains(&bytes).then_some(Ty::Str(bytes))
        }
    }
}

/// Which fields hold times or identities: what is set says so. What is wrong there is reported later.
fn learn(input: Input, steps: &Steps, points: &[Vec<Point>], fields: &mut [Saved]) {
    let mut unheard = Report::default();
    // A field that is set from another learns from it in the second round.
    for _ in 0..2 {
        for (step, points) in steps.steps.iter().zip(points) {
            for point in points {
                let scope = scope(input, point, fields);
                let learnt: Vec<(usize, Expr, Option<u8>)> = step
                    .set
                    .iter()
                    .filter_map(|(name, text)| {
                        let index = fields.iter().position(|field| field.name == name.value)?;
                        let ast = input.exprs.0.get(&text.id)?;
                        let mut env = Env { target: input.target, scope: &scope, text, report: &mut unheard };
                        let value = env.value(ast).ok()?;
                        Some((index, env.typed(value).ok()?, env.network_bits(ast)))
                    })
                    .collect();
                for (index, expr, network) in learnt {
                    fields[index].network = fields[index].network.or(network);
                    fields[index].duration |= expr.duration;
                    fields[index].identity = fields[index].identity.or(walk::identity(&expr));
                }
            }
        }
    }
}

fn scope<'a>(input: Input<'a>, point: &Point<'a>, fields: &[Saved]) -> Scope<'a> {
    let mut scope = Scope::at(input, Role::Step, point);
    scope.state = fields.to_vec();
    scope
}

/// What a step does at one place; `None` when it never does anything there.
#[allow(clippy::too_many_arguments, reason = "what is found at one site goes to three collections")]
fn site(
    input: Input,
    steps: &Steps,
    step: &Step,
    point: Point,
    fields: &[Saved],
    columns: &mut Columns,
    never: &mut Never,
    report: &mut Report,
) -> Checked<Option<(StepSite, SiteKey)>> {
    let scope = scope(input, &point, fields);
    let (probes_own, measured) = probes_own(input, &scope, step, report);
    let own = filter(input, &scope, &step.filter, report);
    let conditions = [probes_own, own].into_iter().collect::<Checked<Vec<_>>>().map(split);
    if let Some(place) = conditions.as_ref().ok().and_then(|(before, _)| never::place(before)) {
        never.add(place, format!("the step at `{}` does nothing", input.hook(point.place)));
        return Ok(None);
    }
    let unmeasured = measured.as_ref().ok().and_then(never::place);
    if let Some(place) = unmeasured {
        never.add(place, format!("the step at `{}` observes nothing", input.hook(point.place)));
    }
    let observed = if unmeasured.is_some() { &[] } else { step.observe.as_slice() };
    let by = if step.by.is_empty() { &steps.by } else { &step.by };
    let key_scope = Scope::at(input, Role::Key, &point);
    let key = key_parts(input, by, &key_scope, report);
    let set: Vec<Checked<(u32, Expr)>> =
        step.set.iter().map(|(name, text)| assignment(input, &scope, name, text, report)).collect();
    let mut measure = |metric: &u32| {
        let measure = metric::measure(input, &scope, *metric as usize, columns, report)?;
        Ok(measure.map(|measure| (*metric, measure)))
    };
    let observe: Vec<Checked<Option<(u32, Measure)>>> = observed.iter().map(&mut measure).collect();
    // Where nothing is measured, there is nothing that could be slow.
    let slow = match observed.is_empty() {
        true => Ok(None),
        false => slow::measure(input, &scope, &mut columns.slow, report),
    };
    let (key, (filter, state_filter), measured) = (key?, conditions?, measured?);
    let set = set.into_iter().collect::<Checked<_>>()?;
    let observe = observe.into_iter().filter_map(Checked::transpose).collect::<Checked<_>>()?;
    let by = key.iter().map(|(expr, _)| expr.clone()).collect();
    let Point { attach, place, select, .. } = point;
    let (delete, slow) = (step.delete, slow?);
    Ok(Some((StepSite { attach, place, select, by, filter, state_filter, measured, set, observe, delete, slow }, key)))
}

/// The probe's own condition is about what is measured: what of it selects the step's events, and what only selects measurements.
///
/// What is kept must not depend on what is measured: a state that is set would be of some events and not of others, and one that is not
/// deleted would stay for ever. But nothing is set for an owner who is not meant.
fn probes_own(
    input: Input,
    scope: &Scope,
    step: &Step,
    report: &mut Report,
) -> (Checked<Option<Expr>>, Checked<Option<Expr>>) {
    let mut of_probe = |part| cgroup::of_probe(input, scope, part, report);
    let measures = !step.observe.is_empty();
    match (step.set.is_empty(), step.delete) {
        (true, false) => (of_probe(Part::All), Ok(None)),
        (false, false) => (of_probe(Part::AtStart), if measures { of_probe(Part::AtEnd) } else { Ok(None) }),
        (_, true) => (Ok(None), if measures { of_probe(Part::All) } else { Ok(None) }),
    }
}

/// Conditions that all must hold: those that are known before the state is looked for, and those that are not.
fn split(filters: Vec<Option<Expr>>) -> (Option<Expr>, Option<Expr>) {
    let mut parts = Vec::new();
    filters.into_iter().flatten().for_each(|filter| flatten(filter, &mut parts));
    parts.sort_by_key(|part| !matches!(part.kind, Kind::Selected(..)));
    let (mut before, mut after) = (None, None);
    for part in parts {
        let side = if walk::any(&part, &|kind| matches!(kind, Kind::State(_))) { &mut after } else { &mut before };
        *side = Some(match side.take() {
            None => part,
            Some(other) => both(other, part),
        });
    }
    (before, after)
}

/// A field's new value, in the field's type: nothing is cut.
fn assignment(
    input: Input,
    scope: &Scope,
    name: &SpannedStr,
    text: &SpannedStr,
    report: &mut Report,
) -> Checked<(u32, Expr)> {
    let Some(index) = scope.state.iter().position(|field| field.name == name.value) else {
        let message = format!("the state has no field `{}`", name.value);
        let hint = format!("declare it: `fields: {{ {}: u64 }}` in `state`", name.value);
        return Err(report.add(Diagnostic::user(whole(name), message).hint(hint)));
    };
    let ty = scope.state[index].ty.ok_or(Reported)?;
    let ast = input.exprs.0.get(&text.id).ok_or(Reported)?;
    let mut env = Env { target: input.target, scope, text, report };
    let expr = match env.value(ast)? {
        Value::Literal(literal) => env.adapt(literal, ty)?,
        Value::Text(text, span) if matches!(ty, Ty::Str(_)) => {
            let place = env.place(span);
            if text.len() as u32 >= ty.bytes() {
                let message =
                    format!("this text and its end take {} bytes, the field has {}", text.len() + 1, ty.bytes());
                return Err(env.fail(span, message));
            }
            Expr { kind: Kind::Str(text.into()), ty, duration: false, place }
        }
        value => env.typed(value)?,
    };
    let fits = match (expr.ty, ty) {
        (from, to) if from == to => true,
        (Ty::Int { bits: from, signed: a }, Ty::Int { bits: to, signed: b }) => {
            (a == b && from <= to) || (!a && b && from < to)
        }
        (Ty::Ptr { .. }, Ty::Int { bits: 64, signed: false }) => true,
        (Ty::Str(from), Ty::Str(to)) => from <= to,
        _ => false,
    };
    if !fits {
        let (from, to) = (describe(input.target, expr.ty), describe(input.target, ty));
        let hint = match ty {
            Ty::Int { .. } => format!("convert it, as in `{to}(x)`, or declare the field as {from}"),
            _ => format!("declare the field as {from}"),
        };
        let message = format!("`{}` is {from}, but field `{}` is {to}", text.value, name.value);
        return Err(report.add(Diagnostic::user(whole(text), message).hint(hint)));
    }
    let expr = if ty.is_scalar() { convert(expr, ty) } else { expr };
    Ok((index as u32, expr))
}
