//! Sums by call stack in the agent's memory. The kernel's tables of stacks are emptied into collectors every few seconds:
//! into one since the probe started, and into one for each profile that is being taken.

use super::{Addresses, Sample};
use crate::metrics::labels::OTHER;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A call stack with the labels of its metric.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Stack {
    /// Names and texts of the metric's labels.
    pub labels: Vec<(String, String)>,
    /// Thread group id, 0 when user stacks are not recorded.
    pub pid: u32,
    pub kernel: Addresses,
    pub user: Addresses,
}

/// Sums of one metric.
#[derive(Debug)]
pub struct Collector {
    label_names: Vec<String>,
    limit: usize,
    ttl: Option<Duration>,
    sums: HashMap<Arc<Stack>, Sum>,
    /// Sum of the small stacks that made room.
    small: u64,
}

#[derive(Clone, Copy, Debug)]
struct Sum {
    value: u64,
    changed: Instant,
}

impl Collector {
    /// Empty. Keeps at most `limit` stacks, and none that has not occurred for `ttl` when that is given.
    pub fn new(label_names: Vec<String>, limit: usize, ttl: Option<Duration>) -> Collector {
        Collector { label_names, limit: limit.max(1), ttl, sums: HashMap::new(), small: 0 }
    }

    /// The equal stack that this collector has, if it has one: collectors share the memory of stacks.
    pub fn shared(&self, stack: Stack) -> Arc<Stack> {
        self.sums.get_key_value(&stack).map_or_else(|| Arc::new(stack), |(shared, _)| shared.clone())
    }

    /// Adds to the sum of a stack.
    pub fn add(&mut self, stack: &Arc<Stack>, value: u64, now: Instant) {
        if value == 0 {
            return;
        }
        let sum = self.sums.entry(stack.clone()).or_insert(Sum { value: 0, changed: now });
        *sum = Sum { value: sum.value.saturating_add(value), changed: now };
    }

    /// Drops stacks that have not occurred for the time to live. Beyond the limit the smallest sums make room and become one:
    /// a quarter at once, as finding them takes a pass over all.
    pub fn shrink(&mut self, now: Instant) {
        if let Some(ttl) = self.ttl {
            self.sums.retain(|_, sum| now.saturating_duration_since(sum.changed) < ttl);
        }
        if self.sums.len() <= self.limit {
            return;
        }
        let mut all: Vec<(Sum, Arc<Stack>)> = self.sums.iter().map(|(stack, sum)| (*sum, stack.clone())).collect();
        let surplus = all.len() - self.limit * 3 / 4;
        all.select_nth_unstable_by_key(surplus - 1, |(sum, _)| (sum.value, sum.changed));
        for (sum, stack) in &all[..surplus] {
            self.small = self.small.saturating_add(sum.value);
            self.sums.remove(stack);
        }
    }

    /// The sums.
    pub fn samples(&self) -> Vec<Sample> {
        let sample = |(stack, sum): (&Arc<Stack>, &Sum)| {
            let Stack { labels, pid, kernel, user } = (**stack).clone();
            Sample { labels, pid, kernel, user, value: sum.value }
        };
        let small = (self.small > 0).then(|| {
            let labels = self.label_names.iter().map(|name| (name.clone(), OTHER.to_owned())).collect();
            Sample { labels, user: Addresses::Small, value: self.small, ..Sample::default() }
        });
        self.sums.iter().map(sample).chain(small).collect()
    }

    /// The processes that its stacks belong to.
    pub fn pids(&self) -> HashSet<u32> {
        self.sums.keys().map(|stack| stack.pid).filter(|pid| *pid != 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(n: u64) -> Arc<Stack> {
        Arc::new(Stack { user: Addresses::Known([n].into()), pid: n as u32, ..Stack::default() })
    }

    fn sums(collector: &Collector) -> Vec<(Addresses, u64)> {
        let mut sums: Vec<_> = collector.samples().into_iter().map(|s| (s.user, s.value)).collect();
        sums.sort_by_key(|(_, value)| *value);
        sums
    }

    #[test]
    fn small_sums_become_one_beyond_the_limit() {
        let now = Instant::now();
        let mut collector = Collector::new(vec!["comm".into()], 8, None);
        (1..=8).for_each(|n| collector.add(&stack(n), n * 100, now));
        collector.shrink(now);
        assert_eq!(collector.samples().len(), 8, "the limit itself fits");
        collector.add(&stack(9), 1, now);
        collector.shrink(now);
        let mut expected: Vec<_> = (3..=8).map(|n| (stack(n).user.clone(), n * 100)).collect();
        expected.insert(1, (Addresses::Small, 301));
        assert_eq!(sums(&collector), expected);
        let total = |collector: &Collector| sums(collector).iter().map(|(_, value)| value).sum::<u64>();
        assert_eq!(total(&collector), 3601, "nothing is lost");
        let small = collector.samples().into_iter().find(|s| s.user == Addresses::Small).unwrap();
        assert_eq!(small.labels, [("comm".to_owned(), OTHER.to_owned())]);
        (10..20).for_each(|n| collector.add(&stack(n), 5, now));
        collector.shrink(now);
        assert_eq!((collector.sums.len(), total(&collector)), (6, 3651), "the largest stay");
    }

    #[test]
    fn stacks_that_do_not_occur_go_after_their_time_to_live() {
        let (start, ttl) = (Instant::now(), Duration::from_secs(900));
        let mut collector = Collector::new(Vec::new(), 8, Some(ttl));
        collector.add(&stack(1), 5, start);
        collector.add(&stack(2), 5, start);
        collector.add(&stack(2), 2, start + ttl / 2);
        collector.add(&stack(3), 0, start);
        collector.shrink(start + ttl);
        assert_eq!(sums(&collector), [(stack(2).user.clone(), 7)]);
        assert_eq!(collector.pids(), HashSet::from([2]));
    }

    #[test]
    fn equal_stacks_are_stored_once() {
        let mut collector = Collector::new(Vec::new(), 8, None);
        let first = collector.shared((*stack(1)).clone());
        collector.add(&first, 1, Instant::now());
        assert!(Arc::ptr_eq(&collector.shared((*stack(1)).clone()), &first));
        assert!(!Arc::ptr_eq(&collector.shared((*stack(2)).clone()), &first));
    }
}
