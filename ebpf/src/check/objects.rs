//! `iter:`: programs that run once per object of a kind when the agent reads it, and what they know of the object.

use super::expr::{Env, Value};
use super::hooks::{Point, reason, without_btf};
use super::report::{Checked, Report, Reported, whole};
use super::scope::Args;
use crate::ast::Ident;
use crate::diag::{Diagnostic, Span};
use crate::kernel_target::btf::ITERATOR;
use crate::kernel_target::{Btf, Target};
use crate::program::{Aggregate, Hook, MetricKind, Program};
use crate::typed::{Attach, Expr, Kind, Select, Trust};

/// The socket by a name that is the same in all iterators, and where it lies.
const SOCKETS: [(&str, &[&str]); 3] =
    [("tcp", &["sk_common"]), ("udp", &["udp_sk", "inet", "sk"]), ("unix", &["unix_sk", "sk"])];
const SOCKET: &str = "sk";
/// For messages: the first kernels with each.
const SINCE: [(&str, &str); 4] = [("task", "5.8"), ("tcp", "5.9"), ("udp", "5.9"), ("unix", "5.15")];
/// The object is the argument behind the iterator's own state.
const OBJECT_AT: u32 = 8;

/// What a run of an iterator's program is given.
#[derive(Clone, Debug)]
pub(super) struct ObjectArgs<'a> {
    /// The kind of object, as the user names it.
    object: &'a str,
    /// Name and BTF type of each.
    args: Vec<(String, u32)>,
}

impl ObjectArgs<'_> {
    pub(super) fn names(&self) -> Vec<&str> {
        let other = socket(self.object).map(|_| SOCKET);
        self.args.iter().map(|(name, _)| name.as_str()).filter(|name| *name != "meta").chain(other).collect()
    }
}

fn socket(object: &str) -> Option<&'static [&'static str]> {
    SOCKETS.iter().find(|(name, _)| *name == object).map(|(_, path)| *path)
}

pub(super) fn iterator<'a>(
    hook: &'a Hook,
    object: &'a str,
    target: &'a Target,
    report: &mut Report,
) -> Checked<Point<'a>> {
    let place = whole(&hook.text);
    let Some(btf) = &target.btf else {
        let message = format!("`{}` needs the kernel's BTF, and there is none", hook.text.value);
        return Err(report.add(Diagnostic::target(place, message).hint(without_btf(target))));
    };
    let of = |btf: &Btf| {
        let (params, _) = btf.function(&format!("{ITERATOR}{object}"))?;
        let args: Vec<_> = params.into_iter().map(|(name, ty)| (name.to_owned(), ty)).collect();
        let ty = super::access::pointer_type(btf, btf.strip(args.get(1)?.1), Trust::Btf);
        Some((args, Expr { kind: Kind::Arg { offset: OBJECT_AT }, ty, duration: false, place }))
    };
    let found = of(btf);
    let message = || format!("this kernel has no iterator over `{object}`");
    if !target.abilities.iter.yes() {
        let why = format!("iterators: {}", reason(&target.abilities.iter));
        // Where the object is known, mistakes in expressions are found all the same.
        let reported = report.add(Diagnostic::target(place, message()).absent().hint(why));
        if found.is_none() || target.session {
            return Err(reported);
        }
    }
    let Some((args, pointer)) = found else {
        let hint = match SINCE.iter().find(|(name, _)| *name == object) {
            Some((_, since)) => format!("its BTF describes no function {ITERATOR}{object} (Linux {since} has it)"),
            None => format!("its BTF describes no function {ITERATOR}{object}"),
        };
        return Err(report.add(Diagnostic::target(place, message()).absent().hint(hint)));
    };
    let args = Args::Object(ObjectArgs { object, args });
    let attach = Attach::Iter { object: object.to_owned() };
    Ok(Point { attach, place, select: Select::NotNull(pointer), numbers: None, args })
}

/// `args.NAME`.
pub(super) fn arg(env: &mut Env, object: &ObjectArgs, field: &Ident, span: Span) -> Checked<Value> {
    if let Some(i) = object.args.iter().position(|(name, _)| *name == field.name) {
        return env.raw_arg(i, object.args[i].1, Trust::Btf, span);
    }
    let Some([first, rest @ ..]) = socket(object.object).filter(|_| field.name == SOCKET) else {
        return Err(env.unknown_arg(field, &format!("`iter:{}`", object.object)));
    };
    let mut value = arg(env, object, &Ident { name: (*first).into(), span: field.span }, span)?;
    for name in rest {
        value = env.member(value, &Ident { name: (*name).into(), span: field.span }, span)?;
    }
    Ok(value)
}

/// An iterator tells what is there now, each time from nothing: that is a gauge.
pub(super) fn check_metrics(program: &Program, report: &mut Report) -> Checked<()> {
    let mut outcome = Ok(());
    for metric in &program.metrics {
        let what = match metric.kind {
            MetricKind::Gauge(Some(Aggregate::Last)) => "no object of an iterator is the last one",
            MetricKind::Gauge(_) => continue,
            MetricKind::Counter => "a counter never goes back",
            MetricKind::Histogram(_) => "a histogram counts what happened since the start",
            MetricKind::Stacks(_) => "stacks are of tasks that run",
        };
        let message = format!("{what}, and `iter:` tells what is there now");
        let hint = match metric.kind {
            MetricKind::Gauge(_) => "write `keep: sum`, which is the default here, `keep: min` or `keep: max`",
            _ => "make it `type: gauge`: with `value: 1` it is the number of objects, else the sum of their values",
        };
        outcome = Err(report.add(Diagnostic::user(whole(&metric.name), message).hint(hint)));
    }
    outcome
}

/// Hooks of a list of which some are iterators and others are not.
pub(super) fn mixed(points: &[Point], report: &mut Report) -> Option<Reported> {
    let first = points.iter().find(|p| p.is_object())?;
    let other = points.iter().find(|p| !p.is_object() && !p.is_unknown())?;
    let message = "an iterator runs when the metrics are read, and other hooks when something happens";
    let place = if other.place.text > first.place.text { other.place } else { first.place };
    Some(report.add(Diagnostic::user(place, message).hint("make it a probe of its own")))
}

/// Iterators have no place in a span, nor in steps.
pub(super) fn outside_of_spans(points: &[Point], report: &mut Report) -> Checked<()> {
    let Some(point) = points.iter().find(|p| p.is_object()) else { return Ok(()) };
    let message = "an iterator runs once per object when the metrics are read: nothing begins or ends there";
    Err(report.add(Diagnostic::user(point.place, message).hint("use it with `at:`")))
}

impl Env<'_> {
    /// A built-in value of the task that runs, which here is the agent.
    pub(super) fn not_of_object(&mut self, name: &str, span: Span) -> Reported {
        let message = format!("`{name}` would be that of the agent, which runs this program");
        let names: Vec<String> = self.scope.arg_names(self.target).iter().map(|n| format!("`args.{n}`")).collect();
        self.fail_hint(span, message, &format!("read it from the object: {}", names.join(", ")))
    }
}

/// Whether a name is a value of the current task or CPU.
pub(super) fn is_of_current(name: &str) -> bool {
    matches!(name, "pid" | "tid" | "uid" | "gid" | "comm" | "cgroup" | "cpu" | "task" | "netns")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_have_one_name_everywhere() {
        let names = |object: &str, args: &[&str]| {
            let args = args.iter().map(|a| (a.to_string(), 0)).collect();
            ObjectArgs { object, args }.names().join(" ")
        };
        assert_eq!(names("udp", &["meta", "udp_sk", "uid"]), "udp_sk uid sk");
        assert_eq!(names("task", &["meta", "task"]), "task");
    }
}
