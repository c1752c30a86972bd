//! A real server in this process, files for it, and programs that speak to it.
#![allow(dead_code, unused_imports, reason = "each test uses a part")]

use axum::Router;
use axum::body::Bytes;
use axum::extract::Extension;
use axum::routing::{get, post};
pub use kstrobe_testing::{Folder, certificates, output, witnesses as programs};
use kstrobe_web::{ConfigWatcher, Counters, Counts, Hosts, Identity, Limits, Server, bind};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// A running server that stops when dropped.
pub struct Running {
    pub address: SocketAddr,
    pub counters: Arc<Counters>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// Test routes: client identity, echo, a large body, a blocking response.
pub fn router() -> Router {
    let who = |Extension(identity): Extension<Identity>| async move {
        let known = if identity.token { "token" } else { "-" };
        format!("{} {}\n", identity.user.unwrap_or(known.into()), identity.certificate)
    };
    Router::new()
        .route("/metrics", get(|| async { "up_test 1\n" }))
        .route("/who", get(who))
        .route("/echo", post(|body: Bytes| async { body }))
        .route("/large", get(|| async { vec![b'x'; 16 << 20] }))
        .route("/never", get(std::future::pending::<()>))
}

impl Running {
    /// Starts with this configuration in `folder`, checked on each connection and request.
    pub fn start(folder: &Folder, config: &str) -> Running {
        let file = folder.write("web-config.yml", config);
        Running::start_file(Some(&file), Limits::default())
    }

    pub fn start_file(file: Option<&Path>, limits: Limits) -> Running {
        Running::start_named(file, limits, Hosts::any())
    }

    /// Starts with these host names.
    pub fn start_named(file: Option<&Path>, limits: Limits, hosts: Hosts) -> Running {
        let counters = Arc::new(Counters::default());
        let config = match file {
            Some(file) => ConfigWatcher::open(file, Duration::ZERO, counters.clone()).unwrap(),
            None => ConfigWatcher::plain(counters.clone()),
        };
        let listeners = bind(&["127.0.0.1:0".to_owned()]).unwrap();
        let address = listeners[0].local_addr().unwrap();
        let own_credentials: kstrobe_web::OwnCredentials =
            Arc::new(|headers| headers.get("authorization").is_some_and(|value| value == "Bearer right"));
        let own_credentials = Some(own_credentials);
        let server = Server { listeners, router: router(), config: Arc::new(config), limits, hosts, own_credentials };
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(server.run(async { drop(stopped.await) })).unwrap();
        });
        Running { address, counters, stop: Some(stop), thread: Some(thread) }
    }

    pub fn counts(&self) -> Counts {
        self.counters.counts()
    }

    pub fn ended(&self, why: &str) -> u64 {
        self.counts().ended.iter().find(|(name, _)| *name == why).unwrap().1
    }

    pub fn refused(&self, why: &str) -> u64 {
        self.counts().refused.iter().find(|(name, _)| *name == why).unwrap().1
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    /// Status, header in lower case and body.
    pub fn get(&self, path: &str, headers: &str) -> (u16, String, Vec<u8>) {
        self.ask(&format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n"))
    }

    pub fn ask(&self, request: &str) -> (u16, String, Vec<u8>) {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        answer(&mut stream)
    }

    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if let Some(stop) = self.stop.take() {
            // The server may have stopped on its own; the join below reports it.
            let _ = stop.send(());
            self.thread.take().unwrap().join().unwrap();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// Reads until the server closes the connection.
pub fn answer(stream: &mut TcpStream) -> (u16, String, Vec<u8>) {
    let mut answer = vec![];
    // A client refused while sending gets a reset after the response.
    let _ = stream.read_to_end(&mut answer);
    let Some(end) = answer.windows(4).position(|window| window == b"\r\n\r\n") else {
        return (0, String::from_utf8_lossy(&answer).into(), vec![]);
    };
    let head = String::from_utf8_lossy(&answer[..end]).to_lowercase();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head, answer[end + 4..].to_vec())
}

/// `user:password` as a header.
pub fn basic(pair: &str) -> String {
    use base64::Engine;
    format!("Authorization: Basic {}\r\n", base64::engine::general_purpose::STANDARD.encode(pair))
}

/// bcrypt hash of a password at the lowest cost.
pub fn hash(password: &str) -> String {
    bcrypt::hash(password, 4).unwrap()
}

/// Polls until there is a result.
#[track_caller]
pub fn wait_for<T>(what: &str, ask: impl FnMut() -> Option<T>) -> T {
    kstrobe_testing::wait_for(what, Duration::from_secs(60), ask)
}

/// curl's exit code, the status (0 without an answer), the version of HTTP, and the body.
pub fn curl(arguments: &[&str]) -> (i32, u16, String, String) {
    let mut command = Command::new("curl");
    command.args(["-sS", "--max-time", "30", "-w", "\n%{http_code} %{http_version}"]).args(arguments);
    let done = command.env_remove("https_proxy").env_remove("HTTPS_PROXY").env("no_proxy", "*").output().unwrap();
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    let (body, last) = text.rsplit_once('\n').unwrap_or(("", &text));
    let (status, version) = last.split_once(' ').unwrap_or(("0", ""));
    (done.status.code().unwrap_or(-1), status.parse().unwrap_or(0), version.to_owned(), body.to_owned())
}
