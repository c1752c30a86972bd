//! Which CPUs share caches.

use crate::kernel::detect::{cpu_list, online_cpus};
use std::collections::BTreeMap;

const CPUS: &str = "/sys/devices/system/cpu";

/// The CPUs of each last-level cache, by their first CPU. In a list those that share caches of their own stand together. Empty where the
/// kernel does not say.
pub fn caches() -> Vec<Vec<u32>> {
    let read = |path: &str| std::fs::read_to_string(format!("{CPUS}/{path}")).ok();
    caches_of(&online_cpus(), &read)
}

/// `read` gives the text of a file below [`CPUS`].
fn caches_of(online: &[u32], read: &dyn Fn(&str) -> Option<String>) -> Vec<Vec<u32>> {
    let Some(first) = online.first() else { return Vec::new() };
    // By level, the number of the cache in sysfs, which is the same for all CPUs of a machine.
    let mut levels: BTreeMap<u32, u32> = BTreeMap::new();
    for index in 0.. {
        let file = |name: &str| read(&format!("cpu{first}/cache/index{index}/{name}"));
        let Some(level) = file("level").and_then(|level| level.trim().parse().ok()) else { break };
        if file("type").is_none_or(|kind| kind.trim() != "Instruction") {
            levels.insert(level, index);
        }
    }
    // The first CPU of the cache that each CPU has, the last level first: sorted by it, neighbours stand together.
    let mut order: BTreeMap<u32, Vec<u32>> = online.iter().map(|cpu| (*cpu, Vec::new())).collect();
    for (depth, index) in levels.values().rev().enumerate() {
        for cpu in online {
            // It was in the list of a CPU before it.
            if order[cpu].len() > depth {
                continue;
            }
            let list = read(&format!("cpu{cpu}/cache/index{index}/shared_cpu_list")).map(|list| cpu_list(&list));
            for sharing in list.as_deref().unwrap_or(&[]).iter().chain([cpu]) {
                if let Some(path) = order.get_mut(sharing).filter(|path| path.len() == depth) {
                    path.push(*cpu);
                }
            }
        }
    }
    let mut sorted: Vec<(Vec<u32>, u32)> = order.into_iter().map(|(cpu, path)| (path, cpu)).collect();
    sorted.sort();
    let same = |a: &(Vec<u32>, u32), b: &(Vec<u32>, u32)| !a.0.is_empty() && a.0.first() == b.0.first();
    let lists = sorted.chunk_by(same).filter(|_| !levels.is_empty());
    lists.map(|list| list.iter().map(|(_, cpu)| *cpu).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine's files: level 1 of one core, level 2 of one core, level 3 of one socket.
    fn file(path: &str, core: &dyn Fn(u32) -> String, socket: &dyn Fn(u32) -> String) -> Option<String> {
        let (cpu, rest) = path.strip_prefix("cpu")?.split_once("/cache/index")?;
        let (index, name) = rest.split_once('/')?;
        let index: usize = index.parse().ok()?;
        let (level, kind) = [("1", "Data"), ("1", "Instruction"), ("2", "Unified"), ("3", "Unified")].get(index)?;
        let cpu = cpu.parse().ok()?;
        Some(match name {
            "level" => format!("{level}\n"),
            "type" => format!("{kind}\n"),
            "shared_cpu_list" if index == 3 => socket(cpu),
            "shared_cpu_list" => core(cpu),
            _ => return None,
        })
    }

    #[test]
    fn sockets_come_apart_and_threads_of_a_core_together() {
        // As on a machine of two sockets with 16 cores of two threads each.
        let core = |cpu: u32| format!("{},{}\n", cpu % 32, cpu % 32 + 32);
        let socket = |cpu: u32| if cpu % 32 < 16 { "0-15,32-47\n".into() } else { "16-31,48-63\n".to_owned() };
        let online: Vec<u32> = (0..64).collect();
        let caches = caches_of(&online, &|path| file(path, &core, &socket));
        let expected = |first: u32| (first..first + 16).flat_map(|core| [core, core + 32]).collect::<Vec<u32>>();
        assert_eq!(caches, [expected(0), expected(16)]);
    }

    #[test]
    fn cpus_that_are_offline_are_left_out() {
        let core = |cpu: u32| format!("{cpu}\n");
        let socket = |cpu: u32| if cpu < 4 { "0-3\n".into() } else { "4-7\n".to_owned() };
        let caches = caches_of(&[1, 3, 6], &|path| file(path, &core, &socket));
        assert_eq!(caches, [vec![1, 3], vec![6]]);
    }

    #[test]
    fn without_caches_in_sysfs_there_are_no_lists() {
        assert!(caches_of(&[0, 1], &|_| None).is_empty());
        assert!(caches_of(&[], &|_| Some("1".into())).is_empty());
    }

    #[test]
    fn this_machine_lists_no_cpu_twice() {
        let mut cpus: Vec<u32> = caches().concat();
        let online = online_cpus();
        cpus.sort_unstable();
        assert!(cpus.is_empty() || cpus == online, "{cpus:?} {online:?}");
    }
}
