//! Call stacks that programs put into a probe's maps of stacks.

use super::read::{MapFill, ProbeMaps, read_index};
use crate::kernel::sys::{self, KernelMap};
use kstrobe_ebpf::layout::{Index, STACKS_MAPS, StackMap};
use kstrobe_ebpf::unwind::{STACK_HEADER_BYTES, UNWOUND};
use std::collections::HashSet;
use std::io;

impl ProbeMaps {
    /// The addresses of a stack, from the leaf to the root; `None` when it is not there (any more).
    pub fn stack(&self, id: u32) -> io::Result<Option<Vec<u64>>> {
        let Some(map) = self.stack_map(id) else { return Ok(None) };
        let mut value = vec![0; map.value_bytes];
        if !map.lookup(&in_its_map(id), &mut value)? {
            return Ok(None);
        }
        let mut words = value.chunks_exact(8).filter_map(|word| word.try_into().ok()).map(u64::from_ne_bytes);
        if id & UNWOUND != 0 {
            // What lies behind the last frame is of another stack.
            let number = words.nth(STACK_HEADER_BYTES as usize / 8 - 1).unwrap_or_default();
            return Ok(Some(words.take(number as usize).collect()));
        }
        // Shorter stacks are followed by zeros, and nothing is called from address 0.
        Ok(Some(words.take_while(|address| *address != 0).collect()))
    }

    /// Deletes stacks that no key and no open span refers to and that are not `recent`, and gives how full the maps are then,
    /// as a share of one of them. `before` runs just before: what else keeps ids must have resolved them by its end.
    ///
    /// A program that got an id before it was found unused has stored it by the time that keys are read, as all that were
    /// running have ended in between. One that gets the id of a deleted stack in the moments after that keeps an id
    /// without frames, which is shown as missed, until the same stack comes again. So stacks that occurred lately stay.
    pub fn sweep_stacks(&self, recent: &HashSet<u32>, before: impl FnOnce()) -> io::Result<f64> {
        let mut all = self.stack_ids()?;
        let mut unused: HashSet<u32> = all.difference(recent).copied().collect();
        self.forget_used(&mut unused)?;
        if unused.is_empty() {
            return Ok(self.fullness(&all));
        }
        sys::wait_for_running_programs();
        self.forget_used(&mut unused)?;
        before();
        for id in unused {
            if let Some(map) = self.stack_map(id)
                && map.delete(&in_its_map(id))?
            {
                all.remove(&id);
            }
        }
        Ok(self.fullness(&all))
    }

    /// How near the maps of stacks are to losing some, as a share of the first.
    fn fullness(&self, ids: &HashSet<u32>) -> f64 {
        let Some(stacks) = &self.layout().stacks else { return 0.0 };
        let share = |number: usize, map| number as f64 / f64::from(self.map(map).capacity.max(1));
        let walked = ids.iter().filter(|id| **id & UNWOUND != 0).count();
        // A hash loses none before it is full, where a stack trace map loses many.
        share(ids.len() - walked, stacks.map).max(stacks.unwound.map_or(0.0, |map| share(walked, map) / 4.0))
    }

    pub fn stack_ids(&self) -> io::Result<HashSet<u32>> {
        let Some(stacks) = &self.layout().stacks else { return Ok(HashSet::new()) };
        let mut all = HashSet::new();
        for (map, mark) in stacks.maps() {
            let keys = self.map(map).keys()?;
            all.extend(
                keys.into_iter().filter_map(|key| key.try_into().ok()).map(|key| u32::from_ne_bytes(key) | mark),
            );
        }
        Ok(all)
    }

    /// The processes that stacks in keys are of.
    pub fn stack_pids(&self) -> io::Result<HashSet<u32>> {
        let mut pids = HashSet::new();
        for table in &self.layout().tables {
            let pid = table.stack_key().and_then(|key| key.pid);
            if let (Index::Hash { map, .. }, Some(pid)) = (&table.index, pid) {
                let keys = read_index(self.map(*map))?;
                pids.extend(keys.iter().filter_map(|(key, _)| id_at(key, pid.offset as usize)).filter(|pid| *pid != 0));
            }
        }
        Ok(pids)
    }

    /// How full the maps of stacks are together, if there are any.
    pub(super) fn stack_fill(&self) -> Option<io::Result<MapFill>> {
        let stacks = self.layout().stacks.as_ref()?;
        let capacity = stacks.maps().map(|(map, _)| self.map(map).capacity).sum();
        let fill = |ids: HashSet<u32>| MapFill { name: STACKS_MAPS[0].to_owned(), entries: ids.len() as u32, capacity };
        Some(self.stack_ids().map(fill))
    }

    /// The map that an id belongs to.
    fn stack_map(&self, id: u32) -> Option<&KernelMap> {
        let stacks = self.layout().stacks.as_ref()?;
        let mut maps = stacks.maps();
        maps.find(|(_, mark)| id & StackMap::MARKS == *mark).map(|(map, _)| self.map(map))
    }

    /// Takes the ids that keys and open spans refer to out of a set.
    fn forget_used(&self, unused: &mut HashSet<u32>) -> io::Result<()> {
        for table in &self.layout().tables {
            let Some(key) = table.stack_key() else { continue };
            if let Index::Hash { map, .. } = table.index {
                for (bytes, _) in read_index(self.map(map))? {
                    key.ids(&bytes).filter_map(|id| id.try_into().ok()).for_each(|id: u32| _ = unused.remove(&id));
                }
            }
        }
        if let Some(spans) = self.layout().spans.as_ref().filter(|spans| !spans.stack_ids.is_empty()) {
            for (_, state) in self.map(spans.map).entries()?.iter() {
                let ids = spans.stack_ids.iter().filter_map(|at| id_at(state, *at as usize));
                ids.for_each(|id| _ = unused.remove(&id));
            }
        }
        Ok(())
    }
}

/// The kernel's own id, as a key.
fn in_its_map(id: u32) -> [u8; 4] {
    (id & !StackMap::MARKS).to_ne_bytes()
}

/// An id of a stack or process, unless it is a negative error number.
fn id_at(bytes: &[u8], at: usize) -> Option<u32> {
    let id = i32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?);
    u32::try_from(id).ok()
}
