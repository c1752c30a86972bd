//! `cargo xtask otelcol [--test]`: a real OpenTelemetry Collector for `KSTROBE_OTELCOL`, and the tests that send to one. Debian has its libraries and the compiler, and
//! no program of them: ours is the few lines of `xtask/otelcol/main.go`. Nothing is installed.

use crate::golang::Library;
use crate::programs;
use anyhow::{Context, Result, bail};
use kstrobe_testing::COLLECTOR;
use nix::unistd::geteuid;
use std::path::Path;
use std::process::Command;

const COLLECTORS: Library =
    Library { folder: "go/collector", package: "golang-opentelemetry-collector-dev", unused: &[] };

/// Options of the chore.
#[derive(clap::Args)]
pub struct Options {
    /// Run the tests that send to it; as root also those of the agent
    #[arg(long)]
    test: bool,
}

/// Fetches and builds what is not there yet, and says where it is or tests with it.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let program = COLLECTORS.build(root, &root.join("xtask/otelcol"))?;
    if !options.test {
        println!("{COLLECTOR}={}", program.display());
        return Ok(());
    }
    // The agent's tests compare it with the other receivers.
    if programs::cannot_install().is_none() {
        programs::install_these(&["openssl", "prometheus", "victoria-metrics"])?;
    }
    test(root, &program, &["--test", "servers", "--test", "tls", "--", "--ignored", "root_collector"])?;
    if !geteuid().is_root() {
        println!("not run: the agent's tests (root_push), which need root");
        return Ok(());
    }
    test(root, &program, &["--test", "root_push", "--", "--ignored", "root_push", "--test-threads=1"])
}

fn test(root: &Path, program: &Path, arguments: &[&str]) -> Result<()> {
    // Cargo tells what it starts which cargo it is, so that a toolchain chosen on the command line stays the same.
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // All of the workspace: a part of it would be built with other features, from the start.
    cargo.args(["test", "--workspace", "--locked"]).args(arguments).env(COLLECTOR, program).current_dir(root);
    let status = cargo.status().context("starting cargo")?;
    if status.success() { Ok(()) } else { bail!("the tests ended with {status}") }
}
