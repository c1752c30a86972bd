//! The last events of each probe, and readers that follow them. The thread that adds events never waits for a reader: a slow
//! reader learns how many events it missed.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// The last events of each probe.
#[derive(Debug)]
pub struct Tail {
    kept: Mutex<Kept>,
    /// Wakes readers that follow when there is more, or no more at all.
    news: watch::Sender<News>,
}

/// What readers that follow wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// Events so far.
    pub events: u64,
    /// There will be no more.
    pub closed: bool,
}

#[derive(Debug)]
struct Kept {
    /// Probes that have events, or had some: each keeps its place for good.
    probes: Vec<Ring>,
    /// Most events of a probe.
    limit: usize,
    /// Events of all probes so far.
    count: u64,
}

/// The last events of a probe.
#[derive(Debug)]
struct Ring {
    probe: String,
    /// Oldest first.
    lines: VecDeque<Line>,
    /// Events so far.
    count: u64,
}

/// A kept event.
#[derive(Clone, Debug)]
struct Line {
    line: Arc<str>,
    /// Its number among those of its probe, and of all, from 0.
    number: (u64, u64),
}

/// Some of the last events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Excerpt {
    /// Lines of JSON, oldest first.
    pub lines: Vec<Arc<str>>,
    /// Events before the last of the lines that are not kept any more.
    pub gone: u64,
}

/// How far a reader that follows has come.
#[derive(Clone, Debug)]
pub struct Cursor {
    probe: Option<usize>,
    /// Number of the next event among those of its probe, or of all.
    next: u64,
}

impl Tail {
    /// Empty, for these probes; keeps at most `limit` events of each.
    pub fn new(probes: Vec<String>, limit: usize) -> Tail {
        let tail = Tail {
            kept: Mutex::new(Kept { probes: Vec::new(), limit: limit.max(1), count: 0 }),
            news: watch::Sender::default(),
        };
        tail.extend(probes);
        tail
    }

    /// Names of the probes that have events, or had some.
    pub fn probes(&self) -> Vec<String> {
        self.kept().probes.iter().map(|ring| ring.probe.clone()).collect()
    }

    /// Most events that are kept of a probe.
    pub fn limit(&self) -> usize {
        self.kept().limit
    }

    /// Keeps at most so many events of each probe from now on.
    pub fn set_limit(&self, limit: usize) {
        let mut kept = self.kept();
        kept.limit = limit.max(1);
        let limit = kept.limit;
        for ring in &mut kept.probes {
            let surplus = ring.lines.len().saturating_sub(limit);
            ring.lines.drain(..surplus);
        }
    }

    /// These probes have events from now on. What was kept of others can still be read.
    pub fn extend(&self, probes: Vec<String>) {
        let mut kept = self.kept();
        for probe in probes {
            if kept.probes.iter().all(|ring| ring.probe != probe) {
                kept.probes.push(Ring { probe, lines: VecDeque::new(), count: 0 });
            }
        }
    }

    /// Adds an event of a probe; one of a probe that was never named is passed over. Whether it is the first that pushed out an
    /// older one of its probe.
    pub fn add(&self, probe: &str, line: &str) -> bool {
        let mut kept = self.kept();
        let (limit, overall) = (kept.limit, kept.count);
        let Some(ring) = kept.probes.iter_mut().find(|ring| ring.probe == probe) else { return false };
        if ring.lines.len() >= limit {
            ring.lines.pop_front();
        }
        let first = ring.count == limit as u64;
        ring.lines.push_back(Line { line: line.into(), number: (ring.count, overall) });
        ring.count += 1;
        kept.count += 1;
        let events = kept.count;
        drop(kept);
        self.news.send_modify(|news| news.events = events);
        first
    }

    /// The last `limit` events, of one probe or of all.
    pub fn last(&self, probe: Option<usize>, limit: usize) -> Excerpt {
        let kept = self.kept();
        let lines = kept.of(probe, 0);
        let from = lines.len().saturating_sub(limit);
        let gone = kept.total(probe) - lines.len() as u64;
        Excerpt { lines: lines[from..].iter().map(|(_, line)| line.line.clone()).collect(), gone }
    }

    /// Where the last `back` events begin.
    pub fn follow(&self, probe: Option<usize>, back: usize) -> Cursor {
        let kept = self.kept();
        let lines = kept.of(probe, 0);
        let first = lines.len().checked_sub(back).map_or(lines.first(), |from| lines.get(from));
        Cursor { probe, next: first.map_or(kept.total(probe), |(number, _)| *number) }
    }

    /// At most `most` events from a cursor on, which moves behind them; `gone` are those that were missed meanwhile.
    pub fn next(&self, cursor: &mut Cursor, most: usize) -> Excerpt {
        let kept = self.kept();
        let mut lines = kept.of(cursor.probe, cursor.next);
        // When all are taken, what is missing up to now is gone.
        let end = match lines.get(most) {
            Some((number, _)) => *number,
            None => kept.total(cursor.probe),
        };
        lines.truncate(most);
        let gone = end - cursor.next - lines.len() as u64;
        cursor.next = end;
        Excerpt { lines: lines.into_iter().map(|(_, line)| line.line.clone()).collect(), gone }
    }

    /// Changes when there is more.
    pub fn news(&self) -> watch::Receiver<News> {
        self.news.subscribe()
    }

    /// Ends all readers that follow.
    pub fn close(&self) {
        self.news.send_modify(|news| news.closed = true);
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    /// Events of a probe or of all from a number on, by number.
    fn of(&self, probe: Option<usize>, from: u64) -> Vec<(u64, &Line)> {
        let rings = self.probes.iter().enumerate().filter(|(place, _)| probe.is_none_or(|probe| probe == *place));
        let number = |line: &Line| if probe.is_some() { line.number.0 } else { line.number.1 };
        let numbered = rings.flat_map(|(_, ring)| &ring.lines).map(|line| (number(line), line));
        let mut lines: Vec<_> = numbered.filter(|(number, _)| *number >= from).collect();
        lines.sort_by_key(|(number, _)| *number);
        lines
    }

    fn total(&self, probe: Option<usize>) -> u64 {
        probe.map_or(self.count, |probe| self.probes[probe].count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 8;

    fn tail() -> Tail {
        Tail::new(vec!["a".into(), "b".into()], LIMIT)
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
    fn a_noisy_probe_pushes_out_only_its_own() {
        let tail = tail();
        assert!(!tail.add("b", "quiet"));
        let firsts: Vec<usize> = (0..3 * LIMIT).filter(|i| tail.add("a", &i.to_string())).collect();
        assert_eq!(firsts, [LIMIT], "the first loss is said once");
        let all = tail.last(None, usize::MAX);
        assert_eq!((lines(&all)[0], all.lines.len(), all.gone), ("quiet", LIMIT + 1, 2 * LIMIT as u64));
        let (of_a, of_b) = (tail.last(Some(0), 1), tail.last(Some(1), 9));
        assert_eq!((lines(&of_a), of_a.gone), (vec!["23"], 2 * LIMIT as u64));
        assert_eq!((lines(&of_b), of_b.gone), (vec!["quiet"], 0));
    }

    #[test]
    fn a_follower_sees_each_event_once_or_learns_that_it_is_gone() {
        let tail = tail();
        tail.add("a", "0");
        let (mut all, mut of_b) = (tail.follow(None, 1), tail.follow(Some(1), 9));
        let mut new = tail.follow(None, 0);
        tail.add("b", "1");
        assert_eq!(lines(&tail.next(&mut all, 1)), ["0"]);
        assert_eq!(lines(&tail.next(&mut all, 9)), ["1"]);
        assert_eq!((lines(&tail.next(&mut new, 9)), lines(&tail.next(&mut of_b, 9))), (vec!["1"], vec!["1"]));
        assert_eq!(tail.next(&mut all, 9), Excerpt::default());
        (0..3).for_each(|_| _ = tail.add("b", "b"));
        (0..LIMIT + 5).for_each(|_| _ = tail.add("a", "a"));
        let found = tail.next(&mut all, 5);
        assert_eq!((lines(&found), found.gone), (vec!["b", "b", "b", "a", "a"], 5), "gone are those between");
        let found = tail.next(&mut all, usize::MAX);
        assert_eq!((found.lines.len(), found.gone), (LIMIT - 2, 0));
        assert_eq!((tail.next(&mut of_b, 9).lines.len(), tail.next(&mut of_b, 9)), (3, Excerpt::default()));
        let mut back = tail.follow(Some(0), 2);
        assert_eq!(tail.next(&mut back, 9).lines.len(), 2);
    }

    #[test]
    fn a_smaller_limit_holds_at_once() {
        let tail = tail();
        (0..LIMIT).for_each(|i| _ = tail.add("a", &i.to_string()));
        tail.set_limit(2);
        let kept = tail.last(None, usize::MAX);
        assert_eq!((lines(&kept), kept.gone, tail.limit()), (vec!["6", "7"], LIMIT as u64 - 2, 2));
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
