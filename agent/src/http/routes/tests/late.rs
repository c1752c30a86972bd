//! Scrapes that cannot be answered in time.

use super::*;
use std::sync::mpsc::{Sender, channel};

/// A server whose scrapes after the first wait for a message, and the sender of such messages.
fn stuck() -> (Server, Sender<()>) {
    let (go_on, wait) = channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let scrapes = AtomicUsize::new(0);
    let scrape = move |format| {
        let number = scrapes.fetch_add(1, Ordering::SeqCst);
        if number > 0 {
            // An error means that the test has ended.
            let _ = wait.lock().unwrap().recv();
        }
        format!("{format:?} {number}\n").into_bytes()
    };
    (Server::start(Endpoints { scrape: Box::new(scrape), ..endpoints(vec![]) }), go_on)
}

const SHORT: &str = "X-Prometheus-Scrape-Timeout-Seconds: 0.05\r\n";
const GZIP: &str = "Accept-Encoding: gzip\r\n";

#[test]
fn a_late_scrape_answers_with_the_last_one_and_its_age() {
    let (server, go_on) = stuck();
    let (head, _) = server.get("/metrics", &format!("{GZIP}X-Prometheus-Scrape-Timeout-Seconds: 600\r\n"));
    assert!(head.starts_with("http/1.1 200") && head.contains("content-encoding: gzip"), "{head}");
    // The one that is under way and those that wait for it.
    for headers in [SHORT.to_owned(), format!("{SHORT}{GZIP}")] {
        let (head, body) = server.get("/metrics", &headers);
        assert!(head.starts_with("http/1.1 200") && !head.contains("content-encoding"), "{head}");
        assert_eq!(String::from_utf8(body).unwrap(), "Text004 0\ntrue\n");
    }
    // What was late is complete by and by, and the next one after it fresh.
    go_on.send(()).unwrap();
    go_on.send(()).unwrap();
    let fresh = server.get("/metrics", "X-Prometheus-Scrape-Timeout-Seconds: 600\r\n").1;
    assert_eq!(String::from_utf8(fresh).unwrap(), "Text004 2\n");
}

#[test]
fn another_format_is_no_answer() {
    let (server, go_on) = stuck();
    assert!(server.text("/metrics").0.starts_with("http/1.1 200"));
    let open = "Accept: application/openmetrics-text\r\n";
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| server.get("/metrics", &format!("{SHORT}{open}")));
        // It has begun, and is past its own limit, when a scraper of the first format has its answer.
        while server.get("/metrics", SHORT).1 != b"Text004 0\ntrue\n" {}
        // One message for each scrape that may have begun.
        go_on.send(()).unwrap();
        go_on.send(()).unwrap();
        assert!(asking.join().unwrap().1.starts_with(b"OpenMetrics100 "));
    });
}

#[test]
fn scrapers_of_two_formats_do_not_displace_each_others_answers() {
    let (server, go_on) = stuck();
    assert!(server.text("/metrics").0.starts_with("http/1.1 200"));
    go_on.send(()).unwrap();
    assert!(server.get("/metrics", "Accept: application/openmetrics-text\r\n").1.starts_with(b"OpenMetrics100 1"));
    assert_eq!(server.get("/metrics", SHORT).1, b"Text004 0\ntrue\n");
}

#[test]
fn patience_is_a_part_of_the_scrapers_own_limit() {
    let of = |text: &str| patience(&[(TIMEOUT_HEADER.parse().unwrap(), text.parse().unwrap())].into_iter().collect());
    assert_eq!(of("10"), Duration::from_secs(8));
    assert_eq!(of("2.5"), Duration::from_secs(2));
    assert_eq!(of("3600"), SCRAPE_LIMIT);
    for none in ["", "x", "-1", "NaN", "inf", "1e300"] {
        assert_eq!(of(none), Duration::from_secs(8), "{none}");
    }
    assert_eq!(patience(&HeaderMap::new()), Duration::from_secs(8));
}
