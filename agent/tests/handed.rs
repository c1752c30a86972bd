//! `Probe` objects: what an agent makes of them, with an API server that speaks the real protocol.

use kstrobe::kubernetes::probe_controller::{Context, Files, run};
use kstrobe::probe::status::ProbeStatus;
use kstrobe_fake_api::FakeApi;
use kstrobe_kube::{Client, Config, Counters, Env, Wanted};
use kstrobe_testing::Folder;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// An API server, and what the agent of node n1 runs.
struct World {
    api: FakeApi,
    files: Files,
    /// Names of the probes after each reload; an agent that has `mine` already.
    reloads: Arc<Mutex<Vec<String>>>,
    _runtime: tokio::runtime::Runtime,
}

/// What an agent does with all texts: all of them or nothing.
fn read(files: &Files) -> Result<Vec<String>, String> {
    let mut texts = files.get();
    texts.push(Arc::new(kstrobe::config::files::SourceFile { name: "mine.yaml".into(), text: text("mine") }));
    let (probes, wrong) = kstrobe::config::files::check_probes(&texts);
    if wrong.iter().any(|wrong| wrong.is_error()) {
        return Err(kstrobe::config::files::diag::render(&wrong));
    }
    Ok(probes.into_iter().map(|probe| probe.name().to_owned()).collect())
}

fn text(name: &str) -> String {
    format!(
        "probe: {name}\nsummary: Wakeups.\nat: rawtracepoint:sched_waking\nmetrics: {{ {name}_total: {{ type: counter }} }}\n"
    )
}

fn world() -> World {
    let folder = Folder::new();
    let api = FakeApi::start();
    api.put(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": {"disk": "ssd"}}}));
    let file = folder.write("kubeconfig", &api.kubeconfig());
    let wanted = Wanted { kubeconfig: Some(file), ..Wanted::default() };
    let client = Client::new(Config::find(&wanted, &Env::own()).unwrap(), "test").unwrap();
    let (files, reloads) = (Files::default(), Arc::new(Mutex::new(Vec::new())));
    let (of_reload, of_standing, list) = (files.clone(), files.clone(), reloads.clone());
    let context = Context {
        client,
        namespace: "kstrobe".into(),
        node: "n1".into(),
        counters: Arc::new(Counters::default()),
        files: files.clone(),
        reload: Arc::new(move || {
            let names = read(&of_reload)?;
            list.lock().unwrap().push(names.join(" "));
            Ok(())
        }),
        statuses: Arc::new(move || {
            let names = read(&of_standing).unwrap_or_default();
            let status = |name: String| {
                let reason = if name.contains("astray") { "no such hook".to_owned() } else { String::new() };
                ProbeStatus { attached: reason.is_empty(), name, reason, ..ProbeStatus::default() }
            };
            names.into_iter().map(status).collect()
        }),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.spawn(run(context));
    World { api, files, reloads, _runtime: runtime }
}

fn object(name: &str, spec: Value) -> Value {
    let metadata = json!({"namespace": "kstrobe", "name": name, "creationTimestamp": "2026-11-20T08:15:32Z"});
    json!({"apiVersion": "kstrobe.dev/v1alpha1", "kind": "Probe", "metadata": metadata, "spec": spec})
}

impl World {
    fn get(&self, name: &str) -> Option<Value> {
        self.api.get("apis/kstrobe.dev/v1alpha1/probes", "kstrobe", name)
    }

    /// Somebody changes what is wanted.
    fn change(&self, name: &str, spec: Value) {
        let mut object = self.get(name).unwrap();
        object["spec"] = spec;
        self.api.put(object);
    }

    fn entry(&self, name: &str) -> Value {
        self.get(name).map_or(Value::Null, |mut object| object["status"]["nodes"]["n1"].take())
    }

    /// Waits for this state, and gives the message.
    fn becomes(&self, name: &str, state: &str) -> String {
        let what = format!("{name} {state}");
        kstrobe_testing::wait_for(&what, Duration::from_secs(30), || {
            let entry = self.entry(name);
            (entry["state"] == state).then(|| entry["message"].as_str().unwrap_or_default().to_owned())
        })
    }
}

#[test]
fn probes_of_the_cluster_are_taken_one_by_one() {
    let world = world();
    let api = &world.api;
    api.put(object("good", json!({"yaml": text("good")})));
    api.put(object("mapped", json!({"nodeSelector": {"matchLabels": {"disk": "ssd"}}, "probe": {
        "probe": "mapped", "summary": "x", "at": "rawtracepoint:sched_waking", "metrics": {"mapped_total": {"type": "counter"}},
    }})));
    api.put(object("elsewhere", json!({"nodeSelector": {"matchLabels": {"disk": "hdd"}}, "yaml": text("elsewhere")})));
    api.put(object("broken", json!({"yaml": "probe: broken\nat: nowhere:x\n"})));
    // A name that the node's own configuration has already.
    api.put(object("clash", json!({"yaml": text("mine")})));
    api.put(object("both", json!({"yaml": text("a"), "probe": {}})));
    api.put(object("astray", json!({"yaml": text("astray")})));
    assert_eq!(world.becomes("good", "Attached"), "");
    assert_eq!(world.becomes("mapped", "Attached"), "");
    let broken = world.becomes("broken", "Refused");
    assert!(broken.contains("broken.probe.kstrobe.dev.yaml") && broken.contains("nowhere"), "{broken}");
    assert!(world.becomes("clash", "Refused").contains("mine"), "{}", world.becomes("clash", "Refused"));
    assert_eq!(world.becomes("both", "Refused"), "spec: either `yaml` or `probe`, and not both");
    assert_eq!(world.becomes("astray", "Refused"), "no such hook");
    assert_eq!(world.entry("elsewhere"), Value::Null);
    let last = world.reloads.lock().unwrap().last().cloned().unwrap();
    let mut names: Vec<&str> = last.split(' ').collect();
    names.sort_unstable();
    assert_eq!(names, ["astray", "good", "mapped", "mine"]);

    // For the worse: what ran runs on. For the better, and gone.
    world.change("good", json!({"yaml": "probe: good\n"}));
    assert!(world.becomes("good", "Refused").starts_with("it runs on as it was before"));
    assert!(world.files.get().iter().any(|file| file.text == text("good")));
    world.change("good", json!({"yaml": text("better")}));
    world.becomes("good", "Attached");
    assert!(world.files.get().iter().all(|file| file.text != text("good")));
    api.remove(&object("good", Value::Null));
    kstrobe_testing::wait_for("its end", Duration::from_secs(30), || {
        world.files.get().iter().all(|file| file.text != text("better")).then_some(())
    });
    // The other way round: a node that is no longer meant has nothing to say.
    assert!(!world.entry("mapped").is_null());
    world.change("mapped", json!({"nodeName": "n2", "yaml": text("mapped")}));
    kstrobe_testing::wait_for("its entry goes", Duration::from_secs(30), || {
        world.entry("mapped").is_null().then_some(())
    });
}
