//! TLS to real receivers: the right and the wrong authority, certificates of ours, names, secrets from files, and files that
//! change while it is sent.

#[path = "support/mod.rs"]
mod support;

use kstrobe_export::otlp::Temporality;
use kstrobe_export::push::task::start_at;
use kstrobe_export::push::{Exporter, ExporterTask, Kind};
use kstrobe_testing::servers::{self, Collector, Tls};
use kstrobe_testing::there;
use kstrobe_testing::{Folder, certificates};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::{Counting, receiver, until};
use tokio::runtime::Handle;

const PATIENCE: Duration = Duration::from_secs(60);

/// Two authorities; of the first a server whose name is `collector` and a client, of the second a client.
fn with_certificates() -> Folder {
    let folder = Folder::new();
    certificates::authority(&folder, "ours");
    certificates::authority(&folder, "theirs");
    let names = "subjectAltName = DNS:collector,DNS:localhost\nextendedKeyUsage = serverAuth";
    certificates::make(&folder, "server", Some("ours"), &format!("basicConstraints = critical,CA:FALSE\n{names}"));
    certificates::client(&folder, "client", "ours", "");
    certificates::client(&folder, "stranger", "theirs", "");
    folder
}

/// Of a server, which may ask for a client's certificate.
fn tls(folder: &Folder) -> Tls {
    Tls { cert: folder.path("server.crt"), key: folder.path("server.key"), client_ca: folder.path("ours.crt") }
}

fn file(folder: &Folder, name: &str) -> Option<PathBuf> {
    Some(folder.0.join(name))
}

/// What was logged by all tests of this file.
static LOG: Mutex<String> = Mutex::new(String::new());

struct Log;

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LOG.lock().unwrap().push_str(&String::from_utf8_lossy(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Collects the log. One test at a time, as the log does not name its test.
async fn alone() -> tokio::sync::MutexGuard<'static, ()> {
    static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    let turn = TURN.lock().await;
    // Another test of this file was first.
    let _ = tracing_subscriber::fmt().with_ansi(false).with_writer(|| Log).try_init();
    turn
}

fn push(receiver: Exporter) -> ExporterTask {
    let source = Counting::new();
    start_at(receiver, Arc::new(move || source.read()), &Handle::current(), Duration::ZERO)
}

/// A receiver of the server at this address, by one of its names, with the right authority and client.
fn right(kind: Kind, address: SocketAddr, path: &str, folder: &Folder) -> Exporter {
    let mut receiver = receiver(kind, &format!("https://localhost:{}{path}", address.port()), Temporality::Cumulative);
    receiver.tls.ca_file = file(folder, "ours.crt");
    receiver.tls.cert_file = file(folder, "client.crt");
    receiver.tls.key_file = file(folder, "client.key");
    receiver
}

/// It is sent to, and nothing fails.
async fn arrives(receiver: Exporter) {
    let what = format!("{receiver:?}");
    let pusher = push(receiver);
    until("points", || pusher.usage().sent >= 4).await;
    let usage = pusher.stop(PATIENCE).await;
    assert!(usage.failed.is_empty() && usage.dropped.is_empty(), "{what}: {usage:?}");
}

/// Sending fails with this reason in the metrics and these words in the log.
async fn fails(receiver: Exporter, reason: &str, said: &[&str]) {
    let what = format!("{receiver:?}");
    LOG.lock().unwrap().clear();
    let pusher = push(receiver);
    until(&format!("`{reason}` of {what}"), || pusher.usage().failed.contains_key(reason)).await;
    let usage = pusher.stop(Duration::from_millis(200)).await;
    assert_eq!(usage.sent, 0, "{what}");
    let log = LOG.lock().unwrap().clone();
    for words in said {
        assert!(log.contains(words), "`{words}` is not in the log of {what}:\n{log}");
    }
}

/// The wrong authority, no certificate or one of others, and a name that the server's certificate does not have.
async fn what_is_wrong_is_told(right: &Exporter, folder: &Folder, asks_for_certificate: bool) {
    let with = |change: fn(&mut Exporter, &Folder)| {
        let mut receiver = right.clone();
        change(&mut receiver, folder);
        receiver
    };
    let other_authority = with(|receiver, folder| receiver.tls.ca_file = file(folder, "theirs.crt"));
    fails(other_authority, "tls", &["UnknownIssuer", "`ca_file` has to be the authority"]).await;
    let no_authority = with(|receiver, folder| receiver.tls.ca_file = file(folder, "gone.crt"));
    fails(no_authority, "settings", &["gone.crt", "No such file"]).await;
    let by_address = with(|receiver, _| {
        receiver.url = receiver.url.to_string().replace("localhost", "127.0.0.1").parse().unwrap();
    });
    fails(by_address.clone(), "tls", &["not valid for name", "`server_name` can be set"]).await;
    let mut by_name = by_address;
    by_name.tls.server_name = Some("collector".into());
    arrives(by_name).await;
    if asks_for_certificate {
        let no_certificate = with(|receiver, _| (receiver.tls.cert_file, receiver.tls.key_file) = (None, None));
        fails(no_certificate, "tls", &["CertificateRequired", "set `cert_file` and `key_file`"]).await;
        let stranger = with(|receiver, folder| {
            receiver.tls.cert_file = file(folder, "stranger.crt");
            receiver.tls.key_file = file(folder, "stranger.key");
        });
        fails(stranger, "tls", &["does not take our certificate"]).await;
    }
    let plain = with(|receiver, _| {
        receiver.url = receiver.url.to_string().replace("https://", "http://").parse().unwrap();
    });
    let pusher = push(plain);
    until("a failure without TLS", || !pusher.usage().failed.is_empty()).await;
    assert_eq!(pusher.stop(Duration::from_millis(200)).await.sent, 0);
}

/// The files are read anew for each report.
async fn certificates_can_be_replaced(right: &Exporter, folder: &Folder) {
    let mut receiver = right.clone();
    receiver.tls.ca_file = file(folder, "ca.crt");
    let put = |name: &str| std::fs::copy(folder.0.join(name), folder.0.join("ca.crt")).unwrap();
    put("theirs.crt");
    let pusher = push(receiver);
    until("a failure", || pusher.usage().failed.contains_key("tls")).await;
    put("ours.crt");
    until("points", || pusher.usage().sent >= 4).await;
    let usage = pusher.stop(PATIENCE).await;
    assert!(usage.dropped.is_empty(), "{usage:?}");
}

fn openssl(test: &str) -> bool {
    kstrobe_testing::witnesses(test, &["openssl"])
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Prometheus"]
async fn root_tls_prometheus_with_certificates_and_passwords() {
    let test = "root_tls_prometheus";
    let Some(program) = there(test, "prometheus").filter(|_| openssl(test)) else { return };
    let turn = alone().await;
    let folder = with_certificates();
    // `sesame` by bcrypt.
    let web = folder.write(
        "web.yml",
        &format!(
            "tls_server_config:\n  cert_file: {}\n  key_file: {}\n  client_ca_file: {}\n  \
             client_auth_type: RequireAndVerifyClientCert\nbasic_auth_users:\n  \
             agent: $2b$05$VIvbutLI27RtsYQATIyi6evR/bML0XMVf3c8k4dgCvGxSHzpLNvzS\n",
            folder.path("server.crt"),
            folder.path("server.key"),
            folder.path("ours.crt"),
        ),
    );
    let server = servers::prometheus(&program, Some(&web));
    // `agent:sesame`, and the same with another password.
    let headers = folder.write("headers", "Authorization: Basic YWdlbnQ6c2VzYW1l\n");
    let mut right = right(Kind::RemoteWrite, server.address(), "/api/v1/write?token=in-the-query", &folder);
    right.headers_file = Some(headers);
    // It may still be reading its empty store.
    let pusher = push(right.clone());
    until("points", || pusher.usage().sent >= 4).await;
    pusher.stop(PATIENCE).await;
    arrives(right.clone()).await;
    what_is_wrong_is_told(&right, &folder, true).await;
    certificates_can_be_replaced(&right, &folder).await;
    let mut wrong = right.clone();
    wrong.headers_file = Some(folder.write("wrong", "Authorization: Basic YWdlbnQ6c2VjcmV0\n"));
    fails(wrong.clone(), "unauthorized", &["401", "then=\"dropped\""]).await;
    wrong.headers_file = None;
    fails(wrong, "unauthorized", &["401"]).await;
    let log = LOG.lock().unwrap().clone();
    for secret in ["YWdlbnQ6", "in-the-query", "sesame"] {
        assert!(!log.contains(secret), "`{secret}` is in the log:\n{log}");
    }
    drop(turn);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs VictoriaMetrics"]
async fn root_tls_victoria_metrics() {
    let test = "root_tls_victoria_metrics";
    let found = there(test, "victoria-metrics");
    let Some(program) = found.filter(|_| openssl(test)) else { return };
    let turn = alone().await;
    let folder = with_certificates();
    let server = servers::victoria_metrics(&program, Some(&tls(&folder)));
    let right = right(Kind::OtlpHttp, server.address(), "/opentelemetry", &folder);
    arrives(right.clone()).await;
    what_is_wrong_is_told(&right, &folder, false).await;
    certificates_can_be_replaced(&right, &folder).await;
    drop(turn);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an OpenTelemetry Collector"]
async fn root_collector_tls_by_both_protocols() {
    let test = "root_collector_tls";
    let Some(program) = kstrobe_testing::collector(test).filter(|_| openssl(test)) else { return };
    let turn = alone().await;
    let folder = with_certificates();
    let collector = Collector::start(&program, Some(&tls(&folder)));
    for (kind, address) in [(Kind::OtlpGrpc, collector.grpc), (Kind::OtlpHttp, collector.http)] {
        let right = right(kind, address, "", &folder);
        arrives(right.clone()).await;
        what_is_wrong_is_told(&right, &folder, true).await;
        certificates_can_be_replaced(&right, &folder).await;
    }
    drop(turn);
}
