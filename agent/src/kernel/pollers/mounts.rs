//! Mounts as process 1 has them, and how full the file systems are that the agent itself sees, as `mount` and `df` show them.

use super::{Rows, Source, io_error, number, text};
use nix::sys::statvfs::statvfs;
use procfs::ProcResult;
use procfs::process::{MountInfo, Process};
use std::collections::{BTreeMap, HashMap};
use std::io;

pub const MOUNTS: Source = Source {
    name: "mounts",
    summary: "mounts of process 1 with their options, of /proc/1/mountinfo",
    columns: &[text("mount", 64), text("device", 64), text("type", 16), text("options", 64), number("read_only")],
    open: || Box::new(read_mounts),
};

pub const FILESYSTEMS: Source = Source {
    name: "filesystems",
    summary: "one row for each file system with a size, as `df` shows it, at the first of its mounts; file systems of servers are not asked, since they may not answer",
    columns: &[
        text("mount", 64),
        text("device", 64),
        text("type", 16),
        number("read_only"),
        number("size"),
        number("free"),
        number("available"),
        number("files"),
        number("files_free"),
    ],
    open: || Box::new(read_filesystems),
};

/// statfs(2) waits for these file systems' servers, for ever if they are gone.
const REMOTE: [&str; 12] =
    ["nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "afs", "coda", "lustre", "glusterfs", "gfs2", "autofs"];

fn mounts_of(process: ProcResult<Process>) -> io::Result<Vec<MountInfo>> {
    Ok(process.and_then(|process| process.mountinfo()).map_err(io_error)?.0)
}

fn read_mounts(rows: &mut Rows) -> io::Result<()> {
    // Services of systemd and containers have mounts of their own, read-only for the most part. Those of process 1 need no privilege.
    for mount in mounts_of(Process::new(1))? {
        let options = options(&[&mount.mount_options, &mount.super_options]);
        rows.push(&[
            mount.mount_point.to_string_lossy().as_ref().into(),
            mount.mount_source.as_deref().unwrap_or_default().into(),
            mount.fs_type.as_str().into(),
            options.as_str().into(),
            (mount.mount_options.contains_key("ro") || is_read_only(&mount)).into(),
        ]);
    }
    Ok(())
}

/// Those of the mount and of its file system, each once and in the order of the alphabet.
fn options(both: &[&HashMap<String, Option<String>>]) -> String {
    let all: BTreeMap<_, _> = both.iter().copied().flatten().collect();
    let one = |(name, value): (&String, &Option<String>)| match value {
        Some(value) => format!("{name}={value}"),
        None => name.clone(),
    };
    all.into_iter().map(one).collect::<Vec<_>>().join(",")
}

/// Whether the file system itself takes no writes, wherever it is mounted.
fn is_read_only(mount: &MountInfo) -> bool {
    mount.super_options.contains_key("ro")
}

fn read_filesystems(rows: &mut Rows) -> io::Result<()> {
    let mut seen = Vec::new();
    for mount in mounts_of(Process::myself())? {
        let asked = !REMOTE.contains(&mount.fs_type.as_str()) && !mount.fs_type.starts_with("fuse");
        if !asked || seen.contains(&mount.majmin) {
            continue;
        }
        // Another mount may cover this one, or the agent may not enter it.
        let Ok(of) = statvfs(&mount.mount_point) else { continue };
        if of.blocks() == 0 {
            continue;
        }
        let bytes = |blocks: u64| blocks * of.fragment_size();
        rows.push(&[
            mount.mount_point.to_string_lossy().as_ref().into(),
            mount.mount_source.as_deref().unwrap_or_default().into(),
            mount.fs_type.as_str().into(),
            is_read_only(&mount).into(),
            bytes(of.blocks()).into(),
            bytes(of.blocks_free()).into(),
            bytes(of.blocks_available()).into(),
            of.files().into(),
            of.files_free().into(),
        ]);
        seen.push(mount.majmin);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_mount_and_file_system_are_one_list() {
        let map = |options: &[(&str, Option<&str>)]| {
            options.iter().map(|(name, value)| ((*name).to_owned(), value.map(str::to_owned))).collect()
        };
        let mount = map(&[("rw", None), ("nosuid", None)]);
        let of_super = map(&[("rw", None), ("size", Some("64k"))]);
        assert_eq!(options(&[&mount, &of_super]), "nosuid,rw,size=64k");
    }
}
