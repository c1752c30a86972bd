//! The kernel's own trace of events, in an instance that only one test uses.

use super::Folder;
use kstrobe::kernel::detect::without_init;
use kstrobe_ebpf::kernel_target::Btf;
use nix::mount::{MsFlags, mount, umount};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// An instance of tracefs, which is mounted at a place of the test's own. Removed at its end.
pub struct TraceInstance {
    mounted: Folder,
    folder: PathBuf,
}

impl TraceInstance {
    /// Makes it and switches these events on, each given as `SYSTEM/EVENT`.
    pub fn new(events: &[&str]) -> TraceInstance {
        let mounted = Folder::new();
        mount(Some("tracefs"), &mounted.0, Some("tracefs"), MsFlags::empty(), None::<&str>).unwrap();
        let folder = mounted.0.join(format!("instances/kstrobe-test-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let instance = TraceInstance { mounted, folder };
        for event in events {
            std::fs::write(instance.folder.join(format!("events/{event}/enable")), "1").unwrap();
        }
        instance
    }

    /// One event in the threads of process 1, where no program sees it; `None` on kernels that run programs there, too.
    pub fn of_init(event: &str) -> Option<TraceInstance> {
        let types = std::fs::read("/sys/kernel/btf/vmlinux").unwrap();
        without_init(&Btf::parse(types).unwrap())?;
        let threads = std::fs::read_dir("/proc/1/task").unwrap();
        let one = |entry: std::io::Result<std::fs::DirEntry>| {
            format!("common_pid == {}", entry.unwrap().file_name().display())
        };
        let filter = threads.map(one).collect::<Vec<_>>().join(" || ");
        let instance = TraceInstance::new(&[]);
        std::fs::write(instance.folder.join(format!("events/{event}/filter")), filter).unwrap();
        std::fs::write(instance.folder.join(format!("events/{event}/enable")), "1").unwrap();
        Some(instance)
    }

    /// How many of the events so far say this, by what stands between the two texts: of `irq=7 name=x` between `irq=` and ` `, `7`.
    pub fn counts(&self, before: &str, after: &str) -> BTreeMap<String, f64> {
        let mut counts = BTreeMap::new();
        for traced in self.all() {
            let (_, rest) = traced.text.split_once(before).unwrap();
            let (text, _) = rest.split_once(after).unwrap();
            *counts.entry(text.to_ascii_lowercase()).or_default() += 1.0;
        }
        counts
    }

    /// The events so far of tasks of this name.
    pub fn of(&self, comm: &str) -> Vec<Traced> {
        self.all().into_iter().filter(|traced| traced.comm == comm).collect()
    }

    /// The events so far.
    pub fn all(&self) -> Vec<Traced> {
        let text = std::fs::read_to_string(self.folder.join("trace")).unwrap();
        // `  comm-123   [000] d..1.  12.345678: event: key=value`
        let line = |line: &str| {
            let (task, rest) = line.split_once(" [")?;
            let (comm, tid) = task.trim().rsplit_once('-')?;
            let mut parts = rest.splitn(3, ": ");
            let seconds = parts.next()?.rsplit(' ').next()?.parse().ok()?;
            Some(Traced {
                comm: comm.to_owned(),
                tid: tid.parse().ok()?,
                seconds,
                event: parts.next()?.to_owned(),
                text: parts.next()?.to_owned(),
            })
        };
        text.lines().filter_map(line).collect()
    }
}

/// An event in it.
pub struct Traced {
    /// Name of the thread.
    pub comm: String,
    /// Thread.
    pub tid: u32,
    /// When, since boot.
    pub seconds: f64,
    /// Its name.
    pub event: String,
    /// What it says.
    pub text: String,
}

impl Drop for TraceInstance {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.folder);
        let _ = umount(&self.mounted.0);
    }
}
