//! A listener with TLS and HTTP/1.1, each connection a task that ends with the server.

use crate::authority::{Authority, Identity};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use serde_json::Value;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

pub(crate) type Body = UnsyncBoxBody<Bytes, io::Error>;
pub(crate) type Answer = Response<Body>;
pub(crate) type Answering = Pin<Box<dyn Future<Output = Result<Answer, io::Error>> + Send>>;
/// An error closes the connection.
pub(crate) type Handler = Arc<dyn Fn(Request<Incoming>) -> Answering + Send + Sync>;

/// Whether the client showed a certificate of the authority; among the extensions of a request.
#[derive(Clone, Copy)]
pub(crate) struct Certified(pub(crate) bool);

/// A running server; it ends with its value.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    runtime: Option<Runtime>,
    down: Arc<AtomicBool>,
    /// Connections that were made before its value changed end.
    epoch: watch::Sender<u64>,
    pub(crate) accepted: Arc<AtomicU64>,
}

impl Server {
    pub(crate) fn start(listener: TcpListener, identity: &Identity, clients: &Authority, handler: Handler) -> Server {
        let address = listener.local_addr().expect("a bound listener");
        listener.set_nonblocking(true).expect("a socket");
        let tls = TlsAcceptor::from(Arc::new(tls(identity, clients)));
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads");
        let (epoch, ended) = watch::channel(0);
        let (down, accepted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (is_down, count) = (down.clone(), accepted.clone());
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            while let Ok((stream, _)) = listener.accept().await {
                if is_down.load(Ordering::SeqCst) {
                    continue;
                }
                count.fetch_add(1, Ordering::SeqCst);
                let (tls, handler, mut ended) = (tls.clone(), handler.clone(), ended.clone());
                ended.mark_unchanged();
                tokio::spawn(async move {
                    let connection = async {
                        let Ok(stream) = tls.accept(stream).await else { return };
                        let certified = Certified(stream.get_ref().1.peer_certificates().is_some());
                        let service = service_fn(move |mut request: Request<Incoming>| {
                            request.extensions_mut().insert(certified);
                            handler(request)
                        });
                        // What a client breaks off is its own business.
                        let _ = hyper::server::conn::http1::Builder::new()
                            .serve_connection(TokioIo::new(stream), service)
                            .await;
                    };
                    tokio::select! { () = connection => {} _ = ended.changed() => {} }
                });
            }
        });
        Server { address, runtime: Some(runtime), down, epoch, accepted }
    }

    /// Ends all connections at once, and takes no others until it is up again.
    pub(crate) fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::SeqCst);
        if down {
            self.epoch.send_modify(|epoch| *epoch += 1);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn tls(identity: &Identity, clients: &Authority) -> ServerConfig {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(clients.pem().as_bytes()).expect("a certificate")).expect("an authority");
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
    let verifier = verifier.allow_unauthenticated().build().expect("an authority");
    let chain = vec![CertificateDer::from_pem_slice(identity.cert.as_bytes()).expect("a certificate")];
    let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).expect("a key");
    ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .expect("a certificate and its key")
}

pub(crate) fn whole(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

pub(crate) fn answer(code: u16, kind: &'static str, body: Body) -> Answer {
    let answer = Response::builder().status(code).header("content-type", kind).body(body);
    answer.expect("a status and a header of our own")
}

pub(crate) fn answer_json(code: u16, value: &Value) -> Answer {
    answer(code, "application/json", whole(value.to_string()))
}
