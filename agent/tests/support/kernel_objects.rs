//! Programs and maps in the kernel.

use super::{output, wait_for};
use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

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
    let list = bpftool(&[what, "show"]);
    let named = list.iter().map(|o| (o["id"].as_u64().unwrap_or(0), o["name"].as_str().unwrap_or("").to_owned()));
    named.collect()
}

fn bpftool(words: &[&str]) -> Vec<serde_json::Value> {
    // It fails where something that it lists ends meanwhile.
    let text = wait_for("a list of bpftool", Duration::from_secs(5), || {
        let listed = Command::new("bpftool").arg("-j").args(words).output().expect("bpftool runs");
        listed.status.success().then_some(listed.stdout)
    });
    serde_json::from_slice(&text).expect("bpftool prints JSON")
}

/// Whether some program is at a raw tracepoint.
pub fn is_at(tracepoint: &str) -> bool {
    bpftool(&["link", "show"]).iter().any(|link| link["tp_name"] == tracepoint)
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

/// Waits for the end of programs and maps of an agent that has ended; the kernel frees them after a grace period.
///
/// Maps are listed after the programs are gone. bpftool opens what it lists, and a program array that is opened and closed
/// while the kernel still clears it after its last descriptor (`prog_array_map_clear`: a reference for a work item that
/// may be queued already) keeps that reference for good.
#[track_caller]
pub fn wait_for_end(programs: &BTreeMap<u64, String>, maps: &BTreeMap<u64, String>) {
    for (kind, ids) in [(Kind::Programs, programs), (Kind::Maps, maps)] {
        wait_for(&format!("the end of {kind:?}"), Duration::from_secs(5), || {
            let now = all(kind);
            ids.keys().all(|id| !now.contains_key(id)).then_some(())
        });
    }
}

/// The entries of a map, key and value as bytes, as bpftool reads it.
pub fn entries(map: u64) -> Vec<(Vec<u8>, Vec<u8>)> {
    let list = bpftool(&["map", "dump", "id", &map.to_string()]);
    let byte = |text: &serde_json::Value| {
        let digits = text.as_str().and_then(|text| text.strip_prefix("0x")).expect("a byte");
        u8::from_str_radix(digits, 16).expect("a byte")
    };
    let bytes = |list: &serde_json::Value| list.as_array().expect("bytes").iter().map(byte).collect();
    list.iter().map(|entry| (bytes(&entry["key"]), bytes(&entry["value"]))).collect()
}

/// How often a program ran while statistics were on, as bpftool tells.
pub fn runs(program: u64) -> u64 {
    let text = output(Command::new("bpftool").args(["-j", "prog", "show", "id", &program.to_string()]));
    let told: serde_json::Value = serde_json::from_str(&text).expect("bpftool prints JSON");
    // What never ran is not told.
    told["run_cnt"].as_u64().unwrap_or(0)
}
