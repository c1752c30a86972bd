//! Real receivers of metrics, as the tests that send to them start them: on loopback, with all they can take.

use crate::{Server, free};
use std::net::SocketAddr;
use std::path::Path;

/// What a server shows, and whose certificates it asks for; paths of files in PEM form.
#[derive(Clone, Debug)]
pub struct Tls {
    /// Its certificate.
    pub cert: String,
    /// The certificate's key.
    pub key: String,
    /// The authority of clients; VictoriaMetrics asks for none.
    pub client_ca: String,
}

/// VictoriaMetrics, which shows at once what came.
#[track_caller]
pub fn victoria_metrics(program: &Path, tls: Option<&Tls>) -> Server {
    let address = free();
    Server::start(program, address, ready("health", tls.is_some()), |folder| {
        let mut arguments = vec![
            format!("-httpListenAddr={address}"),
            format!("-storageDataPath={}", folder.path("data")),
            "-search.latencyOffset=0s".into(),
            "-inmemoryDataFlushInterval=1s".into(),
        ];
        if let Some(Tls { cert, key, .. }) = tls {
            arguments.extend(["-tls".into(), format!("-tlsCertFile={cert}"), format!("-tlsKeyFile={key}")]);
        }
        arguments
    })
}

/// Prometheus without targets, which accepts remote writes. `web` is its file about TLS and passwords.
#[track_caller]
pub fn prometheus(program: &Path, web: Option<&Path>) -> Server {
    let address = free();
    Server::start(program, address, ready("-/ready", web.is_some()), |folder| {
        let mut arguments = vec![
            format!("--config.file={}", folder.write("prometheus.yml", "scrape_configs: []\n").display()),
            format!("--storage.tsdb.path={}", folder.path("data")),
            format!("--web.listen-address={address}"),
            "--web.enable-remote-write-receiver".into(),
            "--enable-feature=native-histograms,exemplar-storage,metadata-wal-records".into(),
        ];
        arguments.extend(web.map(|file| format!("--web.config.file={}", file.display())));
        arguments
    })
}

/// A page says that a server is ready. Over TLS a plain request has an answer as soon as it listens, and no page.
fn ready(page: &'static str, tls: bool) -> &'static str {
    if tls { "" } else { page }
}

/// An OpenTelemetry Collector that prints whatever comes by either protocol.
#[derive(Debug)]
pub struct Collector {
    /// The process.
    pub server: Server,
    /// Where it takes OTLP over gRPC.
    pub grpc: SocketAddr,
    /// Where it takes OTLP over HTTP.
    pub http: SocketAddr,
}

impl Collector {
    #[track_caller]
    pub fn start(program: &Path, tls: Option<&Tls>) -> Collector {
        let (grpc, http) = (free(), free());
        let server = Server::start(program, http, "", |folder| {
            let config = folder.write("config.yaml", &settings(grpc, http, tls));
            vec![format!("--config={}", config.display())]
        });
        Collector { server, grpc, http }
    }

    /// The data points that came until now, in their order.
    pub fn points(&self) -> Vec<Point> {
        points(&self.server.log())
    }
}

fn settings(grpc: SocketAddr, http: SocketAddr, tls: Option<&Tls>) -> String {
    let tls = tls.map_or_else(String::new, |Tls { cert, key, client_ca }| {
        format!(", tls: {{ cert_file: {cert}, key_file: {key}, client_ca_file: {client_ca} }}")
    });
    let pipeline = "{ receivers: [otlp], exporters: [debug] }";
    // Beyond `sampling_initial` lines a second it would print some only.
    format!(
        "receivers: {{ otlp: {{ protocols: {{ grpc: {{ endpoint: '{grpc}'{tls} }}, http: {{ endpoint: '{http}'{tls} }} }} }} }}\n\
         exporters: {{ debug: {{ verbosity: detailed, sampling_initial: 1000000 }} }}\n\
         service:\n  telemetry: {{ metrics: {{ level: none }} }}\n  \
         pipelines: {{ metrics: {pipeline}, logs: {pipeline}, traces: {pipeline} }}\n"
    )
}

/// A data point as a Collector prints it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Point {
    /// The metric's name.
    pub metric: String,
    /// `Cumulative` or `Delta`; empty for a gauge.
    pub temporality: String,
    /// Its value; of a histogram the number of observations.
    pub value: f64,
    /// Bounds and counts of a histogram.
    pub buckets: Vec<(f64, f64, u64)>,
}

/// What stands in a list has an arrow: what describes a metric does, and values of exemplars; points' own values do not.
fn points(log: &str) -> Vec<Point> {
    let (mut points, mut about) = (Vec::<Point>::new(), Point::default());
    for line in log.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("-> Name: ") {
            about = Point { metric: name.to_owned(), ..Point::default() };
        } else if let Some(temporality) = line.strip_prefix("-> AggregationTemporality: ") {
            about.temporality = temporality.to_owned();
        } else if let Some(value) = line.strip_prefix("Value: ").or_else(|| line.strip_prefix("Count: ")) {
            points.push(Point { value: value.parse().unwrap(), ..about.clone() });
        } else if let Some((point, bucket)) = points.last_mut().zip(line.strip_prefix("Bucket (")) {
            let (bounds, count) = bucket.split_once("], Count: ").unwrap();
            let (lower, upper) = bounds.split_once(", ").unwrap();
            point.buckets.push((lower.parse().unwrap(), upper.parse().unwrap(), count.parse().unwrap()));
        }
    }
    points
}

/// The total of a metric: the last cumulative point, or the sum of deltas.
pub fn total(points: &[Point], metric: &str, temporality: &str) -> f64 {
    let values = points.iter().filter(|point| point.metric == metric && point.temporality == temporality);
    let mut values = values.map(|point| point.value);
    if temporality == "Delta" { values.sum() } else { values.next_back().unwrap_or(0.0) }
}
