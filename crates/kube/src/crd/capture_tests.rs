use super::*;
use crate::pods::{NodePod, pod};
use kstrobe_fake_api::objects;

const MADE: i64 = 1_795_000_000;

fn object(spec: Value) -> Capture {
    read(&json!({
        "apiVersion": "kstrobe.dev/v1alpha1", "kind": "Capture",
        "metadata": {"name": "slow", "namespace": "kstrobe", "uid": "u1", "generation": 1,
                     "creationTimestamp": super::super::to_text(MADE).unwrap()},
        "spec": spec,
    }))
    .unwrap()
}

fn with_labels<R>(node: &str, then: impl FnOnce(&Me<'_>) -> R) -> R {
    let labels = BTreeMap::from([("zone".to_owned(), "a".to_owned())]);
    let pods: Vec<NodePod> = objects::node_a().iter().filter_map(pod).collect();
    then(&Me { node, labels: &labels, pods: &pods })
}

fn of(capture: &Capture, own: Option<NodeCapture>, now: i64) -> Vec<Step> {
    let has = own.map(|own| ("u1".to_owned(), own)).into_iter().collect();
    with_labels("node-a", |me| steps(std::slice::from_ref(capture), me, &has, now))
}

fn events() -> Value {
    json!({"events": ["sched"], "duration": "5s"})
}

fn start(request: Value, at: Option<i64>) -> Vec<Step> {
    vec![Step::Start { uid: "u1".into(), name: "slow".into(), work: Work::Request(request), at }]
}

#[test]
fn nodes_that_are_meant_start_it() {
    for (spec, is_meant) in [
        (json!({"capture": events()}), true),
        (json!({"nodeName": "node-a", "capture": events()}), true),
        (json!({"nodeName": "node-b", "capture": events()}), false),
        (json!({"nodeSelector": {"matchLabels": {"zone": "a"}}, "capture": events()}), true),
        (json!({"nodeSelector": {"matchLabels": {"zone": "b"}}, "capture": events()}), false),
    ] {
        let expected = if is_meant { start(events(), None) } else { Vec::new() };
        assert_eq!(of(&object(spec.clone()), None, MADE + 1), expected, "{spec}");
    }
}

#[test]
fn pods_that_are_meant_are_put_in() {
    let request = |spec: Value| match of(&object(spec), None, MADE).pop() {
        Some(Step::Start { work: Work::Request(request), .. }) => Some(request),
        None => None,
        other => panic!("{other:?}"),
    };
    let web = json!({"matchLabels": {"app": "web"}});
    // One pod of the application has no running container yet.
    let pods = json!(["shop/web-5d8f7c9b6d-x7k2p", "shop/web-7c9d5b8f64-9pl2m"]);
    let found = request(json!({"podSelector": web, "capture": events()})).unwrap();
    assert_eq!((&found["pods"], &found["events"]), (&pods, &json!(["sched"])));
    assert_eq!(request(json!({"podSelector": web, "podNamespace": "other", "capture": events()})), None);
    assert_eq!(request(json!({"podSelector": {"matchLabels": {"app": "none"}}, "capture": events()})), None);
    // An explicit scope in `capture` wins.
    let own = json!({"events": ["sched"], "comms": ["mysqld"]});
    assert_eq!(request(json!({"podSelector": web, "capture": own.clone()})), Some(own));
}

#[test]
fn a_common_start_and_captures_of_long_ago() {
    let text = |seconds| super::super::to_text(seconds).unwrap();
    let later = object(json!({"startAt": text(MADE + 60), "capture": events()}));
    assert_eq!(of(&later, None, MADE + 2), start(events(), Some(MADE + 60)));
    assert_eq!(of(&later, None, MADE + 61), start(events(), None), "a little late is not too late");
    assert_eq!(of(&later, None, MADE + 361), []);
    let now = object(json!({"capture": events()}));
    assert_eq!(of(&now, None, MADE + 300), start(events(), None));
    assert_eq!(of(&now, None, MADE + 301), []);
    // A `startAt` in the past does not close the start window of a new object.
    let past = object(json!({"startAt": text(MADE - 9999), "capture": events()}));
    assert_eq!(of(&past, None, MADE + 1), start(events(), None));
}

fn report(steps: Vec<Step>) -> Value {
    match steps.as_slice() {
        [Step::Report(report)] => report.patch(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn invalid_specs_are_refused_with_a_message() {
    for (spec, part) in [
        (json!({"startAt": "soon", "capture": events()}), "startAt: `soon` is no time"),
        (json!({"nodeNam": "node-a", "capture": events()}), "unknown field `nodeNam`"),
        (json!({}), "either `capture` or `alert`"),
        (json!({"capture": events(), "alert": {"name": "Slow"}}), "and not both"),
    ] {
        let patch = report(of(&object(spec), None, MADE));
        let entry = &patch["status"]["nodes"]["node-a"];
        assert_eq!(entry["state"], "Refused");
        assert!(entry["message"].as_str().unwrap().contains(part), "{entry}");
    }
}

#[test]
fn the_status_follows_the_agent() {
    let mut capture = object(json!({"capture": events()}));
    let running = NodeCapture { state: CaptureState::Running, id: Some("c-1".into()), ..NodeCapture::default() };
    let patch = report(of(&capture, Some(running.clone()), MADE));
    assert_eq!(patch["status"]["nodes"]["node-a"]["state"], "Running");
    assert_eq!(
        patch["status"]["nodes"]["node-a"]["message"],
        Value::Null,
        "the message of an earlier state is removed"
    );
    capture.nodes.insert("node-a".into(), running.clone());
    capture.nodes.insert("node-b".into(), NodeCapture::ended(CaptureState::Failed, "x"));
    assert_eq!(of(&capture, Some(running.clone()), MADE), []);
    let done = NodeCapture { state: CaptureState::Done, bytes: Some(4096), ..running };
    assert_eq!(report(of(&capture, Some(done.clone()), MADE))["status"]["nodes"]["node-a"]["bytes"], 4096);
    capture.nodes.insert("node-a".into(), done.clone());
    assert_eq!(of(&capture, Some(done), MADE), []);
    // A final state survives an agent restart.
    assert_eq!(of(&capture, None, MADE + 1), []);
    assert_eq!(summary(&capture.nodes), json!({"running": 0, "done": 1, "failed": 1}));
}

#[test]
fn an_agent_that_was_started_again_has_lost_it() {
    let mut capture = object(json!({"capture": events()}));
    let running = NodeCapture { state: CaptureState::Running, id: Some("c-1".into()), ..NodeCapture::default() };
    capture.nodes.insert("node-a".into(), running);
    let entry = report(of(&capture, None, MADE + 1))["status"]["nodes"]["node-a"].take();
    assert_eq!((&entry["state"], &entry["id"]), (&json!("Failed"), &json!("c-1")));
    assert!(entry["message"].as_str().unwrap().starts_with("interrupted"));
}

#[test]
fn an_object_that_is_gone_ends_its_capture() {
    let running = NodeCapture { state: CaptureState::Running, ..NodeCapture::default() };
    let mut capture = object(json!({"capture": events()}));
    capture.head.deleting = true;
    let cancel = vec![Step::Cancel { uid: "u1".into() }];
    assert_eq!(of(&capture, Some(running.clone()), MADE), cancel);
    // A recreated object has another uid.
    capture.head.deleting = false;
    capture.head.uid = "u2".into();
    let both = of(&capture, Some(running), MADE);
    assert!(matches!(both.as_slice(), [Step::Cancel { uid }, Step::Start { .. }] if uid == "u1"), "{both:?}");
    let done = NodeCapture::ended(CaptureState::Done, "");
    capture.head.deleting = true;
    assert_eq!(of(&capture, Some(done), MADE), [Step::Forget { uid: "u1".into() }]);
    assert_eq!(of(&capture, None, MADE), []);
}

#[test]
fn needs_of_an_object_end_with_its_start_window() {
    let by_pod = json!({"podSelector": {"matchLabels": {"app": "web"}}, "capture": events()});
    let needs = |capture: &Capture, now| Needs::of(capture, "node-a", now);
    let pods = Needs { pods: true, labels: false };
    let mut capture = object(by_pod.clone());
    assert_eq!(needs(&capture, MADE + 300), pods);
    assert_eq!(needs(&capture, MADE + 301), Needs::default(), "it is too late to begin");
    assert_eq!(
        Needs::of(&object(json!({"nodeName": "node-b", "capture": events()})), "node-a", MADE),
        Needs::default()
    );
    let by_label = object(json!({"nodeSelector": {"matchLabels": {"zone": "a"}}, "capture": events()}));
    assert_eq!(needs(&by_label, MADE), Needs { labels: true, pods: false });
    capture.nodes.insert("node-b".into(), NodeCapture::ended(CaptureState::Done, "x"));
    assert_eq!(needs(&capture, MADE), pods, "what others say is theirs");
    capture.nodes.insert("node-a".into(), NodeCapture::ended(CaptureState::Done, "x"));
    assert_eq!(needs(&capture, MADE), Needs::default(), "it has been here");
}

#[test]
fn queued_captures_get_start_steps_oldest_first() {
    let mut waiting = object(json!({"capture": events()}));
    let queued = NodeCapture::queued("queued: a capture runs already");
    let both = of(&waiting, Some(queued.clone()), MADE + 1);
    assert!(matches!(both.as_slice(), [Step::Report(_), Step::Start { .. }]), "{both:?}");
    waiting.nodes.insert("node-a".into(), queued);
    // Also after an agent restart, without a time limit.
    assert_eq!(of(&waiting, None, MADE + 3600), start(events(), None));
    let younger =
        Capture { head: Head { uid: "u0".into(), created: MADE + 5, ..waiting.head.clone() }, ..waiting.clone() };
    let both = with_labels("node-a", |me| steps(&[younger, waiting.clone()], me, &BTreeMap::new(), MADE + 9));
    let uids: Vec<_> =
        both.iter().map(|step| if let Step::Start { uid, .. } = step { uid.as_str() } else { "" }).collect();
    assert_eq!(uids, ["u1", "u0"]);
    let gone = json!({"podSelector": {"matchLabels": {"app": "none"}}, "capture": events()});
    waiting.spec = object(gone).spec;
    let refused = of(&waiting, None, MADE + 9);
    assert!(matches!(refused.as_slice(), [Step::Refuse { uid, .. }] if uid == "u1"), "{refused:?}");
}

#[test]
fn an_alert_has_one_name_and_one_that_kubernetes_takes() {
    let alert = |fingerprint: &str, starts_at: &str| Alert {
        fingerprint: fingerprint.into(),
        starts_at: starts_at.into(),
        ..Alert::default()
    };
    for (fingerprint, starts_at, name) in [
        ("b5c8a4", "2026-11-21T12:36:26.5Z", "alert-b5c8a4-20261121t1236265z"),
        ("../A_b\u{e9}", "", "alert-ab"),
        ("", "", "alert"),
    ] {
        assert_eq!(alert(fingerprint, starts_at).object_name(), name);
    }
    assert!(alert(&"f".repeat(999), &"9".repeat(999)).object_name().len() <= 253);
}
