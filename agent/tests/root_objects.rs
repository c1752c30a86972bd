//! Objects of the cluster and a real agent: a `Probe` counts and ends, one that the kernel lacks is refused, a `Capture` records the
//! pods that it selects; their status says so. The API server is one for tests that speaks the real protocol.

mod support;

use kstrobe_fake_api::FakeApi;
use serde_json::{Value, json};
use std::time::{Duration, SystemTime};
use support::agent::Setup;
use support::api::Home;
use support::load::{getpgid_calls, named};
use support::pods;
use support::wait_for;
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
    let done = becomes("captures", "slow", "Done");
    let trace = agent.recorded(done["id"].as_str().unwrap());
    let calls = |pid: u32| trace.events().filter(|event| event.pid().cast_unsigned() == pid).count();
    assert!(calls(busy[0].id()) > 10, "{} of the pod's shell", calls(busy[0].id()));
    assert_eq!((calls(busy[1].id()), calls(agent.pid())), (0, 0), "of the other pod, of the agent");
    busy.iter_mut().for_each(|shell| {
        shell.kill().unwrap();
        shell.wait().unwrap();
    });

    api.remove(&probe);
    wait_for("its end", LIMIT, || (!agent.scrape().has("kstrobe_asked_total", &[])).then_some(()));
    agent.stop();
}
