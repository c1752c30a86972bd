//! The overhead budget of a probe: when to sample its events, when to suspend it, when to let it run again.
//!
//! A pure state machine: its input is the cost of the probe's programs, window by window; its output is an action. It knows
//! no clock, program or map.

use std::time::Duration;

use crate::config::plan::BudgetLimit;
use crate::kernel::hooks::Slicing;
use crate::kernel::hooks::slices::TIMES;

/// Windows above the budget in a row before an action, which goes by the cheapest of them. One window is not enough: a burst
/// of a tenth of a second is harmless, and a program whose CPU was taken away meanwhile seems to have run all the time.
const STRIKES: u32 = 2;
/// The lowest sampling rate is 1 of 1024 events: below, too few are left for a histogram.
const MAX_HALVINGS: u32 = 10;
/// Most that passing an event over may cost, in nanoseconds: what is above is the cost of events that are taken.
const MAX_PASSED_OVER_NS: f64 = 60.0;
/// The same, as long as it is not measured.
const PASSED_OVER_NS: f64 = 10.0;
/// Events that are taken may cost this part of what reaching the programs and passing the others over costs, however small the budget:
/// sampling fewer would save nothing.
const MIN_PART: u64 = 16;
/// Windows well below the budget, after which more events are measured again.
const CALM_WINDOWS: u32 = 5;
/// First pause of a probe that was suspended and cannot be sampled or has breakpoints, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(3600));
/// Pause of a probe that sampling alone does not keep within its budget.
const SHORT_PAUSE: Duration = Duration::from_secs(1);
/// After so long within the budget, the next pause has its first length again.
const FORGIVEN_AFTER: Duration = Duration::from_secs(600);

/// The reason label of a suspended probe. It is constant: an alert of the mixin matches it.
pub const OVER_BUDGET: &str = "over its budget";

/// What the programs of a probe cost in one window, all CPUs together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// How long the window was.
    pub window: Duration,
    /// Time spent in the programs.
    pub run: Duration,
    pub runs: u64,
    /// Cost of reaching the programs, of which each has its share. Sampling does not lower it.
    pub entering: Duration,
    /// Least cost of breakpoints, which only an end of the attachment saves.
    pub breakpoints: Duration,
    /// What is seen where measurements begin stands for so many times of it ([`Slicing`]); 0 and 1 are the same.
    pub times: u64,
    /// Where they end, it is seen in slices as well.
    pub ends_rest: bool,
}

impl Cost {
    /// Millionths of one CPU's time.
    pub fn ppm(&self) -> u64 {
        ppm(self.run.saturating_add(self.entering).saturating_add(self.breakpoints).as_nanos(), self.window)
    }

    /// Mean time of a run in nanoseconds.
    fn run_ns(&self) -> f64 {
        self.run.as_nanos() as f64 / self.runs.max(1) as f64
    }
}

fn ppm(run_ns: u128, window: Duration) -> u64 {
    let ppm = (run_ns * 1_000_000).checked_div(window.as_nanos()).unwrap_or(0);
    u64::try_from(ppm).unwrap_or(u64::MAX)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
/// What is done about a cost.
pub enum BudgetAction {
    /// Sample one of 2^n events.
    Sample(u32),
    /// Let the programs not run.
    Suspend,
    /// Let them run again, to sample one of 2^n events.
    Resume(u32),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Budget {
    /// Millionths of one CPU's time.
    limit_ppm: u64,
    is_shared: bool,
    /// Whether its programs can pass events over.
    can_sample: bool,
    halvings: u32,
    /// What sampling does not lower costs more than its limit: its measurements are to begin in slices of time.
    wants_slices: bool,
    /// [`Cost::times`] of the last window.
    times: u64,
    /// Windows above the budget in a row since the last action: their number, and the cheapest of them.
    suspicion: Option<(u32, Cost)>,
    /// Fewer events are sampled since the last window: the next says whether few enough.
    has_acted: bool,
    /// Cost that led to the last action and the limit then, in millionths of a CPU.
    judged: (u64, u64),
    /// Cost of a run in nanoseconds when all events were taken.
    full_ns: f64,
    calm: u32,
    /// End of the pause, while the programs do not run.
    suspended_until: Option<Duration>,
    pause: Duration,
    /// The suspension is a [`SHORT_PAUSE`].
    is_short: bool,
    /// The last window was above the limit, and sampling fewer events would have saved nothing.
    is_at_least: bool,
    /// End of the last window above the budget.
    last_over: Option<Duration>,
    throttled: u64,
}

impl Budget {
    /// `None` without a limit. A shared one is to be set for each window.
    pub fn new(limit: BudgetLimit, can_sample: bool) -> Option<Budget> {
        let (limit_ppm, is_shared) = match limit {
            BudgetLimit::None => return None,
            BudgetLimit::Own(ppm) => (ppm, false),
            BudgetLimit::Shared => (0, true),
        };
        Some(Budget {
            limit_ppm,
            is_shared,
            can_sample,
            halvings: 0,
            wants_slices: false,
            times: 1,
            suspicion: None,
            has_acted: false,
            judged: (0, 0),
            full_ns: 0.0,
            calm: 0,
            suspended_until: None,
            pause: PAUSE.0,
            is_short: false,
            is_at_least: false,
            last_over: None,
            throttled: 0,
        })
    }

    /// Takes the limit of another budget. Sampling and pauses stay; windows above the old limit are forgotten.
    pub fn set_limit(&mut self, other: &Budget) {
        (self.limit_ppm, self.is_shared) = (other.limit_ppm, other.is_shared);
        self.suspicion = None;
    }

    /// Whether its limit is a share of the agent's budget.
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Its part of the agent's budget, when it costs so much; `None` where it has a budget of its own.
    pub fn share(&self, cost_ppm: u64) -> Option<Share> {
        self.is_shared.then_some(Share { cost: cost_ppm, is_fixed: self.is_at_least || !self.can_sample })
    }

    /// Evaluates one window, which ended at `now` of a monotonic clock. Does nothing while the probe is suspended.
    pub fn look(&mut self, now: Duration, cost: &Cost, shares: &Shares) -> Option<BudgetAction> {
        if self.suspended_until.is_some() {
            return None;
        }
        let used = cost.ppm();
        if self.is_shared {
            self.limit_ppm = shares.limit_ppm(used, self);
        }
        self.times = cost.times.max(1);
        self.has_acted = false;
        let left = self.left(cost);
        let is_kept = used <= self.limit_ppm || self.can_sample && left.is_kept(self.limit_ppm);
        self.is_at_least = is_kept && used > self.limit_ppm;
        if is_kept && !(self.can_slice(&left) && left.fixed > self.limit_ppm) {
            return self.within(now, used, &left);
        }
        self.calm = 0;
        self.last_over = Some(now);
        let (strikes, before) = self.suspicion.take().unwrap_or((0, *cost));
        let cheapest = if before.ppm() <= used { before } else { *cost };
        if strikes + 1 < STRIKES {
            self.suspicion = Some((strikes + 1, cheapest));
            return None;
        }
        let left = self.left(&cheapest);
        self.judged = (cheapest.ppm(), self.limit_ppm);
        self.throttled += 1;
        let breakpoints = left.breakpoints > self.limit_ppm;
        // What is passed over can take longer than thought: at hooks that are reached seldom, little of it is in the caches.
        let is_least = self.halvings == MAX_HALVINGS;
        let needs_slices = self.can_slice(&left) && (left.fixed > self.limit_ppm || is_least);
        if breakpoints || !self.can_sample || is_least && !needs_slices {
            self.is_short = self.can_sample && !breakpoints;
            self.suspended_until = Some(now + self.pause());
            return Some(BudgetAction::Suspend);
        }
        if self.halvings == 0 && self.times == 1 {
            self.full_ns = cheapest.run_ns();
        }
        // Slices lower what is taken as well, but only the window after the next would show what is too much of it then.
        let left = if needs_slices { left.sliced() } else { left };
        if !(needs_slices && left.is_kept(self.limit_ppm)) {
            self.halvings = (self.halvings + halvings(left.taken, left.room(self.limit_ppm))).min(MAX_HALVINGS);
        }
        (self.wants_slices, self.has_acted) = (self.wants_slices || needs_slices, !needs_slices);
        Some(BudgetAction::Sample(self.halvings))
    }

    /// Whether slices of time would lower what sampling does not.
    fn can_slice(&self, left: &Left) -> bool {
        self.can_sample && !self.wants_slices && left.breakpoints <= self.limit_ppm
    }

    /// How it stands to slices of time. A probe with a budget of its own is not made to rest for others.
    pub fn slicing(&self) -> Slicing {
        match self.wants_slices {
            true => Slicing::Wanted,
            false if self.can_sample && self.is_shared => Slicing::Tolerated,
            false => Slicing::Never,
        }
    }

    /// Divides a cost into what sampling lowers and what it does not. A run costs `over + (full - over) / factor`, which is 2^halvings.
    fn left(&self, cost: &Cost) -> Left {
        let run_ns = cost.run_ns();
        // Of a measurement's two ends, the first alone is seen less often in slices, unless none runs between them.
        let slices = if self.times > 1 && !cost.ends_rest { (self.times + 1) as f64 / 2.0 } else { 1.0 };
        let factor = f64::from(1u32 << self.halvings) * slices;
        let over_ns = match factor > 1.0 {
            true => (run_ns * factor - self.full_ns) / (factor - 1.0),
            false => PASSED_OVER_NS,
        };
        let over_ns = over_ns.clamp(0.0, MAX_PASSED_OVER_NS.min(run_ns));
        let over = ((over_ns * cost.runs as f64) as u128).min(cost.run.as_nanos());
        let breakpoints = cost.breakpoints.as_nanos();
        let of = |ns| ppm(ns, cost.window);
        let fixed = cost.entering.as_nanos().saturating_add(over).saturating_add(breakpoints);
        Left { taken: of(cost.run.as_nanos() - over), fixed: of(fixed), breakpoints: of(breakpoints) }
    }

    fn within(&mut self, now: Duration, used: u64, left: &Left) -> Option<BudgetAction> {
        self.suspicion = None;
        if self.last_over.is_some_and(|at| now.saturating_sub(at) >= FORGIVEN_AFTER) {
            self.pause = PAUSE.0;
        }
        // Twice the events must still leave half of the budget, or it would go back and forth. Out of slices, reaching the hooks
        // costs at most so many times as much.
        let outside = if self.halvings == MAX_HALVINGS { used } else { left.fixed };
        let needs_no_slices = self.wants_slices && outside.saturating_mul(self.times) <= self.limit_ppm;
        let is_calm = used <= self.limit_ppm && (needs_no_slices || left.taken <= left.room(self.limit_ppm) / 4);
        self.calm = if is_calm { self.calm + 1 } else { 0 };
        if self.halvings == 0 && !needs_no_slices || self.calm < CALM_WINDOWS {
            return None;
        }
        self.calm = 0;
        if needs_no_slices {
            // As many events as before are taken, and more from the next look on.
            self.wants_slices = false;
            self.halvings = (self.halvings + self.times.ilog2()).min(MAX_HALVINGS);
            return Some(BudgetAction::Sample(self.halvings));
        }
        // As many as leave half of the room, at least twice as many.
        let times = left.room(self.limit_ppm) / left.taken.max(1);
        let doublings = times.checked_ilog2().unwrap_or(0).saturating_sub(1).max(1);
        self.halvings = self.halvings.saturating_sub(doublings);
        Some(BudgetAction::Sample(self.halvings))
    }

    /// How long a suspension lasts.
    fn pause(&self) -> Duration {
        if self.is_short { SHORT_PAUSE } else { self.pause }
    }

    /// Ends a pause that is over. The next pause is twice as long.
    pub fn resume(&mut self, now: Duration) -> Option<BudgetAction> {
        self.suspended_until.take_if(|until| now >= *until)?;
        if !self.is_short {
            self.pause = (self.pause * 2).min(PAUSE.1);
        }
        (self.suspicion, self.calm) = (None, 0);
        Some(BudgetAction::Resume(self.halvings))
    }

    /// Starts the pause again, after the programs could not be attached.
    pub fn extend_suspension(&mut self, now: Duration) {
        self.suspended_until = Some(now + self.pause());
    }

    /// End of the pause, while the programs do not run.
    pub fn suspended_until(&self) -> Option<Duration> {
        self.suspended_until
    }

    /// Whether the next window should come soon: it may mean an action.
    pub fn suspects(&self) -> bool {
        // A window of slices has to have some of them.
        (self.suspicion.is_some() || self.has_acted) && self.suspended_until.is_none() && self.times == 1
    }

    /// One of so many events is sampled, and counts for all of them.
    pub fn one_of(&self) -> u64 {
        self.times << self.halvings
    }

    /// Actions to sample fewer events or to suspend so far.
    pub fn throttled(&self) -> u64 {
        self.throttled
    }

    /// Whether a budget samples or suspends the probe. Slices that were asked for begin a little later.
    pub fn over(&self) -> bool {
        self.one_of() > 1 || self.wants_slices || self.suspended_until.is_some()
    }

    /// Whether it keeps its budget, and is seen in slices of time as another probe at its hooks does not.
    pub fn rests_for_others(&self) -> bool {
        self.times > 1 && self.halvings == 0 && !self.wants_slices && self.suspended_until.is_none()
    }

    /// The reason as text; empty while all events are measured.
    pub fn text(&self) -> String {
        if !self.over() {
            return String::new();
        }
        if self.rests_for_others() {
            let one_of = self.one_of();
            return format!(
                "one of {one_of} events is sampled, in slices of time, as another probe at its hooks is over its budget"
            );
        }
        let (used, limit) = self.judged;
        let (used, limit) = (percent(used), percent(limit));
        let budget = if self.is_shared { "share of the budget," } else { "budget of" };
        let over = format!("over its {budget} {limit} of a CPU ({used} measured)");
        match self.suspended_until {
            Some(_) => format!("{over}: taken off its hooks for {} s", self.pause().as_secs()),
            None if self.one_of() == 1 => format!("{over}: its events are to be seen in slices of time"),
            None if self.times > 1 => {
                format!("{over}: one of {} events is sampled, in slices of time", self.one_of())
            }
            None => format!("{over}: one of {} events is sampled", self.one_of()),
        }
    }
}

/// A cost by what an action would change, in millionths of one CPU's time.
struct Left {
    /// Events that are taken.
    taken: u64,
    /// The rest.
    fixed: u64,
    /// Of it what only an end of the attachment saves.
    breakpoints: u64,
}

impl Left {
    /// What events that are taken may cost.
    fn room(&self, limit: u64) -> u64 {
        limit.saturating_sub(self.fixed).max(self.fixed / MIN_PART)
    }

    /// What it will be in slices of time, if the ends of measurements are seen all the time: where they are not, it is less.
    fn sliced(&self) -> Left {
        let fixed = self.fixed / 2 + self.fixed / (2 * TIMES);
        Left { taken: self.taken / TIMES, fixed, breakpoints: self.breakpoints }
    }

    /// Whether sampling fewer events would save nothing that counts.
    fn is_kept(&self, limit: u64) -> bool {
        self.taken <= self.room(limit) && self.breakpoints <= limit
    }
}

/// What a probe without a budget of its own takes of the agent's budget, in millionths of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    pub cost: u64,
    /// Sampling fewer events saves nothing of it.
    pub is_fixed: bool,
}

/// What the probes without a budget of their own may take of the agent's budget, in one window.
///
/// While all of them together keep it, each may take what the others leave; those that it samples or suspends have equal parts of that,
/// as all of them may take more at once. Else what is asked for below the level is given, and no probe gets more than the level.
/// What sampling does not save is taken from those that can be sampled, down to a part of their level: that others are suspended for it
/// would be worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    levels: Option<Levels>,
    left: u64,
    /// Probes that the budget samples or suspends.
    over: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Levels {
    all: u64,
    /// Of probes that can be sampled.
    sampled: u64,
}

/// The level of probes that can be sampled is at least this part of that of all.
const MIN_SAMPLED: u64 = 4;

impl Shares {
    /// `total` is in millionths of a CPU; `over` is how many of these probes the budget samples or suspends.
    pub fn of(total: u64, shares: &[Share], over: u64) -> Shares {
        let (all, left) = level(total, shares.iter().map(|share| share.cost));
        let Some(all) = all else { return Shares { levels: None, left, over } };
        let costs = |is_fixed| shares.iter().filter(move |share| share.is_fixed == is_fixed).map(|share| share.cost);
        let (sampled, _) = level(total.saturating_sub(costs(true).sum()), costs(false));
        let sampled = sampled.map_or(all, |sampled| sampled.clamp(all / MIN_SAMPLED, all));
        Shares { levels: Some(Levels { all, sampled }), left, over }
    }

    fn limit_ppm(&self, used: u64, budget: &Budget) -> u64 {
        let left = if budget.over() { self.left / self.over.max(1) } else { self.left };
        match self.levels {
            Some(levels) if budget.can_sample => levels.sampled,
            Some(levels) => levels.all,
            None => used.saturating_add(left),
        }
    }
}

/// The level up to which each of these costs can be given so that all are `total`, where they are more; else what is left of it.
fn level(total: u64, costs: impl Iterator<Item = u64>) -> (Option<u64>, u64) {
    let mut costs: Vec<u64> = costs.collect();
    costs.sort_unstable();
    let (mut left, mut probes) = (total, costs.len() as u64);
    for cost in costs {
        let level = left / probes;
        if cost > level {
            return (Some(level), 0);
        }
        (left, probes) = (left - cost, probes - 1);
    }
    (None, left)
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
