//! `Capture` objects: what an agent makes of them, with an API server that speaks the real protocol.

use super::world::{Folder, agent, engine, until};
use kstrobe::capture::rules::configured;
use kstrobe::capture::rules::engine::RuleEngine;
use kstrobe::kubernetes::capture_controller::{Objects, run};
use kstrobe_fake_api::FakeApi;
use kstrobe_kube::{Client, Config, Counters, Env, Wanted};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// An API server, and the agent of node n1 that follows it until this is dropped.
struct World {
    api: FakeApi,
    rules: Arc<RuleEngine>,
    _runtime: tokio::runtime::Runtime,
    _folder: Folder,
}

fn world(before: impl FnOnce(&FakeApi)) -> World {
    world_of(4, before)
}

/// Of a node that takes so many captures at once.
fn world_of(max_concurrent: u32, before: impl FnOnce(&FakeApi)) -> World {
    let folder = Folder::new();
    let api = FakeApi::start();
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": {"disk": "ssd"}}});
    api.put(node);
    before(&api);
    let file = folder.0.join("kubeconfig");
    std::fs::write(&file, api.kubeconfig()).unwrap();
    let wanted = Wanted { kubeconfig: Some(file), ..Wanted::default() };
    let client = Client::new(Config::find(&wanted, &Env::own()).unwrap(), "test").unwrap();
    let rules = configured::open(&agent(&folder, &format!("max_concurrent: {max_concurrent}"), ""), engine(), |_| true)
        .unwrap()
        .unwrap();
    let captures = rules.clone();
    let objects = Objects {
        client,
        namespace: "kstrobe".into(),
        node: "n1".into(),
        captures: Box::new(move || Some(captures.clone())),
        counters: Arc::new(Counters::default()),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.spawn(run(objects));
    World { api, rules, _runtime: runtime, _folder: folder }
}

fn now() -> OffsetDateTime {
    OffsetDateTime::from(SystemTime::now())
}

fn text(at: OffsetDateTime) -> String {
    at.replace_nanosecond(0).unwrap().format(&Rfc3339).unwrap()
}

fn object(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "kstrobe.dev/v1alpha1", "kind": "Capture",
        "metadata": {"namespace": "kstrobe", "name": name, "uid": format!("uid-{name}"), "generation": 1, "creationTimestamp": text(now())},
        "spec": spec,
    })
}

impl World {
    /// What n1 says of an object, once it says this.
    fn says(&self, name: &str, state: &str) -> Value {
        let mut found = Value::Null;
        until(&format!("{name} is {state}"), || {
            let object = self.api.get("apis/kstrobe.dev/v1alpha1/captures", "kstrobe", name);
            found = object.map_or(Value::Null, |object| object["status"]["nodes"]["n1"].clone());
            found["state"] == state
        });
        found
    }

    fn captures(&self) -> usize {
        self.rules.service().list().len()
    }
}

#[test]
fn an_object_becomes_a_capture_and_tells_what_came_of_it() {
    let world = world(|api| {
        let selector = json!({"matchLabels": {"disk": "ssd"}});
        api.put(object("mine", json!({"nodeSelector": selector, "capture": {"events": "quick"}})));
        let selector = json!({"matchLabels": {"disk": "floppy"}});
        api.put(object("others", json!({"nodeSelector": selector, "capture": {"events": "quick"}})));
        api.put(object("elsewhere", json!({"nodeName": "n2", "capture": {"events": "quick"}})));
        api.put(object("wrong", json!({"nodeName": "n1", "capture": {"evnts": "quick"}})));
        api.put(object("fails", json!({"nodeName": "n1", "capture": {"events": "nothing"}})));
    });
    let mine = world.says("mine", "Done");
    assert_eq!((&mine["formats"], &mine["bytes"]), (&json!(["dat"]), &json!(600_000)));
    let capture =
        world.rules.service().list().into_iter().find(|capture| Some(capture.id.as_str()) == mine["id"].as_str());
    let capture = capture.expect("the capture that the object names");
    assert_eq!(
        (capture.trigger.kind.as_str(), capture.trigger.client.as_str()),
        ("kubernetes", "Capture kstrobe/mine")
    );
    let wrong = world.says("wrong", "Refused");
    assert!(wrong["message"].as_str().unwrap().contains("did you mean `events`?"), "{wrong}");
    assert_eq!(world.says("fails", "Failed")["message"], "no event of this kernel is `nothing`");
    // Nothing is done twice, and nothing that is for others.
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(world.captures(), 2);
    let others = |name: &str| {
        world.api.get("apis/kstrobe.dev/v1alpha1/captures", "kstrobe", name).unwrap()["status"]["nodes"]["n1"].clone()
    };
    assert_eq!((others("others"), others("elsewhere")), (Value::Null, Value::Null));
    until("the sums", || {
        world.api.get("apis/kstrobe.dev/v1alpha1/captures", "kstrobe", "mine").unwrap()["status"]["done"] == 1
    });
}

/// A pod of n1 whose only container runs or not.
fn pod(namespace: &str, name: &str, app: &str, running: bool) -> Value {
    let state = if running { json!({"running": {}}) } else { json!({"waiting": {}}) };
    let id = running.then_some("containerd://0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef");
    let container = json!({"name": "main", "containerID": id, "state": state});
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "uid": format!("uid-{namespace}-{name}"), "labels": {"app": app}},
        "spec": {"nodeName": "n1", "containers": [{"name": "main"}]},
        "status": {"phase": if running { "Running" } else { "Pending" }, "containerStatuses": [container]},
    })
}

#[test]
fn a_selector_of_pods_becomes_the_names_of_those_that_run_here() {
    let world = world(|api| {
        let mut elsewhere = pod("shop", "mysql-2", "mysql", true);
        elsewhere["spec"]["nodeName"] = json!("n2");
        let (here, waits) = (pod("shop", "mysql-0", "mysql", true), pod("shop", "mysql-1", "mysql", false));
        let (bank, web) = (pod("bank", "mysql-0", "mysql", true), pod("shop", "web-0", "web", true));
        for pod in [here, waits, elsewhere, bank, web] {
            api.put(pod);
        }
        let spec = |namespace: Option<&str>, app: &str| {
            let selector = json!({"matchLabels": {"app": app}});
            json!({"podSelector": selector, "podNamespace": namespace, "capture": {"events": "quick"}})
        };
        api.put(object("shops", spec(Some("shop"), "mysql")));
        api.put(object("all", spec(None, "mysql")));
        api.put(object("none", spec(None, "redis")));
    });
    let asked = |name: &str| {
        let done = world.says(name, "Done");
        let of = |capture: &kstrobe::capture::store::Capture| Some(capture.id.as_str()) == done["id"].as_str();
        let capture = world.rules.service().list().into_iter().find(of).expect("the capture that the object names");
        capture.request["pods"].clone()
    };
    assert_eq!(asked("shops"), json!(["shop/mysql-0"]));
    assert_eq!(asked("all"), json!(["bank/mysql-0", "shop/mysql-0"]));
    let none = world.api.get("apis/kstrobe.dev/v1alpha1/captures", "kstrobe", "none").unwrap();
    assert_eq!((&none["status"], world.captures()), (&Value::Null, 2), "a node without such pods says nothing");
}

#[test]
fn a_capture_ends_with_its_object_and_begins_at_its_time() {
    let world = world(|_| {});
    let gone = object("gone", json!({"nodeName": "n1", "capture": {"events": "slow", "duration": "50s"}}));
    world.api.put(gone.clone());
    world.says("gone", "Running");
    world.api.remove(&gone);
    until("it is cancelled", || world.rules.service().usage().running == 0);
    // Three seconds ahead, to the second: that is what the capture itself is told.
    let at = text(now() + Duration::from_secs(3));
    world.api.put(object("later", json!({"nodeName": "n1", "startAt": at, "capture": {"events": "quick"}})));
    world.says("later", "Done");
    let capture = world.rules.service().list().remove(0);
    assert_eq!(capture.request["start_at"].as_str().unwrap(), at);
    assert!(capture.started_unix_ms > 0 && UNIX_EPOCH < SystemTime::now());
}

#[test]
fn a_second_object_waits_for_its_turn() {
    let world = world_of(1, |_| {});
    let slow = object("first", json!({"nodeName": "n1", "capture": {"events": "slow", "duration": "50s"}}));
    world.api.put(slow.clone());
    world.says("first", "Running");
    world.api.put(object("second", json!({"nodeName": "n1", "capture": {"events": "quick"}})));
    let third = object("third", json!({"nodeName": "n1", "capture": {"events": "quick"}}));
    world.api.put(third.clone());
    let queued = world.says("second", "Pending");
    assert_eq!(queued["message"], "queued: a capture runs already (`captures.max_concurrent`)");
    world.says("third", "Pending");
    world.api.remove(&third);
    let refused = |world: &World| world.rules.service().usage().ended.iter().any(|(_, result, _)| *result == "refused");
    assert!(!refused(&world), "to wait is not to be refused");
    world.api.remove(&slow);
    world.says("second", "Done");
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(world.captures(), 2, "what was removed in the queue never begins");
}

#[test]
fn conditions_and_events_say_what_became_of_an_object() {
    let world = world(|api| {
        _ = api.put(object("fine", json!({"nodeName": "n1", "capture": {"events": "quick"}})));
        _ = api.put(object("wrong", json!({"nodeName": "n1", "capture": {"evnts": "quick"}})));
    });
    let conditions = |name: &str| {
        let mut found = Value::Null;
        until("the conditions", || {
            let object = world.api.get("apis/kstrobe.dev/v1alpha1/captures", "kstrobe", name).unwrap();
            found = object["status"]["conditions"].clone();
            found[0]["status"] == "True"
        });
        let words = |at: usize| ["type", "status", "reason"].map(|key| found[at][key].as_str().unwrap().to_owned());
        (words(0), words(1), found[1]["message"].as_str().unwrap().to_owned())
    };
    let (complete, failed, _) = conditions("fine");
    assert_eq!(complete, ["Complete", "True", "Ended"]);
    assert_eq!(failed, ["Failed", "False", "NoFailure"]);
    let (_, failed, message) = conditions("wrong");
    assert_eq!(failed, ["Failed", "True", "Refused"]);
    assert!(message.starts_with("n1: ") && message.contains("did you mean `events`?"), "{message}");
    let events = |of: &str| -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let all = world.api.all("api/v1/events").into_iter();
        let own = all.filter(|event| event["involvedObject"]["uid"] == format!("uid-{of}"));
        own.map(|event| (text(&event["type"]), text(&event["reason"]))).collect()
    };
    let has = |of: &str, kind: &str, reason: &str| events(of).contains(&(kind.to_owned(), reason.to_owned()));
    until("the event of its end", || has("fine", "Normal", "Done"));
    until("the event of its refusal", || has("wrong", "Warning", "Refused"));
    assert_eq!(events("wrong").len(), 1, "one event a state");
}

#[test]
fn the_object_of_an_alert_goes_when_it_has_served() {
    let world = world(|api| {
        let aged = |name: &str, minutes: u64, spec: Value, status: Value| {
            let mut object = object(name, spec);
            object["metadata"]["creationTimestamp"] = json!(text(now() - Duration::from_secs(60 * minutes)));
            object["status"] = json!({"nodes": {"n1": status}});
            object
        };
        let of = |node: &str| json!({"nodeName": node, "alert": {"name": "Slow", "fingerprint": "a", "startsAt": "x"}});
        let refused = json!({"state": "Refused", "message": "the alert gets no capture: cooldown"});
        api.put(aged("over", 11, of("n1"), refused.clone()));
        api.put(aged("young", 9, of("n1"), refused.clone()));
        api.put(aged("elsewhere", 11, of("n2"), refused.clone()));
        api.put(aged("by-hand", 11, json!({"nodeName": "n1", "capture": {"events": "quick"}}), refused));
    });
    let there = |name: &str| world.api.get("apis/kstrobe.dev/v1alpha1/captures", "kstrobe", name).is_some();
    until("the end of the object", || !there("over"));
    std::thread::sleep(Duration::from_millis(1500));
    assert!(there("young") && there("elsewhere") && there("by-hand"));
}
