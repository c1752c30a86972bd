//! Cgroups of a test's own, and processes that make a known number of calls in them.

use super::Folder;
use kstrobe_testing::groups::mounts;
pub use kstrobe_testing::groups::unified;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Name of the thread that calls.
pub const COMM: &str = "kst-workload";
const GROUP: &str = "KSTROBE_TEST_GROUP";
const CALLS: &str = "KSTROBE_TEST_CALLS";
const COUNT: &str = "KSTROBE_TEST_GROUPS";

/// Where a controller of version 1 is mounted whose groups have names. Where all are version 2's, as long as this lives.
pub struct Legacy {
    folder: PathBuf,
    mounted: Option<Folder>,
}

impl Legacy {
    /// Finds or mounts it; `None` where version 2 has its controllers in use.
    pub fn new() -> Option<Legacy> {
        if let Some(found) = mounts().into_iter().find(|mount| mount.options.iter().any(|option| option == "pids")) {
            return Some(Legacy { folder: found.place, mounted: None });
        }
        let folder = Folder::new();
        let mounted = mount(Some("none"), &folder.0, Some("cgroup"), MsFlags::empty(), Some("pids"));
        mounted.ok().map(|()| Legacy { folder: folder.0.clone(), mounted: Some(folder) })
    }
}

impl Drop for Legacy {
    fn drop(&mut self) {
        if self.mounted.is_some() {
            let _ = umount2(&self.folder, MntFlags::MNT_DETACH);
        }
    }
}

/// Folders above groups that were made for one of them; others may be in them.
static MADE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// A cgroup of the test's own. Removed at its end, with the folders above it that were made for groups and have none any more.
pub struct Group {
    folder: PathBuf,
}

impl Group {
    /// Makes one of version 2.
    pub fn new(path: &str) -> Group {
        Group::at(unified().join(path))
    }

    pub fn of_version_1(legacy: &Legacy, path: &str) -> Group {
        Group::at(legacy.folder.join(path))
    }

    fn at(folder: PathBuf) -> Group {
        let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
        made.extend(folder.ancestors().skip(1).take_while(|above| !above.exists()).map(Path::to_path_buf));
        std::fs::create_dir_all(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        Group { folder }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Its id: the inode number of its folder.
    pub fn id(&self) -> u64 {
        std::fs::metadata(&self.folder).unwrap_or_else(|error| panic!("{}: {error}", self.folder.display())).ino()
    }

    /// Starts a program in it; its process is the child.
    pub fn spawn(&self, program: &str) -> Child {
        let script = format!("echo $$ > \"$PROCS\" && exec {program}");
        let mut command = Command::new("sh");
        command.args(["-c", &script]).env("PROCS", self.folder.join("cgroup.procs")).spawn().unwrap()
    }

    /// Runs a process in it that makes so many calls of getppid(2), to its end. The test crate has a test `calls_in_a_group`
    /// that does nothing but [`calls`].
    pub fn call(&self, calls: u64) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["calls_in_a_group", "--exact", "--ignored", "--test-threads=1"]);
        command.env(GROUP, self.folder.join("cgroup.procs")).env(CALLS, calls.to_string());
        super::output(&mut command);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its processes have ended; the kernel may take a moment to notice.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.folder).is_ok() || !self.folder.exists() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
        // One that has another group in it stays, until that goes.
        for above in self.folder.ancestors().skip(1) {
            if !made.contains(above) || std::fs::remove_dir(above).is_err() {
                break;
            }
            made.remove(above);
        }
    }
}

/// Runs a process that makes so many groups one after the other, calls in each as [`Group::call`] does, and removes it at once: none
/// lives much longer than its calls take. `#` in the folder's name is the number of the group.
pub fn call_briefly(folder: &Path, count: u64, calls: u64) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["calls_in_a_group", "--exact", "--ignored", "--test-threads=1"]);
    command.env(GROUP, folder).env(CALLS, calls.to_string()).env(COUNT, count.to_string());
    super::output(&mut command);
}

/// What the process of [`Group::call`] or [`call_briefly`] does; nothing in any other.
pub fn calls() {
    let Some(group) = std::env::var_os(GROUP) else { return };
    let calls: u64 = std::env::var(CALLS).unwrap().parse().unwrap();
    let call = |procs: &Path| {
        std::fs::write(procs, "0").unwrap_or_else(|error| panic!("{}: {error}", procs.display()));
        (0..calls).for_each(|_| _ = nix::unistd::getppid());
    };
    std::fs::write("/proc/thread-self/comm", COMM).unwrap();
    let Ok(count) = std::env::var(COUNT) else { return call(Path::new(&group)) };
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap();
    let home = unified().join(own).join("cgroup.procs");
    for number in 0..count.parse().unwrap() {
        let number: u64 = number;
        let folder = PathBuf::from(group.to_str().unwrap().replace('#', &number.to_string()));
        std::fs::create_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        call(&folder.join("cgroup.procs"));
        std::fs::write(&home, "0").unwrap();
        std::fs::remove_dir(&folder).unwrap();
    }
}
