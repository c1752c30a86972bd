//! The API over real HTTP.

use super::world::{Folder, agent, engine, until};
use kstrobe::app::{Captures, Endpoints, HistoryStore, Reload};
use kstrobe::capture::access::{Access, Denied};
use kstrobe::capture::rules::configured;
use kstrobe::capture::rules::engine::RuleEngine;
use kstrobe::config::files::HistoryConfig;
use kstrobe::http::router;
use kstrobe::kubernetes::other_nodes::OtherNodes;
use kstrobe::metrics::events::tail::Tail;
use kstrobe::probe::status::Status;
use kstrobe_export::reading::Reading;
use kstrobe_web::{bind, serve};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::oneshot;

pub const TOKEN: &str = "a-token-of-more-than-16";

/// A running server that stops when dropped.
pub struct Server {
    address: SocketAddr,
    pub rules: Option<Arc<RuleEngine>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
    folder: Folder,
}

/// An answer: its status, its head in small letters, its body.
pub struct Answer(pub u16, pub String, pub String);

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.2).unwrap_or_else(|e| panic!("{e}: {}", self.2))
    }
}

impl Server {
    /// One with a token.
    fn start(captures: &str) -> Server {
        let folder = Folder::new();
        let token = folder.0.join("token");
        std::fs::write(&token, format!("{TOKEN}\n")).unwrap();
        Server::with(folder, captures, Some(token), false)
    }

    fn with(folder: Folder, captures: &str, token: Option<PathBuf>, open: bool) -> Server {
        let rules = "rules:\n  - { name: by_alert, capture: { events: quick } }\n";
        let rules = configured::open(&agent(&folder, captures, rules), engine(), |_| true).unwrap().unwrap();
        let listeners = bind(&[if open { "0.0.0.0:0" } else { "127.0.0.1:0" }.to_owned()]).unwrap();
        let bound = listeners[0].local_addr().unwrap();
        let access = Access::new(&[bound], token);
        Server::serve(folder, Ok(rules), access, listeners, None)
    }

    /// One on a loopback address of its own, which knows others by their API server.
    pub fn on(address: SocketAddr, other_nodes: Option<Arc<OtherNodes>>) -> Server {
        let folder = Folder::new();
        let token = folder.0.join("token");
        std::fs::write(&token, format!("{TOKEN}\n")).unwrap();
        let rules = "rules:\n  - { name: by_alert, capture: { events: quick } }\n";
        let rules = configured::open(&agent(&folder, "", rules), engine(), |_| true).unwrap().unwrap();
        let listeners = bind(&[address.to_string()]).unwrap();
        let access = Access::new(&[address], Some(token));
        let mut server = Server::serve(folder, Ok(rules), access, listeners, other_nodes);
        server.address = address;
        server
    }

    fn serve(
        folder: Folder,
        rules: Result<Arc<RuleEngine>, Denied>,
        access: Access,
        listeners: Vec<std::net::TcpListener>,
        other_nodes: Option<Arc<OtherNodes>>,
    ) -> Server {
        let port = listeners[0].local_addr().unwrap().port();
        let endpoints = Endpoints {
            read: Box::new(|| Reading {
                at: SystemTime::now(),
                took: Duration::ZERO,
                families: vec![],
                exemplars: vec![],
            }),
            write: Box::new(|_, _| Ok(())),
            status: Box::new(Status::default),
            stacks: Box::new(Vec::new),
            profile: Box::new(|_| Ok(vec![])),
            captures: {
                let captures = Captures { rules: rules.clone(), access };
                Box::new(move || captures.clone())
            },
            other_nodes,
            reload: Reload { open: false, ask: Box::new(|| Ok(String::new())) },
            events: Arc::new(Tail::new(vec![], 1024)),
            history: Arc::new(HistoryStore::new(&HistoryConfig::default())),
            version: "1".into(),
            telemetry_path: "/metrics".into(),
            most_requests: 0,
        };
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(serve(listeners, router(endpoints), async { drop(stopped.await) })).unwrap();
        });
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        Server { address, rules: rules.ok(), stop: Some(stop), thread: Some(thread), folder }
    }

    pub fn ask(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Answer {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        // A server that refuses a body does not read it.
        let _ = stream.write_all(body);
        let mut answer = vec![];
        let _ = stream.read_to_end(&mut answer);
        let end = answer.windows(4).position(|w| w == b"\r\n\r\n").expect("a head");
        let head = String::from_utf8_lossy(&answer[..end]).to_lowercase();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer(status, head, String::from_utf8_lossy(&answer[end + 4..]).into_owned())
    }

    /// With the token.
    pub fn may(&self, method: &str, path: &str, body: &str) -> Answer {
        self.ask(method, path, &format!("Authorization: Bearer {TOKEN}\r\n"), body.as_bytes())
    }

    /// A capture that was started, its id.
    fn begin(&self, body: &str) -> String {
        let answer = self.may("POST", "/api/v1/captures", body);
        assert_eq!(answer.0, 202, "{}", answer.2);
        let id = answer.json()["id"].as_str().unwrap().to_owned();
        assert!(answer.1.contains(&format!("location: /api/v1/captures/{}", id.to_lowercase())), "{}", answer.1);
        id
    }

    fn ended(&self, id: &str) -> Value {
        let mut found = Value::Null;
        until("a capture has ended", || {
            found = self.may("GET", &format!("/api/v1/captures/{id}"), "").json();
            found["state"] != "running"
        });
        found
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        self.thread.take().unwrap().join().unwrap();
        if let Some(rules) = &self.rules {
            rules.service().close(Duration::from_secs(30));
        }
    }
}

#[test]
fn a_capture_from_start_to_end() {
    let server = Server::start("");
    let id = server.begin(r#"{"events": ["quick"], "comms": ["mysqld"], "duration": "5s"}"#);
    let capture = server.ended(&id);
    assert_eq!((&capture["state"], &capture["records"], &capture["lost"]), (&json!("done"), &json!(7), &json!(2)));
    assert_eq!(capture["request"]["comms"], json!(["mysqld"]));
    assert_eq!((&capture["request"]["duration"], &capture["trigger"]["kind"]), (&json!("5s"), &json!("api")));
    assert!(
        capture["trigger"]["client"].as_str().unwrap().starts_with("the captures' token at 127.0.0.1:"),
        "{capture}"
    );
    assert_eq!(capture["files"], json!([{"format": "dat", "bytes": 600_000}]));

    let path = format!("/api/v1/captures/{id}/download");
    let answer = server.may("GET", &path, "");
    assert_eq!((answer.0, answer.2), (200, "trace ".repeat(100_000)));
    let name = format!("content-disposition: attachment; filename=\"{}-trace.dat\"", id.to_lowercase());
    for part in [&*name, "content-length: 600000", "application/octet-stream", "no-store", "nosniff"] {
        assert!(answer.1.contains(part), "{part}: {}", answer.1);
    }
    let answer = server.may("GET", &format!("{path}?format=text"), "");
    assert_eq!((answer.0, answer.2.len(), &answer.2[..6]), (200, 600_000, "TRACE "));
    assert!(answer.1.contains("content-type: text/plain"), "{}", answer.1);
    let answer = server.may("GET", &format!("{path}?format=folded"), "");
    assert_eq!((answer.0, &*answer.2), (404, "there is no folded of it: nothing in it has stacks\n"));
    for query in ["format=png", "form=dat"] {
        let answer = server.may("GET", &format!("{path}?{query}"), "");
        assert!(answer.0 == 400 && answer.2.contains("it is "), "{}", answer.2);
    }

    let list = server.may("GET", "/api/v1/captures", "").json();
    assert_eq!((list["captures"].as_array().unwrap().len(), &list["captures"][0]["id"]), (1, &json!(id)));
    let path = format!("/api/v1/captures/{id}");
    assert_eq!(server.may("POST", &format!("{path}/cancel"), "").0, 409, "it has ended");
    assert_eq!(server.may("DELETE", &path, "").0, 204);
    assert_eq!(server.may("DELETE", &path, "").0, 404);
    assert_eq!(server.may("GET", &path, "").0, 404);
}

#[test]
fn while_it_runs_it_can_be_cancelled_and_nothing_else() {
    let server = Server::start("");
    let id = server.begin(r#"{"events": "slow"}"#);
    let path = format!("/api/v1/captures/{id}");
    let answer = server.may("GET", &format!("{path}/download"), "");
    assert!(answer.0 == 409 && answer.2.contains("still running"), "{}", answer.2);
    assert_eq!(server.may("DELETE", &path, "").0, 409);
    let answer = server.may("POST", "/api/v1/captures", r#"{"events": "quick"}"#);
    assert!(answer.0 == 429 && answer.2.contains("a capture runs already"), "{}", answer.2);
    assert_eq!(server.may("POST", &format!("{path}/cancel"), "").0, 202);
    assert_eq!(server.ended(&id)["state"], "cancelled");
    assert_eq!(server.may("GET", &format!("{path}/download"), "").2.len(), 600_000, "what it had is kept");
    let id = server.begin(r#"{"events": "wrong"}"#);
    let failed = server.ended(&id);
    assert_eq!((&failed["state"], &failed["error"]), (&json!("failed"), &json!("no event of this kernel is `wrong`")));
    assert_eq!(server.may("GET", &format!("/api/v1/captures/{id}/download"), "").0, 404);
}

#[test]
fn wrong_bodies_are_explained_and_large_ones_are_not_read() {
    let server = Server::start("max_duration: 20s, max_bytes: 1MiB");
    for (body, status, part) in [
        ("", 400, "not JSON"),
        ("{\"events\": [\"a\"],\n \"evnts\": []}", 400, "did you mean `events`?"),
        (r#"{"events": ["a"], "duration": "21s"}"#, 400, "at most 20s here"),
        (r#"{"events": ["a"], "max_bytes": "2MiB"}"#, 400, "at most 1MiB here"),
        (r#"{"events": ["a"], "command": ["sh"]}"#, 400, "no key `command`"),
        (r#"{"tracer": "function", "functions": ["a:traceoff"]}"#, 400, "cannot be in the name"),
    ] {
        let answer = server.may("POST", "/api/v1/captures", body);
        assert!(answer.0 == status && answer.2.contains(part), "{body}: {} {}", answer.0, answer.2);
    }
    let answer = server.may("POST", "/api/v1/captures", "{\"events\": [\"a\"],\n \"evnts\": []}");
    assert!(answer.2.contains("--> body:2:2") && answer.2.contains("^^^^^^^"), "{}", answer.2);
    let long = format!(r#"{{"events": ["{}"]}}"#, "a".repeat(70 << 10));
    assert_eq!(server.may("POST", "/api/v1/captures", &long).0, 413);
    let alerts = format!(r#"{{"alerts": [], "x": "{}"}}"#, "a".repeat(70 << 10));
    assert_eq!(server.may("POST", "/api/v1/captures/alertmanager", &alerts).0, 202, "alerts may be longer");
    let long = "a".repeat((1 << 20) + 1);
    assert_eq!(server.may("POST", "/api/v1/captures/alertmanager", &long).0, 413);
    assert!(server.may("GET", "/api/v1/captures", "").json()["captures"].as_array().unwrap().is_empty());
}

#[test]
fn hostile_ids_lead_nowhere() {
    let server = Server::start("");
    let secret = server.folder.0.join("trace.dat");
    std::fs::write(&secret, "secret").unwrap();
    for id in
        ["..", "../x", "%2e%2e", "..%2f..%2ftoken", "%2fetc%2fpasswd", ".lock", "%00", "x%0d%0aSet-Cookie:a", "%ff"]
    {
        for (method, rest) in [("GET", ""), ("DELETE", ""), ("GET", "/download"), ("POST", "/cancel")] {
            let answer = server.may(method, &format!("/api/v1/captures/{id}{rest}"), "");
            assert!(matches!(answer.0, 400 | 404 | 405), "{method} {id}{rest}: {}", answer.0);
            assert!(!answer.2.contains("secret") && !answer.2.contains(TOKEN), "{id}: {}", answer.2);
            assert!(!answer.1.contains("set-cookie"), "{}", answer.1);
        }
    }
    assert!(secret.exists());
}

#[test]
fn nothing_without_the_token() {
    let server = Server::start("");
    let id = server.begin(r#"{"events": "quick"}"#);
    server.ended(&id);
    let one = format!("/api/v1/captures/{id}");
    let (download, cancel) = (format!("{one}/download"), format!("{one}/cancel"));
    for (method, path) in [
        ("GET", "/api/v1/captures"),
        ("POST", "/api/v1/captures"),
        ("GET", &*one),
        ("DELETE", &one),
        ("GET", &download),
        ("POST", &cancel),
        ("POST", "/api/v1/captures/alertmanager"),
    ] {
        for headers in ["", "Authorization: Bearer wrong-token-of-16-and\r\n", "Authorization: Basic YTpi\r\n"] {
            let answer = server.ask(method, path, headers, b"{}");
            assert_eq!(answer.0, 401, "{method} {path} {headers}");
            assert!(answer.1.contains("www-authenticate: bearer"), "{}", answer.1);
        }
    }
    assert_eq!(server.may("GET", &one, "").0, 200, "nobody removed it");
    assert_eq!(server.ask("GET", "/healthz", "", b"").0, 200, "the rest needs none");
}

#[test]
fn on_a_loopback_address_no_token_is_needed_but_pages_in_a_browser_may_not() {
    let server = Server::with(Folder::new(), "", None, false);
    assert_eq!(server.ask("GET", "/api/v1/captures", "", b"").0, 200);
    let answer = server.ask("POST", "/api/v1/captures", "Origin: http://evil.example\r\n", br#"{"events":"quick"}"#);
    assert!(answer.0 == 403 && answer.2.contains("web pages"), "{} {}", answer.0, answer.2);
}

#[test]
fn on_other_addresses_captures_are_off_without_a_token() {
    let server = Server::with(Folder::new(), "", None, true);
    for (method, path) in
        [("GET", "/api/v1/captures"), ("POST", "/api/v1/captures"), ("POST", "/api/v1/captures/alertmanager")]
    {
        let answer = server.ask(method, path, &format!("Authorization: Bearer {TOKEN}\r\n"), b"{}");
        assert!(answer.0 == 403 && answer.2.contains("captures.token_file"), "{} {}", answer.0, answer.2);
    }
    assert_eq!(server.ask("GET", "/metrics", "", b"").0, 200);
}

#[test]
fn without_captures_in_the_configuration_they_are_off() {
    let listeners = bind(&["127.0.0.1:0".to_owned()]).unwrap();
    let server = Server::serve(Folder::new(), Err(Denied::off()), Access::Local, listeners, None);
    let answer = server.ask("GET", "/api/v1/captures", "", b"");
    assert!(answer.0 == 403 && answer.2.contains("`captures: {}`"), "{} {}", answer.0, answer.2);
}

#[test]
fn alertmanager_is_answered_at_once_with_what_came_of_it() {
    let server = Server::start("");
    let body = json!({
        "version": "4", "status": "firing", "receiver": "kstrobe", "notification_reason": "firing", "truncatedAlerts": 0,
        "alerts": [{
            "status": "firing", "labels": {"alertname": "SlowRecv", "kstrobe_rule": "by_alert"}, "annotations": {},
            "startsAt": "2026-11-21T12:00:00.5Z", "endsAt": "0001-01-01T00:00:00Z", "generatorURL": "",
            "fingerprint": "b5c8a4a2f1d3e6c7",
        }],
    });
    let answer = server.may("POST", "/api/v1/captures/alertmanager", &body.to_string());
    assert_eq!(answer.0, 202, "{}", answer.2);
    let result = answer.json()["results"][0].clone();
    assert_eq!((&result["result"], &result["fingerprint"]), (&json!("started"), &json!("b5c8a4a2f1d3e6c7")));
    let capture = server.ended(result["capture_id"].as_str().unwrap());
    assert_eq!(
        (&capture["trigger"]["kind"], &capture["trigger"]["rule"]),
        (&json!("alertmanager"), &json!("by_alert"))
    );
    let again = server.may("POST", "/api/v1/captures/alertmanager", &body.to_string());
    assert_eq!((again.0, &again.json()["results"][0]["result"]), (202, &json!("duplicate")));
    for wrong in ["", "[]", "{}", r#"{"alerts": [{"labels": 5}]}"#] {
        let answer = server.may("POST", "/api/v1/captures/alertmanager", wrong);
        assert!(answer.0 == 400 && answer.2.contains("webhook version 4"), "{wrong}: {} {}", answer.0, answer.2);
    }
}
