//! The last events, for whoever asks, and for readers that follow. Nobody who adds to it ever waits for them: who is too
//! slow finds out how many events he missed.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// Events kept.
pub const MOST_KEPT: usize = 1024;

/// The last events of all probes.
#[derive(Debug)]
pub struct Tail {
    kept: Mutex<Kept>,
    /// Tells those who follow that there is more, or no more at all.
    news: watch::Sender<News>,
}

/// What those who follow wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// Events so far.
    pub events: u64,
    /// There will be no more.
    pub closed: bool,
}

#[derive(Debug)]
struct Kept {
    /// Names of the probes that have events, or had some: a name keeps its place for good.
    probes: Vec<String>,
    /// Oldest first.
    lines: VecDeque<Line>,
    /// Events so far, by probe.
    counts: Vec<u64>,
    /// The same of all.
    count: u64,
}

/// A kept event.
#[derive(Clone, Debug)]
struct Line {
    line: Arc<str>,
    probe: usize,
    /// Its number among those of its probe, and of all, from 0.
    number: (u64, u64),
}

/// Some of the last events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Excerpt {
    /// Lines of JSON, oldest first.
    pub lines: Vec<Arc<str>>,
    /// Events before those that are not kept any more.
    pub gone: u64,
}

/// What somebody who follows has seen.
#[derive(Clone, Debug)]
pub struct Cursor {
    probe: Option<usize>,
    /// Number of the next event among those of its probe, or of all.
    next: u64,
}

impl Tail {
    /// Empty, for these probes.
    pub fn new(probes: Vec<String>) -> Tail {
        let kept = Kept { lines: VecDeque::new(), counts: vec![0; probes.len()], probes, count: 0 };
        Tail { kept: Mutex::new(kept), news: watch::Sender::default() }
    }

    /// Names of the probes that have events, or had some.
    pub fn probes(&self) -> Vec<String> {
        self.kept().probes.clone()
    }

    /// These probes have events from now on. What was kept of others can still be asked for.
    pub fn extend(&self, probes: Vec<String>) {
        let mut kept = self.kept();
        for probe in probes {
            if !kept.probes.contains(&probe) {
                kept.probes.push(probe);
                kept.counts.push(0);
            }
        }
    }

    /// Adds an event of a probe; one of a probe that was never named is passed over.
    pub fn add(&self, probe: &str, line: &str) {
        let mut kept = self.kept();
        let Some(probe) = kept.probes.iter().position(|name| name == probe) else { return };
        let number = (kept.counts[probe], kept.count);
        kept.counts[probe] += 1;
        kept.count += 1;
        if kept.lines.len() == MOST_KEPT {
            kept.lines.pop_front();
        }
        kept.lines.push_back(Line { line: line.into(), probe, number });
        let events = kept.count;
        drop(kept);
        self.news.send_modify(|news| news.events = events);
    }

    /// The last `limit` events, of one probe or of all.
    pub fn last(&self, probe: Option<usize>, limit: usize) -> Excerpt {
        let kept = self.kept();
        let fitting: Vec<&Line> = kept.of(probe).collect();
        let from = fitting.len().saturating_sub(limit);
        let gone = kept.total(probe) - fitting.len() as u64;
        Excerpt { lines: fitting[from..].iter().map(|line| line.line.clone()).collect(), gone }
    }

    /// Where the last `back` events begin.
    pub fn follow(&self, probe: Option<usize>, back: usize) -> Cursor {
        let kept = self.kept();
        let there = kept.of(probe).count().min(back);
        Cursor { probe, next: kept.total(probe) - there as u64 }
    }

    /// At most `most` events from a cursor on, which moves behind them; `gone` are those that were missed meanwhile.
    pub fn next(&self, cursor: &mut Cursor, most: usize) -> Excerpt {
        let kept = self.kept();
        let number = |line: &Line| if cursor.probe.is_some() { line.number.0 } else { line.number.1 };
        let fitting: Vec<&Line> = kept.of(cursor.probe).filter(|line| number(line) >= cursor.next).collect();
        let first = fitting.first().map_or(kept.total(cursor.probe), |line| number(line));
        let lines: Vec<_> = fitting.into_iter().take(most).map(|line| line.line.clone()).collect();
        let gone = first - cursor.next;
        cursor.next = first + lines.len() as u64;
        Excerpt { lines, gone }
    }

    /// Changes when there is more.
    pub fn news(&self) -> watch::Receiver<News> {
        self.news.subscribe()
    }

    /// Tells all who follow that there is no more.
    pub fn close(&self) {
        self.news.send_modify(|news| news.closed = true);
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn of(&self, probe: Option<usize>) -> impl Iterator<Item = &Line> {
        self.lines.iter().filter(move |line| probe.is_none_or(|probe| line.probe == probe))
    }

    fn total(&self, probe: Option<usize>) -> u64 {
        probe.map_or(self.count, |probe| self.counts[probe])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail() -> Tail {
        Tail::new(vec!["a".into(), "b".into()])
    }

    fn lines(excerpt: &Excerpt) -> Vec<&str> {
        excerpt.lines.iter().map(|line| &**line).collect()
    }

    #[test]
    fn the_last_of_one_probe_or_of_all() {
        let tail = tail();
        for (probe, line) in [("a", "1"), ("b", "2"), ("a", "3"), ("none", "4")] {
            tail.add(probe, line);
        }
        assert_eq!(lines(&tail.last(None, 9)), ["1", "2", "3"]);
        assert_eq!(lines(&tail.last(None, 2)), ["2", "3"]);
        assert_eq!(lines(&tail.last(Some(0), 9)), ["1", "3"]);
        assert_eq!(lines(&tail.last(Some(0), 0)), [""; 0]);
    }

    #[test]
    fn the_oldest_go_and_are_counted() {
        let tail = tail();
        (0..MOST_KEPT + 3).for_each(|i| tail.add(if i == 0 { "b" } else { "a" }, &i.to_string()));
        let all = tail.last(None, usize::MAX);
        assert_eq!((all.lines.len(), &*all.lines[0], all.gone), (MOST_KEPT, "3", 3));
        assert_eq!((tail.last(Some(0), 5).gone, tail.last(Some(1), 5)), (2, Excerpt { lines: vec![], gone: 1 }));
    }

    #[test]
    fn who_follows_sees_each_event_once_or_hears_that_it_is_gone() {
        let tail = tail();
        tail.add("a", "0");
        let (mut all, mut of_b) = (tail.follow(None, 1), tail.follow(Some(1), 9));
        let mut new = tail.follow(None, 0);
        tail.add("b", "1");
        assert_eq!(lines(&tail.next(&mut all, 1)), ["0"]);
        assert_eq!(lines(&tail.next(&mut all, 9)), ["1"]);
        assert_eq!((lines(&tail.next(&mut new, 9)), lines(&tail.next(&mut of_b, 9))), (vec!["1"], vec!["1"]));
        assert_eq!(tail.next(&mut all, 9), Excerpt::default());
        (0..MOST_KEPT + 5).for_each(|i| tail.add(if i < 3 { "b" } else { "a" }, "x"));
        let found = tail.next(&mut all, 10);
        assert_eq!((found.lines.len(), found.gone), (10, 5));
        let found = tail.next(&mut all, usize::MAX);
        assert_eq!((found.lines.len(), found.gone), (MOST_KEPT - 10, 0));
        assert_eq!(tail.next(&mut of_b, 9), Excerpt { lines: vec![], gone: 3 });
        assert_eq!(tail.next(&mut of_b, 9), Excerpt::default());
    }

    #[test]
    fn probes_come_and_their_places_stay() {
        let tail = tail();
        tail.add("b", "1");
        let mut of_b = tail.follow(Some(1), 0);
        tail.extend(vec!["c".into(), "b".into()]);
        assert_eq!(tail.probes(), ["a", "b", "c"]);
        tail.add("c", "2");
        tail.add("b", "3");
        assert_eq!((lines(&tail.next(&mut of_b, 9)), lines(&tail.last(Some(2), 9))), (vec!["3"], vec!["2"]));
    }

    #[tokio::test]
    async fn news_come_to_those_who_wait() {
        let tail = tail();
        let mut news = tail.news();
        tail.add("a", "0");
        assert!(news.changed().await.is_ok());
        assert_eq!(*news.borrow_and_update(), News { events: 1, closed: false });
        tail.close();
        assert!(news.changed().await.is_ok() && news.borrow().closed);
    }
}
