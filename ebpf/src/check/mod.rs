//! AST + target -> typed probe. Every name is resolved here and every type error is found here, all in one run.
//!
//! | file | question it answers |
//! |---|---|
//! | `hooks` | where does a hook attach on this kernel, and what are its arguments? |
//! | `functions` | which of the ways to hook these kernel functions is there, and why not a better one? |
//! | `prototype` | what are a function's arguments and its result, and where do they lie? |
//! | `user` | what do registers and notes say at a place in a program or library? |
//! | `sampling` | can this perf event be had, and what does it show? |
//! | `hooked` | which hook of a list, and which function, is an event of? |
//! | `first_of` | which of several hooks does this kernel have? |
//! | `key` | what finds a span or a state again? |
//! | `steps` | what does an event do with the state of its key? |
//! | `span` | how are starts and ends paired, and what is saved? |
//! | `records` | what of it can an ftrace session not know? |
//! | `scope` | what does a name mean at this site? |
//! | `expr`, `ops`, `call`, `descriptor`, `packet`, `strings` | what is the type of this expression? |
//! | `access`, `members` | which bytes does this member, element or cast mean? |
//! | `cgroup` | whose event is it? |
//! | `never` | which conditions can this kernel never meet? |
//! | `metric`, `label`, `stacks` | is this a value, or a label, that can be stored and shown? |
//! | `traps`, `closing`, `interrupts`, `defines` | is it a likely mistake, though it compiles? |

mod access;
mod call;
mod cgroup;
mod closing;
mod defines;
mod descriptor;
mod expr;
mod first_of;
mod functions;
mod hooked;
mod hooks;
mod interrupts;
mod key;
mod label;
mod members;
mod metric;
mod never;
mod objects;
mod ops;
mod packet;
mod print;
mod prototype;
mod records;
mod report;
mod sampling;
mod scope;
mod slow;
mod socket;
mod span;
mod stacks;
mod steps;
mod strings;
mod syscalls;
mod traps;
mod user;
mod walk;

pub use print::{print_expr, print_probe};

use crate::ast::Exprs;
use crate::diag::{Diagnostic, Place, did_you_mean};
use crate::kernel_target::Target;
use crate::program::{Program, Shape};
use crate::source::SpannedStr;
use crate::typed::{self, CgroupName};
use hooks::Point;
use metric::Columns;
use never::Never;
use report::{Checked, Report, Reported, whole};
use scope::{Args, Role, Scope};

/// Most metrics of a probe.
const MAX_METRICS: usize = 16;
/// Most labels of a metric.
const MAX_LABELS: usize = 8;
/// Most fields of a record.
const MAX_FIELDS: usize = 16;
/// Most saved values of a span.
const MAX_SAVED: usize = 8;
/// Most bytes of a key: what fits the program's stack beside everything else.
const MAX_KEY_BYTES: u32 = 256;
/// Most elements of a set.
const MAX_SET: usize = 256;
/// Most bytes of one text value.
const MAX_TEXT: u16 = 64;

/// What the language allows at most, in words.
pub fn limits() -> Vec<(&'static str, u64)> {
    vec![
        ("metrics of a probe", MAX_METRICS as u64),
        ("labels of a metric", MAX_LABELS as u64),
        ("fields of `slow`", MAX_FIELDS as u64),
        ("saved values of a span, or fields of a state", MAX_SAVED as u64),
        ("bytes of a state, each field taking whole words of 8", steps::MAX_STATE_BYTES.into()),
        ("bytes of a metric's labels, or of a span's key", MAX_KEY_BYTES.into()),
        ("bytes of a text", MAX_TEXT.into()),
        ("elements of a set", MAX_SET as u64),
        ("functions of one hook with a pattern", functions::MAX_KPROBE_MULTI as u64),
        ("the same where the kernel has no kprobe_multi", functions::MAX_KPROBES as u64),
        ("spans that are found by arithmetic (the product of the domains in `by`)", span::MAX_DENSE),
    ]
}

/// Every name of the language: built-in values, constants, functions and decoders.
pub fn words() -> Vec<&'static str> {
    let decoders = label::DECODERS.into_iter();
    let cgroups = CgroupName::ALL.into_iter().map(CgroupName::name);
    let stacks = slow::STACKS.into_iter().map(|(name, ..)| name);
    let values = scope::BUILTINS.into_iter().chain(["false"]).chain(cgroups).chain(stacks);
    values.chain(scope::constants()).chain(call::names()).chain(decoders).collect()
}

/// Whether it is one of [`words`], or names a register.
pub fn is_word(name: &str) -> bool {
    words().contains(&name) || scope::is_register_arg(name)
}

/// What every step of checking reads.
#[derive(Clone, Copy)]
struct Input<'a> {
    program: &'a Program,
    exprs: &'a Exprs,
    target: &'a Target,
}

impl Input<'_> {
    /// A hook as it is written.
    fn hook(&self, place: Place) -> &str {
        let hooks = self.program.hooks();
        let hook = hooks.into_iter().find(|hook| hook.text.id == place.text);
        hook.map_or("", |hook| hook.text.value.as_str())
    }
}

/// Checks a parsed program against a kernel. Texts missing from `exprs` did not parse and are passed over.
pub fn check(program: &Program, exprs: &Exprs, target: &Target) -> Result<typed::Probe, Vec<Diagnostic>> {
    let input = Input { program, exprs, target };
    let mut report = Report::default();
    metric::check_limits(program, &mut report);
    slow::check_limits(program, &mut report);
    closing::check(input, &mut report);
    let mut columns = Columns::new(program);
    let mut never = Never::default();
    let mut shape = match &program.shape {
        Shape::At(hooks) => at(input, hooks, &mut columns, &mut never, &mut report),
        Shape::Span(span) => span::check(input, span, &mut columns, &mut never, &mut report),
        Shape::Steps(steps) => steps::check(input, steps, &mut columns, &mut never, &mut report),
        Shape::Poll { source, every_ns } => poll(input, source, *every_ns, &mut columns, &mut never, &mut report),
    };
    let (metrics, slow) = columns.finish(program, &mut never);
    if let Ok(shape) = &mut shape {
        never.finish(shape, &mut report);
    }
    let (mut mistakes, choices, warnings) = report.finish();
    match shape {
        Ok(mut shape) if mistakes.is_empty() => {
            user::join(&mut shape, target.arch);
            let (name, limits) = (program.name.value.clone(), program.limits);
            let probe = typed::Probe { name, shape, metrics, slow, choices, warnings, limits };
            match target.session.then(|| records::beyond(&probe)).filter(|beyond| !beyond.is_empty()) {
                Some(mut beyond) => {
                    beyond.extend(probe.warnings);
                    Err(beyond)
                }
                None => Ok(probe),
            }
        }
        // A text that did not parse stops the probe without a word here: its mistake is reported already.
        _ => {
            mistakes.extend(warnings);
            Err(mistakes)
        }
    }
}

fn at<'a>(
    input: Input<'a>,
    hooks: &'a [crate::program::Hook],
    columns: &mut Columns,
    never: &mut Never,
    report: &mut Report,
) -> Checked<typed::Shape> {
    let (points, mut outcome) = hooks::resolve(hooks, input.target, report);
    if let Some(reported) = objects::mixed(&points, report) {
        outcome = Err(reported);
    }
    if points.iter().any(Point::is_object) {
        outcome = outcome.and(objects::check_metrics(input.program, report));
    }
    let mut sites = Vec::new();
    for point in points {
        let role = if point.is_object() { Role::Object } else { Role::At };
        let scope = Scope::at(input, role, &point);
        let filter = cgroup::of_probe(input, &scope, cgroup::Part::All, report);
        if let Some(place) = filter.as_ref().ok().and_then(never::place) {
            never.add(place, format!("nothing is measured at `{}`", input.hook(point.place)));
            continue;
        }
        let measures = measures(input, &scope, columns, report);
        let slow = slow::measure(input, &scope, &mut columns.slow, report);
        let (Ok(filter), Ok(measures), Ok(slow)) = (filter, measures, slow) else {
            outcome = Err(Reported);
            continue;
        };
        let (attach, place, select) = (point.attach, point.place, point.select);
        sites.push(typed::Site { attach, place, select, filter, measures, slow });
    }
    outcome.map(|()| typed::Shape::At(sites))
}

fn poll(
    input: Input,
    source: &SpannedStr,
    every_ns: u64,
    columns: &mut Columns,
    never: &mut Never,
    report: &mut Report,
) -> Checked<typed::Shape> {
    let Some(fields) = input.target.polls.get(&source.value) else {
        let near = did_you_mean(&source.value, input.target.polls.keys().map(String::as_str));
        let hint = match near {
            Some(near) => format!("did you mean `{near}`?"),
            None => {
                let names: Vec<&str> = input.target.polls.keys().map(String::as_str).collect();
                format!("sources are {}", names.join(", "))
            }
        };
        let message = format!("no poll source `{}`", source.value);
        return Err(report.add(Diagnostic::user(whole(source), message).hint(hint)));
    };
    let scope = Scope::new(input, Role::Poll, Args::Record { what: format!("poll source `{}`", source.value), fields });
    let filter = cgroup::of_probe(input, &scope, cgroup::Part::All, report);
    if let Some(place) = filter.as_ref().ok().and_then(never::place) {
        never.add(place, String::new());
        return Ok(typed::Shape::At(Vec::new()));
    }
    let measures = measures(input, &scope, columns, report);
    Ok(typed::Shape::Poll { source: source.value.clone(), every_ns, filter: filter?, measures: measures? })
}

/// All of a `where`.
fn filter(input: Input, scope: &Scope, text: &Option<SpannedStr>, report: &mut Report) -> Checked<Option<typed::Expr>> {
    cgroup::filter(input, scope, text, cgroup::Part::All, report)
}

/// One measurement per metric at this site; all are checked even when one is wrong.
fn measures(
    input: Input,
    scope: &Scope,
    columns: &mut Columns,
    report: &mut Report,
) -> Checked<Vec<Option<typed::Measure>>> {
    let all: Vec<_> =
        (0..input.program.metrics.len()).map(|i| metric::measure(input, scope, i, columns, report)).collect();
    all.into_iter().collect()
}
