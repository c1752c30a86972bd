//! Control groups as this machine mounts them, found without the code under test.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where version 2 is mounted: at its usual place, or beside version 1.
#[track_caller]
pub fn unified() -> PathBuf {
    mounts().into_iter().find(|mount| mount.kind == "cgroup2").expect("a cgroup2 file system").place
}

/// A hierarchy that is mounted whole.
#[derive(Clone, Debug)]
pub struct Mount {
    /// `cgroup` or `cgroup2`.
    pub kind: String,
    /// Its folder.
    pub place: PathBuf,
    /// Options of its file system; of version 1 its controllers are among them.
    pub options: Vec<String>,
}

/// Hierarchies of both versions.
pub fn mounts() -> Vec<Mount> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    // `36 25 0:31 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw`
    let mount = |line: &str| {
        let (mount, file_system) = line.split_once(" - ")?;
        let kind = file_system.split(' ').next().filter(|kind| kind.starts_with("cgroup"))?;
        let (root, place) = (mount.split(' ').nth(3)?, mount.split(' ').nth(4)?);
        let options = file_system.split(' ').nth(2)?.split(',').map(str::to_owned).collect();
        (root == "/").then(|| Mount { kind: kind.to_owned(), place: PathBuf::from(place), options })
    };
    text.lines().filter_map(mount).collect()
}

/// The hierarchy in which groups with this controller can be made. A controller belongs to one: where a machine has bound it to one
/// of version 1 that is not mounted, there is none.
pub fn of_controller(name: &str) -> Option<Mount> {
    mounts().into_iter().find(|mount| match mount.kind.as_str() {
        "cgroup2" => std::fs::read_to_string(mount.place.join("cgroup.controllers"))
            .is_ok_and(|names| names.split_whitespace().any(|other| other == name)),
        _ => mount.options.iter().any(|option| option == name),
    })
}

/// The same for a test that needs it, which is noted as not run.
#[track_caller]
pub fn controller(test: &str, name: &str) -> bool {
    let has = of_controller(name).is_some();
    if !has {
        crate::not_run(test, &format!("no mounted hierarchy of control groups has the controller {name}"));
    }
    has
}

/// Removes a group and those in it. The last process may need a moment to be gone.
pub fn remove(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path());
        }
    }
    for _ in 0..100 {
        match std::fs::remove_dir(folder) {
            Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                std::thread::sleep(Duration::from_millis(20));
            }
            _ => return,
        }
    }
    eprintln!("{}: is still in use", folder.display());
}
