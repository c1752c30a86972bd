//! Panels of a dashboard, as Grafana's JSON has them.

use crate::promql::Form;
use serde_json::{Value, json};

/// Every panel asks the data source that the dashboard's variable names.
pub fn datasource() -> Value {
    json!({"type": "prometheus", "uid": "${datasource}"})
}

/// Matchers of every query.
pub const MATCHERS: &str = r#"job=~"$job", instance=~"$instance""#;
/// Window of every rate.
pub const WINDOW: &str = "$__rate_interval";

/// A query of a panel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// PromQL with the dashboard's variables in it.
    pub expr: String,
    /// Name of its series.
    pub legend: String,
    /// Set when it reads a form of histograms: that of its set of dashboards.
    pub form: Option<Form>,
}

impl Target {
    /// A query that is the same in both sets of dashboards.
    pub fn new(expr: impl Into<String>, legend: impl Into<String>) -> Self {
        Self { expr: expr.into(), legend: legend.into(), form: None }
    }

    /// A query that reads histograms of a form.
    pub fn of(form: Form, expr: impl Into<String>, legend: impl Into<String>) -> Self {
        Self { form: Some(form), ..Self::new(expr, legend) }
    }
}

/// How a panel shows its results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Lines over time.
    Lines,
    /// Lines over time, stacked.
    Stacked,
    /// The largest now, as bars.
    Bars,
    Number,
    /// Counts by bucket over time.
    Heatmap,
    /// Rows of labels and the last value.
    Table,
    /// Text in Markdown; it has no queries.
    Text,
}

/// A panel without its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    /// For people.
    pub title: String,
    /// What it shows and what to make of it; of a text, the text.
    pub about: String,
    /// Grafana's word for the unit.
    pub unit: &'static str,
    /// How it looks.
    pub look: Look,
    /// Its queries.
    pub targets: Vec<Target>,
    /// Columns of 24.
    pub width: u32,
}

/// Which agent a link leads to.
#[derive(Clone, Copy)]
enum Linked {
    /// By the label `instance` of the series.
    Series,
    /// By the column `instance` of the table.
    Row,
    /// By the variable `instance`, as the series is a sum over nodes.
    Chosen,
}

/// Links of every series: to the node, and to the page of the agent there.
fn data_links(linked: Linked) -> Value {
    let (node, address) = match linked {
        Linked::Series => ("var-instance=${__field.labels.instance}", "${__field.labels.instance}"),
        Linked::Row => ("var-instance=${__data.fields.instance}", "${__data.fields.instance}"),
        Linked::Chosen => ("${instance:queryparam}", "${instance}"),
    };
    json!([
        {
            "title": "Node",
            "url": format!("/d/kstrobe-node?${{datasource:queryparam}}&${{job:queryparam}}&{node}&${{__url_time_range}}"),
            "targetBlank": false
        },
        {"title": "Page of the agent", "url": format!("http://{address}/"), "targetBlank": true},
        {"title": "Captures of the agent", "url": format!("http://{address}/#/captures"), "targetBlank": true},
        {
            "title": "How to start a capture",
            "url": format!("{}/blob/main/docs/captures.md", env!("CARGO_PKG_REPOSITORY")),
            "targetBlank": true
        }
    ])
}

impl Panel {
    /// Rows of the grid that it takes.
    pub fn height(&self) -> u32 {
        match self.look {
            Look::Number => 4,
            Look::Text => 3,
            _ => 8,
        }
    }

    /// Its JSON at a place.
    pub fn json(&self, id: u32, x: u32, y: u32) -> Value {
        let mut panel = json!({
            "id": id,
            "type": self.kind(),
            "title": self.title,
            "description": self.about,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": self.height()},
            "fieldConfig": {"defaults": self.field_defaults(), "overrides": []},
            "options": self.options(),
        });
        if self.look != Look::Text {
            panel["datasource"] = datasource();
            panel["targets"] = self.targets.iter().enumerate().map(|(n, target)| self.target(n, target)).collect();
        }
        if self.look == Look::Table {
            // The time of an instant query says nothing.
            panel["transformations"] = json!([
                {"id": "organize", "options": {"excludeByName": {"Time": true, "__name__": true}}}
            ]);
        }
        panel
    }

    fn kind(&self) -> &'static str {
        match self.look {
            Look::Lines | Look::Stacked => "timeseries",
            Look::Bars => "bargauge",
            Look::Number => "stat",
            Look::Heatmap => "heatmap",
            Look::Table => "table",
            Look::Text => "text",
        }
    }

    fn target(&self, number: usize, target: &Target) -> Value {
        let now = matches!(self.look, Look::Bars | Look::Number | Look::Table);
        let format = match self.look {
            Look::Heatmap => "heatmap",
            Look::Table => "table",
            _ => "time_series",
        };
        json!({
            "refId": char::from(b'A' + u8::try_from(number).unwrap_or(25).min(25)).to_string(),
            "datasource": datasource(),
            "expr": target.expr,
            "legendFormat": target.legend,
            "format": format,
            "instant": now,
            "range": !now,
            "exemplar": self.look == Look::Lines && target.form.is_some(),
        })
    }

    fn field_defaults(&self) -> Value {
        let links = data_links(match self.targets.iter().any(|target| target.legend.contains("{{instance}}")) {
            true if self.look == Look::Table => Linked::Row,
            true => Linked::Series,
            false => Linked::Chosen,
        });
        match self.look {
            Look::Text => json!({}),
            Look::Heatmap => json!({"custom": {"scaleDistribution": {"type": "linear"}}}),
            Look::Lines | Look::Stacked => {
                let stacking = if self.look == Look::Stacked { "normal" } else { "none" };
                let fill = if self.look == Look::Stacked { 40 } else { 5 };
                json!({
                    "unit": self.unit,
                    "links": links,
                    "custom": {
                        "drawStyle": "line",
                        "lineWidth": 1,
                        "fillOpacity": fill,
                        "showPoints": "never",
                        "spanNulls": false,
                        "stacking": {"mode": stacking, "group": "A"}
                    }
                })
            }
            Look::Bars | Look::Number | Look::Table => {
                json!({"unit": self.unit, "links": links, "min": 0, "color": {"mode": "palette-classic"}})
            }
        }
    }

    fn options(&self) -> Value {
        match self.look {
            Look::Lines | Look::Stacked => json!({
                "legend": {"displayMode": "table", "placement": "bottom", "showLegend": true, "calcs": ["mean", "max"]},
                "tooltip": {"mode": "multi", "sort": "desc"}
            }),
            Look::Bars => json!({
                "displayMode": "gradient", "orientation": "horizontal", "showUnfilled": true, "valueMode": "color",
                "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": false}
            }),
            Look::Number => json!({
                "colorMode": "none", "graphMode": "none", "justifyMode": "auto", "orientation": "auto", "textMode": "auto",
                "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": false}
            }),
            Look::Heatmap => json!({
                "calculate": false,
                "cellGap": 1,
                "color": {"mode": "scheme", "scheme": "Oranges", "scale": "exponential", "exponent": 0.5, "steps": 64},
                "exemplars": {"color": "rgba(255,0,255,0.7)"},
                "filterValues": {"le": 1e-9},
                "legend": {"show": true},
                "rowsFrame": {"layout": "auto"},
                "tooltip": {"mode": "single", "yHistogram": true},
                "yAxis": {"axisPlacement": "left", "unit": self.unit, "reverse": false}
            }),
            Look::Table => json!({"showHeader": true, "cellHeight": "sm"}),
            Look::Text => json!({"mode": "markdown", "content": self.about}),
        }
    }
}
