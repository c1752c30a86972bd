//! All nodes' `/metrics`, behind one address: `/nodes/17/metrics`. As the agent's in all that a server of metrics sees.

use super::node::{Recording, Tick, delimited};
use anyhow::{Context, Result};
use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use flate2::Compression;
use flate2::write::GzEncoder;
use kstrobe_export::message::MetricFamily;
use kstrobe_export::{Format, text_0_0_4};
use kstrobe_web::{ConfigWatcher, Hosts, Limits, Server};
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use tokio::sync::oneshot;

/// Connections that Prometheus may keep open.
const CONNECTIONS: usize = 4096;

/// Nodes that are served until it is dropped.
pub struct Nodes {
    /// Where they are.
    pub address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
}

struct Shared {
    recording: Recording,
    /// Scrapes of each node so far.
    scrapes: Vec<AtomicU64>,
    bytes: AtomicU64,
}

/// What was answered so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Answered {
    /// Scrapes of all nodes.
    pub scrapes: u64,
    /// Bytes of their bodies, as sent.
    pub bytes: u64,
}

impl Nodes {
    /// Serves so many of them.
    pub fn start(recording: Recording, nodes: usize) -> Result<Nodes> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let scrapes = (0..nodes).map(|_| AtomicU64::default()).collect();
        let shared = Arc::new(Shared { recording, scrapes, bytes: AtomicU64::default() });
        let router = Router::new().route("/nodes/{node}/metrics", get(metrics)).with_state(shared.clone());
        let limits = Limits { connections: CONNECTIONS, requests: CONNECTIONS, ..Limits::default() };
        let config = Arc::new(ConfigWatcher::plain(Arc::default()));
        let server =
            Server { listeners: vec![listener], router, config, limits, hosts: Hosts::any(), own_credentials: None };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            // The process that stops it may be gone already.
            let run = server.run(async { drop(stopped.await) });
            if let Err(error) = runtime.block_on(run) {
                eprintln!("the simulated nodes cannot be served: {error}");
            }
        });
        Ok(Nodes { address, stop: Some(stop), thread: Some(thread), shared })
    }

    /// What was answered so far.
    pub fn answered(&self) -> Answered {
        let scrapes = self.shared.scrapes.iter().map(|scrapes| scrapes.load(Relaxed)).sum();
        Answered { scrapes, bytes: self.shared.bytes.load(Relaxed) }
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.stop.take().map(|stop| stop.send(()));
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

async fn metrics(State(shared): State<Arc<Shared>>, Path(node): Path<usize>, headers: HeaderMap) -> Response {
    let Some(scrapes) = shared.scrapes.get(node) else { return StatusCode::NOT_FOUND.into_response() };
    let at = Tick { node: node as u64, scrape: scrapes.fetch_add(1, Relaxed) };
    let wanted = |name, word: &str| {
        headers.get(name).and_then(|value| value.to_str().ok()).is_some_and(|value| value.contains(word))
    };
    let format = if wanted(header::ACCEPT, "protobuf") { Format::Protobuf } else { Format::Text004 };
    let gzip = wanted(header::ACCEPT_ENCODING, "gzip");
    let of = shared.clone();
    let made = tokio::task::spawn_blocking(move || body(&of.recording.exposition(at), format, gzip)).await;
    let Ok(Ok(body)) = made else { return StatusCode::INTERNAL_SERVER_ERROR.into_response() };
    shared.bytes.fetch_add(body.len() as u64, Relaxed);
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static(format.content_type()));
    if gzip {
        headers.insert(header::CONTENT_ENCODING, header::HeaderValue::from_static("gzip"));
    }
    response
}

/// An answer's body.
pub fn body(families: &[MetricFamily], format: Format, gzip: bool) -> Result<Vec<u8>> {
    let plain = match format {
        Format::Protobuf => delimited(families),
        Format::Text004 | Format::OpenMetrics100 => text_0_0_4(families),
    };
    if !gzip {
        return Ok(plain);
    }
    // The agent's level.
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(&plain)?;
    encoder.finish().context("packing an answer")
}

#[cfg(test)]
mod tests {
    use super::super::node::{families, tests::recording};
    use super::*;
    use flate2::read::GzDecoder;
    use std::io::Read;

    #[test]
    fn each_node_goes_on_by_itself() {
        let nodes = Nodes::start(recording(), 2).unwrap();
        let ask = |node: usize, accept: &str| {
            let url = format!("http://{}/nodes/{node}/metrics", nodes.address);
            ureq::get(&url).header("accept", accept).call().map(|mut answer| answer.body_mut().read_to_vec().unwrap())
        };
        let first = families(&ask(0, "application/vnd.google.protobuf").unwrap()).unwrap();
        let again = families(&ask(0, "application/vnd.google.protobuf").unwrap()).unwrap();
        assert!(first == recording().exposition(Tick { node: 0, scrape: 0 }) && first != again);
        let other = String::from_utf8(ask(1, "text/plain").unwrap()).unwrap();
        assert!(other.contains("kstrobe_x_seconds_bucket{comm=\"a\",le=\"+Inf\"}"), "{other}");
        assert!(matches!(ask(2, "text/plain"), Err(ureq::Error::StatusCode(404))));
        assert_eq!(nodes.answered().scrapes, 3);
        assert!(nodes.answered().bytes > 0);
    }

    #[test]
    fn packed_it_is_the_same() {
        let families = recording().exposition(Tick { node: 1, scrape: 1 });
        let plain = body(&families, Format::Text004, false).unwrap();
        let packed = body(&families, Format::Text004, true).unwrap();
        let mut unpacked = Vec::new();
        GzDecoder::new(packed.as_slice()).read_to_end(&mut unpacked).unwrap();
        assert_eq!(unpacked, plain);
    }
}
