//! All shipped probes at once, and `docs/kernels.md`, which tells on which kernels of the lab each of them runs.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use support::agent::{self, Setup};
use support::{lab, load, not_run, output};

const PAGE: &str = include_str!("../../docs/kernels.md");

/// By name, whether it runs when nothing is said.
fn shipped() -> BTreeMap<String, bool> {
    let text = output(&mut agent::command(&["list", "probes", "-o", "json"]));
    let list: Vec<serde_json::Value> = serde_json::from_str(&text).expect("a list");
    list.iter().map(|probe| (probe["probe"].as_str().unwrap().to_owned(), probe["default"] == "on")).collect()
}

/// Rows of the first table, that of the probes: by name, the other cells by the name of their column.
fn rows(page: &str) -> BTreeMap<String, BTreeMap<String, String>> {
    let cells = |line: &str| -> Vec<String> { line.split('|').map(|cell| cell.trim().to_owned()).collect() };
    let mut table = page.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let header = cells(table.next().expect("a table"));
    assert_eq!(header[1..3], ["probe", "default"], "the first table is that of the probes");
    let row = |line| {
        let cells = cells(line);
        (cells[1].trim_matches('`').to_owned(), header.iter().cloned().zip(cells).skip(2).collect())
    };
    table.skip(1).map(row).collect()
}

#[test]
fn the_page_has_every_shipped_probe_and_no_other() {
    let (rows, shipped) = (rows(PAGE), shipped());
    let (on_page, all): (BTreeSet<_>, BTreeSet<_>) = (rows.keys().collect(), shipped.keys().collect());
    let differ: Vec<_> = on_page.symmetric_difference(&all).collect();
    assert!(differ.is_empty(), "docs/kernels.md and probes differ in {differ:?}: run `cargo xtask vm --write-docs`");
    for (name, on) in shipped {
        let default = if on { "on" } else { "off" };
        assert_eq!(rows[&name]["default"], default, "{name}: run `cargo xtask vm --write-docs`");
        for kernel in ["5.10", "6.1", "6.12", "sid"] {
            let cell = &rows[&name][kernel];
            assert!(!cell.is_empty() && !cell.contains("unknown"), "{name} on {kernel}: {cell}");
        }
    }
}

/// On a kernel of the lab, those must attach that the page says so of, and no others.
#[test]
#[ignore = "needs root"]
fn root_every_shipped_probe_attaches_or_says_why() {
    let (rows, shipped) = (rows(PAGE), shipped());
    let names: Vec<&str> = shipped.keys().map(String::as_str).collect();
    let agent = Setup { arguments: &["--only", &names.join(",")], ..Setup::default() }.start();
    let status: serde_json::Value = serde_json::from_str(&agent.get("/api/v1/probes").unwrap().1).unwrap();
    let probes = status["probes"].as_array().unwrap();
    assert_eq!(probes.len(), shipped.len(), "{status:#}");
    let mut wrong = Vec::new();
    for probe in probes {
        let (name, attached) = (probe["name"].as_str().unwrap(), probe["attached"] == true);
        let reason = probe["reason"].as_str().unwrap_or_default();
        if attached != reason.is_empty() || (shipped[name] && !attached) {
            wrong.push(format!("{name}: attached {attached}, reason {reason:?}"));
        }
        if let Some(kernel) = lab() {
            let program =
                reason.strip_prefix("waiting: no program or library `").and_then(|rest| rest.split('`').next());
            let cell = &rows[name][&kernel];
            // The page was written where the program was; guests carry those of guest.needs.
            if program.is_some_and(|name| kstrobe_testing::find(name).is_none()) && !cell.starts_with("no ") {
                not_run("root_every_shipped_probe_attaches_or_says_why", &format!("{name} is {reason}"));
                continue;
            }
            if attached == cell.starts_with("no ") {
                wrong.push(format!("{name}: attached {attached} ({reason}), the page says {cell}"));
            }
            // Notes stand behind the kinds, in brackets.
            let said: BTreeSet<&str> = cell.split(" (").next().unwrap_or_default().split(", ").collect();
            let hooks = probe["hooks"].as_array().unwrap().iter();
            let kinds: BTreeSet<&str> = hooks.map(|hook| hook["kind"].as_str().unwrap()).collect();
            if attached && said != kinds {
                wrong.push(format!("{name}: attached by {kinds:?}, the page says {cell}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // What cannot attach takes nothing from the others.
    let getppid = [("syscall", "getppid")];
    let calls = |metrics: &support::metrics::Metrics| metrics.sum("kstrobe_syscall_duration_seconds_count", &getppid);
    // An emulated kernel with all probes may take longer than a scraper waits, which then gets the reading before.
    let fresh = || {
        let is_fresh = |metrics: &support::metrics::Metrics| metrics.sum("kstrobe_scrape_age_seconds", &[]) == 0.0;
        support::wait_for("a fresh scrape", Duration::from_secs(60), || Some(agent.scrape()).filter(is_fresh))
    };
    let before = calls(&fresh());
    load::getppid_calls(1000);
    let after = fresh();
    assert!(calls(&after) - before >= 1000.0, "{} of 1000 calls", calls(&after) - before);
    for name in shipped.keys() {
        assert!(after.has("kstrobe_probe_attached", &[("probe", name)]), "{name} is not in the metrics");
    }
    agent.stop();
}
