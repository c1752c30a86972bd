//! The objectives that are shipped: one for each latency of the kernel that has a bound beyond which somebody waits. They
//! are a start; `kstrobe slo` prints the rules of one's own.

use crate::catalogue::{Catalogue, Kind};
use crate::slo::Objective;

struct Shipped {
    name: &'static str,
    service: &'static str,
    metric: &'static str,
    matchers: &'static str,
    threshold: f64,
    percent: f64,
    says: &'static str,
}

const SHIPPED: &[Shipped] = &[
    Shipped {
        name: "file-syscalls",
        service: "syscalls",
        metric: "kstrobe_syscall_duration_seconds",
        // Calls that wait for the file system alone.
        matchers: r#"syscall=~"openat|openat2|close|newfstatat|statx|getdents64|mkdirat|unlinkat|renameat2""#,
        threshold: 0.01,
        percent: 99.9,
        says: "99.9 % of the system calls on files that should not wait take 10 ms or less",
    },
    Shipped {
        name: "receive-work",
        service: "network",
        metric: "kstrobe_recv_work_seconds",
        matchers: "",
        threshold: 0.001,
        percent: 99.9,
        says: "99.9 % of recvfrom and recvmsg work 1 ms or less, waiting for data aside",
    },
    Shipped {
        name: "softirq-delay",
        service: "scheduler",
        metric: "kstrobe_softirq_delay_seconds",
        matchers: "",
        threshold: 0.01,
        percent: 99.9,
        says: "99.9 % of raised softirqs run within 10 ms",
    },
    Shipped {
        name: "softirq-duration",
        service: "scheduler",
        metric: "kstrobe_softirq_duration_seconds",
        matchers: "",
        threshold: 0.0025,
        percent: 99.9,
        says: "99.9 % of the runs of softirq handlers take 2.5 ms or less",
    },
    Shipped {
        name: "hardirq-duration",
        service: "scheduler",
        metric: "kstrobe_hardirq_duration_seconds",
        matchers: "",
        threshold: 0.001,
        percent: 99.9,
        says: "99.9 % of the runs of interrupt handlers take 1 ms or less",
    },
    Shipped {
        name: "runqueue-latency",
        service: "scheduler",
        metric: "kstrobe_runqueue_latency_seconds",
        matchers: "",
        threshold: 0.01,
        percent: 99.0,
        says: "99 % of runnable tasks wait 10 ms or less for a CPU",
    },
    Shipped {
        name: "block-io",
        service: "block",
        metric: "kstrobe_block_io_duration_seconds",
        matchers: r#"operation=~"read|write""#,
        threshold: 0.1,
        percent: 99.0,
        says: "99 % of block reads and writes complete within 100 ms of their issue",
    },
    Shipped {
        name: "block-queue",
        service: "block",
        metric: "kstrobe_block_queue_duration_seconds",
        matchers: "",
        threshold: 0.05,
        percent: 99.0,
        says: "99 % of block requests leave the I/O scheduler within 50 ms",
    },
    Shipped {
        name: "file-operations",
        service: "files",
        metric: "kstrobe_filesystem_operation_duration_seconds",
        matchers: r#"function=~"vfs_open|vfs_fsync_range""#,
        threshold: 0.1,
        percent: 99.0,
        says: "99 % of opens and syncs of files take 100 ms or less",
    },
    Shipped {
        name: "direct-reclaim",
        service: "memory",
        metric: "kstrobe_direct_reclaim_duration_seconds",
        matchers: "",
        threshold: 0.01,
        percent: 99.0,
        says: "99 % of direct reclaims take 10 ms or less",
    },
    Shipped {
        name: "cgroup-reclaim",
        service: "memory",
        metric: "kstrobe_memcg_reclaim_duration_seconds",
        matchers: "",
        threshold: 0.01,
        percent: 99.0,
        says: "99 % of reclaims at a cgroup's limit take 10 ms or less",
    },
    Shipped {
        name: "page-faults",
        service: "memory",
        metric: "kstrobe_page_fault_duration_seconds",
        matchers: "",
        threshold: 0.001,
        percent: 99.9,
        says: "99.9 % of page faults are resolved within 1 ms",
    },
    Shipped {
        name: "tcp-connect",
        service: "network",
        metric: "kstrobe_tcp_connect_duration_seconds",
        matchers: "",
        threshold: 0.25,
        percent: 99.0,
        says: "99 % of TCP connects are answered within 250 ms",
    },
    Shipped {
        name: "name-resolution",
        service: "network",
        metric: "kstrobe_name_resolution_duration_seconds",
        matchers: "",
        threshold: 0.1,
        percent: 99.0,
        says: "99 % of getaddrinfo take 100 ms or less",
    },
    Shipped {
        name: "queries",
        service: "postgresql",
        metric: "kstrobe_postgresql_query_duration_seconds",
        matchers: "",
        threshold: 0.25,
        percent: 99.0,
        says: "99 % of the queries of PostgreSQL take 250 ms or less",
    },
    Shipped {
        name: "plans",
        service: "postgresql",
        metric: "kstrobe_postgresql_plan_duration_seconds",
        matchers: "",
        threshold: 0.025,
        percent: 99.0,
        says: "99 % of the plans of PostgreSQL are made within 25 ms",
    },
];

/// Latencies without an objective, each with the reason.
const NONE: &[(&str, &str)] = &[
    ("kstrobe_recv_duration_seconds", "contains the wait for a peer that may have nothing to say"),
    ("kstrobe_recv_wait_seconds", "is the wait for a peer that may have nothing to say"),
    ("kstrobe_futex_wait_duration_seconds", "idle pools of threads wait here"),
    ("kstrobe_futex_wait_off_cpu_seconds", "idle pools of threads wait here"),
    ("kstrobe_tcp_session_duration_seconds", "long lives are no fault"),
    ("kstrobe_vfs_duration_seconds", "reads of sockets and pipes wait for a peer"),
    ("kstrobe_postgresql_query_wait_seconds", "is part of the query's duration"),
];

/// Labels that tell budgets apart: each agent has its own.
pub const BY: [&str; 2] = ["job", "instance"];

/// All of them.
pub fn shipped() -> Vec<Objective> {
    let objective = |s: &Shipped| Objective {
        service: format!("kstrobe-{}", s.service),
        name: s.name.to_owned(),
        metric: s.metric.to_owned(),
        matchers: s.matchers.to_owned(),
        threshold: s.threshold,
        percent: s.percent,
        by: BY.map(str::to_owned).to_vec(),
        says: s.says.to_owned(),
    };
    SHIPPED.iter().map(objective).collect()
}

/// What is wrong with the table: thresholds that are no bounds, latencies of which nothing is said.
pub fn mistakes(catalogue: &Catalogue) -> Vec<String> {
    let mut found = Vec::new();
    for objective in shipped() {
        match catalogue.find(&objective.metric) {
            None => found.push(format!("no metric {}", objective.metric)),
            Some((_, metric)) if !metric.bounds.contains(&objective.threshold) => {
                found.push(format!("{} is no bound of {}", objective.threshold, objective.metric));
            }
            Some(_) => {}
        }
    }
    for metric in catalogue.probes.iter().flat_map(|probe| &probe.metrics) {
        let latency = metric.kind == Kind::Histogram && metric.unit == "seconds";
        let objectives = SHIPPED.iter().filter(|s| s.metric == metric.name).count();
        let reasons = NONE.iter().filter(|(name, _)| *name == metric.name).count();
        if latency && objectives + reasons != 1 {
            found.push(format!("{}: {objectives} objectives, {reasons} reasons for none", metric.name));
        }
    }
    let known = |name: &str| catalogue.find(name).is_some();
    found.extend(NONE.iter().filter(|(name, _)| !known(name)).map(|(name, _)| format!("no metric {name}")));
    found
}
