//! Control groups of version 2 with the files of their controllers. A file whose controller is not on for a group is not there, and its
//! numbers are 0.

use super::{Rows, Source, number, text};
use kstrobe_workloads::cgroups::Hierarchies;
use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

pub const SOURCE: Source = Source {
    name: "cgroups",
    summary: "control groups of version 2 below the root: id (the inode number of the folder) and sums of cpu.stat, memory.*, io.stat and pids.*; times in ns, a limit of 0 is none",
    columns: &[
        number("id"),
        text("path", 64),
        number("cpu_time"),
        number("user_time"),
        number("system_time"),
        number("periods"),
        number("throttled_periods"),
        number("throttled_time"),
        number("memory"),
        number("memory_limit"),
        number("memory_peak"),
        number("anonymous"),
        number("file"),
        number("oom_kills"),
        number("limit_hits"),
        number("swap"),
        number("read_bytes"),
        number("write_bytes"),
        number("reads"),
        number("writes"),
        number("pids"),
        number("pids_limit"),
    ],
    open: || Box::new(read),
};

fn read(rows: &mut Rows) -> io::Result<()> {
    let root = root()?;
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        // Groups may be removed while they are looked at.
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        let below = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        folders.extend(below.map(|entry| entry.path()));
        if let (true, Ok(metadata)) = (folder != root, fs::metadata(&folder)) {
            push(rows, metadata.ino(), &folder, folder.strip_prefix(&root).unwrap_or(&folder));
        }
    }
    Ok(())
}

/// Where version 2 is mounted whole: at its usual place, or beside version 1.
fn root() -> io::Result<PathBuf> {
    let mounted = Hierarchies::here(None).map_err(io::Error::other)?.unified;
    let whole = mounted.filter(|hierarchy| hierarchy.root == Path::new("/"));
    let missing = || io::Error::new(io::ErrorKind::NotFound, "control groups of version 2 are not mounted");
    whole.map(|hierarchy| hierarchy.mount_point).ok_or_else(missing)
}

fn push(rows: &mut Rows, id: u64, folder: &Path, path: &Path) {
    let text = |file: &str| fs::read_to_string(folder.join(file)).unwrap_or_default();
    // `max` is no number: no limit.
    let one = |file: &str| text(file).trim().parse::<u64>().unwrap_or(0);
    let cpu = keyed(&text("cpu.stat"));
    let (memory, events, io) = (keyed(&text("memory.stat")), keyed(&text("memory.events")), devices(&text("io.stat")));
    let of = |numbers: &HashMap<String, u64>, key: &str| numbers.get(key).copied().unwrap_or(0);
    let ns = |key: &str| of(&cpu, key) * 1000;
    rows.push(&[
        id.into(),
        format!("/{}", path.display()).as_str().into(),
        ns("usage_usec").into(),
        ns("user_usec").into(),
        ns("system_usec").into(),
        of(&cpu, "nr_periods").into(),
        of(&cpu, "nr_throttled").into(),
        ns("throttled_usec").into(),
        one("memory.current").into(),
        one("memory.max").into(),
        one("memory.peak").into(),
        of(&memory, "anon").into(),
        of(&memory, "file").into(),
        of(&events, "oom_kill").into(),
        of(&events, "max").into(),
        one("memory.swap.current").into(),
        of(&io, "rbytes").into(),
        of(&io, "wbytes").into(),
        of(&io, "rios").into(),
        of(&io, "wios").into(),
        one("pids.current").into(),
        one("pids.max").into(),
    ]);
}

/// Lines `key number`.
fn keyed(text: &str) -> HashMap<String, u64> {
    let line = |line: &str| line.split_once(' ').and_then(|(key, value)| Some((key.to_owned(), value.parse().ok()?)));
    text.lines().filter_map(line).collect()
}

/// Lines `8:0 rbytes=1 wbytes=2`, added.
fn devices(text: &str) -> HashMap<String, u64> {
    let mut sums = HashMap::new();
    for (key, value) in text.split_whitespace().filter_map(|word| word.split_once('=')) {
        *sums.entry(key.to_owned()).or_insert(0) += value.parse::<u64>().unwrap_or(0);
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_of_a_group_are_added() {
        let text = "8:0 rbytes=4096 wbytes=1 rios=1 wios=2\n259:0 rbytes=1 wbytes=0 rios=3 wios=0\n";
        let sums = devices(text);
        assert_eq!((sums["rbytes"], sums["rios"], sums["wios"]), (4097, 4, 2));
        assert_eq!(
            keyed("usage_usec 12\nnr_periods 3\nodd\n"),
            [("usage_usec".into(), 12), ("nr_periods".into(), 3)].into()
        );
    }
}
