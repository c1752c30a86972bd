//! Names of single events.

use std::hash::{BuildHasher, RandomState};

/// Gives each event of an agent a name that no other has: eight digits of chance for this run of the agent, eight that count.
#[derive(Debug)]
pub struct Ids {
    run: u32,
    next: u32,
    trace_high: u64,
}

impl Ids {
    /// Names of another run.
    pub fn new() -> Ids {
        // Its keys are random; that of each run is another.
        let chance = RandomState::new();
        Ids { run: chance.hash_one(0u8) as u32, next: 0, trace_high: chance.hash_one(1u8) }
    }

    /// High half of the ids of traces that are a single event.
    pub fn trace_high(&self) -> u64 {
        self.trace_high
    }

    /// The next name.
    pub fn give(&mut self) -> String {
        let id = format!("{:08x}{:08x}", self.run, self.next);
        self.next = self.next.wrapping_add(1);
        id
    }
}

impl Default for Ids {
    fn default() -> Self {
        Ids::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_are_alike() {
        let (mut one, mut other) = (Ids::new(), Ids::new());
        let ids = [one.give(), one.give(), other.give()];
        assert!(ids.iter().all(|id| id.len() == 16 && id.bytes().all(|b| b.is_ascii_hexdigit())), "{ids:?}");
        assert!(ids[0] != ids[1] && ids[0] != ids[2] && ids[0][..8] == ids[1][..8]);
    }
}
