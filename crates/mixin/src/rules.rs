//! Recording rules and alerts as data, and as the YAML that Prometheus reads.

use std::fmt::Write;

/// Rules that are evaluated together, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Unique in its file.
    pub name: String,
    /// In order of evaluation.
    pub rules: Vec<Rule>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// What it is named.
    pub name: String,
    /// Its query.
    pub expr: String,
    /// What it adds to the result.
    pub labels: Vec<(&'static str, String)>,
    /// Set for an alert.
    pub alert: Option<Alert>,
}

/// What an alert has besides.
#[derive(Clone, Debug, PartialEq)]
pub struct Alert {
    /// How long the query must have a result, such as `5m`; empty for not at all.
    pub held_for: String,
    /// For people.
    pub annotations: Vec<(&'static str, String)>,
    /// Queries that have a result while all is well, where the data is that the alert is about.
    pub signals: Vec<String>,
}

/// The file of these groups. `head` is a comment of lines without `#`.
pub fn yaml(head: &str, groups: &[Group]) -> String {
    let mut out = String::new();
    for line in head.lines() {
        line_out(&mut out, 0, format!("# {line}").trim_end());
    }
    line_out(&mut out, 0, "groups:");
    for group in groups {
        line_out(&mut out, 2, &format!("- name: {}", quoted(&group.name)));
        line_out(&mut out, 4, "rules:");
        for rule in &group.rules {
            write_rule(&mut out, rule);
        }
    }
    out
}

fn write_rule(out: &mut String, rule: &Rule) {
    let kind = if rule.alert.is_some() { "alert" } else { "record" };
    line_out(out, 6, &format!("- {kind}: {}", rule.name));
    line_out(out, 8, "expr: |-");
    for line in rule.expr.lines() {
        line_out(out, 10, line);
    }
    if let Some(alert) = rule.alert.as_ref().filter(|alert| !alert.held_for.is_empty()) {
        line_out(out, 8, &format!("for: {}", alert.held_for));
    }
    write_map(out, "labels", &rule.labels);
    if let Some(alert) = &rule.alert {
        write_map(out, "annotations", &alert.annotations);
    }
}

fn write_map(out: &mut String, key: &str, pairs: &[(&'static str, String)]) {
    if !pairs.is_empty() {
        line_out(out, 8, &format!("{key}:"));
    }
    for (key, value) in pairs {
        line_out(out, 10, &format!("{key}: {}", quoted(value)));
    }
}

fn line_out(out: &mut String, indent: usize, line: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{:indent$}{line}", "");
}

/// A YAML scalar in double quotes: JSON's escapes are among YAML's.
pub fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
