//! The control plane: etcd, API server, controller manager, scheduler, all in the node's network.

use super::certificates::Certificates;
use super::network::{API_PORT, NODE, PODS, SERVICES, inside};
use super::process::{Daemon, words};
use super::programs::Programs;
use anyhow::Result;
use std::path::Path;

/// Where etcd listens, in the node's network.
pub const ETCD: &str = "http://127.0.0.1:2379";

/// Its programs.
pub struct ControlPlane {
    /// What the API server stores in.
    pub etcd: Daemon,
    pub api_server: Daemon,
    managers: Vec<Daemon>,
}

/// Starts a program in the node's network.
fn start(name: &'static str, program: &Path, arguments: Vec<String>, logs: &Path) -> Result<Daemon> {
    let command = inside().into_iter().chain([program.display().to_string()]).chain(arguments);
    Daemon::start(name, logs, command.collect())
}

impl ControlPlane {
    /// Starts etcd and the API server.
    pub fn start(programs: &Programs, certificates: &Certificates, folder: &Path, logs: &Path) -> Result<ControlPlane> {
        let file = |name: &str| certificates.path(name);
        let mut arguments = words(["--unsafe-no-fsync", "--listen-peer-urls=http://127.0.0.1:2380"]);
        arguments.push(format!("--data-dir={}", folder.join("etcd").display()));
        arguments.extend(["listen", "advertise"].map(|what| format!("--{what}-client-urls={ETCD}")));
        let etcd = start("etcd", &programs.etcd, arguments, logs)?;
        let mut arguments = words([
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            "--kubelet-preferred-address-types=InternalIP",
        ]);
        arguments.extend([
            format!("--etcd-servers={ETCD}"),
            format!("--bind-address={NODE}"),
            format!("--advertise-address={NODE}"),
            format!("--secure-port={API_PORT}"),
            format!("--service-cluster-ip-range={SERVICES}"),
        ]);
        for (option, name) in [
            ("client-ca-file", "ca.crt"),
            ("tls-cert-file", "apiserver.crt"),
            ("tls-private-key-file", "apiserver.key"),
            ("kubelet-client-certificate", "apiserver-kubelet.crt"),
            ("kubelet-client-key", "apiserver-kubelet.key"),
            ("kubelet-certificate-authority", "ca.crt"),
            ("service-account-key-file", "account.pub"),
            ("service-account-signing-key-file", "account.key"),
            ("requestheader-client-ca-file", "ca.crt"),
            ("proxy-client-cert-file", "front-proxy.crt"),
            ("proxy-client-key-file", "front-proxy.key"),
        ] {
            arguments.push(format!("--{option}={}", file(name)));
        }
        let program = programs.kubernetes.join("kube-apiserver");
        let api_server = start("kube-apiserver", &program, arguments, logs)?;
        Ok(ControlPlane { etcd, api_server, managers: Vec::new() })
    }

    /// Starts the controller manager and the scheduler, which end when there is no API server within 10 s.
    pub fn manage(&mut self, programs: &Programs, certificates: &Certificates, logs: &Path) -> Result<()> {
        let file = |name: &str| certificates.path(name);
        let client = |user: &str| {
            let config = file(&format!("{user}.conf"));
            let kinds = ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"];
            let configs = kinds.map(|kind| format!("--{kind}={config}"));
            configs.into_iter().chain(words(["--leader-elect=false", "--bind-address=127.0.0.1"])).collect::<Vec<_>>()
        };
        let mut arguments = client("controller-manager");
        arguments.extend(words(["--use-service-account-credentials=true", "--allocate-node-cidrs=true"]));
        arguments.push(format!("--cluster-cidr={PODS}"));
        for (option, name) in [
            ("service-account-private-key-file", "account.key"),
            ("root-ca-file", "ca.crt"),
            ("cluster-signing-cert-file", "ca.crt"),
            ("cluster-signing-key-file", "ca.key"),
        ] {
            arguments.push(format!("--{option}={}", file(name)));
        }
        let program = programs.kubernetes.join("kube-controller-manager");
        self.managers.push(start("kube-controller-manager", &program, arguments, logs)?);
        let program = programs.kubernetes.join("kube-scheduler");
        self.managers.push(start("kube-scheduler", &program, client("scheduler"), logs)?);
        Ok(())
    }

    /// Fails when one of its programs has ended.
    pub fn running(&mut self) -> Result<()> {
        [&mut self.etcd, &mut self.api_server].into_iter().chain(&mut self.managers).try_for_each(Daemon::running)
    }
}
