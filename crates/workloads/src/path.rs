//! Parses cgroup paths into pod, container and systemd unit.
//!
//! Runtimes and drivers name groups in different ways, but all of them name them: a pod's group has the pod's uid in it and a
//! container's group the container's id. So a path is read from its root, one name at a time, with no regard to which
//! hierarchy (v1, v2), driver (systemd, cgroupfs) or root of the kubelet it has:
//!
//! * The outermost pod counts, and in it the outermost container. Groups nested in a container belong to it, so that a container
//!   cannot impersonate another pod by creating groups.
//! * A pod in a container that is no pod's (kind, k3d and minikube run nodes so) counts more than that container.
//! * Outside of pods there is the systemd unit, as `systemctl status` and the journal name it.

/// Pod, container or unit of a cgroup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The pod's uid, with dashes; of a static pod the hash of its configuration.
    pub pod_uid: Option<String>,
    /// The container's id, or a machine's name. `None` for a pod's own group, for the sandbox and the runtime's monitor where
    /// they differ from containers.
    pub container_id: Option<String>,
    /// Container runtime, if the path shows it.
    pub runtime: Option<Runtime>,
    /// Systemd unit, of what is in no pod. Scopes of containers are none: they are the container. Where there is no other, the
    /// slice.
    pub unit: Option<String>,
}

/// A container runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Runtime {
    /// containerd, by its CRI or by nerdctl.
    Containerd,
    CriO,
    Docker,
    Podman,
    /// LXC, LXD and Incus.
    Lxc,
    /// systemd-nspawn.
    Nspawn,
    /// Garden of Cloud Foundry and Concourse.
    Garden,
}

impl Runtime {
    /// By the scheme of the API's `containerID`.
    pub fn of_scheme(scheme: &str) -> Option<Runtime> {
        match scheme {
            "containerd" => Some(Runtime::Containerd),
            "cri-o" => Some(Runtime::CriO),
            "docker" => Some(Runtime::Docker),
            "podman" => Some(Runtime::Podman),
            _ => None,
        }
    }
}

/// Meaning of one path component.
#[derive(Debug, PartialEq, Eq)]
enum Name<'a> {
    /// The group of a pod.
    Pod(String),
    /// The group of a container.
    Container { id: String, runtime: Option<Runtime> },
    /// A runtime's own process for one container or pod: part of the pod, but of no container.
    Runtimes,
    /// A systemd slice.
    Slice(&'a str),
    /// Another systemd unit.
    Unit(&'a str),
    /// Nothing.
    Other,
}

/// Beginnings of the names that runtimes give their containers' groups, with the id behind them, with and without `.scope`.
const PREFIXES: &[(&str, Runtime)] = &[
    ("cri-containerd-", Runtime::Containerd),
    ("containerd-", Runtime::Containerd),
    ("nerdctl-", Runtime::Containerd),
    ("crio-", Runtime::CriO),
    ("docker-", Runtime::Docker),
    // `podman run --cgroups=split`, as Quadlet does, in the group of the service.
    ("libpod-payload-", Runtime::Podman),
    ("libpod-", Runtime::Podman),
];

/// Units that can have processes.
const UNITS: &[&str] = &[".service", ".scope", ".socket", ".mount", ".swap"];

/// Parses a path of `/proc/PID/cgroup` or below the mount of cgroupfs.
pub fn place(path: &str) -> Place {
    // The kernel appends this to a removed group that a process or file descriptor still refers to.
    let path = path.trim_end_matches(" (deleted)");
    let mut reading = Reading::default();
    // `..` leads out of the reader's cgroup namespace.
    for name in path.split('/').filter(|name| !["", ".", ".."].contains(name)) {
        // containerd wants the systemd driver and its runtime the other: systemd's notation becomes one folder's name.
        match name.split(':').collect::<Vec<_>>()[..] {
            [slice, prefix, id] if slice.ends_with(".slice") => {
                reading.step(slice);
                reading.step(&format!("{prefix}-{id}.scope"));
            }
            _ => reading.step(name),
        }
    }
    reading.place()
}

/// How far a path was read.
#[derive(Default)]
struct Reading {
    found: Place,
    slice: Option<String>,
    /// The name before.
    parent: String,
    /// Groups of the kubelet's came before.
    kubepods: bool,
    /// The rest of the path is inside.
    done: bool,
}

impl Reading {
    fn step(&mut self, name: &str) {
        if !self.done {
            match self.meaning(name) {
                Name::Pod(uid) if self.found.pod_uid.is_none() => {
                    self.found = Place { pod_uid: Some(uid), ..Place::default() };
                }
                Name::Container { id, runtime } if self.found.container_id.is_none() => {
                    // `systemd-nspawn@NAME.service` is both.
                    if name.ends_with(".service") && self.on_host() {
                        self.found.unit.get_or_insert_with(|| name.to_owned());
                    }
                    self.found.container_id = Some(id);
                    self.found.runtime = runtime;
                    self.done = self.found.pod_uid.is_some();
                }
                Name::Runtimes => self.done = true,
                Name::Unit(unit) if self.on_host() && self.found.unit.is_none() => {
                    self.found.unit = Some(unit.to_owned())
                }
                Name::Slice(slice) if self.on_host() => self.slice = Some(slice.to_owned()),
                _ => {}
            }
        }
        self.kubepods |= name.strip_suffix(".slice").unwrap_or(name).ends_with("kubepods");
        name.clone_into(&mut self.parent);
    }

    fn meaning<'a>(&self, name: &'a str) -> Name<'a> {
        if let Some(uid) = pod_uid(name, self.kubepods) {
            return Name::Pod(uid);
        }
        if let Some(found) = container(name, &self.parent) {
            return found;
        }
        if self.on_host()
            && let Some(found) = machine(name, &self.parent)
        {
            return found;
        }
        // Systemd puts `_` before names that would clash with the kernel's files.
        let unit = name.strip_prefix('_').unwrap_or(name);
        match unit {
            // Of a pod of Podman's, named by its id.
            _ if unit.contains("libpod_pod_") => Name::Other,
            _ if unit.ends_with(".slice") => Name::Slice(unit),
            _ if UNITS.iter().any(|kind| unit.ends_with(kind)) => Name::Unit(unit),
            _ => Name::Other,
        }
    }

    /// Neither in a pod nor in a container so far.
    fn on_host(&self) -> bool {
        self.found.pod_uid.is_none() && self.found.container_id.is_none()
    }

    fn place(self) -> Place {
        let on_host = self.on_host();
        let Reading { mut found, slice, .. } = self;
        if on_host && found.unit.is_none() {
            found.unit = slice;
        }
        found
    }
}

/// `pod<uid>` and `kubepods-burstable-pod<uid>.slice`, where `_` stands for the uid's dashes. Outside of the kubelet's own
/// groups the uid must look like one: names that begin with `pod` are not rare. Inside any will do: a static pod's manifest may
/// give one of its own.
fn pod_uid(name: &str, kubepods: bool) -> Option<String> {
    let (uid, any) = match name.strip_suffix(".slice") {
        None => (name.strip_prefix("pod")?, kubepods),
        Some(slice) => match slice.rfind("kubepods") {
            Some(at) => {
                let rest = &slice[at + "kubepods".len()..];
                let class = ["-burstable", "-besteffort", "-guaranteed"].iter().find_map(|c| rest.strip_prefix(c));
                (class.unwrap_or(rest).strip_prefix("-pod")?, true)
            }
            None => (slice.rsplit_once("-pod")?.1, false),
        },
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || ['-', '_', '.'].contains(&c);
    let accepted = is_uuid(uid) || is_hex(uid, 32, 32) || any && !uid.is_empty() && uid.chars().all(plain);
    accepted.then(|| uid.replace('_', "-"))
}

/// A container's group by the names that runtimes of OCI containers give.
fn container<'a>(name: &str, parent: &str) -> Option<Name<'a>> {
    let scope = name.strip_suffix(".scope");
    let bare = scope.unwrap_or(name);
    let prefixed = PREFIXES.iter().find_map(|(prefix, runtime)| Some((bare.strip_prefix(prefix)?, *runtime)));
    if let Some((id, runtime)) = prefixed {
        // conmon watches over one container, from outside.
        if id.strip_prefix("conmon-").is_some_and(is_id) {
            return Some(Name::Runtimes);
        }
        // CRI-O with the systemd driver: containers are scopes, and what is none is the pod's sandbox.
        if is_id(id) && runtime == Runtime::CriO && scope.is_none() && parent.ends_with(".slice") {
            return Some(Name::Runtimes);
        }
        return is_id(id).then(|| Name::Container { id: id.to_owned(), runtime: Some(runtime) });
    }
    // Podman's pods look like that, and its containers never.
    if !is_whole_id(bare) || parent == "libpod_parent" {
        return None;
    }
    Some(Name::Container { id: bare.to_owned(), runtime: (parent == "docker").then_some(Runtime::Docker) })
}

/// Containers with a name in place of an id, which are like machines: no pod has such.
fn machine<'a>(name: &str, parent: &str) -> Option<Name<'a>> {
    let named = |id: &str, runtime| match id {
        "" => Name::Other,
        _ => Name::Container { id: unescaped(id), runtime: Some(runtime) },
    };
    if name.starts_with("lxc.monitor.") || parent == "lxc.monitor" {
        return Some(Name::Runtimes);
    }
    if let Some(id) = name.strip_prefix("lxc.payload.") {
        return Some(named(id, Runtime::Lxc));
    }
    if ["lxc", "lxc.payload"].contains(&parent) {
        return Some(named(name, Runtime::Lxc));
    }
    if let Some(id) = name.strip_prefix("systemd-nspawn@").and_then(|name| name.strip_suffix(".service")) {
        return Some(named(id, Runtime::Nspawn));
    }
    let scope = name.strip_prefix("machine-").and_then(|name| name.strip_suffix(".scope"));
    // Of virtual machines only the emulator is seen: a unit like others.
    if let Some(id) = scope.filter(|id| parent == "machine.slice" && !id.starts_with("qemu\\x2d")) {
        return Some(named(id, Runtime::Nspawn));
    }
    (["garden", "good", "bad"].contains(&parent) && is_handle(name)).then(|| named(name, Runtime::Garden))
}

fn is_hex(text: &str, least: usize, most: usize) -> bool {
    (least..=most).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// 8-4-4-4-12, with dashes or what systemd's driver makes of them.
fn is_uuid(text: &str) -> bool {
    let parts: Vec<&str> = text.split(['-', '_']).collect();
    parts.len() == 5 && parts.iter().zip([8, 4, 4, 4, 12]).all(|(part, length)| is_hex(part, length, length))
}

/// Behind a runtime's prefix: some shorten what they have 64 digits of.
fn is_id(text: &str) -> bool {
    is_hex(text, 12, 64) || is_whole_id(text)
}

/// With nothing before it: 64 digits, or those of an ECS task on Fargate and a decimal number.
fn is_whole_id(text: &str) -> bool {
    let fargate = |(task, number): (&str, &str)| {
        is_hex(task, 32, 32) && !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
    };
    is_hex(text, 64, 64) || text.split_once('-').is_some_and(fargate)
}

/// Garden's handles: 8-4-4-4-4, or a UUID.
fn is_handle(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    parts.len() == 5 && is_hex(parts[0], 8, 8) && parts[1..].iter().all(|part| is_hex(part, 4, 12))
}

/// Systemd's `\xNN`; what is no such thing stays.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.strip_prefix(b"x").and_then(|digits| str::from_utf8(digits.get(..2)?).ok());
        let digits = digits.filter(|digits| first == b'\\' && is_hex(digits, 2, 2));
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}
