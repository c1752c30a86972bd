use super::*;
use Next::{Finished, Read, Send, Wait};
use proptest::prelude::*;

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// What happens at a time, and what is expected then.
enum Step {
    /// Time and what is next.
    Is(u64, Next),
    /// Time and requests.
    Read(u64, usize),
    Done(u64),
    Later(u64, Option<u64>),
    Stop(u64, u64),
}

fn schedule(is_cumulative: bool) -> Schedule {
    // Pauses of 5, 10, 20, 40 s without chance.
    let retry = Retry { initial: s(5), max: s(40), multiplier: 2.0, jitter: 0.0 };
    Schedule::new(s(10), retry, is_cumulative, s(10))
}

fn follow(is_cumulative: bool, steps: &[Step]) {
    let mut schedule = schedule(is_cumulative);
    for (nth, step) in steps.iter().enumerate() {
        match *step {
            Step::Is(now, expected) => assert_eq!(schedule.next(s(now)), expected, "step {nth}, second {now}"),
            Step::Read(now, requests) => schedule.read(s(now), requests),
            Step::Done(now) => schedule.sent(s(now), Delivery::Done, 0.5),
            Step::Later(now, asked) => schedule.sent(s(now), Delivery::Retry(asked.map(s)), 0.5),
            Step::Stop(now, patience) => schedule.stop(s(now), s(patience)),
        }
    }
}

#[test]
fn reports_keep_to_their_times() {
    for is_cumulative in [true, false] {
        follow(
            is_cumulative,
            &[
                Step::Is(0, Wait(s(10))),
                Step::Is(10, Read),
                Step::Read(10, 2),
                Step::Is(10, Send),
                Step::Done(11),
                Step::Is(11, Send),
                Step::Done(13),
                Step::Is(13, Wait(s(20))),
                // Late: the reports that were missed are not made up for.
                Step::Is(47, Read),
                Step::Read(47, 0),
                Step::Is(47, Wait(s(50))),
                Step::Is(50, Read),
                Step::Read(50, 1),
                Step::Done(50),
                Step::Is(50, Wait(s(60))),
            ],
        );
    }
}

#[test]
fn a_cumulative_report_that_waited_is_replaced() {
    follow(
        true,
        &[
            Step::Read(10, 3),
            Step::Done(10),
            Step::Later(11, None),
            // Nothing is read during the pause, though a report is due at 20.
            Step::Is(11, Wait(s(16))),
            Step::Is(16, Send),
            Step::Later(16, None),
            Step::Is(20, Wait(s(26))),
            Step::Is(26, Read),
            Step::Read(26, 3),
            Step::Is(26, Send),
            Step::Later(26, None),
            Step::Is(26, Wait(s(46))),
            Step::Is(46, Read),
            Step::Read(46, 3),
            Step::Done(46),
            Step::Done(46),
            Step::Done(46),
            Step::Is(46, Wait(s(50))),
            // The next failure begins with a short pause again.
            Step::Read(50, 1),
            Step::Later(50, None),
            Step::Is(50, Wait(s(55))),
        ],
    );
}

#[test]
fn differences_are_taken_during_a_pause() {
    follow(
        false,
        &[
            Step::Read(10, 1),
            Step::Later(10, Some(25)),
            Step::Is(10, Wait(s(20))),
            Step::Is(20, Read),
            Step::Read(20, 2),
            Step::Is(20, Wait(s(30))),
            Step::Is(30, Read),
            Step::Read(30, 2),
            Step::Is(30, Wait(s(35))),
            Step::Is(35, Send),
            Step::Done(35),
            Step::Done(35),
            Step::Is(35, Wait(s(40))),
        ],
    );
}

#[test]
fn a_long_report_is_sent_to_its_end() {
    for is_cumulative in [true, false] {
        follow(
            is_cumulative,
            &[
                Step::Read(10, 3),
                Step::Done(19),
                Step::Is(21, Send),
                Step::Done(29),
                Step::Is(31, Send),
                Step::Done(39),
                Step::Is(39, Read),
            ],
        );
    }
}

#[test]
fn receivers_may_ask_for_longer_pauses_but_not_for_days() {
    for (asked, until) in [(None, 15), (Some(1), 15), (Some(60), 70), (Some(86_400 * 365), 610)] {
        follow(true, &[Step::Read(10, 1), Step::Later(10, asked), Step::Is(10, Wait(s(until)))]);
    }
}

#[test]
fn the_end_has_one_last_report_within_its_time() {
    for is_cumulative in [true, false] {
        // Idle.
        follow(
            is_cumulative,
            &[
                Step::Stop(3, 5),
                Step::Is(3, Read),
                Step::Read(3, 1),
                Step::Is(3, Send),
                Step::Done(4),
                Step::Is(4, Finished),
            ],
        );
        // In a pause: tried once more at once, and then as long as there is time.
        follow(
            is_cumulative,
            &[
                Step::Read(10, 1),
                Step::Later(10, Some(100)),
                Step::Stop(12, 7),
                Step::Is(12, Read),
                Step::Read(12, 1),
                Step::Is(12, Send),
                Step::Later(13, None),
                Step::Is(13, Wait(s(19))),
                Step::Is(19, Finished),
            ],
        );
        // Asked twice, the first counts.
        follow(is_cumulative, &[Step::Stop(3, 5), Step::Stop(4, 100), Step::Is(8, Finished)]);
    }
}

proptest! {
    /// Whatever receivers do, each wait ends later than now, and no step is without progress.
    #[test]
    fn it_never_spins(
        is_cumulative: bool,
        events in prop::collection::vec((0u64..4, 0u64..30, prop::option::of(0u64..100)), 1..200),
    ) {
        let mut schedule = schedule(is_cumulative);
        let mut now = s(0);
        for (what, seconds, asked) in events {
            match schedule.next(now) {
                Wait(until) => {
                    prop_assert!(until > now);
                    now = until;
                }
                Read => {
                    let before = schedule.next_read;
                    schedule.read(now, what as usize);
                    prop_assert!(schedule.next_read > before && schedule.next_read > now);
                }
                Send => {
                    prop_assert!(schedule.unsent > 0);
                    now += s(seconds);
                    let verdict = if what == 0 { Delivery::Retry(asked.map(s)) } else { Delivery::Done };
                    schedule.sent(now, verdict, 0.3);
                }
                Finished => prop_assert!(false, "it finished without a stop"),
            }
        }
    }
}
