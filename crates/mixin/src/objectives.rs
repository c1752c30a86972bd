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
        name: "dns-queries",
        service: "network",
        metric: "kstrobe_dns_duration_seconds",
        matchers: "",
        threshold: 0.1,
        percent: 99.0,
        says: "99 % of DNS queries are answered within 100 ms",
    },
    Shipped {
        name: "accept-wait",
        service: "network",
        metric: "kstrobe_tcp_accept_wait_seconds",
        matchers: "",
        threshold: 0.1,
        percent: 99.0,
        says: "99 % of TCP connections are accepted within 100 ms of their handshake",
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
    ("kstrobe_sleep_duration_seconds", "programs sleep as long as they want"),
    ("kstrobe_ioctl_duration_seconds", "some requests wait for a device to have something to say"),
    ("kstrobe_io_uring_duration_seconds", "reads of sockets and timeouts wait for a peer or for time"),
    ("kstrobe_tcp_state_duration_seconds", "long lives are no fault"),
    ("kstrobe_tcp_first_byte_seconds", "a peer may have nothing to say"),
    ("kstrobe_tcp_rtt_seconds", "the distance to a peer is no fault"),
    ("kstrobe_qdisc_wait_seconds", "a shaper delays on purpose"),
    ("kstrobe_unix_connect_duration_seconds", "the pace of accepts is the server's"),
    ("kstrobe_oncpu_turn_seconds", "long turns on a CPU are no fault"),
    ("kstrobe_migration_latency_seconds", "is part of the wait in a run queue"),
    ("kstrobe_process_lifetime_seconds", "long lives are no fault"),
    ("kstrobe_workqueue_duration_seconds", "each function has a time of its own"),
    ("kstrobe_workqueue_delay_seconds", "some queues take their work one by one"),
    ("kstrobe_kernel_lock_wait_seconds", "a sleeping lock may be held for long on purpose"),
    ("kstrobe_cpu_idle_seconds", "idle time is no fault"),
    ("kstrobe_timer_duration_seconds", "is part of a softirq's duration"),
    ("kstrobe_hrtimer_duration_seconds", "is part of a timer interrupt's duration"),
    ("kstrobe_local_timer_interrupt_seconds", "depends on the timers that expire in it"),
    ("kstrobe_interprocessor_interrupt_seconds", "each function that is called has a time of its own"),
    ("kstrobe_tasklet_duration_seconds", "is part of a softirq's duration"),
    ("kstrobe_scsi_command_duration_seconds", "is part of a block request's duration"),
    ("kstrobe_file_io_duration_seconds", "reads past the page cache are as slow as the disk"),
    ("kstrobe_file_life_seconds", "short lives are no fault"),
    ("kstrobe_file_lock_wait_seconds", "a lock may be held for long on purpose"),
    ("kstrobe_sync_duration_seconds", "depends on how much was dirtied before"),
    ("kstrobe_writeback_duration_seconds", "no program waits for a write-out in the background"),
    ("kstrobe_dirty_throttle_seconds", "the kernel holds back on purpose"),
    ("kstrobe_journal_commit_seconds", "is part of the time of the syncs that wait for it"),
    ("kstrobe_ext4_sync_seconds", "depends on how much was dirtied before"),
    ("kstrobe_nfs_duration_seconds", "is the server's and the network's"),
    ("kstrobe_overlayfs_duration_seconds", "is part of the time of the file systems below"),
    ("kstrobe_overlayfs_copy_up_seconds", "is as long as the file"),
    ("kstrobe_compaction_duration_seconds", "most of it is made in the background"),
    ("kstrobe_kswapd_duration_seconds", "is work in the background"),
    ("kstrobe_shrinker_duration_seconds", "is part of a reclaim's duration"),
    ("kstrobe_mutex_wait_seconds", "a mutex may be held for long on purpose"),
    ("kstrobe_tls_handshake_seconds", "a call that does not block is a part of the handshake"),
    ("kstrobe_mysql_command_duration_seconds", "a command may be any query"),
    ("kstrobe_python_gc_seconds", "depends on the program's objects"),
    ("kstrobe_java_gc_seconds", "depends on the collector and the heap"),
    ("kstrobe_kvm_exit_seconds", "a guest that halts waits in an exit"),
    ("kstrobe_cpu_throttling_seconds", "is what the group's limit asks for"),
    ("kstrobe_rstat_flush_seconds", "depends on how many groups changed"),
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
