//! The overhead budget of a probe: when to thin its events out, when to take it off its hooks, when to try again.
//!
//! A pure machine: it is told what the probe's programs cost in one window after another, and answers with what has to be
//! done. Nothing here knows a clock, a program or a map.

use std::time::Duration;

/// Windows above the budget in a row before an order, which goes by the cheapest of them. One is no reason yet: a burst of
/// a tenth of a second harms nobody, and a program whose CPU was taken away meanwhile seems to have run all the time.
const STRIKES: u32 = 2;
/// Most times that the events are halved: 1 of 1024 is the least that still says anything.
const MAX_HALVINGS: u32 = 10;
/// Most orders to thin out in a row: the node has waited long enough.
const MAX_STEPS: u32 = 4;
/// An order that leaves more than this many of 100 parts of the cost does not help.
const LEFT_PERCENT: u128 = 75;
/// What an event costs at least that is passed over: finding that out, and a random number.
const PASSED_OVER: Duration = Duration::from_nanos(10);
/// Windows well below the budget, after which twice as many events are measured again.
const CALM_WINDOWS: u32 = 30;
/// First pause of a probe that was taken off its hooks, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(3600));
/// A probe that kept its budget for so long is trusted as at first.
const FORGIVEN_AFTER: Duration = Duration::from_secs(600);

/// Why a probe is off its hooks, in few words that do not change: an alert goes by them.
pub const AWAY: &str = "over its budget";

/// What the programs of a probe cost in one window, all CPUs together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// How long the window was.
    pub window: Duration,
    /// Time spent in the programs.
    pub run: Duration,
    /// Runs.
    pub runs: u64,
    /// What the runs cost at least besides, to whoever came upon the hooks: no event less of that when they are thinned out.
    pub reaching: Duration,
}

impl Cost {
    /// Millionths of one CPU's time.
    pub fn ppm(&self) -> u64 {
        ppm(self.run.saturating_add(self.reaching).as_nanos(), self.window)
    }
}

fn ppm(run_ns: u128, window: Duration) -> u64 {
    let ppm = (run_ns * 1_000_000).checked_div(window.as_nanos()).unwrap_or(0);
    u64::try_from(ppm).unwrap_or(u64::MAX)
}

/// What has to be done with a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Measure one of 2^n events.
    Thin(u32),
    /// Take it off its hooks.
    Detach,
    /// Put it back on them, measuring one of 2^n events.
    Attach(u32),
}

/// Where a probe stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Millionths of one CPU's time.
    limit_ppm: u64,
    /// Whether its programs can pass events over.
    can_thin: bool,
    halvings: u32,
    /// Windows above the budget in a row, since the last order: how many, and the cheapest of them.
    suspicion: Option<(u32, Cost)>,
    /// What the last order went by.
    judged: u64,
    /// Orders to thin out since the last window within the budget.
    steps: u32,
    calm: u32,
    /// When it may come back, while it is off its hooks.
    away_until: Option<Duration>,
    pause: Duration,
    /// When the last window above the budget was.
    trouble: Option<Duration>,
    throttled: u64,
}

impl Budget {
    /// A probe that has used nothing yet; `None` when it may use what it wants.
    pub fn new(limit_ppm: u64, can_thin: bool) -> Option<Budget> {
        (limit_ppm > 0).then_some(Budget {
            limit_ppm,
            can_thin,
            halvings: 0,
            suspicion: None,
            judged: 0,
            steps: 0,
            calm: 0,
            away_until: None,
            pause: PAUSE.0,
            trouble: None,
            throttled: 0,
        })
    }

    /// Another limit. What was decided under the old one stands until windows say otherwise; what was only suspected does not.
    pub fn set_limit(&mut self, limit_ppm: u64) {
        self.limit_ppm = limit_ppm;
        self.suspicion = None;
    }

    /// Takes in one window, which ended at `now` (of any clock that does not go back). While the probe is off its hooks
    /// there is nothing to take in.
    pub fn look(&mut self, now: Duration, cost: &Cost) -> Option<Order> {
        if self.away_until.is_some() {
            return None;
        }
        let used = cost.ppm();
        if used <= self.limit_ppm {
            return self.within(now, used);
        }
        self.calm = 0;
        self.trouble = Some(now);
        let (strikes, before) = self.suspicion.take().unwrap_or((0, *cost));
        let cheapest = if before.ppm() <= used { before } else { *cost };
        if strikes + 1 < STRIKES {
            self.suspicion = Some((strikes + 1, cheapest));
            return None;
        }
        let (cost, used) = (cheapest, cheapest.ppm());
        let before = std::mem::replace(&mut self.judged, used);
        self.throttled += 1;
        let helped = self.steps == 0 || u128::from(used) * 100 <= u128::from(before) * LEFT_PERCENT;
        let passed_over = PASSED_OVER.as_nanos() * u128::from(cost.runs);
        let least = ppm(passed_over + cost.reaching.as_nanos(), cost.window);
        let hope = helped && least <= self.limit_ppm && self.steps < MAX_STEPS && self.halvings < MAX_HALVINGS;
        if !(self.can_thin && hope) {
            self.away_until = Some(now + self.pause);
            return Some(Order::Detach);
        }
        self.steps += 1;
        self.halvings = (self.halvings + halvings(used, self.limit_ppm)).min(MAX_HALVINGS);
        Some(Order::Thin(self.halvings))
    }

    fn within(&mut self, now: Duration, used: u64) -> Option<Order> {
        (self.suspicion, self.steps) = (None, 0);
        if self.trouble.is_some_and(|at| now.saturating_sub(at) >= FORGIVEN_AFTER) {
            self.pause = PAUSE.0;
        }
        // Twice the events must still leave half of the budget, or it would go back and forth.
        self.calm = if used <= self.limit_ppm / 4 { self.calm + 1 } else { 0 };
        if self.halvings == 0 || self.calm < CALM_WINDOWS {
            return None;
        }
        self.calm = 0;
        self.halvings -= 1;
        Some(Order::Thin(self.halvings))
    }

    /// Whether the probe is off its hooks and its pause is over. The next pause is twice as long.
    pub fn comes_back(&mut self, now: Duration) -> Option<Order> {
        self.away_until.take_if(|until| now >= *until)?;
        self.pause = (self.pause * 2).min(PAUSE.1);
        (self.suspicion, self.steps, self.calm) = (None, 0, 0);
        Some(Order::Attach(self.halvings))
    }

    /// It could not be put back on its hooks: the pause begins anew.
    pub fn stays_away(&mut self, now: Duration) {
        self.away_until = Some(now + self.pause);
    }

    /// When it comes back, while it is off its hooks.
    pub fn away_until(&self) -> Option<Duration> {
        self.away_until
    }

    /// Whether the next window should come soon: it may mean an order.
    pub fn suspects(&self) -> bool {
        (self.suspicion.is_some() || self.steps > 0) && self.away_until.is_none()
    }

    /// Of how many events one is measured.
    pub fn one_of(&self) -> u64 {
        1 << self.halvings
    }

    /// Orders to thin out or detach so far.
    pub fn throttled(&self) -> u64 {
        self.throttled
    }

    /// Whether it runs with less than all its events because of its budget.
    pub fn over(&self) -> bool {
        self.halvings > 0 || self.away_until.is_some()
    }

    /// What people are told of it; empty while nothing is held back.
    pub fn text(&self) -> String {
        if !self.over() {
            return String::new();
        }
        let (limit, used) = (percent(self.limit_ppm), percent(self.judged));
        let over = format!("over its budget of {limit} of a CPU ({used} measured)");
        match self.away_until {
            Some(_) => format!("{over}: taken off its hooks for {} s", self.pause.as_secs()),
            None => format!("{over}: one of {} events is measured", self.one_of()),
        }
    }
}

/// How often the events must be halved to come down from `used` to `limit`: at least once.
fn halvings(used: u64, limit: u64) -> u32 {
    let factor = used.div_ceil(limit.max(1));
    factor.next_power_of_two().ilog2().max(1)
}

/// Two digits that matter are enough.
fn percent(ppm: u64) -> String {
    let text = match ppm {
        100_000.. => format!("{:.0}", ppm as f64 / 1e4),
        10_000.. => format!("{:.1}", ppm as f64 / 1e4),
        _ => format!("{:.4}", ppm as f64 / 1e4),
    };
    let short = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{short} %")
}

#[cfg(test)]
mod tests;
