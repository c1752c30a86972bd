//! A real Prometheus that scrapes the agent in each format.

use super::{program, wait_for};
use kstrobe_testing::{Api, Server, free};
use std::net::SocketAddr;
use std::ops::Deref;
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

/// A running one. Dropping it kills it.
pub struct Prometheus {
    api: Api,
    _server: Server,
}

impl Prometheus {
    /// Starts one that scrapes this agent each second in each format.
    pub fn start(agent: SocketAddr) -> Prometheus {
        Prometheus::with(agent, "", "")
    }

    /// The same as the chart's monitors have it done: the target has names of its own, and those that the agent says stay.
    pub fn in_a_cluster(agent: SocketAddr, namespace: &str, pod: &str) -> Prometheus {
        let names = format!(", labels: {{ namespace: {namespace}, pod: {pod} }}");
        Prometheus::with(agent, "honor_labels: true, ", &names)
    }

    fn with(agent: SocketAddr, of_jobs: &str, of_targets: &str) -> Prometheus {
        let jobs = JOBS.map(|(job, protocol)| {
            format!(
                "  - {{ job_name: {job}, scrape_protocols: [{protocol}], always_scrape_classic_histograms: true, \
                 {of_jobs}static_configs: [{{ targets: ['{agent}']{of_targets} }}] }}\n"
            )
        });
        let config =
            format!("global: {{ scrape_interval: 1s, scrape_timeout: 1s }}\nscrape_configs:\n{}", jobs.concat());
        let address = free();
        let server = Server::start(&program(PROGRAM).expect("Prometheus"), address, "/-/ready", |folder| {
            vec![
                format!("--config.file={}", folder.write("prometheus.yml", &config).display()),
                format!("--storage.tsdb.path={}", folder.path("data")),
                format!("--web.listen-address={address}"),
                FEATURES.to_owned(),
            ]
        });
        Prometheus { api: Api(address), _server: server }
    }

    /// The value of an expression that gives one series, once there is one that is wanted.
    #[track_caller]
    pub fn wait(&self, expression: &str, wanted: impl Fn(f64) -> bool) -> f64 {
        wait_for(expression, SOON, || self.value(expression).filter(|value| wanted(*value)))
    }
}

impl Deref for Prometheus {
    type Target = Api;

    fn deref(&self) -> &Api {
        &self.api
    }
}
