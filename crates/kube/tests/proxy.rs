//! Requests to pods through the API server.

mod support;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response};
use http_body_util::channel::{Channel, Sender};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kstrobe_fake_api::{FakeApi, objects};
use kstrobe_kube::{PodPort, checked};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use support::client;

type Parts = Arc<Mutex<Option<Sender<Bytes, Infallible>>>>;

/// A pod's server: `/stream` is what comes through the channel, every other path echoes the request.
async fn pod(parts: Parts) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let parts = parts.clone();
            let service = service_fn(move |request: Request<Incoming>| {
                let parts = parts.clone();
                async move {
                    if request.uri().path() == "/stream" {
                        let (sender, channel) = Channel::<Bytes, Infallible>::new(1);
                        *parts.lock().unwrap() = Some(sender);
                        return Ok::<_, Infallible>(Response::new(channel.boxed()));
                    }
                    let header =
                        |name: &str| request.headers().get(name).map_or("-", |v| v.to_str().unwrap()).to_owned();
                    let (token, auth) = (header("x-token"), header("authorization"));
                    let (method, uri) = (request.method().clone(), request.uri().clone());
                    let body = request.into_body().collect().await.unwrap().to_bytes();
                    let text = format!("{method} {uri} {token} {auth} {}", String::from_utf8_lossy(&body));
                    let status = if uri.path() == "/busy" { 429 } else { 200 };
                    Ok(Response::builder().status(status).body(Full::from(text).boxed()).unwrap())
                }
            });
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    address
}

fn web(port: u16) -> PodPort {
    PodPort { namespace: "shop".into(), pod: "web-5d8f7c9b6d-x7k2p".into(), port: port.to_string(), https: false }
}

#[tokio::test]
async fn methods_headers_and_bodies_reach_the_pod() {
    let api = FakeApi::start();
    api.put(objects::web());
    api.backend_at("shop", "web-5d8f7c9b6d-x7k2p", 9779, pod(Parts::default()).await);
    let client = client(&api);
    let mut headers = HeaderMap::new();
    headers.insert("x-token", HeaderValue::from_static("t"));
    let ask = async |method: Method, path: &str, body: &'static str| {
        let answer =
            client.pod_proxy(&web(9779), method, path, headers.clone(), Bytes::from_static(body.as_bytes())).await;
        let answer = answer.unwrap();
        let status = answer.status().as_u16();
        (status, String::from_utf8(answer.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap())
    };
    assert_eq!(ask(Method::GET, "/api/v1/probes?x=%20", "").await, (200, "GET /api/v1/probes?x=%20 t - ".into()));
    assert_eq!(ask(Method::POST, "/api/v1/captures", "{}").await, (200, "POST /api/v1/captures t - {}".into()));
    assert_eq!(ask(Method::DELETE, "/api/v1/captures/a", "").await, (200, "DELETE /api/v1/captures/a t - ".into()));
    // The pod's own refusal is the pod's.
    assert_eq!(ask(Method::GET, "/busy", "").await, (429, "GET /busy t - ".into()));
}

#[tokio::test]
async fn an_answer_comes_as_the_pod_sends_it() {
    let (api, parts) = (FakeApi::start(), Parts::default());
    api.put(objects::web());
    api.backend_at("shop", "web-5d8f7c9b6d-x7k2p", 9779, pod(parts.clone()).await);
    let client = client(&api);
    let answer = client.pod_proxy(&web(9779), Method::GET, "/stream", HeaderMap::new(), Bytes::new()).await.unwrap();
    let mut body = checked(answer).await.unwrap().into_body();
    let mut sender = parts.lock().unwrap().take().unwrap();
    // Each part is sent only when the one before it has arrived.
    for part in ["one", "two", "three"] {
        sender.send_data(Bytes::from_static(part.as_bytes())).await.unwrap();
        let frame = body.frame().await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), part);
    }
    drop(sender);
    assert!(body.frame().await.is_none());
}

#[tokio::test]
async fn errors_of_the_api_server_are_distinguished_from_errors_of_the_pod() {
    let api = FakeApi::start();
    api.put(objects::web());
    let client = client(&api);
    let refused = async |to: &PodPort| {
        let answer = client.pod_proxy(to, Method::GET, "/", HeaderMap::new(), Bytes::new()).await.unwrap();
        let error = checked(answer).await.unwrap_err();
        error.status().unwrap().clone()
    };
    let unreachable = refused(&web(9779)).await;
    assert_eq!((unreachable.code, unreachable.is_kubernetes()), (503, true));
    assert!(unreachable.message.starts_with("error trying to reach service"), "{unreachable}");
    let gone = PodPort { pod: "gone".into(), ..web(9779) };
    assert_eq!(refused(&gone).await.reason, "NotFound");
    api.forbid("get pods/proxy");
    assert!(refused(&web(9779)).await.message.contains("cannot get resource \"pods/proxy\""));
    api.permit("get pods/proxy");
    api.backend_at("shop", "web-5d8f7c9b6d-x7k2p", 9779, pod(Parts::default()).await);
    let answer = client.pod_proxy(&web(9779), Method::GET, "/busy", HeaderMap::new(), Bytes::new()).await.unwrap();
    let busy = checked(answer).await.unwrap_err();
    assert!(busy.is(429) && !busy.status().unwrap().is_kubernetes());
}

#[tokio::test]
async fn agents_are_found_by_their_labels() {
    let api = FakeApi::start();
    objects::node_a().into_iter().for_each(|pod| drop(api.put(pod)));
    let client = client(&api);
    let names = async |namespace: Option<&str>, labels: &str, fields: &str| {
        let pods = client.pods(namespace, labels, fields).await.unwrap();
        pods.iter().map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(None, "app=mysql", "").await, ["mysql-0"]);
    assert_eq!(names(Some("shop"), "app in (web,mysql)", "spec.nodeName=node-a").await.len(), 4);
    assert_eq!(names(None, "", "").await.len(), 10);
    assert!(client.pods(None, "", "spec.color=red").await.unwrap_err().is(400));
}
