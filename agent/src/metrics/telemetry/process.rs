//! `process_*`: the names every Prometheus client library uses, read from procfs at each exposition.

use super::single;
use crate::kernel::procfs::Stat;
use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::{SysconfVar, sysconf};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use std::fmt;
use std::fs;
use std::path::Path;

/// Reads `/proc/self`.
#[derive(Debug)]
pub struct ProcessCollector {
    ticks_per_second: f64,
    page_bytes: u64,
    /// Seconds since the epoch. Read once: the kernel's boot time moves with every adjustment of the clock.
    started: Option<f64>,
}

impl ProcessCollector {
    pub fn new() -> Self {
        let number = |variable| sysconf(variable).ok().flatten();
        let ticks_per_second = number(SysconfVar::CLK_TCK).unwrap_or(100) as f64;
        let page_bytes = number(SysconfVar::PAGE_SIZE).and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(4096);
        let boot = fs::read_to_string("/proc/stat").ok().and_then(|text| boot_time(&text));
        let started =
            boot.zip(own_stat()).map(|(boot, stat)| boot as f64 + stat.started_ticks as f64 / ticks_per_second);
        Self { ticks_per_second, page_bytes, started }
    }
}

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let out = &mut encoder;
        if let Some(stat) = own_stat() {
            let cpu = ConstCounter::new(stat.cpu_ticks as f64 / self.ticks_per_second);
            single(out, "process_cpu", "User and system CPU time of the agent.", Some(Unit::Seconds), cpu)?;
            let resident = ConstGauge::new(stat.resident_pages * self.page_bytes);
            single(out, "process_resident_memory", "Resident memory of the agent.", Some(Unit::Bytes), resident)?;
            let mapped = ConstGauge::new(stat.virtual_bytes);
            single(out, "process_virtual_memory", "Virtual memory of the agent.", Some(Unit::Bytes), mapped)?;
        }
        if let Some(started) = self.started {
            let help = "Start of the agent since the epoch.";
            single(out, "process_start_time", help, Some(Unit::Seconds), ConstGauge::new(started))?;
        }
        // One of them is the directory being listed.
        if let Ok(open) = fs::read_dir("/proc/self/fd") {
            let open = ConstGauge::new(open.count().saturating_sub(1) as u64);
            single(out, "process_open_fds", "Open file descriptors.", None, open)?;
        }
        if let Ok((soft, _)) = getrlimit(Resource::RLIMIT_NOFILE) {
            single(out, "process_max_fds", "Most open file descriptors.", None, ConstGauge::new(soft))?;
        }
        Ok(())
    }
}

fn own_stat() -> Option<Stat> {
    Stat::of(Path::new("/proc/self"))
}

fn boot_time(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_time_is_one_line_of_many() {
        assert_eq!(boot_time("cpu 1 2\nbtime 1700000000\nprocesses 5\n"), Some(1_700_000_000));
        assert_eq!(boot_time("cpu 1 2\n"), None);
    }
}
