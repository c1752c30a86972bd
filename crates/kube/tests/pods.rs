//! Pods of a node by a watch: after any failure the sent pods match the server.

mod support;

use kstrobe_fake_api::{End, FakeApi, Fault, objects};
use kstrobe_kube::watch::{Change, Watched, follow};
use kstrobe_kube::{Client, Config, Counters};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::following::Following;
use support::{Folder, client, service_account, until};

/// An API server with the pods of `node-a`, and one of another node.
fn cluster() -> FakeApi {
    let api = FakeApi::start();
    objects::node_a().into_iter().for_each(|pod| drop(api.put(pod)));
    let mut elsewhere = objects::web();
    elsewhere["metadata"]["name"] = json!("web-5d8f7c9b6d-other");
    elsewhere["metadata"]["uid"] = json!("00000000-1111-4222-8333-444444444444");
    elsewhere["spec"]["nodeName"] = json!("node-b");
    api.put(elsewhere);
    api
}

/// The cluster, followed, with the first watch open.
async fn followed() -> (FakeApi, Following) {
    let api = cluster();
    let following = Following::api(client(&api));
    following.agrees(&api).await;
    until("a watch", || api.watches() == 1).await;
    (api, following)
}

/// Something of everything: one new, one changed, one gone, one with the name of another that is gone.
fn upheaval(api: &FakeApi) {
    let mut new = objects::mysql();
    new["metadata"]["name"] = json!("mysql-1");
    new["metadata"]["uid"] = json!("3f7b2a90-5c1d-4e8e-8a55-000000000001");
    api.put(new);
    let mut changed = objects::web_pending();
    changed["status"]["containerStatuses"][0]["containerID"] = json!("containerd://".to_owned() + &"e".repeat(64));
    changed["status"]["containerStatuses"][0]["state"] = json!({"running": {}});
    api.put(changed);
    api.remove(&objects::web_terminating());
    api.remove(&objects::toolbox());
    let mut again = objects::toolbox();
    again["metadata"]["uid"] = json!("99990000-1111-4222-8333-999999999999");
    api.put(again);
}

#[tokio::test]
async fn pods_of_the_node_and_their_changes() {
    let (api, following) = followed().await;
    assert_eq!(following.pods().len(), 10);
    upheaval(&api);
    following.agrees(&api).await;
    assert_eq!(following.pods().len(), 10);
    assert_eq!((api.count("list pods"), api.count("watch pods")), (1, 1));
    let uris: Vec<String> = api.asked().into_iter().filter(|a| a.what.ends_with(" pods")).map(|a| a.uri).collect();
    assert_eq!(uris[0], "/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-a&limit=500&resourceVersion=0");
    assert!(uris[1].contains("fieldSelector=spec.nodeName%3Dnode-a&watch=true&allowWatchBookmarks=true"), "{uris:?}");
    assert!(uris[1].contains("&resourceVersion=1011"), "{uris:?}");
}

#[tokio::test]
async fn more_pods_than_a_page_has() {
    let api = cluster();
    let many = |from: u32, to: u32| {
        for number in from..to {
            let mut pod = objects::web_pending();
            pod["metadata"]["name"] = json!(format!("web-5d8f7c9b6d-{number:05}"));
            pod["metadata"]["uid"] = json!(format!("abcdabcd-1111-4222-8333-{number:012}"));
            api.put(pod);
        }
    };
    many(0, 1090);
    // The second page is of a version that is gone, as of a slow client: the list begins anew.
    api.next("list pods", Fault::Late(Duration::ZERO));
    api.next("list pods", Fault::Status(410, "Expired", "The provided continue parameter is too old"));
    let following = Following::api(client(&api));
    following.agrees(&api).await;
    assert_eq!(following.pods().len(), 1100);
    assert_eq!((api.count("list pods"), following.synced()), (5, 1));
    let lists: Vec<String> = api.asked().into_iter().filter(|a| a.what == "list pods").map(|a| a.uri).collect();
    // The first from the cache, the second try by quorum.
    let versions: Vec<bool> = lists.iter().map(|uri| uri.contains("resourceVersion=0")).collect();
    assert_eq!(versions, [true, false, false, false, false]);
}

#[tokio::test]
async fn watches_that_end_go_on_where_they_were() {
    let (api, following) = followed().await;
    for (number, end) in [End::Clean, End::Cut, End::Error(500, "InternalError"), End::Cut].into_iter().enumerate() {
        api.end_watches(end);
        // Changes while no watch is open.
        let mut pod = objects::web();
        pod["metadata"]["labels"]["round"] = json!(number.to_string());
        api.put(pod);
        following.agrees(&api).await;
        until("the next watch", || api.watches() == number as u64 + 2).await;
    }
    assert_eq!(api.count("list pods"), 1, "no event was lost: nothing to list again");
    assert_eq!(following.failed("watch", "connection"), 2);
    assert_eq!(following.failed("watch", "server_error"), 1);
}

#[tokio::test]
async fn a_version_that_is_gone_is_a_new_list() {
    for by_http in [false, true] {
        let (api, following) = followed().await;
        api.set_gone_by_http(by_http);
        // No watch reports this: the history has expired before the next one.
        api.next("watch pods", Fault::Status(500, "InternalError", "later"));
        api.end_watches(End::Cut);
        until("the end", || api.faults_left() == 0).await;
        upheaval(&api);
        api.compact();
        following.agrees(&api).await;
        assert_eq!((api.count("list pods"), following.synced()), (2, 2), "by_http: {by_http}");
        assert_eq!(following.failed("watch", "gone"), 1, "by_http: {by_http}");
        // And it watches again.
        upheaval(&api);
        following.agrees(&api).await;
        assert_eq!(api.count("list pods"), 2);
    }
}

#[tokio::test]
async fn a_watch_that_is_told_of_410_on_the_way() {
    let (api, following) = followed().await;
    api.end_watches(End::Error(410, "Expired"));
    upheaval(&api);
    // The watch may still have sent it before its end.
    until("another list", || (api.count("list pods"), following.failed("watch", "gone")) == (2, 1)).await;
    following.agrees(&api).await;
}

#[tokio::test]
async fn bookmarks_keep_a_quiet_watch_from_a_new_list() {
    let (api, following) = followed().await;
    // Others change, of which this watch hears nothing.
    let mut elsewhere = objects::web();
    elsewhere["metadata"]["name"] = json!("web-5d8f7c9b6d-other");
    elsewhere["metadata"]["uid"] = json!("00000000-1111-4222-8333-444444444444");
    elsewhere["spec"]["nodeName"] = json!("node-b");
    api.put(elsewhere);
    api.bookmark();
    until("the bookmark", || following.counters.counts().event("bookmarks") == 1).await;
    api.compact();
    api.end_watches(End::Clean);
    upheaval(&api);
    following.agrees(&api).await;
    assert_eq!(api.count("list pods"), 1);
}

#[tokio::test]
async fn lines_that_are_no_events_lead_to_a_new_list() {
    let (api, following) = followed().await;
    api.end_watches(End::Garbage);
    until("the failure", || following.failed("watch", "bad_answer") == 1).await;
    upheaval(&api);
    following.agrees(&api).await;
    assert_eq!(api.count("list pods"), 2);
    // Events that we do not know, and objects that are no pods, are passed over.
    let mut strange = objects::web();
    strange["metadata"]["name"] = json!("");
    strange["metadata"]["uid"] = json!("00000000-0000-4000-8000-000000000001");
    api.put(strange);
    upheaval(&api);
    until("it is counted", || following.counters.counts().event("objects_unreadable") == 1).await;
    following.agrees(&api).await;
    assert_eq!(api.count("list pods"), 2);
}

#[tokio::test]
async fn a_server_that_is_away() {
    let (api, following) = followed().await;
    api.set_down(true);
    until("failures", || following.counters.counts().failures.values().sum::<u64>() >= 2).await;
    assert_eq!(following.pods().len(), 10, "what was known stays");
    upheaval(&api);
    api.set_down(false);
    following.agrees(&api).await;
    assert_eq!(api.count("list pods"), 1);
}

#[tokio::test]
async fn a_server_that_is_slow() {
    let api = cluster();
    api.set_drip(Some((1499, Duration::from_millis(2))));
    api.next("list pods", Fault::Late(Duration::from_millis(300)));
    let following = Following::api(client(&api));
    following.agrees(&api).await;
    // Each line in pieces of some bytes.
    api.set_drip(Some((37, Duration::ZERO)));
    api.end_watches(End::Clean);
    upheaval(&api);
    following.agrees(&api).await;
    let counts = following.counters.counts();
    assert_eq!((counts.event("objects_unreadable"), counts.failure("watch", "bad_answer")), (0, 0));
}

#[tokio::test]
async fn a_server_that_says_nothing_any_more() {
    let api = cluster();
    let counters = Arc::new(Counters::default());
    let (sender, mut changes) = tokio::sync::mpsc::channel(64);
    let watched = Watched { lasting: Duration::from_secs(1), ..Watched::new("pods", "/api/v1/pods".into()) };
    let name = |object: &Value| object["metadata"]["name"].as_str().map(str::to_owned);
    let following = tokio::spawn(follow(client(&api), watched, name, counters.clone(), sender));
    let mut take = async || -> Vec<String> {
        let mut names = Vec::new();
        while let Some(Change::Seen(name)) = changes.recv().await {
            names.push(name);
        }
        names
    };
    assert_eq!(take().await.len(), 11);
    until("a watch", || api.watches() == 1).await;
    api.end_watches(End::Silence);
    let begun = Instant::now();
    until("another watch", || counters.counts().failure("watch", "timeout") == 1).await;
    assert!(begun.elapsed() < Duration::from_secs(10));
    // The loop ends when the receiver is closed, also during a pause.
    drop(changes);
    tokio::time::timeout(Duration::from_secs(5), following).await.expect("its end").unwrap();
}

#[tokio::test]
async fn rights_that_are_lost_and_come_back() {
    let api = cluster();
    api.forbid("list pods");
    let following = Following::api(client(&api));
    until("refusals", || following.failed("list", "forbidden") >= 2).await;
    assert_eq!(following.synced(), 0);
    api.permit("list pods");
    // Without the right to watch it lists now and then.
    api.forbid("watch pods");
    following.agrees(&api).await;
    upheaval(&api);
    following.agrees(&api).await;
    assert!(following.failed("watch", "forbidden") >= 1 && api.count("list pods") >= 4);
    api.permit("watch pods");
    until("a watch", || api.watches() == 1).await;
}

#[tokio::test]
async fn a_token_that_ends_during_a_watch() {
    let (api, folder) = (cluster(), Folder::new());
    let config = Config::in_cluster(&service_account(&api, &folder)).unwrap();
    let following = Following::api(Client::new(config, "kstrobe/test").unwrap());
    following.agrees(&api).await;
    until("a watch", || api.watches() == 1).await;
    api.set_token("the-next");
    api.end_watches(End::Clean);
    until("refusals", || following.failed("watch", "unauthorized") >= 1).await;
    upheaval(&api);
    folder.write("account/token", "the-next");
    following.agrees(&api).await;
    assert_eq!(api.count("list pods"), 1, "the watch went on");
}

#[tokio::test]
async fn a_server_that_is_busy_says_when_to_come_again() {
    let api = cluster();
    api.next("list pods", Fault::TooMany(3));
    api.next("list pods", Fault::Text(502, "bad gateway"));
    api.next("list pods", Fault::Body(json!({"kind": "PodList"})));
    api.next("list pods", Fault::Close);
    let begun = Instant::now();
    let following = Following::api(client(&api));
    following.agrees(&api).await;
    assert!(begun.elapsed() >= Duration::from_secs(3));
    for reason in ["throttled", "server_error", "bad_answer", "connection"] {
        assert_eq!(following.failed("list", reason), 1, "{reason}: {:?}", following.counters.counts());
    }
}

#[tokio::test]
async fn ambiguous_owners_are_looked_up_once() {
    let api = cluster();
    for object in [objects::web_replicaset(), objects::backup_job(), objects::import_job()] {
        api.put(object);
    }
    api.next("get jobs", Fault::Close);
    let following = Following::api(client(&api));
    let is = |name: &str, workload: &str| following.workload(name).as_deref() == Some(workload);
    // By its name it would be of a CronJob `import`.
    until("the job's owner", || is("import-20261120-k2m9x", "Job import-20261120")).await;
    until("the CronJob", || is("backup-29384756-r8s2k", "CronJob backup")).await;
    assert!(is("web-5d8f7c9b6d-x7k2p", "Deployment web") && is("checkout-68d9c7f5b-tq4wz", "Rollout checkout"));
    assert_eq!(api.count("get replicasets"), 0, "the hash in the labels leaves no doubt");
    let requests = api.count("get jobs");
    let mut pod = objects::import();
    pod["metadata"]["labels"]["round"] = json!("2");
    let changes = following.changes();
    api.put(pod);
    until("the change", || following.changes() > changes).await;
    assert!(is("import-20261120-k2m9x", "Job import-20261120"));
    assert_eq!(api.count("get jobs"), requests);
}

#[tokio::test]
async fn without_permission_owners_are_derived_from_names() {
    let api = cluster();
    api.forbid("get jobs");
    let following = Following::api(client(&api));
    following.agrees(&api).await;
    until("refusals", || following.failed("owner", "forbidden") >= 1).await;
    assert_eq!(following.workload("import-20261120-k2m9x").as_deref(), Some("CronJob import"));
    let requests = api.count("get jobs");
    let mut other = objects::import();
    other["metadata"]["name"] = json!("import-20261121-aaaaa");
    other["metadata"]["uid"] = json!("22223333-4444-4555-8666-000000000000");
    other["metadata"]["ownerReferences"][0]["name"] = json!("import-20261121");
    api.put(other);
    following.agrees(&api).await;
    assert!(requests <= 2 && api.count("get jobs") == requests, "the lookup is not repeated at once");
}
