//! Detects file changes by their metadata.

use std::path::PathBuf;
use std::time::Duration;

/// Metadata that identifies a content of a file. Symbolic links are followed, so that the swapped links of a ConfigMap count
/// as a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Device and inode.
    pub file: (u64, u64),
    /// Size in bytes.
    pub size: u64,
    /// mtime since 1970.
    pub changed: Duration,
}

/// Files and their stamps, `None` for a missing file.
pub type Stamps = Vec<(PathBuf, Option<Stamp>)>;

/// Worst mtime granularity: a content younger than this when read may change again without a new stamp.
const TICK: Duration = Duration::from_secs(2);

/// Whether content read at `read_at` (since 1970) with the stamps `then` may differ from the files with the stamps `now`.
pub fn must_read(then: &Stamps, read_at: Duration, now: &Stamps) -> bool {
    let young = |stamp: &Stamp| stamp.changed + TICK > read_at;
    then != now || now.iter().any(|(_, stamp)| stamp.as_ref().is_some_and(young))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_again_when_anything_about_it_changes() {
        let stamp = |inode, size, at| Some(Stamp { file: (1, inode), size, changed: Duration::from_secs(at) });
        let files = |stamp| vec![(PathBuf::from("a"), stamp)];
        let then = files(stamp(1, 5, 100));
        let read_at = Duration::from_secs(200);
        for (now, again) in [
            (files(stamp(1, 5, 100)), false),
            (files(stamp(2, 5, 100)), true),
            (files(stamp(1, 6, 100)), true),
            (files(stamp(1, 5, 101)), true),
            (files(None), true),
            (vec![], true),
            (vec![("a".into(), stamp(1, 5, 100)), ("b".into(), None)], true),
        ] {
            assert_eq!(must_read(&then, read_at, &now), again, "{now:?}");
        }
        assert!(!must_read(&files(None), read_at, &files(None)));
    }

    #[test]
    fn a_file_that_was_young_when_it_was_read_is_read_again_until_it_was_not() {
        let files =
            vec![(PathBuf::from("a"), Some(Stamp { file: (1, 1), size: 5, changed: Duration::from_secs(100) }))];
        for (read_at, again) in [(100, true), (101, true), (102, false), (99, true)] {
            assert_eq!(must_read(&files, Duration::from_secs(read_at), &files), again, "{read_at}");
        }
    }
}
