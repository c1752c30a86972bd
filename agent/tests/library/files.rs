//! Files and the disk below them.

use super::{Made, Oracle, Row, compare, counts, named, sums, whole};
use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::unistd::{UnlinkatFlags, unlinkat};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

const TIMES: u32 = 20;
const BYTES: usize = 3000;

fn file_of(folder: &super::support::Folder) -> File {
    let path = folder.0.join("kst-file");
    OpenOptions::new().create(true).truncate(true).read(true).write(true).open(path).unwrap()
}

fn writes(comm: &str) -> Made {
    let folder = super::support::Folder::new();
    let mut file = file_of(&folder);
    named(comm, || (0..TIMES).for_each(|_| file.write_all(&[1; BYTES]).unwrap()));
    Made::events(f64::from(TIMES) * BYTES as f64)
}

/// None of pipes, which are no files.
fn reads(comm: &str) -> Made {
    let folder = super::support::Folder::new();
    let mut file = file_of(&folder);
    file.write_all_at(&[1; BYTES], 0).unwrap();
    let (mut from, mut to) = std::io::pipe().unwrap();
    named(comm, || {
        let mut block = [0; BYTES];
        file.read_exact(&mut block).unwrap();
        to.write_all(&block).unwrap();
        from.read_exact(&mut block).unwrap();
    });
    Made::events(BYTES as f64)
}

pub(super) fn syncs(comm: &str) -> Made {
    let folder = super::support::Folder::new();
    let mut file = file_of(&folder);
    named(comm, || {
        for _ in 0..TIMES {
            file.write_all(&[1]).unwrap();
            file.sync_data().unwrap();
        }
    });
    Made::events(TIMES)
}

fn removals(comm: &str) -> Made {
    let folder = super::support::Folder::new();
    let paths: Vec<_> = (0..TIMES).map(|n| folder.write(&format!("{n}"), "")).collect();
    let here = File::open(&folder.0).unwrap();
    named(comm, || paths.iter().for_each(|path| unlinkat(&here, path.as_path(), UnlinkatFlags::NoRemoveDir).unwrap()));
    Made::events(TIMES)
}

fn renames(comm: &str) -> Made {
    let folder = super::support::Folder::new();
    let [a, b] = ["a", "b"].map(|name| folder.0.join(name));
    std::fs::write(&a, "").unwrap();
    named(comm, || {
        for n in 0..TIMES {
            let (from, to) = if n % 2 == 0 { (&a, &b) } else { (&b, &a) };
            std::fs::rename(from, to).unwrap();
        }
    });
    Made::events(TIMES)
}

pub(super) fn locks(comm: &str) -> Made {
    let folder = super::support::Folder::new();
    let path = folder.write("lock", "");
    named(comm, || {
        for _ in 0..TIMES {
            drop(Flock::lock(File::open(&path).unwrap(), FlockArg::LockExclusive).unwrap());
        }
    });
    Made::events(TIMES)
}

/// Reads past the page cache, each of which is a request to the disk.
pub(super) fn disk_reads(comm: &str) -> Made {
    #[repr(align(4096))]
    struct Block([u8; 4096]);
    let folder = super::support::Folder::new();
    // A guest of the lab has its files in memory, and a disk to spare.
    let disk = std::env::var("KSTROBE_SPARE_DISK").map(|disk| std::path::PathBuf::from(format!("/dev/{disk}")));
    let path = disk.unwrap_or_else(|_| {
        let path = folder.0.join("blocks");
        std::fs::write(&path, vec![7; 64 * 4096]).unwrap();
        File::open(&path).unwrap().sync_all().unwrap();
        path
    });
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_DIRECT.bits()).open(&path).unwrap();
    let mut block = Block([0; 4096]);
    named(comm, || (0..TIMES).for_each(|n| file.read_exact_at(&mut block.0, u64::from(n) * 3 % 64 * 4096).unwrap()));
    Made::events(TIMES)
}

fn anything(comm: &str) -> Made {
    disk_reads(comm);
    Made::events(1)
}

fn perhaps(comm: &str) -> Made {
    syncs(comm);
    Made::events(0)
}

const ROWS: &[Row] = &[
    Row {
        probe: "file_traffic",
        metric: "file_traffic_bytes_total",
        labels: &[("comm", "COMM"), ("file", "kst-file"), ("direction", "write")],
        exact: true,
        oracle: sums("tracepoint:syscalls:sys_exit_write /comm == \"COMM\" && args->ret > 0/", "args->ret"),
        load: writes,
    },
    Row {
        probe: "file_traffic",
        metric: "file_traffic_bytes_total",
        labels: &[("comm", "COMM"), ("direction", "read")],
        exact: true,
        oracle: Oracle::None,
        load: reads,
    },
    Row {
        probe: "file_slow",
        metric: "file_io_duration_seconds_count",
        labels: &[("syscall", "write")],
        exact: false,
        oracle: whole("tracepoint:syscalls:sys_exit_write"),
        load: |comm| Made { count: f64::from(TIMES), ..writes(comm) },
    },
    Row {
        probe: "syncs",
        metric: "sync_duration_seconds_count",
        labels: &[("comm", "COMM"), ("syscall", "fdatasync")],
        exact: true,
        oracle: counts("tracepoint:syscalls:sys_exit_fdatasync /comm == \"COMM\"/"),
        load: syncs,
    },
    Row {
        probe: "unlinks",
        metric: "unlinks_total",
        labels: &[("comm", "COMM"), ("failed", "false")],
        exact: true,
        oracle: counts("tracepoint:syscalls:sys_exit_unlinkat /comm == \"COMM\"/"),
        load: removals,
    },
    Row {
        probe: "renames",
        metric: "renames_total",
        labels: &[("comm", "COMM"), ("failed", "false")],
        exact: true,
        oracle: counts(
            "tracepoint:syscalls:sys_exit_rename,tracepoint:syscalls:sys_exit_renameat,tracepoint:syscalls:sys_exit_renameat2 /comm == \"COMM\"/",
        ),
        load: renames,
    },
    Row {
        probe: "file_locks",
        metric: "file_lock_wait_seconds_count",
        labels: &[("comm", "COMM"), ("failed", "false")],
        exact: true,
        oracle: counts("tracepoint:syscalls:sys_enter_flock /comm == \"COMM\" && (args->cmd & 8) == 0/"),
        load: locks,
    },
    Row {
        probe: "writeback",
        metric: "writeback_duration_seconds_count",
        labels: &[],
        exact: false,
        oracle: counts("tracepoint:writeback:writeback_start"),
        load: perhaps,
    },
    Row {
        probe: "dirty_throttling",
        metric: "dirtied_pages_total",
        labels: &[],
        exact: false,
        oracle: sums("tracepoint:writeback:balance_dirty_pages", "args->dirtied"),
        load: perhaps,
    },
    Row {
        probe: "journal_commits",
        metric: "journal_commit_seconds_count",
        labels: &[],
        exact: false,
        oracle: counts("tracepoint:jbd2:jbd2_start_commit"),
        load: perhaps,
    },
    Row {
        probe: "ext4_syncs",
        metric: "ext4_sync_seconds_count",
        labels: &[],
        exact: false,
        oracle: counts("tracepoint:ext4:ext4_sync_file_enter"),
        load: perhaps,
    },
    Row {
        probe: "block_by_program",
        metric: "program_block_requests_total",
        labels: &[("comm", "COMM"), ("operation", "read")],
        exact: true,
        oracle: counts("tracepoint:block:block_io_start /comm == \"COMM\"/"),
        load: disk_reads,
    },
    Row {
        probe: "block_requests",
        metric: "block_requests_total",
        labels: &[("failed", "false"), ("operation", "read")],
        exact: false,
        // Writes of the machine, of which some are under way at the end, are issued and not completed.
        oracle: counts("tracepoint:block:block_rq_issue /strncmp(args->rwbs, \"R\", 1) == 0/"),
        load: disk_reads,
    },
    Row {
        probe: "block_sizes",
        metric: "block_request_size_bytes_count",
        labels: &[],
        exact: false,
        oracle: counts("tracepoint:block:block_rq_issue /args->bytes != 0/"),
        load: disk_reads,
    },
    Row {
        probe: "block_pattern",
        metric: "block_pattern_requests_total",
        labels: &[],
        exact: false,
        oracle: whole("tracepoint:block:block_rq_complete"),
        load: anything,
    },
    Row {
        probe: "block_merges",
        metric: "block_merges_total",
        labels: &[],
        exact: false,
        oracle: counts("tracepoint:block:block_bio_backmerge,tracepoint:block:block_bio_frontmerge"),
        load: perhaps,
    },
    Row {
        probe: "block_requeues",
        metric: "block_requeues_total",
        labels: &[],
        exact: false,
        oracle: counts("tracepoint:block:block_rq_requeue"),
        load: perhaps,
    },
    Row {
        probe: "block_splits",
        metric: "block_splits_total",
        labels: &[],
        exact: false,
        oracle: counts("tracepoint:block:block_split"),
        load: perhaps,
    },
];

#[test]
#[ignore = "needs root"]
fn root_file_and_block_probes_count_what_bpftrace_does() {
    compare("root_file_and_block_probes_count_what_bpftrace_does", ROWS);
}
