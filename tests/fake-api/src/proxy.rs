//! `pods/NAME:PORT/proxy/..`: a request that is passed on to a pod, as the API server does it.

use crate::api::State;
use crate::refusal::refuse;
use crate::route::Target;
use crate::serve::Answer;
use crate::store::Key;
use http::Request;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use std::collections::BTreeMap;
use std::io;
use std::net::TcpStream;
use std::sync::{Arc, Mutex};

/// Connects to a pod; it may block, and has a thread of its own.
pub type Connect = Arc<dyn Fn() -> io::Result<TcpStream> + Send + Sync>;

/// Ports of pods: by namespace, name and number.
#[derive(Default)]
pub(crate) struct Backends(Mutex<BTreeMap<(String, String, u16), Connect>>);

impl Backends {
    pub(crate) fn set(&self, namespace: &str, pod: &str, port: u16, connect: Connect) {
        self.0.lock().expect("no panic").insert((namespace.into(), pod.into(), port), connect);
    }

    fn get(&self, namespace: &str, pod: &str, port: u16) -> Option<Connect> {
        self.0.lock().expect("no panic").get(&(namespace.into(), pod.into(), port)).cloned()
    }
}

/// `[https:]NAME[:PORT]`
fn pod_and_port(name: &str) -> (&str, u16) {
    let name = name.strip_prefix("https:").or_else(|| name.strip_prefix("http:")).unwrap_or(name);
    let (pod, port) = name.split_once(':').unwrap_or((name, "80"));
    (pod, port.parse().unwrap_or(0))
}

pub(crate) async fn forward(state: &State, target: &Target, request: Request<Incoming>) -> io::Result<Answer> {
    let (pod, port) = pod_and_port(&target.name);
    let key = Key { resource: target.resource.clone(), namespace: target.namespace.clone(), name: pod.to_owned() };
    if state.store.lock().expect("no panic").get(&key).is_none() {
        return Ok(crate::refusal::not_found("pods", "", pod));
    }
    let unreachable = |error: &dyn std::fmt::Display| {
        Ok(refuse(503, "ServiceUnavailable", &format!("error trying to reach service: {error}")))
    };
    let Some(connect) = state.backends.get(&target.namespace, pod, port) else {
        return unreachable(&format!("dial tcp 10.0.0.1:{port}: connect: connection refused"));
    };
    let connected = tokio::task::spawn_blocking(move || connect()).await.map_err(io::Error::other)?;
    let stream = connected.and_then(|stream| {
        stream.set_nonblocking(true)?;
        tokio::net::TcpStream::from_std(stream)
    });
    let stream = match stream {
        Ok(stream) => stream,
        Err(error) => return unreachable(&format!("dial tcp 10.0.0.1:{port}: {error}")),
    };
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    tokio::spawn(connection);
    match sender.send_request(towards(target, request)?).await {
        Ok(answer) => Ok(answer.map(|body| body.map_err(io::Error::other).boxed_unsync())),
        Err(error) => unreachable(&error),
    }
}

/// The request as the pod sees it. The API server has used up the header `Authorization` for authentication, and leaves `Host`
/// as the client wrote it: its own name, not the pod's (apimachinery's `UpgradeAwareHandler` without `UseLocationHost`).
fn towards(target: &Target, request: Request<Incoming>) -> io::Result<Request<Incoming>> {
    let (mut head, body) = request.into_parts();
    let query = head.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let original = head.uri.path().to_owned();
    head.uri = format!("/{}{query}", target.rest).parse().map_err(io::Error::other)?;
    head.headers.remove("authorization");
    head.headers.remove("connection");
    let header = |text: String| http::HeaderValue::try_from(text).map_err(io::Error::other);
    head.headers.insert("x-forwarded-uri", header(original)?);
    head.headers.insert("x-forwarded-proto", header("https".into())?);
    head.headers.insert("x-forwarded-for", header("127.0.0.1".into())?);
    Ok(Request::from_parts(head, body))
}
