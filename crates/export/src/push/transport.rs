//! The transport of one exporter: OTLP over gRPC or HTTP, remote write.

use crate::Part;
use crate::push::error::Error;
use crate::push::exporter::{Exporter, Kind};
use crate::push::files::Files;
use crate::push::grpc_transport::GrpcTransport;
use crate::push::http_transport::HttpTransport;
use crate::push::outcome::Outcome;
use crate::push::tls;
use crate::push::tls_errors::Connector;
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::pki_types::ServerName;

/// An OTLP service; each has a path of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    Metrics,
    Logs,
    Traces,
}

/// A client with its pool of connections.
pub(crate) enum Transport {
    Http(Box<HttpTransport>),
    Grpc(GrpcTransport),
}

impl Transport {
    /// Connects on the first request.
    pub(crate) fn new(exporter: &Exporter, files: &Files) -> Result<Transport, Error> {
        let connector = connector(exporter, files)?;
        Ok(match exporter.kind {
            Kind::OtlpGrpc => Transport::Grpc(GrpcTransport::new(exporter, connector)),
            Kind::OtlpHttp | Kind::RemoteWrite => Transport::Http(Box::new(HttpTransport::new(exporter, connector))),
        })
    }

    /// Sends one request, within the exporter's timeout.
    pub(crate) async fn send(&self, service: Service, part: &Part, files: &Files) -> Outcome {
        match self {
            Transport::Http(transport) => transport.send(service, part, files).await,
            Transport::Grpc(transport) => transport.send(service, part, files).await,
        }
    }
}

fn connector(exporter: &Exporter, files: &Files) -> Result<Connector, Error> {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    let encrypted = exporter.url.scheme_str() == Some("https");
    let config = if encrypted { tls::config(files)? } else { kstrobe_tls::without_authorities()? };
    let mut builder = HttpsConnectorBuilder::new().with_tls_config(config).https_or_http();
    if let Some(name) = &exporter.tls.server_name {
        let name = ServerName::try_from(name.clone()).map_err(|_| Error::ServerName(name.clone()))?;
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    Ok(Connector::from(match exporter.kind {
        Kind::OtlpGrpc => builder.enable_http2().wrap_connector(http),
        Kind::OtlpHttp | Kind::RemoteWrite => builder.enable_http1().enable_http2().wrap_connector(http),
    }))
}
