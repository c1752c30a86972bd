//! The probes at the VFS's functions, on a file system that only the test uses.

mod support;

use nix::mount::{MsFlags, mount, umount};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::PathBuf;
use support::agent::Setup;
use support::metrics::Metrics;
use support::{Folder, load};

const WRITES: usize = 300;
const READS: usize = 200;
const OPENS: usize = 11;
const SYNCS: usize = 7;
const BLOCK_BYTES: usize = 1000;

/// A mounted ramfs, of which there is no other on most machines.
struct Ramfs(Folder);

impl Ramfs {
    fn mount() -> Ramfs {
        let folder = Folder::new();
        mount(Some("ramfs"), &folder.0, Some("ramfs"), MsFlags::empty(), None::<&str>).unwrap();
        Ramfs(folder)
    }

    fn file(&self) -> PathBuf {
        self.0.0.join("file")
    }
}

impl Drop for Ramfs {
    fn drop(&mut self) {
        let _ = umount(&self.0.0);
    }
}

/// So many calls of each kind, the files opened beforehand but for those that count.
fn use_files(path: &std::path::Path) {
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path).unwrap();
    for _ in 0..WRITES {
        file.write_all(&[7; BLOCK_BYTES]).unwrap();
    }
    for _ in 1..OPENS {
        drop(File::open(path).unwrap());
    }
    for _ in 0..SYNCS {
        file.sync_all().unwrap();
    }
    // The position is at the end: each read is a call that gives nothing.
    for _ in 0..READS {
        assert_eq!(file.read(&mut [0; BLOCK_BYTES]).unwrap(), 0);
    }
}

#[test]
#[ignore = "needs root"]
fn root_operations_on_files_are_counted_by_function_and_file_system() {
    let test = "root_operations_on_files_are_counted_by_function_and_file_system";
    let agent = Setup { arguments: &["--enable", "vfs,filesystem"], ..Setup::default() }.start();
    let before = agent.scrape();
    let attached = before.sum("kstrobe_probe_attached", &[("probe", "vfs")]);
    if attached == 0.0 {
        let why = before.series("kstrobe_probe_attached", &[("probe", "vfs")]).next().map(|(l, _)| l["reason"].clone());
        return support::not_run(test, &why.unwrap_or_default());
    }
    let ramfs = Ramfs::mount();
    let path = ramfs.file();
    load::named("kst-files", move || use_files(&path));
    let after = agent.scrape();
    let count = |m: &Metrics, function: &str| {
        let labels = [("filesystem", "ramfs"), ("function", function)];
        m.histogram("kstrobe_filesystem_operation_duration_seconds", &labels).count
    };
    let made = |function| count(&after, function) - count(&before, function);
    assert_eq!(made("vfs_write"), WRITES as f64);
    assert_eq!(made("vfs_read"), READS as f64);
    assert_eq!(made("vfs_open"), OPENS as f64);
    // Some kernels (Debian's 7.2) call a copy of it that was compiled into fsync(2), which no hook sees.
    let called = support::calls_of("vfs_fsync_range", || use_files(&ramfs.file()));
    assert!(called == 0 || called >= SYNCS, "{called} calls of it");
    assert_eq!(made("vfs_fsync_range"), if called == 0 { 0.0 } else { SYNCS as f64 });
    let of = |function: &'static str| [("comm", "kst-files"), ("function", function)];
    let writes = after.histogram("kstrobe_vfs_duration_seconds", &of("vfs_write"));
    // What starts and ends the thread may write too, but not under this name.
    assert!(writes.count >= WRITES as f64 && writes.sum > 0.0, "{writes:?}");
    assert_eq!(after.sum("kstrobe_vfs_bytes_total", &of("vfs_write")), (WRITES * BLOCK_BYTES) as f64);
    agent.stop();
}
