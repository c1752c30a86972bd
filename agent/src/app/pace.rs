//! How often the agent looks: less often while the machine is quiet and nothing reads the metrics.

use std::collections::VecDeque;
use std::io::{PipeWriter, Write};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::lock;

/// Events at the hooks of all programs, on all CPUs, in [`QUIET_FOR`] below which the machine is quiet. Programs of 20 us each would take 2 % of
/// a CPU, the default budget.
pub(super) const QUIET_EVENTS: u64 = 10_000;
/// A few processes that start do not end a rest, and a flood does at once.
pub(super) const QUIET_FOR: Duration = Duration::from_secs(10);
/// While the agent rests: between two readings of the history, and two looks at costs.
pub(super) const AT_REST: Duration = Duration::from_secs(240);
/// Nothing was read of the agent for so long: longer than the usual intervals of scrapes and exporters.
const UNREAD_FOR: Duration = Duration::from_secs(90);
/// What is to be done at the end of a second may be done so much earlier or later.
pub(super) const EARLY: Duration = Duration::from_millis(200);

/// Until the end of the second by the wall clock, or of the next one where that is near: what several threads do once a second is done in
/// one wake of the CPU.
pub(super) fn until_second_ends() -> Duration {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let left = Duration::from_secs(1) - Duration::from_nanos(since.subsec_nanos().into());
    if left < EARLY { left + Duration::from_secs(1) } else { left }
}

/// Until the second ends where that is near, else nothing.
pub(super) fn until_near_end() -> Duration {
    until_second_ends().saturating_sub(Duration::from_secs(1))
}

/// Decides whether the agent rests.
#[derive(Debug)]
pub(super) struct Quiet {
    /// Events so far, and when: of the looks of the last [`QUIET_FOR`], and of the last one before.
    looks: VecDeque<(f64, Instant)>,
}

impl Quiet {
    pub fn new(events: f64, now: Instant) -> Quiet {
        Quiet { looks: [(events, now)].into() }
    }

    /// Whether the agent may rest, from the events at all hooks so far and the time of the last read.
    pub fn may_rest(&mut self, events: f64, read: Instant, now: Instant) -> bool {
        if self.looks.back().is_some_and(|(before, _)| events < *before) {
            // Those of hooks that are gone are no longer in the sum.
            self.looks.clear();
        }
        self.looks.push_back((events, now));
        while self.looks.get(1).is_some_and(|(_, at)| now.saturating_duration_since(*at) >= QUIET_FOR) {
            self.looks.pop_front();
        }
        let (before, since) = self.looks[0];
        let time = now.saturating_duration_since(since);
        let few = QUIET_EVENTS as f64 * time.div_duration_f64(QUIET_FOR);
        time >= QUIET_FOR && events - before < few && now.saturating_duration_since(read) >= UNREAD_FOR
    }
}

/// What threads that look at intervals wait by: other probes or rules, or another pace.
#[derive(Debug, Default)]
pub(super) struct Pace {
    state: Mutex<State>,
    changed: Condvar,
    /// Written to when a rest ends.
    ended: Mutex<Option<PipeWriter>>,
}

#[derive(Clone, Copy, Debug)]
struct State {
    changes: u64,
    rests: bool,
    /// The last read of metrics or the history.
    read: Instant,
    /// Seconds of a rest are not in the history yet.
    is_behind: bool,
}

impl Default for State {
    /// The start counts as a read.
    fn default() -> State {
        State { changes: 0, rests: false, read: Instant::now(), is_behind: false }
    }
}

/// The changes that a thread has seen.
#[derive(Debug, Default)]
pub(super) struct Seen(u64);

impl Pace {
    /// Lets threads look at what there is now.
    pub fn notify(&self) {
        lock(&self.state).changes += 1;
        self.changed.notify_all();
    }

    /// Writes to the pipe when a rest ends.
    pub fn write_ends(&self, to: PipeWriter) {
        *lock(&self.ended) = Some(to);
    }

    /// Lets the agent rest, or not. It does not where something was read after `read`. Returns whether it rests.
    pub fn set_rests(&self, rests: bool, read: Instant) -> bool {
        let mut state = lock(&self.state);
        let rests = rests && state.read <= read;
        if state.rests != rests {
            (state.rests, state.changes) = (rests, state.changes + 1);
            self.changed.notify_all();
            if let (false, Some(ended)) = (rests, &mut *lock(&self.ended)) {
                // Without a reader the agent ends.
                let _ = ended.write(&[1]);
            }
        }
        rests
    }

    pub fn rests(&self) -> bool {
        lock(&self.state).rests
    }

    /// Something is read, which ends a rest.
    pub fn read(&self) {
        let now = Instant::now();
        lock(&self.state).read = now;
        self.set_rests(false, now);
    }

    /// The history is read: waits for the seconds of a rest that it lacks, but not for long.
    pub fn read_history(&self, longest: Duration) {
        self.read();
        let state = lock(&self.state);
        let _ = self.changed.wait_timeout_while(state, longest, |state| state.is_behind);
    }

    /// Whether the agent rests; then the history is behind from now on.
    pub fn begin_rest(&self) -> bool {
        let mut state = lock(&self.state);
        state.is_behind = state.rests;
        state.rests
    }

    /// The history has all seconds.
    pub fn caught_up(&self) {
        if std::mem::take(&mut lock(&self.state).is_behind) {
            self.changed.notify_all();
        }
    }

    pub fn last_read(&self) -> Instant {
        lock(&self.state).read
    }

    /// Waits for a change that was not seen yet, until that time if there is one.
    pub fn wait(&self, seen: &mut Seen, until: Option<Instant>) {
        let mut state = lock(&self.state);
        while state.changes == seen.0 {
            state = match until.map(|until| until.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => return,
                Some(left) => self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
        seen.0 = state.changes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn the_agent_rests_when_quiet_and_unread() {
        let start = Instant::now();
        let at = |second: u64| start + Duration::from_secs(second);
        // Second by second: events, and the second of the last read.
        let rests = |seconds: &[(f64, u64)]| {
            let mut quiet = Quiet::new(0.0, start);
            let mut sum = 0.0;
            let mut look = |(second, (events, read)): (usize, &(f64, u64))| {
                sum += events;
                quiet.may_rest(sum, at(*read), at(second as u64 + 1))
            };
            seconds
                .iter()
                .enumerate()
                .filter_map(|second| look(second).then_some(second.0 as u64 + 1))
                .collect::<Vec<_>>()
        };
        let calm = vec![(999.0, 0); 92];
        assert_eq!(rests(&calm), [90, 91, 92], "90 seconds after the last read");
        let with = |second: usize, what: (f64, u64)| {
            let mut seconds = vec![(0.0, 0); 105];
            seconds[second - 1..].iter_mut().for_each(|second| second.1 = what.1);
            seconds[second - 1].0 = what.0;
            rests(&seconds)
        };
        assert_eq!(with(92, (9_999.0, 0)), (90..=105).collect::<Vec<_>>(), "a burst");
        assert_eq!(with(92, (10_000.0, 0)), [90, 91, 102, 103, 104, 105], "ten seconds after the last events");
        assert_eq!(with(92, (-5.0, 0)), [90, 91, 102, 103, 104, 105], "hooks that are gone");
        assert_eq!(with(92, (0.0, 10)), [90, 91, 100, 101, 102, 103, 104, 105], "read meanwhile");
    }

    #[test]
    fn the_end_of_a_rest_is_written_once() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let pace = Pace::default();
        pace.write_ends(writer);
        pace.set_rests(true, pace.last_read());
        pace.read();
        pace.read();
        drop(pace);
        let mut written = Vec::new();
        reader.read_to_end(&mut written).unwrap();
        assert_eq!(written, [1]);
    }

    #[test]
    fn a_change_wakes_each_thread_once() {
        let pace = Pace::default();
        let (mut one, mut other) = (Seen::default(), Seen::default());
        pace.notify();
        pace.wait(&mut one, None);
        pace.wait(&mut other, None);
        let begin = Instant::now();
        pace.wait(&mut one, Some(begin + Duration::from_millis(5)));
        assert!(begin.elapsed() >= Duration::from_millis(5), "seen already");
        let read = pace.last_read();
        pace.set_rests(false, read);
        pace.wait(&mut one, Some(Instant::now()));
        assert_eq!(one.0, 1, "no change");
        pace.set_rests(true, read);
        pace.wait(&mut one, None);
        assert_eq!((one.0, pace.rests()), (2, true));
        std::thread::scope(|scope| {
            scope.spawn(|| pace.wait(&mut one, None));
            pace.read();
        });
        assert_eq!((one.0, pace.rests()), (3, false));
        pace.set_rests(true, read);
        assert!(!pace.rests(), "read since");
    }

    #[test]
    fn a_read_of_the_history_waits_for_its_last_seconds() {
        let pace = Pace::default();
        let short = Duration::from_millis(5);
        let waits = |longest| {
            let begin = Instant::now();
            pace.read_history(longest);
            begin.elapsed() >= short
        };
        assert!(!pace.begin_rest() && !waits(short), "nothing is behind");
        pace.set_rests(true, pace.last_read());
        assert!(pace.begin_rest());
        assert!(waits(short) && !pace.rests());
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(waits(Duration::from_secs(60))));
            std::thread::sleep(2 * short);
            pace.caught_up();
        });
        assert!(!waits(short));
    }
}
