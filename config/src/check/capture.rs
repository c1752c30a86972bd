//! `capture:`, the same in rules, in `captures.alertmanager_default` and in what the API is sent.
//!
//! Much of it ends in files of the kernel whose lines are commands: a name with a blank, a colon or a line break in it
//! would be more than a name.

use crate::diag::Diagnostic;
use crate::fields::{self, Fields, Keys};
use crate::model::{Capture, CaptureEvent, Flight, Location};
use crate::quantity;
use crate::raw::{Entry, Kind, Node};
use crate::report::{Problem, Report};
use crate::schema::{self, CLOCKS};

pub(crate) const KEYS: Keys = Keys { of: "a capture", known: &schema::names(&schema::CAPTURE), later: &[] };
const EVENT: Keys = Keys { of: "an event", known: &schema::names(&schema::EVENT), later: &[] };
const FLIGHT: Keys = Keys { of: "`flight`", known: &schema::names(&schema::FLIGHT), later: &[] };

/// Options of tracing that other keys set, and how. The kernel keeps the ids of processes for all buffers at once.
const OPTIONS_OF_KEYS: [(&str, &str); 6] = [
    ("overwrite", "`flight` sets it"),
    ("stacktrace", "`stacks` sets it"),
    ("func_stack_trace", "`function_stacks` sets it"),
    ("event-fork", "`children` sets it"),
    ("function-fork", "`children` sets it"),
    ("record-tgid", "it is on for every capture"),
];

/// Names in one list.
const MAX_ITEMS: usize = 1000;
/// Of a name; the kernel's own symbols have at most 512.
const MAX_NAME_BYTES: usize = 512;
/// Of a filter or trigger: the kernel takes a page at most.
const MAX_FILTER_BYTES: usize = 4000;
/// Calls of calls that the kernel can follow.
const MAX_DEPTH: u64 = 256;
/// Of each CPU's buffer.
pub(crate) const MAX_BUFFER_KIB: u64 = 64 << 10;
/// Largest process id there can be.
const MAX_PID: u64 = 1 << 22;
const MAX_CPU: u64 = 8191;
const MIN_DURATION_NS: u64 = 10_000_000;
pub(crate) const MIN_BYTES: u64 = 4096;
const MAX_AFTER_NS: u64 = 60_000_000_000;

/// The block. `None` when there is any mistake in it.
pub(crate) fn capture(node: &Node, at: &Location, report: &mut Report) -> Option<Capture> {
    let before = report.errors();
    let fields = Fields::read(node, at, &KEYS, report)?;
    let tracer = fields.get("tracer").and_then(|n| fields::parsed(n, "a tracer", report, tracer));
    let mut names = |key: &str, what: &str, check: fn(&str) -> Result<String, Problem>| {
        fields.get(key).map(|node| list(node, what, report, check)).unwrap_or_default()
    };
    let functions = names("functions", "function", function);
    let not_functions = names("not_functions", "function", function);
    let graph = names("graph", "function", function);
    let comms = names("comms", "name of threads", comm);
    let cgroups = names("cgroups", "control group", cgroup);
    let pods = names("pods", "pod", pod);
    let numbers = |key: &str, what: &str, most: u64, report: &mut Report| -> Vec<u64> {
        fields
            .get(key)
            .map(|node| items(node, what, report))
            .unwrap_or_default()
            .iter()
            .filter_map(|item| fields::integer(item, 0..=most, report))
            .collect()
    };
    let pids = numbers("pids", "thread", MAX_PID, report);
    let cpus = numbers("cpus", "CPU", MAX_CPU, report);
    let events = fields.get("events").map(|node| events(node, report)).unwrap_or_default();
    let options = fields.get("options").map(|node| options(node, report)).unwrap_or_default();
    let boolean = |key: &str, report: &mut Report| fields.get(key).and_then(|n| fields::boolean(n, report));
    let (stacks, function_stacks) = (boolean("stacks", report), boolean("function_stacks", report));
    let capture = Capture {
        at: at.clone(),
        tracer: tracer.map(|t| t.value),
        events,
        functions,
        not_functions,
        graph,
        depth: fields.get("depth").and_then(|n| fields::integer(n, 1..=MAX_DEPTH, report)).map(|n| n as u32),
        stacks: stacks.unwrap_or(false),
        function_stacks: function_stacks.unwrap_or(false),
        pids: pids.into_iter().map(|pid| pid as i32).collect(),
        comms,
        cgroups,
        pods,
        children: boolean("children", report).unwrap_or(false),
        cpus: cpus.into_iter().map(|cpu| cpu as u32).collect(),
        clock: fields.get("clock").and_then(|n| fields::choice(n, "a clock", &CLOCKS, &[], report)).map(str::to_owned),
        buffer_kib: fields.get("buffer_kib").and_then(|n| fields::integer(n, 4..=MAX_BUFFER_KIB, report)),
        options,
        duration_ns: fields.get("duration").and_then(|node| {
            fields::parsed(node, "a duration such as `10s`", report, |text| {
                in_range(text, quantity::duration_ns(text)?, MIN_DURATION_NS, u64::MAX, quantity::show_ns)
            })
        }),
        max_bytes: fields.get("max_bytes").and_then(|node| {
            fields::parsed(node, "a size such as `64MiB`", report, |text| {
                in_range(text, quantity::size_bytes(text)?, MIN_BYTES, u64::MAX, quantity::show_bytes)
            })
        }),
        flight: fields.entry("flight").and_then(|e| flight(&e.value, &e.key.at, report)),
    };
    // Contradictions between keys are reported when each key is valid.
    if report.errors() == before {
        consistent(&fields, &capture, report);
    }
    (report.errors() == before).then_some(capture)
}

/// `value` when it is within its range.
pub(crate) fn in_range(text: &str, value: u64, least: u64, most: u64, show: fn(u64) -> String) -> Result<u64, Problem> {
    if (least..=most).contains(&value) {
        return Ok(value);
    }
    let hint = match (least, most) {
        (_, u64::MAX) => format!("use at least {}", show(least)),
        (0, _) => format!("use at most {}", show(most)),
        _ => format!("use {} to {}", show(least), show(most)),
    };
    Err(Problem::new(format!("{text} is out of range")).hint(hint))
}

fn consistent(fields: &Fields<'_>, capture: &Capture, report: &mut Report) {
    let tracer = capture.tracer.as_deref().filter(|name| *name != "nop");
    if tracer.is_none() && capture.events.is_empty() {
        let diagnostic = Diagnostic::error(fields.at, "the capture records nothing");
        report.push(diagnostic.hint("say `tracer`, `events` or both"));
        return;
    }
    let graphs = tracer == Some("function_graph");
    let traces = graphs || tracer == Some("function");
    for (key, fits, wanted) in [
        ("functions", traces, "tracer: function` or `tracer: function_graph"),
        ("not_functions", traces, "tracer: function` or `tracer: function_graph"),
        ("graph", graphs, "tracer: function_graph"),
        ("depth", graphs, "tracer: function_graph"),
        ("function_stacks", tracer == Some("function"), "tracer: function"),
    ] {
        if let Some(entry) = fields.entry(key).filter(|_| !fits) {
            report.push(Diagnostic::error(&entry.key.at, format!("`{key}` needs `{wanted}`")));
        }
    }
    if let Some(entry) =
        fields.entry("function_stacks").filter(|_| capture.function_stacks && capture.functions.is_empty())
    {
        let diagnostic =
            Diagnostic::error(&entry.key.at, "a stack of every function of the kernel would stop the machine");
        report.push(diagnostic.hint("say which `functions`"));
    }
}

/// One item or a list.
fn items<'a>(node: &'a Node, what: &str, report: &mut Report) -> &'a [Node] {
    let items = fields::one_or_many(node, what, report);
    if items.len() > MAX_ITEMS {
        report.push(Diagnostic::error(
            &node.at,
            format!("a list of {} items, and at most {MAX_ITEMS} are taken", items.len()),
        ));
        return &[];
    }
    items
}

fn list(node: &Node, what: &str, report: &mut Report, check: fn(&str) -> Result<String, Problem>) -> Vec<String> {
    let what_one = format!("the {what}");
    let items = items(node, what, report).iter();
    items.filter_map(|item| fields::parsed(item, &what_one, report, check)).map(|s| s.value).collect()
}

fn events(node: &Node, report: &mut Report) -> Vec<CaptureEvent> {
    items(node, "event", report).iter().filter_map(|item| event(item, report)).collect()
}

/// What sets an option of tracing, where that is not `options`; as a sentence for the user.
pub fn option_setter(option: &str) -> Option<&'static str> {
    OPTIONS_OF_KEYS.iter().find(|(name, _)| *name == option).map(|(_, setter)| *setter)
}

/// Names with `true` or `false`.
fn options(node: &Node, report: &mut Report) -> Vec<(String, bool)> {
    let entries = fields::mapping(node, "`options`", report).unwrap_or_default();
    if entries.len() > MAX_ITEMS {
        let count = format!("{} options, and at most {MAX_ITEMS} are taken", entries.len());
        report.push(Diagnostic::error(&node.at, count));
        return Vec::new();
    }
    let named = |entry: &Entry, report: &mut Report| {
        let name = &entry.key;
        let on = fields::boolean(&entry.value, report);
        let name = report.accept(&name.at, &name.value, option(&name.value));
        Some((name?, on?))
    };
    entries.iter().filter_map(|entry| named(entry, report)).collect()
}

fn option(text: &str) -> Result<String, Problem> {
    match option_setter(text) {
        Some(setter) => Err(Problem::new(format!("`{text}` is not one of `options`: {setter}"))),
        None => plain(text, "an option of tracing", "_-"),
    }
}

/// `SYSTEM:EVENT`, or a mapping with a filter.
fn event(node: &Node, report: &mut Report) -> Option<CaptureEvent> {
    let named = |node: &Node, report: &mut Report| {
        fields::parsed(node, "an event such as `sched:sched_switch`", report, event_name).map(|s| s.value)
    };
    if !matches!(node.kind, Kind::Mapping(_)) {
        return Some(CaptureEvent { event: named(node, report)?, ..CaptureEvent::default() });
    }
    let fields = Fields::read(node, &node.at, &EVENT, report)?;
    let event = fields.need("event", "an event", report).and_then(|node| named(node, report));
    let filter = fields.get("filter").map(|node| fields::parsed(node, "a filter", report, one_line).map(|s| s.value));
    let triggers = fields.get("triggers").map(|node| list(node, "trigger", report, one_line)).unwrap_or_default();
    let exclude = fields.get("exclude").map_or(Some(false), |node| fields::boolean(node, report));
    let filter = match filter {
        Some(filter) => Some(filter?),
        None => None,
    };
    Some(CaptureEvent { event: event?, filter, triggers, exclude: exclude? })
}

fn flight(node: &Node, at: &Location, report: &mut Report) -> Option<Flight> {
    let fields = Fields::read(node, at, &FLIGHT, report)?;
    let entry = fields.need("stop_on", "`flight`", report)?;
    let stop_on = events(entry, report);
    for (item, event) in fields::one_or_many(entry, "event", report).iter().zip(&stop_on) {
        if event.exclude || !event.triggers.is_empty() {
            report.push(Diagnostic::error(&item.at, "an event that stops a capture has a filter, and nothing else"));
        }
    }
    let after = fields.get("after").map_or(Some(0), |node| {
        let after = fields::parsed(node, "a duration such as `1s`", report, |text| {
            in_range(text, quantity::duration_ns(text)?, 0, MAX_AFTER_NS, quantity::show_ns)
        });
        after.map(|a| a.value)
    });
    Some(Flight { stop_on, after_ns: after? })
}

fn tracer(text: &str) -> Result<String, Problem> {
    plain(text, "a tracer", "_-")
}

fn function(text: &str) -> Result<String, Problem> {
    plain(text, "a function", "_.$*?[]-")
}

fn event_name(text: &str) -> Result<String, Problem> {
    if text.matches(':').count() > 1 {
        return Err(Problem::new(format!("`{text}` is not an event")).hint("write `SYSTEM:EVENT` or `SYSTEM`"));
    }
    plain(text, "an event", "_:*?-")
}

fn pod(text: &str) -> Result<String, Problem> {
    if text.matches('/').count() > 1 {
        return Err(Problem::new(format!("`{text}` is not a pod")).hint("write `NAME` or `NAMESPACE/NAME`"));
    }
    plain(text, "a pod", "-./")
}

fn comm(text: &str) -> Result<String, Problem> {
    // The kernel keeps 15 bytes of a thread's name.
    match text.len() {
        1..=15 if !text.contains(char::is_control) => Ok(text.to_owned()),
        1..=15 => Err(Problem::new("a thread's name has no line breaks")),
        _ => {
            let short: String = text.chars().take(14).collect();
            let problem =
                Problem::new(format!("the kernel keeps 15 bytes of a thread's name, and `{text}` has {}", text.len()));
            Err(problem.hint(format!("write `{short}*`")))
        }
    }
}

fn cgroup(text: &str) -> Result<String, Problem> {
    if text.len() > 4096 || text.contains(char::is_control) || text.split('/').any(|part| part == "..") {
        let hint = "write a path below /sys/fs/cgroup, such as `system.slice/mysql.service`";
        return Err(Problem::new(format!("`{text}` is not a control group")).hint(hint));
    }
    Ok(text.to_owned())
}

fn one_line(text: &str) -> Result<String, Problem> {
    if text.contains(char::is_control) {
        return Err(Problem::new("it is one line"));
    }
    if text.len() > MAX_FILTER_BYTES {
        return Err(Problem::new(format!("the kernel takes {MAX_FILTER_BYTES} bytes, and this has {}", text.len())));
    }
    Ok(text.to_owned())
}

/// ASCII letters, digits and `more`.
fn plain(text: &str, what: &str, more: &str) -> Result<String, Problem> {
    if let Some((at, c)) = text.char_indices().find(|(_, c)| !c.is_ascii_alphanumeric() && !more.contains(*c)) {
        let problem = Problem::new(format!("`{}` cannot be in the name of {what}", c.escape_debug()));
        return Err(problem.at(at..at + c.len_utf8()));
    }
    if text.len() > MAX_NAME_BYTES {
        return Err(Problem::new(format!("the name of {what} has at most {MAX_NAME_BYTES} characters")));
    }
    Ok(text.to_owned())
}
