//! Hook text (`syscall:[a, b]:exit`) to [`HookKind`].

use super::{function, sampling, user};
use crate::diag::Diagnostic;
use crate::fields::{self, Fields, Keys};
use crate::model::{Edge, Hook, HookKind, Spanned};
use crate::names::{identifier, one_of, suggestion};
use crate::quantity;
use crate::raw::{Kind, Node};
use crate::report::{Problem, Report};
use kstrobe_ebpf::diag::did_you_mean;
use std::ops::Range;

/// Hook kinds of this version with their shape.
pub(crate) const KINDS: [(&str, &str); 16] = [
    ("tracepoint", "tracepoint:SYSTEM:EVENT"),
    ("rawtracepoint", "rawtracepoint:EVENT"),
    ("syscall", "syscall:NAME:enter"),
    ("interval", "interval:s:1"),
    ("uprobe", "uprobe:PATH:SYMBOL"),
    ("uretprobe", "uretprobe:PATH:SYMBOL"),
    ("usdt", "usdt:PATH:PROVIDER:NAME"),
    ("profile", "profile:hz:99"),
    ("software", "software:EVENT:PERIOD"),
    ("hardware", "hardware:EVENT:PERIOD"),
    ("iter", "iter:task"),
    ("function", "function:NAME:entry"),
    ("fentry", "fentry:NAME"),
    ("fexit", "fexit:NAME"),
    ("kprobe", "kprobe:NAME"),
    ("kretprobe", "kretprobe:NAME"),
];
/// Names of other tools for our kinds.
const HABITS: [(&str, &str); 18] = [
    ("t", "tracepoint"),
    ("tp", "tracepoint"),
    ("rt", "rawtracepoint"),
    ("raw_tp", "rawtracepoint"),
    ("raw_tracepoint", "rawtracepoint"),
    ("tp_btf", "rawtracepoint"),
    ("u", "uprobe"),
    ("ur", "uretprobe"),
    ("U", "usdt"),
    ("i", "interval"),
    ("timer", "interval"),
    ("sys", "syscall"),
    ("k", "kprobe"),
    ("kr", "kretprobe"),
    ("kfunc", "fentry"),
    ("f", "fentry"),
    ("kretfunc", "fexit"),
    ("fr", "fexit"),
];
/// A timer that fires more often than this costs more than what it could measure.
pub(crate) const MIN_PERIOD_NS: u64 = 1_000_000;
/// The longest wait between two runs that anybody would call periodic.
pub(crate) const MAX_PERIOD_NS: u64 = 86_400_000_000_000;

pub(crate) const FIRST_OF: Keys = Keys { of: "an alternative", known: &["first_of"], later: &[] };

/// One hook or a list of them, no hook twice.
pub(super) fn hooks(node: &Node, report: &mut Report) -> Vec<Hook> {
    let items = fields::one_or_many(node, "hook", report);
    let found = items.iter().flat_map(|item| match &item.kind {
        Kind::Mapping(entries) if entries.iter().any(|e| e.key.value == "first_of") => {
            first_of(item, report).into_iter().collect()
        }
        _ => hook(item, report).unwrap_or_default(),
    });
    let found: Vec<_> = found.collect();
    once_each(found, report)
}

/// `first_of: [..]`
fn first_of(node: &Node, report: &mut Report) -> Option<Hook> {
    let entry = Fields::read(node, &node.at, &FIRST_OF, report)?.entry("first_of")?;
    let hooks: Vec<_> =
        fields::list(&entry.value, "`first_of`", report)?.iter().map(|n| alternative(n, report)).collect();
    if hooks.is_empty() {
        report.push(Diagnostic::error(&entry.value.at, "an empty list, where at least one hook is needed"));
    }
    let hooks = once_each(hooks.into_iter().collect::<Option<_>>()?, report);
    let written: Vec<&str> = hooks.iter().map(|hook| hook.text.value.as_str()).collect();
    // Diagnostics about alternatives mean all of them.
    let text = Spanned::new(format!("first_of [{}]", written.join(", ")), entry.key.at.clone());
    Some(Hook { kind: HookKind::FirstOf(hooks), text })
}

fn alternative(node: &Node, report: &mut Report) -> Option<Hook> {
    let mut hooks = hook(node, report)?;
    if hooks.len() > 1 {
        let message = format!("an alternative is one hook, and these are {}", hooks.len());
        report.push(Diagnostic::error(&node.at, message));
    }
    hooks.pop()
}

/// One hook, or those of a list within its text.
fn hook(node: &Node, report: &mut Report) -> Option<Vec<Hook>> {
    if user::is_of_process(node) {
        return user::of_process(node, report);
    }
    if let Kind::Mapping(entries) = &node.kind {
        let diagnostic = Diagnostic::error(&node.at, "a hook is text, found a mapping");
        report.push(match entries.first() {
            Some(e) if e.key.value == "first_of" => diagnostic.hint("alternatives have no alternatives of their own"),
            _ => diagnostic.hint("write a hook without spaces behind its colons, or put it in quotes"),
        });
        return None;
    }
    text(node, "a hook such as `rawtracepoint:sched_switch`", report)
}

/// A hook's text without blanks around it, parsed; with a list in it, a hook for each of its items.
pub(super) fn text(node: &Node, what: &str, report: &mut Report) -> Option<Vec<Hook>> {
    let text = fields::text(node, what, report)?;
    let each = report.accept(&text.at, &text.value, expand(&text.value))?;
    let parsed = each.into_iter().map(|(written, at)| {
        let kind = parse(&written).map_err(|problem| match at {
            // The part that is wrong lies in the list, or the hook is wrong whatever is in it.
            Some(at) => Problem { range: Some(at), ..problem },
            None => problem,
        });
        let kind = report.accept(&text.at, &text.value, kind)?;
        Some(Hook { kind, text: Spanned::new(written.trim().to_owned(), text.at.clone()) })
    });
    parsed.collect()
}

/// The text of one hook, and where its item stands in a list.
type Expanded = (String, Option<Range<usize>>);

/// The hooks that a text with a list means: `function:[a, b]:entry` is `function:a:entry` and `function:b:entry`, each with the
/// place of its item. System calls are one hook for all of a list.
fn expand(text: &str) -> Result<Vec<Expanded>, Problem> {
    let alone = || Ok(vec![(text.to_owned(), None)]);
    if text.trim_start().starts_with("syscall:") {
        return alone();
    }
    // Names of C++ operators have brackets, too: a list begins where a name does.
    let Some(open) = text.find(":[").map(|colon| colon + 1) else { return alone() };
    let end = [text[open..].rfind("]:"), text.trim_end().ends_with(']').then(|| text.trim_end().len() - open - 1)];
    let Some(close) = end.into_iter().flatten().next().map(|close| open + close) else {
        return Err(Problem::new("the list has no closing `]`").at(open..text.len()));
    };
    let mut found: Vec<Expanded> = Vec::new();
    let mut start = open + 1;
    for item in text[open + 1..close].split(',') {
        let name = item.trim();
        let first = start + (item.len() - item.trim_start().len());
        let here = first..first + name.len();
        let written = format!("{}{name}{}", &text[..open], &text[close + 1..]);
        if name.is_empty() {
            return Err(Problem::new("a name is missing in the list").at(open..close + 1));
        }
        if found.iter().any(|(other, _)| *other == written) {
            return Err(Problem::new(format!("`{name}` is in the list twice")).at(here));
        }
        found.push((written, Some(here)));
        start += item.len() + 1;
    }
    Ok(found)
}

/// Reports what is there twice.
fn once_each(found: Vec<Hook>, report: &mut Report) -> Vec<Hook> {
    let mut hooks: Vec<Hook> = Vec::new();
    for hook in found {
        match hooks.iter().find(|h| h.kind == hook.kind) {
            Some(first) => {
                let diagnostic = Diagnostic::error(&hook.text.at, "this hook is in the list twice");
                report.push(diagnostic.hint(format!("the first is in line {}", first.text.at.line)));
            }
            None => hooks.push(hook),
        }
    }
    hooks
}

/// Parses `text`; problems point at the part that is wrong.
pub(crate) fn parse(text: &str) -> Result<HookKind, Problem> {
    let trimmed = text.trim();
    let start = text.len() - text.trim_start().len();
    let parse = || {
        let (kind, rest) = trimmed.split_once(':').unwrap_or((trimmed, ""));
        match kind {
            "tracepoint" => tracepoint(rest),
            "rawtracepoint" => raw_tracepoint(rest),
            "syscall" => syscall(rest),
            "interval" => interval(rest),
            "uprobe" => user::function(rest, Edge::Enter),
            "uretprobe" => user::function(rest, Edge::Exit),
            "usdt" => user::usdt(rest),
            "profile" => sampling::profile(rest),
            "software" => sampling::software(rest),
            "hardware" => sampling::hardware(rest),
            "iter" => sampling::iterator(rest),
            "function" => function::function(rest),
            "fentry" => function::traced(rest, Edge::Enter),
            "fexit" => function::traced(rest, Edge::Exit),
            "kprobe" => function::kprobe(rest, Edge::Enter),
            "kretprobe" => function::kprobe(rest, Edge::Exit),
            _ => return Err(unknown_kind(kind)),
        }
        .map_err(|p| {
            // Parsers of a kind see what follows `kind:`.
            let offset = (kind.len() + 1).min(trimmed.len());
            Problem { range: p.range.map(|r| r.start + offset..r.end + offset), ..p }
        })
    };
    parse().map_err(|p| Problem { range: p.range.map(|r| r.start + start..r.end + start), ..p })
}

fn unknown_kind(kind: &str) -> Problem {
    let here = 0..kind.len();
    let habit = HABITS.iter().find(|(habit, _)| *habit == kind).map(|(_, ours)| *ours);
    let near = habit.or_else(|| did_you_mean(kind, KINDS.iter().map(|(name, _)| *name)));
    let hint = match near {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("a hook is {}", one_of(&KINDS.map(|(_, shape)| shape))),
    };
    Problem::new(format!("there is no hook kind `{kind}`")).at(here).hint(hint)
}

/// How a kind is written.
fn shape(kind: &str) -> String {
    let shape = KINDS.iter().find(|(name, _)| *name == kind).map_or(kind, |(_, shape)| shape);
    format!("write `{shape}`")
}

fn name(text: &str, offset: usize, what: &str) -> Result<String, Problem> {
    if text.contains(['*', '?']) {
        let problem = Problem::new(format!("patterns are not supported in a {what} by this version"));
        return Err(problem.at(offset..offset + text.len()));
    }
    identifier(text, what).map_err(|p| p.at(offset..offset + text.len()))?;
    Ok(text.to_owned())
}

fn tracepoint(rest: &str) -> Result<HookKind, Problem> {
    let Some((system, event)) = rest.split_once(':').filter(|(system, event)| !system.is_empty() && !event.is_empty())
    else {
        return Err(Problem::new("a tracepoint has a system and an event").hint(shape("tracepoint")));
    };
    let event_name = name(event, system.len() + 1, "tracepoint event")?;
    Ok(HookKind::Tracepoint { system: name(system, 0, "tracepoint system")?, event: event_name })
}

fn raw_tracepoint(rest: &str) -> Result<HookKind, Problem> {
    if rest.is_empty() {
        return Err(Problem::new("a raw tracepoint has an event").hint(shape("rawtracepoint")));
    }
    if let Some((_, event)) = rest.rsplit_once(':') {
        return Err(Problem::new("a raw tracepoint has an event and no system")
            .at(0..rest.len() - event.len())
            .hint(format!("write `rawtracepoint:{event}`")));
    }
    Ok(HookKind::RawTracepoint { event: name(rest, 0, "tracepoint event")? })
}

fn syscall(rest: &str) -> Result<HookKind, Problem> {
    let Some((names, edge)) = rest.rsplit_once(':') else {
        return Err(Problem::new("a system call hook says `enter` or `exit`")
            .hint(format!("write `syscall:{}:enter`", if rest.is_empty() { "NAME" } else { rest })));
    };
    let edge = match edge {
        "enter" => Edge::Enter,
        "exit" => Edge::Exit,
        _ => {
            let hint = match edge {
                "entry" | "start" => "did you mean `enter`?".to_owned(),
                "return" | "ret" | "end" => "did you mean `exit`?".to_owned(),
                _ => suggestion(edge, &["enter", "exit"]),
            };
            let here = names.len() + 1..rest.len();
            return Err(Problem::new(format!("a system call hook ends in `enter` or `exit`, not in `{edge}`"))
                .at(here)
                .hint(hint));
        }
    };
    Ok(HookKind::Syscall { names: syscall_names(names)?, edge })
}

/// `*` (an empty list), one name, or `[a, b]`.
fn syscall_names(text: &str) -> Result<Vec<String>, Problem> {
    if text == "*" {
        return Ok(Vec::new());
    }
    let Some(inner) = text.strip_prefix('[') else {
        return Ok(vec![syscall_name(text, 0)?]);
    };
    let Some(inner) = inner.strip_suffix(']') else {
        return Err(Problem::new("the list of system calls has no closing `]`").at(0..text.len()));
    };
    let mut names: Vec<String> = Vec::new();
    let mut offset = 1;
    for item in inner.split(',') {
        let start = offset + (item.len() - item.trim_start().len());
        let found = syscall_name(item.trim(), start)?;
        if names.contains(&found) {
            let here = start..start + found.len();
            return Err(Problem::new(format!("`{found}` is in the list twice")).at(here));
        }
        names.push(found);
        offset += item.len() + 1;
    }
    Ok(names)
}

fn syscall_name(text: &str, offset: usize) -> Result<String, Problem> {
    let prefix = ["sys_enter_", "sys_exit_", "__x64_sys_", "__se_sys_", "sys_"];
    if let Some(bare) = prefix.iter().find_map(|p| text.strip_prefix(p)) {
        return Err(Problem::new("system calls are named without a prefix")
            .at(offset..offset + text.len() - bare.len())
            .hint(format!("write `{bare}`")));
    }
    if text.is_empty() {
        return Err(Problem::new("a system call's name is missing").at(offset..offset).hint("`*` means all of them"));
    }
    name(text, offset, "system call name")
}

fn interval(rest: &str) -> Result<HookKind, Problem> {
    let Some((unit, count)) = rest.split_once(':') else {
        return Err(Problem::new("an interval has a unit and a number").hint(shape("interval")));
    };
    let scale = match unit {
        "s" => 1_000_000_000,
        "ms" => 1_000_000,
        "us" => 1_000,
        _ => {
            let hint = suggestion(unit, &["s", "ms", "us"]);
            return Err(Problem::new(format!("an interval has no unit `{unit}`")).at(0..unit.len()).hint(hint));
        }
    };
    let here = unit.len() + 1..rest.len();
    let number = quantity::integer(count).map_err(|p| p.at(here.clone()))?;
    match number.checked_mul(scale) {
        Some(period_ns @ MIN_PERIOD_NS..=MAX_PERIOD_NS) => Ok(HookKind::Interval { period_ns }),
        _ => Err(Problem::new("the interval is out of range").at(here).hint("use 1ms to 1 day")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kstrobe_ebpf::hook::Recorded;

    #[test]
    fn a_trace_records_the_events_or_functions_of_a_hook() {
        let of = |hook| {
            let Recorded { events, functions } = parse(hook).map(|kind| kind.recorded()).unwrap_or_default();
            (events.join(" "), functions.join(" "))
        };
        let events = |text: &str| (text.to_owned(), String::new());
        let functions = |text: &str| (String::new(), text.to_owned());
        let both =
            "syscalls:sys_enter_recvfrom syscalls:sys_exit_recvfrom syscalls:sys_enter_read syscalls:sys_exit_read";
        assert_eq!(of("syscall:[recvfrom, read]:enter"), events(both));
        assert_eq!(of("syscall:*:exit"), events("raw_syscalls:sys_enter raw_syscalls:sys_exit"));
        assert_eq!(of("rawtracepoint:tcp_retransmit_skb"), events("*:tcp_retransmit_skb"));
        assert_eq!(of("tracepoint:irq:softirq_entry"), events("irq:softirq_entry"));
        assert_eq!(of("function:nf_tables:nft_do_chain:entry"), functions("nft_do_chain"));
        assert_eq!(of("function:vfs_read:return"), functions("vfs_read"));
        assert_eq!(of("kprobe:tcp_v4_rcv+4"), functions("tcp_v4_rcv"));
        for hook in ["profile:hz:99", "uprobe:/bin/x:main", "no hook"] {
            assert_eq!(of(hook), events(""), "{hook}");
        }
    }

    fn syscalls(names: &[&str], edge: Edge) -> Result<HookKind, Problem> {
        Ok(HookKind::Syscall { names: names.iter().map(|n| (*n).to_owned()).collect(), edge })
    }

    #[test]
    fn hooks_of_this_version() {
        let (system, event) = ("sock".to_owned(), "inet_sock_set_state".to_owned());
        assert_eq!(parse("tracepoint:sock:inet_sock_set_state"), Ok(HookKind::Tracepoint { system, event }));
        let event = "softirq_entry".to_owned();
        assert_eq!(parse(" rawtracepoint:softirq_entry\n"), Ok(HookKind::RawTracepoint { event }));
        assert_eq!(parse("syscall:read:enter"), syscalls(&["read"], Edge::Enter));
        assert_eq!(parse("syscall:[read, write,recvmsg ]:exit"), syscalls(&["read", "write", "recvmsg"], Edge::Exit));
        assert_eq!(parse("syscall:*:enter"), syscalls(&[], Edge::Enter));
        assert_eq!(parse("interval:s:1"), Ok(HookKind::Interval { period_ns: 1_000_000_000 }));
        assert_eq!(parse("interval:ms:100"), Ok(HookKind::Interval { period_ns: 100_000_000 }));
        assert_eq!(parse("interval:us:2500"), Ok(HookKind::Interval { period_ns: 2_500_000 }));
    }

    #[test]
    fn a_list_of_names_is_a_hook_for_each() {
        let each = |text: &str| expand(text).map(|all| all.into_iter().map(|(text, _)| text).collect::<Vec<_>>());
        let two = |a: &str, b: &str| Ok(vec![a.to_owned(), b.to_owned()]);
        assert_eq!(each("function:[a, b]:entry"), two("function:a:entry", "function:b:entry"));
        assert_eq!(each("function:veth:[a,b]:return"), two("function:veth:a:return", "function:veth:b:return"));
        assert_eq!(each("rawtracepoint:[ x , y]"), two("rawtracepoint:x", "rawtracepoint:y"));
        assert_eq!(each("uprobe:libc:[malloc, ns::f()]"), two("uprobe:libc:malloc", "uprobe:libc:ns::f()"));
        assert_eq!(each("syscall:[a, b]:enter"), Ok(vec!["syscall:[a, b]:enter".to_owned()]));
        assert_eq!(each("uprobe:/bin/x:v::operator[]"), Ok(vec!["uprobe:/bin/x:v::operator[]".to_owned()]));
        let problem = |text: &str| expand(text).map_err(|problem| problem.range.unwrap_or_default());
        assert_eq!(problem("rawtracepoint:[x, x]"), Err(18..19));
        assert_eq!(problem("function:[a:entry"), Err(9..17));
        assert_eq!(problem("function:[a, ]:entry"), Err(9..14));
    }

    /// The text that the problem of `text` points at, and its hint.
    fn wrong(text: &str) -> (&str, String) {
        let problem = parse(text).expect_err(text);
        let range = problem.range.unwrap_or(0..text.len());
        (&text[range], problem.hint.unwrap_or_default())
    }

    #[test]
    fn problems_point_at_the_part_that_is_wrong() {
        assert_eq!(wrong("tracepont:a:b"), ("tracepont", "did you mean `tracepoint`?".to_owned()));
        assert_eq!(wrong("kprob:f"), ("kprob", "did you mean `kprobe`?".to_owned()));
        assert_eq!(wrong("rt:x"), ("rt", "did you mean `rawtracepoint`?".to_owned()));
        assert_eq!(wrong("tracepoint:a").1, "write `tracepoint:SYSTEM:EVENT`");
        assert_eq!(wrong("tracepoint:a:b*").0, "b*");
        assert_eq!(wrong("tracepoint:a-b:c").0, "a-b");
        assert_eq!(
            wrong("rawtracepoint:sched:sched_switch"),
            ("sched:", "write `rawtracepoint:sched_switch`".to_owned())
        );
        assert_eq!(wrong("syscall:read:return"), ("return", "did you mean `exit`?".to_owned()));
        assert_eq!(wrong("syscall:read").1, "write `syscall:read:enter`");
        assert_eq!(wrong(" syscall:[read,  wr-ite]:exit").0, "wr-ite");
        assert_eq!(wrong("syscall:[read, read]:exit").0, "read");
        assert_eq!(wrong("syscall:[read,]:exit").1, "`*` means all of them");
        assert_eq!(
            wrong("syscall:[read:exit").0,
            "syscall:[read:exit".trim_start_matches("syscall:").trim_end_matches(":exit")
        );
        assert_eq!(wrong("syscall:sys_enter_read:enter"), ("sys_enter_", "write `read`".to_owned()));
        assert_eq!(wrong("interval:h:1").0, "h");
        assert_eq!(wrong("interval:s:0").0, "0");
        assert_eq!(wrong("interval:us:10").0, "10");
        assert_eq!(wrong("interval:s:x").0, "x");
        assert_eq!(wrong("interval").1, "write `interval:s:1`");
    }
}
