//! Wall clock offsets of machines, measured by requests over a network.
//!
//! Machines of a cluster keep their wall clocks together far better (NTP: a millisecond or less) than a question through an API
//! server can measure (its round trip: tens of milliseconds). So a clock is believed unless what was measured rules it out: the
//! interval in which each must lie is known, and Marzullo's algorithm finds what most of them have in common.

use serde::Serialize;

/// One clock sample, in nanoseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Time of the request by our clock.
    pub sent: i64,
    /// Time reported by the machine.
    pub reported: i64,
    /// Time of the response by our clock.
    pub received: i64,
}

/// Offset of a machine's clock to ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Offset {
    /// Centre of the possible interval.
    pub offset_ns: i64,
    /// Half width of the possible interval.
    pub uncertainty_ns: i64,
}

impl Offset {
    fn between(from: i64, to: i64) -> Offset {
        let half = to.saturating_sub(from) / 2;
        // Rounding by half a nanosecond must not shrink the interval.
        Offset { offset_ns: from.saturating_add(half), uncertainty_ns: half.saturating_add(1) }
    }

    fn from(self) -> i64 {
        self.offset_ns.saturating_sub(self.uncertainty_ns)
    }

    fn to(self) -> i64 {
        self.offset_ns.saturating_add(self.uncertainty_ns)
    }

    fn has(self, offset: i64) -> bool {
        (self.from()..=self.to()).contains(&offset)
    }
}

/// Intersects the samples of one machine: each reported time lies between request and response.
pub fn offset(samples: &[Sample]) -> Option<Offset> {
    let possible = |s: &Sample| (s.reported.saturating_sub(s.received), s.reported.saturating_sub(s.sent));
    let each = || samples.iter().map(possible).filter(|(from, to)| from <= to);
    let (from, to) = (each().map(|(from, _)| from).max()?, each().map(|(_, to)| to).min()?);
    if from <= to {
        return Some(Offset::between(from, to));
    }
    // A clock was set between the samples: use the shortest round trip.
    each().min_by_key(|(from, to)| to - from).map(|(from, to)| Offset::between(from, to))
}

/// Common clock of several machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// Offset of the common clock to ours.
    pub common: Offset,
    /// Offset of each machine's clock to the common clock; 0 if within its error.
    pub ahead_ns: Vec<i64>,
}

/// Finds the time that most clocks agree on; of several, the one nearest to our clock.
pub fn agree(offsets: &[Offset]) -> Option<Agreement> {
    let mut edges: Vec<(i64, i32)> =
        offsets.iter().flat_map(|offset| [(offset.from(), -1), (offset.to(), 1)]).collect();
    // Intervals that touch overlap: starts sort before ends.
    edges.sort_unstable();
    let mut open = 0;
    let mut found: Vec<(i32, Offset)> = Vec::new();
    for pair in edges.windows(2) {
        open -= pair[0].1;
        if pair[0].1 < 0 && pair[1].1 > 0 {
            found.push((open, Offset::between(pair[0].0, pair[1].0)));
        }
    }
    let most = found.iter().map(|(machines, _)| *machines).max()?;
    let common = found.into_iter().filter(|(machines, _)| *machines == most).map(|(_, common)| common);
    let common = common.min_by_key(|common| common.offset_ns.unsigned_abs())?;
    let ahead = |offset: &Offset| {
        if offset.has(common.offset_ns) { 0 } else { offset.offset_ns.saturating_sub(common.offset_ns) }
    };
    Some(Agreement { common, ahead_ns: offsets.iter().map(ahead).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: i64 = 1_000_000;

    fn about(offset_ms: i64, uncertainty_ms: i64) -> Offset {
        Offset { offset_ns: offset_ms * MS, uncertainty_ns: uncertainty_ms * MS }
    }

    #[test]
    fn an_offset_lies_where_all_answers_allow_it() {
        // Ahead by 100; the way there takes longer at first, the way back later.
        let slow_there = Sample { sent: 0, reported: 150, received: 60 };
        let slow_back = Sample { sent: 1000, reported: 1110, received: 1050 };
        let Offset { offset_ns, uncertainty_ns } = offset(&[slow_there, slow_back]).unwrap();
        assert_eq!((offset_ns, uncertainty_ns), (100, 11));
        // Set back by an hour between the two.
        let set = Sample { sent: 2000, reported: -3_600_000, received: 2010 };
        assert_eq!(offset(&[slow_there, set]).unwrap().offset_ns, -3_602_005);
        // A response before its request: our clock was set.
        assert_eq!(offset(&[Sample { sent: 10, reported: 5, received: 0 }]), None);
        assert_eq!(offset(&[]), None);
    }

    #[test]
    fn clocks_that_may_be_right_are_left_alone() {
        // Round trips of different lengths, one clock.
        let agreement = agree(&[about(3, 20), about(-4, 10), about(1, 2)]).unwrap();
        assert_eq!(agreement.ahead_ns, [0, 0, 0]);
        assert!(agreement.common.offset_ns.abs() <= 3 * MS);
        // Our own clock is wrong.
        let agreement = agree(&[about(5000, 20), about(5004, 10)]).unwrap();
        assert_eq!(agreement.ahead_ns, [0, 0]);
    }

    #[test]
    fn a_clock_that_cannot_be_right_is_named() {
        let agreement = agree(&[about(0, 10), about(2000, 10), about(4, 10)]).unwrap();
        assert_eq!(agreement.ahead_ns, [0, 1998 * MS, 0]);
        // Two disagree: ours decides.
        let agreement = agree(&[about(-3000, 5), about(1, 5)]).unwrap();
        assert_eq!(agreement.ahead_ns, [-3001 * MS, 0]);
        assert_eq!(agree(&[]), None);
        assert_eq!(agree(&[about(7, 1)]).unwrap().ahead_ns, [0]);
    }

    proptest! {
        #[test]
        fn nothing_overflows_and_one_clock_agrees(all in prop::collection::vec((any::<i64>(), 0..=i64::MAX), 1..20)) {
            let offsets: Vec<_> = all.iter().map(|(at, by)| Offset { offset_ns: *at, uncertainty_ns: *by }).collect();
            let agreement = agree(&offsets).unwrap();
            prop_assert_eq!(agreement.ahead_ns.len(), offsets.len());
            prop_assert!(agreement.ahead_ns.contains(&0));
        }

        #[test]
        fn true_offsets_are_possible(ahead in -1_000_000i64..1_000_000, trips in prop::collection::vec((0i64..1000, 0i64..1000), 1..8)) {
            let sample = |(there, back): &(i64, i64)| Sample { sent: 0, reported: there + ahead, received: there + back };
            let found = offset(&trips.iter().map(sample).collect::<Vec<_>>()).unwrap();
            prop_assert!(found.has(ahead), "{found:?}");
        }
    }
}
