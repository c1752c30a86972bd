//! Memory maps of processes, taken while they run: when a stack is shown, its process may have ended.

use crate::kernel::process_maps::{Mapping, Maps};
use crate::kernel::procfs::Stat;
use std::collections::{HashMap, HashSet};
use std::time::Instant;

/// A new process often replaces its memory map soon, by execve(2) and its dynamic loader: it is looked at again.
const LOOKS: u8 = 3;
/// Maps kept of one process: after and before its execve(2).
const MAPS: usize = 2;

/// What is known of processes by thread group id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Processes {
    known: HashMap<u32, Process>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Process {
    /// Clock ticks since boot, which tell it from a later process of the same id.
    started: u64,
    /// The newest last.
    maps: Vec<Maps>,
    looks: u8,
    /// When the last look began.
    looked: Option<Instant>,
}

/// What was seen of a process.
#[derive(Debug)]
pub struct Look {
    pid: u32,
    began: Instant,
    started: u64,
    maps: Maps,
}

impl Look {
    /// Reads the memory map, which takes until the process lets go of the lock on it; `None` of one that has ended.
    pub fn at(pid: u32) -> Option<Look> {
        let began = Instant::now();
        let started = Stat::of_pid(pid)?.started_ticks;
        Some(Look { pid, began, started, maps: Maps::of(pid).ok()? })
    }
}

impl Processes {
    /// Those of `pids` to look at, each once: they are new.
    pub fn unseen(&self, pids: impl IntoIterator<Item = u32>) -> HashSet<u32> {
        let is_new = |pid: &u32| self.known.get(pid).is_none_or(|process| process.looks < LOOKS);
        pids.into_iter().filter(is_new).collect()
    }

    /// Looks at processes that are new. Those that have ended already stay unknown.
    pub fn learn(&mut self, pids: impl IntoIterator<Item = u32>) {
        let looks = self.unseen(pids).into_iter().filter_map(Look::at);
        looks.for_each(|look| self.add(look));
    }

    /// Looks at a process again, for files it has mapped since.
    pub fn refresh(&mut self, pid: u32) {
        if let Some(look) = Look::at(pid) {
            self.add(look);
        }
    }

    /// Adds what was seen, unless a later look was added before: it may have taken less time.
    pub fn add(&mut self, Look { pid, began, started, maps }: Look) {
        let process = self.known.entry(pid).or_insert_with(|| Process { started, ..Process::default() });
        if process.looked.is_some_and(|looked| looked > began) {
            return;
        }
        process.looked = Some(began);
        if process.started != started {
            // Another process has the id by now. Addresses may be of either; those that come are of this one.
            (process.started, process.looks) = (started, 0);
        }
        process.looks = process.looks.saturating_add(1);
        process.add(maps);
    }

    /// Forgets processes that no stack is of any more.
    pub fn keep(&mut self, pids: &HashSet<u32>) {
        self.known.retain(|pid, _| pids.contains(pid));
    }

    /// Adds a map as if it had been read.
    pub fn insert(&mut self, pid: u32, maps: Maps) {
        self.known.entry(pid).or_default().add(maps);
    }

    /// The mapping that an address of a process lies in, or lay in.
    pub fn find(&self, pid: u32, address: u64) -> Option<&Mapping> {
        self.known.get(&pid)?.maps.iter().rev().find_map(|maps| maps.find(address))
    }
}

impl Process {
    fn add(&mut self, maps: Maps) {
        // A zombie has no memory.
        if maps.mappings.is_empty() || self.maps.last() == Some(&maps) {
            return;
        }
        // A map that only grew (a library was loaded) takes the place of the one before.
        let grown = self.maps.last().is_some_and(|old| old.mappings.iter().all(|m| maps.mappings.contains(m)));
        if grown {
            self.maps.pop();
        }
        self.maps.push(maps);
        if self.maps.len() > MAPS {
            self.maps.remove(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn maps(lines: &[(u64, &str)]) -> Maps {
        let line = |(start, path): &(u64, &str)| format!("{start:x}-{:x} r-xp 0 fe:01 7 {path}\n", start + 0x1000);
        Maps::parse(&lines.iter().map(line).collect::<String>())
    }

    #[test]
    fn execve_keeps_the_map_before_and_a_loaded_library_does_not() {
        let mut processes = Processes::default();
        let path = |p: &Processes, address| p.find(9, address).map(|m| m.path.clone());
        processes.insert(9, maps(&[(0x1000, "/bin/sh")]));
        processes.insert(9, maps(&[(0x5000, "/bin/app")]));
        processes.insert(9, maps(&[(0x5000, "/bin/app"), (0x7000, "/lib/libc.so")]));
        let found = [0x1800, 0x5800, 0x7800, 0x9800].map(|address| path(&processes, address));
        let expected = ["/bin/sh", "/bin/app", "/lib/libc.so"].map(|p| Some(p.to_owned()));
        assert_eq!((&found[..3], &found[3]), (&expected[..], &None));
        processes.insert(9, maps(&[]));
        assert_eq!(path(&processes, 0x5800), expected[1], "a zombie's empty map says nothing");
        processes.insert(9, maps(&[(0x1000, "/bin/third")]));
        assert_eq!(path(&processes, 0x1800).as_deref(), Some("/bin/third"), "the newest counts");
    }

    #[test]
    fn a_process_that_has_ended_stays_known_until_nothing_refers_to_it() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let pid = child.id();
        let mut processes = Processes::default();
        // Until execve(2) is over.
        let name = std::path::PathBuf::from(format!("/proc/{pid}/exe"));
        while !std::fs::read_link(&name).is_ok_and(|exe| exe.ends_with("sleep") || exe.ends_with("coreutils")) {
            std::thread::yield_now();
        }
        processes.learn([pid, 1 << 23]);
        child.kill().unwrap();
        child.wait().unwrap();
        processes.learn([pid]);
        let known = &processes.known[&pid];
        let mapping = &known.maps[0].mappings[0];
        assert_eq!(processes.find(pid, mapping.start), Some(mapping));
        assert_eq!(processes.find(1 << 23, mapping.start), None);
        processes.keep(&HashSet::from([pid]));
        assert_eq!(processes.known.len(), 1);
        processes.keep(&HashSet::new());
        assert_eq!(processes, Processes::default());
    }

    #[test]
    fn a_look_that_took_long_does_not_take_the_place_of_a_later_one() {
        let pid = std::process::id();
        let mut processes = Processes::default();
        let look = |path: &str| Look { maps: maps(&[(0x1000, path)]), ..Look::at(pid).unwrap() };
        let (slow, quick) = (look("/bin/before"), look("/bin/after"));
        processes.add(quick);
        processes.add(slow);
        assert_eq!(processes.find(pid, 0x1800).map(|m| m.path.as_str()), Some("/bin/after"));
        assert_eq!(processes.known[&pid].looks, 1);
    }

    #[test]
    fn another_process_with_the_same_id_goes_before_the_one_that_had_it() {
        let pid = std::process::id();
        let mut processes = Processes::default();
        let own = Maps::of(pid).unwrap().mappings[0].start;
        processes.insert(pid, maps(&[(own, "/bin/before"), (0x1000, "/bin/before")]));
        // As if it had been looked at often enough.
        processes.known.get_mut(&pid).unwrap().looks = LOOKS - 1;
        processes.learn([pid]);
        let path = |address| processes.find(pid, address).map(|m| m.path.as_str());
        assert_ne!(path(own), Some("/bin/before"));
        assert_eq!(path(0x1000), Some("/bin/before"), "what was counted before may be of it");
        assert_eq!(processes.known[&pid].looks, 1);
    }
}
