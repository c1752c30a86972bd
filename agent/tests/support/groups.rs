//! Cgroups (v2) of a test's own, and processes that make a known number of calls in them.

use kstrobe_witness::groups::unified;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

/// Name of the thread that calls.
pub const COMM: &str = "kst-workload";
const GROUP: &str = "KSTROBE_TEST_GROUP";
const CALLS: &str = "KSTROBE_TEST_CALLS";

/// A cgroup of the test's own. Removed at its end, with the folders above it that were made for it.
pub struct Group {
    folder: PathBuf,
    above: Vec<PathBuf>,
}

impl Group {
    /// Makes it.
    pub fn new(path: &str) -> Group {
        let folder = unified().join(path);
        let above = folder.ancestors().skip(1).take_while(|above| !above.exists()).map(Path::to_path_buf).collect();
        std::fs::create_dir_all(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        Group { folder, above }
    }

    /// Its folder.
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
        // Innermost first; one that another test has a group in stays.
        self.above.iter().for_each(|above| _ = std::fs::remove_dir(above));
    }
}

/// What the process of [`Group::call`] does; nothing in any other.
pub fn calls() {
    let Some(group) = std::env::var_os(GROUP) else { return };
    std::fs::write(Path::new(&group), "0").unwrap();
    std::fs::write("/proc/thread-self/comm", COMM).unwrap();
    let calls: u64 = std::env::var(CALLS).unwrap().parse().unwrap();
    (0..calls).for_each(|_| _ = nix::unistd::getppid());
}
