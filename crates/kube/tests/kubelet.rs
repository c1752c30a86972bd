//! Pods of a node from its kubelet.

mod support;

use kstrobe_fake_api::{FakeApi, FakeKubelet, Fault, objects};
use kstrobe_kube::config::Pem;
use kstrobe_kube::pods::{Kubelet, Source};
use kstrobe_kube::{Client, Config};
use serde_json::json;
use std::time::Duration;
use support::following::Following;
use support::{Folder, client, service_account, until};

fn kubelet(kubelet: &FakeKubelet, ca: Option<Pem>, insecure: bool) -> Kubelet {
    let (api, folder) = (FakeApi::start(), Folder::new());
    let mut config = Config::in_cluster(&service_account(&api, &folder)).unwrap();
    // The folder goes with this function.
    config.auth = kstrobe_kube::config::Auth::Token(kstrobe_kube::config::Secret(kubelet.token()));
    config.timeout = Duration::from_secs(2);
    let config = config.kubelet(kubelet.url().parse().unwrap(), ca, insecure);
    let client = Client::new(config, "kstrobe/test").unwrap();
    Kubelet { every: Duration::from_millis(100), ..Kubelet::new(client) }
}

#[tokio::test]
async fn pods_come_change_and_go() {
    let node = FakeKubelet::start();
    node.set_pods(vec![objects::web(), objects::etcd_kubelet(), objects::mysql()]);
    let kubelet = kubelet(&node, None, true);
    let following = Following::start(Source::Kubelet { kubelet, api: None });
    until("the pods", || following.pods().len() == 3).await;
    let etcd = following.pods()["8f3c1b7a5d9e2f4c6a8b0d1e3f5a7c9b"].pod.clone();
    assert_eq!(etcd.config_hash.as_deref(), Some("8f3c1b7a5d9e2f4c6a8b0d1e3f5a7c9b"));

    // The same again is no change.
    let (changes, synced) = (following.changes(), following.synced());
    until("more lists", || following.synced() > synced + 2).await;
    assert_eq!(following.changes() - changes, following.synced() - synced);

    // A status may change before the object has another version.
    let mut web = objects::web();
    let name = web["status"]["containerStatuses"][0]["name"].clone();
    web["status"]["containerStatuses"][0]["state"] = json!({"terminated": {"exitCode": 0}});
    node.set_pods(vec![web, objects::mysql()]);
    until("what changed", || {
        let pods = following.pods();
        let web = pods.values().find(|pod| pod.labels.get("app").is_some_and(|app| app == "web"));
        let running =
            |pod: &kstrobe_kube::pods::NodePod| pod.pod.containers.iter().any(|c| *c.name == name && c.running);
        pods.len() == 2 && web.is_some_and(|web| !running(web))
    })
    .await;

    for fault in
        [Fault::Close, Fault::Text(403, "Forbidden (user=x, verb=get, resource=nodes, subresource(s)=[pods proxy])")]
    {
        node.next(fault);
    }
    node.next(Fault::Body(json!([])));
    until("failures", || {
        following.failed("kubelet", "forbidden") == 1 && following.failed("kubelet", "bad_answer") == 1
    })
    .await;
    assert_eq!(following.pods().len(), 2, "what was known stays");
    node.set_pods(Vec::new());
    until("their end", || following.pods().is_empty()).await;
}

#[tokio::test]
async fn a_certificate_that_is_looked_at() {
    let node = FakeKubelet::start();
    node.set_pods(vec![objects::web()]);
    let trusted = kubelet(&node, Some(Pem::Text(node.authority().pem().into())), false);
    let following = Following::start(Source::Kubelet { kubelet: trusted, api: None });
    until("the pod", || following.pods().len() == 1).await;

    let other = kstrobe_fake_api::Authority::default();
    let untrusted = kubelet(&node, Some(Pem::Text(other.pem().into())), false);
    let requests = node.asked();
    let refused = Following::start(Source::Kubelet { kubelet: untrusted, api: None });
    until("a failure", || refused.failed("kubelet", "connect") >= 1).await;
    drop(following);
    assert!(refused.pods().is_empty(), "{requests}");
    node.set_token("another");
    let late = kubelet(&node, None, true);
    node.set_token("yet-another");
    let unknown = Following::start(Source::Kubelet { kubelet: late, api: None });
    until("a refusal", || unknown.failed("kubelet", "unauthorized") >= 1).await;
}

#[tokio::test]
async fn owners_are_looked_up_at_the_api_server_if_configured() {
    let (node, api) = (FakeKubelet::start(), FakeApi::start());
    api.put(objects::import_job());
    node.set_pods(vec![objects::import()]);
    let source = Source::Kubelet { kubelet: kubelet(&node, None, true), api: Some(client(&api)) };
    let following = Following::start(source);
    until("the owner", || following.workload("import-20261120-k2m9x").as_deref() == Some("Job import-20261120")).await;
}
