//! Finds the mounted cgroup hierarchies.

use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A cgroup hierarchy as visible to this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    pub mount_point: PathBuf,
    /// Root of the mount in the hierarchy: `/` for all of it, `/kubepods` for a part; each `/..` leads to a parent of the root
    /// of the cgroup namespace of this process.
    pub root: PathBuf,
    /// Controllers or `name=` of cgroup v1; empty for v2.
    pub controllers: Vec<String>,
}

/// All mounted hierarchies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hierarchies {
    /// cgroup v2, whose ids BPF programs read.
    pub unified: Option<Hierarchy>,
    /// cgroup v1 hierarchies.
    pub legacy: Vec<Hierarchy>,
}

/// The mounted cgroup versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// cgroup v2 only.
    Unified,
    /// cgroup v2 without controllers beside v1: tasks in a v1 group need not be in a v2 group.
    Hybrid,
    /// cgroup v1 only.
    Legacy,
    /// No hierarchy.
    None,
}

/// Why no hierarchy was found.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `/proc/self/mountinfo` cannot be read.
    #[error("/proc/self/mountinfo: {0}: is /proc mounted?")]
    Mounts(#[source] io::Error),
    /// cgroupfs is not mounted, or not at the expected place.
    #[error("no cgroup file system {place}: mount the host's /sys/fs/cgroup there, read-only is enough")]
    NotMounted {
        /// `at or below /host/sys/fs/cgroup`
        place: String,
    },
}

/// All cgroup v1 controllers; other words in the mount options are no controllers.
const CONTROLLERS: &[&str] = &[
    "cpuset",
    "cpu",
    "cpuacct",
    "blkio",
    "memory",
    "devices",
    "freezer",
    "net_cls",
    "perf_event",
    "net_prio",
    "hugetlb",
    "pids",
    "rdma",
    "misc",
    "debug",
];

/// cgroup v1 controllers to follow, in order of preference; containers have the same groups in all of them.
const FOLLOWED: &[&str] = &["pids", "memory", "cpu", "cpuset"];

impl Hierarchies {
    /// Hierarchies in the mount namespace of this process, or only at or below `place`. At least one on success.
    pub fn here(place: Option<&Path>) -> Result<Hierarchies, Error> {
        let mountinfo = std::fs::read_to_string("/proc/self/mountinfo").map_err(Error::Mounts)?;
        let found = Hierarchies::of(&mountinfo, place);
        if found.mode() == Mode::None {
            let place = place.map_or("is mounted".to_owned(), |place| format!("at or below {}", place.display()));
            return Err(Error::NotMounted { place });
        }
        Ok(found)
    }

    /// Parses `/proc/PID/mountinfo`. Of several mounts of a hierarchy the one that shows most of it is used: a container has a
    /// mount of its own group, and maybe one of the host elsewhere.
    pub fn of(mountinfo: &str, place: Option<&Path>) -> Hierarchies {
        let mut mounts: Vec<Hierarchy> = Vec::new();
        for mut mount in mountinfo.lines().filter_map(mount) {
            // A later mount covers an earlier one at the same place.
            mounts.retain(|earlier| earlier.mount_point != mount.mount_point);
            if let Some(place) = place.filter(|place| !mount.mount_point.starts_with(place)) {
                // `place` may also be a directory inside a mount.
                let Ok(inside) = place.strip_prefix(&mount.mount_point) else { continue };
                mount.root.push(inside);
                mount.mount_point = place.to_owned();
            }
            mounts.push(mount);
        }
        mounts.sort_by_key(|mount| (mount.level(), mount.mount_point.components().count()));
        let mut found = Hierarchies::default();
        for mount in mounts {
            if mount.controllers.is_empty() {
                found.unified.get_or_insert(mount);
            } else if found.legacy.iter().all(|other| other.controllers != mount.controllers) {
                found.legacy.push(mount);
            }
        }
        found.legacy.sort_by(|a, b| a.controllers.cmp(&b.controllers));
        found
    }

    /// The mounted cgroup versions.
    pub fn mode(&self) -> Mode {
        match (&self.unified, self.legacy.is_empty()) {
            (Some(_), true) => Mode::Unified,
            (Some(_), false) => Mode::Hybrid,
            (None, false) => Mode::Legacy,
            (None, true) => Mode::None,
        }
    }

    /// The hierarchy to follow, and its controller with v1. v2 is preferred wherever it is mounted, since runtimes use it beside v1,
    /// too; else a v1 controller in which every kubelet and runtime creates groups.
    pub fn followed(&self) -> Option<(&Hierarchy, Option<&'static str>)> {
        let legacy =
            || FOLLOWED.iter().find_map(|controller| Some((self.with_controller(controller)?, Some(*controller))));
        self.unified.as_ref().map(|hierarchy| (hierarchy, None)).or_else(legacy)
    }

    /// The cgroup v1 hierarchy with this controller, or `name=systemd`.
    pub fn with_controller(&self, controller: &str) -> Option<&Hierarchy> {
        self.legacy.iter().find(|hierarchy| hierarchy.controllers.iter().any(|c| c == controller))
    }
}

impl Hierarchy {
    /// Depth of the mount root below the root of the cgroup namespace of this process; negative above it.
    fn level(&self) -> isize {
        let steps = self.root.components().map(|part| match part {
            std::path::Component::ParentDir => -1,
            std::path::Component::Normal(_) => 1,
            _ => 0,
        });
        steps.sum()
    }

    /// Path of the group in a directory below the mount point, as in `/proc/PID/cgroup`.
    pub(crate) fn path_of(&self, folder: &Path) -> String {
        let mut path = String::new();
        for part in self.root.components().chain(folder.components()) {
            if let std::path::Component::Normal(name) = part {
                path.push('/');
                path.push_str(&name.to_string_lossy());
            }
        }
        if path.is_empty() { "/".to_owned() } else { path }
    }
}

/// Parses a line of mountinfo; `None` for other file systems than cgroupfs:
/// `36 35 0:30 /kubepods /sys/fs/cgroup/cpu rw,nosuid - cgroup cgroup rw,cpu,cpuacct`.
fn mount(line: &str) -> Option<Hierarchy> {
    let (mount, file_system) = line.split_once(" - ")?;
    let mut mount = mount.split(' ').skip(3);
    let (root, mount_point) = (unescaped(mount.next()?), unescaped(mount.next()?));
    let mut file_system = file_system.split(' ');
    let (kind, options) = (file_system.next()?, file_system.nth(1)?);
    let controllers: Vec<String> = match kind {
        "cgroup2" => Vec::new(),
        "cgroup" => {
            let all = options.split(',');
            all.filter(|word| word.starts_with("name=") || CONTROLLERS.contains(word)).map(str::to_owned).collect()
        }
        _ => return None,
    };
    // cgroup v1 mounts always name a controller.
    (kind == "cgroup2" || !controllers.is_empty()).then_some(Hierarchy { mount_point, root, controllers })
}

/// mountinfo writes space, tab, newline and backslash as `\040` and so on.
fn unescaped(field: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|d| first == b'\\' && d.iter().all(|b| (b'0'..=b'7').contains(b)));
        let code = digits.map(|d| d.iter().fold(0u16, |code, digit| code * 8 + u16::from(digit - b'0')));
        match code.and_then(|code| u8::try_from(code).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIFIED: &str = "\
22 1 8:1 / / rw - ext4 /dev/sda1 rw
30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot
";
    const HYBRID: &str = "\
31 23 0:28 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755
32 31 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate
33 31 0:30 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
34 31 0:31 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset,noprefix,release_agent=/sbin/cpuset_release_agent
";
    /// A pod with its own cgroup namespace, and the host's cgroupfs as a volume.
    const CONTAINER: &str = "\
900 899 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw
901 899 0:26 /../../../.. /host/sys/fs/cgroup ro - cgroup2 cgroup2 rw
902 899 0:26 /../../../../system.slice /host/system ro - cgroup2 cgroup2 rw
";

    fn at(path: &str, root: &str, controllers: &[&str]) -> Hierarchy {
        let controllers = controllers.iter().map(|c| (*c).to_owned()).collect();
        Hierarchy { mount_point: path.into(), root: root.into(), controllers }
    }

    #[test]
    fn all_modes() {
        let unified = Hierarchies::of(UNIFIED, None);
        assert_eq!(unified.mode(), Mode::Unified);
        assert_eq!(unified.unified, Some(at("/sys/fs/cgroup", "/", &[])));
        let hybrid = Hierarchies::of(HYBRID, None);
        assert_eq!(hybrid.mode(), Mode::Hybrid);
        assert_eq!(hybrid.unified, Some(at("/sys/fs/cgroup/unified", "/", &[])));
        assert_eq!(
            hybrid.legacy,
            [
                at("/sys/fs/cgroup/cpu,cpuacct", "/", &["cpu", "cpuacct"]),
                at("/sys/fs/cgroup/cpuset", "/", &["cpuset"]),
                at("/sys/fs/cgroup/systemd", "/", &["name=systemd"]),
            ]
        );
        assert_eq!(hybrid.with_controller("cpuacct"), Some(&hybrid.legacy[0]));
        assert_eq!(hybrid.with_controller("memory"), None);
        assert_eq!(unified.followed(), unified.unified.as_ref().map(|hierarchy| (hierarchy, None)));
        assert_eq!(hybrid.followed(), hybrid.unified.as_ref().map(|hierarchy| (hierarchy, None)));
        let legacy: String =
            HYBRID.lines().filter(|line| !line.contains("cgroup2")).map(|l| format!("{l}\n")).collect();
        let legacy = Hierarchies::of(&legacy, None);
        assert_eq!(legacy.mode(), Mode::Legacy);
        assert_eq!(legacy.followed(), legacy.with_controller("cpu").map(|hierarchy| (hierarchy, Some("cpu"))));
        assert_eq!(Hierarchies::default().followed(), None);
        for nothing in
            ["", "junk", "1 2 3", "a b c d e - cgroup", "a b c d e - cgroup cgroup rw,xattr", " - cgroup2 x y"]
        {
            assert_eq!(Hierarchies::of(nothing, None), Hierarchies::default(), "{nothing}");
        }
    }

    #[test]
    fn a_container_takes_the_mount_that_shows_most() {
        let found = Hierarchies::of(CONTAINER, None);
        assert_eq!(found.unified, Some(at("/host/sys/fs/cgroup", "/../../../..", &[])));
        let own = Hierarchies::of(CONTAINER, Some(Path::new("/sys/fs/cgroup")));
        assert_eq!(own.unified, Some(at("/sys/fs/cgroup", "/", &[])));
        let part = Hierarchies::of(CONTAINER, Some(Path::new("/host/system")));
        assert_eq!(part.unified.as_ref().unwrap().path_of(Path::new("ssh.service")), "/system.slice/ssh.service");
        assert_eq!(Hierarchies::of(CONTAINER, Some(Path::new("/other"))).mode(), Mode::None);
        // In the middle of a mount.
        let inside = Hierarchies::of(UNIFIED, Some(Path::new("/sys/fs/cgroup/kubepods.slice"))).unified.unwrap();
        assert_eq!(inside, at("/sys/fs/cgroup/kubepods.slice", "/kubepods.slice", &[]));
        // Of two full mounts the one with the shorter path is used.
        let twice = format!("{UNIFIED}40 1 0:26 / /run/x/y/z/cgroup rw - cgroup2 none rw\n");
        assert_eq!(Hierarchies::of(&twice, None).unified, Some(at("/sys/fs/cgroup", "/", &[])));
    }

    #[test]
    fn covered_mounts_are_ignored() {
        let covered = format!("{UNIFIED}40 30 0:99 / /sys/fs/cgroup rw - cgroup cgroup rw,memory\n");
        let found = Hierarchies::of(&covered, None);
        assert_eq!((found.mode(), found.legacy), (Mode::Legacy, vec![at("/sys/fs/cgroup", "/", &["memory"])]));
    }

    #[test]
    fn paths_as_the_kernel_writes_them() {
        let all = at("/sys/fs/cgroup", "/", &[]);
        assert_eq!(all.path_of(Path::new("")), "/");
        assert_eq!(all.path_of(Path::new("a/b")), "/a/b");
        let part = at("/sys/fs/cgroup", "/kubepods/pod1", &[]);
        assert_eq!(part.path_of(Path::new("")), "/kubepods/pod1");
        assert_eq!(at("/x", "/../../b", &[]).path_of(Path::new("c")), "/b/c");
    }

    #[test]
    fn escapes_of_mountinfo() {
        let found = Hierarchies::of(r"1 2 3 /a\134x2d /mnt/my\040groups rw - cgroup2 none rw", None).unified.unwrap();
        assert_eq!(found, at("/mnt/my groups", r"/a\x2d", &[]));
        assert_eq!(unescaped(r"a\04"), Path::new(r"a\04"));
        assert_eq!(unescaped(r"a\777"), Path::new(r"a\777"));
        assert_eq!(unescaped(r"a\"), Path::new(r"a\"));
    }

    #[test]
    fn errors_are_actionable() {
        let said = Hierarchies::here(Some(Path::new("/nowhere"))).unwrap_err().to_string();
        assert_eq!(
            said,
            "no cgroup file system at or below /nowhere: mount the host's /sys/fs/cgroup there, read-only is enough"
        );
    }
}
