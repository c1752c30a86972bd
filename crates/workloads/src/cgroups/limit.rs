//! Memory limit of a process: the lowest of its cgroup and its ancestors.

use crate::cgroups::Hierarchies;
use std::path::{Component, Path, PathBuf};

/// cgroup v1 writes "no limit" as the largest multiple of the page size in an i64.
const NO_LIMIT_V1: u64 = 1 << 62;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Limit in bytes.
    pub bytes: u64,
    /// File of the limit.
    pub file: PathBuf,
}

impl Hierarchies {
    /// The lowest limit for the process with this `/proc/PID/cgroup`. `None` without a limit, or if the mounts do not show the group
    /// of the process: a container may have the mount of the host.
    pub fn memory_limit(&self, own: &str) -> Option<MemoryLimit> {
        let line = |of: &dyn Fn(&str) -> bool| {
            own.lines().find_map(|line| {
                let (_, rest) = line.split_once(':')?;
                let (controllers, path) = rest.split_once(':')?;
                of(controllers).then_some(path)
            })
        };
        let legacy = self.with_controller("memory").map(|hierarchy| {
            (hierarchy, line(&|names| names.split(',').any(|name| name == "memory")), "memory.limit_in_bytes")
        });
        let unified = self.unified.as_ref().map(|hierarchy| (hierarchy, line(&str::is_empty), "memory.max"));
        let (hierarchy, path, file) = legacy.or(unified)?;
        // A mount beyond the cgroup namespace has a root of `/..`, so the path of the own group does not resolve there.
        let inside = Path::new(path?).strip_prefix(&hierarchy.root).ok()?;
        let is_plain = inside.components().all(|part| matches!(part, Component::Normal(_)));
        let folders = is_plain.then(|| inside.ancestors().map(|folder| hierarchy.mount_point.join(folder)))?;
        let limits = folders.filter_map(|folder| {
            let file = folder.join(file);
            let bytes = std::fs::read_to_string(&file).ok()?.trim().parse().ok()?;
            (bytes < NO_LIMIT_V1).then_some(MemoryLimit { bytes, file })
        });
        limits.min_by_key(|limit| limit.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(PathBuf);

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// A folder with these files.
    fn folder(name: &str, files: &[(&str, &str)]) -> Folder {
        let folder = std::env::temp_dir().join(format!("kstrobe-limit-{name}-{}", std::process::id()));
        for (file, text) in files {
            let file = folder.join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        Folder(folder)
    }

    fn limit(mount: &str, own: &str) -> Option<(u64, PathBuf)> {
        Hierarchies::of(mount, None).memory_limit(own).map(|limit| (limit.bytes, limit.file))
    }

    #[test]
    fn the_lowest_limit_from_the_own_group_up_holds() {
        let v2 =
            folder("v2", &[("a/memory.max", "1000\n"), ("a/b/memory.max", "5000\n"), ("a/b/c/memory.max", "max\n")]);
        let mount = |root: &str| format!("1 1 0:1 {root} {} rw - cgroup2 cgroup2 rw\n", v2.0.display());
        assert_eq!(limit(&mount("/"), "0::/a/b/c\n"), Some((1000, v2.0.join("a/memory.max"))));
        // A container's mount of its own group alone.
        assert_eq!(limit(&mount("/x"), "0::/x/a/b\n").map(|(bytes, _)| bytes), Some(1000));
        assert_eq!(limit(&mount("/"), "0::/\n"), None);
        assert_eq!(limit(&mount("/"), "0::/other\n"), None);
        for hidden in ["/../..", "/y"] {
            assert_eq!(limit(&mount(hidden), "0::/a\n"), None, "{hidden}");
        }
        assert_eq!(limit("", "0::/a\n"), None);
    }

    #[test]
    fn version_1_has_the_controller_beside_version_2() {
        let files = [("memory.limit_in_bytes", "9223372036854771712\n"), ("p/memory.limit_in_bytes", "4096\n")];
        let v1 = folder("v1", &files);
        let mounts = format!(
            "1 1 0:1 / {0} rw - cgroup cgroup rw,memory\n2 1 0:2 / {0}/unified rw - cgroup2 cgroup2 rw\n",
            v1.0.display()
        );
        let own = |path: &str| format!("4:cpu,memory:{path}\n1:cpu:/elsewhere\n0::/\n");
        assert_eq!(limit(&mounts, &own("/p")).map(|(bytes, _)| bytes), Some(4096));
        assert_eq!(limit(&mounts, &own("/")), None, "no limit is a large number");
    }
}
