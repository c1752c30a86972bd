//! `cargo xtask otelcol [--test]`: a real OpenTelemetry Collector for `KSTROBE_OTELCOL`, and the tests that send to one. Debian has its libraries and the compiler, and
//! no program of them: ours is the few lines of `xtask/otelcol/main.go`. Nothing is installed.

use crate::apt::{Apt, finished};
use crate::programs;
use anyhow::{Context, Result, bail};
use kstrobe_witness::COLLECTOR;
use nix::unistd::geteuid;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What brings the libraries with all they need, the compiler included.
const LIBRARIES: &str = "golang-opentelemetry-collector-dev";

/// Options of the chore.
#[derive(clap::Args)]
pub struct Options {
    /// Run the tests that send to it; as root also those of the agent
    #[arg(long)]
    test: bool,
}

/// Fetches and builds what is not there yet, and says where it is or tests with it.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let program = build(root)?;
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

fn build(root: &Path) -> Result<PathBuf> {
    let folder = root.join("target/otelcol");
    let program = folder.join("otelcol");
    if !program.is_file() {
        let unpacked = folder.join("packages");
        if !unpacked.is_dir() {
            fetch(&folder, &unpacked)?;
        }
        compile(root, &folder, &unpacked, &program)?;
    }
    Ok(program)
}

fn fetch(folder: &Path, unpacked: &Path) -> Result<()> {
    let fetched = folder.join("fetched");
    // What an earlier run left may be of another day's release.
    let _ = fs::remove_dir_all(&fetched);
    fs::create_dir_all(&fetched).with_context(|| format!("creating {}", fetched.display()))?;
    let apt = Apt::open(&folder.join("apt"), &["sid".to_owned()])?;
    let mut packages = apt.closure(LIBRARIES)?;
    packages.retain(|package| package.starts_with("golang-"));
    println!("fetching {} packages", packages.len());
    apt.download(&packages, &fetched)?;
    let partial = folder.join("unpacking");
    let _ = fs::remove_dir_all(&partial);
    for entry in fs::read_dir(&fetched)? {
        finished(Command::new("dpkg-deb").arg("-x").arg(entry?.path()).arg(&partial))?;
    }
    fs::remove_dir_all(&fetched)?;
    // Whole or not there.
    fs::rename(&partial, unpacked).with_context(|| format!("creating {}", unpacked.display()))
}

fn compile(root: &Path, folder: &Path, unpacked: &Path, program: &Path) -> Result<()> {
    let libraries = unpacked.join("usr/lib");
    let compilers = fs::read_dir(&libraries).with_context(|| format!("reading {}", libraries.display()))?;
    let compilers = compilers.flatten().map(|entry| entry.path());
    let compiler = compilers.filter(|path| path.join("bin/go").is_file()).max().context("no Go compiler came along")?;
    println!("building, which takes minutes");
    let mut go = Command::new(compiler.join("bin/go"));
    go.args(["build", "-trimpath", "-ldflags=-s -w", "-o"]).arg(program).arg("main.go");
    go.current_dir(root.join("xtask/otelcol"));
    for (name, value) in
        [("GOROOT", &compiler), ("GOPATH", &unpacked.join("usr/share/gocode")), ("GOCACHE", &folder.join("cache"))]
    {
        go.env(name, value);
    }
    // Packages are found by path alone, and nothing is fetched by Go itself.
    for (name, value) in [("GO111MODULE", "off"), ("GOTOOLCHAIN", "local"), ("CGO_ENABLED", "0"), ("GOFLAGS", "")] {
        go.env(name, value);
    }
    finished(&mut go).map(drop)
}
