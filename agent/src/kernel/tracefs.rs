//! tracefs, wherever it is: mounted, or mounted here in a private namespace.

use crate::kernel::sys::mount::{detached_mount, file_system_magic, open_below};
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::Mode;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

const TRACEFS_MAGIC: i64 = 0x7472_6163;

/// An open tracefs root. A private mount goes away when this is dropped.
#[derive(Debug)]
pub struct Tracefs {
    root: OwnedFd,
    how: How,
}

/// How we got at tracefs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum How {
    /// It was mounted here.
    Mounted(PathBuf),
    /// A mount without a place in any directory tree.
    Detached,
    /// A mount in a namespace of its own, which ends with the descriptor.
    Namespace,
}

impl Tracefs {
    /// Opens tracefs. What is mounted is used; else it is mounted privately, which needs `CAP_SYS_ADMIN`.
    pub fn open() -> io::Result<Tracefs> {
        if let Some(mounted) = Tracefs::open_mounted() {
            return Ok(mounted);
        }
        Tracefs::open_detached().or_else(|first| {
            Tracefs::open_in_namespace().map_err(|_| {
                let hint = "tracefs is not mounted and cannot be mounted privately: mount it with \
                            `mount -t tracefs tracefs /sys/kernel/tracing`, or run with CAP_SYS_ADMIN";
                io::Error::new(first.kind(), format!("{hint} ({first})"))
            })
        })
    }

    /// Uses the first visible mount whose root is the whole tracefs.
    pub fn open_mounted() -> Option<Tracefs> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
        tracefs_mounts(&mounts).into_iter().find_map(|path| {
            let root = OwnedFd::from(File::open(&path).ok()?);
            // Something else may be mounted on top.
            let is_tracefs = file_system_magic(root.as_fd()).ok()? == TRACEFS_MAGIC;
            (is_tracefs && is_readable(&root)).then_some(Tracefs { root, how: How::Mounted(path) })
        })
    }

    /// Mounts tracefs without putting it anywhere.
    pub fn open_detached() -> io::Result<Tracefs> {
        Ok(Tracefs { root: detached_mount("tracefs")?, how: How::Detached })
    }

    /// Mounts tracefs in a mount namespace that only a short-lived thread enters, where mount(2) is allowed and fsopen(2) is
    /// not (seccomp profiles of some container runtimes).
    pub fn open_in_namespace() -> io::Result<Tracefs> {
        let thread = std::thread::Builder::new().name("tracefs-mount".into()).spawn(mount_in_new_namespace)?;
        let root = thread.join().map_err(|_| io::Error::other("the mounting thread panicked"))??;
        Ok(Tracefs { root, how: How::Namespace })
    }

    /// How we got at it.
    pub fn how(&self) -> &How {
        &self.how
    }

    /// The text of a file below the root, e.g. `events/sched/sched_switch/format`.
    pub fn read(&self, path: &str) -> io::Result<String> {
        /// Some files are whole in the first read only (`events/header_page`), others are made anew for each (`stats`).
        const PIECE_BYTES: usize = 64 << 10;
        let mut file = open_below(self.root.as_fd(), inside(path)?)?;
        let mut text = Vec::new();
        loop {
            let before = text.len();
            text.resize(before + PIECE_BYTES, 0);
            let read = match file.read(&mut text[before..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
                Ok(0) => {
                    text.truncate(before);
                    return String::from_utf8(text).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e));
                }
                read => read?,
            };
            text.truncate(before + read);
        }
    }

    /// Opens a file or directory below the root. Flags say how; a path that leads outside is refused.
    pub fn open_at(&self, path: &str, flags: OFlag) -> io::Result<OwnedFd> {
        Ok(nix::fcntl::openat(&self.root, inside(path)?, flags | OFlag::O_CLOEXEC, Mode::empty())?)
    }

    /// Replaces what a file below the root says.
    pub fn write(&self, path: &str, text: &str) -> io::Result<()> {
        File::from(self.open_at(path, OFlag::O_WRONLY | OFlag::O_TRUNC)?).write_all(text.as_bytes())
    }

    /// Adds to what a file below the root says.
    pub fn append(&self, path: &str, text: &str) -> io::Result<()> {
        File::from(self.open_at(path, OFlag::O_WRONLY | OFlag::O_APPEND)?).write_all(text.as_bytes())
    }

    /// Whether there is a file or directory of that path.
    pub fn exists(&self, path: &str) -> bool {
        inside(path).is_ok_and(|path| nix::sys::stat::fstatat(&self.root, path, AtFlags::empty()).is_ok())
    }

    /// Makes a directory: an instance, when it is below `instances`.
    pub fn make_directory(&self, path: &str) -> io::Result<()> {
        Ok(nix::sys::stat::mkdirat(&self.root, inside(path)?, Mode::from_bits_truncate(0o700))?)
    }

    /// Removes a directory.
    pub fn remove_directory(&self, path: &str) -> io::Result<()> {
        Ok(nix::unistd::unlinkat(&self.root, inside(path)?, nix::unistd::UnlinkatFlags::RemoveDir)?)
    }

    /// Names in a directory below the root, sorted.
    pub fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let directory = open_below(self.root.as_fd(), inside(path)?)?;
        // std lists directories by path only; this one leads to the descriptor, wherever it is mounted.
        let names = std::fs::read_dir(format!("/proc/self/fd/{}", directory.as_raw_fd()))?;
        let mut names = names
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<io::Result<Vec<String>>>()?;
        names.sort();
        Ok(names)
    }

    /// The id that perf events know a tracepoint by.
    pub fn event_id(&self, system: &str, event: &str) -> io::Result<u64> {
        let text = self.read(&format!("events/{system}/{event}/id"))?;
        text.trim()
            .parse()
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, format!("not an event id: {text:?}")))
    }
}

fn is_readable(root: &OwnedFd) -> bool {
    open_below(root.as_fd(), "events").is_ok()
}

/// Paths come from probe files: they must not leave tracefs.
fn inside(path: &str) -> io::Result<&str> {
    let plain = !path.is_empty() && path.split('/').all(|part| !matches!(part, "" | "." | ".."));
    plain
        .then_some(path)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, format!("not a path below tracefs: {path:?}")))
}

fn mount_in_new_namespace() -> io::Result<OwnedFd> {
    use nix::mount::{MsFlags, mount};
    // Not tracefs's usual place: mount(2) answers EBUSY where the same file system is the top mount already, as systemd
    // mounts it on most machines.
    const PLACE: &str = "/sys/kernel";
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS)?;
    // Nothing done here may reach the namespaces we came from.
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("tracefs"), PLACE, Some("tracefs"), flags, None::<&str>)?;
    Ok(OwnedFd::from(File::open(PLACE)?))
}

/// Mount points of whole tracefs mounts in the text of `/proc/self/mountinfo`; automounts below debugfs last.
fn tracefs_mounts(mountinfo: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = mountinfo
        .lines()
        .filter_map(|line| {
            // id parent major:minor root place options [optional fields] - type source options
            let (front, back) = line.split_once(" - ")?;
            let mut fields = front.split(' ').skip(3);
            let (root, place) = (fields.next()?, fields.next()?);
            (root == "/" && back.split(' ').next()? == "tracefs").then(|| PathBuf::from(unescape(place)))
        })
        .collect();
    found.sort_by_key(|path| !path.starts_with(Path::new("/sys/kernel/tracing")));
    found
}

/// mountinfo writes space, tab, newline and backslash as `\040` and so on.
fn unescape(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let octal = rest.get(at + 1..at + 4).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        out.push(octal.map_or('\\', char::from));
        rest = &rest[at + if octal.is_some() { 4 } else { 1 }..];
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_whole_tracefs_mounts_only() {
        let text = "\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
40 30 0:12 / /sys/kernel/debug/tracing rw,nosuid shared:3 - tracefs tracefs rw
41 30 0:12 / /sys/kernel/tracing rw shared:4 master:1 - tracefs tracefs rw
42 30 0:12 /instances/a /mnt/a rw - tracefs tracefs rw
43 30 0:12 / /mnt/two\\040words rw - tracefs tracefs rw
44 30 0:13 / /proc rw - proc tracefs rw
broken line";
        let found = tracefs_mounts(text);
        let paths: Vec<&str> = found.iter().filter_map(|p| p.to_str()).collect();
        assert_eq!(paths, ["/sys/kernel/tracing", "/sys/kernel/debug/tracing", "/mnt/two words"]);
    }

    #[test]
    fn unescapes_mount_points() {
        assert_eq!(unescape(r"/a\040b\134c\"), r"/a b\c\");
        assert_eq!(unescape(r"\99"), r"\99");
    }

    #[test]
    fn paths_stay_inside() {
        for bad in ["", "/etc/passwd", "events/../../etc", "events//x", "./events", "events/"] {
            assert!(inside(bad).is_err(), "{bad:?}");
        }
        assert!(inside("events/sched/sched_switch/format").is_ok());
    }
}
