use super::*;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A made-up hierarchy, gone at the end.
struct Tree(PathBuf);

impl Tree {
    fn new(folders: &[&str]) -> Tree {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let tree = Tree(std::env::temp_dir().join(format!("kstrobe-cgroups-{}-{number}", std::process::id())));
        fs::create_dir(&tree.0).unwrap();
        for folder in folders {
            tree.add(folder);
        }
        tree
    }

    fn add(&self, folder: &str) -> u64 {
        let folder = self.0.join(folder);
        fs::create_dir_all(&folder).unwrap();
        // Each group has files.
        fs::write(folder.join("cgroup.procs"), "").unwrap();
        fs::metadata(folder).unwrap().ino()
    }

    fn remove(&self, folder: &str) {
        fs::remove_dir_all(self.0.join(folder)).unwrap();
    }

    fn walker(&self, root: &str, most: usize) -> Walker {
        Walker::new(Hierarchy { mount_point: self.0.clone(), root: root.into(), controllers: Vec::new() }, most)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Paths that came, in order of their names.
fn came(walk: &Walk) -> Vec<&str> {
    let mut paths: Vec<&str> = walk.came.iter().map(|group| group.path.as_str()).collect();
    paths.sort_unstable();
    paths
}

#[test]
fn the_first_walk_finds_all_and_the_next_the_changes() {
    let tree = Tree::new(&["a/b/c", "d"]);
    let mut walker = tree.walker("/", 100);
    let first = walker.walk().unwrap();
    assert_eq!(came(&first), ["/", "/a", "/a/b", "/a/b/c", "/d"]);
    assert!(first.whole && first.gone.is_empty());
    for group in &first.came {
        let folder = tree.0.join(group.path.trim_start_matches('/'));
        assert_eq!(group.id, fs::metadata(folder).unwrap().ino(), "{}", group.path);
        let parent = group.path.rsplit_once('/').map_or("", |(parent, _)| parent);
        let place = |path: &str| first.came.iter().position(|other| other.path == path);
        assert!(parent.is_empty() || place(parent) < place(&group.path), "{} before its parent", group.path);
    }
    assert_eq!(walker.walk().unwrap(), Walk { whole: true, ..Walk::default() });

    let removed = fs::metadata(tree.0.join("a/b/c")).unwrap().ino();
    // In this order, or the file system may give the same number again.
    let id = tree.add("d/e");
    tree.remove("a/b/c");
    let walk = walker.walk().unwrap();
    assert_eq!(walk, Walk { came: vec![Cgroup { id, path: "/d/e".into() }], gone: vec![removed], whole: true });
    assert_eq!(walker.groups(), 5);
    assert_eq!(walker.counts(), Counts { walks: 3, ..Counts::default() });
}

#[test]
fn paths_begin_at_the_root_of_the_hierarchy() {
    let tree = Tree::new(&["pod1"]);
    let walk = tree.walker("/../../kubepods", 100).walk().unwrap();
    assert_eq!(came(&walk), ["/kubepods", "/kubepods/pod1"]);
}

#[test]
fn a_group_that_moves_comes_under_its_new_name() {
    // Version 1 lets groups be renamed; and an inode's number may be given again.
    let tree = Tree::new(&["a"]);
    let mut walker = tree.walker("/", 100);
    walker.walk().unwrap();
    fs::rename(tree.0.join("a"), tree.0.join("b")).unwrap();
    let walk = walker.walk().unwrap();
    let id = fs::metadata(tree.0.join("b")).unwrap().ino();
    assert_eq!(walk, Walk { came: vec![Cgroup { id, path: "/b".into() }], gone: Vec::new(), whole: true });
}

#[test]
fn at_the_limit_existing_groups_are_not_reported_as_removed() {
    let tree = Tree::new(&["a", "b", "c", "d", "e"]);
    let mut all = tree.walker("/", 6);
    assert!(all.walk().unwrap().whole, "six groups are within a limit of six");
    let mut walker = tree.walker("/", 4);
    let mut known = BTreeMap::new();
    for round in 1..=4 {
        let walk = walker.walk().unwrap();
        assert!(!walk.whole);
        assert_eq!(walk.gone, [0; 0]);
        known.extend(walk.came.into_iter().map(|group| (group.id, group.path)));
        assert_eq!(walker.counts(), Counts { walks: round, limited: round, ..Counts::default() });
        assert_eq!(walker.groups(), known.len());
    }
    assert!(known.len() >= 4, "{known:?}");
    // A removed group is reported even if the walk did not reach it.
    for name in ["a", "b", "c", "d", "e"] {
        tree.remove(name);
    }
    let walk = walker.walk().unwrap();
    assert_eq!(walk.gone.len(), known.len() - 1);
    assert_eq!((walk.whole, walker.groups()), (true, 1));
}

#[test]
fn files_links_and_names_that_are_no_text() {
    use std::os::unix::ffi::OsStrExt;
    let tree = Tree::new(&["a"]);
    fs::write(tree.0.join("memory.max"), "max").unwrap();
    std::os::unix::fs::symlink(&tree.0, tree.0.join("a/loop")).unwrap();
    let odd = std::ffi::OsStr::from_bytes(b"odd-\xff");
    fs::create_dir(tree.0.join("a").join(odd)).unwrap();
    let mut walker = tree.walker("/", 100);
    assert_eq!(came(&walker.walk().unwrap()), ["/", "/a", "/a/odd-\u{fffd}"]);
    assert_eq!(walker.walk().unwrap(), Walk { whole: true, ..Walk::default() });
}

#[test]
fn a_folder_that_cannot_be_read_is_counted_and_its_groups_stay() {
    // Deeper than a path may be long, so that not even root can name it: made by way of open folders.
    let tree = Tree::new(&["top"]);
    let name = "x".repeat(250);
    let mut folder = File::open(tree.0.join("top")).unwrap();
    for _ in 0..20 {
        let inside = PathBuf::from(format!("/proc/self/fd/{}/{name}", folder.as_raw_fd()));
        fs::create_dir(&inside).unwrap();
        folder = File::open(inside).unwrap();
    }
    let mut walker = tree.walker("/", 100);
    let first = walker.walk().unwrap();
    assert!(!first.whole);
    assert!(first.came.len() > 15, "{} groups", first.came.len());
    assert_eq!(walker.counts(), Counts { walks: 1, unreadable: 1, ..Counts::default() });
    // The second time it is the same one.
    assert_eq!(walker.walk().unwrap(), Walk::default());
    assert_eq!(walker.counts(), Counts { walks: 2, unreadable: 2, ..Counts::default() });
    let id = tree.add("new");
    assert_eq!(walker.walk().unwrap().came, [Cgroup { id, path: "/new".into() }]);
    tree.remove("new");
    assert_eq!(walker.walk().unwrap().gone, [id]);
}

#[test]
fn without_the_root_directory_a_walk_fails_and_removes_no_group() {
    let tree = Tree::new(&["a"]);
    let mut walker = tree.walker("/", 100);
    walker.walk().unwrap();
    let aside = tree.0.with_extension("aside");
    fs::rename(&tree.0, &aside).unwrap();
    assert_eq!(walker.walk().unwrap_err().kind(), io::ErrorKind::NotFound);
    fs::rename(&aside, &tree.0).unwrap();
    assert_eq!(walker.walk().unwrap(), Walk { whole: true, ..Walk::default() });
}

/// A watched tree that was walked once.
fn watched(tree: &Tree) -> (Walker, Alarm) {
    let mut walker = tree.walker("/", 1000);
    let alarm = walker.watch().unwrap();
    walker.walk().unwrap();
    (walker, alarm)
}

/// Nothing waits to be looked at.
const NOW: Duration = Duration::ZERO;
/// Long enough for the kernel to tell.
const SOON: Duration = Duration::from_secs(10);

#[test]
fn changes_between_walks_are_reported() {
    let tree = Tree::new(&["a"]);
    let (mut walker, alarm) = watched(&tree);
    assert!(!alarm.wait(NOW).unwrap());
    assert_eq!(walker.changes().unwrap(), Walk::default());

    // Three at once: the watch on the first is there after the others.
    let id = tree.add("a/x/y/z");
    assert!(alarm.wait(SOON).unwrap());
    let walk = walker.changes().unwrap();
    assert_eq!(came(&walk), ["/a/x", "/a/x/y", "/a/x/y/z"]);
    assert_eq!((walk.gone.len(), walk.whole), (0, false));
    assert!(!alarm.wait(NOW).unwrap());

    // In those that came then.
    let deepest = tree.add("a/x/y/z/w");
    assert_eq!(walker.changes().unwrap().came, [Cgroup { id: deepest, path: "/a/x/y/z/w".into() }]);
    tree.remove("a/x/y/z");
    let mut both = vec![id, deepest];
    both.sort_unstable();
    assert_eq!(walker.changes().unwrap().gone, both);
    // Looking everywhere finds nothing else.
    assert_eq!(walker.walk().unwrap(), Walk { whole: true, ..Walk::default() });
    assert_eq!(walker.counts(), Counts { walks: 2, ..Counts::default() });
}

#[test]
fn only_groups_that_still_exist_are_reported() {
    let tree = Tree::new(&["a"]);
    let (mut walker, _) = watched(&tree);
    tree.add("b");
    tree.remove("b");
    assert_eq!(walker.changes().unwrap(), Walk::default());
    // Made anew: another group, unless the file system gives the number again.
    let old = fs::metadata(tree.0.join("a")).unwrap().ino();
    tree.remove("a");
    let id = tree.add("a");
    tree.add("a/b");
    let walk = walker.changes().unwrap();
    assert!(came(&walk).ends_with(&["/a/b"]), "{walk:?}");
    assert_eq!(walk.gone.contains(&old), old != id && walk.came.iter().all(|group| group.id != old), "{walk:?}");
    tree.add("a/c");
    assert_eq!(came(&walker.changes().unwrap()), ["/a/c"]);
}

#[test]
fn when_much_changes_all_is_looked_at() {
    let tree = Tree::new(&["a"]);
    let (mut walker, alarm) = watched(&tree);
    for number in 0..100 {
        tree.add(&format!("a/{number}"));
    }
    let walk = walker.changes().unwrap();
    assert_eq!((walk.came.len(), walk.whole), (100, true));
    assert_eq!(walker.counts().walks, 2);
    // A rename says nothing of what is below.
    fs::rename(tree.0.join("a"), tree.0.join("b")).unwrap();
    assert!(alarm.wait(SOON).unwrap());
    let walk = walker.changes().unwrap();
    assert_eq!((walk.came.len(), walk.gone.len(), walk.whole), (101, 0, true));
    // The watches know the new names.
    tree.add("b/7/x");
    assert_eq!(came(&walker.changes().unwrap()), ["/b/7/x"]);
}

#[test]
fn unwatched_directories_are_counted_and_found_by_walks() {
    let tree = Tree::new(&[]);
    let mut walker = tree.walker("/", 1000);
    walker.watch().unwrap();
    walker.watches.as_mut().unwrap().limit(2);
    walker.walk().unwrap();
    tree.add("a/b/c");
    assert_eq!(came(&walker.changes().unwrap()), ["/a", "/a/b", "/a/b/c"]);
    assert_eq!(walker.counts().unwatched, 2);
    tree.add("a/b/d");
    assert_eq!(walker.changes().unwrap(), Walk::default());
    assert_eq!(came(&walker.walk().unwrap()), ["/a/b/d"]);
    // A watch that is free again is used again.
    tree.remove("a");
    assert_eq!(walker.changes().unwrap().gone.len(), 4);
    tree.add("e");
    walker.changes().unwrap();
    tree.add("e/f");
    assert_eq!(came(&walker.changes().unwrap()), ["/e/f"]);
}

#[test]
fn without_watches_changes_are_empty() {
    let tree = Tree::new(&[]);
    let mut walker = tree.walker("/", 1000);
    walker.walk().unwrap();
    tree.add("a");
    assert_eq!(walker.changes().unwrap(), Walk::default());
    assert_eq!(came(&walker.walk().unwrap()), ["/a"]);
}

/// Under constant creation and removal, inotify changes lead to the same groups as a final walk.
#[test]
fn a_busy_tree_is_followed_without_a_walk() {
    let tree = Tree::new(&["a", "b", "c"]);
    let (mut walker, _) = watched(&tree);
    let mut seen: BTreeMap<u64, String> = BTreeMap::new();
    let mut first = tree.walker("/", 1000);
    seen.extend(first.walk().unwrap().came.into_iter().map(|group| (group.id, group.path)));
    let mut follow = |walker: &mut Walker| {
        let walk = walker.changes().unwrap();
        for id in walk.gone {
            assert!(seen.remove(&id).is_some(), "{id} is gone and never came");
        }
        seen.extend(walk.came.into_iter().map(|group| (group.id, group.path)));
    };
    std::thread::scope(|scope| {
        let busy = scope.spawn(|| {
            // Numbers that look random, the same each time.
            let mut state = 1u32;
            let mut draw = |below: u32| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 16) % below
            };
            for _ in 0..300 {
                let names: Vec<&str> = (0..=draw(3)).map(|_| ["a", "b", "c", "d"][draw(4) as usize]).collect();
                let folder = tree.0.join(names.join("/"));
                if draw(3) == 0 {
                    let _ = fs::remove_dir_all(folder);
                } else {
                    let _ = fs::create_dir_all(folder);
                }
            }
        });
        while !busy.is_finished() {
            follow(&mut walker);
        }
    });
    follow(&mut walker);
    let now: BTreeMap<u64, String> =
        tree.walker("/", 1000).walk().unwrap().came.into_iter().map(|group| (group.id, group.path)).collect();
    assert_eq!(seen, now);
    assert_eq!(walker.groups(), now.len());
}
