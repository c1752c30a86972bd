//! The project's own programs, built by cargo as for `cargo test`: the guests run what the host runs.

use crate::arch::{Arch, cross};
use crate::programs;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Runs single programs of arm64 here.
const EMULATOR: &str = "qemu-aarch64-static";

/// What goes into a guest.
pub struct Binaries {
    /// Test binaries.
    pub tests: Vec<PathBuf>,
    /// The agent, at the path that is compiled into the tests.
    pub agent: PathBuf,
}

/// Builds them and says where they are. All of the workspace, as `cargo test` does: a part of it would be built with other
/// features, from the start. Test binaries without a test for root that fits one of the filters are left out;
/// a filter that fits none is an error. Without a filter only the agent is built.
pub fn build(root: &Path, arch: Arch, filters: &[String]) -> Result<Binaries> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    match filters {
        [] => cargo.args(["build", "--bin", "kstrobe"]),
        _ => cargo.args(["test", "--no-run", "--workspace"]),
    };
    cargo.args(["--quiet", "--locked", "--message-format=json-render-diagnostics"]);
    if arch != Arch::here() {
        cross(&mut cargo, arch)?;
        // Guests of another architecture have no libraries of this build.
        cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS", "-C target-feature=+crt-static");
        programs::install_these(&[EMULATOR])?;
    }
    let output = cargo.current_dir(root).stderr(Stdio::inherit()).output().context("starting cargo")?;
    if !output.status.success() {
        bail!("cargo ended with {}: {cargo:?}", output.status);
    }
    let (mut tests, mut agent) = (Vec::new(), None);
    for line in output.stdout.split(|byte| *byte == b'\n') {
        let Ok(message) = serde_json::from_slice::<Value>(line) else { continue };
        let Some(path) = message["executable"].as_str().map(PathBuf::from) else { continue };
        if message["profile"]["test"] == true {
            tests.push(path);
        } else if message["target"]["name"] == "kstrobe" {
            agent = Some(path);
        }
    }
    let mut unused: Vec<&String> = filters.iter().collect();
    tests.retain(|path| {
        let names = root_tests(path, arch);
        let fits = |filter: &String| names.lines().any(|line| line.contains(filter));
        unused.retain(|filter| !fits(filter));
        filters.iter().any(fits)
    });
    // One that fits nothing is misspelt, or its test has another name now.
    if !unused.is_empty() {
        bail!("no test for root has {} in its name", unused.into_iter().cloned().collect::<Vec<_>>().join(" or "));
    }
    Ok(Binaries { tests, agent: agent.context("cargo built no kstrobe")? })
}

/// A line for each test that a plain run leaves out.
fn root_tests(binary: &Path, arch: Arch) -> String {
    let mut command = match arch == Arch::here() {
        true => Command::new(binary),
        false => Command::new(EMULATOR),
    };
    if arch != Arch::here() {
        command.arg(binary);
    }
    let listed = command.args(["--ignored", "--list"]).output();
    listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}
