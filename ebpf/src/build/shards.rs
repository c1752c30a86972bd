//! Which shard each CPU writes where there are fewer shards than CPUs: those that share a cache share one, so that a record's cache
//! lines stay in that cache.

/// The shard of each CPU. `caches` as in [`crate::kernel_target::Target::caches`]; a CPU that is in none of them has shard `cpu % shards`.
///
/// With as many shards as caches or more, no shard has CPUs of two caches: each cache gets its part of the shards, at least one, and
/// its CPUs are divided among these in their order. With fewer, caches that are next to one another share a shard.
pub fn assign(caches: &[Vec<u32>], cpus: u32, shards: u32) -> Vec<u32> {
    let mut shard_of: Vec<u32> = (0..cpus).map(|cpu| cpu % shards).collect();
    let caches: Vec<Vec<u32>> = caches
        .iter()
        .map(|cache| cache.iter().copied().filter(|cpu| *cpu < cpus).collect::<Vec<u32>>())
        .filter(|cache| !cache.is_empty())
        .collect();
    let parts = parts(&caches, shards);
    for (cache, part) in caches.iter().zip(parts) {
        for (at, cpu) in cache.iter().enumerate() {
            shard_of[*cpu as usize] = part.start + (at * part.len() / cache.len()) as u32;
        }
    }
    shard_of
}

/// The shards of each cache.
fn parts(caches: &[Vec<u32>], shards: u32) -> Vec<std::ops::Range<u32>> {
    let known: u64 = caches.iter().map(|cache| cache.len() as u64).sum();
    let count = caches.len() as u64;
    let mut before = 0;
    let mut parts: Vec<std::ops::Range<u32>> = Vec::new();
    for (at, cache) in caches.iter().enumerate() {
        let (at, shards) = (at as u64, u64::from(shards));
        if count > shards {
            let shard = (before * shards / known) as u32;
            parts.push(shard..shard + 1);
        } else {
            let start = parts.last().map_or(0, |part| part.end);
            // One for each cache that is still to come must be left.
            let most = (shards - (count - at - 1)) as u32;
            let end = ((before + cache.len() as u64) * shards).div_ceil(known) as u32;
            parts.push(start..end.clamp(start + 1, most));
        }
        before += cache.len() as u64;
    }
    parts
}

/// The shift for which `cpu >> shift & (shards - 1)` is the shard of every CPU, if there is one: then nothing has to be looked up. The number
/// of shards is a power of two.
pub fn shift(shard_of: &[u32], shards: u32) -> Option<u32> {
    let fits = |shift: &u32| shard_of.iter().zip(0u32..).all(|(shard, cpu)| *shard == cpu >> shift & (shards - 1));
    (0..16).find(fits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    /// Two sockets of 16 cores with two threads each: threads of one core are CPU n and n + 32. Neighbours stand together.
    fn two_sockets() -> Vec<Vec<u32>> {
        let socket = |first: u32| (first..first + 16).flat_map(|core| [core, core + 32]).collect();
        vec![socket(0), socket(16)]
    }

    fn members(shard_of: &[u32]) -> BTreeMap<u32, Vec<u32>> {
        let mut members: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        shard_of.iter().zip(0..).for_each(|(shard, cpu)| members.entry(*shard).or_default().push(cpu));
        members
    }

    #[test]
    fn sockets_do_not_share_a_shard_and_threads_of_a_core_do() {
        for shards in [2, 4, 8, 16, 32] {
            let shard_of = assign(&two_sockets(), 64, shards);
            let members = members(&shard_of);
            assert_eq!(members.len(), shards as usize);
            for (shard, cpus) in &members {
                assert_eq!(cpus.len(), 64 / shards as usize, "{shards}: shard {shard}");
                let sockets: BTreeSet<u32> = cpus.iter().map(|cpu| cpu % 32 / 16).collect();
                assert_eq!(sockets.len(), 1, "{shards}: shard {shard} has {cpus:?}");
            }
            (0..32).for_each(|core| assert_eq!(shard_of[core], shard_of[core + 32], "{shards}: core {core}"));
        }
        assert_eq!(members(&assign(&two_sockets(), 64, 16))[&8], [16, 17, 48, 49]);
        assert_eq!(shift(&assign(&two_sockets(), 64, 16), 16), Some(1));
    }

    #[test]
    fn caches_of_unequal_size_get_their_part() {
        // Twelve, four and eight CPUs.
        let caches = [(0..12).collect(), (12..16).collect(), (16..24).collect::<Vec<u32>>()];
        let of = |shards| members(&assign(&caches, 24, shards)).into_values().collect::<Vec<_>>();
        let apart =
            |shards| of(shards).iter().all(|cpus| caches.iter().any(|c| cpus.iter().all(|cpu| c.contains(cpu))));
        assert!(apart(4) && apart(8) && apart(16), "{:?}", of(4));
        assert_eq!(of(8).len(), 8);
        assert_eq!(of(2), [(0..12).collect::<Vec<u32>>(), (12..24).collect()]);
        assert_eq!(of(1), [(0..24).collect::<Vec<u32>>()]);
        assert_eq!(shift(&assign(&caches, 24, 8), 8), None);
    }

    #[test]
    fn every_shard_is_in_range_whatever_the_topology() {
        for cpus in 1..40u32 {
            for size in 1..7 {
                let caches: Vec<Vec<u32>> = (0..cpus).collect::<Vec<u32>>().chunks(size).map(<[u32]>::to_vec).collect();
                for shards in [1, 2, 4, 8, 16].into_iter().filter(|shards| *shards < cpus) {
                    let shard_of = assign(&caches, cpus, shards);
                    assert!(shard_of.iter().all(|shard| *shard < shards), "{cpus} {size} {shards}: {shard_of:?}");
                    assert_eq!(members(&shard_of).len(), shards as usize, "{cpus} CPUs, {size} a cache: {shard_of:?}");
                }
            }
        }
    }

    #[test]
    fn cpus_without_a_cache_are_spread_by_their_numbers() {
        assert_eq!(assign(&[], 8, 4), [0, 1, 2, 3, 0, 1, 2, 3]);
        // CPUs 4 to 7 are not online yet.
        assert_eq!(assign(&[vec![0, 1], vec![2, 3, 9]], 8, 4), [0, 1, 2, 3, 0, 1, 2, 3]);
        assert_eq!(shift(&assign(&[], 8, 4), 4), Some(0));
    }
}
