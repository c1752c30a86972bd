//! What the kernel says of a process in one line, `/proc/PID/stat`.

use std::fs;
use std::path::Path;

/// The fields of it that we read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// CPU time of all threads, user and system.
    pub cpu_ticks: u64,
    /// When it started, in ticks since boot: tells it from a later process of the same id.
    pub started_ticks: u64,
    /// Address space.
    pub virtual_bytes: u64,
    /// Resident memory.
    pub resident_pages: u64,
    /// Where the stack of the first thread begins: the kernel chooses it by chance at each execve(2), unless the process has asked
    /// it not to (`ADDR_NO_RANDOMIZE`). 0 without the right to trace the process.
    pub stack_start: u64,
}

impl Stat {
    /// Of a process by its id.
    pub fn of_pid(pid: u32) -> Option<Stat> {
        Stat::of(Path::new(&format!("/proc/{pid}")))
    }

    /// Of the process with this folder in /proc; `None` when it is gone or nothing that we know.
    pub fn of(process: &Path) -> Option<Stat> {
        // A name is bytes.
        Stat::parse(&String::from_utf8_lossy(&fs::read(process.join("stat")).ok()?))
    }

    /// Fields are counted from 1 in proc(5); those after the name, which may hold spaces and brackets, begin at 3.
    fn parse(text: &str) -> Option<Stat> {
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Stat {
            cpu_ticks: field(14)? + field(15)?,
            started_ticks: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
            stack_start: field(28).unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_may_hold_anything() {
        let text = "7 (a) b (c) R 1 2 3 4 -1 4194304 99 0 0 0 250 50 0 0 20 0 1 0 317656 3133440 380 18446744073709551615 1 2 140722\n";
        let stat = Stat {
            cpu_ticks: 300,
            started_ticks: 317_656,
            virtual_bytes: 3_133_440,
            resident_pages: 380,
            stack_start: 140_722,
        };
        assert_eq!(Stat::parse(text), Some(stat));
        assert_eq!(Stat::parse("7 (a) R 1 2"), None);
        assert_eq!(Stat::parse(""), None);
    }
}
