//! OTLP over HTTP, and remote write.

use crate::push::connection_error::describe_error;
use crate::push::error::Error;
use crate::push::exporter::{Exporter, Kind};
use crate::push::files::Files;
use crate::push::outcome::{self, Outcome};
use crate::push::tls_errors::{Connector, TlsErrorTap};
use crate::push::transport::Service;
use crate::{Part, remote_write};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER, USER_AGENT};
use http::{HeaderName, Method, Request, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use std::io::{self, Write};
use std::time::{Duration, SystemTime};

/// Bytes of a response body that are read.
const MAX_RESPONSE_BYTES: usize = 64 << 10;

pub(crate) struct HttpTransport {
    kind: Kind,
    url: Uri,
    /// The URL without secrets, for messages.
    shown: String,
    timeout: Duration,
    gzip: bool,
    client: Client<Connector, Full<Bytes>>,
    user_agent: String,
    tls_errors: TlsErrorTap,
}

impl HttpTransport {
    pub(crate) fn new(exporter: &Exporter, connector: Connector) -> HttpTransport {
        let tls_errors = connector.tls_errors.clone();
        let client = Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector);
        HttpTransport {
            kind: exporter.kind,
            url: exporter.url.clone(),
            shown: exporter.shown(),
            timeout: exporter.timeout,
            gzip: exporter.gzip,
            client,
            user_agent: user_agent(exporter),
            tls_errors,
        }
    }

    pub(crate) async fn send(&self, service: Service, part: &Part, files: &Files) -> Outcome {
        let request = match self.request(service, part, files) {
            Ok(request) => request,
            Err(error) => {
                return Outcome::Permanent { taken: 0, reason: "bad_request", message: error.to_string() };
            }
        };
        let late = Outcome::Retryable {
            reason: "timeout",
            after: None,
            message: format!("no answer from {} within {:?}", self.shown, self.timeout),
        };
        tokio::time::timeout(self.timeout, self.exchange(request, part.points)).await.unwrap_or(late)
    }

    fn request(&self, service: Service, part: &Part, files: &Files) -> Result<Request<Full<Bytes>>, Error> {
        let mut headers = HeaderMap::new();
        if let Ok(agent) = HeaderValue::from_str(&self.user_agent) {
            headers.insert(USER_AGENT, agent);
        }
        let (url, body) = match self.kind {
            Kind::RemoteWrite => {
                headers.insert(CONTENT_TYPE, HeaderValue::from_static(remote_write::CONTENT_TYPE));
                headers.insert(CONTENT_ENCODING, HeaderValue::from_static("snappy"));
                headers.insert(
                    HeaderName::from_static("x-prometheus-remote-write-version"),
                    HeaderValue::from_static(remote_write::VERSION),
                );
                (self.url.clone(), remote_write::compress(&part.body).ok_or(Error::Snappy)?)
            }
            Kind::OtlpHttp | Kind::OtlpGrpc => {
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
                let body = if self.gzip {
                    headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
                    gzip(&part.body)?
                } else {
                    part.body.clone()
                };
                (below(&self.url, path(service))?, body)
            }
        };
        headers.extend(files.headers.clone());
        let mut request = Request::builder().method(Method::POST).uri(url);
        if let Some(there) = request.headers_mut() {
            *there = headers;
        }
        Ok(request.body(Full::new(Bytes::from(body)))?)
    }

    async fn exchange(&self, request: Request<Full<Bytes>>, points: u64) -> Outcome {
        // The error of an idle connection is not of this request.
        self.tls_errors.take();
        let response = match self.client.request(request).await {
            Ok(response) => response,
            Err(error) => {
                let otherwise = if error.is_connect() { "connect" } else { "connection" };
                let (reason, message) = describe_error(&error, otherwise, self.tls_errors.take().as_ref());
                return Outcome::Retryable { reason, after: None, message: format!("{}: {message}", self.shown) };
            }
        };
        let (head, body) = response.into_parts();
        let retry_after = head.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        // The status decides; a body that is truncated or too long is ignored.
        let body =
            Limited::new(body, MAX_RESPONSE_BYTES).collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        let outcome = outcome::http(self.kind, head.status.as_u16(), retry_after, SystemTime::now(), &body);
        match self.kind {
            Kind::RemoteWrite => outcome::written(outcome, written(&head.headers), points),
            Kind::OtlpGrpc | Kind::OtlpHttp => outcome,
        }
    }
}

/// Samples and histograms that a receiver of remote write 2.0 says it wrote.
fn written(headers: &HeaderMap) -> Option<u64> {
    let number = |name: &str| headers.get(name)?.to_str().ok()?.parse::<u64>().ok();
    let samples = number("x-prometheus-remote-write-samples-written");
    let histograms = number("x-prometheus-remote-write-histograms-written");
    samples.or(histograms)?;
    Some(samples.unwrap_or(0).saturating_add(histograms.unwrap_or(0)))
}

pub(crate) fn user_agent(exporter: &Exporter) -> String {
    format!("kstrobe/{}", exporter.resource.version)
}

fn path(service: Service) -> &'static str {
    match service {
        Service::Metrics => "/v1/metrics",
        Service::Logs => "/v1/logs",
        Service::Traces => "/v1/traces",
    }
}

/// The URL with a path appended to its own.
fn below(url: &Uri, path: &str) -> Result<Uri, Error> {
    let mut parts = url.clone().into_parts();
    let query = url.query().map(|query| format!("?{query}")).unwrap_or_default();
    let path = format!("{}{path}{query}", url.path().trim_end_matches('/'));
    parts.path_and_query = Some(path.parse().map_err(|_| Error::Path(path))?);
    Ok(Uri::from_parts(parts)?)
}

fn gzip(body: &[u8]) -> io::Result<Vec<u8>> {
    // Points repeat names and attributes: the fastest level takes nine tenths of them already.
    let mut encoder = GzEncoder::new(Vec::with_capacity(body.len() / 8), Compression::fast());
    encoder.write_all(body)?;
    encoder.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_go_below_the_url() {
        for (url, expected) in [
            ("http://h:4318", "http://h:4318/v1/metrics"),
            ("http://h:4318/", "http://h:4318/v1/metrics"),
            ("https://h/opentelemetry/?tenant=1", "https://h/opentelemetry/v1/metrics?tenant=1"),
        ] {
            let url: Uri = url.parse().unwrap();
            assert_eq!(below(&url, "/v1/metrics").unwrap().to_string(), expected);
        }
    }
}
