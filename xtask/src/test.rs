//! `cargo xtask test`: everything a change has to pass, cheapest first. A step that cannot run here is named with the
//! reason; nothing is left out silently.

use crate::programs::{self, finish};
use crate::{chart, container, mounts, oracles, tidy, unit, vm};
use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use kstrobe_testing::groups::of_controller;
use kstrobe_testing::{INSTALLED, NOT_RUN_FILE};
use nix::unistd::geteuid;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Tests that need root are `#[ignore]`d and have this in their name.
const ROOT_TESTS: &str = "root_";

/// Where the tests run.
#[derive(Args)]
pub struct Options {
    /// Which of the kernel's file systems the tests find mounted
    #[arg(long, value_enum, default_value_t = Mounts::Machine)]
    mounts: Mounts,
}

#[derive(Clone, Copy, ValueEnum)]
enum Mounts {
    /// Those of this machine
    Machine,
    /// tracefs, debugfs, bpffs and control groups of version 2 alone, as systemd mounts them (root)
    Systemd,
}

/// What came of a step.
enum Outcome {
    Passed,
    Failed(anyhow::Error),
    NotRun(String),
}

/// The steps so far.
#[derive(Default)]
struct Report {
    steps: Vec<(&'static str, Outcome, Duration)>,
}

impl Report {
    /// Runs a step; a failure does not stop those after it.
    fn step(&mut self, name: &'static str, work: impl FnOnce() -> Result<()>) {
        println!("\n== {name}");
        let begin = Instant::now();
        let outcome = work().map_or_else(Outcome::Failed, |()| Outcome::Passed);
        if let Outcome::Failed(error) = &outcome {
            println!("{name}: {error:#}");
        }
        self.steps.push((name, outcome, begin.elapsed()));
    }

    fn not_run(&mut self, name: &'static str, reason: String) {
        println!("\n== {name}: not run, {reason}");
        self.steps.push((name, Outcome::NotRun(reason), Duration::ZERO));
    }

    /// Prints the summary and says whether all that ran has passed.
    fn finish(&self) -> Result<()> {
        println!("\n== summary");
        let (mut passed, mut failed) = (0, 0);
        for (name, outcome, time) in &self.steps {
            let seconds = time.as_secs_f64();
            match outcome {
                Outcome::Passed => {
                    passed += 1;
                    println!("passed   {seconds:6.1} s  {name}");
                }
                Outcome::Failed(error) => {
                    failed += 1;
                    println!("FAILED   {seconds:6.1} s  {name}: {error:#}");
                }
                Outcome::NotRun(reason) => println!("not run           {name}: {reason}"),
            }
        }
        println!("{passed} passed, {failed} failed");
        if failed > 0 { bail!("{failed} of {} steps failed", passed + failed) } else { Ok(()) }
    }
}

/// Runs all steps.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    if let Mounts::Systemd = options.mounts {
        mounts::as_systemd()?;
    }
    let mut report = Report::default();
    witness_programs(&mut report);
    report.step("formatting", || cargo(root, &["fmt", "--all", "--check"]));
    report.step("tidy", || tidy::run(root));
    report.step("clippy", || {
        cargo(root, &["clippy", "--quiet", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"])
    });
    report.step("documentation", || {
        let mut doc = cargo_command(root, &["doc", "--quiet", "--workspace", "--no-deps", "--locked"]);
        finish(doc.env("RUSTDOCFLAGS", "-D warnings"))
    });
    // Without advisories: they need the network and change without us, and are no part of the test of a change.
    let deny = ["deny", "--offline", "check", "bans", "licenses", "sources"];
    subcommand(root, "dependencies (cargo deny check bans licenses sources)", &deny, &mut report);
    subcommand(root, "unused dependencies (cargo machete)", &["machete"], &mut report);
    let cases = helm_chart(root, &mut report);
    match programs::find("systemd-analyze") {
        Some(_) => report.step("systemd unit", || unit::check(root)),
        None => report.not_run("systemd unit", "systemd-analyze is not installed".to_owned()),
    }
    report.step("tests", || cargo(root, &["test", "--quiet", "--workspace", "--locked"]));
    oracle_tests(root, &mut report);
    root_tests(root, &mut report);
    pod(root, cases.as_deref(), &mut report);
    other_kernels(root, &mut report);
    report.finish()
}

fn witness_programs(report: &mut Report) {
    let name = "witness programs";
    match (programs::missing(), programs::cannot_install()) {
        (missing, _) if missing.is_empty() => report.step(name, || Ok(())),
        (_, None) => report.step(name, programs::install),
        (missing, Some(why)) => {
            report.not_run(name, format!("{} missing and not installed: {why}", missing.join(", ")));
        }
    }
}

/// A subcommand of cargo that is no part of Rust, where it is installed.
fn subcommand(root: &Path, name: &'static str, words: &[&str], report: &mut Report) {
    let program = format!("cargo-{}", words[0]);
    if programs::find(&program).is_some() {
        report.step(name, || cargo(root, words));
    } else {
        report.not_run(name, format!("{program} is not installed: cargo install --locked {program}"));
    }
}

/// The chart needs Helm and schemas, which are fetched once. Leads to what was rendered.
fn helm_chart(root: &Path, report: &mut Report) -> Option<PathBuf> {
    let name = "helm chart";
    match chart::prepare(root) {
        Ok(tools) => {
            report.step(name, || chart::check(root, &tools, &chart::Options::default()));
            for why in tools.lacking() {
                report.not_run(name, why.to_owned());
            }
            Some(tools.cases())
        }
        Err(why) => {
            report.not_run(name, why);
            None
        }
    }
}

/// The chart's pod by a real runtime, with the agent that the tests were run with. By the image it is `cargo xtask helm --runc`,
/// which takes a static build.
fn pod(root: &Path, cases: Option<&Path>, report: &mut Report) {
    let name = "the chart's pod in a container";
    let agent = root.join("target/debug/kstrobe");
    match cases {
        _ if !geteuid().is_root() => report.not_run(name, "not root".to_owned()),
        None => report.not_run(name, "the chart was not rendered".to_owned()),
        _ if of_controller("memory").is_none() => {
            report.not_run(name, "no mounted hierarchy of control groups has the controller memory".to_owned());
        }
        Some(cases) => match (programs::find("runc"), programs::cannot_install()) {
            (None, Some(why)) => report.not_run(name, format!("runc missing and not installed: {why}")),
            _ => report.step(name, || container::check(root, cases, Some(&agent))),
        },
    }
}

/// Tests against programs that read what we write.
fn oracle_tests(root: &Path, report: &mut Report) {
    let names = match ignored_tests(root, oracles::TESTS) {
        Ok(names) => names,
        Err(error) => return report.step("oracles", || Err(error)),
    };
    for oracle in oracles::ALL {
        let own: Vec<&str> = names.iter().map(String::as_str).filter(|name| of_oracle(name, &oracle)).collect();
        match (oracle.ready)(root) {
            Ok(environment) => report.step(oracle.step, || {
                let arguments = ["test", "--quiet", "--workspace", "--locked", "--", "--ignored", oracle.tests];
                finish(mounts_apart(cargo_command(root, &arguments)).current_dir(root).envs(environment))
            }),
            Err(why) => report.not_run(oracle.step, format!("{why}: {}", own.join(", "))),
        }
    }
    report.step("oracles of all tests that name one", || {
        let unknown = |name: &&String| !oracles::ALL.iter().any(|oracle| of_oracle(name, oracle));
        let unknown: Vec<_> = names.iter().filter(unknown).map(String::as_str).collect();
        if unknown.is_empty() { Ok(()) } else { bail!("xtask/src/oracles.rs has none for {}", unknown.join(", ")) }
    });
}

/// As root in a mount namespace of its own: trace-cmd mounts tracefs and leaves it.
fn mounts_apart(command: Command) -> Command {
    let Some(unshare) = programs::find("unshare").filter(|_| geteuid().is_root()) else { return command };
    let mut apart = Command::new(unshare);
    apart.args(["--mount", "--propagation", "private"]).arg(command.get_program()).args(command.get_args());
    apart
}

/// Whether a test, with the modules that it is in, is for this witness.
fn of_oracle(test: &str, oracle: &oracles::Oracle) -> bool {
    test.rsplit("::").next().is_some_and(|name| name.starts_with(oracle.tests))
}

/// Tests against the kernel. They share its hooks and counters, so one runs at a time.
fn root_tests(root: &Path, report: &mut Report) {
    let name = "root tests";
    if !geteuid().is_root() {
        let names = ignored_tests(root, ROOT_TESTS).unwrap_or_else(|error| vec![format!("unknown ({error:#})")]);
        report.not_run(name, format!("not root: {}", names.join(", ")));
        return;
    }
    let list = root.join("target/not-run");
    // Left by an earlier run.
    let _ = fs::remove_file(&list);
    report.step(name, || {
        let arguments =
            ["test", "--workspace", "--locked", "--no-fail-fast", "--", "--ignored", ROOT_TESTS, "--test-threads=1"];
        let mut command = cargo_command(root, &arguments);
        command.env(NOT_RUN_FILE, &list);
        // Where the witnesses could have been installed, their absence is a failure.
        if programs::cannot_install().is_none() {
            command.env(INSTALLED, "1");
        }
        finish(&mut command)
    });
    for line in fs::read_to_string(&list).unwrap_or_default().lines() {
        report.not_run("root test", line.to_owned());
    }
}

/// The most telling tests against the kernel, in emulated machines with other kernels. Needs no root once the emulator is
/// there.
fn other_kernels(root: &Path, report: &mut Report) {
    let name = "vm: short set on Debian's kernels";
    if let Some(why) = vm::absent() {
        return report.not_run(name, why);
    }
    match vm::prepare(root) {
        Ok(()) => {
            let mut not_run = Vec::new();
            report.step(name, || vm::short(root).map(|lines| not_run = lines));
            for line in not_run {
                report.not_run("vm: test", line);
            }
        }
        // Where all can be had, a lab that is left out would go unseen.
        Err(why) if programs::cannot_install().is_none() => report.step(name, || bail!(why)),
        Err(why) => report.not_run(name, why),
    }
}

/// Names of the tests that a plain run leaves out and that have this in their name.
fn ignored_tests(root: &Path, part: &str) -> Result<Vec<String>> {
    let arguments = ["test", "--quiet", "--workspace", "--locked", "--", "--ignored", "--list", part];
    let output = cargo_command(root, &arguments).output()?;
    if !output.status.success() {
        bail!("cargo test --list failed");
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}

fn cargo(root: &Path, arguments: &[&str]) -> Result<()> {
    finish(&mut cargo_command(root, arguments))
}

fn cargo_command(root: &Path, arguments: &[&str]) -> Command {
    // Cargo tells what it starts which cargo it is, so that a toolchain chosen on the command line stays the same.
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root);
    // `cargo run` sets it for this process. By it cargo-machete decides whether its first word is its own name or a path.
    command.env_remove("CARGO_PKG_NAME");
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_step_fails_the_run_and_later_steps_still_run() {
        let mut report = Report::default();
        report.step("one", || bail!("no"));
        report.step("two", || Ok(()));
        report.not_run("three", "not here".to_owned());
        assert_eq!(report.steps.len(), 3);
        assert_eq!(report.finish().unwrap_err().to_string(), "1 of 2 steps failed");
    }

    #[test]
    fn what_is_not_run_fails_nothing() {
        let mut report = Report::default();
        report.step("one", || Ok(()));
        report.not_run("two", "not here".to_owned());
        assert!(report.finish().is_ok());
    }
}
