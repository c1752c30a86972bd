//! Directories of segments, with real files.

use super::*;
use crate::query::answer::Total;
use crate::segment::{Encoder, Frame};
use crate::tests::{ALL, Pushed, START, Turn, query, seconds};
use crate::{History, Limits, Second};
use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory that goes with its owner.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Directory {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("kstrobe-segments-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        _ = fs::remove_dir_all(&path);
        Directory(path)
    }

    fn segments(&self) -> Vec<Segment> {
        Archive::open(&self.0).unwrap().segments().unwrap()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

const KEEP: Retention = Retention { seconds: 86_400, bytes: 512 << 20 };

fn pushed(count: usize) -> Vec<Pushed> {
    let turn =
        |at: usize| Turn { events: vec![(at % 4, 0, at as u64), (2, 1, 7)], reset: None, reload: false, late: 0 };
    seconds(&(0..count).map(turn).collect::<Vec<_>>()).0
}

/// Frames in segments of so many seconds.
fn frames(pushed: &[Pushed], per_segment: usize) -> Vec<Frame> {
    let mut encoder = Encoder::new(usize::MAX);
    let frames = pushed.iter().enumerate().map(|(at, (second, probes))| {
        if at % per_segment == 0 {
            encoder.end_segment();
        }
        encoder.encode(*second, probes, &[])
    });
    frames.collect()
}

fn total(history: &History, archive: &Archive, metric: &str) -> f64 {
    let from = START.to_string();
    let query = query(&[("metric", metric), ("from", &from), ("to", "0"), ("by", "comm"), ("top", "99")]);
    let groups = history.query_with(archive, &query, 0).unwrap().groups;
    groups.iter().map(|group| if let Total::Counter { count } = group.total { count } else { f64::NAN }).sum()
}

#[test]
fn what_was_appended_is_read_back_after_another_start() {
    let directory = Directory::new();
    let pushed = pushed(25);
    let frames = frames(&pushed, 10);
    let (mut appender, cut) = Appender::open(&directory.0, KEEP).unwrap();
    assert_eq!(cut, 0);
    assert!(matches!(Appender::open(&directory.0, KEEP), Err(DiskError::InUse(_))));
    for frame in &frames {
        assert!(appender.append(frame).unwrap());
    }
    drop(appender);
    assert_eq!(directory.segments().len(), 3);
    // As a write leaves it that was cut short.
    let last = directory.segments().pop().unwrap();
    let bytes = fs::read(&last.path).unwrap();
    fs::write(&last.path, &bytes[..bytes.len() - 3]).unwrap();
    let (mut appender, cut) = Appender::open(&directory.0, KEEP).unwrap();
    assert_eq!(cut, frames[24].bytes.len() as u64 - 3);
    assert!(!appender.append(&frames[24]).unwrap(), "it does not begin a segment");
    let archive = Archive::open(&directory.0).unwrap();
    let mut whole = History::new(Limits { seconds: 1000, bytes: usize::MAX });
    pushed[..24].iter().for_each(|(second, probes)| whole.push(*second, probes));
    let none = History::new(Limits { seconds: 1000, bytes: usize::MAX });
    let expected = total(&whole, &archive, "wait_total");
    assert_eq!(total(&none, &archive, "wait_total"), expected);
    assert_eq!(crate::Past::newest(&archive), Some(START + 24));
}

#[test]
fn the_ring_and_the_disk_overlap_without_counting_twice() {
    let directory = Directory::new();
    let pushed = pushed(40);
    let (mut appender, _) = Appender::open(&directory.0, KEEP).unwrap();
    frames(&pushed, 7).iter().for_each(|frame| assert!(appender.append(frame).unwrap()));
    let archive = Archive::open(&directory.0).unwrap();
    let of = |seconds| {
        let mut history = History::new(Limits { seconds, bytes: usize::MAX });
        pushed.iter().for_each(|(second, probes)| history.push(*second, probes));
        history
    };
    let whole = of(1000);
    for keep in [1, 5, 13, 39, 1000] {
        let ring = of(keep);
        for (metric, by) in [
            ("wait_seconds", ""),
            ("wait_seconds", "comm,cpu"),
            ("wait_total", "comm"),
            ("depth", "comm"),
            ("depth", ""),
        ] {
            for (from, to, step) in [(0, 40, "1"), (3, 33, "4"), (0, 12, "5"), (20, 40, "40")] {
                let texts = [(START + from).to_string(), (START + to).to_string()];
                let asked =
                    query(&[("metric", metric), ("by", by), ("from", &texts[0]), ("to", &texts[1]), ("step", step)]);
                assert_eq!(
                    ring.query_with(&archive, &asked, 0).unwrap(),
                    whole.query(&asked, 0).unwrap(),
                    "{metric} by {by}"
                );
            }
        }
        let early = query(&[("metric", "depth"), ("from", &START.to_string())]);
        assert_eq!(ring.begins_before(&early, 0), keep < 40);
    }
}

#[test]
fn old_segments_go_by_age_and_by_size() {
    let directory = Directory::new();
    let second = |start| Second { start, seconds: 1 };
    let mut encoder = Encoder::new(usize::MAX);
    let mut frame = |start| {
        encoder.end_segment();
        encoder.encode(second(start), &[], &[])
    };
    let (mut appender, _) = Appender::open(&directory.0, Retention { seconds: 3600, bytes: 1 << 20 }).unwrap();
    for start in [0, 1000, 5000] {
        appender.append(&frame(START + start)).unwrap();
    }
    assert_eq!(directory.segments().iter().map(|segment| segment.start - START).collect::<Vec<_>>(), [1000, 5000]);
    let size = appender.bytes() / 2;
    let retention = Retention { seconds: 3600, bytes: (64 << 10) + size };
    appender.set_retention(retention);
    appender.append(&frame(START + 5001)).unwrap();
    assert_eq!(directory.segments().iter().map(|segment| segment.start - START).collect::<Vec<_>>(), [5000, 5001]);
    assert_eq!(appender.bytes(), directory.segments().iter().map(|segment| segment.bytes).sum::<u64>());
}

#[test]
fn a_file_of_many_segments_is_read_as_a_directory_is() {
    let directory = Directory::new();
    fs::create_dir_all(&directory.0).unwrap();
    let pushed = pushed(30);
    let path = directory.0.join("export.kstrobe");
    let frames = frames(&pushed, 10);
    let bytes: Vec<u8> = frames.iter().flat_map(|frame| frame.bytes.clone()).collect();
    fs::write(&path, &bytes).unwrap();
    let archive = Archive::open(&path).unwrap();
    let starts: Vec<u64> = archive.segments().unwrap().iter().map(|segment| segment.start - START).collect();
    assert_eq!(starts, [0, 10, 20]);
    assert_eq!(archive.last().unwrap().newest(), Some(START + 30));
    fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    assert_eq!(archive.last().unwrap().newest(), Some(START + 29));
    fs::write(&path, b"something else").unwrap();
    assert!(matches!(Archive::open(&path), Err(DiskError::NoHistory(_))));
}

#[test]
fn a_replay_gives_what_was_pushed_from_any_second_on() {
    let directory = Directory::new();
    let pushed = pushed(30);
    let (mut appender, _) = Appender::open(&directory.0, KEEP).unwrap();
    frames(&pushed, 8).iter().for_each(|frame| assert!(appender.append(frame).unwrap()));
    let archive = Archive::open(&directory.0).unwrap();
    let whole = {
        let mut history = History::new(ALL);
        pushed.iter().for_each(|(second, probes)| history.push(*second, probes));
        history
    };
    for (from, to) in [(0, 30), (3, 29), (8, 16), (11, 12)] {
        let mut replayed = History::new(ALL);
        let damaged = archive.replay(START + from, START + to, |replay| {
            replayed.push(replay.second, &replay.probes);
            Ok::<(), DiskError>(())
        });
        assert_eq!(damaged.unwrap(), []);
        let texts = [(START + from).to_string(), (START + to).to_string()];
        for metric in ["wait_seconds", "wait_total", "depth"] {
            let options = [("metric", metric), ("by", "comm"), ("from", &*texts[0]), ("to", &*texts[1]), ("step", "1")];
            let asked = query(&options);
            assert_eq!(replayed.query(&asked, 0).unwrap().groups, whole.query(&asked, 0).unwrap().groups, "{metric}");
        }
    }
    let segment = directory.segments().remove(1);
    let mut bytes = fs::read(&segment.path).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    fs::write(&segment.path, bytes).unwrap();
    let mut seconds = 0;
    let damaged = archive.replay(0, u64::MAX, |_| {
        seconds += 1;
        Ok::<(), DiskError>(())
    });
    let [damaged] = &damaged.unwrap()[..] else { panic!("one damaged segment") };
    assert!(damaged.path == segment.path && damaged.at <= at as u64 && (22..30).contains(&seconds));
}
