//! What rules and alerts get, which series their captures are linked to, and how that is exported.

use super::world::{Folder, MS, agent, engine, histogram, scheme, until};
use kstrobe::capture::rules::alerts::Notification;
use kstrobe::capture::rules::configured;
use kstrobe::capture::rules::engine::{Outcome, RuleEngine};
use kstrobe::capture::service::Service;
use kstrobe::capture::store::{Id, State};
use kstrobe_export::snapshot::{Moment, Snapshot};
use kstrobe_export::{Format, exposition};
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const RULES: &str = "\
rules:
  - name: slow_recv
    when: p50(recv_wait_seconds{comm=\"mysqld\"}) over 1s > 50ms
    capture: { events: quick }
    cooldown: 10s
    max_per_hour: 2
  - name: by_alert
    capture: { events: slow }
    cooldown: 0s
  - name: broken
    capture: { events: wrong }
    cooldown: 0s
";

fn rules(folder: &Folder, captures: &str) -> Arc<RuleEngine> {
    configured::open(&agent(folder, captures, RULES), engine(), |_| true).unwrap().unwrap()
}

fn count(rules: &RuleEngine, rule: &str, result: &str) -> u64 {
    rules.counts().iter().filter(|(r, o, _)| r == rule && *o == result).map(|(_, _, n)| n).sum()
}

fn idle(service: &Service) {
    until("all captures have ended", || service.usage().running == 0);
}

/// Evaluates the rules over one second after another, with slow calls or without.
struct Clock {
    begun: Instant,
    second: u64,
    calls: Vec<u64>,
}

impl Clock {
    fn tick(&mut self, rules: &RuleEngine, slow: bool) -> Snapshot {
        self.second += 1;
        let value = if slow { 70 * MS } else { MS };
        self.calls.extend([value; 10]);
        let family = histogram(&scheme(), &[(&["recvfrom", "mysqld"], &self.calls), (&["recvfrom", "nginx"], &[MS])]);
        let at = Duration::from_secs(self.second);
        let wall = UNIX_EPOCH + Duration::from_secs(1_700_000_000) + at;
        rules.look(std::slice::from_ref(&family), Moment { wall, mono: self.begun + at });
        Snapshot { at: wall, families: vec![family] }
    }
}

#[test]
fn a_rule_starts_a_capture_and_then_waits() {
    let folder = Folder::new();
    let rules = rules(&folder, "");
    let service = rules.service().clone();
    assert_eq!(rules.metrics(), ["kstrobe_recv_wait_seconds"]);
    let mut clock = Clock { begun: Instant::now() + Duration::from_secs(1), second: 0, calls: vec![] };
    for slow in [false, false, true] {
        clock.tick(&rules, slow);
    }
    idle(&service);
    let captures = service.list();
    assert_eq!(captures.len(), 1);
    let capture = &captures[0];
    assert_eq!(
        (capture.state, capture.trigger.kind.as_str(), capture.trigger.rule.as_str()),
        (State::Done, "rule", "slow_recv")
    );
    let why = &capture.trigger.why;
    assert!(why.starts_with("p50(recv_wait_seconds{comm=\"mysqld\"}) over 1s > 50ms: 0.0"), "{why}");
    assert!(why.ends_with(" in {syscall=\"recvfrom\",comm=\"mysqld\"}"), "{why}");
    // It goes on: refused, and told once.
    for _ in 0..9 {
        clock.tick(&rules, true);
    }
    assert_eq!((count(&rules, "slow_recv", "started"), count(&rules, "slow_recv", "cooldown")), (1, 1));
    clock.tick(&rules, true);
    idle(&service);
    assert_eq!(count(&rules, "slow_recv", "started"), 2, "the cooldown is over, and it is still slow");
    for slow in [true, false, false, true, true] {
        clock.tick(&rules, slow);
    }
    assert_eq!(count(&rules, "slow_recv", "cooldown"), 3, "one for each time that it began");
    for _ in 0..30 {
        clock.tick(&rules, true);
    }
    assert_eq!((count(&rules, "slow_recv", "started"), count(&rules, "slow_recv", "hourly_cap")), (2, 1));
    clock.second += 3600;
    clock.tick(&rules, true);
    clock.tick(&rules, true);
    assert_eq!(count(&rules, "slow_recv", "started"), 3);
    idle(&service);
}

#[test]
fn the_capture_is_an_exemplar_of_the_bucket_it_was_seen_in() {
    let folder = Folder::new();
    let rules = rules(&folder, "");
    let mut clock = Clock { begun: Instant::now() + Duration::from_secs(1), second: 0, calls: vec![] };
    clock.tick(&rules, false);
    let snapshot = clock.tick(&rules, true);
    idle(rules.service());
    let id = rules.service().list()[0].id.clone();
    let text = |format| String::from_utf8(exposition(&snapshot, &rules.exemplars(), b"", format, 0)).unwrap();
    let open = text(Format::OpenMetrics100);
    let marked: Vec<&str> = open.lines().filter(|line| line.contains(" # ")).collect();
    let [line] = marked[..] else { panic!("{marked:?}") };
    let expected =
        "kstrobe_recv_wait_seconds_bucket{syscall=\"recvfrom\",comm=\"mysqld\",le=\"0.1\"} 20 # {capture_id=\"";
    assert!(line.starts_with(expected), "{line}");
    let rest: Vec<&str> = line[expected.len()..].split([' ', '"', '}']).filter(|part| !part.is_empty()).collect();
    assert_eq!((rest[0], rest[2]), (id.as_str(), "1700000002"), "{line}");
    let value: f64 = rest[1].parse().unwrap();
    assert!((0.01..=0.1).contains(&value) && (0.063..0.077).contains(&value), "{line}");
    assert!(!text(Format::Text004).contains(" # "), "0.0.4 has none");
    // A capture that is gone is linked to no more.
    rules.service().remove(&Id::parse(&id).unwrap()).unwrap();
    assert_eq!(rules.exemplars(), []);
}

#[test]
fn a_capture_that_failed_is_linked_to_nothing() {
    let folder = Folder::new();
    let agent = agent(&folder, "", &RULES.replace("quick", "wrong"));
    let rules = configured::open(&agent, engine(), |_| true).unwrap().unwrap();
    let mut clock = Clock { begun: Instant::now() + Duration::from_secs(1), second: 0, calls: vec![] };
    clock.tick(&rules, false);
    clock.tick(&rules, true);
    idle(rules.service());
    assert_eq!((count(&rules, "slow_recv", "started"), rules.service().list()[0].state), (1, State::Failed));
    assert_eq!(rules.exemplars(), []);
}

/// A notification as Alertmanager 0.33 posts it.
fn notification(alerts: serde_json::Value) -> Notification {
    let body = json!({
        "version": "4", "groupKey": "{}:{alertname=\"SlowRecv\"}", "truncatedAlerts": 0, "status": "firing",
        "receiver": "kstrobe", "groupLabels": {"alertname": "SlowRecv"}, "commonLabels": {"alertname": "SlowRecv"},
        "commonAnnotations": {}, "externalURL": "http://am:9093", "notification_reason": "firing", "alerts": alerts,
    });
    serde_json::from_value(body).unwrap()
}

fn alert(status: &str, rule: Option<&str>, fingerprint: &str, starts: &str) -> serde_json::Value {
    let mut labels = json!({"alertname": "SlowRecv", "node": "n1"});
    if let Some(rule) = rule {
        labels["kstrobe_rule"] = rule.into();
    }
    json!({
        "status": status, "labels": labels, "annotations": {"summary": "x"}, "startsAt": starts,
        "endsAt": "0001-01-01T00:00:00Z", "generatorURL": "http://prom:9090", "fingerprint": fingerprint,
    })
}

fn names(outcomes: &[Outcome]) -> Vec<&'static str> {
    outcomes.iter().map(Outcome::name).collect()
}

#[test]
fn alerts_name_rules() {
    let folder = Folder::new();
    let rules = rules(&folder, "");
    let service = rules.service().clone();
    let post = |alerts: serde_json::Value| names(&rules.alert(&notification(alerts), "10.0.0.9:1234"));
    let one = alert("firing", Some("by_alert"), "f1", "2026-01-01T00:00:00Z");
    let alerts = json!([
        one,
        one,
        alert("firing", Some("by_alert"), "f2", "2026-01-01T00:00:00Z"),
        alert("resolved", Some("by_alert"), "f3", "2026-01-01T00:00:00Z"),
        alert("firing", Some("none\n\u{1f}"), "f4", "2026-01-01T00:00:00Z"),
        alert("firing", None, "f5", "2026-01-01T00:00:00Z"),
        {"status": "firing"},
    ]);
    let expected = ["started", "duplicate", "busy", "resolved", "unknown_rule", "no_rule", "no_rule"];
    assert_eq!(post(alerts.clone()), expected);
    let capture = service.list()[0].clone();
    assert_eq!((capture.trigger.kind.as_str(), capture.trigger.client.as_str()), ("alertmanager", "10.0.0.9:1234"));
    assert_eq!((capture.trigger.rule.as_str(), capture.trigger.why.as_str()), ("by_alert", "alert SlowRecv"));
    service.cancel(&Id::parse(&capture.id).unwrap()).unwrap();
    idle(&service);
    // What was refused may try again; what had its capture does not.
    let again = post(alerts);
    assert_eq!(again[..4], ["duplicate", "duplicate", "started", "resolved"]);
    // It fired anew.
    let end_all = || {
        for capture in service.list() {
            // Those that have ended cannot be cancelled.
            let _ = service.cancel(&Id::parse(&capture.id).unwrap());
        }
        idle(&service);
    };
    end_all();
    assert_eq!(post(json!([alert("firing", Some("by_alert"), "f1", "2026-01-02T00:00:00Z")])), ["started"]);
    service.close(Duration::from_secs(30));
    assert_eq!((count(&rules, "by_alert", "started"), count(&rules, "unknown", "unknown_rule")), (3, 2));
    assert_eq!(count(&rules, "alertmanager_default", "no_rule"), 4);
}

#[test]
fn alerts_without_a_rule_get_the_default_with_its_own_cooldown() {
    let folder = Folder::new();
    let rules = rules(&folder, "max_concurrent: 2, alertmanager_default: { events: quick }");
    let post = |fingerprint: &str, rule| {
        let outcomes = rules.alert(&notification(json!([alert("firing", rule, fingerprint, "2026")])), "x");
        idle(rules.service());
        names(&outcomes)[0]
    };
    assert_eq!(post("f1", None), "started");
    assert_eq!(post("f2", None), "cooldown");
    // A rule's name may stand in an annotation.
    let mut annotated = alert("firing", None, "f3", "2026");
    annotated["annotations"]["kstrobe_rule"] = "broken".into();
    assert_eq!(names(&rules.alert(&notification(json!([annotated])), "x")), ["started"]);
    idle(rules.service());
    let failed = rules.service().list().into_iter().find(|capture| capture.trigger.rule == "broken").unwrap();
    assert_eq!((failed.state, failed.error.as_str()), (State::Failed, "no event of this kernel is `wrong`"));
}

#[test]
fn rules_of_metrics_that_are_not_there_are_left_out() {
    let folder = Folder::new();
    let agent = agent(&folder, "", RULES);
    let rules = configured::open(&agent, engine(), |_| false).unwrap().unwrap();
    assert_eq!(rules.metrics(), [] as [String; 0]);
    assert_eq!(rules.due(Instant::now()).0, None);
    let none = kstrobe_config::model::Agent::default();
    assert!(configured::open(&none, engine(), |_| true).unwrap().is_none(), "captures are off by default");
}

#[test]
fn a_desk_says_when_it_wants_to_look() {
    let folder = Folder::new();
    let rules = rules(&folder, "");
    let now = Instant::now();
    assert_eq!(rules.due(now).1, ["kstrobe_recv_wait_seconds"]);
    rules.look(&[], Moment { wall: SystemTime::now(), mono: now });
    let (next, due) = rules.due(now);
    assert_eq!((next, due), (Some(now + Duration::from_secs(1)), vec![]));
}

/// What the agent says of these rules: whether it starts, and the lines it tells.
fn configured_with(rules: &str) -> (bool, Vec<String>) {
    let folder = Folder::new();
    let agent = agent(&folder, "", &format!("rules:\n{rules}"));
    let (probes, told) = kstrobe::config::files::chosen(&agent, None, &kstrobe::config::files::Choice::default());
    (probes.is_some(), told.iter().map(|d| d.one_line()).collect())
}

#[test]
fn a_rule_of_what_is_not_there_keeps_the_agent_from_starting() {
    let rule =
        |when: &str| configured_with(&format!("  - {{ name: r, when: {when}, capture: {{ events: sched }} }}\n"));
    assert_eq!(rule("p99(recv_wait_seconds) > 50ms"), (true, vec![]));
    let (starts, told) = rule("p99(recv_wait_second) > 50ms");
    assert!(!starts && told.len() == 1, "{told:?}");
    let place = "kstrobe.yaml:3:26: no probe has a metric `recv_wait_second` (did you mean `recv_wait_seconds`?)";
    assert_eq!(told[0], place);
    // A probe that does not run is no mistake: it may be that somebody wants it so for a while.
    let (starts, told) = rule("p99(futex_wait_duration_seconds) > 50ms");
    assert!(starts && told.len() == 1 && told[0].contains("which does not run"), "{told:?}");
}
