//! The agent's own process, for the `process_*` metrics.

use std::fs::read_to_string;
use std::io;
use std::time::Duration;

/// What the process uses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProcessUsage {
    /// CPU time of all threads, user and system.
    pub cpu: Duration,
    /// Resident memory.
    pub resident_bytes: u64,
    /// Address space.
    pub virtual_bytes: u64,
    /// Seconds since the Unix epoch.
    pub start_time_seconds: f64,
    /// Open file descriptors.
    pub open_fds: u64,
    /// Most file descriptors it may open.
    pub max_fds: Option<u64>,
    /// Threads.
    pub threads: u64,
}

/// Reads it from /proc.
pub fn process_usage() -> io::Result<ProcessUsage> {
    let ticks = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK)?.unwrap_or(100).max(1) as f64;
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE)?.unwrap_or(4096) as u64;
    let stat = parse_stat(&read_to_string("/proc/self/stat")?).ok_or_else(|| invalid("/proc/self/stat"))?;
    let boot = read_to_string("/proc/stat")?
        .lines()
        .find_map(|line| line.strip_prefix("btime ")?.trim().parse::<u64>().ok())
        .ok_or_else(|| invalid("/proc/stat"))?;
    Ok(ProcessUsage {
        cpu: Duration::from_secs_f64(stat.cpu_ticks as f64 / ticks),
        resident_bytes: stat.resident_pages * page,
        virtual_bytes: stat.virtual_bytes,
        start_time_seconds: boot as f64 + stat.start_ticks as f64 / ticks,
        // The directory being read is one of them.
        open_fds: (std::fs::read_dir("/proc/self/fd")?.count() as u64).saturating_sub(1),
        max_fds: max_fds(&read_to_string("/proc/self/limits")?),
        threads: stat.threads,
    })
}

fn invalid(path: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{path} has another form than expected"))
}

struct Stat {
    cpu_ticks: u64,
    threads: u64,
    start_ticks: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

fn parse_stat(text: &str) -> Option<Stat> {
    // The second field is the name in parentheses, which may itself hold spaces and parentheses; the third is number 0 here.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |i: usize| fields.get(i)?.parse::<u64>().ok();
    Some(Stat {
        cpu_ticks: number(11)?.saturating_add(number(12)?),
        threads: number(17)?,
        start_ticks: number(19)?,
        virtual_bytes: number(20)?,
        resident_pages: number(21)?,
    })
}

fn max_fds(limits: &str) -> Option<u64> {
    limits.lines().find_map(|line| line.strip_prefix("Max open files")?.split_whitespace().next()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_with_an_awkward_name() {
        let text =
            "7 (a) b (c) S 1 7 7 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 9 0 4242 1000000 300 18446744073709551615 1 1";
        let stat = parse_stat(text).unwrap();
        assert_eq!((stat.cpu_ticks, stat.threads, stat.start_ticks), (300, 9, 4242));
        assert_eq!((stat.virtual_bytes, stat.resident_pages), (1_000_000, 300));
        assert!(parse_stat("7 (x) S 1").is_none());
        assert!(parse_stat("").is_none());
    }

    #[test]
    fn limits() {
        let text = "Limit    Soft Limit  Hard Limit  Units\nMax open files            1024                 524288               files\n";
        assert_eq!(max_fds(text), Some(1024));
        assert_eq!(max_fds("Max open files   unlimited unlimited files"), None);
    }

    #[test]
    fn this_process() {
        let usage = process_usage().unwrap();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
        assert!(usage.resident_bytes > 100 << 10 && usage.resident_bytes < usage.virtual_bytes, "{usage:?}");
        assert!(usage.start_time_seconds > now - 3600.0 && usage.start_time_seconds < now + 2.0, "{usage:?}");
        assert!(usage.open_fds >= 3 && usage.open_fds < 200 && usage.threads >= 1, "{usage:?}");
    }
}
