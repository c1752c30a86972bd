//! A topic is an area of the library of probes (a folder in `probes`), and a dashboard.

use crate::catalogue::{Catalogue, ProbeMetrics};

/// An area of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topic {
    /// Its folder in `probes`; also in file names and addresses.
    pub id: &'static str,
    /// For people.
    pub title: &'static str,
    /// What the dashboard answers.
    pub about: &'static str,
}

/// In the order of the reference.
pub const TOPICS: &[Topic] = &[
    Topic {
        id: "syscalls",
        title: "System calls",
        about: "How long system calls take, which fail, what they open, and where threads wait for one another.",
    },
    Topic { id: "network", title: "Network", about: "Loss, queues, drops, sizes, addresses and lives of connections." },
    Topic { id: "scheduler", title: "Scheduler", about: "Waiting for a CPU, who wakes whom, and the lives of tasks." },
    Topic { id: "interrupts", title: "Interrupts", about: "What interrupts, softirqs and timers take from the CPUs." },
    Topic {
        id: "block",
        title: "Block devices",
        about: "Requests to disks: waiting in the scheduler, working in the device.",
    },
    Topic { id: "memory", title: "Memory", about: "Page faults, the page cache, allocations, reclaim and kills." },
    Topic { id: "filesystem", title: "File systems", about: "Operations on files, by file system, file and program." },
    Topic {
        id: "userspace",
        title: "User space",
        about: "Functions and static probe points of libraries, servers and interpreters.",
    },
    Topic {
        id: "virtualisation",
        title: "Virtualisation",
        about: "Exits of guests and the interrupts that are injected into them.",
    },
    Topic {
        id: "cgroups",
        title: "Control groups",
        about: "CPU limits, statistics, and the making and removal of groups.",
    },
];

impl Topic {
    /// Its probes, in the order of their files.
    pub fn probes<'a>(&self, catalogue: &'a Catalogue) -> Vec<&'a ProbeMetrics> {
        catalogue.probes.iter().filter(|probe| probe.area == self.id).collect()
    }
}

/// Probes in an area that is no topic, and topics without a probe.
pub fn misplaced(catalogue: &Catalogue) -> Vec<String> {
    let is_topic = |probe: &&ProbeMetrics| TOPICS.iter().any(|topic| topic.id == probe.area);
    let strays = catalogue.probes.iter().filter(|probe| !is_topic(probe)).map(|probe| probe.name.clone());
    let empty = TOPICS.iter().filter(|topic| topic.probes(catalogue).is_empty()).map(|topic| topic.id.to_owned());
    strays.chain(empty).collect()
}
