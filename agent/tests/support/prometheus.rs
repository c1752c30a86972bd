//! A real Prometheus that scrapes the agent in each format, as a process of the test's own.

use super::agent::get;
use super::metrics::Labels;
use super::{Folder, program, wait_for};
use serde_json::Value;
use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The program's name in Debian.
pub const PROGRAM: &str = "prometheus";

/// Versions before 3.8 take native histograms by this flag alone.
const FEATURES: &str = "--enable-feature=native-histograms,created-timestamp-zero-ingestion,exemplar-storage";

/// Jobs, each with the only format it asks for.
pub const JOBS: [(&str, &str); 3] =
    [("protobuf", "PrometheusProto"), ("openmetrics", "OpenMetricsText1.0.0"), ("text", "PrometheusText0.0.4")];

/// How long what was scraped may take to be seen, on a busy machine.
pub const SOON: Duration = Duration::from_secs(60);

/// A running one, on loopback alone. Dropping it kills it.
pub struct Prometheus {
    child: Child,
    address: SocketAddr,
    folder: Folder,
}

/// A series of an answer to an instant query.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Its labels, the name included.
    pub labels: Labels,
    /// Its value; NaN for a native histogram.
    pub value: f64,
    /// Its value as it came, when it is a native histogram.
    pub histogram: Option<Value>,
}

impl Prometheus {
    /// Starts one that scrapes this agent each second in each format.
    pub fn start(agent: SocketAddr) -> Prometheus {
        let folder = Folder::new();
        let jobs = JOBS.map(|(job, protocol)| {
            format!(
                "  - {{ job_name: {job}, scrape_protocols: [{protocol}], always_scrape_classic_histograms: true, \
                 static_configs: [{{ targets: ['{agent}'] }}] }}\n"
            )
        });
        let config = format!("global: {{ scrape_interval: 1s, scrape_timeout: 1s }}\nscrape_configs:\n{}", jobs.concat());
        let config = folder.write("prometheus.yml", &config);
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let log = File::create(folder.0.join("log")).unwrap();
        let child = Command::new(program(PROGRAM).expect("Prometheus"))
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", folder.0.join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .arg(FEATURES)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut started = Prometheus { child, address, folder };
        wait_for("Prometheus", SOON, || {
            if let Some(status) = started.child.try_wait().unwrap() {
                panic!("Prometheus ended with {status}:\n{}", started.log());
            }
            get(address, "/-/ready").filter(|(status, _)| *status == 200)
        });
        started
    }

    /// The series that an expression gives now.
    #[track_caller]
    pub fn query(&self, expression: &str) -> Vec<Sample> {
        let sample = |series: &Value| Sample {
            labels: labels(&series["metric"]),
            value: series["value"][1].as_str().map_or(f64::NAN, number),
            histogram: series.get("histogram").map(|histogram| histogram[1].clone()),
        };
        self.result(expression).iter().map(sample).collect()
    }

    /// The value of an expression that gives one series; `None` when it gives none.
    #[track_caller]
    pub fn value(&self, expression: &str) -> Option<f64> {
        let series = self.query(expression);
        assert!(series.len() < 2, "{expression}: {series:?}");
        series.first().map(|sample| sample.value)
    }

    /// The same, once there is one that is wanted.
    #[track_caller]
    pub fn wait(&self, expression: &str, wanted: impl Fn(f64) -> bool) -> f64 {
        wait_for(expression, SOON, || self.value(expression).filter(|value| wanted(*value)))
    }

    /// All samples of one series (`x{..}[5m]`), oldest first; of a native histogram its counts.
    #[track_caller]
    pub fn samples(&self, selector: &str) -> Vec<f64> {
        let series = self.result(selector);
        let [series] = series.as_slice() else { panic!("{selector}: {series:?}") };
        let list = |key: &str| series[key].as_array().cloned().unwrap_or_default();
        let floats = list("values").into_iter().map(|pair| number(pair[1].as_str().expect("a number")));
        let counts = list("histograms").into_iter().map(|pair| number(pair[1]["count"].as_str().expect("a count")));
        floats.chain(counts).collect()
    }

    /// Exemplars of the series of a selector, of the last hour: labels of the series, and each exemplar as it came.
    #[track_caller]
    pub fn exemplars(&self, selector: &str) -> Vec<(Labels, Vec<Value>)> {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        let query = format!("query={}&start={}&end={}", escape(selector), now - 3600, now + 3600);
        let data = self.api(&format!("/api/v1/query_exemplars?{query}"));
        let series = data.as_array().expect("series").iter();
        series.map(|s| (labels(&s["seriesLabels"]), s["exemplars"].as_array().cloned().unwrap_or_default())).collect()
    }

    /// What it says of its targets: an error each that has one.
    pub fn scrape_errors(&self) -> Vec<String> {
        let targets = self.api("/api/v1/targets");
        let errors = targets["activeTargets"].as_array().into_iter().flatten().map(|t| {
            format!("{}: {}", t["scrapePool"].as_str().unwrap_or(""), t["lastError"].as_str().unwrap_or(""))
        });
        errors.filter(|error| !error.ends_with(": ")).collect()
    }

    fn result(&self, expression: &str) -> Vec<Value> {
        let data = self.api(&format!("/api/v1/query?query={}", escape(expression)));
        data["result"].as_array().cloned().unwrap_or_default()
    }

    fn api(&self, path: &str) -> Value {
        let (status, body) = get(self.address, path).expect("Prometheus does not answer");
        assert_eq!(status, 200, "{path}: {body}");
        let answer: Value = serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"));
        answer["data"].clone()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.0.join("log")).unwrap_or_default()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("Prometheus's log:\n{}", self.log());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn labels(metric: &Value) -> Labels {
    let pairs = metric.as_object().into_iter().flatten();
    pairs.map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned())).collect()
}

fn number(text: &str) -> f64 {
    text.parse().unwrap_or_else(|_| panic!("`{text}` is no number"))
}

/// For the query of a URL.
fn escape(text: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(byte);
    text.bytes().map(|b| if plain(&b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}
