//! The image, and the chart's pod in a container of it: `cargo xtask image`, `cargo xtask helm --runc`.
//!
//! The rendered DaemonSet becomes a bundle for runc with exactly its rights, on this machine's own kernel.

mod bundle;
mod image;
pub mod program;
mod runc;
mod sbom;
mod volume;

pub use image::{Options as ImageOptions, plain as plain_image, run as build_image};

use crate::apt::Apt;
use crate::{mounts, programs};
use anyhow::{Context, Result, ensure};
use kstrobe_fake_api::{FakeApi, FakeKubelet, objects};
use kstrobe_testing::containers::{self, Node};
use runc::{Container, Workshop};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Token of the API in containers of tests.
const TOKEN: &str = "0123456789abcdef-of-a-test";
/// What the kubelet writes for every pod, and a receiver of metrics that has a name.
const HOSTS: &str = "127.0.0.1 localhost\n127.0.0.1 gateway.observability.svc\n";
/// Its port, in the chart's case `otlp`.
const GATEWAY: u16 = 4318;
/// A kubelet's port.
const KUBELET: u16 = 10250;
/// A default profile of seccomp: where it is kept, the release of Debian and the package that have it, and its file there.
struct Profile {
    folder: &'static str,
    suite: &'static str,
    package: &'static str,
    file: &'static str,
}

/// Of Docker, as containerd and Docker have it since 2022.
const PROFILE: Profile = Profile {
    folder: "profile",
    suite: "trixie",
    package: "golang-github-docker-docker-dev",
    file: "usr/share/gocode/src/github.com/docker/docker/profiles/seccomp/default.json",
};
/// Of runtimes that go by `containers-common`, as it was in 2023.
const OLD_PROFILE: Profile = Profile {
    folder: "old-profile",
    suite: "bookworm",
    package: "golang-github-containers-common",
    file: "usr/share/containers/seccomp.json",
};

/// Fails when something is not as it should be.
type Check = fn(&Workshop) -> Result<()>;

/// What the chart's pods can do in a real container. `cases` has the rendered chart. A static agent is put into the image, and
/// one is built if none is given; another one runs with its libraries, since rights do not depend on how it is linked.
pub fn check(root: &Path, cases: &Path, agent: Option<&Path>) -> Result<()> {
    programs::install_these(&["runc", "ip", "busybox"])?;
    std::thread::scope(|scope| {
        // Of its own, for the mounts that it sees are its own.
        let thread = scope.spawn(|| {
            // Nodes have tracefs mounted; here it may not be.
            mounts::private()?;
            of_thread(root, cases, agent)
        });
        thread.join().map_err(|_| anyhow::anyhow!("the check panicked"))?
    })
}

/// The chart's pods as they are by default.
pub struct DefaultPods(Workshop);

impl DefaultPods {
    /// Renders the chart. The caller's mounts are private.
    pub fn of(root: &Path, agent: &Path) -> Result<DefaultPods> {
        programs::install_these(&["runc", "ip", "busybox"])?;
        let cases = crate::chart::cases(root)?;
        Ok(DefaultPods(workshop(root, &cases, Some(agent))?))
    }

    /// Runs `work` beside a new one, once it is ready.
    pub fn with_one<T>(&self, work: impl FnOnce(&runc::Container) -> Result<T>) -> Result<T> {
        let mut pod = self.0.container("default", None, &[])?.start()?;
        pod.wait("readiness", |pod| pod.get("/readyz").ok().filter(|(status, _)| *status == 200))?;
        work(&pod)
    }
}

fn of_thread(root: &Path, cases: &Path, agent: Option<&Path>) -> Result<()> {
    let mut workshop = workshop(root, cases, agent)?;
    let checks: [(&str, Check); 8] = [
        ("all default probes with exactly the chart's rights", default_probes),
        ("each capability is missed in words", missing_capabilities),
        ("captures, where they are on", captures),
        ("a receiver by its name", receiver),
        ("names of pods from the kubelet, with the service account", kubelet),
        ("names of pods and a probe from the API server, with the chart's roles", api_server),
        ("the node's network, where it is asked for", host_network),
        ("without the right to write, no capture changes the kernel", read_only),
    ];
    for (what, check) in checks {
        check(&workshop).with_context(|| what.to_owned())?;
        println!("in a container: {what}");
    }
    workshop.seccomp = profile(&workshop.folder, &OLD_PROFILE)?;
    old_profile(&workshop).context("a profile of seccomp that wants SYS_ADMIN")?;
    println!("in a container: a profile of seccomp that wants SYS_ADMIN is named as the reason");
    Ok(())
}

/// What containers are made of.
fn workshop(root: &Path, cases: &Path, agent: Option<&Path>) -> Result<Workshop> {
    let folder = root.join("target/container");
    let rootfs = folder.join("rootfs");
    let _ = fs::remove_dir_all(&rootfs);
    let dynamic = match agent {
        Some(agent) => program::libraries(agent)?.then_some(agent),
        None => None,
    };
    let image = match dynamic {
        Some(agent) => image::plain(agent, &rootfs)?,
        None => {
            let image = image::for_tests(root, agent)?;
            image.files(&rootfs)?;
            image.config()?
        }
    };
    let seccomp = profile(&folder, &PROFILE)?;
    Ok(Workshop { folder, rootfs, image, seccomp, cases: cases.to_owned() })
}

fn default_probes(workshop: &Workshop) -> Result<()> {
    let mut agent = workshop.container("default", None, &[])?.start()?;
    agent.wait("readiness", |agent| agent.get("/readyz").ok().filter(|(status, _)| *status == 200))?;
    let status = agent.proc("status")?;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim();
    // SYSLOG, PERFMON and BPF of linux/capability.h.
    let held = format!("{:016x}", 1u64 << 34 | 1 << 38 | 1 << 39);
    for name in ["CapEff:", "CapPrm:", "CapBnd:"] {
        ensure!(field(name) == held, "{name} {}, and the chart gives {held}", field(name));
    }
    ensure!(field("CapInh:") == "0000000000000000" && field("CapAmb:") == "0000000000000000", "{status}");
    ensure!(field("NoNewPrivs:") == "1" && field("Seccomp:") == "2", "{status}");
    let mounts = agent.proc("mountinfo")?;
    for place in ["/", "/sys/kernel/tracing", "/sys", "/etc/kstrobe/config"] {
        let options = mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(4);
            (fields.next()? == place).then(|| fields.next()).flatten()
        });
        ensure!(options.is_some_and(|options| options.split(',').any(|o| o == "ro")), "{place} is mounted {options:?}");
    }
    let (running, attached) = (running(&agent)?, attached(&agent)?);
    ensure!(running == wanted(&["tcp_listen", "tcp_loss"]), "these probes run: {running:?}");
    let not_attached: Vec<_> = attached.iter().filter(|line| !line.ends_with(" 1")).collect();
    ensure!(!attached.is_empty() && not_attached.is_empty(), "not attached: {not_attached:#?}");
    agent.wait("data of system calls", |agent| {
        let (_, page) = agent.get("/metrics").ok()?;
        page.contains("kstrobe_syscall_duration_seconds_count").then_some(())
    })
}

/// Names of the probes that are on by default, but for these.
fn wanted(without: &[&str]) -> BTreeSet<String> {
    let (probes, _) = kstrobe_config::probes(&kstrobe_config::embedded());
    let names = probes.into_iter().filter(|probe| probe.enabled).map(|probe| probe.name().to_owned());
    names.filter(|name| !without.contains(&name.as_str())).collect()
}

fn running(agent: &Container) -> Result<BTreeSet<String>> {
    let (_, page) = agent.get("/api/v1/probes")?;
    let page: Value = serde_json::from_str(&page)?;
    let probes = page["probes"].as_array().context("/api/v1/probes has no probes")?;
    Ok(probes.iter().filter_map(|probe| Some(probe["name"].as_str()?.to_owned())).collect())
}

fn attached(agent: &Container) -> Result<Vec<String>> {
    let (_, page) = agent.get("/metrics")?;
    Ok(page.lines().filter(|line| line.starts_with("kstrobe_probe_attached{")).map(str::to_owned).collect())
}

fn missing_capabilities(workshop: &Workshop) -> Result<()> {
    // What is left out, whether a probe can run without it, and what is said: as in the chart's README.
    for (capability, usable, words) in [
        ("BPF", false, "not held: no program can be loaded"),
        ("PERFMON", false, "not held: no program can look at the kernel"),
        ("SYSLOG", true, "not held: no kernel symbol names"),
    ] {
        let (success, text) = workshop.container("default", Some(&["doctor"]), &[capability])?.run()?;
        ensure!(success == usable && text.contains(words), "without {capability}, doctor says ({success}):\n{text}");
    }
    let (success, text) = workshop.container("default", Some(&["doctor"]), &[])?.run()?;
    ensure!(success, "with all of them, doctor says:\n{text}");
    // What the chart adds on request, and in which case: by default, and there when it is taken away, it is missed.
    for (capability, case, words) in [
        ("SYS_PTRACE", "captures", "programs of other containers have no names in stacks"),
        ("SYS_ADMIN", "profiling", "uprobes only from Linux 6.6 on"),
    ] {
        ensure!(text.contains(words), "what costs {capability} is not said:\n{text}");
        for (without, missed) in [(&[][..], false), (&[capability], true)] {
            let (_, text) = workshop.container(case, Some(&["doctor"]), without)?.run()?;
            ensure!(text.contains(words) == missed, "without {without:?}, doctor says:\n{text}");
        }
    }
    // Costs take no right that the chart adds on request.
    let mut agent = workshop.container("default", None, &[])?.start()?;
    agent.wait("what programs cost", |agent| {
        let (_, page) = agent.get("/metrics").ok()?;
        page.contains("kstrobe_program_run_seconds_total{").then_some(())
    })?;
    drop(agent);
    let mut agent = workshop.container("default", None, &["PERFMON"])?.start()?;
    let text = agent.wait("an agent that is not ready", |agent| {
        agent.get("/readyz").ok().filter(|(status, _)| *status == 503).map(|(_, text)| text)
    })?;
    ensure!(text.contains("needs CAP_PERFMON (or root)"), "without PERFMON, /readyz says:\n{text}");
    Ok(())
}

const ONE_SECOND: &str = r#"{"events": ["sched:sched_switch"], "duration": "1s"}"#;

fn captures(workshop: &Workshop) -> Result<()> {
    let mut agent = workshop.container("captures", None, &[])?.start()?;
    let (status, text) = agent.post("/api/v1/captures", ONE_SECOND)?;
    ensure!(status == 202, "a capture is answered {status}: {text}");
    let id = serde_json::from_str::<Value>(&text)?["id"].as_str().context("no id")?.to_owned();
    let done = agent.wait("the capture", |agent| {
        let (_, text) = agent.get(&format!("/api/v1/captures/{id}")).ok()?;
        Some(text).filter(|text| !text.contains("running"))
    })?;
    // Asked without the token, the API does not tell.
    ensure!(done.contains("token"), "the API tells of captures to everybody: {done}");
    let stored = agent.volume("captures").join("captures");
    agent.wait("the capture's files", |_| {
        let files = fs::read_dir(stored.join(&id)).ok()?.flatten();
        files.into_iter().any(|file| file.path().extension().is_some_and(|e| e == "dat")).then_some(())
    })
}

fn receiver(workshop: &Workshop) -> Result<()> {
    let container = workshop.container("otlp", None, &[])?;
    let listener = container.listen(GATEWAY)?;
    listener.set_nonblocking(true)?;
    let received = Arc::new(AtomicUsize::new(0));
    let (count, runtime) = (received.clone(), tokio::runtime::Builder::new_multi_thread().enable_all().build()?);
    let taken = move |body: axum::body::Bytes| async move {
        count.fetch_add(body.len(), Relaxed);
    };
    let router = axum::Router::new().route("/v1/metrics", axum::routing::post(taken));
    runtime.spawn(kstrobe_web::serve(vec![listener], router, std::future::pending()));
    let mut agent = container.start()?;
    agent.wait("metrics at a receiver that has a name", |_| (received.load(Relaxed) > 0).then_some(()))?;
    let (_, page) = agent.get("/metrics")?;
    let sent = page.lines().any(|line| {
        line.strip_prefix("kstrobe_export_points_sent_total{exporter=\"vendor\"} ").is_some_and(|sent| sent != "0")
    });
    ensure!(
        sent,
        "nothing was sent to `vendor`:\n{}",
        page.lines().filter(|l| l.contains("_export_")).collect::<Vec<_>>().join("\n")
    );
    Ok(())
}

/// New processes in the pod that a condition means, and in the one that it does not.
const FORKS: u32 = 200;

/// A pod of `node-1` with one container, which runs.
fn pod<'a>(node: &'a Node, namespace: &str, deployment: &str, number: u32) -> (Value, containers::Container<'a>) {
    let (uid, id) = (Node::uid(), Node::id());
    let mut pod = objects::deployed(namespace, deployment, number, &uid);
    pod["spec"]["nodeName"] = json!("node-1");
    objects::runs(&mut pod, "app", &format!("containerd://{id}"));
    let group = containers::Driver::Systemd.container(&uid, "cri-containerd", &id);
    (pod, node.runc(&group, &id, "sleep 300"))
}

fn kubelet(workshop: &Workshop) -> Result<()> {
    let container = workshop.container("workloads", None, &[])?;
    let api = FakeApi::start_on(container.listen(bundle::API_SERVER.1)?, &[]);
    let kubelet = FakeKubelet::start_on(container.listen(KUBELET)?);
    kubelet.set_token(&api.token());
    container.account(&api.token(), api.authority().pem())?;
    let node = Node::new();
    let (web, in_web) = pod(&node, "shop", "web", 1);
    let (ledger, in_ledger) = pod(&node, "bank", "ledger", 2);
    let name = web["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    kubelet.set_pods(vec![web, ledger]);
    let mut agent = container.start()?;
    forks_of_one_pod(&mut agent, [&in_web, &in_ledger], &name)?;
    ensure!(kubelet.asked() > 0 && api.count("list pods") == 0, "{:?}", api.asked());
    allowed(workshop, "workloads", &api)
}

/// Waits until a condition on a namespace means one pod, and looks for new processes of that one alone.
fn forks_of_one_pod(agent: &mut Container, [meant, other]: [&containers::Container<'_>; 2], name: &str) -> Result<()> {
    // The groups of the pod and of its container.
    let parts = ["kstrobe_map_entries{", r#"probe="shop_forks""#, r#"map="ks_selected0""#, "} 2"];
    agent.wait("the groups of one namespace", |agent| {
        let (_, page) = agent.get("/metrics").ok()?;
        page.lines().any(|line| parts.iter().all(|part| line.contains(part))).then_some(())
    })?;
    let script = format!("for i in $(seq {FORKS}); do /bin/busybox true; done");
    other.run(&script);
    meant.run(&script);
    let counted = |agent: &Container| {
        let (_, page) = agent.get("/metrics").ok()?;
        let lines: Vec<_> =
            page.lines().filter(|line| line.starts_with("kstrobe_shop_forks_total{")).map(str::to_owned).collect();
        (!lines.is_empty()).then_some(lines)
    };
    let lines = agent.wait("what was counted", counted)?;
    let [line] = &lines[..] else { anyhow::bail!("one pod was meant: {lines:#?}") };
    let (labels, value) = line.rsplit_once(' ').context("a sample")?;
    ensure!(labels.contains(&format!("pod=\"{name}\"")) && labels.contains("workload=\"web\""), "{line}");
    // What joins the group from outside, runc's own, forks too.
    let value: f64 = value.parse()?;
    ensure!((f64::from(FORKS)..f64::from(FORKS) + 50.0).contains(&value), "{line}, and {FORKS} were made");
    Ok(())
}

/// Nothing was asked that the roles of the case do not allow.
fn allowed(workshop: &Workshop, case: &str, api: &FakeApi) -> Result<()> {
    let text = fs::read_to_string(workshop.cases.join(case).join("rules.json"))?;
    let rules: Vec<Value> = serde_json::from_str(&text)?;
    let has = |rule: &Value, key: &str, wanted: &str| rule[key].as_array().into_iter().flatten().any(|is| is == wanted);
    for asked in api.asked() {
        let (verb, resource) = asked.what.split_once(' ').with_context(|| asked.uri.clone())?;
        // `/api/v1/...` has the group without a name, `/apis/GROUP/VERSION/...` one with a name.
        let group = asked.uri.strip_prefix("/apis/").and_then(|path| path.split('/').next()).unwrap_or_default();
        let may = |rule: &Value| {
            has(rule, "apiGroups", group) && has(rule, "resources", resource) && has(rule, "verbs", verb)
        };
        ensure!(asked.known && rules.iter().any(may), "the roles of case {case} do not allow {asked:?}");
    }
    Ok(())
}

fn api_server(workshop: &Workshop) -> Result<()> {
    let container = workshop.container("captures", None, &[])?;
    let api = FakeApi::start_on(container.listen(bundle::API_SERVER.1)?, &[]);
    container.account(&api.token(), api.authority().pem())?;
    let node = Node::new();
    let (web, in_web) = pod(&node, "shop", "web", 1);
    let (ledger, in_ledger) = pod(&node, "bank", "ledger", 2);
    let name = web["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let probe = json!({
        "apiVersion": "kstrobe.dev/v1alpha1", "kind": "Probe", "metadata": {"name": "shop", "namespace": "kstrobe"},
        "spec": {"probe": {
            "probe": "shop_forks",
            "summary": "New processes in the shop.",
            "at": "rawtracepoint:sched_process_fork",
            "where": "namespace in [\"shop\"]",
            "metrics": {"shop_forks_total": {"type": "counter", "labels": {"pod": "pod", "workload": "workload"}}},
        }},
    });
    // Those whose owners have to be asked for: of a Job, and of a ReplicaSet whose hash is in no label.
    let others = [objects::import(), objects::canary()].map(|mut pod| {
        pod["spec"]["nodeName"] = json!("node-1");
        pod["metadata"]["labels"] = json!({});
        pod
    });
    [web, ledger, probe].into_iter().chain(others).for_each(|object| drop(api.put(object)));
    let mut agent = container.start()?;
    forks_of_one_pod(&mut agent, [&in_web, &in_ledger], &name)?;
    agent.wait("the probe's status", |_| {
        let probe = api.get("apis/kstrobe.dev/v1alpha1/probes", "kstrobe", "shop")?;
        (probe["status"]["nodes"]["node-1"]["state"] == "Attached").then_some(())
    })?;
    agent.wait("the owners of pods", |_| {
        let asked = ["get jobs", "get replicasets"].iter().all(|what| api.count(what) > 0);
        asked.then_some(())
    })?;
    allowed(workshop, "captures", &api)
}

fn host_network(workshop: &Workshop) -> Result<()> {
    let mut agent = workshop.container("hostnetwork", None, &[])?.start()?;
    let running = running(&agent)?;
    ensure!(running == wanted(&[]), "these probes run: {running:?}");
    agent.wait("the node's listening sockets", |agent| {
        let (_, page) = agent.get("/metrics").ok()?;
        page.contains(r#"kstrobe_tcp_accept_queue_limit{port="19779"}"#).then_some(())
    })
}

fn read_only(workshop: &Workshop) -> Result<()> {
    let agent = workshop.container("default", None, &[])?.start()?;
    let (status, text) = agent.post("/api/v1/captures", ONE_SECOND)?;
    ensure!(status == 403 && text.contains("captures are off"), "a capture is answered {status}: {text}");
    Ok(())
}

fn old_profile(workshop: &Workshop) -> Result<()> {
    let (success, text) = workshop.container("default", Some(&["doctor"]), &[])?.run()?;
    ensure!(!success && text.contains("seccomp profile"), "doctor says ({success}):\n{text}");
    Ok(())
}

/// A default profile of seccomp, from Debian.
fn profile(folder: &Path, profile: &Profile) -> Result<Value> {
    let Profile { suite, package, .. } = profile;
    let into = folder.join(profile.folder);
    let file = into.join(profile.file);
    if !file.is_file() {
        fs::create_dir_all(&into)?;
        Apt::open(&into.join("apt"), &[(*suite).to_owned()])?.download(&[(*package).to_owned()], &into)?;
        let packages = fs::read_dir(&into)?.flatten().map(|entry| entry.path());
        let fetched = packages.into_iter().find(|path| path.extension().is_some_and(|e| e == "deb"));
        let fetched = fetched.with_context(|| format!("no {package} was fetched"))?;
        crate::apt::finished(Command::new("dpkg-deb").arg("-x").arg(fetched).arg(&into))?;
    }
    let text = fs::read_to_string(&file).with_context(|| format!("{package} of {suite}: {}", profile.file))?;
    serde_json::from_str(&text).with_context(|| file.display().to_string())
}
