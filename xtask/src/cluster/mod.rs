//! `cargo xtask cluster`: the agent in a real Kubernetes on this machine: etcd, control plane, containerd and kubelet of one node,
//! in a network and a mount namespace of their own. A table has the result of each test, or why it cannot run here.

mod certificates;
mod checks;
mod client;
mod control;
mod images;
mod network;
mod node;
mod process;
mod programs;
mod release;
mod table;

use crate::programs::cannot_install;
use anyhow::{Context, Result, bail, ensure};
use certificates::{Certificates, NODE_NAME};
use client::Client;
use control::ControlPlane;
use nix::unistd::geteuid;
use node::Node;
use process::until;
use programs::Programs;
use release::Chart;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What to run.
#[derive(clap::Args)]
pub struct Options {
    /// Kubernetes' programs as released: kube-apiserver, kube-controller-manager, kube-scheduler, kubelet and, if it is there,
    /// kubectl. Without it Kubernetes 1.20.2 is built once from Debian's source package, which takes minutes
    #[arg(long, value_name = "DIR")]
    kubernetes_bin: Option<PathBuf>,
    /// The agent to test; without it a development build is made
    #[arg(long, value_name = "FILE")]
    agent: Option<PathBuf>,
    /// Leave the cluster running after the tests, until this is interrupted
    #[arg(long)]
    keep: bool,
    /// Only remove what an interrupted run has left
    #[arg(long)]
    down: bool,
    /// Tests whose names contain one of these words; all of them without
    tests: Vec<String>,
}

/// A running cluster with what the tests need.
pub struct Cluster {
    /// Major and minor version of Kubernetes.
    pub version: (u32, u32),
    /// kubectl
    pub client: Client,
    /// The control plane.
    pub control: ControlPlane,
    /// The node.
    pub node: Node,
    /// Certificates and kubeconfigs.
    pub certificates: Certificates,
    /// The chart, and Helm.
    pub chart: Chart,
    /// The agent as a program of this machine.
    pub agent: PathBuf,
    /// Files of this run.
    pub folder: PathBuf,
}

/// Starts the cluster, runs the tests, prints the table.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    ensure!(geteuid().is_root(), "a node needs root: sudo --preserve-env=PATH cargo xtask cluster");
    sweep();
    if options.down {
        return Ok(());
    }
    if let Some(why) = cannot_install() {
        bail!("the cluster is made of Debian's packages, and nothing can be installed here: {why}");
    }
    let programs = Programs::prepare(root, options.kubernetes_bin.as_deref())?;
    // Without what only debuggers read it goes into the image.
    let agent = crate::programs::development_agent(root, options.agent.as_deref())?;
    let chart = Chart::prepare(root)?;
    let done = start(root, &programs, agent, chart).and_then(|mut cluster| {
        let done = checks::run(&mut cluster, &options.tests);
        if options.keep {
            println!(
                "{} --kubeconfig {} until this is interrupted",
                cluster.client.kubectl.display(),
                cluster.client.kubeconfig
            );
            println!("it is in the network of: nsenter --net=/run/netns/{}", network::NAMESPACE);
            loop {
                std::thread::park();
            }
        }
        done
    });
    sweep();
    done
}

/// Removes what is left of a cluster.
fn sweep() {
    node::sweep();
    network::down();
}

fn start(root: &Path, programs: &Programs, agent: PathBuf, chart: Chart) -> Result<Cluster> {
    let (major, minor) = programs.version;
    let folder = root.join("target/cluster/run");
    let _ = fs::remove_dir_all(&folder);
    let logs = folder.join("logs");
    fs::create_dir_all(&logs).with_context(|| logs.display().to_string())?;
    let busybox = crate::programs::find("busybox").context("busybox is not installed")?;
    let images = images::make(&folder.join("images"), &busybox, &agent)?;
    network::up()?;
    let certificates = Certificates::new(folder.join("certificates"))?;
    let mut control = ControlPlane::start(programs, &certificates, &folder, &logs)?;
    let client = Client {
        kubectl: programs.kubectl.clone(),
        kubeconfig: certificates.path("admin.conf"),
        knows_all_fields: programs.version >= release::SINCE,
    };
    until("the API server", Duration::from_secs(180), || {
        control.running()?;
        client.run(&["get", "--raw", "/readyz"])
    })?;
    control.manage(programs, &certificates, &logs)?;
    println!("the API server of Kubernetes {major}.{minor} is ready");
    let mut node = Node::start(programs, &certificates, &images, &folder, &logs)?;
    until("the node", Duration::from_secs(180), || {
        node.running()?;
        let conditions = client.json(&["get", "node", NODE_NAME])?["status"]["conditions"].take();
        let conditions = conditions.as_array().context("the node has no conditions")?;
        ensure!(conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"), "{conditions:?}");
        Ok(())
    })?;
    println!("the node is ready");
    Ok(Cluster { version: programs.version, client, control, node, certificates, chart, agent, folder })
}
