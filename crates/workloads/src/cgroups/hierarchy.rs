//! Where hierarchies of control groups are mounted.

use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One hierarchy, as far as this process sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// What of it is mounted there: `/` is all of it, `/kubepods` a part, and each `/..` leads to a parent of the cgroup
    /// namespace that this process is in.
    pub root: PathBuf,
    /// Controllers of version 1, or its `name=`. None for version 2.
    pub controllers: Vec<String>,
}

/// All hierarchies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hierarchies {
    /// Version 2: the one whose ids programs in the kernel see.
    pub unified: Option<Hierarchy>,
    /// Version 1, by controllers.
    pub legacy: Vec<Hierarchy>,
}

/// Which versions there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Version 2 alone.
    Unified,
    /// Version 2 beside version 1, which has the controllers: what is in a group of version 1 need not be in any of version 2.
    Hybrid,
    /// Version 1 alone.
    Legacy,
    /// Nothing.
    None,
}

/// Why there is nothing to walk.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel does not tell.
    #[error("/proc/self/mountinfo: {0}: is /proc mounted?")]
    Mounts(#[source] io::Error),
    /// It is mounted nowhere, or not where it should be.
    #[error("no cgroup file system {place}: mount the host's /sys/fs/cgroup there, read-only is enough")]
    NotMounted {
        /// `at or below /host/sys/fs/cgroup`
        place: String,
    },
}

/// Controllers that version 1 has or had; other words of a mount are options.
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

/// Controllers of version 1 whose groups are followed: the first that there is. Those of containers are the same in all.
const FOLLOWED: &[&str] = &["pids", "memory", "cpu", "cpuset"];

impl Hierarchies {
    /// Those of this process's mount namespace, or only those at `place` or below. There is at least one.
    pub fn here(place: Option<&Path>) -> Result<Hierarchies, Error> {
        let mountinfo = std::fs::read_to_string("/proc/self/mountinfo").map_err(Error::Mounts)?;
        let found = Hierarchies::of(&mountinfo, place);
        if found.mode() == Mode::None {
            let place = place.map_or("is mounted".to_owned(), |place| format!("at or below {}", place.display()));
            return Err(Error::NotMounted { place });
        }
        Ok(found)
    }

    /// Those in the text of `/proc/PID/mountinfo`. Of several mounts of a hierarchy it is the one that shows most of it: a
    /// container has one of its own group, and perhaps the host's somewhere else.
    pub fn of(mountinfo: &str, place: Option<&Path>) -> Hierarchies {
        let mut mounts: Vec<Hierarchy> = Vec::new();
        for mut mount in mountinfo.lines().filter_map(mount) {
            // What is mounted later covers what was there.
            mounts.retain(|earlier| earlier.mount_point != mount.mount_point);
            if let Some(place) = place.filter(|place| !mount.mount_point.starts_with(place)) {
                // A folder in the middle of a mount will do as well.
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

    /// Which versions there are.
    pub fn mode(&self) -> Mode {
        match (&self.unified, self.legacy.is_empty()) {
            (Some(_), true) => Mode::Unified,
            (Some(_), false) => Mode::Hybrid,
            (None, false) => Mode::Legacy,
            (None, true) => Mode::None,
        }
    }

    /// The hierarchy whose groups have names, and with version 1 the controller that leads to it: version 2 wherever it is
    /// mounted, since runtimes use it beside version 1, too; else what every kubelet and runtime makes groups in.
    pub fn followed(&self) -> Option<(&Hierarchy, Option<&'static str>)> {
        let legacy =
            || FOLLOWED.iter().find_map(|controller| Some((self.with_controller(controller)?, Some(*controller))));
        self.unified.as_ref().map(|hierarchy| (hierarchy, None)).or_else(legacy)
    }

    /// The hierarchy of version 1 with this controller, or `name=systemd`.
    pub fn with_controller(&self, controller: &str) -> Option<&Hierarchy> {
        self.legacy.iter().find(|hierarchy| hierarchy.controllers.iter().any(|c| c == controller))
    }
}

impl Hierarchy {
    /// How far below the root of this process's cgroup namespace it begins; above it, less than nothing.
    fn level(&self) -> isize {
        let steps = self.root.components().map(|part| match part {
            std::path::Component::ParentDir => -1,
            std::path::Component::Normal(_) => 1,
            _ => 0,
        });
        steps.sum()
    }

    /// The path of the group in this folder below the mount point, as the kernel writes it in `/proc/PID/cgroup`.
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

/// A line of mountinfo, if it is of cgroupfs:
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
    // Version 1 always says of what.
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
        // Two places for all of it: the one with the shorter way.
        let twice = format!("{UNIFIED}40 1 0:26 / /run/x/y/z/cgroup rw - cgroup2 none rw\n");
        assert_eq!(Hierarchies::of(&twice, None).unified, Some(at("/sys/fs/cgroup", "/", &[])));
    }

    #[test]
    fn what_is_covered_is_not_seen() {
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
    fn errors_say_what_to_do() {
        let said = Hierarchies::here(Some(Path::new("/nowhere"))).unwrap_err().to_string();
        assert_eq!(
            said,
            "no cgroup file system at or below /nowhere: mount the host's /sys/fs/cgroup there, read-only is enough"
        );
    }
}
