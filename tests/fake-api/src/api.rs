//! The API server: what it has, who may what, what goes wrong.

use crate::authority::{Authority, Identity};
use crate::faults::{End, Fault};
use crate::proxy::{Backends, Connect};
use crate::route;
use crate::serve::Server;
use crate::store::{Key, Scope, Store};
use serde_json::{Value, json};
use std::collections::{BTreeSet, VecDeque};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{broadcast, watch};

/// The user that the token stands for.
pub(crate) const USER: &str = "system:serviceaccount:kstrobe:kstrobe";

/// A request that came, also one that was refused.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The method of HTTP.
    pub method: String,
    /// Verb and resource, as `watch pods`.
    pub what: String,
    /// Path and query.
    pub uri: String,
    /// Whether it showed a token or a certificate that is right.
    pub known: bool,
}

/// All of the server, for its requests.
pub(crate) struct State {
    pub(crate) store: Mutex<Store>,
    /// The store's version, for those who wait for changes.
    pub(crate) changed: watch::Sender<u64>,
    pub(crate) tell: broadcast::Sender<Tell>,
    pub(crate) token: Mutex<String>,
    pub(crate) forbidden: Mutex<BTreeSet<String>>,
    pub(crate) faults: Mutex<VecDeque<(String, Fault)>>,
    pub(crate) asked: Mutex<Vec<Asked>>,
    pub(crate) backends: Backends,
    pub(crate) knobs: Mutex<Knobs>,
    pub(crate) watches: AtomicU64,
}

/// An event for open watches.
#[derive(Clone)]
pub(crate) enum Tell {
    Bookmark,
    End(End),
}

/// How it behaves all the time.
#[derive(Clone, Default)]
pub(crate) struct Knobs {
    /// 410 as the status of HTTP, as old servers do, and not as an event.
    pub(crate) gone_by_http: bool,
    /// Bytes of lists and watches at once, and the pause between.
    pub(crate) drip: Option<(usize, Duration)>,
}

/// An API server on this machine.
pub struct FakeApi {
    state: Arc<State>,
    authority: Authority,
    server: Server,
}

impl Default for FakeApi {
    fn default() -> FakeApi {
        FakeApi::start()
    }
}

impl FakeApi {
    /// On a free port of 127.0.0.1.
    pub fn start() -> FakeApi {
        FakeApi::start_on(TcpListener::bind("127.0.0.1:0").expect("a port"), &[])
    }

    /// On a listener of the caller's, which may be in another network namespace. `names` are further names and addresses that
    /// its certificate has besides those of this machine and of a cluster's service.
    pub fn start_on(listener: TcpListener, names: &[&str]) -> FakeApi {
        let authority = Authority::default();
        let mut all = vec!["127.0.0.1", "::1", "localhost", "kubernetes", "kubernetes.default.svc"];
        all.extend(names);
        let state = Arc::new(State {
            store: Mutex::default(),
            changed: watch::Sender::new(0),
            tell: broadcast::Sender::new(64),
            token: Mutex::new("a-token-of-the-service-account".into()),
            forbidden: Mutex::default(),
            faults: Mutex::default(),
            asked: Mutex::default(),
            backends: Backends::default(),
            knobs: Mutex::default(),
            watches: AtomicU64::new(0),
        });
        let shared = state.clone();
        let handler = Arc::new(move |request| route::answer_to(shared.clone(), request));
        let server = Server::start(listener, &authority.server(&all), &authority, handler);
        FakeApi { state, authority, server }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.server.address
    }

    /// `https://ADDRESS`
    pub fn url(&self) -> String {
        format!("https://{}", self.server.address)
    }

    /// Who signs its certificate, and those of clients.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// A certificate that it takes instead of the token.
    pub fn client(&self, user: &str) -> Identity {
        self.authority.client(user)
    }

    /// The token that it takes.
    pub fn token(&self) -> String {
        self.state.token.lock().expect("no panic").clone()
    }

    /// Takes this token from now on and no other.
    pub fn set_token(&self, token: &str) {
        *self.state.token.lock().expect("no panic") = token.to_owned();
    }

    /// A kubeconfig file with the token.
    pub fn kubeconfig(&self) -> String {
        use base64::Engine;
        let ca = base64::engine::general_purpose::STANDARD.encode(self.authority.pem());
        format!(
            "apiVersion: v1\nkind: Config\npreferences: {{}}\ncurrent-context: fake\n\
             clusters:\n- name: fake\n  cluster:\n    server: {}\n    certificate-authority-data: {ca}\n\
             users:\n- name: someone\n  user:\n    token: {}\n\
             contexts:\n- name: fake\n  context:\n    cluster: fake\n    user: someone\n    namespace: kstrobe\n",
            self.url(),
            self.token(),
        )
    }

    /// Stores an object as a controller would: made or replaced, with a new version; its status too.
    pub fn put(&self, object: Value) -> Value {
        let stored = self.state.store.lock().expect("no panic").put(key(&object), object);
        self.state.notify();
        stored
    }

    /// Removes an object at once.
    pub fn remove(&self, object: &Value) {
        self.state.store.lock().expect("no panic").remove(&key(object));
        self.state.notify();
    }

    /// An object as it is now, by its path without a leading slash and without a namespace: `api/v1/pods`.
    pub fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<Value> {
        let key = Key { resource: resource.into(), namespace: namespace.into(), name: name.into() };
        self.state.store.lock().expect("no panic").get(&key).cloned()
    }

    /// All objects of a kind as they are now.
    pub fn all(&self, resource: &str) -> Vec<Value> {
        let scope = Scope { resource: resource.into(), ..Scope::default() };
        self.state.store.lock().expect("no panic").all(&scope)
    }

    /// Forgets the history, as after some minutes.
    pub fn compact(&self) {
        self.state.store.lock().expect("no panic").compact();
    }

    /// RBAC no longer allows it; as `list pods`, `patch captures/status`.
    pub fn forbid(&self, what: &str) {
        self.state.forbidden.lock().expect("no panic").insert(what.to_owned());
    }

    /// RBAC allows it again.
    pub fn permit(&self, what: &str) {
        self.state.forbidden.lock().expect("no panic").remove(what);
    }

    /// The next request of this kind (`watch pods`) comes to this. Several wait in a row.
    pub fn next(&self, what: &str, fault: Fault) {
        self.state.faults.lock().expect("no panic").push_back((what.to_owned(), fault));
    }

    /// Faults that have not happened yet.
    pub fn faults_left(&self) -> usize {
        self.state.faults.lock().expect("no panic").len()
    }

    /// Tells open watches how far it is.
    pub fn bookmark(&self) {
        // There may be no watch.
        let _ = self.state.tell.send(Tell::Bookmark);
    }

    /// Ends open watches.
    pub fn end_watches(&self, how: End) {
        let _ = self.state.tell.send(Tell::End(how));
    }

    /// Watches that were opened until now.
    pub fn watches(&self) -> u64 {
        self.state.watches.load(Ordering::SeqCst)
    }

    /// 410 as the status of HTTP instead of an event.
    pub fn set_gone_by_http(&self, by_http: bool) {
        self.state.knobs.lock().expect("no panic").gone_by_http = by_http;
    }

    /// Sends lists and watches in pieces of so many bytes, with a pause between.
    pub fn set_drip(&self, drip: Option<(usize, Duration)>) {
        self.state.knobs.lock().expect("no panic").drip = drip;
    }

    /// Ends all connections and takes no others until it is up again.
    pub fn set_down(&self, down: bool) {
        self.server.set_down(down);
    }

    /// Connections that were taken.
    pub fn connections(&self) -> u64 {
        self.server.accepted.load(Ordering::SeqCst)
    }

    /// What was asked until now, in order.
    pub fn asked(&self) -> Vec<Asked> {
        self.state.asked.lock().expect("no panic").clone()
    }

    /// How often something was asked: `list pods`.
    pub fn count(&self, what: &str) -> usize {
        self.asked().iter().filter(|asked| asked.what == what).count()
    }

    /// Where requests to a port of a pod go. `connect` runs on a thread of its own, where it may enter a network namespace.
    pub fn backend(&self, namespace: &str, pod: &str, port: u16, connect: Connect) {
        self.state.backends.set(namespace, pod, port, connect);
    }

    /// The same with an address that this network namespace reaches.
    pub fn backend_at(&self, namespace: &str, pod: &str, port: u16, address: SocketAddr) {
        let connect = move || std::net::TcpStream::connect_timeout(&address, Duration::from_secs(5));
        self.backend(namespace, pod, port, Arc::new(connect));
    }
}

impl State {
    pub(crate) fn notify(&self) {
        let version = self.store.lock().expect("no panic").version();
        self.changed.send_replace(version);
    }
}

/// Where an object is stored, by what it says of itself.
fn key(object: &Value) -> Key {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
    assert!(!version.is_empty() && !kind.is_empty(), "an object with apiVersion and kind: {object}");
    let prefix = if version.contains('/') { "apis" } else { "api" };
    let metadata = &object["metadata"];
    Key {
        resource: format!("{prefix}/{version}/{}s", kind.to_lowercase()),
        namespace: text(&metadata["namespace"]),
        name: text(&metadata["name"]),
    }
}

/// The kind of a list, by the objects in it.
pub(crate) fn list_of(items: Vec<Value>, resource: &str, metadata: Value) -> Value {
    let version =
        resource.trim_start_matches("apis/").trim_start_matches("api/").rsplit_once('/').map_or("v1", |(v, _)| v);
    let kind = match items.first().and_then(|item| item["kind"].as_str()) {
        Some(kind) => format!("{kind}List"),
        None => "List".to_owned(),
    };
    // Items of built-in lists say neither kind nor version.
    let bare = |mut item: Value| {
        if resource.starts_with("api/")
            && let Some(object) = item.as_object_mut()
        {
            object.remove("kind");
            object.remove("apiVersion");
        }
        item
    };
    let items: Vec<Value> = items.into_iter().map(bare).collect();
    json!({"kind": kind, "apiVersion": version, "metadata": metadata, "items": items})
}
