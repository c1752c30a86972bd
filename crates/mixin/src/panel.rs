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
/// Name of the variable that says which form of histograms is read; its values are [`form_value`].
pub const FORM_VARIABLE: &str = "histogram";

/// What the variable is for a form.
pub fn form_value(form: Form) -> u32 {
    match form {
        Form::Classic => 1,
        Form::Native => 2,
    }
}

/// A query of a panel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// PromQL with the dashboard's variables in it.
    pub expr: String,
    /// Name of its series.
    pub legend: String,
    /// Set when it reads a form of histograms: it has no result while the variable says the other one.
    pub form: Option<Form>,
}

impl Target {
    /// A query that is the same for both forms.
    pub fn new(expr: impl Into<String>, legend: impl Into<String>) -> Self {
        Self { expr: expr.into(), legend: legend.into(), form: None }
    }

    /// A query for each form.
    pub fn forms(legend: &str, expr: impl Fn(Form) -> String) -> Vec<Self> {
        let target = |form| Self {
            // PromQL has no other condition: the right side has one sample, or none.
            expr: format!("({}) and on () (vector(${FORM_VARIABLE}) == {})", expr(form), form_value(form)),
            legend: legend.to_owned(),
            form: Some(form),
        };
        crate::FORMS.map(target).to_vec()
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

/// Links of every series: to the node, and to what the agent there has recorded. A series that is a sum over nodes leads to
/// the one chosen above.
fn data_links(of_node: bool) -> Value {
    let (node, address) = match of_node {
        true => ("var-instance=${__field.labels.instance}", "${__field.labels.instance}"),
        false => ("${instance:queryparam}", "${instance}"),
    };
    json!([
        {
            "title": "Node",
            "url": format!("/d/kstrobe-node?${{datasource:queryparam}}&${{job:queryparam}}&{node}&${{__url_time_range}}"),
            "targetBlank": false
        },
        {"title": "Captures on this node (JSON)", "url": format!("http://{address}/api/v1/captures"), "targetBlank": true},
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
        let links = data_links(self.targets.iter().any(|target| target.legend.contains("{{instance}}")));
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
