use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn reflector() -> Reflector<&'static str> {
    Reflector::new(Backoff::default(), 100)
}

fn object(uid: &'static str, version: &str) -> Object<&'static str> {
    Object { uid: uid.into(), version: version.into(), value: uid }
}

fn page(version: &str, token: Option<&str>, objects: &[Object<&'static str>]) -> Page<&'static str> {
    Page { version: version.into(), token: token.map(str::to_owned), objects: objects.to_vec() }
}

fn listed() -> Reflector<&'static str> {
    let mut reflector = reflector();
    reflector.page(page("10", None, &[object("a", "1"), object("b", "2")]));
    reflector
}

#[test]
fn pages_are_one_list() {
    let mut reflector = reflector();
    assert_eq!(reflector.next(Duration::ZERO), Next::List { version: "0", token: "" });
    assert_eq!(reflector.page(page("10", Some("t1"), &[object("a", "1")])), []);
    assert_eq!(reflector.next(Duration::ZERO), Next::List { version: "", token: "t1" });
    let changes = reflector.page(page("10", None, &[object("b", "2")]));
    assert_eq!(changes, [Change::Seen("a"), Change::Seen("b"), Change::Synced]);
    assert_eq!(reflector.next(Duration::ZERO), Next::Watch { version: "10" });
}

#[test]
fn a_failed_page_is_retried_and_an_expired_token_restarts_the_list() {
    let mut reflector = reflector();
    reflector.page(page("10", Some("t1"), &[object("a", "1")]));
    reflector.failed(SECOND, Failure::Again(None), 1.0);
    assert_eq!(reflector.next(SECOND), Next::Wait(2 * SECOND));
    assert_eq!(reflector.next(2 * SECOND), Next::List { version: "", token: "t1" });
    reflector.failed(2 * SECOND, Failure::Gone, 1.0);
    let Next::Wait(until) = reflector.next(2 * SECOND) else { panic!("the second failure in a row waits") };
    assert_eq!(reflector.next(until), Next::List { version: "", token: "" });
    // Objects of the expired page are not sent twice.
    assert_eq!(reflector.page(page("12", None, &[object("a", "1")])), [Change::Seen("a"), Change::Synced]);
}

#[test]
fn a_watch_goes_on_where_it_was() {
    let mut reflector = listed();
    assert_eq!(reflector.event(Event::Changed(object("c", "11"))), Some(Change::Seen("c")));
    assert_eq!(reflector.event(Event::Deleted("a".into(), "12".into())), Some(Change::Gone("a".into())));
    assert_eq!(reflector.event(Event::Version("20".into())), None);
    reflector.failed(SECOND, Failure::Again(None), 0.0);
    assert_eq!(reflector.next(SECOND), Next::Wait(Duration::from_millis(1500)));
    assert_eq!(reflector.next(2 * SECOND), Next::Watch { version: "20" });
    reflector.ended(2 * SECOND, 300 * SECOND, 0.0);
    assert_eq!(reflector.next(2 * SECOND), Next::Watch { version: "20" }, "the end after its time is no failure");
}

#[test]
fn a_version_that_is_gone_is_a_new_list_by_quorum() {
    let mut reflector = listed();
    reflector.failed(SECOND, Failure::Gone, 1.0);
    assert_eq!(reflector.next(SECOND), Next::List { version: "", token: "" }, "at once");
    let changes = reflector.page(page("50", None, &[object("b", "2"), object("c", "40")]));
    assert_eq!(changes, [Change::Gone("a".into()), Change::Seen("c"), Change::Synced]);
    assert_eq!(reflector.next(SECOND), Next::Watch { version: "50" });
    // Repeated expiry is retried with backoff.
    reflector.failed(SECOND, Failure::Gone, 1.0);
    assert_eq!(reflector.next(SECOND), Next::Wait(3 * SECOND));
}

#[test]
fn without_watch_permission_lists_repeat_with_backoff() {
    let mut reflector = listed();
    reflector.failed(SECOND, Failure::Refused, 1.0);
    assert_eq!(reflector.next(SECOND), Next::Wait(2 * SECOND));
    assert_eq!(reflector.next(2 * SECOND), Next::List { version: "0", token: "" });
    reflector.page(page("11", None, &[]));
    reflector.failed(2 * SECOND, Failure::Refused, 1.0);
    assert_eq!(reflector.next(2 * SECOND), Next::Wait(4 * SECOND), "with growing pauses");
}

#[test]
fn watches_that_end_at_once_are_failures() {
    let mut reflector = listed();
    let mut now = Duration::ZERO;
    for _ in 0..10 {
        reflector.ended(now, Duration::from_millis(1), 1.0);
        let Next::Wait(until) = reflector.next(now) else { panic!("no pause") };
        now = until;
    }
    assert_eq!(reflector.failures(), 10);
    assert!(now > 120 * SECOND, "{now:?}");
    reflector.event(Event::Version("30".into()));
    assert_eq!(reflector.failures(), 0);
}

#[test]
fn a_server_says_when_to_come_again() {
    let mut reflector = reflector();
    reflector.failed(Duration::ZERO, Failure::Again(Some(60 * SECOND)), 0.0);
    assert_eq!(reflector.next(Duration::ZERO), Next::Wait(60 * SECOND));
}

#[test]
fn classification_of_error_responses() {
    let of = |code, reason: &str| Failure::of(&Status { code, reason: reason.into(), ..Status::default() });
    assert_eq!(of(410, "Expired"), Failure::Gone);
    assert_eq!(of(403, "Forbidden"), Failure::Refused);
    assert_eq!(of(404, "NotFound"), Failure::Refused);
    assert_eq!(of(401, "Unauthorized"), Failure::Again(None));
    assert_eq!(of(500, "InternalError"), Failure::Again(None));
    assert_eq!(of(504, "Timeout"), Failure::Again(None));
}
