//! Control groups that are made, filled and removed.

use super::support::groups::unified;
use super::{Made, Oracle, Row, compare, counts, named};
use std::process::Command;

const TIMES: u32 = 10;

/// Makes groups, reads their statistics, which flushes them, and removes them.
fn groups(comm: &str) -> Made {
    named(comm, || {
        for n in 0..TIMES {
            let folder = unified().join(format!("{comm}-{n}"));
            std::fs::create_dir(&folder).unwrap();
            assert!(!std::fs::read_to_string(folder.join("cpu.stat")).unwrap().is_empty());
            std::fs::remove_dir(&folder).unwrap();
        }
    });
    Made::events(TIMES)
}

/// Moves a process into a group.
fn moves(comm: &str) -> Made {
    let folder = unified().join(comm);
    std::fs::create_dir(&folder).unwrap();
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    let child_id = child.id().to_string();
    named(comm, || std::fs::write(folder.join("cgroup.procs"), &child_id).unwrap());
    child.kill().unwrap();
    child.wait().unwrap();
    super::wait_for("the group to be empty", std::time::Duration::from_secs(5), || std::fs::remove_dir(&folder).ok());
    Made::events(1)
}

fn some_time(_: &str) -> Made {
    let begin = std::time::Instant::now();
    while begin.elapsed() < std::time::Duration::from_millis(300) {
        std::hint::black_box(begin);
    }
    std::thread::sleep(std::time::Duration::from_millis(10));
    Made::events(0.05)
}

const ROWS: &[Row] = &[
    Row {
        probe: "cgroup_changes",
        metric: "cgroups_made_total",
        labels: &[("comm", "COMM")],
        exact: true,
        oracle: counts("tracepoint:cgroup:cgroup_mkdir /comm == \"COMM\"/"),
        load: groups,
    },
    Row {
        probe: "cgroup_removals",
        metric: "cgroups_removed_total",
        labels: &[("comm", "COMM")],
        exact: true,
        oracle: counts("tracepoint:cgroup:cgroup_rmdir /comm == \"COMM\"/"),
        load: groups,
    },
    Row {
        probe: "cgroup_moves",
        metric: "cgroup_moves_total",
        labels: &[("comm", "COMM"), ("task", "sleep")],
        exact: true,
        oracle: counts("tracepoint:cgroup:cgroup_attach_task /comm == \"COMM\"/"),
        load: moves,
    },
    Row {
        probe: "rstat_locks",
        metric: "rstat_locks_total",
        labels: &[("comm", "COMM")],
        exact: false,
        oracle: counts("tracepoint:cgroup:cgroup_rstat_locked /comm == \"COMM\"/"),
        load: groups,
    },
    Row {
        probe: "cgroup_cpu",
        metric: "cgroup_cpu_seconds_total",
        labels: &[],
        exact: false,
        oracle: Oracle::None,
        load: some_time,
    },
];

#[test]
#[ignore = "needs root"]
fn root_cgroup_probes_count_what_bpftrace_and_loads_do() {
    compare("root_cgroup_probes_count_what_bpftrace_and_loads_do", ROWS);
}
