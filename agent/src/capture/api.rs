//! YAML and JSON of a capture to a [`Request`], and back.

mod start_at;

use super::request::{EventRequest, Flight, Request, Scope};
use kstrobe_config::Diagnostic;
use kstrobe_config::model::{self, Captures, SourceFile};
use serde_json::{Map, Value, json};
use start_at::StartError;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Duration of a capture that sets none.
const DEFAULT_DURATION: Duration = Duration::from_secs(10);

/// The request of a checked `capture:`, with the defaults of `captures` for what it does not bound itself.
pub fn request(capture: &model::Capture, captures: &Captures) -> Request {
    let event = |e: &model::CaptureEvent| EventRequest {
        pattern: e.event.clone(),
        filter: e.filter.clone(),
        triggers: e.triggers.clone(),
        exclude: e.exclude,
    };
    let most = Duration::from_nanos(captures.max_duration_ns);
    let duration = capture.duration_ns.as_ref().map(|ns| Duration::from_nanos(ns.value));
    Request {
        tracer: capture.tracer.clone(),
        events: capture.events.iter().map(event).collect(),
        functions: capture.functions.clone(),
        not_functions: capture.not_functions.clone(),
        graph_roots: capture.graph.clone(),
        max_graph_depth: capture.depth,
        stacks: capture.stacks,
        function_stacks: capture.function_stacks,
        scope: Scope {
            pids: capture.pids.clone(),
            comms: capture.comms.clone(),
            cgroups: capture.cgroups.iter().map(PathBuf::from).collect(),
            pods: capture.pods.clone(),
            command: Vec::new(),
            only_command: false,
            children: capture.children,
        },
        cpus: capture.cpus.clone(),
        clock: capture.clock.clone(),
        buffer_kib: capture.buffer_kib,
        options: capture.options.clone(),
        start_at: None,
        duration: Some(duration.unwrap_or(DEFAULT_DURATION.min(most))),
        max_bytes: Some(capture.max_bytes.as_ref().map_or(captures.max_bytes, |bytes| bytes.value)),
        flight: capture.flight.as_ref().map(|flight| Flight {
            stop_on: flight.stop_on.iter().map(|e| (e.event.clone(), e.filter.clone())).collect(),
            after: Duration::from_nanos(flight.after_ns),
        }),
    }
}

/// What is wrong with the body of a request. The messages end with a line break, as those of diagnostics do.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error("error: the body is not UTF-8 text\n")]
    NotText(#[from] std::str::Utf8Error),
    #[error("error: the body is not JSON: {0}\n")]
    NotJson(#[from] serde_json::Error),
    #[error("error: `start_at`: {0}\n")]
    StartAt(#[from] StartError),
    /// Shown with the lines of the body.
    #[error("{}", kstrobe_config::render(.0))]
    Mistakes(Vec<Diagnostic>),
}

/// The request in a JSON body. Only this form has `start_at`.
pub fn from_json(body: &[u8], captures: &Captures) -> Result<Request, BodyError> {
    let text = std::str::from_utf8(body)?;
    let mut value: Value = serde_json::from_str(text)?;
    let start = value.as_object_mut().and_then(|map| map.remove("start_at"));
    let start_at = start.as_ref().map(|start| start_at::parse(start, SystemTime::now())).transpose();
    let start_at = start_at?;
    // JSON is YAML but for tabs and for characters written as two `\u`: those are written anew, at the cost of places.
    let anew = start.is_some() || text.contains('\t') || text.contains("\\u");
    let text = if anew { format!("{value:#}") } else { text.to_owned() };
    let file = Arc::new(SourceFile { name: "body".into(), text });
    match kstrobe_config::capture(&file, captures) {
        (Some(capture), _) => Ok(Request { start_at, ..request(&capture, captures) }),
        (None, wrong) => Err(BodyError::Mistakes(wrong)),
    }
}

/// The request in the names of the API. What is not restricted is left out.
pub fn to_json(request: &Request) -> Value {
    let mut map = Map::new();
    let mut put = |key: &str, value: Value| {
        let empty = match &value {
            Value::Null | Value::Bool(false) => true,
            Value::Array(items) => items.is_empty(),
            _ => false,
        };
        if !empty {
            map.insert(key.to_owned(), value);
        }
    };
    put("tracer", json!(request.tracer));
    put("events", request.events.iter().map(event).collect());
    put("functions", json!(request.functions));
    put("not_functions", json!(request.not_functions));
    put("graph", json!(request.graph_roots));
    put("depth", json!(request.max_graph_depth));
    put("stacks", json!(request.stacks));
    put("function_stacks", json!(request.function_stacks));
    put("pids", json!(request.scope.pids));
    put("comms", json!(request.scope.comms));
    put("cgroups", json!(request.scope.cgroups));
    put("pods", json!(request.scope.pods));
    put("children", json!(request.scope.children));
    put("cpus", json!(request.cpus));
    put("clock", json!(request.clock));
    put("buffer_kib", json!(request.buffer_kib));
    let options = request.options.iter().map(|(name, on)| (name.clone(), json!(on)));
    put("options", (!request.options.is_empty()).then(|| options.collect::<Map<_, _>>()).into());
    put("start_at", json!(request.start_at.map(start_at::show)));
    put("duration", json!(request.duration.map(show)));
    put("max_bytes", json!(request.max_bytes));
    let stop = |(event, filter): &(String, Option<String>)| match filter {
        Some(filter) => json!({"event": event, "filter": filter}),
        None => json!(event),
    };
    let flight = request.flight.as_ref().map(|flight| {
        let stop_on: Vec<Value> = flight.stop_on.iter().map(stop).collect();
        json!({"stop_on": stop_on, "after": show(flight.after)})
    });
    put("flight", json!(flight));
    Value::Object(map)
}

fn event(event: &EventRequest) -> Value {
    if event.filter.is_none() && event.triggers.is_empty() && !event.exclude {
        return json!(event.pattern);
    }
    let mut map = Map::new();
    map.insert("event".into(), json!(event.pattern));
    map.extend(event.filter.iter().map(|filter| ("filter".to_owned(), json!(filter))));
    if !event.triggers.is_empty() {
        map.insert("triggers".into(), json!(event.triggers));
    }
    if event.exclude {
        map.insert("exclude".into(), json!(true));
    }
    Value::Object(map)
}

/// In the largest unit that holds it exactly.
fn show(duration: Duration) -> String {
    let ns = duration.as_nanos();
    let units = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)];
    let (unit, scale) = units.into_iter().find(|(_, scale)| ns.is_multiple_of(*scale)).unwrap_or(("ns", 1));
    format!("{}{unit}", ns / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_a_request_goes_to_json_and_back() {
        let body = json!({
            "tracer": "function_graph", "graph": ["__x64_sys_recvfrom"], "depth": 6, "functions": ["tcp_*"],
            "not_functions": ["tcp_poll"], "stacks": true, "pids": [1, 2], "comms": ["mysqld", "\u{1f600}*"],
            "cgroups": ["system.slice"], "pods": ["default/web"], "children": true, "cpus": [0, 3], "clock": "mono",
            "events": ["sched", {"event": "net:*", "filter": "len > 5", "triggers": ["traceoff"]},
                       {"event": "net:netif_rx", "exclude": true}],
            "buffer_kib": 1024, "duration": "1500ms", "max_bytes": "1MiB",
            "flight": {"stop_on": ["oom", {"event": "a:b", "filter": "x == 1"}], "after": "20us"},
        });
        let captures = Captures::default();
        let request = from_json(body.to_string().as_bytes(), &captures).unwrap();
        assert_eq!(request.duration, Some(Duration::from_millis(1500)));
        let json = to_json(&request);
        assert_eq!(json["max_bytes"], 1 << 20);
        assert_eq!(json["flight"]["after"], "20us");
        assert_eq!(from_json(json.to_string().as_bytes(), &captures).unwrap(), request);
        // With tabs, and characters as ASCII.
        let tabs = "{\n\t\"events\": [\"sched\"],\n\t\"comms\": [\"\\ud83d\\ude00\"]\n}";
        assert_eq!(from_json(tabs.as_bytes(), &captures).unwrap().scope.comms, ["\u{1f600}"]);
    }

    #[test]
    fn defaults_are_bounded() {
        let captures = Captures { max_duration_ns: 5_000_000_000, ..Captures::default() };
        let request = from_json(br#"{"events":"sched"}"#, &captures).unwrap();
        assert_eq!((request.duration, request.max_bytes), (Some(Duration::from_secs(5)), Some(captures.max_bytes)));
    }

    #[test]
    fn a_beginning_that_several_nodes_share() {
        let captures = Captures::default();
        let soon = SystemTime::now() + Duration::from_secs(2);
        let body = json!({"events": "sched", "start_at": start_at::show(soon)}).to_string();
        let request = from_json(body.as_bytes(), &captures).unwrap();
        assert!(request.start_at.unwrap().duration_since(soon).is_ok_and(|late| late.is_zero()), "{request:?}");
        assert_eq!(from_json(to_json(&request).to_string().as_bytes(), &captures).unwrap(), request);
        let late =
            from_json(br#"{"events":"sched","start_at":"2026-01-01T00:00:00Z"}"#, &captures).unwrap_err().to_string();
        assert!(late.starts_with("error: `start_at`: 2026-01-01T00:00:00Z was"), "{late}");
    }

    #[test]
    fn a_wrong_body_is_explained() {
        let captures = Captures::default();
        for (body, part) in [
            (&b"{"[..], "not JSON: EOF"),
            (b"events: sched", "not JSON"),
            (b"\xff", "not UTF-8"),
            (b"[]", "a capture is a mapping"),
            (b"null", "a capture is a mapping"),
            (b"{}", "records nothing"),
            (br#"{"events":"sched","evnts":1}"#, "did you mean `events`?"),
            (br#"{"events":"sched","command":["rm"]}"#, "no key `command`"),
            (br#"{"events":"sched","duration":10}"#, "`10` has no unit"),
            (br#"{"events":"sched","duration":"2m"}"#, "at most 1m here"),
            (br#"{"events":"sched","events":"net"}"#, "written twice"),
            (br#"{"functions":["a b"],"tracer":"function"}"#, "cannot be in the name of a function"),
        ] {
            let message = from_json(body, &captures).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
        let deep = "[".repeat(100) + &"]".repeat(100);
        assert!(from_json(deep.as_bytes(), &captures).unwrap_err().to_string().contains("nested"));
    }
}
