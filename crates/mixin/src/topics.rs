//! Which pack of probes belongs to which topic: a topic is a dashboard.

use crate::catalogue::{Catalogue, ProbeMetrics};

/// A dashboard's worth of packs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topic {
    /// In file names and addresses.
    pub id: &'static str,
    /// For people.
    pub title: &'static str,
    /// What the dashboard answers.
    pub about: &'static str,
    packs: &'static [&'static str],
}

/// In the order of the reference.
pub const TOPICS: &[Topic] = &[
    Topic {
        id: "syscalls",
        title: "System calls",
        about: "How long system calls take, which fail, and where threads wait for one another.",
        packs: &["syscalls", "recvfrom", "slow_syscalls", "futex"],
    },
    Topic {
        id: "network",
        title: "Network",
        about: "Loss, queues, drops, sizes and lives of connections.",
        packs: &[
            "tcp_retransmits",
            "tcp_backlog",
            "tcp_connect",
            "tcp_sessions",
            "sockets",
            "drops",
            "packet_sizes",
            "name_resolution",
        ],
    },
    Topic {
        id: "scheduler",
        title: "Scheduler and interrupts",
        about: "Waiting for a CPU, who wakes whom, and what interrupts take.",
        packs: &["runqueue", "softirq", "hardirqs", "wakeups", "tasks", "offcpu", "profile_cpu"],
    },
    Topic {
        id: "block",
        title: "Block devices",
        about: "Requests to disks: waiting in the scheduler, working in the device.",
        packs: &["block", "slow_block_io"],
    },
    Topic {
        id: "memory",
        title: "Memory",
        about: "Page faults, the page cache, reclaim and kills.",
        packs: &["page_faults", "page_cache", "direct_reclaim", "oom_kills"],
    },
    Topic {
        id: "files",
        title: "Files",
        about: "Operations on files, by file system and program.",
        packs: &["vfs", "filesystem"],
    },
    Topic {
        id: "postgresql",
        title: "PostgreSQL",
        about: "Queries and plans of PostgreSQL servers.",
        packs: &["postgresql"],
    },
];

impl Topic {
    /// Its probes, in the order of its packs.
    pub fn probes<'a>(&self, catalogue: &'a Catalogue) -> Vec<&'a ProbeMetrics> {
        let of = |pack: &'static str| catalogue.probes.iter().filter(move |probe| probe.pack == pack);
        self.packs.iter().copied().flat_map(of).collect()
    }
}

/// Packs that no topic has, or more than one: none, while the table is whole.
pub fn misplaced(catalogue: &Catalogue) -> Vec<String> {
    let mut found = Vec::new();
    for probe in &catalogue.probes {
        let topics = TOPICS.iter().flat_map(|topic| topic.packs).filter(|pack| **pack == probe.pack).count();
        if topics != 1 {
            found.push(format!("{}: {topics} topics", probe.pack));
        }
    }
    found.dedup();
    found
}
