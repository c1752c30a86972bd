//! Objects of the cluster and a real agent: a `Probe` counts and ends, one that the kernel lacks is refused, a `Capture` records the
//! pods that it selects; their status says so. And an alert finds the agent of its node. The API server is one for tests that speaks the real protocol.

mod support;

use kstrobe_fake_api::FakeApi;
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, SystemTime};
use support::agent::{self, Agent, Setup};
use support::alertmanager::{self, Alertmanager};
use support::api::Home;
use support::load::{getpgid_calls, named};
use support::pods;
use support::{Folder, done, wait_for, witnesses};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

const LIMIT: Duration = Duration::from_secs(120);

const ASKED: &str = "\
probe: asked
summary: Calls of a test.
at: syscall:getpgid:enter
where: comm == \"kst-asks\"
metrics:
  asked_total: { type: counter }
";

fn object(kind: &str, name: &str, spec: &Value) -> Value {
    let now = OffsetDateTime::from(SystemTime::now()).replace_nanosecond(0).unwrap().format(&Rfc3339).unwrap();
    json!({
        "apiVersion": "kstrobe.dev/v1alpha1", "kind": kind, "spec": spec,
        "metadata": {
            "namespace": "kstrobe", "name": name, "uid": format!("uid-{kind}-{name}"), "generation": 1, "creationTimestamp": now,
        },
    })
}

#[test]
#[ignore = "needs root"]
fn root_objects_of_the_cluster_become_probes_and_recordings() {
    let api = FakeApi::start();
    api.put(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a", "labels": {}}}));
    let [shop, bank] = pods::shop_and_bank(&api, 61);
    let home = Home::new();
    let cluster = pods::cluster(&home.write("kubeconfig", &api.kubeconfig()));
    let (dir, token_file) = (home.captures(), home.token_file());
    let config = format!("captures: {{ dir: {}, token_file: {} }}\n{cluster}", dir.display(), token_file.display());
    let agent = Setup { config: &config, arguments: &["--kubernetes.custom-resources"], ..Setup::default() }.start();
    let becomes = |kind: &str, name: &str, state: &str| {
        let resource = format!("apis/kstrobe.dev/v1alpha1/{kind}");
        wait_for(&format!("{name} is {state}"), LIMIT, || {
            let mut found = api.get(&resource, "kstrobe", name)?;
            let entry = found["status"]["nodes"]["node-a"].take();
            (entry["state"] == state).then_some(entry)
        })
    };

    let probe = object("Probe", "asked", &json!({"yaml": ASKED}));
    api.put(probe.clone());
    let lacking =
        ASKED.replace("syscall:getpgid:enter", "rawtracepoint:no_kernel_has_this").replace("asked", "lacking");
    api.put(object("Probe", "lacking", &json!({"yaml": lacking})));
    becomes("probes", "asked", "Attached");
    let refused = becomes("probes", "lacking", "Refused");
    assert!(refused["message"].as_str().unwrap().contains("no_kernel_has_this"), "{refused}");
    named("kst-asks", || getpgid_calls(7, 500));
    assert_eq!(agent.scrape().sum("kstrobe_asked_total", &[]), 500.0);
    let (status, ready) = agent.get("/readyz").unwrap();
    assert!(status == 200 && ready.contains("lacking: "), "{status} {ready}");

    let mut busy = [&shop, &bank].map(|pod| pod.group.spawn("sh -c 'while :; do sleep 0.01; done'"));
    let selected = json!({
        "podSelector": {"matchLabels": {"app": "web"}}, "podNamespace": "shop",
        "capture": {"events": "raw_syscalls:sys_enter", "duration": "2s"},
    });
    api.put(object("Capture", "slow", &selected));
    let entry = becomes("captures", "slow", "Done");
    let id = entry["id"].as_str().unwrap();
    let trace = agent.recorded(id);
    let calls = |pid: u32| trace.events().filter(|event| event.pid().cast_unsigned() == pid).count();
    assert!(calls(busy[0].id()) > 10, "{} of the pod's shell", calls(busy[0].id()));
    assert_eq!((calls(busy[1].id()), calls(agent.pid())), (0, 0), "of the other pod, of the agent");
    files_are_fetched_by_the_objects_name(&api, &agent, &home, id);
    busy.iter_mut().for_each(|shell| {
        shell.kill().unwrap();
        shell.wait().unwrap();
    });

    api.remove(&probe);
    wait_for("its end", LIMIT, || (!agent.scrape().has("kstrobe_asked_total", &[])).then_some(()));
    agent.stop();
}

/// The plugin needs the object's name alone: its status names the nodes, whose agents' pods it finds.
fn files_are_fetched_by_the_objects_name(api: &FakeApi, agent: &Agent, home: &Home, id: &str) {
    api.put(json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "namespace": "kstrobe", "name": "kstrobe-x7k2p",
            "labels": {"app.kubernetes.io/part-of": "kstrobe", "app.kubernetes.io/component": "agent"},
        },
        "spec": {"nodeName": "node-a", "containers": []},
        "status": {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]},
    }));
    api.backend_at("kstrobe", "kstrobe-x7k2p", 9779, agent.address());
    let (kubeconfig, token) = (home.write("kubeconfig", &api.kubeconfig()), home.token_file());
    let into = Folder::new();
    let get = |name: &str, token: &Path| {
        let mut command = agent::command(&["fleet", "get", name]);
        command.arg("--kubeconfig").arg(&kubeconfig).arg("--token-file").arg(token).arg("--output").arg(&into.0);
        done(&mut command)
    };
    let fetched = get("slow", &token);
    assert_eq!(fetched.code, Some(0), "{}", fetched.err);
    let file = into.0.join("slow-node-a-trace.dat");
    assert_eq!(fetched.out.trim(), file.display().to_string());
    assert!(std::fs::read(&file).unwrap() == agent.download(id, "dat"));
    std::fs::remove_file(&file).unwrap();
    // A node that delivers none is named, and leaves no part of a file.
    let refused = get("slow", &home.write("other-token", "a-token-of-nobody-0123456789"));
    assert!(refused.code == Some(1) && refused.err.contains("node-a: "), "{}", refused.err);
    let unknown = get("no-such-capture", &token);
    assert!(unknown.code == Some(1) && unknown.err.contains("no-such-capture"), "{}", unknown.err);
    assert_eq!(std::fs::read_dir(&into.0).unwrap().count(), 0);
}

/// The agent of a node as a pod that has this address, with a rule for alerts. `more` are further arguments.
fn agent_of(node: &str, address: &str, api: &FakeApi, home: &Home, more: &[&str]) -> Agent {
    let labels = json!({"app.kubernetes.io/part-of": "kstrobe", "app.kubernetes.io/component": "agent"});
    let name = format!("kstrobe-of-{node}");
    api.put(json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "kstrobe", "name": name, "labels": labels, "uid": format!("uid-of-{node}")},
        "spec": {"nodeName": node, "containers": []},
        "status": {"phase": "Running", "podIP": address},
    }));
    let kubeconfig = home.write("kubeconfig", &api.kubeconfig());
    let config = format!(
        "kubernetes: {{ source: api, node: {node}, kubeconfig: {} }}\ncaptures: {{ dir: {}, token_file: {} }}\n\
         rules:\n  - name: disk\n    capture: {{ events: sched:sched_switch, duration: 500ms }}\n",
        kubeconfig.display(),
        home.captures().display(),
        home.token_file().display()
    );
    let pod = ["POD_NAMESPACE=kstrobe".to_owned(), format!("POD_NAME={name}"), format!("POD_IP={address}")];
    let under = ["env", &pod[0], &pod[1], &pod[2]];
    Setup { config: &config, under: &under, arguments: more, ..Setup::default() }.start()
}

#[test]
#[ignore = "needs root"]
fn root_an_alert_that_reaches_another_nodes_agent_is_recorded_on_its_own_node() {
    let test = "root_an_alert_that_reaches_another_nodes_agent_is_recorded_on_its_own_node";
    if !witnesses(test, &[alertmanager::PROGRAM]) {
        return;
    }
    let (api, homes) = (FakeApi::start(), [Home::new(), Home::new()]);
    let objects = ["--kubernetes.custom-resources"];
    let asked = agent_of("node-a", "127.0.0.1", &api, &homes[0], &objects);
    let right = agent_of("node-b", "127.0.0.2", &api, &homes[1], &objects);
    let alertmanager = Alertmanager::start(asked.address(), &homes[0].token_file());
    let labels = json!({"alertname": "DiskSlow", "node": "node-b", "kstrobe_rule": "disk"});
    alertmanager.push(&json!([{"labels": labels, "startsAt": "2026-01-01T00:00:00Z"}]));
    let id = wait_for("the alert's capture", LIMIT, || Some(right.all_captures().first()?["id"].as_str()?.to_owned()));
    let capture = right.ended(&id);
    assert_eq!((&capture["state"], &capture["trigger"]["kind"]), (&json!("done"), &json!("alertmanager")), "{capture}");
    assert_eq!(asked.all_captures(), Vec::<Value>::new(), "not on the node whose agent was asked");
    [asked, right].into_iter().for_each(Agent::stop);
}
