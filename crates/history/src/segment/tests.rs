//! A segment gives back what was put into it; cut or damaged anywhere, it gives back a beginning of that and nothing else.

use super::*;
use crate::query::answer::Answer;
use crate::tests::{ALL, Pushed, START, query, seconds, turn};
use crate::{History, Mark, MarkKind};
use proptest::prelude::*;

fn mark(second: u64) -> Mark {
    let link = second.is_multiple_of(2).then(|| "/api/v1/events?id=1".to_owned());
    Mark { time: second as f64 + 0.5, kind: MarkKind::Event, text: format!("slow at {second}"), link }
}

/// One segment of all seconds, with the end of each frame.
fn encoded(pushed: &[Pushed]) -> (Vec<u8>, Vec<usize>) {
    let mut encoder = Encoder::new(usize::MAX);
    let (mut bytes, mut ends) = (Vec::new(), Vec::new());
    for (second, probes) in pushed {
        let frame = encoder.encode(*second, probes, &[mark(second.start)]);
        assert_eq!(frame.is_first, bytes.is_empty());
        bytes.extend(frame.bytes);
        ends.push(bytes.len());
    }
    (bytes, ends)
}

fn pushed_into(pushed: &[Pushed]) -> History {
    let mut history = History::new(ALL);
    for (second, probes) in pushed {
        history.push(*second, probes);
        history.mark(mark(second.start));
    }
    history
}

/// What both are asked.
fn answers(history: &History) -> Vec<Result<Answer, crate::QueryError>> {
    let from = START.to_string();
    let ask = |metric| {
        query(&[("metric", metric), ("by", "comm,cpu"), ("from", &from), ("to", "0"), ("step", "1"), ("top", "99")])
    };
    ["wait_seconds", "wait_total", "depth"].map(|metric| history.query(&ask(metric), START + 1)).into()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_segment_has_what_was_put_into_it(turns in proptest::collection::vec(turn(), 1..60)) {
        let (pushed, ..) = seconds(&turns);
        let (bytes, _) = encoded(&pushed);
        let decoded = decode(&bytes);
        prop_assert_eq!(decoded.valid, bytes.len());
        prop_assert_eq!(whole(&bytes), bytes.len());
        prop_assert_eq!(answers(&decoded.history), answers(&pushed_into(&pushed)));
    }

    #[test]
    fn a_flipped_bit_ends_the_segment_before_it(
        turns in proptest::collection::vec(turn(), 2..30), at in any::<proptest::sample::Index>(), bit in 0..8u8,
    ) {
        let (pushed, ..) = seconds(&turns);
        let (mut bytes, ends) = encoded(&pushed);
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let decoded = decode(&bytes);
        let frames = ends.iter().filter(|end| **end <= at).count();
        prop_assert_eq!(decoded.history.end(), if at < HEADER { 0 } else { frames as u64 });
        prop_assert_eq!(whole(&bytes), decoded.valid);
        prop_assert_eq!(answers(&decoded.history), answers(&pushed_into(&pushed[..frames.min(decoded.history.end() as usize)])));
    }

    #[test]
    fn bytes_that_are_no_segment_are_read_without_harm(
        bytes in proptest::collection::vec(any::<u8>(), 0..400), body in proptest::collection::vec(any::<u8>(), 1..400),
    ) {
        prop_assert_eq!(decode(&bytes).history.end(), 0);
        // A right checksum over anything.
        let mut packed = Vec::with_capacity(1024);
        let mut stream = flate2::Compress::new(flate2::Compression::fast(), false);
        stream.compress_vec(&body, &mut packed, flate2::FlushCompress::Sync).unwrap();
        let crafted = [&header(START)[..], &FrameHeader::write(&packed, body.len()), &packed].concat();
        answers(&decode(&crafted).history);
    }
}

#[test]
fn a_segment_cut_at_any_byte_has_all_whole_seconds() {
    let turn =
        |value| crate::tests::Turn { events: vec![(0, 0, value), (2, 1, 7)], reset: None, reload: false, late: 0 };
    let (pushed, ..) = seconds(&[turn(5), turn(900), turn(5), turn(0), turn(31)]);
    let (bytes, ends) = encoded(&pushed);
    for length in 0..=bytes.len() {
        let decoded = decode(&bytes[..length]);
        let frames = ends.iter().filter(|end| **end <= length).count();
        assert_eq!(decoded.history.end(), frames as u64, "{length} of {} bytes", bytes.len());
        assert_eq!(answers(&decoded.history), answers(&pushed_into(&pushed[..frames])));
        assert!(length - decoded.valid < HEADER.max(bytes.len() - ends[ends.len() - 2]) || frames < ends.len());
        // Zeros in place of the rest, as a file system may leave them.
        let zeros = [&bytes[..length], &vec![0; 5000]].concat();
        assert_eq!(decode(&zeros).history.end(), frames as u64);
    }
}

#[test]
fn a_segment_begins_with_the_gauges_of_the_one_before() {
    let turn = crate::tests::Turn { events: vec![(0, 0, 5)], reset: None, reload: false, late: 0 };
    let quiet = crate::tests::Turn { events: Vec::new(), ..turn.clone() };
    let (pushed, ..) = seconds(&[turn, quiet.clone(), quiet]);
    let mut encoder = Encoder::new(usize::MAX);
    let frames: Vec<Frame> = pushed
        .iter()
        .map(|(second, probes)| {
            encoder.end_segment();
            encoder.encode(*second, probes, &[])
        })
        .collect();
    for frame in frames {
        let history = decode(&frame.bytes).history;
        assert_eq!(
            history.overview(false).metrics.iter().find(|metric| metric.metric == "kstrobe_depth").unwrap().value,
            Some(-0.1)
        );
    }
}

#[test]
fn a_segment_ends_by_size_and_by_time() {
    let second = |start| crate::Second { start, seconds: 1 };
    let length = Encoder::new(1).encode(second(START), &[], &[mark(START)]).bytes.len();
    let mut encoder = Encoder::new(length + 1);
    let mut is_first = |start| encoder.encode(second(start), &[], &[mark(start)]).is_first;
    assert!(is_first(START) && !is_first(START + 1), "the size is not reached");
    assert!(is_first(START + 2), "it is");
    assert!(is_first(START + 2 + SPAN), "too late for the segment");
    assert!(is_first(START), "the clock was set back");
}
