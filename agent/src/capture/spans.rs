//! A recording as spans of OpenTelemetry: one for the capture, below it its longest calls, each within its caller.

use super::store::Capture;
use kstrobe_export::otlp::Value;
use kstrobe_export::otlp::spans::{Span, SpanId, TraceId};
use kstrobe_ftrace::calls::{Call, CallId, Calls};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Calls of a capture that become spans, the longest first: what draws traces is slow with more.
pub const MAX_CALLS: usize = 2000;

/// What is known of a recording besides its calls.
#[derive(Clone, Copy, Debug)]
pub struct About<'a> {
    pub capture: &'a Capture,
    /// Name of the machine.
    pub host: &'a str,
    /// When it began and ended.
    pub times: (SystemTime, SystemTime),
    /// Nanoseconds to add to the recording's times for those since the Unix epoch. Without it they begin when it did.
    pub epoch_offset_ns: Option<i64>,
}

/// The first 16 bytes of SHA-256 of the capture's id, a blank and the machine's name: `printf '%s %s' ID HOST | sha256sum`.
pub fn trace_id(capture: &str, host: &str) -> TraceId {
    let digest = Sha256::digest(format!("{capture} {host}"));
    let mut id = [0; 16];
    id.iter_mut().zip(digest).for_each(|(byte, of)| *byte = of);
    id
}

/// The spans of a recording. Calls whose begin or end was not recorded are left out; their callees become children of the
/// next caller.
pub fn spans(about: About<'_>, calls: &Calls) -> Vec<Span> {
    let trace = trace_id(&about.capture.id, about.host);
    let exported = longest(calls);
    let mut spans = vec![root(about, calls, trace, exported.len())];
    let zero = about.epoch_offset_ns.or_else(|| offset(about.times.0, calls)).unwrap_or_default();
    // Callers come before their callees, as no call is longer than its caller.
    let ids: HashMap<CallId, SpanId> = exported.iter().map(|call| (*call, span_id(trace, call.0 + 1))).collect();
    for id in exported {
        let call = &calls[id];
        let (Some(start_ns), Some(duration_ns)) = (call.start_ns, call.duration_ns) else { continue };
        let above = std::iter::successors(call.parent, |above| calls[*above].parent);
        let parent = above.filter_map(|above| ids.get(&above)).next();
        let start = wall(start_ns, zero);
        spans.push(Span {
            trace,
            id: span_id(trace, id.0 + 1),
            parent: Some(*parent.unwrap_or(&span_id(trace, 0))),
            name: calls.name_of(call).to_owned(),
            start,
            end: start + Duration::from_nanos(duration_ns),
            attributes: attributes(calls, call),
            error: None,
        });
    }
    spans
}

/// Of the calls of which both ends are known.
fn longest(calls: &Calls) -> Vec<CallId> {
    let known = |call: &Call| call.function.is_some() && call.start_ns.is_some() && call.duration_ns.is_some();
    let all = (0..calls.calls.len() as u32).map(CallId);
    let mut known: Vec<CallId> = all.filter(|id| known(&calls[*id])).collect();
    // A caller that took as long as what it called was entered before.
    known.sort_by_key(|id| (std::cmp::Reverse(calls[*id].duration_ns), *id));
    known.truncate(MAX_CALLS);
    known
}

fn root(about: About<'_>, calls: &Calls, trace: TraceId, exported: usize) -> Span {
    let About { capture, times, .. } = about;
    let text = |value: &str| Value::Text(value.to_owned());
    let whole = |value: u64| Value::Whole(i64::try_from(value).unwrap_or(i64::MAX));
    let mut attributes = vec![
        ("kstrobe.capture.id".to_owned(), text(&capture.id)),
        ("kstrobe.capture.trigger".to_owned(), text(&capture.trigger.kind)),
        ("kstrobe.capture.records".to_owned(), whole(capture.records)),
        ("kstrobe.capture.records_lost".to_owned(), whole(capture.lost)),
        ("kstrobe.capture.calls".to_owned(), whole(calls.calls.len() as u64)),
        ("kstrobe.capture.calls_left_out".to_owned(), whole((calls.calls.len() - exported) as u64)),
    ];
    for (name, value) in [("rule", &capture.trigger.rule), ("why", &capture.trigger.why)] {
        if !value.is_empty() {
            attributes.push((format!("kstrobe.capture.{name}"), text(value)));
        }
    }
    Span {
        trace,
        id: span_id(trace, 0),
        parent: None,
        name: "capture".to_owned(),
        start: times.0,
        end: times.1,
        attributes,
        error: (!capture.error.is_empty()).then(|| capture.error.clone()),
    }
}

/// By the semantic conventions, where they have a word.
fn attributes(calls: &Calls, call: &Call) -> Vec<(String, Value)> {
    let mut attributes = vec![("code.function.name".to_owned(), Value::Text(calls.name_of(call).to_owned()))];
    let mut add = |name: &str, value: Value| attributes.push((name.to_owned(), value));
    if let Some(task) = call.task {
        add("thread.id", Value::Whole(task.pid.into()));
        if let Some(comm) = task.comm {
            add("thread.name", Value::Text(calls.names[comm].to_string()));
        }
    }
    if let Some(cpu) = call.cpu {
        add("cpu.logical_number", Value::Whole(cpu.into()));
    }
    if let Some(module) = call.module {
        add("kstrobe.module", Value::Text(calls.names[module].to_string()));
    }
    if call.interrupt {
        add("kstrobe.interrupt", Value::Truth(true));
    }
    for (name, value) in [("kstrobe.arguments", &call.arguments), ("kstrobe.returned", &call.returned)] {
        if let Some(value) = value {
            add(name, Value::Text(value.to_string()));
        }
    }
    attributes
}

/// Unlike those of other traces by its first half, and unlike one another by its second.
fn span_id(trace: TraceId, number: u32) -> SpanId {
    let mut id = [0; 8];
    id[..4].copy_from_slice(&trace[..4]);
    // An id of zeros is none.
    id[0] |= 1;
    id[4..].copy_from_slice(&number.to_be_bytes());
    id
}

/// So that the first call begins with the recording.
fn offset(began: SystemTime, calls: &Calls) -> Option<i64> {
    let first = calls.calls.iter().filter_map(|call| call.start_ns).min()?;
    let began = began.duration_since(UNIX_EPOCH).ok()?.as_nanos();
    i64::try_from(i128::try_from(began).ok()? - i128::from(first)).ok()
}

fn wall(at_ns: u64, offset_ns: i64) -> SystemTime {
    let since = at_ns.saturating_add_signed(offset_ns);
    UNIX_EPOCH + Duration::from_nanos(since)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::store::{State, Trigger};
    use kstrobe_ftrace::calls::text;

    const GRAPH: &str = "\
# tracer: function_graph
#
#     TIME        CPU  TASK/PID         DURATION                  FUNCTION CALLS
#      |          |     |    |           |   |                     |   |   |   |
  100.000001 |   1)  mysqld-42    |               |  __x64_sys_recvfrom() {
  100.000002 |   1)  mysqld-42    |   1.000 us    |    fdget();
  100.000004 |   1)  mysqld-42    |               |    sock_recvmsg() {
  100.000005 |   1)  mysqld-42    |   2.000 us    |      tcp_recvmsg();
  100.000008 |   1)  mysqld-42    |   4.000 us    |    }
  100.000009 |   1)  mysqld-42    |   8.000 us    |  }
";

    fn capture(state: State, error: &str) -> Capture {
        Capture {
            id: "20231114T221320000Z-0a1b2c".into(),
            state,
            error: error.into(),
            trigger: Trigger { kind: "rule".into(), rule: "slow".into(), ..Trigger::default() },
            request: serde_json::Value::Null,
            started: String::new(),
            started_unix_ms: 0,
            ended: String::new(),
            bytes: 0,
            records: 12,
            lost: 1,
            notes: vec![],
            clock: None,
            files: vec![],
        }
    }

    fn about<'a>(capture: &'a Capture, epoch_offset_ns: Option<i64>) -> About<'a> {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        About { capture, host: "n1", times: (at(1_700_000_000), at(1_700_000_001)), epoch_offset_ns }
    }

    #[test]
    fn calls_are_spans_within_their_callers() {
        let calls = text::parse(GRAPH);
        let capture = capture(State::Done, "");
        let spans = spans(about(&capture, Some(1_600_000_000_000_000_000)), &calls);
        let names: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
        assert_eq!(
            names,
            ["capture", "__x64_sys_recvfrom", "sock_recvmsg", "tcp_recvmsg", "fdget"],
            "the longest first"
        );
        let parents: Vec<Option<&str>> = spans
            .iter()
            .map(|span| span.parent.map(|id| spans.iter().find(|s| s.id == id).unwrap().name.as_str()))
            .collect();
        let recv = Some("__x64_sys_recvfrom");
        assert_eq!(parents, [None, Some("capture"), recv, Some("sock_recvmsg"), recv]);
        assert!(spans.iter().all(|span| span.trace == trace_id(&capture.id, "n1") && span.error.is_none()));
        let took: Vec<u64> =
            spans[1..].iter().map(|s| s.end.duration_since(s.start).unwrap().as_micros() as u64).collect();
        assert_eq!(took, [8, 4, 2, 1]);
        let since = spans[1].start.duration_since(UNIX_EPOCH).unwrap();
        assert_eq!((since.as_secs(), since.subsec_micros()), (1_600_000_100, 1), "by the wall clock");
        assert_eq!(
            spans[1].attributes,
            [
                ("code.function.name".to_owned(), Value::Text("__x64_sys_recvfrom".into())),
                ("thread.id".to_owned(), Value::Whole(42)),
                ("thread.name".to_owned(), Value::Text("mysqld".into())),
                ("cpu.logical_number".to_owned(), Value::Whole(1)),
            ]
        );
        assert!(spans[0].attributes.contains(&("kstrobe.capture.rule".into(), Value::Text("slow".into()))));
        assert!(spans[0].attributes.contains(&("kstrobe.capture.calls_left_out".into(), Value::Whole(0))));
    }

    #[test]
    fn without_an_offset_calls_begin_with_the_recording() {
        let capture = capture(State::Done, "");
        let spans = spans(about(&capture, None), &text::parse(GRAPH));
        assert_eq!(spans[1].start, spans[0].start);
    }

    #[test]
    fn calls_beyond_the_limit_are_counted() {
        let line = "  100.000001 |   1)  mysqld-42    |   1.000 us    |  fdget();\n";
        let text: String = (0..MAX_CALLS + 10).map(|n| line.replace("100.000001", &format!("100.{n:06}"))).collect();
        let capture = capture(State::Done, "");
        let spans = spans(about(&capture, None), &text::parse(&text));
        assert_eq!(spans.len(), 1 + MAX_CALLS);
        assert!(spans[0].attributes.contains(&("kstrobe.capture.calls_left_out".into(), Value::Whole(10))));
        let ids: std::collections::HashSet<SpanId> = spans.iter().map(|span| span.id).collect();
        assert_eq!(ids.len(), spans.len());
    }

    #[test]
    fn one_that_failed_says_why() {
        let capture = capture(State::Failed, "no such function");
        let spans = spans(about(&capture, None), &Calls::default());
        assert_eq!((spans.len(), spans[0].error.as_deref()), (1, Some("no such function")));
    }

    #[test]
    fn ids_of_traces_can_be_found_by_hand() {
        // printf '%s %s' 20231114T221320000Z-0a1b2c n1 | sha256sum
        let hex: String = trace_id("20231114T221320000Z-0a1b2c", "n1").iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, "7534d25644854cd95bf8e1a0a2eb660c");
        assert_ne!(trace_id("20231114T221320000Z-0a1b2c", "n2"), trace_id("20231114T221320000Z-0a1b2c", "n1"));
    }
}
