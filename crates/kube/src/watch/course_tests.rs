use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn course() -> Course<&'static str> {
    Course::new(Backoff::default(), 100)
}

fn object(uid: &'static str, version: &str) -> Object<&'static str> {
    Object { uid: uid.into(), version: version.into(), value: uid }
}

fn page(version: &str, token: Option<&str>, objects: &[Object<&'static str>]) -> Page<&'static str> {
    Page { version: version.into(), token: token.map(str::to_owned), objects: objects.to_vec() }
}

fn listed() -> Course<&'static str> {
    let mut course = course();
    course.page(page("10", None, &[object("a", "1"), object("b", "2")]));
    course
}

#[test]
fn pages_are_one_list() {
    let mut course = course();
    assert_eq!(course.next(Duration::ZERO), Next::List { version: "0", token: "" });
    assert_eq!(course.page(page("10", Some("t1"), &[object("a", "1")])), []);
    assert_eq!(course.next(Duration::ZERO), Next::List { version: "", token: "t1" });
    let told = course.page(page("10", None, &[object("b", "2")]));
    assert_eq!(told, [Change::Seen("a"), Change::Seen("b"), Change::Synced]);
    assert_eq!(course.next(Duration::ZERO), Next::Watch { version: "10" });
}

#[test]
fn a_page_that_fails_is_asked_for_again_and_one_that_expired_from_the_start() {
    let mut course = course();
    course.page(page("10", Some("t1"), &[object("a", "1")]));
    course.failed(SECOND, Failure::Again(None), 1.0);
    assert_eq!(course.next(SECOND), Next::Wait(2 * SECOND));
    assert_eq!(course.next(2 * SECOND), Next::List { version: "", token: "t1" });
    course.failed(2 * SECOND, Failure::Gone, 1.0);
    let Next::Wait(until) = course.next(2 * SECOND) else { panic!("the second failure in a row waits") };
    assert_eq!(course.next(until), Next::List { version: "", token: "" });
    // What was on the page that expired is not told twice.
    assert_eq!(course.page(page("12", None, &[object("a", "1")])), [Change::Seen("a"), Change::Synced]);
}

#[test]
fn a_watch_goes_on_where_it_was() {
    let mut course = listed();
    assert_eq!(course.event(Event::Changed(object("c", "11"))), Some(Change::Seen("c")));
    assert_eq!(course.event(Event::Deleted("a".into(), "12".into())), Some(Change::Gone("a".into())));
    assert_eq!(course.event(Event::Version("20".into())), None);
    course.failed(SECOND, Failure::Again(None), 0.0);
    assert_eq!(course.next(SECOND), Next::Wait(Duration::from_millis(1500)));
    assert_eq!(course.next(2 * SECOND), Next::Watch { version: "20" });
    course.ended(2 * SECOND, 300 * SECOND, 0.0);
    assert_eq!(course.next(2 * SECOND), Next::Watch { version: "20" }, "the end after its time is no failure");
}

#[test]
fn a_version_that_is_gone_is_a_new_list_by_quorum() {
    let mut course = listed();
    course.failed(SECOND, Failure::Gone, 1.0);
    assert_eq!(course.next(SECOND), Next::List { version: "", token: "" }, "at once");
    let told = course.page(page("50", None, &[object("b", "2"), object("c", "40")]));
    assert_eq!(told, [Change::Gone("a".into()), Change::Seen("c"), Change::Synced]);
    assert_eq!(course.next(SECOND), Next::Watch { version: "50" });
    // A server that says so each time is not asked without a pause.
    course.failed(SECOND, Failure::Gone, 1.0);
    assert_eq!(course.next(SECOND), Next::Wait(3 * SECOND));
}

#[test]
fn who_may_not_watch_lists_now_and_then() {
    let mut course = listed();
    course.failed(SECOND, Failure::Refused, 1.0);
    assert_eq!(course.next(SECOND), Next::Wait(2 * SECOND));
    assert_eq!(course.next(2 * SECOND), Next::List { version: "0", token: "" });
    course.page(page("11", None, &[]));
    course.failed(2 * SECOND, Failure::Refused, 1.0);
    assert_eq!(course.next(2 * SECOND), Next::Wait(4 * SECOND), "with growing pauses");
}

#[test]
fn watches_that_end_at_once_are_failures() {
    let mut course = listed();
    let mut now = Duration::ZERO;
    for _ in 0..10 {
        course.ended(now, Duration::from_millis(1), 1.0);
        let Next::Wait(until) = course.next(now) else { panic!("no pause") };
        now = until;
    }
    assert_eq!(course.failures(), 10);
    assert!(now > 120 * SECOND, "{now:?}");
    course.event(Event::Version("30".into()));
    assert_eq!(course.failures(), 0);
}

#[test]
fn a_server_says_when_to_come_again() {
    let mut course = course();
    course.failed(Duration::ZERO, Failure::Again(Some(60 * SECOND)), 0.0);
    assert_eq!(course.next(Duration::ZERO), Next::Wait(60 * SECOND));
}

#[test]
fn what_refusals_mean() {
    let of = |code, reason: &str| Failure::of(&Status { code, reason: reason.into(), ..Status::default() });
    assert_eq!(of(410, "Expired"), Failure::Gone);
    assert_eq!(of(403, "Forbidden"), Failure::Refused);
    assert_eq!(of(404, "NotFound"), Failure::Refused);
    assert_eq!(of(401, "Unauthorized"), Failure::Again(None));
    assert_eq!(of(500, "InternalError"), Failure::Again(None));
    assert_eq!(of(504, "Timeout"), Failure::Again(None));
}
