//! The node: containerd and a kubelet in the node's network, and in a mount namespace in which they leave the machine as it is.

use super::certificates::{Certificates, NODE_NAME};
use super::images::BUSYBOX;
use super::network::{NODE, PODS_OF_NODE, inside};
use super::process::{Daemon, until, words};
use super::programs::Programs;
use crate::apt::finished;
use anyhow::{Context, Result, ensure};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

/// The control group of all that the node runs, below each hierarchy's root.
const GROUP: &str = "kstrobe-cluster";
/// containerd's socket: a path that is short enough for one.
const SOCKET: &str = "/run/kstrobe-cluster.sock";
/// Settings of the kernel that a kubelet changes for the whole machine, and what it wants them to be.
const SETTINGS: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];
/// Folders of the machine that node programs write into.
const FOLDERS: [&str; 6] =
    ["/var/log/pods", "/var/log/containers", "/var/lib/kubelet", "/var/lib/cni", "/run/containerd", "/run/netns"];
/// kubelets before this version have other runtimes than CRI's, and other networks than CNI's.
const CRI_ALONE: (u32, u32) = (1, 24);
/// From this version on a kubelet does not start with control groups of version 1 unless its configuration allows it.
const REFUSES_V1: (u32, u32) = (1, 31);

/// A running node.
pub struct Node {
    pub kubelet: Daemon,
    containerd: Daemon,
    /// Keeps the mount namespace.
    _mounts: Daemon,
}

impl Node {
    /// Starts it with these images.
    pub fn start(
        programs: &Programs,
        certificates: &Certificates,
        images: &[PathBuf],
        folder: &Path,
        logs: &Path,
    ) -> Result<Node> {
        make_groups()?;
        let hold = ["unshare", "--mount", "--propagation", "private", "sleep", "infinity"];
        let holder = Daemon::start("mounts", logs, inside().into_iter().chain(words(hold)).collect())?;
        // It has its own namespace a moment after it has started.
        let own = format!("/proc/{}/ns/mnt", holder.id());
        let machine = fs::read_link("/proc/self/ns/mnt")?;
        until("a mount namespace", Duration::from_secs(10), || {
            let command = fs::read_to_string(format!("/proc/{}/comm", holder.id()))?;
            ensure!(command.trim() == "sleep" && fs::read_link(&own)? != machine, "not yet");
            Ok(())
        })?;
        let there = [inside().to_vec(), vec![format!("--mount={own}")]].concat();
        mounts(&there, folder)?;
        let config = containerd_config(programs, folder)?;
        let paths = [&programs.containerd, &programs.kubernetes].map(|path| path.display().to_string()).join(":");
        // containerd looks for its shim and for runc in PATH. What it starts stays in its control group.
        let path = format!("PATH={paths}:/usr/sbin:/usr/bin:/sbin:/bin");
        let in_group = format!("echo $$ > {}/node/cgroup.procs && exec \"$@\"", group_of_processes().display());
        let begin = [there, words(["env", &path, "sh", "-c", &in_group, "sh"])].concat();
        let daemon = |name, arguments: Vec<String>| Daemon::start(name, logs, [begin.clone(), arguments].concat());
        let containerd = programs.containerd.join("containerd").display().to_string();
        let mut containerd =
            daemon("containerd", vec![containerd, "--config".to_owned(), config.display().to_string()])?;
        until("containerd's socket", Duration::from_secs(60), || {
            containerd.running()?;
            ensure!(Path::new(SOCKET).exists(), "there is no {SOCKET}");
            Ok(())
        })?;
        for image in images {
            let mut import = Command::new(programs.containerd.join("ctr"));
            import.args(["-a", SOCKET, "-n", "k8s.io", "images", "import"]).arg(image);
            until("an image in containerd", Duration::from_secs(30), || finished(&mut import))?;
        }
        let kubelet = daemon("kubelet", kubelet_command(programs, certificates, folder)?)?;
        Ok(Node { kubelet, containerd, _mounts: holder })
    }

    /// Fails when one of its programs has ended.
    pub fn running(&mut self) -> Result<()> {
        self.containerd.running()?;
        self.kubelet.running()
    }
}

/// The node's own view of files: the kernel's traces are there as systemd mounts them, and what is written for the whole machine
/// goes to files of ours.
fn mounts(there: &[String], folder: &Path) -> Result<()> {
    let run = |arguments: &[&str]| finished(Command::new(&there[0]).args(&there[1..]).args(arguments)).map(drop);
    run(&["mount", "--make-rshared", "/"])?;
    let mounted = run(&["mountpoint", "-q", "/sys/kernel/tracing"]).is_ok();
    if !mounted {
        run(&["mount", "-t", "tracefs", "tracefs", "/sys/kernel/tracing"])?;
    }
    let bind = |from: &Path, to: &str| run(&["mount", "--bind", &from.display().to_string(), to]);
    let settings = folder.join("settings");
    fs::create_dir_all(&settings)?;
    for (name, value) in SETTINGS {
        let file = settings.join(name.replace('/', "."));
        fs::write(&file, format!("{value}\n"))?;
        bind(&file, &format!("/proc/sys/{name}"))?;
    }
    for place in FOLDERS {
        let own = folder.join(place.trim_start_matches('/').replace('/', "."));
        fs::create_dir_all(&own)?;
        fs::create_dir_all(place)?;
        bind(&own, place)?;
        run(&["mount", "--make-rshared", place])?;
    }
    Ok(())
}

fn containerd_config(programs: &Programs, folder: &Path) -> Result<PathBuf> {
    let network = folder.join("network");
    fs::create_dir_all(&network)?;
    let list = json!({"cniVersion": "0.4.0", "name": "pods", "plugins": [
        {"type": "bridge", "bridge": "pods0", "isGateway": true, "ipMasq": false, "hairpinMode": true, "ipam": {
            "type": "host-local", "dataDir": folder.join("addresses"), "ranges": [[{"subnet": PODS_OF_NODE}]],
            "routes": [{"dst": "0.0.0.0/0"}]}},
        {"type": "portmap", "capabilities": {"portMappings": true}},
    ]});
    fs::write(network.join("10-pods.conflist"), list.to_string())?;
    let (network, plugins) = (network.display(), programs.network_plugins.display());
    let (state, content) = (folder.join("state"), folder.join("containerd"));
    let begin = format!(
        "version = {}\nroot = \"{}\"\nstate = \"{}\"\n[grpc]\naddress = \"{SOCKET}\"\n",
        programs.containerd_config,
        content.display(),
        state.display()
    );
    // Without CAP_SYS_RESOURCE no process may lower its oom_score_adj, and runc fails when it has to.
    let plugins = match programs.containerd_config {
        2 => format!(
            "[plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = \"{BUSYBOX}\"\nrestrict_oom_score_adj = true\n\
             [plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = \"{plugins}\"\nconf_dir = \"{network}\"\n\
             [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"\n"
        ),
        _ => format!(
            "[plugins.'io.containerd.cri.v1.images'.pinned_images]\nsandbox = \"{BUSYBOX}\"\n\
             [plugins.'io.containerd.cri.v1.runtime']\nrestrict_oom_score_adj = true\n\
             [plugins.'io.containerd.cri.v1.runtime'.cni]\nbin_dirs = [\"{plugins}\"]\nconf_dir = \"{network}\"\n\
             [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"\n\
             [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]\nSystemdCgroup = false\n\
             BinaryName = \"{}\"\n[plugins.'io.containerd.nri.v1.nri']\ndisable = true\n",
            crate::programs::find("runc").context("runc is not installed")?.display()
        ),
    };
    let config = folder.join("containerd.toml");
    fs::write(&config, begin + &plugins)?;
    Ok(config)
}

fn kubelet_command(programs: &Programs, certificates: &Certificates, folder: &Path) -> Result<Vec<String>> {
    let manifests = static_pods(folder);
    fs::create_dir_all(&manifests)?;
    let mut config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", "address": NODE,
        "authentication": {"anonymous": {"enabled": false}, "webhook": {"enabled": true},
            "x509": {"clientCAFile": certificates.path("ca.crt")}},
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": certificates.path("kubelet-server.crt"), "tlsPrivateKeyFile": certificates.path("kubelet-server.key"),
        "cgroupDriver": "cgroupfs", "cgroupRoot": format!("/{GROUP}"), "failSwapOn": false,
        "clusterDomain": "cluster.local", "staticPodPath": manifests, "fileCheckFrequency": "2s",
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%", "nodefs.inodesFree": "1%"},
        "imageGCHighThresholdPercent": 99, "imageGCLowThresholdPercent": 98, "registerNode": true,
        "resolvConf": "/etc/resolv.conf",
    });
    if programs.version >= REFUSES_V1 {
        config["failCgroupV1"] = json!(false);
    }
    let file = folder.join("kubelet.json");
    fs::write(&file, config.to_string())?;
    let mut command = vec![
        programs.kubernetes.join("kubelet").display().to_string(),
        format!("--config={}", file.display()),
        format!("--kubeconfig={}", certificates.path("kubelet.conf")),
        format!("--hostname-override={NODE_NAME}"),
        format!("--node-ip={NODE}"),
        format!("--container-runtime-endpoint=unix://{SOCKET}"),
    ];
    if programs.version < CRI_ALONE {
        command.extend(words(["--container-runtime=remote", "--network-plugin=cni"]));
    }
    Ok(command)
}

/// Where the kubelet looks for pods of its own.
pub fn static_pods(folder: &Path) -> PathBuf {
    folder.join("static-pods")
}

/// Roots of all hierarchies of control groups.
fn hierarchies() -> Vec<PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    if root.join("cgroup.controllers").exists() {
        return vec![root.to_owned()];
    }
    let found = fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path());
    found.filter(|path| path.join("cgroup.procs").exists()).collect()
}

/// The group by which processes of the node are found again: one hierarchy is enough for that.
fn group_of_processes() -> PathBuf {
    let found = hierarchies();
    let pids = found.iter().find(|path| path.ends_with("pids")).or(found.first());
    pids.map_or_else(|| PathBuf::from("/sys/fs/cgroup"), PathBuf::clone).join(GROUP)
}

fn make_groups() -> Result<()> {
    for root in hierarchies() {
        let group = root.join(GROUP);
        fs::create_dir_all(&group).with_context(|| format!("creating {}", group.display()))?;
    }
    let own = group_of_processes().join("node");
    fs::create_dir_all(&own).with_context(|| format!("creating {}", own.display()))
}

/// Ends all processes of a node that was started here, containers included, and removes its control groups.
pub fn sweep() {
    for _ in 0..50 {
        let mut left = false;
        for group in groups_below(&group_of_processes()) {
            for id in fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default().lines() {
                left = true;
                let _ = Command::new("kill").args(["-KILL", id]).status();
            }
        }
        if !left {
            break;
        }
        sleep(Duration::from_millis(200));
    }
    for root in hierarchies() {
        for group in groups_below(&root.join(GROUP)) {
            let _ = fs::remove_dir(group);
        }
    }
    let _ = fs::remove_file(SOCKET);
}

/// A group and all below it, the deepest first.
fn groups_below(group: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(groups_below(&entry.path()));
        }
    }
    found.push(group.to_owned());
    found
}
