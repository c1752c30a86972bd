//! System calls, each made so often by a thread of a name of its own.

use super::{Made, Row, compare, counts, load, named, sums};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::unistd::{Pid, getuid, setfsuid};
use std::io::{IsTerminal, Read, Write};
use std::time::Duration;

const CALLS: u32 = 25;
const NOWHERE: &str = "/nonexistent/kst-library";

fn opens(comm: &str) -> Made {
    named(comm, || (0..CALLS).for_each(|_| assert!(std::fs::File::open(NOWHERE).is_err(), "there is no such file")));
    Made::events(CALLS)
}

fn stats(comm: &str) -> Made {
    named(comm, || (0..CALLS).for_each(|_| assert!(std::fs::metadata(NOWHERE).is_err(), "there is no such file")));
    Made::events(CALLS)
}

fn mounts(comm: &str) -> Made {
    let refused = || mount(Some("none"), NOWHERE, Some("tmpfs"), MsFlags::empty(), None::<&str>).is_err();
    named(comm, || (0..CALLS).for_each(|_| assert!(refused(), "there is no such folder")));
    Made::events(CALLS)
}

fn unmounts(comm: &str) -> Made {
    named(comm, || (0..CALLS).for_each(|_| assert!(umount2(NOWHERE, MntFlags::MNT_DETACH).is_err(), "nothing there")));
    Made::events(CALLS)
}

pub(super) fn ioctls(comm: &str) -> Made {
    let file = std::fs::File::open("/dev/null").unwrap();
    named(comm, || (0..CALLS).for_each(|_| assert!(!file.is_terminal(), "it is no terminal")));
    // TCGETS, by which the C library asks.
    Made::events(CALLS).with("request", 0x5401)
}

fn getppids(comm: &str) -> Made {
    named(comm, || load::getppid_calls(CALLS));
    Made::events(CALLS)
}

fn reads(comm: &str) -> Made {
    let mut zero = std::fs::File::open("/dev/zero").unwrap();
    named(comm, || (0..CALLS).for_each(|_| zero.read_exact(&mut [0; 100]).unwrap()));
    Made::events(100 * CALLS)
}

fn writes(comm: &str) -> Made {
    let mut null = std::fs::OpenOptions::new().write(true).open("/dev/null").unwrap();
    named(comm, || (0..CALLS).for_each(|_| null.write_all(&[0; 100]).unwrap()));
    Made::events(CALLS)
}

pub(super) fn sleeps(comm: &str) -> Made {
    named(comm, || (0..CALLS).for_each(|_| std::thread::sleep(Duration::from_millis(1))));
    Made::events(CALLS)
}

fn identities(comm: &str) -> Made {
    named(comm, || (0..CALLS).for_each(|_| assert_eq!(setfsuid(getuid()), getuid())));
    Made::events(CALLS)
}

fn traces(comm: &str) -> Made {
    let refused = || nix::sys::ptrace::attach(Pid::from_raw(i32::MAX)).is_err();
    named(comm, || (0..CALLS).for_each(|_| assert!(refused(), "there is no such process")));
    Made::events(CALLS)
}

/// Of a folder that is no mount point: the right to unmount is looked at before.
fn checks(comm: &str) -> Made {
    let folder = super::support::Folder::new();
    let refused = || umount2(&folder.0, MntFlags::MNT_DETACH).is_err();
    named(comm, || (0..CALLS).for_each(|_| assert!(refused(), "nothing is mounted there")));
    Made::events(CALLS)
}

/// Makes a system call with the path of no file, by its number: no C library makes those of old programs.
#[cfg(target_arch = "x86_64")]
fn calls_by_number(comm: &str, numbers: &[i64]) -> Made {
    // Guests of the lab have no interpreter.
    if super::lab().is_some() {
        return Made::events(0);
    }
    let calls: String = numbers.iter().map(|number| format!("syscall({number}, $path, $room);")).collect();
    let script = format!("$0 = '{comm}'; $path = '{NOWHERE}'; $room = ' ' x 256; for (1 .. {CALLS}) {{ {calls} }}");
    assert!(std::process::Command::new("perl").args(["-e", &script]).status().unwrap().success());
    Made::events(CALLS * numbers.len() as u32)
}

#[cfg(target_arch = "x86_64")]
fn old_opens(comm: &str) -> Made {
    // open(2): arch/x86/entry/syscalls/syscall_64.tbl
    calls_by_number(comm, &[2])
}

#[cfg(target_arch = "x86_64")]
fn old_stats(comm: &str) -> Made {
    // stat(2) and lstat(2)
    calls_by_number(comm, &[4, 6])
}

const ROWS: &[Row] = &[
    #[cfg(target_arch = "x86_64")]
    Row {
        probe: "opens_by_path",
        metric: "opens_by_path_total",
        labels: &[("comm", "COMM"), ("failed", "true")],
        exact: true,
        oracle: counts("tracepoint:syscalls:sys_exit_open /comm == \"COMM\" && args->ret < 0/"),
        load: old_opens,
    },
    #[cfg(target_arch = "x86_64")]
    Row {
        probe: "stats_by_path",
        metric: "stats_by_path_total",
        labels: &[("comm", "COMM"), ("failed", "true")],
        exact: true,
        oracle: counts(
            "tracepoint:syscalls:sys_exit_newstat,tracepoint:syscalls:sys_exit_newlstat /comm == \"COMM\" && args->ret < 0/",
        ),
        load: old_stats,
    },
    Row {
        probe: "opens",
        metric: "open_errors_total",
        labels: &[("comm", "COMM"), ("errno", "ENOENT")],
        exact: true,
        oracle: counts("tracepoint:syscalls:sys_exit_openat /comm == \"COMM\" && args->ret == -2/"),
        load: opens,
    },
    Row {
        probe: "stats",
        metric: "stats_total",
        labels: &[("comm", "COMM"), ("failed", "true")],
        exact: true,
        oracle: counts("tracepoint:syscalls:sys_exit_statx /comm == \"COMM\" && args->ret < 0/"),
        load: stats,
    },
    Row {
        probe: "mounts",
        metric: "mounts_total",
        labels: &[("comm", "COMM"), ("failed", "true")],
        exact: true,
        oracle: counts("tracepoint:syscalls:sys_exit_mount /comm == \"COMM\"/"),
        load: mounts,
    },
    Row {
        probe: "unmounts",
        metric: "unmounts_total",
        labels: &[("comm", "COMM"), ("failed", "true")],
        exact: true,
        oracle: counts("tracepoint:syscalls:sys_exit_umount /comm == \"COMM\"/"),
        load: unmounts,
    },
    Row {
        probe: "ioctls",
        metric: "ioctl_errors_total",
        labels: &[("comm", "COMM"), ("errno", "ENOTTY")],
        exact: true,
        oracle: counts("tracepoint:syscalls:sys_exit_ioctl /comm == \"COMM\"/"),
        load: ioctls,
    },
    Row {
        probe: "syscalls_by_program",
        metric: "program_syscalls_total",
        labels: &[("comm", "COMM"), ("syscall", "getppid")],
        exact: true,
        oracle: counts("tracepoint:syscalls:sys_enter_getppid /comm == \"COMM\"/"),
        load: getppids,
    },
    Row {
        probe: "read_write",
        metric: "read_write_bytes_total",
        labels: &[("comm", "COMM"), ("syscall", "read")],
        exact: true,
        oracle: sums("tracepoint:syscalls:sys_exit_read /comm == \"COMM\" && args->ret > 0/", "args->ret"),
        load: reads,
    },
    Row {
        probe: "read_write",
        metric: "read_write_calls_total",
        labels: &[("comm", "COMM"), ("syscall", "write")],
        exact: true,
        oracle: counts("tracepoint:syscalls:sys_exit_write /comm == \"COMM\" && args->ret > 0/"),
        load: writes,
    },
    Row {
        probe: "sleeps",
        metric: "sleep_duration_seconds_count",
        labels: &[("comm", "COMM")],
        exact: true,
        oracle: counts("tracepoint:syscalls:sys_exit_clock_nanosleep /comm == \"COMM\"/"),
        load: sleeps,
    },
    Row {
        probe: "identity_changes",
        metric: "identity_changes_total",
        labels: &[("comm", "COMM"), ("syscall", "setfsuid")],
        exact: true,
        oracle: counts("tracepoint:syscalls:sys_exit_setfsuid /comm == \"COMM\"/"),
        load: identities,
    },
    Row {
        probe: "introspection_calls",
        metric: "introspection_calls_total",
        labels: &[("comm", "COMM"), ("syscall", "ptrace"), ("failed", "true")],
        exact: true,
        oracle: counts("tracepoint:syscalls:sys_exit_ptrace /comm == \"COMM\"/"),
        load: traces,
    },
    Row {
        probe: "capabilities",
        metric: "capability_checks_total",
        labels: &[("comm", "COMM"), ("capability", "CAP_SYS_ADMIN")],
        exact: false,
        oracle: counts("tracepoint:capability:cap_capable /comm == \"COMM\" && args->cap == 21/"),
        load: checks,
    },
];

#[test]
#[ignore = "needs root"]
fn root_syscall_probes_count_what_bpftrace_and_loads_do() {
    compare("root_syscall_probes_count_what_bpftrace_and_loads_do", ROWS);
}
