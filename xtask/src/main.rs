//! Project chores: `cargo xtask test | tidy | mixin | vm | fuzz | bench | agreement | side-by-side | flood | soak | demo | pictures | fleet | helm | cluster | image | packages | unit | otelcol`.

mod agreement;
mod apt;
mod arch;
mod bench;
mod chart;
mod cluster;
mod container;
mod demo;
mod fleet;
mod flood;
mod fuzz;
mod golang;
mod made_from;
mod mixin;
mod mounts;
mod oracles;
mod otelcol;
mod packages;
mod pictures;
mod programs;
mod prometheus;
mod side_by_side;
mod soak;
mod test;
mod tidy;
mod unit;
mod vm;

use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Chores of the kstrobe project
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Check everything a change has to pass; as root also against the kernel
    Test(test::Options),
    /// Check file sizes, the arrows between rooms, names and words
    Tidy,
    /// Write dashboards, rules and docs/metrics.md anew from the catalogue of metrics
    Mixin,
    /// Run tests against the kernel inside other kernels: Debian's 5.10, 6.1, 6.12 and newest, emulated
    Vm(vm::Options),
    /// Fuzz what reads kernel traces (needs a C++ compiler)
    Fuzz(fuzz::Options),
    /// Measure what events, scrapes and traces cost, against other ways to get the same (root; not for traces)
    Bench(bench::Options),
    /// Run probes beside other tools on the same load, and print what each counted (root; 4 minutes)
    Agreement(agreement::Options),
    /// Run classic tools and kstrobe under their names beside the same load (root; 3 minutes)
    SideBySide(side_by_side::Options),
    /// Check what the shipped configuration counts and costs from 40,000 to 1,000,000 system calls a second (root; 12 minutes)
    Flood(flood::Options),
    /// Run all shipped probes at once beside a busy node: what is lost, what they take, what is left behind (root; 10 minutes)
    Soak(soak::Options),
    /// Watch a busy node with the agent and a real Prometheus (root)
    Demo(demo::Options),
    /// Make the pictures of the README and of docs, from a real agent beside the load of the demonstration (root)
    Pictures(pictures::Options),
    /// Simulate a fleet of nodes against a real Prometheus, and measure what that takes
    Fleet(fleet::Options),
    /// Check the Helm chart: lint, render, schemas of Kubernetes, and what it writes for the agent
    Helm(chart::Options),
    /// Test the agent in a real Kubernetes on this machine: control plane, containerd and kubelet of one node (root)
    Cluster(cluster::Options),
    /// Build the agent as a static program, and the image with it
    Image(container::ImageOptions),
    /// Build Debian and RPM packages, and try them in a copy of this system
    Packages(packages::Options),
    /// Check the systemd unit by systemd itself
    Unit,
    /// Build an OpenTelemetry Collector from Debian's packages, and run the tests that send to one (some 300 MB are fetched)
    Otelcol(otelcol::Options),
}

fn main() -> ExitCode {
    let root = root();
    let done = match Cli::parse().chore {
        Chore::Test(options) => test::run(&root, &options),
        Chore::Tidy => tidy::run(&root),
        Chore::Mixin => mixin::run(&root),
        Chore::Vm(options) => vm::run(&root, &options),
        Chore::Fuzz(options) => fuzz::run(&root, &options),
        Chore::Bench(options) => bench::run(&root, &options),
        Chore::Agreement(options) => agreement::run(&root, &options),
        Chore::SideBySide(options) => side_by_side::run(&root, &options),
        Chore::Flood(options) => flood::run(&root, &options),
        Chore::Soak(options) => soak::run(&root, &options),
        Chore::Demo(options) => demo::run(&root, &options),
        Chore::Pictures(options) => pictures::run(&root, &options),
        Chore::Fleet(options) => fleet::run(&root, &options),
        Chore::Helm(options) => chart::run(&root, &options),
        Chore::Cluster(options) => cluster::run(&root, &options),
        Chore::Image(options) => container::build_image(&root, &options),
        Chore::Packages(options) => packages::run(&root, &options),
        Chore::Unit => unit::check(&root),
        Chore::Otelcol(options) => otelcol::run(&root, &options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The workspace's folder: the parent of this crate's.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(|| PathBuf::from("."), Path::to_owned)
}
