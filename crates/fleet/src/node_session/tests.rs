use super::*;
use crate::TransportError;
use http::StatusCode;

const S: Duration = Duration::from_secs(1);

fn session() -> NodeSession {
    NodeSession::new(Limits::default(), 10 * S, false)
}

fn status(state: &str) -> Response {
    Response::Status(CaptureStatus { state: state.into(), ..CaptureStatus::default() })
}

fn transient(text: &str) -> Response {
    Response::Failed(TransportError::new(text).into())
}

fn refused(message: &str) -> Response {
    Response::Failed(Error::Refused { status: StatusCode::FORBIDDEN, message: message.into() })
}

/// A session recording since second 3.
fn recording() -> NodeSession {
    let mut session = session();
    assert_eq!(session.next(Duration::ZERO), Next::Do(Action::Hello));
    session.on_response(S, Response::Hello);
    assert_eq!(session.next(S), Next::Hold);
    session.begin(3 * S);
    assert_eq!(session.next(S), Next::Do(Action::Create));
    session.on_response(2 * S, Response::Created("id".into()));
    assert_eq!(session.next(2 * S), Next::Sleep(3 * S));
    assert_eq!(session.next(3 * S), Next::Sleep(4 * S));
    assert_eq!(session.stage(), Stage::Recording);
    session
}

#[test]
fn from_beginning_to_end() {
    let mut session = recording();
    assert_eq!(session.next(4 * S), Next::Do(Action::Look));
    session.on_response(4 * S, status("running"));
    assert_eq!(session.next(4 * S), Next::Sleep(5 * S));
    session.on_response(Duration::from_millis(12_500), status("running"));
    assert_eq!(session.next(12 * S), Next::Sleep(Duration::from_millis(13_100)), "at its end and not much later");
    session.on_response(14 * S, status("done"));
    assert_eq!(session.next(14 * S), Next::Do(Action::Fetch));
    session.on_response(15 * S, Response::Fetched);
    assert_eq!(session.next(15 * S), Next::Do(Action::Remove));
    session.on_response(15 * S, Response::Removed);
    assert_eq!((session.next(15 * S), session.stage()), (Next::End, Stage::Downloaded));
    assert_eq!(exit_code([&session]), 0);
    assert_eq!(exit_code([&session, &NodeSession::failed("no agent")]), 1);
}

#[test]
fn kept_captures_are_not_removed() {
    let mut session = NodeSession { keep: true, stage: Stage::Downloaded, ..session() };
    assert_eq!(session.next(S), Next::End);
    let mut session = NodeSession { stage: Stage::Downloaded, ..self::session() };
    session.on_response(S, refused("403"));
    assert_eq!((session.next(S), session.stage(), session.warnings().len()), (Next::End, Stage::Downloaded, 1));
}

#[test]
fn hello_is_retried_until_its_time_limit() {
    let mut session = session();
    session.on_response(S, transient("connection refused"));
    assert_eq!(session.next(S), Next::Sleep(2 * S));
    assert_eq!(session.next(2 * S), Next::Do(Action::Hello));
    assert_eq!(session.next(10 * S), Next::End);
    assert_eq!(session.reason(), "no answer within 10 s; last: connection refused");
    assert_eq!(session.failed_at(), Some(Stage::Asked));
    let mut wrong = self::session();
    wrong.on_response(S, refused("the token is wrong"));
    assert_eq!((wrong.next(S), wrong.reason()), (Next::End, "the token is wrong (HTTP status 403)"));
}

#[test]
fn a_node_that_dies_in_the_middle() {
    let mut session = recording();
    session.on_response(5 * S, status("running"));
    for second in 6..25 {
        assert_eq!(session.next(second * S), Next::Do(Action::Look));
        session.on_response(second * S, transient("502"));
        assert_ne!(session.stage(), Stage::Failed, "{second}");
    }
    assert_eq!(session.next(25 * S), Next::End);
    assert_eq!(session.reason(), "it stopped answering: nothing within 20 s; last: 502");
    assert_eq!(session.failed_at(), Some(Stage::Recording));
    // A node that returns reports the failure itself.
    let mut back = recording();
    back.on_response(5 * S, transient("502"));
    let failed = CaptureStatus { state: "failed".into(), error: "interrupted".into(), ..CaptureStatus::default() };
    back.on_response(7 * S, Response::Status(failed));
    assert_eq!((back.stage(), back.reason()), (Stage::Failed, "interrupted"));
}

#[test]
fn a_capture_that_never_ends() {
    let mut session = recording();
    for second in 4..133 {
        session.on_response(second * S, status("running"));
        assert_ne!(session.next(second * S), Next::End, "{second}");
    }
    session.on_response(133 * S, status("running"));
    assert_eq!((session.next(133 * S), session.stage()), (Next::End, Stage::Failed));
    assert!(session.reason().contains("still records"), "{}", session.reason());
}

#[test]
fn creating_a_capture_is_not_retried() {
    let mut session = session();
    session.on_response(S, Response::Hello);
    session.begin(3 * S);
    session.on_response(S, transient("no answer"));
    assert_eq!((session.next(S), session.failed_at()), (Next::End, Some(Stage::Ready)));
}

#[test]
fn downloads_are_tried_again() {
    let mut session = recording();
    session.on_response(14 * S, status("done"));
    for _ in 0..2 {
        session.on_response(14 * S, transient("cut off"));
        assert_eq!(session.next(15 * S), Next::Do(Action::Fetch));
    }
    session.on_response(16 * S, transient("cut off"));
    assert_eq!((session.next(16 * S), session.reason()), (Next::End, "cut off"));
}

#[test]
fn a_stopped_capture_is_downloaded() {
    let mut session = recording();
    session.stop();
    assert_eq!(session.next(5 * S), Next::Do(Action::Cancel));
    session.on_response(5 * S, Response::Cancelled);
    assert_eq!(session.next(5 * S), Next::Do(Action::Look));
    session.on_response(5 * S, status("running"));
    session.on_response(6 * S, status("cancelled"));
    assert_eq!(session.next(6 * S), Next::Do(Action::Fetch));
    // Stopped before the start: no records to keep.
    let mut early = self::session();
    early.on_response(S, Response::Hello);
    early.stop();
    assert_eq!((early.next(S), early.stage()), (Next::End, Stage::Failed));
    // Stopped while waiting for the start time: the capture is cancelled.
    let mut waiting = self::session();
    waiting.on_response(S, Response::Hello);
    waiting.begin(9 * S);
    waiting.on_response(S, Response::Created("id".into()));
    waiting.stop();
    assert_eq!(waiting.next(2 * S), Next::Do(Action::Cancel));
    waiting.on_response(2 * S, transient("502"));
    assert_eq!(waiting.next(2 * S), Next::Sleep(9 * S), "it ends by itself");
    assert_eq!(waiting.warnings().len(), 1);
}
