//! OTLP over gRPC: unary calls whose messages are encoded already.

use crate::Part;
use crate::push::connection_error::describe_error;
use crate::push::exporter::Exporter;
use crate::push::files::Files;
use crate::push::http_transport::user_agent;
use crate::push::outcome::{self, Outcome};
use crate::push::tls_errors::{Connector, TlsErrorTap};
use crate::push::transport::Service;
use bytes::{Buf, BufMut, Bytes};
use http::uri::PathAndQuery;
use std::error::Error;
use std::time::Duration;
use tonic::client::Grpc;
use tonic::codec::{Codec, CompressionEncoding, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

pub(crate) struct GrpcTransport {
    channel: Channel,
    timeout: Duration,
    gzip: bool,
    url: String,
    tls_errors: TlsErrorTap,
}

impl GrpcTransport {
    pub(crate) fn new(exporter: &Exporter, connector: Connector) -> GrpcTransport {
        let endpoint = Endpoint::from(exporter.url.clone()).connect_timeout(exporter.timeout);
        // The name is plain text, and without it the crate's own is sent.
        let endpoint = endpoint.clone().user_agent(user_agent(exporter)).unwrap_or(endpoint);
        let tls_errors = connector.tls_errors.clone();
        GrpcTransport {
            channel: endpoint.connect_with_connector_lazy(connector),
            timeout: exporter.timeout,
            gzip: exporter.gzip,
            url: exporter.shown(),
            tls_errors,
        }
    }

    pub(crate) async fn send(&self, service: Service, part: &Part, files: &Files) -> Outcome {
        let late = Outcome::Retryable {
            reason: "timeout",
            after: None,
            message: format!("no answer from {} within {:?}", self.url, self.timeout),
        };
        tokio::time::timeout(self.timeout, self.exchange(service, part, files)).await.unwrap_or(late)
    }

    async fn exchange(&self, service: Service, part: &Part, files: &Files) -> Outcome {
        let mut client = Grpc::new(self.channel.clone());
        if self.gzip {
            client = client.send_compressed(CompressionEncoding::Gzip);
        }
        let client = &mut client.accept_compressed(CompressionEncoding::Gzip);
        // The error of an idle connection is not of this request.
        self.tls_errors.take();
        if let Err(error) = client.ready().await {
            return self.broken(&error, "connect");
        }
        let mut request = Request::new(Bytes::copy_from_slice(&part.body));
        *request.metadata_mut() = MetadataMap::from_headers(files.headers.clone());
        request.set_timeout(self.timeout);
        match client.unary(request, path(service), Encoded).await {
            Ok(response) => {
                let (refused, message) = crate::otlp::refused(response.get_ref());
                Outcome::Accepted { refused, message }
            }
            // A failure of the connection is a status too, whose cause says what happened.
            Err(status) => match status.source() {
                Some(cause) => self.broken(cause, "connection"),
                None => outcome::grpc(status.code() as i32, status.message(), status.details()),
            },
        }
    }

    fn broken(&self, error: &(dyn Error + 'static), otherwise: &'static str) -> Outcome {
        let (reason, message) = describe_error(error, otherwise, self.tls_errors.take().as_ref());
        Outcome::Retryable { reason, after: None, message: format!("{}: {message}", self.url) }
    }
}

fn path(service: Service) -> PathAndQuery {
    PathAndQuery::from_static(match service {
        Service::Metrics => "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
        Service::Logs => "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
        Service::Traces => "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    })
}

/// Messages as bytes: what is sent was encoded before it was queued.
#[derive(Clone, Copy)]
struct Encoded;

impl Codec for Encoded {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Encoded;
    type Decoder = Encoded;

    fn encoder(&mut self) -> Encoded {
        Encoded
    }

    fn decoder(&mut self) -> Encoded {
        Encoded
    }
}

impl Encoder for Encoded {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put(item);
        Ok(())
    }
}

impl Decoder for Encoded {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}
