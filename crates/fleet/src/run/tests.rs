use super::*;
use crate::manifest::Node;
use crate::target::NoAgent;
use flate2::read::GzDecoder;
use http::StatusCode;
use http_body_util::{BodyExt, Full, StreamBody};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::Read;

/// Behaviour of a fake agent.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Behaves {
    Well,
    /// Offset of its wall clock in nanoseconds.
    Ahead(i64),
    /// Never responds.
    NeverThere,
    /// Stops responding once it records.
    Dies,
    /// Runs another capture.
    Busy,
    /// Number of truncated downloads.
    CutOff(u32),
    /// Lacks the probe.
    NoProbe,
}

#[derive(Default)]
struct State {
    body: Value,
    looks: u32,
    downloads: u32,
    cancelled: bool,
    removed: bool,
}

/// Fake agents; each serves a real `trace.dat`.
struct Fakes {
    how: BTreeMap<String, Behaves>,
    state: Mutex<BTreeMap<String, State>>,
    dat: Vec<u8>,
}

fn answer(status: u16, body: Value) -> Result<http::Response<Body>, TransportError> {
    let text = if let Value::String(text) = body { text } else { body.to_string() };
    let body = Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync();
    Ok(http::Response::builder().status(status).body(body).unwrap())
}

impl Agents for Arc<Fakes> {
    async fn ask(
        &self,
        agent: &Pod,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<http::Response<Body>, TransportError> {
        let how = self.how[&agent.node];
        let mut all = lock(&self.state);
        let state = all.entry(agent.node.clone()).or_default();
        if how == Behaves::NeverThere || how == Behaves::Dies && state.looks > 0 {
            return Err(TransportError::new("connection refused"));
        }
        let ahead = if let Behaves::Ahead(ns) = how { ns } else { 0 };
        let capture = json!({"id": "20261121T000000000Z-0a1b2c", "state": "running", "later": 1});
        match (method.as_str(), path.rsplit('/').next().unwrap()) {
            ("GET", "clock") => answer(200, json!({"unix_ns": unix_ns() + ahead})),
            ("GET", "probes") => {
                let hook = json!({"hook": "rawtracepoint:softirq_entry", "events": ["*:softirq_entry"]});
                let name = if how == Behaves::NoProbe { "other" } else { "recvfrom" };
                answer(200, json!({"probes": [{"name": name, "hooks": [hook]}]}))
            }
            ("POST", "captures") if how == Behaves::Busy => answer(429, "a capture runs already".into()),
            ("POST", "captures") => {
                state.body = serde_json::from_slice(&body).unwrap();
                answer(202, capture)
            }
            ("POST", "cancel") => {
                state.cancelled = true;
                answer(202, capture)
            }
            ("DELETE", _) => {
                state.removed = true;
                answer(204, "".into())
            }
            (_, "download?format=dat") => {
                state.downloads += 1;
                let cut = matches!(how, Behaves::CutOff(times) if state.downloads <= times);
                let mut pieces: Vec<Result<http_body::Frame<Bytes>, TransportError>> = self
                    .dat
                    .chunks(10_000)
                    .map(|piece| Ok(http_body::Frame::data(Bytes::copy_from_slice(piece))))
                    .collect();
                if cut {
                    pieces.truncate(1);
                    pieces.push(Err(TransportError::new("connection reset")));
                }
                Ok(http::Response::new(StreamBody::new(Pieces(pieces.into_iter())).boxed_unsync()))
            }
            _ => {
                state.looks += 1;
                let now = if state.looks > 2 || state.cancelled { "done" } else { "running" };
                let clock = json!({"name": "mono", "epoch_offset_start_ns": 1_000_000_000_i64 + ahead});
                answer(200, json!({"id": "x", "state": now, "records": 5, "bytes": 9, "clock": clock}))
            }
        }
    }
}

struct Pieces(std::vec::IntoIter<Result<http_body::Frame<Bytes>, TransportError>>);

impl futures_core::Stream for Pieces {
    type Item = Result<http_body::Frame<Bytes>, TransportError>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        std::task::Poll::Ready(self.0.next())
    }
}

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn target(node: &str) -> Target {
    let agent = Pod { namespace: "kstrobe".into(), name: format!("a-{node}"), node: node.into(), ..Pod::default() };
    Target { node: node.into(), agent, pods: vec!["shop/mysql-0".into()] }
}

struct Made {
    outcome: Outcome,
    fakes: Arc<Fakes>,
    files: BTreeMap<String, Vec<u8>>,
}

impl Made {
    fn node(&self, name: &str) -> &Node {
        self.outcome.manifest.nodes.iter().find(|node| node.node == name).unwrap()
    }
}

/// A run over these nodes; `stop_after` sends the stop request.
async fn made(name: &str, nodes: &[(&str, Behaves)], probe: Option<&str>, stop_after: Option<Duration>) -> Made {
    let folder = Folder(std::env::temp_dir().join(format!("kstrobe-fleet-{}-{name}", std::process::id())));
    std::fs::create_dir_all(&folder.0).unwrap();
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../ftrace/tests/fixtures/dat/default.dat.gz");
    let mut dat = Vec::new();
    GzDecoder::new(std::fs::File::open(fixture).unwrap()).read_to_end(&mut dat).unwrap();
    let how = nodes.iter().map(|(node, how)| ((*node).to_owned(), *how)).collect();
    let fakes = Arc::new(Fakes { how, state: Mutex::default(), dat });
    let targets = nodes.iter().map(|(node, _)| target(node)).collect();
    let missing = vec![Missing { node: "n9".into(), reason: NoAgent::None }];
    let missing = if name == "well" { Vec::new() } else { missing };
    let request = json!({"events": ["sched:sched_switch"], "max_bytes": "1MiB"});
    let whole_nodes = name == "whole";
    let spec =
        Spec { probe: probe.map(str::to_owned), request, duration: Duration::from_secs(5), keep: false, whole_nodes };
    let (stop, stopped) = watch::channel(false);
    let limits = Limits { silence: Duration::from_secs(8), ..Limits::default() };
    let run = Run::new(fakes.clone(), (targets, missing), spec, limits, &folder.0, stopped);
    if let Some(after) = stop_after {
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            let _ = stop.send(true);
            std::future::pending::<()>().await;
        });
    }
    run.go().await;
    let out = folder.0.join("out.tar");
    let outcome = run.put_together("kstrobe 1", Some("app=mysql".into()), &out).unwrap();
    let mut files = BTreeMap::new();
    if outcome.written {
        let mut tar = tar::Archive::new(std::fs::File::open(out).unwrap());
        for entry in tar.entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut contents = Vec::new();
            entry.read_to_end(&mut contents).unwrap();
            files.insert(entry.path().unwrap().display().to_string(), contents);
        }
    }
    let left: Vec<_> = std::fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().ends_with(".part")), "{left:?}");
    Made { outcome, fakes, files }
}

#[tokio::test(start_paused = true)]
async fn only_selected_pods_are_recorded_without_whole_nodes() {
    let pods = async |name: &str| {
        let made = made(name, &[("n1", Behaves::Well)], None, None).await;
        lock(&made.fakes.state)["n1"].body["pods"].clone()
    };
    assert_eq!(pods("scoped").await, json!(["shop/mysql-0"]));
    assert_eq!(pods("whole").await, Value::Null);
}

#[tokio::test(start_paused = true)]
async fn all_nodes_begin_together_and_deliver() {
    let ahead = 3_600_000_000_000;
    let nodes = [("n1", Behaves::Well), ("n2", Behaves::Ahead(ahead)), ("n3", Behaves::CutOff(2))];
    let made = made("well", &nodes, Some("recvfrom"), None).await;
    let manifest = &made.outcome.manifest;
    assert_eq!((made.outcome.exit_code, manifest.downloaded, manifest.failed), (0, 3, 0), "{manifest:#?}");
    let names: Vec<_> = made.files.keys().map(String::as_str).collect();
    let dats = ["n1", "n2", "n3"].map(|node| format!(".kstrobe/nodes/{node}.dat"));
    assert_eq!(names, [".kstrobe/manifest.json", &dats[0], &dats[1], &dats[2], "fleet.pftrace"]);
    // The common start, converted to the clock of each node.
    let state = lock(&made.fakes.state);
    let started = |node: &str| state[node].body["start_at"].as_str().unwrap().to_owned();
    assert_eq!(started("n1"), manifest.started);
    assert_eq!(started("n1"), started("n3"));
    let begun = time::OffsetDateTime::parse(&started("n2"), &time::format_description::well_known::Rfc3339).unwrap();
    let apart = begun.unix_timestamp_nanos() - i128::from(manifest.started_unix_ns);
    assert!((apart - i128::from(ahead)).abs() < 1_000_000_000, "{apart}");
    let body = &state["n1"].body;
    assert_eq!(body["duration"], "5000ms");
    let events = ["sched:sched_switch", "*:softirq_entry", "sched:sched_switch", "sched:sched_waking"];
    assert_eq!(body["events"], json!(events), "events of the request and of the probe");
    assert!(state.values().all(|state| state.removed), "nothing is left behind");
    // By the common clock all recorded at the same time.
    let times: Vec<_> = manifest.nodes.iter().map(|node| node.events_unix_ns.unwrap().0).collect();
    assert!(times.iter().all(|time| (time - times[0]).abs() < 1_000_000_000), "{times:?}");
    assert!((made.node("n2").corrected_ns - ahead).abs() < 1_000_000_000);
    assert_eq!((made.node("n1").corrected_ns, made.node("n1").machine), (0, Some(0)));
    let written: Value = serde_json::from_slice(&made.files[".kstrobe/manifest.json"]).unwrap();
    assert_eq!(written["files"].as_array().unwrap().len(), 4);
    assert_eq!(written["nodes"][2]["status"], "downloaded");
    assert_eq!(written["asked"]["selector"], "app=mysql");
    assert!(manifest.trace_cmd.ends_with(&format!("-i {}", dats[2])), "{}", manifest.trace_cmd);
}

#[tokio::test(start_paused = true)]
async fn one_that_fails_does_not_spoil_the_rest() {
    let nodes = [
        ("n1", Behaves::Well),
        ("n2", Behaves::Dies),
        ("n3", Behaves::NeverThere),
        ("n4", Behaves::Busy),
        ("n5", Behaves::CutOff(9)),
        ("n6", Behaves::NoProbe),
    ];
    let made = made("fails", &nodes, Some("recvfrom"), None).await;
    let manifest = &made.outcome.manifest;
    assert_eq!((made.outcome.exit_code, manifest.downloaded, manifest.failed), (1, 1, 6), "{manifest:#?}");
    let why = |node: &str| (made.node(node).failed_at, made.node(node).error.clone());
    let (stage, error) = why("n2");
    assert!(stage == Some(Stage::Recording) && error.contains("stopped answering"), "{error}");
    let (stage, error) = why("n3");
    assert!(stage == Some(Stage::Asked) && error.contains("connection refused"), "{error}");
    let (stage, error) = why("n4");
    assert_eq!((stage, error.as_str()), (Some(Stage::Ready), "a capture runs already (HTTP status 429)"));
    let (stage, error) = why("n5");
    assert!(stage == Some(Stage::Recorded) && error.contains("cut off"), "{error}");
    assert!(why("n6").1.contains("no probe `recvfrom`; there are other"), "{:?}", why("n6"));
    assert_eq!(why("n9").1, "no agent runs there");
    assert_eq!(made.files.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn without_a_delivery_no_file_is_written() {
    let made = made("none", &[("n1", Behaves::NeverThere)], None, None).await;
    assert!(!made.outcome.written && made.outcome.exit_code == 1 && made.files.is_empty());
    assert_eq!(made.outcome.manifest.started, "");
}

#[tokio::test(start_paused = true)]
async fn a_stopped_run_delivers_partial_recordings() {
    let made = made("stop", &[("n1", Behaves::Well)], None, Some(Duration::from_secs(3))).await;
    assert!(lock(&made.fakes.state)["n1"].cancelled);
    assert_eq!(made.outcome.manifest.downloaded, 1);
}

#[test]
fn error_responses_keep_their_message() {
    let status = |code| StatusCode::from_u16(code).unwrap();
    let object = json!({"kind": "Status", "message": "pods \"x\" not found", "code": 404}).to_string();
    let error = explain(status(404), object.as_bytes());
    assert_eq!((error.to_string().as_str(), error.is_permanent()), ("pods \"x\" not found (HTTP status 404)", true));
    assert!(
        !explain(status(503), b"").is_permanent()
            && !explain(status(429), b"").is_permanent()
            && explain(status(401), b"no\n").is_permanent()
    );
    let problem = json!({"error": "no metric `x`", "hint": "see the list"}).to_string();
    assert_eq!(explain(status(400), problem.as_bytes()).to_string(), "no metric `x` (HTTP status 400)");
    assert_eq!(explain(status(401), b"no\x1b[2J\n").to_string(), "no [2J (HTTP status 401)");
}
