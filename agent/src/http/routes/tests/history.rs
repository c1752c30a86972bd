//! `/api/v1/history`, `/api/v1/query` and `/api/v1/live`, held against `docs/api.yaml`.

use super::*;
use kstrobe_ebpf::buckets::{BucketSpec, Scheme};
use kstrobe_export::snapshot::{Descriptor, Kind, Number};
use kstrobe_history::{Change, Labels, MetricChanges, ProbeChanges, Row, Second};
use serde_json::{Value, json};
use std::collections::BTreeSet;

const DOCUMENT: &str = include_str!("../../../../../docs/api.yaml");
const START: u64 = 1_800_000_000;

fn with_history() -> (Server, Arc<HistoryStore>) {
    let endpoints = endpoints(vec![]);
    let history = endpoints.history.clone();
    (Server::start(endpoints), history)
}

fn metric(name: &str, kind: Kind, rows: Vec<(String, Change)>) -> MetricChanges {
    let about = Descriptor {
        name: name.into(),
        help: "X.".into(),
        kind,
        unit: "seconds".into(),
        raw_per_unit: 1000,
        label_names: vec!["comm".into()],
    };
    let spec = BucketSpec { schema: 0, raw_per_unit: 1000, min: 1, max: 100, classic: vec![] };
    let scheme = (kind == Kind::Histogram).then(|| Arc::new(Scheme::new(&spec).unwrap()));
    let labels = |text: String| -> Labels { [Arc::from(text)].into() };
    let rows = rows.into_iter().map(|(comm, change)| Row { labels: labels(comm), change }).collect();
    MetricChanges { about: Arc::new(about), scheme, rows }
}

/// A second with a change of each kind of metric, in so many series.
fn push(history: &HistoryStore, second: u64, series: usize) {
    let comms = || (0..series).map(|number| format!("comm-{number:04}"));
    let observed = Change::Histogram { sum: 12, buckets: vec![(1, 2), (3, 1)] };
    let metrics = vec![
        metric("kstrobe_wait_seconds", Kind::Histogram, comms().map(|comm| (comm, observed.clone())).collect()),
        metric("kstrobe_waits_total", Kind::Counter, comms().map(|comm| (comm, Change::Counter(3))).collect()),
        metric("kstrobe_depth", Kind::Gauge, vec![("a".into(), Change::Gauge(Some(Number::Unsigned(7))))]),
    ];
    let probe = ProbeChanges { probe: "wait".into(), sampled: false, metrics };
    history.push(Second { start: second, seconds: 1 }, 1, &[probe]);
}

fn json_of((head, body): (String, String), status: u16) -> Value {
    assert!(head.starts_with(&format!("http/1.1 {status}")) && head.contains("application/json"), "{head}\n{body}");
    serde_json::from_str(&body).unwrap()
}

/// The document of the API.
struct Document(Value);

impl Document {
    fn read() -> Document {
        Document(serde_saphyr::from_str(DOCUMENT).unwrap())
    }

    /// Fails where an answer is not what a schema says, and notes the properties that it has.
    #[track_caller]
    fn check(&self, schema: &str, answer: &Value, seen: &mut BTreeSet<String>) {
        let whole = json!({ "$ref": format!("#/components/schemas/{schema}"), "components": self.0["components"] });
        let validator = jsonschema::draft202012::new(&whole).unwrap();
        let errors: Vec<String> =
            validator.iter_errors(answer).map(|e| format!("{}: {e}", e.instance_path())).collect();
        assert!(errors.is_empty(), "{schema}: {errors:#?}\n{answer}");
        self.note(schema, &self.0["components"]["schemas"][schema], answer, seen);
    }

    fn note(&self, path: &str, schema: &Value, answer: &Value, seen: &mut BTreeSet<String>) {
        if let Some(name) = schema["$ref"].as_str().and_then(|name| name.strip_prefix("#/components/schemas/")) {
            self.note(name, &self.0["components"]["schemas"][name], answer, seen);
        }
        for one in schema["oneOf"].as_array().into_iter().flatten() {
            let validator = jsonschema::draft202012::new(&json!({
                "allOf": [one], "components": self.0["components"]
            }));
            if validator.unwrap().is_valid(answer) {
                self.note(path, one, answer, seen);
            }
        }
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            if let Some(value) = answer.get(name) {
                seen.insert(format!("{path}.{name}"));
                self.note(&format!("{path}.{name}"), property, value, seen);
            }
        }
        for value in answer.as_array().into_iter().flatten().filter(|_| schema.get("items").is_some()) {
            self.note(path, &schema["items"], value, seen);
        }
    }

    /// All properties of all schemas, named as [`Document::note`] does.
    fn properties(&self) -> BTreeSet<String> {
        fn walk(path: &str, schema: &Value, all: &mut BTreeSet<String>) {
            for (name, property) in schema["properties"].as_object().into_iter().flatten() {
                all.insert(format!("{path}.{name}"));
                walk(&format!("{path}.{name}"), property, all);
            }
        }
        let mut all = BTreeSet::new();
        self.0["components"]["schemas"]
            .as_object()
            .unwrap()
            .iter()
            .for_each(|(name, schema)| walk(name, schema, &mut all));
        all
    }
}

#[test]
fn each_field_of_the_document_is_answered() {
    let (server, history) = with_history();
    let (document, mut seen) = (Document::read(), BTreeSet::new());
    let get = |path: &str, status| json_of(server.text(path), status);
    document.check("Overview", &get("/api/v1/history", 200), &mut seen);
    // A metric is known from its first second on.
    push(&history, START - 1, 2);
    let mut live = follow(&server, "");
    let mut live_metric = follow(&server, "?metric=wait_seconds&by=comm");
    (0..3).for_each(|second| push(&history, START + second, 2));
    let link = Some("/api/v1/events?id=1".into());
    history.mark(kstrobe_history::MarkKind::Event, UNIX_EPOCH + Duration::from_secs(START + 3), "a".into(), link);
    push(&history, START + 3, 2);
    let overview = get("/api/v1/history", 200);
    assert_eq!((&overview["oldest"], &overview["newest"]), (&json!(START - 1), &json!(START + 4)));
    document.check("Overview", &overview, &mut seen);
    document.check("Overview", &get("/api/v1/history?heat=true", 200), &mut seen);
    for metric in ["wait_seconds", "kstrobe_waits_total", "depth"] {
        for options in ["", "&by=comm&top=1", "&match=comm=~%22.*1%22&from=-4&to=0&step=2&sort=max"] {
            document.check("Answer", &get(&format!("/api/v1/query?metric={metric}{options}"), 200), &mut seen);
        }
    }
    for path in ["/api/v1/history?heat=2", "/api/v1/history?cold=true"] {
        document.check("Problem", &get(path, 400), &mut seen);
    }
    for path in ["/api/v1/query", "/api/v1/query?metric=nope", "/api/v1/live?metric=nope", "/api/v1/live?from=-5"] {
        document.check("Problem", &get(path, 400), &mut seen);
    }
    for second in 0..4 {
        let (name, data) = next_event(&mut live).unwrap();
        assert_eq!((name.as_str(), &data["time"]), ("second", &json!(START + second)));
        document.check("Second", &data, &mut seen);
        let (_, answer) = next_event(&mut live_metric).unwrap();
        assert_eq!((&answer["columns"], answer["groups"].as_array().unwrap().len()), (&json!(1), 2));
        document.check("Answer", &answer, &mut seen);
    }
    // Nothing can be written below a file that is no folder.
    let config = HistoryConfig { dir: Some("/dev/null/history".into()), ..HistoryConfig::default() };
    let broken = Server::start(Endpoints { history: Arc::new(HistoryStore::new(&config)), ..endpoints(vec![]) });
    let begun = std::time::Instant::now();
    let stopped = loop {
        let overview = json_of(broken.text("/api/v1/history"), 200);
        if overview["disk"]["stopped"].is_string() || begun.elapsed() > Duration::from_secs(20) {
            break overview;
        }
    };
    document.check("Overview", &stopped, &mut seen);
    assert!(stopped["disk"]["stopped"].as_str().unwrap().contains("/dev/null/history: "), "{stopped}");
    assert_eq!(document.properties().difference(&seen).collect::<Vec<_>>(), Vec::<&String>::new());
    let paths: Vec<&String> = document.0["paths"].as_object().unwrap().keys().collect();
    assert_eq!(paths, ["/api/v1/history", "/api/v1/live", "/api/v1/query"]);
}

fn follow(server: &Server, query: &str) -> BufReader<TcpStream> {
    let (reader, head) = server.follow(&format!("/api/v1/live{query}"), Duration::from_secs(20));
    assert!(head.contains(" 200 ") && head.contains("text/event-stream"), "{head}");
    reader
}

/// Name and data of the next event; `None` at the end.
fn next_event(reader: &mut BufReader<TcpStream>) -> Option<(String, Value)> {
    let (mut name, mut data) = (String::new(), Value::Null);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap() == 0 {
            return None;
        }
        match line.trim_end().split_once(": ") {
            Some(("event", text)) => name = text.to_owned(),
            Some(("data", text)) => data = serde_json::from_str(text).unwrap(),
            _ => return Some((name, data)),
        }
    }
}

#[test]
fn the_list_has_counts_by_bucket_for_a_client_that_asks() {
    let (server, history) = with_history();
    (0..12).for_each(|second| push(&history, START + second, 2));
    let get = |path: &str| json_of(server.text(path), 200);
    let mut with_heat = get("/api/v1/history?heat=true");
    let (bounds, of_wait) = (with_heat["bounds"].clone(), with_heat["metrics"][1].clone());
    assert_eq!((&of_wait["metric"], &of_wait["count"]), (&json!("kstrobe_wait_seconds"), &json!(60.0)));
    // Buckets 1 and 3 of powers of two from 1/1000 on: two and one observation of each series in each of the last ten seconds.
    assert_eq!(of_wait["heat"], json!([0, 40, 1, 20]));
    assert_eq!(bounds.as_array().unwrap().len(), 2);
    with_heat.as_object_mut().unwrap().remove("bounds");
    for metric in with_heat["metrics"].as_array_mut().unwrap() {
        let is_histogram = metric["type"] == "histogram";
        assert_eq!(metric.as_object_mut().unwrap().remove("heat").is_some(), is_histogram);
    }
    assert_eq!(with_heat, get("/api/v1/history"));
    assert_eq!(with_heat, get("/api/v1/history?heat=false"));
}

#[test]
fn a_reader_that_does_not_read_is_dropped_and_others_are_not() {
    let (server, history) = with_history();
    push(&history, START, 1);
    let path = "?metric=wait_seconds&by=comm&top=1000";
    let (mut slow, mut fast) = (follow(&server, path), follow(&server, path));
    let (seconds, mut second) = (40, START);
    for _ in 0..seconds {
        second += 1;
        push(&history, second, 1000);
        assert_eq!(next_event(&mut fast).unwrap().1["from"], json!(second));
    }
    let mut events = Vec::new();
    while let Some((name, data)) = next_event(&mut slow) {
        assert!(data["from"].as_u64().is_none_or(|from| from == START + 1 + events.len() as u64), "seconds in order");
        events.push(name);
    }
    assert_eq!(events.last().map(String::as_str), Some("dropped"));
    assert!(events.len() < seconds, "{} of {seconds}", events.len());
}

#[test]
fn readers_are_bounded_and_end_with_the_agent() {
    let (server, history) = with_history();
    let mut readers: Vec<_> = (0..64).map(|_| follow(&server, "")).collect();
    let problem = json_of(server.text("/api/v1/live"), 429);
    assert!(problem["error"].as_str().unwrap().contains("64 clients"), "{problem}");
    history.close();
    assert!(readers.iter_mut().all(|reader| next_event(reader).is_none()), "an end without `dropped`");
}

#[test]
fn without_a_history_the_paths_say_so() {
    let off = HistoryConfig { enabled: false, ..HistoryConfig::default() };
    let server = Server::start(Endpoints { history: Arc::new(HistoryStore::new(&off)), ..endpoints(vec![]) });
    for path in ["/api/v1/history", "/api/v1/query?metric=x", "/api/v1/live"] {
        let problem = json_of(server.text(path), 404);
        assert!(problem["hint"].as_str().unwrap().contains("enabled: true"), "{path}: {problem}");
    }
}
