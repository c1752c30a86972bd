//! Containers of runc and Podman, in control groups as a kubelet and its runtimes make them: a node in small, for tests of
//! whatever names groups. What runs in a container ends by itself, also if the test is killed; everything else goes when the
//! [`Node`] does, also when the test fails.

use crate::{Folder, find, groups, output};
use serde_json::json;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Programs without which there are no containers, for [`crate::witnesses`].
pub const RUNC: &[&str] = &["runc", "busybox"];
/// The same for those of Podman, which starts them by runc.
pub const PODMAN: &[&str] = &["podman", "conmon", "runc", "busybox"];

/// No container runs longer than that.
const LIMIT_SECONDS: u32 = 300;

/// How a kubelet names groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// `kubepods.slice/kubepods-burstable.slice/...`
    Systemd,
    /// `kubepods/burstable/...`
    Cgroupfs,
}

impl Driver {
    /// The group of a pod, below the kubelet's root.
    pub fn pod(self, uid: &str) -> String {
        let escaped = uid.replace('-', "_");
        match self {
            Driver::Systemd => {
                format!("kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{escaped}.slice")
            }
            Driver::Cgroupfs => format!("kubepods/burstable/pod{uid}"),
        }
    }

    /// The group of a container in it; `runtime` is `cri-containerd` or `crio`.
    pub fn container(self, uid: &str, runtime: &str, id: &str) -> String {
        let pod = self.pod(uid);
        match (self, runtime) {
            (Driver::Systemd, _) => format!("{pod}/{runtime}-{id}.scope"),
            (Driver::Cgroupfs, "cri-containerd") => format!("{pod}/{id}"),
            (Driver::Cgroupfs, _) => format!("{pod}/{runtime}-{id}"),
        }
    }
}

/// A machine that runs containers, below a group of its own.
#[derive(Debug)]
pub struct Node {
    /// Its name, and that of its group: the kubelet's `--cgroup-root`.
    pub name: String,
    folder: Folder,
}

/// A container that was started. Dropping it ends it.
#[derive(Debug)]
pub struct Container<'a> {
    node: &'a Node,
    runtime: Program,
    /// Sixty-four digits.
    pub id: String,
    /// Its first process, as the host counts.
    pub pid: i32,
    /// Its group in the hierarchy of version 2, as `/proc/PID/cgroup` says.
    pub group: String,
}

#[derive(Clone, Copy, Debug)]
enum Program {
    Runc,
    Podman,
}

impl Node {
    /// Without containers.
    pub fn new() -> Node {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("kstrobe-test-{}-node{number}", std::process::id());
        let node = Node { name, folder: Folder::new() };
        let files = node.folder.0.join("rootfs");
        // Podman wants to mount into these, and a read-only root has none made.
        for folder in ["bin", "dev", "etc", "proc", "run", "sys", "tmp"] {
            std::fs::create_dir_all(files.join(folder)).unwrap();
        }
        let busybox = find("busybox").expect("busybox");
        let program = std::fs::read(&busybox).unwrap();
        // The name of the dynamic linker, in a program that needs it.
        let linked = program.windows(4).any(|bytes| bytes == b"/ld-");
        assert!(!linked, "{}: there is no library in the containers: install busybox-static", busybox.display());
        std::fs::copy(busybox, files.join("bin/busybox")).unwrap();
        node
    }

    /// An id as runtimes draw it, another one each time.
    pub fn id() -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        format!("{:08x}{number:08x}", std::process::id()).repeat(4)
    }

    /// A pod's uid, another one each time.
    pub fn uid() -> String {
        let id = Node::id();
        [&id[..8], &id[8..12], &id[12..16], &id[16..20], &id[20..32]].join("-")
    }

    /// A container of runc in a group below the node's, which runs a script of busybox's shell.
    pub fn runc(&self, group: &str, id: &str, script: &str) -> Container<'_> {
        let bundle = self.folder.0.join(id);
        std::fs::create_dir(&bundle).unwrap();
        let config = json!({
            "ociVersion": "1.0.2",
            "root": {"path": self.folder.0.join("rootfs"), "readonly": true},
            "hostname": "container",
            "process": {
                "args": arguments(script),
                "env": ["PATH=/bin"],
                "cwd": "/",
                "user": {"uid": 0, "gid": 0},
                "noNewPrivileges": true,
            },
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"]},
                {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=64k"]},
                {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev", "size=1m"]},
            ],
            "linux": {
                "cgroupsPath": format!("/{}/{group}", self.name),
                "namespaces": [
                    {"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}, {"type": "network"},
                    {"type": "cgroup"},
                ],
                "resources": {"devices": [{"allow": false, "access": "rwm"}]},
            },
        });
        std::fs::write(bundle.join("config.json"), config.to_string()).unwrap();
        let pid_file = bundle.join("pid");
        let mut command = self.command(Program::Runc);
        command.args(["run", "--detach", "--bundle"]).arg(&bundle).arg("--pid-file").arg(&pid_file).arg(id);
        // The container keeps these open: a reader would never see their end.
        let log = bundle.join("log");
        let file = || std::fs::OpenOptions::new().create(true).append(true).open(&log).unwrap();
        let status = command.stdin(Stdio::null()).stdout(file()).stderr(file()).status().unwrap();
        // From here on it is cleaned up.
        let mut container =
            Container { node: self, runtime: Program::Runc, id: id.to_owned(), pid: 0, group: String::new() };
        let said = || std::fs::read_to_string(&log).unwrap_or_default();
        assert!(status.success(), "runc run: {status}\n{}", said());
        container.started(&std::fs::read_to_string(&pid_file).unwrap());
        container
    }

    /// A container of Podman below a group below the node's; Podman draws its id and names its group.
    pub fn podman(&self, parent: &str, script: &str) -> Container<'_> {
        let mut command = self.command(Program::Podman);
        command
            .args(["run", "--detach", "--network", "none", "--cgroup-parent"])
            .arg(format!("/{}/{parent}", self.name));
        // The limits that it wants to set by default need rights that not every root has.
        command.args(["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", "--rootfs"]);
        command.arg(self.folder.0.join("rootfs")).args(arguments(script)).stdin(Stdio::null());
        let id = output(&mut command).trim().to_owned();
        let mut container = Container { node: self, runtime: Program::Podman, id, pid: 0, group: String::new() };
        let mut inspect = self.command(Program::Podman);
        container.started(&output(inspect.args(["inspect", "--format", "{{.State.Pid}}", &container.id])));
        container
    }

    /// The folder of the node's group, or of one below, in version 2.
    pub fn folder_of(&self, group: &str) -> PathBuf {
        groups::unified().join(&self.name).join(group)
    }

    fn command(&self, program: Program) -> Command {
        let under = |name: &str| self.folder.0.join(name);
        match program {
            Program::Runc => {
                let mut command = Command::new(find("runc").expect("runc"));
                command.arg("--root").arg(under("runc"));
                command
            }
            Program::Podman => {
                let mut command = Command::new(find("podman").expect("podman"));
                command.arg("--root").arg(under("podman/storage")).arg("--runroot").arg(under("podman/run"));
                command.arg("--tmpdir").arg(under("podman/tmp"));
                command.args(["--cgroup-manager", "cgroupfs", "--runtime"]).arg(find("runc").expect("runc"));
                command
            }
        }
    }
}

impl Default for Node {
    fn default() -> Node {
        Node::new()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        for mount in groups::mounts() {
            groups::remove(&mount.place.join(&self.name));
        }
        // podman mounts its storage over itself and leaves it.
        let _ = Command::new("umount").arg(self.folder.0.join("podman/storage/overlay")).stderr(Stdio::null()).status();
    }
}

impl Container<'_> {
    /// Runs a script of busybox's shell in it, to its end, and returns its output.
    pub fn run(&self, script: &str) -> String {
        let mut command = self.node.command(self.runtime);
        output(command.arg("exec").arg(&self.id).args(["/bin/busybox", "sh", "-c", script]).stdin(Stdio::null()))
    }

    /// The id of its group: the inode number of its folder.
    pub fn cgroup_id(&self) -> u64 {
        use std::os::unix::fs::MetadataExt;
        let folder = groups::unified().join(self.group.trim_start_matches('/'));
        std::fs::metadata(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())).ino()
    }

    /// Ends it and removes its group.
    pub fn stop(self) {}

    fn started(&mut self, pid: &str) {
        self.pid = pid.trim().parse().unwrap_or_else(|error| panic!("pid `{pid}`: {error}"));
        self.group = group_of(self.pid);
    }
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        let mut command = self.node.command(self.runtime);
        match self.runtime {
            Program::Runc => command.args(["delete", "--force", &self.id]),
            Program::Podman => command.args(["rm", "--force", "--time", "0", &self.id]),
        };
        match command.stdin(Stdio::null()).output() {
            Ok(done) if done.status.success() => {}
            other => eprintln!("{}: cannot be removed: {other:?}", self.id),
        }
    }
}

/// The group of a process in the hierarchy of version 2.
pub fn group_of(pid: i32) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_else(|error| panic!("{pid}: {error}"));
    let line = text.lines().find_map(|line| line.strip_prefix("0::"));
    line.unwrap_or_else(|| panic!("{pid} is in no group of version 2: {text}")).to_owned()
}

/// A script as a container's arguments. The first process of a namespace cannot be killed from inside it, so that a shell
/// waits there for who can be.
fn arguments(script: &str) -> Vec<String> {
    let limited = format!("/bin/busybox timeout -s KILL {LIMIT_SECONDS} /bin/busybox sh -c \"$0\"; exit $?");
    ["/bin/busybox", "sh", "-c", &limited, script].map(str::to_owned).to_vec()
}
