//! Scrapes that cannot be answered in time.

use super::*;
use std::sync::mpsc::{Sender, channel};

/// A server whose scrapes after the first wait for a message, and the sender of such messages.
fn stuck() -> (Server, Sender<()>) {
    let (go_on, wait) = channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let scrapes = AtomicUsize::new(0);
    let read = move || {
        let number = scrapes.fetch_add(1, Ordering::SeqCst);
        if number > 0 {
            // An error means that the test has ended.
            let _ = wait.lock().unwrap().recv();
        }
        reading(number)
    };
    (Server::start(Endpoints { read: Box::new(read), ..endpoints(vec![]) }), go_on)
}

const SHORT: &str = "X-Prometheus-Scrape-Timeout-Seconds: 0.05\r\n";
const GZIP: &str = "Accept-Encoding: gzip\r\n";

#[test]
fn a_late_scrape_gets_the_last_reading_in_any_format() {
    let (server, go_on) = stuck();
    let (head, _) = server.get("/metrics", &format!("{GZIP}X-Prometheus-Scrape-Timeout-Seconds: 600\r\n"));
    assert!(head.starts_with("http/1.1 200") && head.contains("content-encoding: gzip"), "{head}");
    // The one that is under way and those that wait for it.
    for (accept, expected) in
        [("", "Text004 0\nlate\n"), ("Accept: application/openmetrics-text\r\n", "OpenMetrics100 0\nlate\n# EOF\n")]
    {
        let (head, body) = server.get("/metrics", &format!("{SHORT}{accept}"));
        assert!(head.starts_with("http/1.1 200"), "{head}");
        assert_eq!(String::from_utf8(body).unwrap(), expected);
    }
    // What was late is complete by and by, and the next one after it fresh.
    go_on.send(()).unwrap();
    go_on.send(()).unwrap();
    let fresh = server.get("/metrics", "X-Prometheus-Scrape-Timeout-Seconds: 600\r\n").1;
    assert_eq!(String::from_utf8(fresh).unwrap(), "Text004 2\n");
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
