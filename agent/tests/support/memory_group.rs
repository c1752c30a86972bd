//! A cgroup with little memory, and what happens in it.

use std::path::PathBuf;
use std::process::{Command, ExitStatus};

use kstrobe_testing::groups;

/// A cgroup of the test's own below the root, of version 2 or of version 1's memory controller. Removed at its end.
pub struct MemoryGroup {
    folder: PathBuf,
    version: u8,
}

impl MemoryGroup {
    /// Makes it with this limit and no swap.
    pub fn new(name: &str, limit: u64) -> MemoryGroup {
        let mount = groups::of_controller("memory").expect("a hierarchy with the controller memory");
        let group = MemoryGroup {
            folder: mount.place.join(format!("kstrobe-test-{}-{name}", std::process::id())),
            version: if mount.kind == "cgroup2" { 2 } else { 1 },
        };
        std::fs::create_dir(&group.folder).unwrap_or_else(|error| panic!("{}: {error}", group.folder.display()));
        group.set(if group.version == 2 { "memory.max" } else { "memory.limit_in_bytes" }, &limit.to_string());
        // A kernel without swap may have no such file, and needs none.
        let (file, text) = if group.version == 2 { ("memory.swap.max", "0") } else { ("memory.swappiness", "0") };
        if group.folder.join(file).exists() {
            group.set(file, text);
        }
        group
    }

    /// Runs one test of this binary, which is ignored elsewhere, as a process inside; `argument` is for it alone.
    pub fn run(&self, test: &str, argument: &str) -> ExitStatus {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([test, "--exact", "--ignored", "--test-threads=1"]);
        command.env(GROUP, self.folder.join("cgroup.procs")).env(ARGUMENT, argument);
        command.output().unwrap().status
    }

    /// Words before a command that take it into the group.
    pub fn words(&self) -> [String; 4] {
        let procs = self.folder.join("cgroup.procs").display().to_string();
        ["sh".into(), "-c".into(), "echo $$ > \"$0\" && exec \"$@\"".into(), procs]
    }

    /// How many processes the kernel says it has killed in here because the limit was reached.
    pub fn oom_kills(&self) -> u64 {
        let file = if self.version == 2 { "memory.events" } else { "memory.oom_control" };
        let text = std::fs::read_to_string(self.folder.join(file)).unwrap();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.unwrap_or_else(|| panic!("no oom_kill in {text}")).trim().parse().unwrap()
    }

    fn set(&self, file: &str, text: &str) {
        let path = self.folder.join(file);
        std::fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.folder);
    }
}

const GROUP: &str = "KSTROBE_TEST_GROUP";
const ARGUMENT: &str = "KSTROBE_TEST_ARGUMENT";

/// In the process that [`MemoryGroup::run`] started: goes into the group, takes this name and returns the argument. `None`
/// in any other process.
pub fn enter(comm: &str) -> Option<String> {
    let group = std::env::var_os(GROUP)?;
    std::fs::write(group, "0").unwrap();
    std::fs::write("/proc/self/comm", comm).unwrap();
    Some(std::env::var(ARGUMENT).unwrap())
}
