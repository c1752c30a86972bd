//! The way to one receiver.

use crate::Part;
use crate::push::files::Files;
use crate::push::grpc::GrpcDoor;
use crate::push::http_door::HttpDoor;
use crate::push::outcome::Outcome;
use crate::push::overheard::Connector;
use crate::push::settings::{Kind, Receiver};
use crate::push::tls;
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::pki_types::ServerName;

/// What is sent: the protocols' services have a path each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    Metrics,
    Logs,
    Traces,
}

/// A client with its connections.
pub(crate) enum Door {
    Http(Box<HttpDoor>),
    Grpc(GrpcDoor),
}

impl Door {
    /// Nothing is connected yet. An error says what in the settings or files is wrong.
    pub(crate) fn new(receiver: &Receiver, files: &Files) -> Result<Door, String> {
        let connector = connector(receiver, files)?;
        Ok(match receiver.kind {
            Kind::OtlpGrpc => Door::Grpc(GrpcDoor::new(receiver, connector)),
            Kind::OtlpHttp | Kind::RemoteWrite => Door::Http(Box::new(HttpDoor::new(receiver, connector))),
        })
    }

    /// Sends one request, within the receiver's timeout.
    pub(crate) async fn send(&self, service: Service, part: &Part, files: &Files) -> Outcome {
        match self {
            Door::Http(door) => door.send(service, part, files).await,
            Door::Grpc(door) => door.send(service, part, files).await,
        }
    }
}

fn connector(receiver: &Receiver, files: &Files) -> Result<Connector, String> {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    let encrypted = receiver.url.scheme_str() == Some("https");
    let config = if encrypted { tls::config(files)? } else { kstrobe_tls::without_authorities()? };
    let mut builder = HttpsConnectorBuilder::new().with_tls_config(config).https_or_http();
    if let Some(name) = &receiver.tls.server_name {
        let name = ServerName::try_from(name.clone()).map_err(|_| format!("`{name}` is not a server's name"))?;
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    Ok(Connector::from(match receiver.kind {
        Kind::OtlpGrpc => builder.enable_http2().wrap_connector(http),
        Kind::OtlpHttp | Kind::RemoteWrite => builder.enable_http1().enable_http2().wrap_connector(http),
    }))
}
