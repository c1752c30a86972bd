//! `cargo xtask agreement`: what probes counted beside other tools, on the same load in the same run.

use anyhow::{Result, bail, ensure};
use kstrobe_testing::{AGREEMENT_FILE, Agreement, INSTALLED};
use nix::unistd::geteuid;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Options of the comparison.
#[derive(clap::Args)]
pub struct Options {
    /// Write docs/agreement.md
    #[arg(long)]
    write_docs: bool,
    /// Show what an earlier run wrote, and run nothing
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
}

/// Test programs that compare with another tool.
const TESTS: [&str; 9] = [
    "library",
    "root_user",
    "root_witness",
    "root_witness_block",
    "root_witness_iter",
    "root_witness_memory",
    "root_witness_net",
    "root_witness_polled",
    "root_witness_sched",
];
/// Probes that another program confirms, at least.
const MIN_PROBES: usize = 60;
const PAGE: &str = "docs/agreement.md";

/// Runs the tests, prints the table; fails where a test does, or where fewer probes than promised have another tool beside them.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let file = match &options.from {
        Some(file) => file.clone(),
        None => compare(root)?,
    };
    let text = std::fs::read_to_string(file)?;
    let all: Vec<Agreement> = text.lines().map(Agreement::parse).collect();
    let page = page(&all);
    println!("{page}");
    if options.write_docs {
        std::fs::write(root.join(PAGE), &page)?;
    }
    let confirmed = confirmed(&all);
    ensure!(confirmed >= MIN_PROBES, "{confirmed} probes stand beside another program, {MIN_PROBES} are promised");
    Ok(())
}

/// Runs the tests and gives the file that they wrote.
fn compare(root: &Path) -> Result<PathBuf> {
    ensure!(geteuid().is_root(), "probes run as root");
    let file = root.join("target/agreement.jsonl");
    let _ = std::fs::remove_file(&file);
    let mut cargo = Command::new("cargo");
    cargo.current_dir(root).args(["test", "--workspace", "--locked", "--no-fail-fast"]);
    TESTS.iter().for_each(|test| _ = cargo.args(["--test", test]));
    cargo.args(["--", "--ignored", "--test-threads=1", "root_"]);
    cargo.env(AGREEMENT_FILE, &file).env(INSTALLED, "1");
    if !cargo.status()?.success() {
        bail!("a test failed");
    }
    Ok(file)
}

/// Whether it is a program, not a file of the kernel, a counter of a system call or the load itself.
fn is_program(tool: &str) -> bool {
    !tool.contains(['/', ' ']) && tool != "getrusage"
}

fn confirmed(all: &[Agreement]) -> usize {
    // What did not happen confirms nothing.
    let confirms = |row: &&Agreement| is_program(&row.tool) && row.theirs.1 > 0.0;
    all.iter().filter(confirms).map(|row| &row.probe).collect::<BTreeSet<_>>().len()
}

fn page(all: &[Agreement]) -> String {
    let mut rows: BTreeMap<(&str, &str, &str), Vec<&Agreement>> = BTreeMap::new();
    for row in all {
        rows.entry((&row.probe, &row.metric, &row.tool)).or_default().push(row);
    }
    let bounds = all.iter().filter(|row| row.bounds > 0).map(|row| &row.metric).collect::<BTreeSet<_>>().len();
    let mut page = format!(
        "<!-- Made by `cargo xtask agreement --write-docs`; do not edit. -->\n\n# Agreement with other tools\n\n\
         Each row is a probe beside another tool on the same load in the same run, as root, on Linux {}. {} probes stand beside another\n\
         program, {bounds} histograms were compared at each of their bounds. Where a series counts the test's load alone, both numbers are\n\
         equal; where it counts the whole machine, the other tool has a range: what happened while the agent was read is in its number or not.\n\
         A number is the sum over the rows of a test that compares several series.\n\n\
         | probe | metric | other tool | kstrobe | other tool | apart | bounds compared |\n|---|---|---|--:|--:|--:|--:|\n",
        release(),
        confirmed(all),
    );
    for ((probe, metric, tool), rows) in rows {
        let sum = |of: fn(&Agreement) -> f64| rows.iter().map(|row| of(row)).sum::<f64>();
        let (ours, least, most) = (sum(|row| row.ours), sum(|row| row.theirs.0), sum(|row| row.theirs.1));
        let theirs = if least == most { least.to_string() } else { format!("{least} to {most}") };
        let apart = match ours {
            _ if ours == least && ours == most => "equal".to_owned(),
            _ if (least..=most).contains(&ours) => "within".to_owned(),
            _ => format!("{:+.2} %", 100.0 * (ours / ours.clamp(least, most) - 1.0)),
        };
        let bounds = rows.iter().map(|row| row.bounds).max().filter(|bounds| *bounds > 0);
        let bounds = bounds.map(|bounds| bounds.to_string()).unwrap_or_default();
        let _ = writeln!(page, "| `{probe}` | `{metric}` | {tool} | {ours} | {theirs} | {apart} | {bounds} |");
    }
    page
}

/// First two numbers of the kernel's version.
fn release() -> String {
    let (major, minor) = kstrobe_testing::kernel();
    format!("{major}.{minor}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_metric_are_added_and_programs_counted() {
        let row = |tool: &str, ours: f64, theirs: f64| Agreement::new("softirq", "duration", tool, ours, theirs);
        let all = [row("/proc/softirqs", 10.0, 10.0), row("/proc/softirqs", 5.0, 6.0), row("bpftrace", 3.0, 3.0)];
        let page = page(&all);
        assert!(page.contains("| `softirq` | `duration` | /proc/softirqs | 15 | 16 | -6.25 % |  |"), "{page}");
        assert!(page.contains("| `softirq` | `duration` | bpftrace | 3 | 3 | equal |  |"), "{page}");
        assert_eq!(confirmed(&all), 1);
    }
}
