//! The rules of Grafana's dashboard-linter, and ours, over the dashboards as they are written.

use kstrobe_mixin::{catalogue, files};
use serde_json::Value;
use std::collections::BTreeSet;

/// Words for units that our panels use, all of them Grafana's.
const UNITS: [&str; 8] = ["s", "cps", "Bps", "bytes", "percent", "percentunit", "short", "dateTimeAsIso"];
/// A folder for each form of histograms.
const SETS: [&str; 2] = ["dashboards/grafana/classic", "dashboards/grafana/native"];
/// The agent's own histogram, which has no native form.
const CLASSIC_ALONE: &str = "kstrobe_scrape_duration_seconds";
/// Panels of the dashboard that one opens first.
const MAX_AT_FIRST: usize = 12;
/// Constants that the objectives' rules record: they are of no node.
const OF_NO_NODE: [&str; 1] = ["slo:objective:ratio"];

fn dashboards() -> Vec<(String, Value)> {
    let json = files(&catalogue()).into_iter().filter(|file| file.path.starts_with("dashboards/grafana/"));
    json.map(|file| (file.path, serde_json::from_str(&file.text).unwrap())).collect()
}

/// Panels that are no headings, those inside collapsed rows among them.
fn panels(dashboard: &Value) -> Vec<&Value> {
    let all = dashboard["panels"].as_array().unwrap().iter();
    let all = all.flat_map(|panel| std::iter::once(panel).chain(panel["panels"].as_array().into_iter().flatten()));
    all.filter(|panel| panel["type"] != "row").collect()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

#[test]
fn dashboards_follow_the_rules() {
    let mut wrong = Vec::new();
    let (mut uids, mut titles) = (BTreeSet::new(), BTreeSet::new());
    for (path, dashboard) in dashboards() {
        let mut say = |message: String| wrong.push(format!("{path}: {message}"));
        let mut require = |holds: bool, message: &str| {
            if !holds {
                say(message.to_owned());
            }
        };
        require(dashboard["schemaVersion"] == 42, "schemaVersion");
        require(dashboard["editable"] == false, "editable");
        require(dashboard.get("__inputs").is_none() && dashboard.get("id").is_none(), "made for one server");
        require(dashboard["refresh"] == "1m", "refreshed too often");
        let uid = text(&dashboard, "uid");
        let set = path.trim_end_matches(&format!("/{uid}.json")).to_owned();
        require((8..=40).contains(&uid.len()) && SETS.contains(&set.as_str()), "uid");
        let title = text(&dashboard, "title").to_owned();
        require(uids.insert((set.clone(), uid.to_owned())) && titles.insert((set, title)), "not unique");
        let mut names = BTreeSet::new();
        let twice: Vec<_> =
            panels(&dashboard).into_iter().map(|one| text(one, "title")).filter(|name| !names.insert(*name)).collect();
        require(twice.is_empty(), &format!("panels with one title: {twice:?}"));
        for annotation in dashboard["annotations"]["list"].as_array().unwrap() {
            require(annotation["datasource"]["uid"] == "${datasource}", "an annotation with another data source");
            require(query(text(annotation, "expr"), false).is_empty(), "an annotation's query");
        }
        require(!text(&dashboard, "description").is_empty(), "no description");
        variables(&dashboard, &mut require);
        let mut ids: Vec<u64> = Vec::new();
        for panel in dashboard["panels"].as_array().unwrap() {
            ids.extend(panel["id"].as_u64());
            ids.extend(panel["panels"].as_array().into_iter().flatten().filter_map(|inside| inside["id"].as_u64()));
        }
        require(ids.iter().collect::<BTreeSet<_>>().len() == ids.len(), "panel ids are not unique");
        for one in panels(&dashboard) {
            let mut require = |holds: bool, message: &str| {
                if !holds {
                    say(format!("{}: {message}", text(one, "title")));
                }
            };
            panel(one, &mut require);
        }
        overlaps(&dashboard).into_iter().for_each(&mut say);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn variables(dashboard: &Value, require: &mut impl FnMut(bool, &str)) {
    let all = dashboard["templating"]["list"].as_array().unwrap();
    let find = |name: &str| all.iter().find(|variable| variable["name"] == name).cloned().unwrap_or_default();
    let source = find("datasource");
    require(source["type"] == "datasource" && source["query"] == "prometheus", "variable datasource");
    require(source["label"] == "Data source", "label of the variable datasource");
    for (name, label) in [("job", "Job"), ("instance", "Instance")] {
        let variable = find(name);
        let holds = variable["type"] == "query"
            && variable["datasource"]["uid"] == "${datasource}"
            && variable["multi"] == true
            && variable["allValue"] == ".+"
            && variable["label"] == label
            // On each change of the time range.
            && variable["refresh"] == 2;
        require(holds, &format!("variable {name}"));
    }
    require(text(&find("instance"), "definition").contains(r#"job=~"$job""#), "instances of all jobs");
}

fn panel(panel: &Value, require: &mut impl FnMut(bool, &str)) {
    require(!text(panel, "title").is_empty() && !text(panel, "description").is_empty(), "no title or description");
    if panel["type"] == "text" {
        return require(!text(&panel["options"], "content").is_empty(), "no text");
    }
    require(panel["datasource"]["uid"] == "${datasource}", "another data source");
    let unit = match text(panel, "type") {
        "heatmap" => &panel["options"]["yAxis"]["unit"],
        _ => &panel["fieldConfig"]["defaults"]["unit"],
    };
    require(UNITS.contains(&unit.as_str().unwrap_or_default()), &format!("unit {unit}"));
    let targets = panel["targets"].as_array().unwrap();
    require(!targets.is_empty(), "no targets");
    let names: BTreeSet<_> = targets.iter().map(|target| text(target, "refId")).collect();
    require(names.len() == targets.len(), "names of targets are not unique");
    for target in targets {
        require(target["datasource"]["uid"] == "${datasource}", "a target with another data source");
        let expr = text(target, "expr");
        for message in query(expr, text(panel, "type") == "heatmap") {
            require(false, &format!("{message}: {expr}"));
        }
    }
}

/// What is wrong with a query.
fn query(expr: &str, heatmap: bool) -> Vec<String> {
    let mut wrong = Vec::new();
    let count = |c: char| expr.matches(c).count();
    if count('(') != count(')') || count('{') != count('}') {
        wrong.push("brackets".to_owned());
    }
    if expr.split('[').skip(1).any(|rest| !rest.starts_with("$__rate_interval]")) {
        wrong.push("a window that is not $__rate_interval".to_owned());
    }
    for variable in expr.split('$').skip(1) {
        let name: String = variable.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        if !["job", "instance", "__rate_interval"].contains(&name.as_str()) {
            wrong.push(format!("${name}"));
        }
    }
    for (at, name) in names(expr) {
        let after = &expr[at + name.len()..];
        let matchers = after.strip_prefix('{').and_then(|rest| rest.split_once('}')).map_or("", |(inside, _)| inside);
        let of_node = matchers.contains(r#"job=~"$job""#) && matchers.contains(r#"instance=~"$instance""#);
        if !of_node && !OF_NO_NODE.contains(&name) {
            wrong.push(format!("{name} of any job or instance"));
        }
        if ["_total", "_bucket", "_sum", "_count"].iter().any(|suffix| name.ends_with(suffix)) {
            let before = &expr[..at];
            let ranged = after.split_once('}').is_some_and(|(_, rest)| rest.starts_with('['));
            if !ranged || !(before.ends_with("rate(") || before.ends_with("increase(")) {
                wrong.push(format!("{name} without a rate"));
            }
        }
        let by_bucket = expr.contains("histogram_quantile(") || matchers.contains("le=") || heatmap;
        if name.ends_with("_bucket") && !by_bucket {
            wrong.push(format!("{name} is not read as buckets"));
        }
    }
    wrong
}

/// Metrics in a query, where they begin.
fn names(expr: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let mut at = 0;
    while at < expr.len() {
        let rest = &expr[at..];
        if let Some(after) = rest.strip_prefix('"') {
            at += 2 + after.find('"').unwrap_or(after.len());
            continue;
        }
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let word = &rest[..end];
        if ["kstrobe_", "process_", "slo:", "ALERTS"].iter().any(|start| word.starts_with(start)) {
            found.push((at, word));
        }
        at += end.max(rest.chars().next().map_or(1, char::len_utf8));
    }
    found
}

/// Panels that lie on one another.
fn overlaps(dashboard: &Value) -> Vec<String> {
    let mut taken = BTreeSet::new();
    let mut found = Vec::new();
    let rows = dashboard["panels"].as_array().unwrap().iter().filter(|panel| panel["type"] == "row");
    for panel in rows.chain(panels(dashboard)) {
        let of = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        let (x, y, w, h) = (of("x"), of("y"), of("w"), of("h"));
        let mut cells = (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y)));
        if x + w > 24 || !cells.all(|cell| taken.insert(cell)) {
            found.push(format!("{} has no place of its own", panel["title"]));
        }
    }
    found
}

#[test]
fn a_dashboard_asks_one_form_of_histograms() {
    for (path, dashboard) in dashboards() {
        for panel in panels(&dashboard) {
            let exprs = panel["targets"].as_array().into_iter().flatten().map(|target| text(target, "expr"));
            for expr in exprs.filter(|expr| !expr.contains(CLASSIC_ALONE)) {
                let classic = expr.contains("_bucket{");
                let native = ["histogram_count(", "histogram_sum(", "histogram_fraction("];
                let native = native.iter().any(|function| expr.contains(function))
                    || expr.contains("histogram_quantile(") && !classic;
                let wrong = if path.starts_with(SETS[0]) { native } else { classic };
                assert!(!wrong, "{path}: {}: {expr}", panel["title"]);
            }
        }
    }
}

#[test]
fn probes_off_by_default_stay_in_collapsed_rows() {
    let catalogue = catalogue();
    let mut closed = 0;
    for (path, dashboard) in dashboards() {
        let all = dashboard["panels"].as_array().unwrap();
        for panel in all {
            let inside = panel["panels"].as_array().into_iter().flatten();
            let told: String = inside.clone().map(|one| text(&one["options"], "content")).collect();
            for one in inside.chain([panel]) {
                let exprs = one["targets"].as_array().into_iter().flatten().map(|target| text(target, "expr"));
                for (_, name) in exprs.flat_map(names) {
                    let name =
                        ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
                    let Some((Some(probe), _)) = catalogue.find(name) else { continue };
                    closed += usize::from(!probe.enabled);
                    let holds = probe.enabled || panel["collapsed"] == true && told.contains(&probe.name);
                    assert!(holds, "{path}: {}: {}", one["title"], probe.name);
                }
            }
        }
    }
    assert!(closed > 100, "{closed}");
}

#[test]
fn the_first_dashboard_is_small() {
    for set in SETS {
        let (_, first) =
            dashboards().into_iter().find(|(path, _)| path == &format!("{set}/kstrobe-start.json")).unwrap();
        let shown = panels(&first);
        assert!(shown.len() <= MAX_AT_FIRST, "{}", shown.len());
        for words in ["://${__data.fields.instance}/", "/#/captures"] {
            assert!(shown.iter().any(|panel| panel.to_string().contains(words)), "{words}");
        }
    }
}

#[test]
fn the_lint_finds_what_is_wrong() {
    let right = r#"topk(10, sum(rate(kstrobe_a_total{job=~"$job", instance=~"$instance"}[$__rate_interval])))"#;
    assert_eq!(query(right, false), [""; 0]);
    for (change, to, expected) in [
        ("$__rate_interval", "5m", "window"),
        (r#"job=~"$job", "#, "", "of any job"),
        ("rate(", "avg_over_time(", "without a rate"),
        ("[$__rate_interval]", "", "without a rate"),
        ("_total", "_bucket", "not read as buckets"),
        ("$job", "$jab", "$jab"),
        ("topk(10, ", "", "brackets"),
    ] {
        let wrong = query(&right.replace(change, to), false);
        assert!(wrong.iter().any(|message| message.contains(expected)), "{expected}: {wrong:?}");
    }
}
