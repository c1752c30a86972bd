//! Whether files have changed: a look at what their names lead to every other second, and seldom at rest.
//!
//! Polling notices a change later than inotify, but needs no case for each way in which files change: an editor that
//! renames, a link that is pointed elsewhere two folders above (as Kubernetes does with a ConfigMap), a network's file
//! system.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::config::files;

/// Between two looks.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(2);
/// The same while the agent rests and nothing has changed: each look is a wake of the CPU.
pub(super) const LOOK_AT_REST: Duration = Duration::from_secs(15);
/// Files must have been the same for so long, which is somewhat less than from one look to the next: a change of several files must be complete.
const QUIET: Duration = Duration::from_millis(1800);

/// What a file is known by. Its status' time also changes when its times are set back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub device: u64,
    pub inode: u64,
    pub bytes: u64,
    /// Seconds and nanoseconds.
    pub modified: (i64, i64),
    /// The same of its status.
    pub changed: (i64, i64),
}

/// What names lead to; an error by its number.
pub(super) type Seen = BTreeMap<PathBuf, Result<Stamp, Option<i32>>>;

/// Looks at a file, and at the probe files of a directory.
pub(super) fn look(file: Option<&Path>, directory: Option<&Path>) -> Seen {
    let mut seen: Seen = file.iter().map(|file| (file.to_path_buf(), stamp(file))).collect();
    if let Some(directory) = directory {
        match files::yaml_files(directory) {
            Ok(files) => seen.extend(files.into_iter().map(|file| (file.clone(), stamp(&file)))),
            Err(error) => _ = seen.insert(directory.to_path_buf(), Err(error.raw_os_error())),
        }
    }
    seen
}

/// Of what the name leads to in the end.
fn stamp(path: &Path) -> Result<Stamp, Option<i32>> {
    let status = std::fs::metadata(path).map_err(|error: io::Error| error.raw_os_error())?;
    Ok(Stamp {
        device: status.dev(),
        inode: status.ino(),
        bytes: status.len(),
        modified: (status.mtime(), status.mtime_nsec()),
        changed: (status.ctime(), status.ctime_nsec()),
    })
}

/// Remembers what was seen. Times are since some fixed moment.
#[derive(Debug)]
pub(super) struct Watch {
    /// When files were last read.
    read: Seen,
    /// What is there instead, and since when.
    changed: Option<(Seen, Duration)>,
}

impl Watch {
    /// Files were read when they were like this, whatever came of it: what is wrong with them is not better for being read
    /// again.
    pub fn new(read: Seen) -> Watch {
        Watch { read, changed: None }
    }

    /// Whether files have changed that are not read yet.
    pub fn has_changed(&self) -> bool {
        self.changed.is_some()
    }

    /// Whether it is time to read them again.
    pub fn look(&mut self, now: Duration, seen: Seen) -> bool {
        if seen == self.read {
            self.changed = None;
            return false;
        }
        match &self.changed {
            Some((before, since)) if *before == seen => now.saturating_sub(*since) >= QUIET,
            _ => {
                self.changed = Some((seen, now));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `a1 b2 c-`: files by name, each with a version; `-` is not there.
    fn seen(text: &str) -> Seen {
        let one = |word: &str| {
            let (name, version) = word.split_at(1);
            let times = (1, 0);
            let stamp =
                version.parse().map(|inode| Stamp { device: 1, inode, bytes: 9, modified: times, changed: times });
            (name.into(), stamp.map_err(|_| Some(2)))
        };
        text.split_whitespace().map(one).collect()
    }

    #[test]
    fn files_are_read_once_they_are_quiet() {
        // Each look with its time in seconds; `!` where files are to be read.
        for (read, looks) in [
            ("a1 b1", "0 a1 b1, 2 a1 b1, 4 a1 b1"),
            ("a1", "0 a1, 2 a2, 4! a2"),
            // It stays due until the files are read.
            ("a1", "0 a2, 2! a2, 4! a2"),
            // One after the other.
            ("a1 b1", "0 a2 b1, 2 a2 b2, 3 a2 b2, 4! a2 b2"),
            ("a1", "0 a2, 2 a3, 4 a4, 6! a4"),
            // There and back: nothing to read.
            ("a1", "0 a2, 2 a1, 4 a2, 6! a2"),
            ("a1", "0 a1 b1, 2! a1 b1"),
            ("a1 b1", "0 a1, 2! a1"),
            // An editor that removes before it renames.
            ("a1", "0 a-, 1 a2, 3! a2"),
            ("a1", "0 a-, 2! a-"),
            ("a-", "0 a-, 2 a-, 4 a1, 6! a1"),
            ("", "0 , 2 , 4 a1, 6! a1"),
        ] {
            let mut watch = Watch::new(seen(read));
            for look in looks.split(", ") {
                let (time, files) = look.split_once(' ').unwrap();
                let expected = time.ends_with('!');
                let now = Duration::from_secs(time.trim_end_matches('!').parse().unwrap());
                assert_eq!(watch.look(now, seen(files)), expected, "{read}: {looks} at {time}");
            }
        }
    }

    #[test]
    fn every_way_in_which_files_change_is_seen() {
        use std::fs;
        use std::os::unix::fs::symlink;
        let folder = std::env::temp_dir().join(format!("kstrobe-watch-{}", std::process::id()));
        let (mount, other) = (folder.join("mount"), folder.join("kstrobe.yaml"));
        // As a mounted ConfigMap looks.
        for version in ["..1", "..2"] {
            fs::create_dir_all(mount.join(version)).unwrap();
            fs::write(mount.join(version).join("a.yaml"), "probe: a\n").unwrap();
        }
        symlink("..1", mount.join("..data")).unwrap();
        symlink("..data/a.yaml", mount.join("a.yaml")).unwrap();
        fs::write(&other, "events: none\n").unwrap();
        let look = || super::look(Some(&other), Some(&mount));
        let mut last = look();
        assert_eq!(last.len(), 2, "{last:?}");
        assert_eq!(look(), last);
        let mut changes = |what: &str, change: &dyn Fn()| {
            change();
            let now = look();
            assert_ne!(now, last, "{what}");
            last = now;
        };
        changes("the link of a ConfigMap is swapped", &|| {
            symlink("..2", mount.join("..new")).unwrap();
            fs::rename(mount.join("..new"), mount.join("..data")).unwrap();
        });
        changes("an editor renames", &|| {
            fs::write(folder.join("kstrobe.yaml~"), "events: none\n").unwrap();
            fs::rename(folder.join("kstrobe.yaml~"), &other).unwrap();
        });
        changes("it grows", &|| fs::write(&other, "events: stderr\n").unwrap());
        changes("a file comes", &|| fs::write(mount.join("b.yml"), "").unwrap());
        changes("a file goes", &|| fs::remove_file(mount.join("b.yml")).unwrap());
        changes("the configuration goes", &|| fs::remove_file(&other).unwrap());
        changes("the folder goes", &|| fs::rename(&mount, folder.join("elsewhere")).unwrap());
        let calm = look();
        fs::write(folder.join("notes.yaml"), "").unwrap();
        assert_eq!(look(), calm, "other files");
        fs::remove_dir_all(folder).unwrap();
    }
}
