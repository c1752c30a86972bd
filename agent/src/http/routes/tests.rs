use super::*;
use crate::app::{HistoryStore, ProfileError, ProfileRequest, Reload, StacksStatus};
use crate::config::files::HistoryConfig;
use crate::metrics::events::tail::Tail;
use crate::probe::status::{ChoiceStatus, HookStatus, ProbeStatus};
use flate2::read::GzDecoder;
use kstrobe_web::{bind, serve};
use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::UNIX_EPOCH;
use tokio::sync::oneshot;

mod events;
mod history;
mod late;
mod pieces;
mod reading;
mod reloads;

fn probe(name: &str, reason: &str) -> ProbeStatus {
    let attached = reason.is_empty();
    ProbeStatus { name: name.into(), attached, reason: reason.into(), ..ProbeStatus::default() }
}

/// A reading that is known by its number.
fn reading(number: usize) -> Reading {
    let at = UNIX_EPOCH + Duration::from_secs(number as u64);
    Reading { at, took: Duration::ZERO, families: vec![], exemplars: vec![] }
}

/// Format and number of a reading, and a line more when it is late.
fn written(exposition: &Exposition<'_>, send: &mut kstrobe_export::Send<'_>) -> Result<(), Gone> {
    let number = exposition.reading.at.duration_since(UNIX_EPOCH).unwrap().as_secs();
    let mut text = format!("{:?} {number}\n", exposition.format);
    if exposition.late.is_some_and(|age| age > Duration::ZERO) {
        text += "late\n";
    }
    let form = kstrobe_export::Form { format: exposition.format, native_bucket_limit: 0 };
    let kept = kstrobe_export::KeptBytes::default();
    kstrobe_export::write(exposition.reading, text.as_bytes(), form, exposition.gzip.then_some(&kept), send)
}

fn endpoints(probes: Vec<ProbeStatus>) -> Endpoints {
    Endpoints {
        read: Box::new(|| reading(0)),
        write: Box::new(written),
        status: Box::new(move || Status { probes: probes.clone(), ..Status::default() }),
        stacks: Box::new(Vec::new),
        profile: Box::new(|_| Ok(vec![])),
        captures: Box::new(|| crate::app::Captures {
            rules: Err(crate::capture::access::Denied::off()),
            access: crate::capture::access::Access::Local,
        }),
        other_nodes: None,
        reload: Reload { open: false, ask: Box::new(|| Ok("reloaded\n".into())) },
        history: Arc::new(HistoryStore::new(&HistoryConfig::default())),
        events: Arc::new(Tail::new(vec!["slow_a".into(), "slow_b".into()], 1024)),
        version: "1.2.3".into(),
        telemetry_path: "/metrics".into(),
        most_requests: 40,
    }
}

/// A running server that stops when dropped.
struct Server {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    fn start(endpoints: Endpoints) -> Self {
        let listeners = bind(&["127.0.0.1:0".to_owned()]).unwrap();
        let address = listeners[0].local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(serve(listeners, router(endpoints), async { drop(stopped.await) })).unwrap();
        });
        Self { address, stop: Some(stop), thread: Some(thread) }
    }

    fn get(&self, path: &str, headers: &str) -> (String, Vec<u8>) {
        let mut stream = TcpStream::connect(self.address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n").unwrap();
        let mut answer = vec![];
        stream.read_to_end(&mut answer).unwrap();
        let end = answer.windows(4).position(|window| window == b"\r\n\r\n").expect("a head");
        let (head, body) = (String::from_utf8_lossy(&answer[..end]).to_lowercase(), answer[end + 4..].to_vec());
        let body = if head.contains("transfer-encoding: chunked") { whole(&body).expect("an end") } else { body };
        (head, body)
    }

    fn text(&self, path: &str) -> (String, String) {
        let (head, body) = self.get(path, "");
        (head, String::from_utf8(body).unwrap())
    }

    /// An answer that goes on, past its head, which is returned too. Each read waits so long at most.
    fn follow(&self, path: &str, limit: Duration) -> (BufReader<TcpStream>, String) {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(limit)).unwrap();
        // HTTP/1.0 has no chunks: the body is lines and nothing else.
        write!(stream, "GET {path} HTTP/1.0\r\nHost: x\r\n\r\n").unwrap();
        let mut reader = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(reader.read_line(&mut head).unwrap() > 0, "{head}");
        }
        (reader, head)
    }
}

/// The body that was sent in chunks; `None` when it has no end.
fn whole(mut chunks: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let line = chunks.windows(2).position(|two| two == b"\r\n")?;
        let bytes = usize::from_str_radix(std::str::from_utf8(&chunks[..line]).ok()?, 16).ok()?;
        chunks = &chunks[line + 2..];
        if bytes == 0 {
            return Some(body);
        }
        body.extend_from_slice(chunks.get(..bytes)?);
        chunks = chunks.get(bytes + 2..)?;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // It may have stopped on its own, which the join below tells.
            let _ = stop.send(());
        }
        self.thread.take().unwrap().join().unwrap();
    }
}

#[test]
fn metrics_are_negotiated() {
    let server = Server::start(endpoints(vec![]));
    let (head, body) = server.text("/metrics");
    assert!(head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{head}");
    assert!(!head.contains("content-encoding"), "{head}");
    assert_eq!(body, "Text004 0\n");

    let (head, body) = server.get("/metrics", "Accept: application/openmetrics-text\r\nAccept-Encoding: gzip\r\n");
    assert!(head.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8"), "{head}");
    assert!(head.contains("content-encoding: gzip"), "{head}");
    let mut text = String::new();
    GzDecoder::new(body.as_slice()).read_to_string(&mut text).unwrap();
    assert_eq!(text, "OpenMetrics100 0\n# EOF\n");

    let (head, body) =
        server.get("/metrics", "Accept: application/vnd.google.protobuf;encoding=delimited;q=0.6,*/*;q=0.3\r\n");
    let content_type =
        "content-type: application/vnd.google.protobuf; proto=io.prometheus.client.metricfamily; encoding=delimited";
    assert!(head.contains(content_type), "{head}");
    assert_eq!(body, b"Protobuf 0\n");
}

#[test]
fn health_and_readiness() {
    let server = Server::start(endpoints(vec![probe("softirq", "")]));
    for path in ["/healthz", "/-/healthy", "/readyz", "/-/ready", "/"] {
        assert!(server.text(path).0.starts_with("http/1.1 200"), "{path}");
    }
    assert!(server.text("/").1.contains("kstrobe 1.2.3"));
    assert!(server.text("/none").0.starts_with("http/1.1 404"));
    let post = Server::start(endpoints(vec![probe("softirq", ""), probe("tcp", "no BTF:\nsee doctor")]));
    let (head, body) = post.text("/readyz");
    assert!(head.starts_with("http/1.1 503"), "{head}");
    let way_out = "leave out a probe that this node cannot run: `--disable NAME`, or `probes: { disable: [NAME] }` in kstrobe.yaml\n";
    assert_eq!(body, format!("not ready: 1 of 2 probes not attached\ntcp: no BTF: see doctor\n{way_out}"));
    assert!(post.text("/healthz").0.starts_with("http/1.1 200"), "not ready is not dead");
}

#[test]
fn what_the_cluster_asks_for_and_the_kernel_lacks_is_told_and_takes_nothing_from_readiness() {
    let of_cluster = || ProbeStatus { of_cluster: true, ..probe("resets", "no such hook") };
    let (head, body) = Server::start(endpoints(vec![probe("softirq", ""), of_cluster()])).text("/readyz");
    assert!(head.starts_with("http/1.1 200"), "{head}");
    assert_eq!(body, "ready: 2 probes attached, but for these of the cluster\nresets: no such hook\n");
    let (head, body) = Server::start(endpoints(vec![probe("tcp", "no BTF"), of_cluster()])).text("/readyz");
    assert!(head.starts_with("http/1.1 503"), "{head}");
    let (way_out, of_cluster) = body.split_once("tcp: no BTF\n").unwrap().1.split_once('\n').unwrap();
    assert!(way_out.starts_with("leave out a probe"), "{body}");
    assert_eq!(of_cluster, "resets: no such hook\n");
}

#[test]
fn a_probe_for_other_kernels_takes_nothing_from_readiness() {
    let idle = || ProbeStatus { idle: true, ..probe("folios", "x.yaml:3:8: this is never true on this kernel") };
    let (head, body) = Server::start(endpoints(vec![probe("softirq", ""), idle()])).text("/readyz");
    assert!(head.starts_with("http/1.1 200"), "{head}");
    assert_eq!(body, "ready: 1 probes attached\nfolios: x.yaml:3:8: this is never true on this kernel\n");
    let (head, body) = Server::start(endpoints(vec![probe("tcp", "no BTF"), idle()])).text("/readyz");
    assert!(head.starts_with("http/1.1 503"), "{head}");
    assert!(body.starts_with("not ready: 1 of 2 probes not attached\ntcp: no BTF\n"), "{body}");
    assert!(body.ends_with("\nfolios: x.yaml:3:8: this is never true on this kernel\n"), "{body}");
}

#[test]
fn a_mistake_in_a_file_is_not_ready_although_all_that_could_be_read_is_attached() {
    let mistakes = |n: usize| vec!["x.yaml:2:4: a probe has no key `sumary`".to_owned(); n];
    let server = |n| {
        let status = move || Status { probes: vec![probe("softirq", "")], mistakes: mistakes(n), ..Status::default() };
        Server::start(Endpoints { status: Box::new(status), ..endpoints(vec![]) })
    };
    let (head, body) = server(1).text("/readyz");
    assert!(head.starts_with("http/1.1 503"), "{head}");
    let line = "x.yaml:2:4: a probe has no key `sumary`\n";
    assert_eq!(body, format!("not ready: 0 of 1 probes not attached, 1 mistake in a file\n{line}"));
    let (_, body) = server(2).text("/readyz");
    assert_eq!(body, format!("not ready: 0 of 1 probes not attached, 2 mistakes in files\n{line}{line}"));
    let value: serde_json::Value = serde_json::from_str(&server(1).text("/api/v1/probes").1).unwrap();
    assert_eq!(value["mistakes"], serde_json::json!(mistakes(1)));
}

#[test]
fn an_agent_that_cannot_write_its_history_is_ready_and_says_so() {
    let status = || Status { probes: vec![probe("softirq", "")], history: "/x: disk full".into(), ..Status::default() };
    let (head, body) = Server::start(Endpoints { status: Box::new(status), ..endpoints(vec![]) }).text("/readyz");
    assert!(head.starts_with("http/1.1 200"), "{head}");
    assert_eq!(body, "ready: 1 probes attached\nthe history is not written to disk: /x: disk full\n");
}

#[test]
fn probes_are_json() {
    let mut listed = probe("softirq", "");
    listed.choices =
        vec![ChoiceStatus { wanted: "tp_btf:a".into(), got: "raw_tp:a".into(), because: vec!["no BTF".into()] }];
    listed.hooks =
        vec![HookStatus { hook: "a".into(), kind: "tp_btf".into(), attached: true, ..HookStatus::default() }];
    let (head, body) = Server::start(endpoints(vec![listed])).text("/api/v1/probes");
    assert!(head.contains("content-type: application/json"), "{head}");
    let value: serde_json::Value = serde_json::from_str(&body).unwrap();
    let expected = serde_json::json!({"node": {"name": "", "kernel": "", "cpus": 0}, "probes": [{
        "name": "softirq", "summary": "", "attached": true, "metrics": [],
        "hooks": [{"hook": "a", "kind": "tp_btf", "attached": true}],
        "choices": [{"wanted": "tp_btf:a", "got": "raw_tp:a", "because": ["no BTF"]}],
    }]});
    assert_eq!(value, expected);
}

#[test]
fn one_scrape_at_a_time_serves_all_who_wait() {
    static RUNNING: AtomicUsize = AtomicUsize::new(0);
    static SCRAPES: AtomicUsize = AtomicUsize::new(0);
    let read = || {
        assert_eq!(RUNNING.fetch_add(1, Ordering::SeqCst), 0, "two at once");
        std::thread::sleep(Duration::from_millis(200));
        RUNNING.fetch_sub(1, Ordering::SeqCst);
        reading(SCRAPES.fetch_add(1, Ordering::SeqCst))
    };
    let server = Server::start(Endpoints { read: Box::new(read), ..endpoints(vec![]) });
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..8).map(|_| scope.spawn(|| server.text("/metrics"))).collect();
        for client in clients {
            assert!(client.join().unwrap().0.starts_with("http/1.1 200"));
        }
    });
    // The first was begun before some of the others came; the second serves all of those.
    let scrapes = SCRAPES.load(Ordering::SeqCst);
    assert!((1..8).contains(&scrapes), "{scrapes} scrapes for 8 clients");
    assert_eq!(
        server.text("/metrics").1,
        format!("Text004 {scrapes}\n"),
        "a later request is never answered from before"
    );
}

#[test]
fn a_panic_is_one_answer_and_not_the_end() {
    let server = Server::start(Endpoints { read: Box::new(|| panic!("on purpose")), ..endpoints(vec![]) });
    for _ in 0..2 {
        assert!(server.text("/metrics").0.starts_with("http/1.1 500"));
    }
    assert!(server.text("/healthz").0.starts_with("http/1.1 200"));
}

#[test]
fn oversized_heads_are_refused() {
    let server = Server::start(endpoints(vec![]));
    let many = "X-A: b\r\n".repeat(100);
    assert!(server.get("/healthz", &many).0.starts_with("http/1.1 431"));
}

#[test]
fn metrics_are_where_they_are_wanted_and_few_at_once() {
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let read = || {
        drop(TURN.lock().unwrap());
        reading(0)
    };
    let wanted =
        Endpoints { read: Box::new(read), telemetry_path: "/telemetry".into(), most_requests: 2, ..endpoints(vec![]) };
    let server = Server::start(wanted);
    assert!(server.text("/metrics").0.starts_with("http/1.1 404"));
    assert!(server.text("/").1.contains("<a href=\"telemetry\">"));
    let turn = TURN.lock().unwrap();
    std::thread::scope(|scope| {
        // One whose place the third had for a moment asks again: both have theirs in the end.
        let patient = || loop {
            match server.text("/telemetry").0 {
                refused if refused.starts_with("http/1.1 503") => std::thread::sleep(Duration::from_millis(10)),
                answer => return answer,
            }
        };
        let waiting: Vec<_> = (0..2).map(|_| scope.spawn(patient)).collect();
        let refused = loop {
            let mut third = TcpStream::connect(server.address).unwrap();
            third.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
            write!(third, "GET /telemetry HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
            let mut answer = String::new();
            if third.read_to_string(&mut answer).is_ok() {
                break answer;
            }
        };
        assert!(refused.starts_with("HTTP/1.1 503") && refused.contains("--web.max-requests"), "{refused}");
        drop(turn);
        assert!(waiting.into_iter().all(|client| client.join().unwrap().starts_with("http/1.1 200")));
    });
    let root = Server::start(Endpoints { telemetry_path: "/".into(), ..endpoints(vec![]) });
    assert_eq!(root.text("/").1, "Text004 0\n");
}

#[test]
fn paths_that_are_taken_or_no_paths_are_refused() {
    let path = crate::http::telemetry_path;
    for good in ["/", "/metrics", "/probe/metrics", "/m-1_2.x"] {
        assert_eq!(path(good), Ok(good.to_owned()));
    }
    for bad in
        ["", "metrics", "/a b", "/{a}", "/*a", "/a?b", "/healthz", "/-/ready", "/api", "/api/v1/probes", "/é", "/a//b"]
    {
        assert!(path(bad).is_err(), "{bad}");
    }
}

#[test]
fn stopping_closes_idle_connections_at_once() {
    let server = Server::start(endpoints(vec![]));
    let mut idle = TcpStream::connect(server.address).unwrap();
    write!(idle, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = [0; 256];
    assert!(idle.read(&mut answer).unwrap() > 0);
    let before = Instant::now();
    drop(server);
    assert!(before.elapsed() < Duration::from_secs(2));
    assert_eq!(idle.read(&mut answer).unwrap(), 0);
}

/// Slow profiles begun.
static SLOW: AtomicUsize = AtomicUsize::new(0);

fn profiles() -> Server {
    let stacks = || {
        let unit = "count";
        vec![StacksStatus {
            name: "cpu".into(),
            probe: "profile_cpu".into(),
            unit,
            attached: true,
            ..Default::default()
        }]
    };
    let profile = |request: &ProfileRequest| match request.metric.as_str() {
        "cpu" => Ok(format!("{} {}\n", request.format.name(), request.seconds).into_bytes()),
        "off" => Err(ProfileError::NotAttached("no BTF".into())),
        "slow" => {
            SLOW.fetch_add(1, Ordering::SeqCst);
            let before = Instant::now();
            while !request.cancelled.load(Ordering::Relaxed) && before.elapsed() < Duration::from_secs(20) {
                std::thread::sleep(Duration::from_millis(5));
            }
            Ok(vec![])
        }
        other => Err(ProfileError::NoSuch(format!("there is no stacks metric `{other}`"))),
    };
    Server::start(Endpoints { stacks: Box::new(stacks), profile: Box::new(profile), ..endpoints(vec![]) })
}

#[test]
fn profiles_in_every_form() {
    let server = profiles();
    let (_, list) = server.text("/api/v1/stacks");
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    assert_eq!((&list["stacks"][0]["name"], &list["stacks"][0]["unit"]), (&"cpu".into(), &"count".into()));
    for (query, body, content_type) in [
        ("", "folded 0\n", "text/plain; charset=utf-8"),
        ("?seconds=5", "folded 5\n", "text/plain; charset=utf-8"),
        ("?format=svg&seconds=600", "svg 600\n", "image/svg+xml"),
        ("?format=pprof", "pprof 0\n", "application/octet-stream"),
    ] {
        let (head, found) = server.text(&format!("/api/v1/stacks/cpu{query}"));
        assert!(head.starts_with("http/1.1 200") && head.contains(&format!("content-type: {content_type}")), "{head}");
        assert_eq!(found, body);
    }
    assert!(server.text("/api/v1/stacks/cpu?format=pprof").0.contains("filename=\"cpu.pb.gz\""));
    assert!(server.text("/api/v1/stacks/cpu?format=svg").0.contains("content-security-policy: default-src 'none'"));
}

#[test]
fn wrong_requests_for_profiles_say_what_is_right() {
    let server = profiles();
    for (path, status, part) in [
        ("cpu?format=png", 400, "there is no format `png`: it is folded, pprof, svg"),
        ("cpu?seconds=601", 400, "a whole number up to 600"),
        ("cpu?seconds=-1", 400, "a whole number"),
        ("cpu?second=1", 400, "there is no option `second`"),
        ("none", 404, "there is no stacks metric `none`"),
        ("off", 503, "not attached: no BTF"),
    ] {
        let (head, body) = server.text(&format!("/api/v1/stacks/{path}"));
        assert!(head.starts_with(&format!("http/1.1 {status}")), "{path}: {head}");
        assert!(body.contains(part), "{path}: {body}");
    }
}

#[test]
fn long_profiles_leave_places_for_short_ones() {
    let server = profiles();
    let ask = |seconds: u32| {
        let mut stream = TcpStream::connect(server.address).unwrap();
        write!(stream, "GET /api/v1/stacks/slow?seconds={seconds} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        stream
    };
    let within_a_while = |what: &dyn Fn() -> bool| {
        let before = Instant::now();
        while !what() {
            assert!(before.elapsed() < Duration::from_secs(10), "never");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let status = |seconds: u32| server.text(&format!("/api/v1/stacks/cpu?seconds={seconds}")).0;
    let mut clients: Vec<TcpStream> = (0..4).map(|_| ask(600)).collect();
    within_a_while(&|| SLOW.load(Ordering::SeqCst) == clients.len());
    let refused = status(61);
    assert!(refused.starts_with("http/1.1 429") && refused.contains("retry-after: 10"), "{refused}");
    assert!(status(60).starts_with("http/1.1 200"));
    clients.extend((0..12).map(|_| ask(10)));
    within_a_while(&|| SLOW.load(Ordering::SeqCst) == clients.len());
    assert!(status(10).starts_with("http/1.1 429"));
    drop(clients);
    // Clients that hung up need no profiles.
    within_a_while(&|| status(600).starts_with("http/1.1 200"));
}
