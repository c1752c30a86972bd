//! The server without TLS, over plain sockets: passwords, reload, limits, shutdown.

mod support;

use kstrobe_web::{ConfigWatcher, Hosts, Limits, bind};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;
use support::{Folder, Running, answer, basic, hash, wait_for};

fn users(users: &[(&str, &str)]) -> String {
    let lines: String = users.iter().map(|(name, password)| format!("  {name}: {}\n", hash(password))).collect();
    format!("basic_auth_users:\n{lines}")
}

#[test]
fn without_a_configuration_clients_are_anonymous() {
    let server = Running::start_file(None, Limits::default());
    let (status, head, body) = server.get("/who", "");
    assert_eq!((status, body.as_slice()), (200, &b"- false\n"[..]));
    assert!(!head.contains("www-authenticate"));
    assert_eq!(server.get("/nowhere", "").0, 404);
    assert_eq!(server.ask("POST /who HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").0, 405);
}

#[test]
fn every_route_requires_a_password_or_a_token() {
    let folder = Folder::new();
    let server = Running::start(&folder, &users(&[("alice", "secret")]));
    for (path, header, status, who) in [
        ("/who", String::new(), 401, ""),
        ("/who", basic("alice:secret"), 200, "alice false\n"),
        ("/who", basic("alice:wrong"), 401, ""),
        ("/who", basic("bob:secret"), 401, ""),
        ("/who", basic("alice"), 401, ""),
        ("/who", "Authorization: Bearer secret\r\n".into(), 401, ""),
        ("/who", "Authorization: Basic \u{7f}\r\n".into(), 400, ""),
        ("/nowhere", String::new(), 401, ""),
        ("/who", "Authorization: Bearer right\r\n".into(), 200, "token false\n"),
        ("/who", "Authorization: Bearer wrong\r\n".into(), 401, ""),
    ] {
        let (found, head, body) = server.get(path, &header);
        assert_eq!(found, status, "{path} {header} {head}");
        if status == 200 {
            assert_eq!(String::from_utf8(body).unwrap(), who);
        }
        assert_eq!(head.contains("www-authenticate: basic realm="), status == 401, "{head}");
    }
    assert_eq!(server.refused("unauthorized"), 7);
}

/// Names of a machine that no test runs on.
fn hosts() -> Hosts {
    Hosts::new(Vec::new(), "node-1", "")
}

#[test]
fn a_foreign_host_gets_nothing_from_any_route() {
    let server = Running::start_named(None, Limits::default(), hosts());
    let ask = |line: &str, headers: &str| {
        let (status, _, body) = server.ask(&format!("{line}\r\nConnection: close\r\n{headers}\r\n"));
        (status, String::from_utf8(body).unwrap())
    };
    let foreign = "Host: evil.example\r\n";
    for line in ["GET /metrics HTTP/1.1", "GET /who HTTP/1.1", "POST /echo HTTP/1.1", "GET /nowhere HTTP/1.1"] {
        let (status, body) = ask(line, foreign);
        assert!(status == 421 && body.contains("--web.allowed-host"), "{line}: {status} {body}");
    }
    assert_eq!(server.refused("host"), 4);
    // The host of an absolute request URI counts as well as the header.
    assert_eq!(ask("GET http://evil.example/metrics HTTP/1.1", "Host: node-1\r\n").0, 421);
    assert_eq!(ask("GET http://node-1/metrics HTTP/1.1", foreign).0, 421);
    assert_eq!(ask("GET /metrics HTTP/1.1", "Host: node-1\r\nHost: evil.example\r\n").0, 421);
    for own in ["Host: node-1:9779\r\n", "Host: localhost\r\n", "Host: 10.1.2.3:9779\r\n", "Host: [::1]\r\n"] {
        assert_eq!(ask("GET /metrics HTTP/1.1", own), (200, "up_test 1\n".into()), "{own}");
    }
    assert_eq!(ask("GET /metrics HTTP/1.0", "").0, 200, "no browser asks without a name");
}

#[test]
fn credentials_open_under_any_name() {
    let server = Running::start_named(None, Limits::default(), hosts());
    let who = |headers: &str| {
        let (status, _, body) = server.ask(&format!("GET /who HTTP/1.0\r\nHost: api.example\r\n{headers}\r\n"));
        (status, String::from_utf8(body).unwrap())
    };
    assert_eq!(who("Authorization: Bearer right\r\n"), (200, "token false\n".into()));
    assert_eq!(who("Authorization: Bearer wrong\r\n").0, 421);
    let folder = Folder::new();
    let file = folder.write("web-config.yml", &users(&[("alice", "secret")]));
    let server = Running::start_named(Some(&file), Limits::default(), hosts());
    let status = |headers: &str| server.ask(&format!("GET /who HTTP/1.0\r\nHost: api.example\r\n{headers}\r\n")).0;
    assert_eq!((status(&basic("alice:secret")), status(&basic("alice:wrong"))), (200, 401));
}

#[test]
fn headers_are_on_every_answer() {
    let folder = Folder::new();
    let headers =
        "http_server_config:\n  headers:\n    X-Frame-Options: deny\n    Content-Security-Policy: default-src 'self'\n";
    let server = Running::start(&folder, &format!("{headers}{}", users(&[("a", "b")])));
    for header in ["", &basic("a:b")] {
        let (_, head, _) = server.get("/who", header);
        assert!(head.contains("x-frame-options: deny") && head.contains("content-security-policy: default-src 'self'"));
    }
}

#[test]
fn more_than_the_rate_is_refused_before_passwords() {
    let folder = Folder::new();
    let limit = "rate_limit:\n  interval: 1h\n  burst: 2\n";
    let server = Running::start(&folder, &format!("{limit}{}", users(&[("a", "b")])));
    let statuses: Vec<u16> = (0..4).map(|_| server.get("/who", "").0).collect();
    assert_eq!(statuses, [401, 401, 429, 429]);
    assert_eq!(server.refused("rate"), 2);
}

#[test]
fn a_changed_file_holds_for_the_next_request_and_a_broken_one_for_none() {
    let folder = Folder::new();
    let server = Running::start(&folder, &users(&[("alice", "one")]));
    let mut open = server.connect();
    let mut ask = |password: &str| {
        write!(open, "GET /who HTTP/1.1\r\nHost: x\r\n{}\r\n", basic(&format!("alice:{password}"))).unwrap();
        let mut bytes = [0; 4096];
        let read = open.read(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..read]).split(' ').nth(1).unwrap().parse::<u16>().unwrap()
    };
    assert_eq!((ask("one"), ask("two")), (200, 401));
    folder.write("web-config.yml", &users(&[("alice", "two")]));
    assert_eq!((ask("one"), ask("two")), (401, 200));
    let counts = server.counts();
    assert_eq!((counts.reloads, counts.reload_failures, counts.reload_ok), (1, 0, true));
    assert!(counts.reloaded_at_seconds > 1_700_000_000);
    for (number, broken) in
        ["basic_auth_users: {alice: two}", "users: {}", ": : :", "", "\n \n", "\0"].iter().enumerate()
    {
        folder.write("web-config.yml", broken);
        assert_eq!((ask("one"), ask("two")), (401, 200), "{broken:?}");
        let counts = server.counts();
        assert_eq!((counts.reloads, counts.reload_failures, counts.reload_ok), (1, number as u64 + 1, false));
    }
    std::fs::remove_file(folder.0.join("web-config.yml")).unwrap();
    assert_eq!(ask("two"), 200);
    assert_eq!(server.counts().reload_failures, 7);
    folder.write("web-config.yml", &users(&[("alice", "three")]));
    assert_eq!((ask("two"), ask("three")), (401, 200));
    assert!(server.counts().reload_ok);
    // To remove all users is possible, when it is written.
    folder.write("web-config.yml", "basic_auth_users: {}");
    assert_eq!(ask("nothing"), 200);
}

#[test]
fn tls_does_not_come_behind_anybodys_back() {
    let folder = Folder::new();
    let server = Running::start(&folder, "rate_limit: {}\n");
    folder.write("web-config.yml", "tls_server_config:\n  cert_file: a\n  key_file: b\n");
    assert_eq!(server.get("/who", "").0, 200);
    assert_eq!(server.counts().reload_failures, 1);
}

#[test]
fn links_of_a_config_map_that_are_swapped_are_a_change() {
    let folder = Folder::new();
    for (version, password) in [("v1", "one"), ("v2", "two")] {
        std::fs::create_dir(folder.0.join(version)).unwrap();
        folder.write(&format!("{version}/web-config.yml"), &users(&[("alice", password)]));
    }
    let link = |version: &str| {
        std::os::unix::fs::symlink(version, folder.0.join("new")).unwrap();
        std::fs::rename(folder.0.join("new"), folder.0.join("..data")).unwrap();
    };
    link("v1");
    let file = folder.0.join("..data/web-config.yml");
    let server = Running::start_file(Some(&file), Limits::default());
    assert_eq!(server.get("/who", &basic("alice:one")).0, 200);
    link("v2");
    assert_eq!(server.get("/who", &basic("alice:one")).0, 401);
    assert_eq!(server.get("/who", &basic("alice:two")).0, 200);
}

#[test]
fn a_configuration_that_is_wrong_at_the_start_says_where() {
    let folder = Folder::new();
    for (text, expected) in [
        ("tls_server_config:\n  cert: x\n", ":1:1: `tls_server_config` needs `key_file` or `key`"),
        ("tls_server_config:\n  cert_file: no.crt\n  key_file: no.key\n", "no.crt: No such file"),
        ("tls_server_config:\n  cert: x\n  key: y\n", "there is no certificate in PEM form"),
        ("basic_auth_users:\n  a: b\n", ":2:3: what stands for user `a` is not bcrypt's text"),
    ] {
        let file = folder.write("web-config.yml", text);
        let error = ConfigWatcher::open(&file, Duration::ZERO, Arc::default()).err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let error = ConfigWatcher::open(&folder.0, Duration::ZERO, Arc::default()).err().unwrap().to_string();
    assert!(error.contains("it is no file"), "{error}");
}

#[test]
fn headers_and_bodies_have_limits() {
    let limits = Limits { body_bytes: 1000, ..Limits::default() };
    let server = Running::start_file(None, limits);
    assert_eq!(server.get("/who", &"X-A: b\r\n".repeat(100)).0, 431);
    assert_eq!(server.get("/who", &format!("X-A: {}\r\n", "b".repeat(100 << 10))).0, 431);
    assert_eq!(server.get(&format!("/{}", "b".repeat(100 << 10)), "").0, 431);
    assert_eq!(server.ask("nonsense\r\n\r\n").0, 400);
    assert_eq!(server.ask("GET / HTTP/9.9\r\n\r\n").0, 400);
    let post = |head: &str, body: &str| {
        server.ask(&format!("POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{head}\r\n\r\n{body}"))
    };
    let thousand = "x".repeat(1000);
    assert_eq!(post("Content-Length: 1000", &thousand).2, thousand.as_bytes());
    assert_eq!(post("Content-Length: 1001", "").0, 413);
    assert_eq!(server.refused("body"), 1);
    assert_eq!(post("Content-Length: 99999999999999999999", "").0, 400);
    assert_eq!(post("Transfer-Encoding: chunked", &format!("3e8\r\n{thousand}\r\n0\r\n\r\n")).0, 200);
    assert_eq!(post("Transfer-Encoding: chunked", &format!("3e9\r\n{thousand}x\r\n0\r\n\r\n")).0, 413);
}

#[test]
fn slow_clients_are_closed_and_counted() {
    let short = Duration::from_millis(200);
    let limits = Limits { header_time: short, idle: short, body_time: short, stall: short, ..Limits::default() };
    let server = Running::start_file(None, limits);
    // No bytes, and half a header.
    for part in ["", "GET /who HTTP/1.1\r\nX-A: "] {
        let mut stream = server.connect();
        stream.write_all(part.as_bytes()).unwrap();
        assert_eq!(answer(&mut stream).0, 0, "{part}");
    }
    assert_eq!(server.ended("header_time"), 2);
    // A complete request, then idle.
    assert_eq!(server.ask("GET /who HTTP/1.1\r\nHost: x\r\n\r\n").0, 200);
    assert_eq!(server.ended("idle"), 1);
    // Half a body.
    let half = "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n12345";
    assert_eq!(server.ask(half).0, 400);
    // An unread response larger than both socket buffers.
    let mut stream = server.connect();
    write!(stream, "GET /large HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    wait_for("the end of a client that takes nothing", || (server.ended("stall") == 1).then_some(()));
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert!(rest.len() < 16 << 20);
    wait_for("no connection", || (server.counts().open == 0).then_some(()));
}

#[test]
fn a_thousand_slow_connections_do_not_block_new_clients() {
    let limits = Limits { connections: 64, ..Limits::default() };
    let server = Running::start_file(None, limits);
    let mut slow: Vec<TcpStream> = Vec::new();
    for number in 0..1000 {
        let mut stream = server.connect();
        // Evicted connections are already closed.
        let _ = stream.write_all(b"GET /who HTTP/1.1\r\nX-A: ");
        slow.push(stream);
        if number % 250 == 249 {
            assert_eq!(server.get("/who", "").0, 200);
        }
    }
    let counts = server.counts();
    assert!(counts.open <= 64, "{counts:?}");
    assert!(server.ended("room") > 0);
}

#[test]
fn connections_with_a_request_are_not_evicted() {
    let limits = Limits { connections: 2, ..Limits::default() };
    let server = Running::start_file(None, limits);
    let mut busy: Vec<TcpStream> = (0..2).map(|_| server.connect()).collect();
    for stream in &mut busy {
        write!(stream, "GET /never HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    }
    wait_for("both requests", || (server.counts().requests == 2).then_some(()));
    let mut waiting = server.connect();
    write!(waiting, "GET /who HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    assert_eq!((server.counts().open, server.ended("room")), (2, 0));
    drop(busy.pop());
    assert_eq!(answer(&mut waiting).0, 200);
}

#[test]
fn more_requests_than_there_are_places_are_refused() {
    let limits = Limits { requests: 1, ..Limits::default() };
    let server = Running::start_file(None, limits);
    let mut busy = server.connect();
    write!(busy, "GET /never HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    wait_for("the request", || (server.counts().requests == 1).then_some(()));
    assert_eq!(server.get("/who", "").0, 503);
    assert_eq!(server.refused("busy"), 1);
    drop(busy);
    wait_for("the place", || (server.get("/who", "").0 == 200).then_some(()));
}

#[test]
fn the_end_waits_for_answers_and_not_for_idle_connections() {
    let server = Running::start_file(None, Limits { drain: Duration::from_secs(60), ..Limits::default() });
    let mut idle = server.connect();
    write!(idle, "GET /who HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    assert!(idle.read(&mut [0; 1024]).unwrap() > 0);
    let mut taking = server.connect();
    write!(taking, "GET /large HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut first = vec![0; 1 << 20];
    taking.read_exact(&mut first).unwrap();
    let reader = std::thread::spawn(move || {
        let mut rest = Vec::new();
        taking.read_to_end(&mut rest).unwrap();
        rest.len() + (1 << 20)
    });
    server.stop();
    assert_eq!(idle.read(&mut [0; 1024]).unwrap_or(0), 0);
    assert!(reader.join().unwrap() > 16 << 20);
}

#[test]
fn bind_errors_are_actionable() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let message = |address: &str| bind(&[address.to_owned()]).unwrap_err().to_string();
    assert_eq!(
        message(&address),
        format!(
            "{address} is already in use: stop the other program or choose another address with --web.listen-address"
        )
    );
    assert!(message("nonsense").starts_with("`nonsense` is not an address"));
    assert!(message(":99999").starts_with("`:99999` is not an address"));
    assert!(message("192.0.2.1:9779").starts_with("192.0.2.1:9779 is not an address of this machine"));
    assert!(bind(&[":0".to_owned(), "localhost:0".to_owned()]).unwrap().len() == 2);
}
