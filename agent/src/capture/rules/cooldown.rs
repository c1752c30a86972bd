//! Limits the captures of a rule: a pause between two, and a number per hour.

use std::collections::VecDeque;
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);

/// Why a rule may not start a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// Its last capture is not long enough ago.
    Cooldown,
    /// It had as many as it may within an hour.
    HourlyCap,
}

/// The state of one rule. Times are since some fixed moment.
#[derive(Clone, Debug)]
pub struct Cooldown {
    cooldown: Duration,
    max_per_hour: usize,
    /// Captures of the last hour.
    started: VecDeque<Duration>,
}

impl Cooldown {
    /// Without captures so far.
    pub fn new(cooldown: Duration, max_per_hour: u32) -> Cooldown {
        Cooldown { cooldown, max_per_hour: max_per_hour as usize, started: VecDeque::new() }
    }

    /// Other bounds; the captures there were count for them as well.
    pub fn bound(&mut self, cooldown: Duration, max_per_hour: u32) {
        (self.cooldown, self.max_per_hour) = (cooldown, max_per_hour as usize);
    }

    /// Whether a capture may start at `now`.
    pub fn ask(&self, now: Duration) -> Result<(), Closed> {
        let ago = |started: &Duration| now.saturating_sub(*started);
        if self.started.back().is_some_and(|last| ago(last) < self.cooldown) {
            return Err(Closed::Cooldown);
        }
        let recent = self.started.iter().filter(|started| ago(started) < HOUR).count();
        if recent >= self.max_per_hour { Err(Closed::HourlyCap) } else { Ok(()) }
    }

    /// Notes that one has started.
    pub fn started(&mut self, now: Duration) {
        self.started.push_back(now);
        // The cap needs the last `max_per_hour` times, the cooldown the last one.
        while self.started.len() > self.max_per_hour.max(1) {
            self.started.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cooldown_then_cap() {
        let at = Duration::from_secs;
        let mut cooldown = Cooldown::new(at(600), 3);
        for start in [0, 600, 1200] {
            assert_eq!(cooldown.ask(at(start)), Ok(()), "{start}");
            cooldown.started(at(start));
            assert_eq!(cooldown.ask(at(start)), Err(Closed::Cooldown));
            assert_eq!(cooldown.ask(at(start + 599)), Err(Closed::Cooldown));
        }
        assert_eq!(cooldown.ask(at(1800)), Err(Closed::HourlyCap));
        assert_eq!(cooldown.ask(at(3599)), Err(Closed::HourlyCap));
        assert_eq!(cooldown.ask(at(3600)), Ok(()), "the first is an hour ago");
        cooldown.started(at(3600));
        assert_eq!(cooldown.ask(at(4199)), Err(Closed::Cooldown));
        assert_eq!(cooldown.ask(at(4200)), Ok(()));
        assert!(cooldown.started.len() <= 3);
        // A cooldown longer than an hour.
        let mut cooldown = Cooldown::new(at(7200), 1);
        cooldown.started(at(0));
        assert_eq!(cooldown.ask(at(7199)), Err(Closed::Cooldown));
        assert_eq!(cooldown.ask(at(7200)), Ok(()));
    }
}
