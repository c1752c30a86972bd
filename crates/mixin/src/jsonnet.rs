//! What `dashboards/jsonnet/mixin.libsonnet` imports. JSON, as not every jsonnet reads YAML with lines in it.

use crate::catalogue::Catalogue;
use crate::promql::FORMS;
use crate::rules::{Group, Rule};
use crate::{FOLDER_OF_JSONNET, File, MADE, alerts, boards, objectives, runbook_url};
use serde_json::{Value, json};

pub fn files(catalogue: &Catalogue) -> Vec<File> {
    let file = |name: &str, text: String| File { path: format!("{FOLDER_OF_JSONNET}/{name}"), text };
    let data = |name: &str, value: Value| {
        let text = serde_json::to_string_pretty(&value).unwrap_or_default();
        file(name, text + "\n")
    };
    let imports = FORMS.map(|form| {
        let boards = boards::all(catalogue, form).into_iter().map(|board| {
            let name = format!("{}.json", board.uid);
            format!("    '{name}': import '../../grafana/{}/{name}',\n", form.name())
        });
        format!("  {}: {{\n{}  }},\n", form.name(), boards.collect::<String>())
    });
    let mut files = vec![
        file("dashboards.libsonnet", format!("// {MADE}\n{{\n{}}}\n", imports.concat())),
        data("runbooks.json", runbook_url("%s").into()),
        data("alerts.json", alerts::groups().iter().map(group).collect()),
    ];
    for form in FORMS {
        let objectives = objectives::shipped().into_iter().map(|objective| {
            let (alerts, recordings): (Vec<Group>, Vec<Group>) = objective
                .groups(form)
                .into_iter()
                .partition(|group| group.rules.iter().all(|rule| rule.alert.is_some()));
            let json = |groups: &[Group]| groups.iter().map(group).collect::<Value>();
            json!({"name": objective.name, "recordings": json(&recordings), "alerts": json(&alerts)})
        });
        files.push(data(&format!("slo-{}.json", form.name()), objectives.collect()));
    }
    files
}

fn group(group: &Group) -> Value {
    json!({"name": group.name, "rules": group.rules.iter().map(rule).collect::<Value>()})
}

fn rule(rule: &Rule) -> Value {
    let map = |pairs: &[(&'static str, String)]| {
        Value::Object(pairs.iter().map(|(key, value)| ((*key).to_owned(), value.clone().into())).collect())
    };
    let kind = if rule.alert.is_some() { "alert" } else { "record" };
    let mut json = json!({kind: rule.name, "expr": rule.expr, "labels": map(&rule.labels)});
    if let Some(alert) = &rule.alert {
        json["annotations"] = map(&alert.annotations);
        if !alert.held_for.is_empty() {
            json["for"] = alert.held_for.clone().into();
        }
    }
    json
}
