//! How far wall clocks of machines are apart, as far as questions over a network can tell.
//!
//! Machines of a cluster keep their wall clocks together far better (NTP: a millisecond or less) than a question through an API
//! server can measure (its round trip: tens of milliseconds). So a clock is believed unless what was measured rules it out: the
//! interval in which each must lie is known, and Marzullo's algorithm finds what most of them have in common.

use serde::Serialize;

/// One question for the time, in nanoseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// When it was asked, by our clock.
    pub asked: i64,
    /// What the machine said.
    pub said: i64,
    /// When the answer was there, by our clock.
    pub answered: i64,
}

/// How far a machine's clock is ahead of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Offset {
    /// The middle of what is possible.
    pub offset_ns: i64,
    /// How far it can be from that.
    pub uncertainty_ns: i64,
}

impl Offset {
    fn between(from: i64, to: i64) -> Offset {
        let half = to.saturating_sub(from) / 2;
        // Half a nanosecond must not rule out what is possible.
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

/// What questions to one machine tell: it said its time at some moment between question and answer.
pub fn offset(samples: &[Sample]) -> Option<Offset> {
    let possible = |s: &Sample| (s.said.saturating_sub(s.answered), s.said.saturating_sub(s.asked));
    let each = || samples.iter().map(possible).filter(|(from, to)| from <= to);
    let (from, to) = (each().map(|(from, _)| from).max()?, each().map(|(_, to)| to).min()?);
    if from <= to {
        return Some(Offset::between(from, to));
    }
    // A clock was set meanwhile: the shortest round trip says most.
    each().min_by_key(|(from, to)| to - from).map(|(from, to)| Offset::between(from, to))
}

/// What the clocks of several machines have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// How far they are ahead of ours.
    pub common: Offset,
    /// Of each machine, in their order, how far its clock is ahead of the common one; 0 as long as that is possible.
    pub ahead_ns: Vec<i64>,
}

/// Finds the time that most clocks agree on. Of several as good, the one that is nearest to our own clock.
pub fn agree(offsets: &[Offset]) -> Option<Agreement> {
    let mut edges: Vec<(i64, i32)> =
        offsets.iter().flat_map(|offset| [(offset.from(), -1), (offset.to(), 1)]).collect();
    // Where one begins and another ends they have that moment in common.
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
        let slow_there = Sample { asked: 0, said: 150, answered: 60 };
        let slow_back = Sample { asked: 1000, said: 1110, answered: 1050 };
        let Offset { offset_ns, uncertainty_ns } = offset(&[slow_there, slow_back]).unwrap();
        assert_eq!((offset_ns, uncertainty_ns), (100, 11));
        // Set back by an hour between the two.
        let set = Sample { asked: 2000, said: -3_600_000, answered: 2010 };
        assert_eq!(offset(&[slow_there, set]).unwrap().offset_ns, -3_602_005);
        // An answer before the question is no answer: our own clock was set.
        assert_eq!(offset(&[Sample { asked: 10, said: 5, answered: 0 }]), None);
        assert_eq!(offset(&[]), None);
    }

    #[test]
    fn clocks_that_may_be_right_are_left_alone() {
        // Round trips of different lengths, one clock.
        let agreement = agree(&[about(3, 20), about(-4, 10), about(1, 2)]).unwrap();
        assert_eq!(agreement.ahead_ns, [0, 0, 0]);
        assert!(agreement.common.offset_ns.abs() <= 3 * MS);
        // Our own clock is what is wrong.
        let agreement = agree(&[about(5000, 20), about(5004, 10)]).unwrap();
        assert_eq!(agreement.ahead_ns, [0, 0]);
    }

    #[test]
    fn a_clock_that_cannot_be_right_is_named() {
        let agreement = agree(&[about(0, 10), about(2000, 10), about(4, 10)]).unwrap();
        assert_eq!(agreement.ahead_ns, [0, 1998 * MS, 0]);
        // Two that disagree: nobody knows, and ours decides.
        let agreement = agree(&[about(-3000, 5), about(1, 5)]).unwrap();
        assert_eq!(agreement.ahead_ns, [-3001 * MS, 0]);
        assert_eq!(agree(&[]), None);
        assert_eq!(agree(&[about(7, 1)]).unwrap().ahead_ns, [0]);
    }

    proptest! {
        #[test]
        fn nothing_overflows_and_somebody_is_right(all in prop::collection::vec((any::<i64>(), 0..=i64::MAX), 1..20)) {
            let offsets: Vec<_> = all.iter().map(|(at, by)| Offset { offset_ns: *at, uncertainty_ns: *by }).collect();
            let agreement = agree(&offsets).unwrap();
            prop_assert_eq!(agreement.ahead_ns.len(), offsets.len());
            prop_assert!(agreement.ahead_ns.contains(&0));
        }

        #[test]
        fn true_offsets_are_possible(ahead in -1_000_000i64..1_000_000, trips in prop::collection::vec((0i64..1000, 0i64..1000), 1..8)) {
            let sample = |(there, back): &(i64, i64)| Sample { asked: 0, said: there + ahead, answered: there + back };
            let found = offset(&trips.iter().map(sample).collect::<Vec<_>>()).unwrap();
            prop_assert!(found.has(ahead), "{found:?}");
        }
    }
}
