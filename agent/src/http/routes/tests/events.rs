//! `/api/v1/events`: the last ones, and who follows.

use super::*;
use crate::metrics::events::tail::Tail;

fn with_events() -> (Server, Arc<Tail>) {
    let endpoints = endpoints(vec![]);
    let tail = endpoints.events.clone();
    (Server::start(endpoints), tail)
}

#[test]
fn the_last_events_are_a_document() {
    let (server, tail) = with_events();
    assert_eq!(server.text("/api/v1/events").1, r#"{"events":[],"gone":0}"#);
    tail.add("slow_a", r#"{"n":1}"#);
    tail.add("slow_b", r#"{"n":2}"#);
    let (head, body) = server.text("/api/v1/events");
    assert!(head.contains("content-type: application/json") && head.contains("cache-control: no-store"), "{head}");
    assert_eq!(body, r#"{"events":[{"n":1},{"n":2}],"gone":0}"#);
    assert_eq!(server.text("/api/v1/events?limit=1").1, r#"{"events":[{"n":2}],"gone":0}"#);
    assert_eq!(server.text("/api/v1/events?probe=slow_a").1, r#"{"events":[{"n":1}],"gone":0}"#);
    assert!(server.text("/api/v1/events?probe=softirq").0.starts_with("http/1.1 404"));
}

fn follow(server: &Server, query: &str) -> BufReader<TcpStream> {
    let (reader, head) = server.follow(&format!("/api/v1/events?follow=true{query}"), Duration::from_secs(10));
    assert!(head.contains("application/x-ndjson") || !head.contains(" 200 "), "{head}");
    reader
}

fn next_line(reader: &mut BufReader<TcpStream>) -> String {
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    line
}

#[test]
fn events_are_followed_and_the_end_of_the_agent_ends_that() {
    let (server, tail) = with_events();
    tail.add("slow_a", "1");
    let (mut all, mut of_b) = (follow(&server, "&limit=1"), follow(&server, "&probe=slow_b"));
    assert_eq!(next_line(&mut all), "1\n");
    tail.add("slow_a", "2");
    tail.add("slow_b", "3");
    assert_eq!([next_line(&mut all), next_line(&mut all), next_line(&mut of_b)], ["2\n", "3\n", "3\n"]);
    tail.close();
    assert_eq!([next_line(&mut all), next_line(&mut of_b)], ["", ""]);
    let before = Instant::now();
    drop(server);
    assert!(before.elapsed() < Duration::from_secs(2));
}

#[test]
fn who_follows_and_does_not_read_misses_events_and_is_told() {
    let (server, tail) = with_events();
    let mut slow = follow(&server, "");
    let event = "x".repeat(10_000);
    let added = 5_000;
    // More than sockets hold.
    let before = Instant::now();
    (0..added).for_each(|_| _ = tail.add("slow_a", &event));
    assert!(before.elapsed() < Duration::from_secs(5), "nobody waits for it");
    tail.add("slow_a", "end");
    let (mut seen, mut gone) = (0, 0);
    loop {
        let line = next_line(&mut slow);
        match line.trim().strip_prefix("{\"gone\":") {
            Some(number) => gone += number.trim_end_matches('}').parse::<usize>().unwrap(),
            None if line == "end\n" => break,
            None => seen += 1,
        }
    }
    assert!(gone > 0 && seen + gone == added, "{seen} seen, {gone} gone");
}

#[test]
fn few_may_follow_at_once() {
    let (server, tail) = with_events();
    let clients: Vec<_> = (0..8).map(|_| follow(&server, "")).collect();
    assert!(server.text("/api/v1/events?follow=true").0.starts_with("http/1.1 429"));
    assert!(server.text("/api/v1/events").0.starts_with("http/1.1 200"));
    drop(clients);
    let before = Instant::now();
    loop {
        let mut stream = TcpStream::connect(server.address).unwrap();
        write!(stream, "GET /api/v1/events?follow=true HTTP/1.0\r\n\r\n").unwrap();
        let mut start = [0; 12];
        stream.read_exact(&mut start).unwrap();
        if start.ends_with(b"200") {
            break;
        }
        assert!(before.elapsed() < Duration::from_secs(10), "they hung up, and nobody noticed");
    }
    tail.close();
}
