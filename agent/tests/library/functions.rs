//! Probes at functions of the kernel, on kernels that take programs there.

use super::support::groups::unified;
use super::{Made, Oracle, Row, compare, named};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::time::{Duration, Instant};

const TIMES: u32 = 20;

fn reads(comm: &str) -> Made {
    let mut zero = File::open("/dev/zero").unwrap();
    named(comm, || (0..TIMES).for_each(|_| zero.read_exact(&mut [0; 100]).unwrap()));
    Made::events(TIMES)
}

fn lives(comm: &str) -> Made {
    let folder = super::support::Folder::new();
    named(comm, || {
        for n in 0..TIMES {
            let path = folder.0.join(format!("{n}"));
            drop(File::create(&path).unwrap());
            std::fs::remove_file(&path).unwrap();
        }
    });
    Made::events(TIMES)
}

fn lookups(comm: &str) -> Made {
    named(comm, || (0..TIMES).for_each(|_| _ = std::fs::metadata("/proc/self/status").unwrap()));
    Made::events(TIMES)
}

fn flushes(comm: &str) -> Made {
    let read = || {
        std::fs::read_to_string(unified().join("memory.stat"))
            .or_else(|_| std::fs::read_to_string(unified().join("cpu.stat")))
    };
    named(comm, || (0..TIMES).for_each(|_| assert!(!read().unwrap().is_empty(), "a group has statistics")));
    Made::events(1)
}

/// A file of an overlay's lower layer that is read, and another that is written to and so copied up.
fn overlay(comm: &str) -> Made {
    let folder = super::support::Folder::new();
    mount(Some("none"), &folder.0, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    let [lower, upper, work, merged] = ["lower", "upper", "work", "merged"].map(|name| folder.0.join(name));
    [&lower, &upper, &work, &merged].iter().for_each(|path| std::fs::create_dir(path).unwrap());
    ["read", "written"].iter().for_each(|name| std::fs::write(lower.join(name), [7; 1000]).unwrap());
    let options = format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
    mount(Some("none"), &merged, Some("overlay"), MsFlags::empty(), Some(options.as_str())).unwrap();
    named(comm, || {
        let mut file = File::open(merged.join("read")).unwrap();
        (0..TIMES).for_each(|_| assert!(file.read(&mut [0; 10]).unwrap() > 0, "the file has as many bytes"));
        let mut file = OpenOptions::new().append(true).open(merged.join("written")).unwrap();
        file.write_all(&[1]).unwrap();
    });
    [&merged, &folder.0].iter().for_each(|path| umount2(path.as_path(), MntFlags::MNT_DETACH).unwrap());
    Made::events(TIMES)
}

fn copies(comm: &str) -> Made {
    overlay(comm);
    Made::events(1)
}

/// A group that may use a tenth of a CPU and wants a whole one.
fn throttled(_: &str) -> Made {
    let above = unified();
    let has_limits = std::fs::read_to_string(above.join("cgroup.controllers")).unwrap().contains("cpu");
    if !has_limits {
        return Made::events(0);
    }
    std::fs::write(above.join("cgroup.subtree_control"), "+cpu").unwrap();
    let group = above.join("kst-throttled");
    std::fs::create_dir(&group).unwrap();
    std::fs::write(group.join("cpu.max"), "10000 100000").unwrap();
    let mut child = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
    std::fs::write(group.join("cgroup.procs"), child.id().to_string()).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    child.kill().unwrap();
    child.wait().unwrap();
    let begin = Instant::now();
    while std::fs::remove_dir(&group).is_err() {
        assert!(begin.elapsed() < Duration::from_secs(5), "the group is empty");
    }
    Made::events(3)
}

const ROWS: &[Row] = &[
    Row {
        probe: "vfs_sizes",
        metric: "vfs_size_bytes_count",
        labels: &[("comm", "COMM"), ("function", "vfs_read")],
        exact: true,
        oracle: Oracle::None,
        load: reads,
    },
    Row {
        probe: "file_life",
        metric: "file_life_seconds_count",
        labels: &[("comm", "COMM")],
        exact: true,
        oracle: Oracle::None,
        load: lives,
    },
    Row {
        probe: "dentry_lookups",
        metric: "dentry_lookups_total",
        labels: &[("comm", "COMM")],
        exact: false,
        oracle: Oracle::None,
        load: lookups,
    },
    Row {
        probe: "dentry_misses",
        metric: "dentry_misses_total",
        labels: &[("comm", "COMM")],
        exact: false,
        oracle: Oracle::None,
        load: lives,
    },
    Row {
        probe: "rstat_flushes",
        metric: "rstat_flush_seconds_count",
        labels: &[("comm", "COMM")],
        exact: false,
        oracle: Oracle::None,
        load: flushes,
    },
    Row {
        probe: "overlayfs",
        metric: "overlayfs_duration_seconds_count",
        labels: &[("comm", "COMM"), ("function", "ovl_read_iter")],
        exact: true,
        oracle: Oracle::None,
        load: overlay,
    },
    Row {
        probe: "overlayfs_copy_up",
        metric: "overlayfs_copy_up_seconds_count",
        labels: &[("comm", "COMM")],
        exact: false,
        oracle: Oracle::None,
        load: copies,
    },
    Row {
        probe: "cpu_throttling",
        metric: "cpu_throttling_seconds_count",
        labels: &[],
        exact: false,
        oracle: Oracle::None,
        load: throttled,
    },
];

#[test]
#[ignore = "needs root"]
fn root_function_probes_count_what_loads_do() {
    let test = "root_function_probes_count_what_loads_do";
    let target = kstrobe::config::compile::look(&[], None);
    let abilities = [&target.abilities.fentry, &target.abilities.kprobe];
    if abilities.iter().any(|ability| ability.yes()) {
        // Brings in the module whose functions are hooked.
        overlay("kst-overlay");
        compare(test, ROWS);
    } else {
        super::support::not_run(test, &format!("no programs at functions: {:?}", abilities[0]));
    }
}
