//! A pod of Kubernetes as the configuration of an OCI runtime: what a kubelet and containerd make of it. A pure function.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Where the API server is in a pod's network: as the kubelet tells every container.
pub const API_SERVER: (&str, u16) = ("127.0.0.1", 6443);

/// What the pod does not say.
pub struct Outside<'a> {
    /// The image's configuration.
    pub image: &'a Value,
    /// Folders for volumes, by name; a hostPath that has none is the host's.
    pub volumes: &'a BTreeMap<String, PathBuf>,
    /// The runtime's default profile of seccomp.
    pub seccomp: &'a Value,
    /// The pod's network namespace.
    pub network: &'a Path,
    /// The pod's `/etc/hosts`, which the kubelet writes.
    pub hosts: &'a Path,
    /// What the pod's service account is: `token`, `ca.crt`, `namespace`.
    pub account: &'a Path,
    /// Path of the control group.
    pub cgroup: &'a str,
    /// Arguments instead of the pod's.
    pub arguments: Option<&'a [&'a str]>,
    /// Capabilities to leave out.
    pub without: &'a [&'a str],
}

/// The configuration for the pod's first container.
pub fn config(pod: &Value, outside: &Outside) -> Result<Value> {
    let container = &pod["containers"][0];
    let context = &container["securityContext"];
    let (capabilities, seccomp) = (capabilities(context, outside.without)?, seccomp(pod, outside)?);
    let mut namespaces = vec![json!({"type": "mount"}), json!({"type": "ipc"}), json!({"type": "uts"})];
    if pod["hostPID"] != true {
        namespaces.push(json!({"type": "pid"}));
    }
    if pod["hostNetwork"] != true {
        namespaces.push(json!({"type": "network", "path": outside.network}));
    }
    Ok(json!({
        "ociVersion": "1.0.2",
        "hostname": "kstrobe",
        "root": {"path": "rootfs", "readonly": context["readOnlyRootFilesystem"]},
        "process": {
            "args": arguments(container, outside)?,
            "env": environment(container),
            "cwd": "/",
            "user": {"uid": context["runAsUser"], "gid": context["runAsGroup"]},
            "noNewPrivileges": context["allowPrivilegeEscalation"] == false,
            // As containerd does: what is inheritable is empty.
            "capabilities": {"bounding": capabilities, "effective": capabilities, "permitted": capabilities},
        },
        "mounts": mounts(pod, container, outside)?,
        "linux": {
            "namespaces": namespaces,
            "cgroupsPath": outside.cgroup,
            "resources": {"devices": [{"allow": false, "access": "rwm"}], "memory": memory(container)?},
            "seccomp": seccomp,
            "maskedPaths": [
                "/proc/asound", "/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
                "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
            ],
            "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
        },
    }))
}

fn arguments(container: &Value, outside: &Outside) -> Result<Vec<String>> {
    let texts = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(|text| text.as_str().map(str::to_owned)).collect()
    };
    let mut all = texts(&outside.image["config"]["Entrypoint"]);
    if all.is_empty() {
        bail!("the image has no entry point");
    }
    match outside.arguments {
        Some(arguments) => all.extend(arguments.iter().map(|&text| text.to_owned())),
        None => all.extend(texts(&container["args"])),
    }
    Ok(all)
}

/// Variables with a value, and of those with a source the ones that tests need.
fn environment(container: &Value) -> Vec<String> {
    let variables = container["env"].as_array().into_iter().flatten();
    let known = |path: &str| match path {
        "spec.nodeName" => "node-1",
        "status.hostIP" | "status.podIP" => "127.0.0.1",
        _ => "kstrobe",
    };
    let text = |variable: &Value| {
        let path = variable["valueFrom"]["fieldRef"]["fieldPath"].as_str().map(known);
        let value = variable["value"].as_str().or(path)?;
        Some(format!("{}={value}", variable["name"].as_str()?))
    };
    let server = [("HOST", API_SERVER.0.to_owned()), ("PORT", API_SERVER.1.to_string())];
    let server = server.map(|(part, value)| format!("KUBERNETES_SERVICE_{part}={value}"));
    variables.filter_map(text).chain(server).collect()
}

/// Those that are added after all were dropped, as the kernel names them.
fn capabilities(context: &Value, without: &[&str]) -> Result<Vec<String>> {
    if context["capabilities"]["drop"] != json!(["ALL"]) || context["privileged"] == true {
        bail!("the container keeps capabilities that it was not given");
    }
    let added = context["capabilities"]["add"].as_array().into_iter().flatten().filter_map(Value::as_str);
    Ok(added.filter(|name| !without.contains(name)).map(|name| format!("CAP_{name}")).collect())
}

/// The limit of memory, in bytes.
fn memory(container: &Value) -> Result<Value> {
    let Some(text) = container["resources"]["limits"]["memory"].as_str() else { return Ok(json!({})) };
    let units = [("Ki", 10), ("Mi", 20), ("Gi", 30)];
    let bytes = units.iter().find_map(|(unit, bits)| Some(text.strip_suffix(unit)?.parse::<u64>().ok()? << bits));
    Ok(json!({"limit": bytes.with_context(|| format!("`{text}` is no quantity of memory"))?}))
}

fn mounts(pod: &Value, container: &Value, outside: &Outside) -> Result<Vec<Value>> {
    let mut mounts = vec![
        json!({"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"]}),
        json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "strictatime", "mode=755", "size=65536k"]}),
        json!({"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", "ro"]}),
        json!({"destination": "/etc/hosts", "type": "bind", "source": outside.hosts, "options": ["rbind", "rprivate", "rw"]}),
    ];
    if pod["automountServiceAccountToken"] != false {
        mounts.push(json!({
            "destination": "/var/run/secrets/kubernetes.io/serviceaccount",
            "type": "bind", "source": outside.account, "options": ["rbind", "rprivate", "ro"],
        }));
    }
    let volumes = pod["volumes"].as_array().context("the pod has no volumes")?;
    for mount in container["volumeMounts"].as_array().into_iter().flatten() {
        let name = mount["name"].as_str().unwrap_or_default();
        let volume = volumes.iter().find(|v| v["name"] == name).with_context(|| format!("no volume {name}"))?;
        let of_host = || volume["hostPath"]["path"].as_str().map(PathBuf::from);
        let source = outside.volumes.get(name).cloned().or_else(of_host);
        let source = source.with_context(|| format!("nothing for the volume {name}"))?;
        let access = if mount["readOnly"] == true { "ro" } else { "rw" };
        let propagation = if mount["mountPropagation"] == "HostToContainer" { "rslave" } else { "rprivate" };
        mounts.push(json!({
            "destination": mount["mountPath"], "type": "bind", "source": source, "options": ["rbind", propagation, access],
        }));
    }
    Ok(mounts)
}

/// The profile for this processor and these capabilities, from the form that runtimes keep theirs in.
fn seccomp(pod: &Value, outside: &Outside) -> Result<Value> {
    match pod["securityContext"]["seccompProfile"]["type"].as_str() {
        Some("Unconfined") => return Ok(Value::Null),
        Some("RuntimeDefault") => {}
        other => bail!("no profile of seccomp for {other:?}"),
    }
    let held = capabilities(&pod["containers"][0]["securityContext"], outside.without)?;
    let (processor, arch) =
        if cfg!(target_arch = "aarch64") { ("arm64", "SCMP_ARCH_AARCH64") } else { ("amd64", "SCMP_ARCH_X86_64") };
    let any = |value: &Value, of: &[String]| {
        value.as_array().into_iter().flatten().any(|name| of.iter().any(|have| name == have.as_str()))
    };
    let rules = outside.seccomp["syscalls"].as_array().context("the profile of seccomp has no rules")?;
    let applies = |rule: &&Value| {
        let wanted = &rule["includes"];
        let processor = [processor.to_owned()];
        (!has(&wanted["caps"]) || any(&wanted["caps"], &held))
            && (!has(&wanted["arches"]) || any(&wanted["arches"], &processor))
            && !any(&rule["excludes"]["caps"], &held)
            && !any(&rule["excludes"]["arches"], &processor)
    };
    let rule = |rule: &Value| {
        let mut rule = rule.clone();
        if let Some(fields) = rule.as_object_mut() {
            fields.retain(|key, value| {
                ["names", "action", "args", "errnoRet"].contains(&key.as_str()) && !value.is_null()
            });
        }
        rule
    };
    let rules: Vec<Value> = rules.iter().filter(applies).map(rule).collect();
    let mut profile =
        json!({"defaultAction": outside.seccomp["defaultAction"], "architectures": [arch], "syscalls": rules});
    if !outside.seccomp["defaultErrnoRet"].is_null() {
        profile["defaultErrnoRet"] = outside.seccomp["defaultErrnoRet"].clone();
    }
    Ok(profile)
}

fn has(list: &Value) -> bool {
    list.as_array().is_some_and(|list| !list.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> Value {
        json!({
            "hostPID": true,
            "automountServiceAccountToken": false,
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "args": ["run"],
                "resources": {"limits": {"memory": "512Mi"}},
                "env": [{"name": "A", "value": "b"}, {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
                "securityContext": {
                    "runAsUser": 0, "runAsGroup": 0, "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
                    "capabilities": {"drop": ["ALL"], "add": ["BPF", "SYSLOG"]},
                },
                "volumeMounts": [
                    {"name": "config", "mountPath": "/etc/x", "readOnly": true},
                    {"name": "tracefs", "mountPath": "/sys/kernel/tracing"},
                ],
            }],
            "volumes": [{"name": "config", "configMap": {"name": "x"}}, {"name": "tracefs", "hostPath": {"path": "/t"}}],
        })
    }

    fn made(pod: &Value, without: &[&str]) -> Result<Value> {
        let image = json!({"config": {"Entrypoint": ["/kstrobe"]}});
        let seccomp = json!({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [
            {"names": ["read"], "action": "SCMP_ACT_ALLOW", "args": [], "comment": "", "includes": {}, "excludes": {}},
            {"names": ["bpf"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_BPF"]}},
            {"names": ["mount"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_SYS_ADMIN"]}},
            {"names": ["clone"], "action": "SCMP_ACT_ALLOW", "excludes": {"caps": ["CAP_SYS_ADMIN"]}},
            {"names": ["s390"], "action": "SCMP_ACT_ALLOW", "includes": {"arches": ["s390"]}},
        ]});
        let volumes = BTreeMap::from([("config".to_owned(), PathBuf::from("/here"))]);
        let outside = Outside {
            image: &image,
            volumes: &volumes,
            seccomp: &seccomp,
            network: Path::new("/net"),
            hosts: Path::new("/hosts"),
            account: Path::new("/account"),
            cgroup: "/c",
            arguments: None,
            without,
        };
        config(pod, &outside)
    }

    #[test]
    fn a_pod_becomes_what_it_says() {
        let config = made(&pod(), &[]).unwrap();
        assert_eq!(config["process"]["args"], json!(["/kstrobe", "run"]));
        assert_eq!(
            config["process"]["env"],
            json!(["A=b", "NODE_NAME=node-1", "KUBERNETES_SERVICE_HOST=127.0.0.1", "KUBERNETES_SERVICE_PORT=6443"])
        );
        assert_eq!(config["process"]["capabilities"]["effective"], json!(["CAP_BPF", "CAP_SYSLOG"]));
        assert_eq!(config["process"]["noNewPrivileges"], true);
        assert_eq!(config["root"]["readonly"], true);
        assert_eq!(config["linux"]["resources"]["memory"]["limit"], 512 << 20);
        let options: Vec<&Value> = config["mounts"].as_array().unwrap()[4..].iter().map(|m| &m["options"][2]).collect();
        assert_eq!(options, [&json!("ro"), &json!("rw")]);
        let names: Vec<&str> = config["linux"]["seccomp"]["syscalls"]
            .as_array()
            .unwrap()
            .iter()
            .map(|s| s["names"][0].as_str().unwrap())
            .collect();
        assert_eq!(names, ["read", "bpf", "clone"]);
        let namespaces = config["linux"]["namespaces"].to_string();
        assert!(namespaces.contains("network") && !namespaces.contains("pid"), "{namespaces}");
    }

    #[test]
    fn a_service_account_where_it_is_wanted() {
        let mounted = |pod: &Value| made(pod, &[]).unwrap()["mounts"].to_string().contains("/account");
        let mut pod = pod();
        assert!(!mounted(&pod));
        // The field's default is `true`.
        pod.as_object_mut().unwrap().remove("automountServiceAccountToken");
        assert!(mounted(&pod));
    }

    #[test]
    fn a_capability_less() {
        let config = made(&pod(), &["BPF"]).unwrap();
        assert_eq!(config["process"]["capabilities"]["bounding"], json!(["CAP_SYSLOG"]));
        assert!(!config["linux"]["seccomp"]["syscalls"].to_string().contains("bpf"));
    }

    #[test]
    fn what_would_give_more_rights_is_refused() {
        for (path, value) in [
            ("/containers/0/securityContext/capabilities/drop", json!([])),
            ("/containers/0/securityContext/capabilities/drop", json!(["NET_RAW"])),
            ("/securityContext/seccompProfile/type", json!("Localhost")),
        ] {
            let mut pod = pod();
            *pod.pointer_mut(path).unwrap() = value;
            assert!(made(&pod, &[]).is_err(), "{path}");
        }
        let mut pod = pod();
        pod["containers"][0]["volumeMounts"][0]["name"] = json!("other");
        assert!(made(&pod, &[]).unwrap_err().to_string().contains("no volume other"));
    }
}
