//! Alerts that come to an agent and are about another one's node.

use super::api::{Server, TOKEN};
use super::world::Folder;
use kstrobe::neighbours::Neighbours;
use kstrobe_fake_api::FakeApi;
use kstrobe_fleet::route::Me;
use kstrobe_kube::{Client, Config, Surroundings, Wanted};
use serde_json::{Value, json};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;

const PATH: &str = "/api/v1/captures/alertmanager";

/// Agents of nodes n1 and n2 on one port of two loopback addresses; the pod of n3 runs, and nobody listens there.
struct Two {
    api: FakeApi,
    first: Server,
    second: Server,
    _folder: Folder,
}

fn pod(node: u8) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "kstrobe", "name": format!("kstrobe-{node}"), "labels": {"app.kubernetes.io/part-of": "kstrobe", "app.kubernetes.io/component": "agent"}},
        "spec": {"nodeName": format!("n{node}"), "containers": []},
        "status": {"phase": "Running", "podIP": format!("127.0.0.{node}")},
    })
}

fn two() -> Two {
    let folder = Folder::new();
    let api = FakeApi::start();
    (1..=3).for_each(|node| _ = api.put(pod(node)));
    let file = folder.0.join("kubeconfig");
    std::fs::write(&file, api.kubeconfig()).unwrap();
    let wanted = Wanted { kubeconfig: Some(file), ..Wanted::default() };
    let client = Client::new(Config::find(&wanted, &Surroundings::own()).unwrap(), "test").unwrap();
    // A port that is free on all of them.
    let port = TcpListener::bind("0.0.0.0:0").unwrap().local_addr().unwrap().port();
    let server = |node: u8| {
        let me = Me {
            node: format!("n{node}"),
            names: vec![format!("kstrobe-{node}")],
            addresses: vec![format!("127.0.0.{node}")],
        };
        let neighbours = Arc::new(Neighbours::new(client.clone(), "kstrobe", me, port, false));
        Server::on(SocketAddr::from((Ipv4Addr::new(127, 0, 0, node), port)), Some(neighbours))
    };
    Two { first: server(1), second: server(2), api, _folder: folder }
}

fn alert(fingerprint: &str, label: &str, value: &str) -> Value {
    json!({
        "status": "firing", "labels": {"alertname": "Slow", "kstrobe_rule": "by_alert", label: value},
        "startsAt": "2026-11-21T12:36:26Z", "fingerprint": fingerprint, "generatorURL": "kept as it came",
    })
}

fn post(server: &Server, headers: &str, alerts: &[Value]) -> Vec<Value> {
    let body = json!({"version": "4", "status": "firing", "alerts": alerts}).to_string();
    let answer = server.ask("POST", PATH, &format!("Authorization: Bearer {TOKEN}\r\n{headers}"), body.as_bytes());
    assert_eq!(answer.0, 202, "{}", answer.2);
    answer.json()["results"].as_array().unwrap().clone()
}

fn captures(server: &Server) -> usize {
    server.desk.as_ref().unwrap().service().list().len()
}

#[test]
fn an_alert_is_handed_on_to_the_agent_of_its_node() {
    let two = two();
    let other = alert("a", "instance", "127.0.0.2:9100");
    let unknown = alert("b", "node", "n9");
    let results = post(&two.first, "", &[unknown.clone(), other.clone(), alert("c", "node", "n3")]);
    let words = |result: &Value| (result["fingerprint"].clone(), result["result"].clone());
    assert_eq!(words(&results[0]), (json!("b"), json!("unknown_node")));
    assert_eq!(words(&results[1]), (json!("a"), json!("started")));
    assert_eq!(results[1]["node"], "n2");
    assert_eq!(words(&results[2]), (json!("c"), json!("unreachable")));
    assert!(results[2]["reason"].as_str().unwrap().contains("`n3`"), "{results:?}");
    assert_eq!((captures(&two.first), captures(&two.second)), (0, 1));
    let service = two.second.desk.as_ref().unwrap().service().clone();
    let capture = service.list().remove(0);
    assert_eq!(Some(capture.id.as_str()), results[1]["capture_id"].as_str());
    assert_eq!(capture.trigger.kind, "alertmanager");
    // Counted where it was lost.
    let counts = two.first.desk.as_ref().unwrap().counts();
    let expected = [("by_alert".to_owned(), "unknown_node", 1), ("by_alert".to_owned(), "unreachable", 1)];
    assert_eq!(counts, expected);
    // The other one knows it, by whatever way it comes.
    let again = post(&two.first, "", std::slice::from_ref(&other));
    assert!(matches!(again[0]["result"].as_str(), Some("duplicate")), "{again:?}");
    assert_eq!(two.api.count("list pods"), 1, "agents are listed once in a while");
}

#[test]
fn what_was_handed_on_stays() {
    let two = two();
    // Two agents that took one another for the right one would hand it to and fro.
    let results = post(&two.first, "X-Kstrobe-Forwarded: 1\r\n", &[alert("a", "node", "n2")]);
    assert_eq!(results[0]["result"], "started");
    assert_eq!((captures(&two.first), captures(&two.second)), (1, 0));
    // Nobody is named, or we are: nobody is asked.
    let own = post(&two.second, "", &[alert("b", "node", "n2"), alert("c", "severity", "page")]);
    assert_eq!(own[0]["result"], "started");
    assert_eq!(two.api.count("list pods"), 0);
}

#[test]
fn without_an_api_server_the_own_node_is_still_served() {
    let two = two();
    two.api.set_down(true);
    let results = post(&two.first, "", &[alert("a", "node", "n2"), alert("b", "node", "n1")]);
    assert_eq!(results[0]["result"], "unreachable");
    assert!(results[0]["reason"].as_str().unwrap().contains("cannot be found out"), "{results:?}");
    assert_eq!(results[1]["result"], "started");
}
