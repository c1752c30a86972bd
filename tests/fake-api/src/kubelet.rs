//! A kubelet's `/pods`, with its ways of saying no: plain text.

use crate::authority::Authority;
use crate::faults::Fault;
use crate::serve::{Answering, Certified, Server, answer, answer_json, whole};
use http::Request;
use hyper::body::Incoming;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};

struct State {
    pods: Mutex<Vec<Value>>,
    token: Mutex<String>,
    faults: Mutex<VecDeque<Fault>>,
    asked: Mutex<u64>,
}

/// A kubelet on this machine.
pub struct FakeKubelet {
    state: Arc<State>,
    authority: Authority,
    server: Server,
}

impl Default for FakeKubelet {
    fn default() -> FakeKubelet {
        FakeKubelet::start()
    }
}

impl FakeKubelet {
    /// On a free port of 127.0.0.1, with a certificate of its own authority, as kubelets have without a signer.
    pub fn start() -> FakeKubelet {
        FakeKubelet::start_on(TcpListener::bind("127.0.0.1:0").expect("a port"))
    }

    /// On a listener of the caller's.
    pub fn start_on(listener: TcpListener) -> FakeKubelet {
        let authority = Authority::new("node-a@1700000000");
        let state = Arc::new(State {
            pods: Mutex::default(),
            token: Mutex::new("a-token-of-the-service-account".into()),
            faults: Mutex::default(),
            asked: Mutex::new(0),
        });
        let shared = state.clone();
        let handler = Arc::new(move |request| answer_to(shared.clone(), request));
        let server = Server::start(listener, &authority.server(&["127.0.0.1", "node-a"]), &authority, handler);
        FakeKubelet { state, authority, server }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.server.address
    }

    /// `https://ADDRESS`
    pub fn url(&self) -> String {
        format!("https://{}", self.server.address)
    }

    /// Who signs its certificate.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// The token that it takes.
    pub fn token(&self) -> String {
        self.state.token.lock().expect("no panic").clone()
    }

    /// Takes this token from now on and no other.
    pub fn set_token(&self, token: &str) {
        *self.state.token.lock().expect("no panic") = token.to_owned();
    }

    /// The pods of the node.
    pub fn set_pods(&self, pods: Vec<Value>) {
        *self.state.pods.lock().expect("no panic") = pods;
    }

    /// The next request comes to this. Several wait in a row.
    pub fn next(&self, fault: Fault) {
        self.state.faults.lock().expect("no panic").push_back(fault);
    }

    /// Requests that came.
    pub fn asked(&self) -> u64 {
        *self.state.asked.lock().expect("no panic")
    }

    /// Ends all connections and takes no others until it is up again.
    pub fn set_down(&self, down: bool) {
        self.server.set_down(down);
    }
}

fn answer_to(state: Arc<State>, request: Request<Incoming>) -> Answering {
    Box::pin(async move {
        *state.asked.lock().expect("no panic") += 1;
        let fault = state.faults.lock().expect("no panic").pop_front();
        match fault {
            Some(Fault::Status(code, _, text) | Fault::Text(code, text)) => {
                return Ok(answer(code, "text/plain", whole(text)));
            }
            Some(Fault::TooMany(_)) => return Ok(answer(429, "text/plain", whole("too many"))),
            Some(Fault::Body(body)) => return Ok(answer_json(200, &body)),
            Some(Fault::Close) => return Err(io::Error::other("closed by the test")),
            Some(Fault::Late(time)) => tokio::time::sleep(time).await,
            None => {}
        }
        let expected = format!("Bearer {}", state.token.lock().expect("no panic"));
        let by_token = request.headers().get("authorization").is_some_and(|v| v.as_bytes() == expected.as_bytes());
        if !by_token && !request.extensions().get::<Certified>().is_some_and(|certified| certified.0) {
            return Ok(answer(401, "text/plain", whole("Unauthorized")));
        }
        if request.uri().path().trim_end_matches('/') != "/pods" {
            return Ok(answer(404, "text/plain", whole("404 page not found\n")));
        }
        let pods = state.pods.lock().expect("no panic").clone();
        Ok(answer_json(200, &json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods})))
    })
}
