//! A dashboard: rows of panels laid out on Grafana's grid, with the variables that all of ours have.

use crate::panel::{MATCHERS, Panel, WINDOW, datasource};
use crate::promql::sum;
use serde_json::{Value, json};

/// Version of the schema of Grafana 13; later ones take it and bring it up to date.
pub const SCHEMA_VERSION: u32 = 42;
/// Columns of the grid.
const COLUMNS: u32 = 24;
/// On every dashboard: the links between them go by it.
const TAG: &str = "kstrobe";

/// A heading and the panels below it.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// For people.
    pub title: String,
    /// Whether the panels show, and ask, only once somebody opens it.
    pub collapsed: bool,
    /// From left to right.
    pub panels: Vec<Panel>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Dashboard {
    /// Stable: links and bookmarks go by it. It is the file's name, too.
    pub uid: String,
    /// For people.
    pub title: String,
    /// What it answers.
    pub about: String,
    /// From top to bottom.
    pub rows: Vec<Row>,
}

impl Dashboard {
    /// Its panels, with the titles of their rows.
    pub fn panels(&self) -> impl Iterator<Item = (&str, &Panel)> {
        self.rows.iter().flat_map(|row| row.panels.iter().map(|panel| (row.title.as_str(), panel)))
    }

    /// The file.
    pub fn text(&self) -> String {
        let text = serde_json::to_string_pretty(&self.json()).unwrap_or_default();
        text + "\n"
    }

    /// As Grafana reads it.
    pub fn json(&self) -> Value {
        json!({
            "uid": self.uid,
            "title": format!("kstrobe / {}", self.title),
            "description": self.about,
            "tags": [TAG],
            "schemaVersion": SCHEMA_VERSION,
            "version": 1,
            "editable": false,
            "graphTooltip": 1,
            "refresh": "1m",
            "timezone": "browser",
            "time": {"from": "now-1h", "to": "now"},
            "timepicker": {},
            "annotations": {"list": annotations().iter().map(Annotation::json).collect::<Value>()},
            "links": links(),
            "templating": {"list": variables()},
            "panels": self.layout(),
        })
    }

    fn layout(&self) -> Vec<Value> {
        let mut placed = Vec::new();
        let (mut id, mut y) = (0, 0);
        for row in &self.rows {
            id += 1;
            let (row_id, row_y) = (id, y);
            let (mut x, mut tallest, mut inside) = (0, 0, Vec::new());
            y += 1;
            for panel in &row.panels {
                if x + panel.width > COLUMNS {
                    (x, y, tallest) = (0, y + tallest, 0);
                }
                id += 1;
                inside.push(panel.json(id, x, y));
                x += panel.width;
                tallest = tallest.max(panel.height());
            }
            y += tallest;
            let mut heading = json!({
                "id": row_id, "type": "row", "title": row.title, "collapsed": row.collapsed,
                "gridPos": {"x": 0, "y": row_y, "w": COLUMNS, "h": 1}, "panels": []
            });
            if row.collapsed {
                heading["panels"] = inside.into();
                placed.push(heading);
            } else {
                placed.push(heading);
                placed.append(&mut inside);
            }
        }
        placed
    }
}

/// A mark in every panel, at the times at which its query has a result.
pub struct Annotation {
    /// For people.
    pub name: &'static str,
    pub expr: String,
    /// What a mark says, with labels.
    text: &'static str,
    colour: &'static str,
    /// Whether the value is the time, in milliseconds.
    of_value: bool,
}

impl Annotation {
    fn json(&self) -> Value {
        json!({
            "name": self.name, "datasource": datasource(), "enable": true, "hide": false, "iconColor": self.colour,
            "expr": self.expr, "titleFormat": self.name, "textFormat": self.text, "tagKeys": "", "step": "30s",
            "useValueForTime": self.of_value
        })
    }
}

/// Those of every dashboard: what may be the cause of a change in a line.
pub fn annotations() -> [Annotation; 3] {
    let captures = format!("increase(kstrobe_captures_total{{{MATCHERS}}}[{WINDOW}])");
    [
        Annotation {
            name: "Captures",
            expr: format!("{} > 0", sum("instance, trigger, result", &captures)),
            text: "{{instance}} {{trigger}}: {{result}}",
            colour: "blue",
            of_value: false,
        },
        Annotation {
            name: "Configuration loaded",
            expr: format!("1000 * kstrobe_config_last_reload_success_timestamp_seconds{{{MATCHERS}}}"),
            text: "{{instance}}",
            colour: "green",
            of_value: true,
        },
        Annotation {
            name: "Probes sampled",
            expr: format!("min by (instance, probe) (kstrobe_probe_sampling_ratio{{{MATCHERS}}}) < 1"),
            text: "{{instance}} {{probe}} measures a part of its events",
            colour: "orange",
            of_value: false,
        },
    ]
}

fn variables() -> Value {
    json!([
        {
            "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus",
            "current": {}, "hide": 0, "includeAll": false, "multi": false, "options": [], "refresh": 1, "regex": ""
        },
        of_labels("job", "Job", "label_values(kstrobe_build_info, job)"),
        of_labels("instance", "Instance", r#"label_values(kstrobe_build_info{job=~"$job"}, instance)"#)
    ])
}

/// A variable with the values of a label.
fn of_labels(name: &str, label: &str, query: &str) -> Value {
    json!({
        "name": name, "label": label, "type": "query", "datasource": datasource(), "definition": query,
        "query": {"query": query, "refId": name},
        "current": {"text": ["All"], "value": ["$__all"]},
        "allValue": ".+", "includeAll": true, "multi": true, "options": [], "hide": 0, "regex": "", "sort": 1,
        // With the time range: nodes come and go.
        "refresh": 2
    })
}

fn links() -> Value {
    let page = |title: &str, path: &str| {
        json!({
            "type": "link", "title": title, "icon": "doc", "tooltip": "", "tags": [], "asDropdown": false,
            "includeVars": false, "keepTime": false, "targetBlank": true,
            "url": format!("{}/blob/main/{path}", env!("CARGO_PKG_REPOSITORY"))
        })
    };
    json!([
        {
            "type": "dashboards", "title": "kstrobe", "icon": "external link", "tooltip": "", "tags": [TAG],
            "asDropdown": true, "includeVars": true, "keepTime": true, "targetBlank": false, "url": ""
        },
        page("Metrics", "docs/metrics.md"),
        page("Runbooks", "docs/runbooks"),
        page("Captures", "docs/captures.md")
    ])
}
