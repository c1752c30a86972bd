//! Alerts that come to an agent and are about another one's node.

use super::api::{Server, TOKEN};
use super::world::{Folder, until};
use kstrobe::kubernetes::capture_controller::{self, Objects};
use kstrobe::kubernetes::other_nodes::OtherNodes;
use kstrobe_fake_api::{FakeApi, Fault};
use kstrobe_fleet::route::Me;
use kstrobe_kube::{Client, Config, Counters, Env, Wanted};
use serde_json::{Value, json};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;

const PATH: &str = "/api/v1/captures/alertmanager";

/// Agents of nodes n1 and n2, of which the second follows `Capture` objects; the pod of n3 has no agent in it.
struct Two {
    api: FakeApi,
    first: Server,
    second: Server,
    _runtime: tokio::runtime::Runtime,
    _folder: Folder,
}

fn pod(node: u8) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "kstrobe", "name": format!("kstrobe-{node}"), "uid": format!("uid-{node}"), "labels": {"app.kubernetes.io/part-of": "kstrobe", "app.kubernetes.io/component": "agent"}},
        "spec": {"nodeName": format!("n{node}"), "containers": []},
        "status": {"phase": "Running", "podIP": format!("127.0.0.{node}")},
    })
}

fn two(objects: bool) -> Two {
    let folder = Folder::new();
    let api = FakeApi::start();
    (1..=3).for_each(|node| _ = api.put(pod(node)));
    let file = folder.0.join("kubeconfig");
    std::fs::write(&file, api.kubeconfig()).unwrap();
    let wanted = Wanted { kubeconfig: Some(file), ..Wanted::default() };
    let client = Client::new(Config::find(&wanted, &Env::own()).unwrap(), "test").unwrap();
    // A port that is free on all of them.
    let port = TcpListener::bind("0.0.0.0:0").unwrap().local_addr().unwrap().port();
    let server = |node: u8| {
        let me = Me {
            node: format!("n{node}"),
            names: vec![format!("kstrobe-{node}")],
            addresses: vec![format!("127.0.0.{node}")],
        };
        let other_nodes = Arc::new(OtherNodes::new(client.clone(), "kstrobe", me, objects));
        Server::on(SocketAddr::from((Ipv4Addr::new(127, 0, 0, node), port)), Some(other_nodes))
    };
    let (first, second) = (server(1), server(2));
    let rules = second.rules.clone();
    let followed = Objects {
        client: client.clone(),
        namespace: "kstrobe".into(),
        node: "n2".into(),
        captures: Box::new(move || rules.clone()),
        counters: Arc::new(Counters::default()),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    if objects {
        runtime.spawn(capture_controller::run(followed));
    }
    Two { first, second, api, _runtime: runtime, _folder: folder }
}

fn alert(fingerprint: &str, label: &str, value: &str) -> Value {
    json!({
        "status": "firing", "labels": {"alertname": "Slow", "kstrobe_rule": "by_alert", label: value},
        "startsAt": "2026-11-21T12:36:26Z", "fingerprint": fingerprint, "generatorURL": "kept as it came",
    })
}

fn post(server: &Server, alerts: &[Value]) -> Vec<Value> {
    let body = json!({"version": "4", "status": "firing", "alerts": alerts}).to_string();
    let answer = server.ask("POST", PATH, &format!("Authorization: Bearer {TOKEN}\r\n"), body.as_bytes());
    assert_eq!(answer.0, 202, "{}", answer.2);
    answer.json()["results"].as_array().unwrap().clone()
}

fn captures(server: &Server) -> usize {
    server.rules.as_ref().unwrap().service().list().len()
}

fn words(result: &Value) -> (Value, Value) {
    (result["fingerprint"].clone(), result["result"].clone())
}

fn object(api: &FakeApi, name: &str) -> Option<Value> {
    api.get("apis/kstrobe.dev/v1alpha1/captures", "kstrobe", name)
}

#[test]
fn an_alert_reaches_its_node_by_an_object() {
    let two = two(true);
    let other = alert("aA1", "instance", "127.0.0.2:9100");
    let results = post(&two.first, &[alert("b", "node", "n9"), other.clone(), alert("c", "node", "n3")]);
    let named: Vec<_> = results.iter().map(words).collect();
    let expected = [("b", "unknown_node"), ("aA1", "handed_on"), ("c", "handed_on")];
    assert_eq!(named, expected.map(|(alert, result)| (json!(alert), json!(result))));
    assert_eq!(
        (&results[1]["node"], &results[1]["capture"]),
        (&json!("n2"), &json!("kstrobe/alert-aa1-20261121t123626z"))
    );
    let counts = two.first.rules.as_ref().unwrap().counts();
    let count = |result, count| ("by_alert".to_owned(), result, count);
    assert_eq!(counts, [count("handed_on", 2), count("unknown_node", 1)]);
    until("the capture", || captures(&two.second) == 1);
    assert_eq!(captures(&two.first), 0);
    let capture = two.second.rules.as_ref().unwrap().service().list().remove(0);
    let trigger = &capture.trigger;
    let expected = ("alertmanager", "by_alert", "Capture kstrobe/alert-aa1-20261121t123626z");
    assert_eq!((trigger.kind.as_str(), trigger.rule.as_str(), trigger.client.as_str()), expected);
    until("its end", || {
        let object = object(&two.api, "alert-aa1-20261121t123626z").unwrap();
        object["status"]["nodes"]["n2"]["id"] == *capture.id && object["status"]["nodes"]["n2"]["state"] == "Done"
    });
    // It comes again, to another agent perhaps.
    assert_eq!(post(&two.first, std::slice::from_ref(&other))[0]["result"], "duplicate");
    assert_eq!(two.api.count("list pods"), 1, "agents are listed once in a while");
    let own = post(&two.second, &[alert("d", "node", "n2"), alert("e", "severity", "page")]);
    assert_eq!(own[0]["result"], "cooldown", "its rule has had a capture, whichever way the alert came");
    // Of two alerts, and of one of them again.
    assert_eq!(two.api.count("create captures"), 3, "what is its own needs no object");
}

#[test]
fn no_credential_of_an_alert_leaves_its_agent() {
    let two = two(true);
    let results = post(&two.first, &[alert("a", "node", "n2")]);
    assert_eq!(results[0]["result"], "handed_on");
    let object = object(&two.api, "alert-a-20261121t123626z").unwrap();
    assert!(!object.to_string().contains(TOKEN), "{object}");
    assert_eq!(
        object["spec"]["alert"],
        json!({"name": "Slow", "rule": "by_alert", "fingerprint": "a", "startsAt": "2026-11-21T12:36:26Z"})
    );
    let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "kstrobe-2", "uid": "uid-2"}]);
    assert_eq!(object["metadata"]["ownerReferences"], owner, "it goes with the pod that has the files");
    until("the capture", || captures(&two.second) == 1);
}

#[test]
fn without_custom_resources_another_node_is_unknown() {
    let off = two(false);
    let results = post(&off.first, &[alert("a", "node", "n2")]);
    assert_eq!(results[0]["result"], "unknown_node");
    assert!(results[0]["reason"].as_str().unwrap().contains("customResources.enabled"), "{results:?}");
    let absent = two(true);
    absent.api.next("create captures", Fault::Text(404, "404 page not found\n"));
    let results = post(&absent.first, &[alert("a", "node", "n2")]);
    assert_eq!(results[0]["result"], "unknown_node");
    absent.api.forbid("create captures");
    let results = post(&absent.first, &[alert("a", "node", "n2")]);
    assert_eq!(results[0]["result"], "unreachable");
    assert!(results[0]["reason"].as_str().unwrap().contains("`n2`"), "{results:?}");
}

#[test]
fn without_an_api_server_the_own_node_is_still_served() {
    let two = two(true);
    two.api.set_down(true);
    let results = post(&two.first, &[alert("a", "node", "n2"), alert("b", "node", "n1")]);
    assert_eq!(results[0]["result"], "unreachable");
    assert!(results[0]["reason"].as_str().unwrap().contains("cannot be found out"), "{results:?}");
    assert_eq!(results[1]["result"], "started");
}
