//! What is merged of nodes is what one agent would say that had seen all of their events.

use super::*;
use crate::cli::top::answers::{Group, History, Kind, Query};
use crate::cli::top::request::Span;
use kstrobe_export::snapshot::{self, Descriptor};
use kstrobe_history::{BucketSpec, Change, Limits, MetricChanges, ProbeChanges, Row, Scheme, Second};
use proptest::prelude::*;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::sync::Arc;

const START: u64 = 1_800_000_000;
const COMMS: [&str; 3] = ["mysqld", "nginx", "redis"];
const NODES: usize = 3;

/// Second, node, place in `COMMS` and value.
type Observed = (u64, usize, usize, u64);

fn scheme() -> Arc<Scheme> {
    let spec = BucketSpec { schema: 1, raw_per_unit: 10, min: 1, max: 1000, classic: vec!["2.5".into()] };
    Arc::new(Scheme::new(&spec).unwrap())
}

fn metric(name: &str, kind: snapshot::Kind, rows: Vec<Row>) -> MetricChanges {
    let about = Descriptor {
        name: name.into(),
        help: "X.".into(),
        kind,
        unit: "seconds".into(),
        raw_per_unit: 10,
        label_names: vec!["comm".into()],
    };
    MetricChanges { about: Arc::new(about), scheme: (kind == snapshot::Kind::Histogram).then(scheme), rows }
}

/// The history of an agent that saw these events.
fn history_of(events: &[Observed], seconds: u64) -> kstrobe_history::History {
    let mut history = kstrobe_history::History::new(Limits { seconds: 1000, bytes: usize::MAX });
    let scheme = scheme();
    for second in 0..seconds {
        let of_comm = |comm: usize| events.iter().filter(move |event| event.0 == second && event.2 == comm);
        let row = |change: &dyn Fn(Vec<u64>) -> Change| {
            let rows = COMMS.iter().enumerate().filter_map(|(place, comm)| {
                let values: Vec<u64> = of_comm(place).map(|event| event.3).collect();
                let labels = [Arc::from(*comm)].into();
                (!values.is_empty()).then(|| Row { labels, change: change(values) })
            });
            rows.collect::<Vec<_>>()
        };
        let histogram = |values: Vec<u64>| {
            let mut counts = BTreeMap::new();
            values.iter().for_each(|value| *counts.entry(scheme.index(*value) as u32).or_insert(0) += 1);
            Change::Histogram { sum: values.iter().sum(), buckets: counts.into_iter().collect() }
        };
        let metrics = vec![
            metric("kstrobe_wait_seconds", snapshot::Kind::Histogram, row(&histogram)),
            metric("kstrobe_wait_total", snapshot::Kind::Counter, row(&|values| Change::Counter(values.iter().sum()))),
        ];
        let probe = ProbeChanges { probe: "wait".into(), sampled: false, metrics };
        history.push(Second { start: START + second, seconds: 1 }, &[probe]);
    }
    history
}

fn read<T: DeserializeOwned>(answer: &impl serde::Serialize) -> T {
    serde_json::from_value(serde_json::to_value(answer).unwrap()).unwrap()
}

/// The answer of one agent to the path that it is asked.
fn answer(history: &kstrobe_history::History, path: &str) -> Query {
    let options = path.split_once('?').unwrap().1.split('&').map(|option| {
        let (name, value) = option.split_once('=').unwrap();
        (name.to_owned(), value.replace("%2C", ",").replace("%3D", "=").replace("%22", "\""))
    });
    let options: Vec<(String, String)> = options.collect();
    let query = kstrobe_history::Query::parse(options.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    read(&history.query(&query.unwrap().unwrap(), 0).unwrap())
}

fn node(number: usize) -> String {
    format!("n{number}")
}

fn merged(request: &Request, answers: Vec<(String, Answer)>) -> Merged {
    let plan = Plan::of(request, answers.len(), None);
    merge(request, &plan, answers).unwrap()
}

fn merged_query(request: &Request, histories: &[kstrobe_history::History]) -> Query {
    let plan = Plan::of(request, histories.len(), None);
    let answers = histories.iter().enumerate();
    let answers = answers.map(|(number, history)| (node(number), Answer::Query(answer(history, &plan.path))));
    let merged = merge(request, &plan, answers.collect()).unwrap();
    assert_eq!(merged.left_out, []);
    let Answer::Query(query) = merged.answer else { panic!("a query") };
    query
}

fn table(metric: &str, by: &[&str], sort: Sort) -> Request {
    let by = by.iter().map(|label| (*label).to_owned()).collect();
    let span = Span { end: Some(START + 10), seconds: 10, step: 2 };
    Request::Table { metric: metric.into(), by, chosen: Vec::new(), sort, span }
}

#[track_caller]
fn assert_near(found: &[Option<f64>], expected: &[Option<f64>]) {
    let is_near = |(a, b): (&Option<f64>, &Option<f64>)| match (a, b) {
        (Some(a), Some(b)) => (a - b).abs() <= 1e-12 * b.abs().max(1.0),
        (a, b) => a == b,
    };
    assert!(found.len() == expected.len() && found.iter().zip(expected).all(is_near), "{found:?} {expected:?}");
}

#[track_caller]
fn assert_same(found: &Query, expected: &Query) {
    assert_eq!((found.from, found.to, found.step), (expected.from, expected.to, expected.step));
    assert_eq!((&found.bounds, found.groups.len()), (&expected.bounds, expected.groups.len()));
    for group in &found.groups {
        let same = expected.groups.iter().find(|other| other.labels == group.labels).expect("a group of these labels");
        let figures = |group: &Group| {
            let total = &group.total;
            [total.count, total.sum, total.p50, total.p90, total.p99, total.max, total.last]
        };
        assert_near(&figures(group), &figures(same));
        for of in
            [|group: &Group| group.rate.clone(), |group: &Group| group.sum.clone(), |group: &Group| group.p50.clone()]
        {
            assert_near(&of(group), &of(same));
        }
        assert_near(&group.p99, &same.p99);
        assert_eq!((&group.max, &group.heat), (&same.max, &same.heat));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn merged_figures_are_those_of_all_events(
        events in proptest::collection::vec((0..10u64, 0..NODES, 0..COMMS.len(), prop_oneof![0..50u64, 1..20_000u64]), 0..60),
    ) {
        let of_node = |number| events.iter().filter(|event| event.1 == number).copied().collect::<Vec<_>>();
        let nodes: Vec<_> = (0..NODES).map(|number| history_of(&of_node(number), 10)).collect();
        let all = history_of(&events, 10);
        for name in ["kstrobe_wait_seconds", "wait_total"] {
            let span = Span { end: Some(START + 10), seconds: 10, step: 2 };
            let total = Request::Total { metric: name.into(), chosen: Vec::new(), span };
            for request in [total, table(name, &["comm"], Sort::P99)] {
                assert_same(&merged_query(&request, &nodes), &answer(&all, &request.path()));
            }
            let by_node = merged_query(&table(name, &["node"], Sort::Rate), &nodes);
            for (number, history) in nodes.iter().enumerate() {
                let alone = answer(history, &table(name, &[], Sort::Rate).path());
                let row = by_node.groups.iter().find(|group| group.labels["node"] == node(number)).unwrap();
                assert_eq!(row.total.count, alone.groups[0].total.count);
                assert_near(&[row.total.p99], &[alone.groups[0].total.p99]);
            }
        }
        let lists = nodes.iter().enumerate();
        let lists = lists.map(|(number, history)| (node(number), Answer::History(read(&history.overview(true)))));
        let Answer::History(list) = merged(&Request::History, lists.collect()).answer else { panic!("a list") };
        let expected: History = read(&all.overview(true));
        prop_assert_eq!((list.newest, list.metrics.len()), (expected.newest, 2));
        for (found, expected) in list.metrics.iter().zip(&expected.metrics) {
            prop_assert_eq!(&found.metric, &expected.metric);
            prop_assert_eq!(&found.labels, &["comm", "node"]);
            let figures = |of: &crate::cli::top::answers::Summary| [of.rate, of.count, of.p50, of.p99, of.max];
            assert_near(&figures(found), &figures(expected));
        }
    }
}

fn gauge(from: u64, values: &[Option<f64>]) -> Query {
    let last = values.iter().flatten().last();
    let value = json!({
        "metric": "kstrobe_depth", "type": "gauge", "from": from, "to": from + 2 * values.len() as u64, "step": 2,
        "groups": [{"labels": {}, "total": {"last": last}, "value": values}],
    });
    serde_json::from_value(value).unwrap()
}

fn depth(answers: Vec<(&str, Query)>) -> Merged {
    let span = Span { end: None, seconds: 6, step: 2 };
    let request = Request::Total { metric: "depth".into(), chosen: Vec::new(), span };
    merged(&request, answers.into_iter().map(|(node, query)| (node.to_owned(), Answer::Query(query))).collect())
}

#[test]
fn columns_are_placed_by_their_time() {
    let later = gauge(102, &[Some(10.0), None, Some(30.0)]);
    let merged = depth(vec![("n1", gauge(100, &[Some(1.0), Some(2.0), None])), ("n2", later)]);
    let Answer::Query(query) = merged.answer else { panic!("a query") };
    assert_eq!((query.from, query.to), (100, 108));
    assert_eq!(query.groups[0].value, [Some(1.0), Some(12.0), None, Some(30.0)]);
    let total = &query.groups[0].total;
    assert_eq!((total.last, total.min, total.max), (Some(32.0), Some(1.0), Some(30.0)));
}

#[test]
fn answers_that_do_not_fit_are_left_out() {
    let first = || ("n1", gauge(100, &[Some(1.0), Some(2.0)]));
    let mut bytes = gauge(100, &[Some(1.0)]);
    bytes.unit = "bytes".into();
    let mut wide = gauge(100, &[Some(1.0)]);
    (wide.step, wide.to) = (4, 104);
    let mut broken = gauge(100, &[Some(1.0)]);
    broken.groups[0].heat = vec![vec![0, 1]];
    for (other, reason) in [
        (bytes, LeftOut::Metric("kstrobe_depth".into())),
        (wide, LeftOut::Columns),
        (broken, LeftOut::Bounds),
        (gauge(3700, &[Some(1.0)]), LeftOut::Clock(3600)),
    ] {
        let merged = depth(vec![first(), ("n2", other)]);
        assert_eq!(merged.left_out, [("n2".to_owned(), reason)]);
        let Answer::Query(query) = merged.answer else { panic!("a query") };
        assert_eq!(query.groups[0].total.last, Some(2.0));
    }
}

#[test]
fn a_row_that_some_node_may_hide_is_not_shown() {
    let counter = |left_out: u64, counts: &[(&str, u64)]| -> Query {
        let groups: Vec<Value> = counts
            .iter()
            .map(|(comm, count)| json!({"labels": {"comm": comm}, "total": {"count": count}, "rate": [count]}))
            .collect();
        let document = json!({
            "metric": "kstrobe_x_total", "type": "counter", "from": 100, "to": 101, "step": 1, "groups": groups, "left_out": left_out,
        });
        serde_json::from_value(document).unwrap()
    };
    let rows = |by: &[&str], answers: [Query; 2]| {
        let answers = answers.into_iter().enumerate().map(|(number, query)| (node(number), Answer::Query(query)));
        let Answer::Query(query) = merged(&table("x_total", by, Sort::Rate), answers.collect()).answer else {
            panic!("a query")
        };
        let rows =
            query.groups.iter().map(|group| (group.labels.values().cloned().collect(), group.total.count.unwrap()));
        (rows.collect::<Vec<(Vec<String>, f64)>>(), query.left_out)
    };
    let row = |labels: &[&str], count| (labels.iter().map(|label| (*label).to_owned()).collect::<Vec<_>>(), count);
    let answers = |left_out| [counter(left_out, &[("a", 5), ("b", 4)]), counter(0, &[("b", 7), ("c", 6)])];
    // All is known.
    assert_eq!(rows(&["comm"], answers(0)), (vec![row(&["b"], 11.0), row(&["c"], 6.0), row(&["a"], 5.0)], 0));
    // The first node may have up to four of `c`.
    assert_eq!(rows(&["comm"], answers(3)), (vec![row(&["b"], 11.0), row(&["a"], 5.0)], 3));
    // A node's own rows are whole.
    let (own, left_out) = rows(&["comm", "node"], answers(3));
    assert_eq!((own[0].clone(), own.len(), left_out), (row(&["b", "n1"], 7.0), 4, 3));
}

#[test]
fn without_counts_of_a_node_there_are_no_quantiles() {
    let list = |with_heat: bool, count: u64| -> Answer {
        let mut list = json!({"newest": 100, "metrics": [
            {"metric": "kstrobe_x_seconds", "type": "histogram", "count": count, "rate": count as f64 / 10.0, "p99": 0.5},
        ]});
        if with_heat {
            list["bounds"] = json!([[0.25, 0.5]]);
            list["metrics"][0]["heat"] = json!([0, count]);
        }
        Answer::History(serde_json::from_value(list).unwrap())
    };
    let merged = |other| {
        let answers = vec![("n1".to_owned(), list(true, 10)), ("n2".to_owned(), other)];
        let Answer::History(list) = merged(&Request::History, answers).answer else { panic!("a list") };
        list.metrics[0].clone()
    };
    let whole = merged(list(true, 10));
    assert_eq!((whole.rate, whole.p50, whole.max), (Some(2.0), Some(0.375), Some(0.5)));
    let older = merged(list(false, 10));
    assert_eq!((older.rate, older.count, older.p50, older.p99, older.max), (Some(2.0), Some(20.0), None, None, None));
    assert_eq!(merged(list(false, 0)).p50, Some(0.375), "there is nothing to count");
}

#[test]
fn the_label_of_nodes_is_not_asked_of_agents() {
    let request = Request::Table {
        metric: "x_total".into(),
        by: ["node", "exported_node", "comm"].map(str::to_owned).into(),
        chosen: [("node", "n2"), ("exported_node", "0")].map(|(label, value)| (label.into(), value.into())).into(),
        sort: Sort::Name,
        span: Span { end: None, seconds: 60, step: 1 },
    };
    let plan = Plan::of(&request, 4, Some(1000));
    assert_eq!((plan.only.as_deref(), plan.by_node), (Some("n2"), true));
    let path =
        "/api/v1/query?metric=x_total&from=940&to=1000&step=1&match=node%3D%220%22&by=node%2Ccomm&top=500&sort=rate";
    assert_eq!(plan.path, path);
    assert_eq!(Plan::of(&Request::History, 4, Some(1000)).path, "/api/v1/history?heat=true");
    // An agent gives no more than a thousand groups, and as many as fit on the screen in any case.
    let groups = |nodes| Plan::of(&request, nodes, None).path.split_once("top=").unwrap().1.to_owned();
    assert_eq!([groups(1), groups(100)], ["1000&sort=rate", "100&sort=rate"]);
    assert!(Plan::of(&request, 1, None).path.contains("from=-60&to=0"));
}

#[test]
fn a_metric_keeps_its_own_label_of_the_name() {
    let list =
        json!({"newest": 100, "metrics": [{"metric": "kstrobe_x_total", "type": "counter", "labels": ["node"]}]});
    let answers = vec![("n1".to_owned(), Answer::History(serde_json::from_value(list).unwrap()))];
    let Answer::History(list) = merged(&Request::History, answers).answer else { panic!("a list") };
    assert_eq!(list.metrics[0].labels, ["exported_node", "node"]);
    let query = json!({
        "metric": "kstrobe_x_total", "type": "counter", "from": 100, "to": 101, "step": 1,
        "groups": [{"labels": {"node": "0"}, "total": {"count": 1}}],
    });
    let answers = vec![("n1".to_owned(), Answer::Query(serde_json::from_value(query).unwrap()))];
    let request = table("x_total", &["exported_node", "node"], Sort::Rate);
    let Answer::Query(query) = merged(&request, answers).answer else { panic!("a query") };
    let labels = [("exported_node", "0"), ("node", "n1")].map(|(label, value)| (label.to_owned(), value.to_owned()));
    assert_eq!((query.groups[0].labels.clone(), query.kind), (labels.into(), Kind::Counter));
}

#[test]
fn probes_of_all_nodes_are_one_list() {
    let probes = |cpus: u64, probes: Value| -> Answer {
        let node = json!({"name": "x", "kernel": "6.18", "cpus": cpus, "budget_ppm": 10_000 * cpus});
        Answer::Probes(serde_json::from_value(json!({"node": node, "probes": probes})).unwrap())
    };
    let answers = [
        probes(
            2,
            json!([
                {"name": "a", "attached": true, "cost_ppm": 5, "one_of": 2}, {"name": "b", "attached": true}, {"name": "c", "attached": true},
            ]),
        ),
        probes(
            4,
            json!([
                {"name": "a", "attached": true, "cost_ppm": 7, "one_of": 8}, {"name": "b", "attached": false},
                {"name": "c", "attached": false, "idle": true}, {"name": "d", "attached": false, "idle": true},
            ]),
        ),
        probes(2, json!([{"name": "b", "attached": true}])),
    ];
    let answers = answers.into_iter().enumerate().map(|(number, answer)| (node(number), answer)).collect();
    let Answer::Probes(merged) = merged(&Request::Probes, answers).answer else { panic!("probes") };
    let of = &merged.node;
    assert_eq!((of.name.as_str(), of.kernel.as_str(), of.cpus, of.budget_ppm), ("3 nodes", "6.18", 8, Some(80_000)));
    assert_eq!(merged.nodes, ["n0", "n1", "n2"]);
    let stands: Vec<_> =
        merged.probes.iter().map(|probe| (probe.name.as_str(), probe.attached, probe.idle, probe.cost_ppm)).collect();
    assert_eq!(
        stands,
        [("a", true, false, Some(12)), ("b", false, false, None), ("c", true, false, None), ("d", false, true, None)]
    );
    assert_eq!(merged.probes[0].one_of, Some(8));
}

#[test]
fn the_newest_events_of_all_nodes_are_in_order() {
    let events = |times: &[&str], gone: u64| -> Answer {
        let event = |time: &&str| json!({"time": time, "probe": "slow", "pid": 7, "fields": {}});
        let events: Vec<Value> = times.iter().map(event).collect();
        Answer::Events(serde_json::from_value(json!({"events": events, "gone": gone})).unwrap())
    };
    let answers = vec![
        ("n1".to_owned(), events(&["2026-11-21T10:00:00.000001Z", "2026-11-21T10:00:02.000000Z"], 1)),
        ("n2".to_owned(), events(&["2026-11-21T10:00:01.000000Z"], 2)),
    ];
    let Answer::Events(merged) = merged(&Request::Events { probe: None }, answers).answer else { panic!("events") };
    let nodes: Vec<&str> = merged.events.iter().map(|event| event.node.as_str()).collect();
    assert_eq!((nodes, merged.gone), (vec!["n1", "n2", "n1"], 3));
}
