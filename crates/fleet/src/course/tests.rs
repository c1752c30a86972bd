use super::*;

const S: Duration = Duration::from_secs(1);

fn course() -> Course {
    Course::new(Limits::default(), 10 * S, false)
}

fn stands(state: &str) -> Heard {
    Heard::Stands(Standing { state: state.into(), ..Standing::default() })
}

fn trouble(text: &str, lasts: bool) -> Heard {
    Heard::Trouble(Trouble { text: text.into(), lasts })
}

/// One that records since second 3.
fn recording() -> Course {
    let mut course = course();
    assert_eq!(course.next(Duration::ZERO), Next::Do(Action::Greet));
    course.heard(S, Heard::Greeted);
    assert_eq!(course.next(S), Next::Hold);
    course.begin(3 * S);
    assert_eq!(course.next(S), Next::Do(Action::Create));
    course.heard(2 * S, Heard::Created("id".into()));
    assert_eq!(course.next(2 * S), Next::Sleep(3 * S));
    assert_eq!(course.next(3 * S), Next::Sleep(4 * S));
    assert_eq!(course.stage(), Stage::Recording);
    course
}

#[test]
fn from_beginning_to_end() {
    let mut course = recording();
    assert_eq!(course.next(4 * S), Next::Do(Action::Look));
    course.heard(4 * S, stands("running"));
    assert_eq!(course.next(4 * S), Next::Sleep(5 * S));
    course.heard(Duration::from_millis(12_500), stands("running"));
    assert_eq!(course.next(12 * S), Next::Sleep(Duration::from_millis(13_100)), "at its end and not much later");
    course.heard(14 * S, stands("done"));
    assert_eq!(course.next(14 * S), Next::Do(Action::Fetch));
    course.heard(15 * S, Heard::Fetched);
    assert_eq!(course.next(15 * S), Next::Do(Action::Remove));
    course.heard(15 * S, Heard::Removed);
    assert_eq!((course.next(15 * S), course.stage()), (Next::End, Stage::Downloaded));
    assert_eq!(exit_code([&course]), 0);
    assert_eq!(exit_code([&course, &Course::hopeless("no agent")]), 1);
}

#[test]
fn what_is_kept_is_not_removed() {
    let mut course = Course { keep: true, stage: Stage::Downloaded, ..course() };
    assert_eq!(course.next(S), Next::End);
    let mut course = Course { stage: Stage::Downloaded, ..self::course() };
    course.heard(S, trouble("403", true));
    assert_eq!((course.next(S), course.stage(), course.warnings().len()), (Next::End, Stage::Downloaded, 1));
}

#[test]
fn who_does_not_answer_at_first_is_asked_again_for_a_while() {
    let mut course = course();
    course.heard(S, trouble("connection refused", false));
    assert_eq!(course.next(S), Next::Sleep(2 * S));
    assert_eq!(course.next(2 * S), Next::Do(Action::Greet));
    assert_eq!(course.next(10 * S), Next::End);
    assert_eq!(course.reason(), "no answer within 10 s; last: connection refused");
    assert_eq!(course.failed_at(), Some(Stage::Asked));
    let mut refused = self::course();
    refused.heard(S, trouble("the token is wrong", true));
    assert_eq!((refused.next(S), refused.reason()), (Next::End, "the token is wrong"));
}

#[test]
fn a_node_that_dies_in_the_middle() {
    let mut course = recording();
    course.heard(5 * S, stands("running"));
    for second in 6..25 {
        assert_eq!(course.next(second * S), Next::Do(Action::Look));
        course.heard(second * S, trouble("502", false));
        assert_ne!(course.stage(), Stage::Failed, "{second}");
    }
    assert_eq!(course.next(25 * S), Next::End);
    assert_eq!(course.reason(), "it stopped answering: nothing within 20 s; last: 502");
    assert_eq!(course.failed_at(), Some(Stage::Recording));
    // One that comes back says itself what became of it.
    let mut back = recording();
    back.heard(5 * S, trouble("502", false));
    let failed = Standing { state: "failed".into(), error: "interrupted".into(), ..Standing::default() };
    back.heard(7 * S, Heard::Stands(failed));
    assert_eq!((back.stage(), back.reason()), (Stage::Failed, "interrupted"));
}

#[test]
fn a_capture_that_never_ends() {
    let mut course = recording();
    for second in 4..133 {
        course.heard(second * S, stands("running"));
        assert_ne!(course.next(second * S), Next::End, "{second}");
    }
    course.heard(133 * S, stands("running"));
    assert_eq!((course.next(133 * S), course.stage()), (Next::End, Stage::Failed));
    assert!(course.reason().contains("still records"), "{}", course.reason());
}

#[test]
fn a_capture_is_asked_for_once() {
    let mut course = course();
    course.heard(S, Heard::Greeted);
    course.begin(3 * S);
    course.heard(S, trouble("no answer", false));
    assert_eq!((course.next(S), course.failed_at()), (Next::End, Some(Stage::Ready)));
}

#[test]
fn downloads_are_tried_again() {
    let mut course = recording();
    course.heard(14 * S, stands("done"));
    for _ in 0..2 {
        course.heard(14 * S, trouble("cut off", false));
        assert_eq!(course.next(15 * S), Next::Do(Action::Fetch));
    }
    course.heard(16 * S, trouble("cut off", false));
    assert_eq!((course.next(16 * S), course.reason()), (Next::End, "cut off"));
}

#[test]
fn who_is_told_to_stop_keeps_what_there_is() {
    let mut course = recording();
    course.stop();
    assert_eq!(course.next(5 * S), Next::Do(Action::Cancel));
    course.heard(5 * S, Heard::Cancelled);
    assert_eq!(course.next(5 * S), Next::Do(Action::Look));
    course.heard(5 * S, stands("running"));
    course.heard(6 * S, stands("cancelled"));
    assert_eq!(course.next(6 * S), Next::Do(Action::Fetch));
    // Before it began there is nothing to keep.
    let mut early = self::course();
    early.heard(S, Heard::Greeted);
    early.stop();
    assert_eq!((early.next(S), early.stage()), (Next::End, Stage::Failed));
    // While it waits for its beginning it is taken back.
    let mut waiting = self::course();
    waiting.heard(S, Heard::Greeted);
    waiting.begin(9 * S);
    waiting.heard(S, Heard::Created("id".into()));
    waiting.stop();
    assert_eq!(waiting.next(2 * S), Next::Do(Action::Cancel));
    waiting.heard(2 * S, trouble("502", false));
    assert_eq!(waiting.next(2 * S), Next::Sleep(9 * S), "it ends by itself");
    assert_eq!(waiting.warnings().len(), 1);
}
