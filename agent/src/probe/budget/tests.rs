use super::*;

/// For probes with a budget of their own.
const NONE: Shares = Shares { levels: None, left: 0, over: 0 };

/// Probes that take so much, and can all be sampled.
fn costing(costs: &[u64]) -> Vec<Share> {
    costs.iter().map(|&cost| Share { cost, is_fixed: false }).collect()
}

/// A probe of 2 % and the seconds that go by.
struct Run {
    budget: Budget,
    second: u64,
    /// What each run costs besides.
    breakpoint: Duration,
    actions: Vec<(u64, BudgetAction)>,
}

impl Run {
    fn new(can_sample: bool) -> Run {
        Run {
            budget: Budget::new(BudgetLimit::Own(20_000), can_sample).unwrap(),
            second: 0,
            breakpoint: Duration::ZERO,
            actions: vec![],
        }
    }

    /// So many seconds, with a window of 100 ms in each: `cost` says what the programs take of it, by the number of
    /// events of which one is measured.
    fn seconds(&mut self, count: u64, mut cost: impl FnMut(u64) -> (u64, u64)) -> &mut Run {
        for _ in 0..count {
            self.second += 1;
            let now = Duration::from_secs(self.second);
            let resumed = self.budget.resume(now);
            let (run_ns, runs) = cost(self.budget.one_of());
            let cost = Cost {
                window: Duration::from_millis(100),
                run: Duration::from_nanos(run_ns),
                runs,
                breakpoints: self.breakpoint * runs as u32,
                entering: Duration::ZERO,
                times: 1,
                ends_rest: false,
            };
            let action = resumed.or_else(|| self.budget.look(now, &cost, &NONE));
            self.actions.extend(action.map(|action| (self.second, action)));
        }
        self
    }
}

/// So many events a second, each costing so much when measured and 20 ns when not.
fn events(per_second: u64, each_ns: u64) -> impl FnMut(u64) -> (u64, u64) {
    move |one_of| {
        let runs = per_second / 10;
        (runs / one_of * each_ns + (runs - runs / one_of) * 20, runs)
    }
}

#[test]
fn a_probe_within_its_budget_is_left_alone() {
    let mut run = Run::new(true);
    // 1.9 % for an hour.
    run.seconds(3600, events(63_000, 300));
    assert_eq!((run.actions.len(), run.budget.text(), run.budget.throttled()), (0, String::new(), 0));
    assert!(!run.budget.over() && !run.budget.suspects());
}

#[test]
fn a_burst_of_one_window_is_forgiven() {
    let mut run = Run::new(true);
    for _ in 0..100 {
        run.seconds(1, events(1_000_000, 300)).seconds(1, events(10, 300));
    }
    assert_eq!(run.actions, []);
}

#[test]
fn events_are_sampled_until_the_budget_is_kept() {
    let mut run = Run::new(true);
    // 6 %: a quarter of the events is 1.5 % and what the others cost.
    run.seconds(20, events(200_000, 300));
    assert_eq!(run.actions, [(2, BudgetAction::Sample(2))]);
    assert_eq!(run.budget.text(), "over its budget of 2 % of a CPU (6 % measured): one of 4 events is sampled");
    let alert = kstrobe_mixin::alerts::HEALTH.iter().find(|alert| alert.name == "KstrobeProbeNotAttached").unwrap();
    assert!(alert.expr().contains(&format!("reason!=\"{OVER_BUDGET}\"")), "{}", alert.expr());
    assert_eq!((run.budget.one_of(), run.budget.throttled(), run.budget.over()), (4, 1, true));
    // It gets worse.
    run.seconds(20, events(300_000, 300));
    assert_eq!(run.actions[1..], [(22, BudgetAction::Sample(3))]);
}

#[test]
fn the_window_after_an_action_is_a_short_one() {
    let mut run = Run::new(true);
    let suspects = |run: &mut Run| {
        run.seconds(1, events(200_000, 300));
        run.budget.suspects()
    };
    // Suspected, sampled, within its budget.
    assert_eq!([0; 4].map(|_| suspects(&mut run)), [true, true, false, false]);
    // More events are measured again: there is time.
    run.seconds(5, events(1_000, 300));
    assert_eq!((run.budget.one_of(), run.budget.suspects()), (1, false));
    // A window of slices has to have some of them.
    let mut run = Run::new(true);
    run.seconds(2, events(3_000_000, 300));
    assert_eq!((run.actions.len(), run.budget.slicing(), run.budget.suspects()), (1, Slicing::Wanted, false));
}

#[test]
fn breakpoints_above_the_budget_suspend_a_probe() {
    // Breakpoints of a microsecond: 3 % of them alone, with programs that take 0.3 %.
    let mut run = Run { breakpoint: Duration::from_micros(1), ..Run::new(true) };
    run.seconds(20, events(30_000, 100));
    assert_eq!(run.actions, [(2, BudgetAction::Suspend)]);
    // 1 % of them leave room for sampling what the programs take.
    let mut run = Run { breakpoint: Duration::from_micros(1), ..Run::new(true) };
    run.seconds(20, events(10_000, 2500));
    assert_eq!(run.actions, [(2, BudgetAction::Sample(2))]);
}

#[test]
fn when_it_gets_calm_more_and_more_is_measured_again() {
    let mut run = Run::new(true);
    run.seconds(10, events(200_000, 300));
    assert_eq!(run.budget.one_of(), 4);
    run.seconds(100, events(1_000, 300));
    assert_eq!((run.budget.one_of(), run.budget.over(), run.budget.text()), (1, false, String::new()));
    // Not so while twice the events would be too much.
    let mut run = Run::new(true);
    run.seconds(10, events(200_000, 300)).seconds(100, events(120_000, 300));
    assert_eq!(run.budget.one_of(), 4);
}

#[test]
fn a_flood_is_sampled_down_to_what_passing_over_costs() {
    let mut run = Run::new(true);
    // Passed over alone, 3 million events a second cost 6 %: where they begin they are to be seen for a share of the time. As long as
    // that is not so, to sample fewer than 1 of 256 would save less than 0.4 %.
    run.seconds(400, events(3_000_000, 300));
    assert_eq!(run.actions, [(2, BudgetAction::Sample(6)), (4, BudgetAction::Sample(8))]);
    assert!(run.budget.over() && run.budget.suspended_until().is_none());
    assert_eq!(run.budget.slicing(), Slicing::Wanted);
    // When it ends, all events are measured at once.
    run.seconds(10, events(1_000, 300));
    assert_eq!(run.actions[2..], [(405, BudgetAction::Sample(8)), (410, BudgetAction::Sample(0))]);
    assert_eq!(run.budget.slicing(), Slicing::Never);
}

#[test]
fn a_flood_is_sampled_and_sliced_at_once() {
    let mut budget = Budget::new(BudgetLimit::Own(20_000), true).unwrap();
    let mut seconds = 0;
    // A million measurements a second, which take 300 ns and 60 to reach their ends; to pass an end over takes 10.
    let mut look = |budget: &mut Budget, times: u64| {
        let (starts, ends) = (1_000_000 / times, 1_000_000);
        let (reached, taken) = (starts + ends, 2 * (starts >> budget.halvings));
        let cost = Cost {
            window: Duration::from_secs(1),
            run: Duration::from_nanos(taken * 150 + (reached - taken) * 10),
            runs: reached,
            entering: Duration::from_nanos(reached * 30),
            times,
            ..Cost::default()
        };
        seconds += 1;
        budget.look(Duration::from_secs(seconds), &cost, &NONE)
    };
    assert_eq!([0; 2].map(|_| look(&mut budget, 1)), [None, Some(BudgetAction::Sample(4))]);
    assert_eq!(budget.slicing(), Slicing::Wanted);
    assert_eq!([0; 20].map(|_| look(&mut budget, 8)), [None; 20], "it was enough");
}

/// A probe whose hooks are reached so often that this alone costs `percent` of a CPU while it sees all events, and half of that at its
/// ends when it sees an eighth of the starts.
fn reached(percent: u64, times: u64) -> Cost {
    let entering = Duration::from_micros(percent * 10_000);
    Cost {
        window: Duration::from_secs(1),
        run: Duration::from_millis(if times > 1 { 2 } else { 10 }),
        runs: 1_000_000,
        entering: if times > 1 { entering * 9 / 16 } else { entering },
        times,
        ..Cost::default()
    }
}

#[test]
fn hooks_that_cost_too_much_to_reach_are_sliced() {
    let mut budget = Budget::new(BudgetLimit::Own(20_000), true).unwrap();
    let mut seconds = 0;
    let mut look = |budget: &mut Budget, cost: &Cost| {
        seconds += 1;
        budget.look(Duration::from_secs(seconds), cost, &NONE)
    };
    assert_eq!(budget.slicing(), Slicing::Never, "it does not rest for others");
    // 6 %, with programs that cost 1 %.
    assert_eq!([0; 2].map(|_| look(&mut budget, &reached(6, 1))), [None, Some(BudgetAction::Sample(0))]);
    assert_eq!((budget.slicing(), budget.one_of(), budget.over()), (Slicing::Wanted, 1, true), "until the hooks are");
    assert!(
        budget.text().ends_with("(7 % measured): its events are to be seen in slices of time"),
        "{}",
        budget.text()
    );
    // 3.4 % are still above the budget, which sampling no longer lowers by much.
    assert_eq!([0; 20].map(|_| look(&mut budget, &reached(6, 8))), [None; 20]);
    assert_eq!((budget.slicing(), budget.one_of(), budget.over()), (Slicing::Wanted, 8, true));
    assert!(budget.text().ends_with("one of 8 events is sampled, in slices of time"), "{}", budget.text());
    assert!(!budget.rests_for_others());
    // Where all events would cost half of the budget at most, they are sampled one by one, as many as before.
    let calm = [0; 5].map(|_| look(&mut budget, &reached(0, 8)));
    assert_eq!(calm, [None, None, None, None, Some(BudgetAction::Sample(3))]);
    assert_eq!((budget.slicing(), budget.one_of()), (Slicing::Never, 64), "until the hooks are attached for good");
    let calm = [0; 5].map(|_| look(&mut budget, &reached(0, 1)));
    assert_eq!(calm, [None, None, None, None, Some(BudgetAction::Sample(0))]);
    assert_eq!((budget.one_of(), budget.over()), (1, false));
}

#[test]
fn what_is_passed_over_is_known_where_ends_rest_too() {
    let budget = || {
        let mut budget = Budget::new(BudgetLimit::Own(20_000), true).unwrap();
        (1..=2).for_each(|at| _ = budget.look(Duration::from_secs(at), &reached(6, 1), &NONE));
        budget
    };
    // 40 % of a CPU for programs that take 300 ns a run, of which none passes anything over: sampling can lower it.
    let flood = |ends_rest| Cost {
        run: Duration::from_millis(400),
        runs: 1_333_333,
        entering: Duration::from_millis(1),
        ends_rest,
        ..reached(6, 8)
    };
    let halvings = |ends_rest| {
        let mut budget = budget();
        (3..=4).find_map(|at| budget.look(Duration::from_secs(at), &flood(ends_rest), &NONE))
    };
    assert_eq!(halvings(true), Some(BudgetAction::Sample(7)));
    assert_eq!(halvings(false), Some(BudgetAction::Sample(6)));
}

#[test]
fn only_probes_of_the_agents_budget_rest_for_others() {
    let slicing = |limit, can_sample| Budget::new(limit, can_sample).unwrap().slicing();
    assert_eq!(slicing(BudgetLimit::Shared, true), Slicing::Tolerated);
    assert_eq!([slicing(BudgetLimit::Shared, false), slicing(BudgetLimit::Own(1), true)], [Slicing::Never; 2]);
    let mut budget = Budget::new(BudgetLimit::Shared, true).unwrap();
    let shares = Shares::of(40_000, &costing(&[5_000, 70_000]), 0);
    assert_eq!(budget.look(Duration::from_secs(1), &Cost { times: 8, ..reached(0, 8) }, &shares), None);
    assert_eq!(
        (budget.slicing(), budget.one_of(), budget.over()),
        (Slicing::Tolerated, 8, true),
        "as another wants it"
    );
    let text = "one of 8 events is sampled, in slices of time, as another probe at its hooks is over its budget";
    assert_eq!((budget.rests_for_others(), budget.text().as_str()), (true, text));
}

#[test]
fn a_probe_that_slices_do_not_help_is_off_for_a_second() {
    let mut run = Run::new(true);
    // However few are measured, it stays at 5 %: another program of the probe costs that.
    run.seconds(17, |_| (5_000_000, 100));
    let sampled = [(2, 2), (4, 4), (6, 6), (8, 8), (10, 10)].map(|(at, n)| (at, BudgetAction::Sample(n)));
    assert_eq!(run.actions[..5], sampled);
    let (suspend, resume) = (BudgetAction::Suspend, BudgetAction::Resume(10));
    let slices = BudgetAction::Sample(10);
    assert_eq!(run.actions[5..], [(12, slices), (14, suspend), (15, resume), (17, suspend)]);
    // More events meanwhile are no sign that it does not help.
    let mut run = Run::new(true);
    run.seconds(2, events(200_000, 300)).seconds(20, events(700_000, 300));
    assert!(run.actions.iter().all(|(_, action)| matches!(action, BudgetAction::Sample(_))), "{:?}", run.actions);
}

#[test]
fn one_window_that_was_disturbed_means_nothing() {
    let mut run = Run::new(true);
    // 21 %, of which a part is not sampled; every other window shows 10 % more, and so many events that to pass them
    // over would be too much.
    let mut window = 0;
    run.seconds(20, |one_of| {
        window += 1;
        let (more_ns, runs) = if window % 2 == 0 { (10_000_000, 300_000) } else { (0, 100) };
        (20_000_000 / one_of + 1_200_000 + more_ns, runs)
    });
    assert_eq!(run.actions, [(2, BudgetAction::Sample(4)), (4, BudgetAction::Sample(5))]);
}

#[test]
fn what_was_suspected_under_another_limit_is_forgotten() {
    let mut run = Run::new(false);
    run.seconds(1, |_| (4_000_000, 100));
    assert!(run.budget.suspects());
    run.budget.set_limit(&Budget::new(BudgetLimit::Own(100_000), false).unwrap());
    run.seconds(1, |_| (15_000_000, 100)).seconds(5, |_| (4_000_000, 100));
    assert_eq!(run.actions, []);
    run.seconds(2, |_| (15_000_000, 100));
    assert_eq!(run.actions, [(9, BudgetAction::Suspend)]);
    assert!(run.budget.text().contains("its budget of 10 % of a CPU (15 % measured)"), "{}", run.budget.text());
}

#[test]
fn what_cannot_be_sampled_is_detached() {
    let mut run = Run::new(false);
    run.seconds(5, events(200_000, 300));
    assert_eq!(run.actions, [(2, BudgetAction::Suspend)]);
}

#[test]
fn pauses_double_up_to_an_hour_and_are_forgiven() {
    let mut run = Run::new(false);
    run.seconds(40_000, events(1_000_000, 300));
    let detached: Vec<u64> = run.actions.iter().filter(|(_, o)| *o == BudgetAction::Suspend).map(|(s, _)| *s).collect();
    let pauses: Vec<u64> = detached.windows(2).map(|w| w[1] - w[0] - 2).collect();
    assert_eq!(pauses[..8], [60, 120, 240, 480, 960, 1920, 3600, 3600]);
    // Comes back into peace; after ten minutes of that the next pause is short again.
    run.seconds(3_600 + 700, events(10, 300));
    run.actions.clear();
    run.seconds(100, events(1_000_000, 300));
    let seconds: Vec<u64> = run.actions.iter().map(|(s, _)| s + 100 - run.second).collect();
    assert_eq!(seconds, [2, 62, 64]);
}

#[test]
fn a_failed_attach_starts_another_pause() {
    let mut run = Run::new(false);
    run.seconds(2, events(1_000_000, 300));
    let now = Duration::from_secs(62);
    assert_eq!(run.budget.resume(now - Duration::from_millis(1)), None);
    assert_eq!(run.budget.resume(now), Some(BudgetAction::Resume(0)));
    run.budget.extend_suspension(now);
    assert_eq!(run.budget.suspended_until(), Some(now + Duration::from_secs(120)));
    assert_eq!(run.budget.look(now, &Cost::default(), &NONE), None);
}

#[test]
fn no_budget_is_no_machine_and_odd_numbers_do_no_harm() {
    assert_eq!(Budget::new(BudgetLimit::None, true), None);
    let mut budget = Budget::new(BudgetLimit::Own(1), true).unwrap();
    let endless = Cost {
        window: Duration::from_nanos(1),
        run: Duration::MAX,
        runs: u64::MAX,
        entering: Duration::MAX,
        breakpoints: Duration::MAX,
        times: 1,
        ends_rest: false,
    };
    assert_eq!(Cost::default().ppm(), 0);
    assert_eq!(endless.ppm(), u64::MAX);
    assert_eq!(budget.look(Duration::ZERO, &endless, &NONE), None);
    assert_eq!(budget.look(Duration::ZERO, &endless, &NONE), Some(BudgetAction::Suspend));
    assert_eq!([1, 2, 3, 4, 5, 1 << 40].map(|used| halvings(used, 1)), [1, 1, 2, 2, 3, 40]);
    assert_eq!([20_000, 5, 73_210, 310_000, 1_000_000].map(percent), ["2 %", "0.0005 %", "7.3 %", "31 %", "100 %"]);
}

#[test]
fn the_budget_is_shared_by_what_each_needs() {
    let whole = Budget::new(BudgetLimit::Shared, true).unwrap();
    let limits = |total, costs: &[u64]| {
        let shares = Shares::of(total, &costing(costs), 2);
        costs.iter().map(|cost| shares.limit_ppm(*cost, &whole)).collect::<Vec<_>>()
    };
    assert_eq!(limits(40, &[0, 10, 20]), [10, 20, 30], "each may take what the others leave");
    assert_eq!(limits(40, &[100, 0, 10]), [30, 30, 30], "one that takes too much gets the rest");
    assert_eq!(limits(40, &[100, 90, 4]), [18, 18, 18]);
    assert_eq!(limits(40, &[40]), [40]);
    assert_eq!(limits(40, &[]), [0; 0]);
    assert_eq!(limits(0, &[5]), [0]);
    let shares = Shares::of(40, &costing(&[0, 10, 20]), 2);
    let sampled = Budget { halvings: 1, ..whole.clone() };
    assert_eq!(
        [0, 10].map(|cost| shares.limit_ppm(cost, &sampled)),
        [5, 15],
        "those that are sampled may all take more at once"
    );
}

#[test]
fn what_sampling_does_not_save_others_sample_for() {
    let at_least = |cost| Share { cost, is_fixed: true };
    let limits = |total, fixed: &[u64], sampled: &[u64]| {
        let shares: Vec<Share> = fixed.iter().copied().map(at_least).chain(costing(sampled)).collect();
        let shares = Shares::of(total, &shares, 0);
        [false, true].map(|can_sample| shares.limit_ppm(0, &Budget::new(BudgetLimit::Shared, can_sample).unwrap()))
    };
    assert_eq!(limits(100, &[60], &[30, 30]), [40, 20], "40 are left of it");
    assert_eq!(limits(100, &[90], &[60, 60]), [33, 8], "a quarter of the level at least");
    assert_eq!(limits(100, &[10, 10], &[200, 5]), [75, 75]);
    let mut budget = Budget::new(BudgetLimit::Shared, false).unwrap();
    assert_eq!(budget.share(7), Some(Share { cost: 7, is_fixed: true }), "it cannot be sampled");
    budget.can_sample = true;
    assert_eq!(budget.share(7), Some(Share { cost: 7, is_fixed: false }));
    // 3 % by reaching the hook alone.
    let cost = Cost { entering: Duration::from_millis(3), window: Duration::from_millis(100), ..Cost::default() };
    budget.wants_slices = true;
    let shares = Shares::of(20_000, &costing(&[30_000]), 0);
    assert_eq!(budget.look(Duration::from_secs(1), &cost, &shares), None);
    assert_eq!(budget.share(cost.ppm()), Some(Share { cost: 30_000, is_fixed: true }));
    assert_eq!(Budget::new(BudgetLimit::Own(1), true).unwrap().share(7), None);
}

#[test]
fn a_share_is_another_in_each_window() {
    let mut budget = Budget::new(BudgetLimit::Shared, true).unwrap();
    let cost = |percent: u64| Cost {
        window: Duration::from_millis(100),
        run: Duration::from_millis(percent),
        runs: 10_000,
        ..Cost::default()
    };
    let mut look = |second, own: u64, other: u64| {
        let shares = Shares::of(40_000, &costing(&[own * 10_000, other * 10_000]), 0);
        budget.look(Duration::from_secs(second), &cost(own), &shares)
    };
    assert_eq!([look(1, 3, 0), look(2, 3, 0), look(3, 3, 1)], [None; 3]);
    assert_eq!([look(4, 3, 3), look(5, 3, 3)], [None, Some(BudgetAction::Sample(1))]);
    let text = "over its share of the budget, 2 % of a CPU (3 % measured): one of 2 events is sampled";
    assert_eq!(budget.text(), text);
}

/// Seconds of many probes at one hook; `events` are so many a second, and what passing one over takes, in nanoseconds. Gives what
/// each second costs all of them together.
fn crowd(probes: usize, total_ppm: u64, (events, passed_over_ns): (u64, u64), seconds: u64) -> Vec<u64> {
    const ENTRY_NS: u64 = 50;
    const TAKEN_NS: u64 = 250;
    let mut budgets = vec![Budget::new(BudgetLimit::Shared, true).unwrap(); probes];
    let mut times = 1;
    let second = |second| {
        let events = events / times;
        let cost = |budget: &Budget| {
            let taken = events >> budget.halvings;
            Cost {
                window: Duration::from_secs(1),
                run: Duration::from_nanos(taken * TAKEN_NS + (events - taken) * passed_over_ns),
                runs: events,
                entering: Duration::from_nanos(events * ENTRY_NS / probes as u64),
                times,
                ..Cost::default()
            }
        };
        let costs: Vec<Cost> = budgets.iter().map(cost).collect();
        let over = budgets.iter().filter(|budget| budget.over()).count() as u64;
        let used = budgets.iter().zip(&costs).filter_map(|(budget, cost)| budget.share(cost.ppm()));
        let shares = Shares::of(total_ppm, &used.collect::<Vec<_>>(), over);
        for (budget, cost) in budgets.iter_mut().zip(&costs) {
            budget.look(Duration::from_secs(second), cost, &shares);
        }
        times = if budgets.iter().any(|budget| budget.slicing() == Slicing::Wanted) { 8 } else { 1 };
        costs.iter().map(Cost::ppm).sum()
    };
    (0..seconds).map(second).collect()
}

#[test]
fn a_crowd_at_one_hook_keeps_the_shared_budget() {
    const OFTEN: (u64, u64) = (120_000, 8);
    // Out of no cache.
    const COLD: (u64, u64) = (10_000, 200);
    let crowds =
        [(4, 40_000, OFTEN), (40, 40_000, OFTEN), (40, 20_000, OFTEN), (100, 40_000, OFTEN), (40, 20_000, COLD)];
    for (probes, total_ppm, load) in crowds {
        let settled = crowd(probes, total_ppm, load, 600).split_off(60);
        let mean = settled.iter().sum::<u64>() / settled.len() as u64;
        let worst = settled.iter().max().unwrap();
        assert!(
            mean <= total_ppm && *worst <= total_ppm * 3,
            "{probes} probes, {total_ppm}, {load:?}: mean {mean}, worst {worst}"
        );
    }
}
