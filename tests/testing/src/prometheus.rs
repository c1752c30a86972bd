//! Prometheus' API, which VictoriaMetrics speaks, too.

use crate::http::{escape, get};
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Where it is asked.
#[derive(Clone, Copy, Debug)]
pub struct Api(pub SocketAddr);

/// A series of an answer to an instant query.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Its labels, the name included.
    pub labels: BTreeMap<String, String>,
    /// Its value; NaN for a native histogram.
    pub value: f64,
    /// Its value as it came, when it is a native histogram.
    pub histogram: Option<Value>,
}

impl Api {
    /// The series that an expression gives now.
    #[track_caller]
    pub fn query(self, expression: &str) -> Vec<Sample> {
        let sample = |series: &Value| Sample {
            labels: labels(&series["metric"]),
            value: series["value"][1].as_str().map_or(f64::NAN, number),
            histogram: series.get("histogram").map(|histogram| histogram[1].clone()),
        };
        self.result(expression).iter().map(sample).collect()
    }

    /// The value of an expression that gives one series; `None` when it gives none.
    #[track_caller]
    pub fn value(self, expression: &str) -> Option<f64> {
        let series = self.query(expression);
        assert!(series.len() < 2, "{expression}: {series:?}");
        series.first().map(|sample| sample.value)
    }

    /// All samples of one series (`x{..}[5m]`), oldest first; of a native histogram its counts.
    #[track_caller]
    pub fn samples(self, selector: &str) -> Vec<f64> {
        let series = self.result(selector);
        let [series] = series.as_slice() else { panic!("{selector}: {series:?}") };
        let list = |key: &str| series[key].as_array().cloned().unwrap_or_default();
        let floats = list("values").into_iter().map(|pair| number(pair[1].as_str().expect("a number")));
        let counts = list("histograms").into_iter().map(|pair| number(pair[1]["count"].as_str().expect("a count")));
        floats.chain(counts).collect()
    }

    /// Exemplars of the series of a selector, of the last hour: labels of the series, and each exemplar as it came.
    #[track_caller]
    pub fn exemplars(self, selector: &str) -> Vec<(BTreeMap<String, String>, Vec<Value>)> {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        let query = format!("query={}&start={}&end={}", escape(selector), now - 3600, now + 3600);
        let data = self.get(&format!("/api/v1/query_exemplars?{query}"));
        let series = data.as_array().expect("series").iter();
        series.map(|s| (labels(&s["seriesLabels"]), s["exemplars"].as_array().cloned().unwrap_or_default())).collect()
    }

    /// What it says of its targets: an error each that has one.
    #[track_caller]
    pub fn scrape_errors(self) -> Vec<String> {
        let targets = self.get("/api/v1/targets");
        let errors =
            targets["activeTargets"].as_array().into_iter().flatten().map(|t| {
                format!("{}: {}", t["scrapePool"].as_str().unwrap_or(""), t["lastError"].as_str().unwrap_or(""))
            });
        errors.filter(|error| !error.ends_with(": ")).collect()
    }

    #[track_caller]
    fn result(self, expression: &str) -> Vec<Value> {
        let data = self.get(&format!("/api/v1/query?query={}", escape(expression)));
        data["result"].as_array().cloned().unwrap_or_default()
    }

    /// `data` of an answer.
    #[track_caller]
    fn get(self, path: &str) -> Value {
        let (status, body) = get(self.0, path).expect("no answer");
        assert_eq!(status, 200, "{path}: {body}");
        let answer: Value = serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"));
        answer["data"].clone()
    }
}

fn labels(metric: &Value) -> BTreeMap<String, String> {
    let pairs = metric.as_object().into_iter().flatten();
    pairs.map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned())).collect()
}

fn number(text: &str) -> f64 {
    text.parse().unwrap_or_else(|_| panic!("`{text}` is no number"))
}
