//! Hooks: where they attach on this kernel and what their arguments are.

use super::first_of;
use super::functions::{self, Wanted};
use super::objects;
use super::report::{Checked, Report, Reported, unknown, whole};
use super::sampling;
use super::scope::Args;
use super::syscalls::{self, CallSource, SyscallArgs};
use super::user;
use crate::diag::{Diagnostic, Place, did_you_mean};
use crate::kernel_target::syscalls::is_system_call;
use crate::kernel_target::{Ability, Target};
use crate::program::{Edge, Hook, HookKind};
use crate::typed::{Attach, Select, Trust};

/// A place in the kernel with the events of it that are meant.
pub(super) struct Point<'a> {
    pub(super) attach: Attach,
    pub(super) place: Place,
    pub(super) select: Select,
    /// Numbers of the selected calls, sorted, when not all.
    pub(super) numbers: Option<Vec<u64>>,
    pub(super) args: Args<'a>,
}

impl Point<'_> {
    /// Stands for a refused hook, so that mistakes in its expressions are reported as well. It is never attached.
    fn unknown(hook: &Hook) -> Self {
        let (attach, place) = (Attach::RawTp { event: String::new() }, whole(&hook.text));
        Point { attach, place, select: Select::All, numbers: None, args: Args::Unknown }
    }

    /// Whether it stands for a hook that was refused.
    pub(super) fn is_unknown(&self) -> bool {
        matches!(self.args, Args::Unknown)
    }

    /// Whether it is a system call's entry.
    pub(super) fn is_syscall_enter(&self) -> bool {
        matches!(&self.args, Args::Syscall(s) if s.edge == Edge::Enter)
    }

    fn is_of_several_functions(&self) -> bool {
        matches!(&self.args, Args::Function(f) if f.prototypes.len() != 1)
    }

    /// Whether it is no event but an object that an iterator came by.
    pub(super) fn is_object(&self) -> bool {
        matches!(self.args, Args::Object(_))
    }
}

/// Resolves a list of hooks; system call hooks of one edge become one point, and one that is refused a point of which nothing is
/// known. The second result says whether all were resolved.
pub(super) fn resolve<'a>(
    written: &'a [Hook],
    target: &'a Target,
    report: &mut Report,
) -> (Vec<Point<'a>>, Checked<()>) {
    let mut points: Vec<Point> = Vec::new();
    let (hooks, mut outcome) = first_of::chosen(written, target, report);
    for hook in &hooks {
        let resolved = match &hook.kind {
            HookKind::Tracepoint { system, event } => tracepoint(hook, system, event, target, report),
            HookKind::RawTracepoint { event } => raw(hook, event, target, report),
            HookKind::Interval { period_ns } => interval(hook, *period_ns, target, report),
            HookKind::Sample(sampling) => sampling::sample(hook, sampling, target, report),
            HookKind::Function { name, module, offset, edge, via } => {
                let (module, offset) = (module.as_deref(), *offset);
                let wanted = Wanted { name, module, offset, edge: *edge, via: *via };
                functions::function(hook, wanted, target, report)
            }
            HookKind::User { binary, symbol, offset, edge } => {
                user::function(hook, (binary, symbol, *offset), *edge, target, report)
            }
            HookKind::Usdt { binary, provider, name } => {
                match user::usdt(hook, binary, (provider, name), target, report) {
                    Ok(found) => {
                        outcome = outcome.and(add(&mut points, hook, found, report));
                        continue;
                    }
                    Err(reported) => Err(reported),
                }
            }
            HookKind::Iter { object } => objects::iterator(hook, object, target, report),
            HookKind::FirstOf(_) => {
                let message = format!("`{}` is not supported by this version", hook.text.value);
                Err(report.add(Diagnostic::target(whole(&hook.text), message)))
            }
            HookKind::Syscall { edge, .. } => match points.iter().any(|p| is_edge(p, *edge)) {
                // The first hook of an edge has taken all of that edge.
                true => continue,
                false => syscall_point(&hooks, hook, *edge, target, report),
            },
        };
        match resolved {
            Ok(point) => outcome = outcome.and(add(&mut points, hook, vec![point], report)),
            Err(reported) => {
                points.push(Point::unknown(hook));
                outcome = Err(reported);
            }
        }
    }
    // A label has one type at all hooks.
    let by_address = points.iter().any(Point::is_of_several_functions);
    for point in &mut points {
        if let Args::Function(f) = &mut point.args {
            f.by_address = by_address;
        }
    }
    if points.is_empty() && outcome.is_err() {
        points.extend(written.first().map(Point::unknown));
    }
    (points, outcome)
}

/// Adds what one hook became; no place twice.
fn add<'a>(points: &mut Vec<Point<'a>>, hook: &Hook, found: Vec<Point<'a>>, report: &mut Report) -> Checked<()> {
    if found.iter().any(|new| points.iter().any(|p| p.attach == new.attach && !p.is_unknown())) {
        let message = format!("two hooks of this list attach to the same place: `{}`", hook.text.value);
        return Err(report.add(Diagnostic::user(whole(&hook.text), message).hint("remove one of them")));
    }
    points.extend(found);
    Ok(())
}

fn is_edge(point: &Point, edge: Edge) -> bool {
    matches!(&point.args, Args::Syscall(s) if s.edge == edge)
}

pub(super) fn reason(ability: &Ability) -> &str {
    match ability {
        Ability::No(reason) => reason,
        Ability::Unknown => "it was not tried",
        Ability::Yes => "it works",
    }
}

/// Reports that the kernel has no way to attach a hook. What the hook shows is known all the same: the caller goes on, so that
/// mistakes in the probe's expressions are found, too. An ftrace session has no such events, and the caller stops.
pub(super) fn cannot_attach(hook: &Hook, why: String, target: &Target, report: &mut Report) -> Checked<()> {
    let message = format!("`{}` cannot be attached on this kernel", hook.text.value);
    let reported = report.add(Diagnostic::target(whole(&hook.text), message).hint(why));
    if target.session { Err(reported) } else { Ok(()) }
}

/// `tp_btf` if it works, else `raw_tp`: the same arguments, read in another way.
fn attach_raw(hook: &Hook, event: &str, target: &Target, report: &mut Report) -> Checked<(Attach, Trust)> {
    let abilities = &target.abilities;
    let known = target.btf.as_ref().is_some_and(|btf| btf.tracepoint_args(event).is_some());
    if abilities.tp_btf.yes() && known {
        return Ok((Attach::TpBtf { event: event.into() }, Trust::Btf));
    }
    if !abilities.raw_tp.yes() {
        let why = format!("tp_btf: {}; raw_tp: {}", reason(&abilities.tp_btf), reason(&abilities.raw_tp));
        cannot_attach(hook, why, target, report)?;
    }
    Ok((Attach::RawTp { event: event.into() }, Trust::Probe))
}

/// Why there is no BTF, as who looked for it says, or what has it.
pub(super) fn without_btf(target: &Target) -> String {
    match &target.abilities.tp_btf {
        Ability::No(reason) => reason.clone(),
        _ => "kernels built with CONFIG_DEBUG_INFO_BTF have /sys/kernel/btf/vmlinux".into(),
    }
}

fn raw<'a>(hook: &'a Hook, event: &'a str, target: &'a Target, report: &mut Report) -> Checked<Point<'a>> {
    let place = whole(&hook.text);
    if target.session {
        let message = format!("`{}` has no records", hook.text.value);
        let hint = "an ftrace session has `tracepoint:SYSTEM:EVENT` and `syscall:NAME:enter` or `exit`";
        return Err(report.add(Diagnostic::target(place, message).hint(hint)));
    }
    let Some(btf) = &target.btf else {
        let message = format!("the arguments of `{event}` need the kernel's BTF, and there is none");
        return Err(report.add(Diagnostic::target(place, message).hint(without_btf(target))));
    };
    let Some(args) = btf.tracepoint_args(event) else {
        let near = did_you_mean(event, btf.tracepoints());
        let message = format!("this kernel has no tracepoint `{event}`");
        let otherwise = "`kstrobe list tracepoints` shows those it has";
        return Err(report.add(unknown(place, message, near, otherwise).absent()));
    };
    let (attach, trust) = attach_raw(hook, event, target, report)?;
    Ok(Point { attach, place, select: Select::All, numbers: None, args: Args::Raw { event, args, trust } })
}

fn tracepoint<'a>(
    hook: &'a Hook,
    system: &str,
    event: &str,
    target: &'a Target,
    report: &mut Report,
) -> Checked<Point<'a>> {
    let place = whole(&hook.text);
    let name = format!("{system}:{event}");
    let known = target.tracepoints.get(&name);
    if !target.abilities.tracepoint.yes() {
        let why = format!("perf tracepoints: {}; try `rawtracepoint:{event}`", reason(&target.abilities.tracepoint));
        cannot_attach(hook, why, target, report)?;
        if known.is_none() {
            return Err(Reported);
        }
    }
    let Some(format) = known else {
        let known = target.btf.as_ref().map(|btf| btf.tracepoints()).unwrap_or_default();
        let near = did_you_mean(&name, target.tracepoints.keys().map(String::as_str))
            .or_else(|| did_you_mean(event, known).filter(|near| *near != event));
        let message = format!("this kernel has no tracepoint `{name}`, or tracefs does not show it");
        let otherwise = "`kstrobe list tracepoints` shows those it has";
        return Err(report.add(unknown(place, message, near, otherwise).absent()));
    };
    Ok(Point {
        attach: Attach::Tracepoint { system: system.into(), event: event.into() },
        place,
        select: Select::All,
        numbers: None,
        args: Args::Record { what: format!("tracepoint `{name}`"), fields: &format.fields },
    })
}

fn interval<'a>(hook: &'a Hook, period_ns: u64, target: &'a Target, report: &mut Report) -> Checked<Point<'a>> {
    if !target.abilities.perf_event.yes() {
        cannot_attach(hook, format!("perf events: {}", reason(&target.abilities.perf_event)), target, report)?;
    }
    let attach = Attach::Interval { period_ns };
    Ok(Point { attach, place: whole(&hook.text), select: Select::All, numbers: None, args: Args::None })
}

/// All system call hooks of one edge in a list.
fn syscall_point<'a>(
    hooks: &[&'a Hook],
    first: &'a Hook,
    edge: Edge,
    target: &'a Target,
    report: &mut Report,
) -> Checked<Point<'a>> {
    let mut names: Vec<&str> = Vec::new();
    let (mut numbers, mut absent) = (Vec::new(), Vec::new());
    let (mut all, mut outcome) = (false, Ok(()));
    for hook in hooks {
        let HookKind::Syscall { names: more, edge: other } = &hook.kind else { continue };
        if *other != edge {
            continue;
        }
        all |= more.is_empty();
        for name in more {
            match call_number(hook, name, target) {
                Ok(_) if names.contains(&name.as_str()) => {}
                Ok(number) => {
                    names.push(name);
                    numbers.push(number);
                }
                // Another call of the list is the one that this architecture has, as `ppoll` is for `poll`.
                Err(_) if is_system_call(name) => absent.push((*hook, name.as_str())),
                Err(diagnostic) => outcome = Err(report.add(*diagnostic)),
            }
        }
    }
    outcome?;
    if let (false, true, Some((hook, name))) = (all, names.is_empty(), absent.first()) {
        return Err(report.add(no_system_call(hook, name, target)));
    }
    let event = match edge {
        Edge::Enter => "sys_enter",
        Edge::Exit => "sys_exit",
    };
    let (attach, source) = match target.session {
        true => {
            let attach = Attach::Tracepoint { system: "raw_syscalls".into(), event: event.into() };
            (attach, CallSource::Record)
        }
        false => {
            let (attach, trust) = attach_raw(first, event, target, report)?;
            (attach, CallSource::Registers(trust))
        }
    };
    let place = whole(&first.text);
    numbers.sort_unstable();
    let (select, numbers) = match all {
        true => {
            names.clear();
            (Select::All, None)
        }
        false => {
            let Some(number) = syscalls::number(target, edge, source, place) else {
                let message = "which call returns is known only through the kernel's BTF (`struct pt_regs`)";
                return Err(report.add(Diagnostic::target(place, message).hint(without_btf(target))));
            };
            (Select::OneOf(number, numbers.clone()), Some(numbers))
        }
    };
    Ok(Point { attach, place, select, numbers, args: Args::Syscall(SyscallArgs { edge, names, source }) })
}

fn call_number(hook: &Hook, name: &str, target: &Target) -> Result<u64, Box<Diagnostic>> {
    let call = target.syscalls.get(name).ok_or_else(|| Box::new(no_system_call(hook, name, target)))?;
    Ok(call.number.into())
}

fn no_system_call(hook: &Hook, name: &str, target: &Target) -> Diagnostic {
    // The caret goes under the name itself when the hook shows it.
    let mut place = whole(&hook.text);
    if let Some(start) = hook.text.value.find(name) {
        place.span = crate::diag::Span::new(start, start + name.len());
    }
    let near = did_you_mean(name, target.syscalls.keys().map(String::as_str));
    let message = format!("this kernel has no system call `{name}`");
    unknown(place, message, near, "names are those of syscalls(2), without `sys_`").absent()
}
