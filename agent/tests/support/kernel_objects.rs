//! Programs and maps in the kernel.

use super::output;
use std::collections::BTreeMap;
use std::process::Command;

/// Programs or maps.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// `bpftool prog`
    Programs,
    /// `bpftool map`
    Maps,
}

/// Name by id of all that are in the kernel now, as bpftool tells.
pub fn all(kind: Kind) -> BTreeMap<u64, String> {
    let what = match kind {
        Kind::Programs => "prog",
        Kind::Maps => "map",
    };
    let text = output(Command::new("bpftool").args(["-j", what, "show"]));
    let list: Vec<serde_json::Value> = serde_json::from_str(&text).expect("bpftool prints JSON");
    let named = list.iter().map(|o| (o["id"].as_u64().unwrap_or(0), o["name"].as_str().unwrap_or("").to_owned()));
    named.collect()
}

/// How many have a name that begins like this.
pub fn count(kind: Kind, prefix: &str) -> usize {
    all(kind).values().filter(|name| name.starts_with(prefix)).count()
}

/// Name by id of those that a process has open.
pub fn held_by(pid: u32, kind: Kind) -> BTreeMap<u64, String> {
    let key = match kind {
        Kind::Programs => "prog_id:",
        Kind::Maps => "map_id:",
    };
    let names = all(kind);
    let mut held = BTreeMap::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap() {
        // A descriptor may be closed while we look.
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap_or_default();
        let id = text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse::<u64>().ok());
        if let Some(id) = id {
            held.insert(id, names.get(&id).cloned().unwrap_or_default());
        }
    }
    held
}
