//! TLS, with curl and certificates made by openssl.

mod support;

use kstrobe_web::ConfigWatcher;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use support::{Folder, Running, certificates, curl, hash, output, programs, wait_for};

const NEEDED: [&str; 2] = ["curl", "openssl"];

/// An authority `ca` and its server `server`.
fn folder() -> Folder {
    let folder = Folder::new();
    certificates::authority(&folder, "ca");
    certificates::server(&folder, "server", "ca");
    folder
}

const SERVER: &str = "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n";

fn url(server: &Running, path: &str) -> String {
    format!("https://localhost:{}{path}", server.address.port())
}

/// Status and version of a request that trusts `ca`.
fn ask(server: &Running, folder: &Folder, arguments: &[&str]) -> (i32, u16, String, String) {
    let (ca, url) = (folder.path("ca.crt"), url(server, "/who"));
    let mut all = vec!["--cacert", &ca, &url];
    all.extend(arguments);
    curl(&all)
}

#[test]
#[ignore = "needs curl and openssl"]
fn root_tls_with_http_2_and_1_and_a_word_for_those_without() {
    if !programs("root_tls_with_http_2_and_1_and_a_word_for_those_without", &NEEDED) {
        return;
    }
    let folder = folder();
    let server = Running::start(&folder, SERVER);
    let expected = |version: &str| (0, 200, version.to_owned(), "- false\n".to_owned());
    assert_eq!(ask(&server, &folder, &[]), expected("2"));
    assert_eq!(ask(&server, &folder, &["--http1.1"]), expected("1.1"));
    for version in ["1.2", "1.3"] {
        assert_eq!(ask(&server, &folder, &["--tls-max", version]), expected("2"), "{version}");
    }
    // Ten at once on one connection.
    let url = url(&server, "/large?[1-10]");
    let ca = folder.path("ca.crt");
    let text = output(Command::new("curl").args([
        "-sS",
        "--cacert",
        &ca,
        "-Z",
        "-o",
        "/dev/null",
        "-w",
        "%{size_download}\n",
        &url,
    ]));
    assert_eq!(text.lines().filter(|line| *line == "16777216").count(), 10, "{text}");
    assert_ne!(ask(&server, &folder, &["--tlsv1.0", "--tls-max", "1.1"]).0, 0);
    let (_, status, _, body) = curl(&[&format!("http://localhost:{}/who", server.address.port())]);
    assert_eq!((status, body.as_str()), (400, "this server speaks HTTPS: write https:// instead of http://\n"));
    // The client has its answer before the server counts.
    wait_for("both failed handshakes", || (server.ended("handshake") >= 2).then_some(()));
    // A client that does not trust the authority.
    assert_eq!(curl(&[&url]).0, 60);
}

#[test]
#[ignore = "needs curl and openssl"]
fn root_tls_versions_suites_curves_and_no_http_2() {
    if !programs("root_tls_versions_suites_curves_and_no_http_2", &NEEDED) {
        return;
    }
    let folder = folder();
    let config = format!("{SERVER}  min_version: TLS13\nhttp_server_config:\n  http2: false\n");
    let server = Running::start(&folder, &config);
    let (code, status, version, _) = ask(&server, &folder, &[]);
    assert_eq!((code, status, version.as_str()), (0, 200, "1.1"));
    assert_ne!(ask(&server, &folder, &["--tls-max", "1.2"]).0, 0);

    let suite = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384";
    let config =
        format!("{SERVER}  max_version: TLS12\n  cipher_suites: [{suite}]\n  curve_preferences: [CurveP384]\n");
    let server = Running::start(&folder, &config);
    assert_eq!(ask(&server, &folder, &[]).1, 200);
    assert_ne!(ask(&server, &folder, &["--tlsv1.3"]).0, 0);
    assert_ne!(ask(&server, &folder, &["--ciphers", "ECDHE-ECDSA-AES128-GCM-SHA256"]).0, 0);
    assert_eq!(ask(&server, &folder, &["--ciphers", "ECDHE-ECDSA-AES256-GCM-SHA384"]).1, 200);
    // OpenSSL wants the certificate's own curve to be among its client's.
    assert_ne!(ask(&server, &folder, &["--curves", "X25519:P-256"]).0, 0);
    assert_eq!(ask(&server, &folder, &["--curves", "P-384:P-256"]).1, 200);
}

#[test]
#[ignore = "needs curl and openssl"]
fn root_tls_certificates_of_clients() {
    if !programs("root_tls_certificates_of_clients", &NEEDED) {
        return;
    }
    let folder = folder();
    certificates::authority(&folder, "other");
    certificates::client(
        &folder,
        "right",
        "ca",
        "DNS:prometheus.example,IP:10.0.0.1,URI:spiffe://example/p,email:p@example.org",
    );
    certificates::client(&folder, "nameless", "ca", "");
    certificates::client(&folder, "foreign", "other", "DNS:prometheus.example");
    let with = |server: &Running, name: &str| {
        let (cert, key) = (folder.path(&format!("{name}.crt")), folder.path(&format!("{name}.key")));
        let arguments: &[&str] = if name.is_empty() { &[] } else { &["--cert", &cert, "--key", &key] };
        let (_, status, _, body) = ask(server, &folder, arguments);
        (status, body)
    };
    let (known, unknown, none) = ((200, "- true\n".to_owned()), (200, "- false\n".to_owned()), (0, String::new()));
    let names = ["", "right", "nameless", "foreign"];
    for (kind, expected) in [
        ("NoClientCert", [&unknown, &unknown, &unknown, &unknown]),
        ("RequestClientCert", [&unknown, &unknown, &unknown, &unknown]),
        ("RequireAnyClientCert", [&none, &unknown, &unknown, &unknown]),
        ("VerifyClientCertIfGiven", [&unknown, &known, &known, &none]),
        ("RequireAndVerifyClientCert", [&none, &known, &known, &none]),
    ] {
        let ca = if kind.contains("Verify") { "  client_ca_file: ca.crt\n" } else { "" };
        let server = Running::start(&folder, &format!("{SERVER}  client_auth_type: {kind}\n{ca}"));
        for (name, expected) in names.iter().zip(expected) {
            assert_eq!(&with(&server, name), expected, "{kind} {name}");
        }
    }
    let kind = "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n";
    for (allowed, may) in [
        ("prometheus.example", true),
        ("10.0.0.1", true),
        ("spiffe://example/p", true),
        ("p@example.org", true),
        ("prometheus.example.org", false),
        ("right", false),
    ] {
        let config = format!("{SERVER}{kind}  client_allowed_sans: [nobody.example, \"{allowed}\"]\n");
        let server = Running::start(&folder, &config);
        assert_eq!(with(&server, "right").0 == 200, may, "{allowed}");
        assert_eq!(with(&server, "nameless").0, 0, "{allowed}");
    }
    // A certificate and a password.
    let config = format!("{SERVER}{kind}basic_auth_users:\n  alice: {}\n", hash("secret"));
    let server = Running::start(&folder, &config);
    let (cert, key) = (folder.path("right.crt"), folder.path("right.key"));
    let both = |user: &str| ask(&server, &folder, &["--cert", &cert, "--key", &key, "-u", user]);
    assert_eq!(both("alice:secret").3, "alice true\n");
    assert_eq!(both("alice:wrong").1, 401);
    assert_eq!(with(&server, "right").0, 401);
    assert_eq!(ask(&server, &folder, &["-u", "alice:secret"]).1, 0);
}

#[test]
#[ignore = "needs curl and openssl"]
fn root_tls_certificates_change_while_a_connection_is_open() {
    if !programs("root_tls_certificates_change_while_a_connection_is_open", &NEEDED) {
        return;
    }
    let folder = folder();
    certificates::server(&folder, "second", "ca");
    let server = Running::start(&folder, SERVER);
    let address = format!("localhost:{}", server.address.port());
    let shown = || {
        let mut command = Command::new("openssl");
        command.args(["s_client", "-connect", &address, "-servername", "localhost"]).stdin(Stdio::null());
        let text = String::from_utf8_lossy(&command.output().unwrap().stdout).into_owned();
        let at = text.find("subject=").unwrap_or_else(|| panic!("{text}"));
        text[at..].lines().next().unwrap().replace(' ', "")
    };
    assert_eq!(shown(), "subject=CN=server");
    let ca = folder.path("ca.crt");
    let mut open = Command::new("openssl")
        .args(["s_client", "-quiet", "-verify_return_error", "-CAfile", &ca, "-connect", &address])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let (mut send, mut receive) = (open.stdin.take().unwrap(), open.stdout.take().unwrap());
    let mut still = || {
        write!(send, "GET /who HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut answer = String::new();
        let mut bytes = [0; 1024];
        while !answer.ends_with("- false\n") {
            let read = receive.read(&mut bytes).unwrap();
            assert!(read > 0, "the connection ended: {answer}");
            answer.push_str(&String::from_utf8_lossy(&bytes[..read]));
        }
        answer.starts_with("HTTP/1.1 200")
    };
    assert!(still());
    // The new certificate without its key fits nothing: the old pair stays.
    let replace = |from: &str, to: &str| {
        std::fs::copy(folder.0.join(from), folder.0.join("new")).unwrap();
        std::fs::rename(folder.0.join("new"), folder.0.join(to)).unwrap();
    };
    replace("second.crt", "server.crt");
    assert_eq!(shown(), "subject=CN=server");
    assert!(still());
    let counts = server.counts();
    assert_eq!((counts.reload_failures, counts.reload_ok), (1, false));
    replace("second.key", "server.key");
    assert_eq!(shown(), "subject=CN=second");
    assert!(still());
    let counts = server.counts();
    assert_eq!((counts.reloads, counts.reload_failures, counts.reload_ok), (1, 1, true));
    // TLS does not go away because a file does, or is emptied.
    folder.write("web-config.yml", "");
    assert_eq!(shown(), "subject=CN=second");
    std::fs::remove_file(folder.0.join("server.key")).unwrap();
    folder.write("web-config.yml", SERVER);
    assert_eq!(shown(), "subject=CN=second");
    assert!(still());
    open.kill().unwrap();
    open.wait().unwrap();
}

#[test]
#[ignore = "needs openssl"]
fn root_tls_errors_in_certificates_are_reported() {
    if !programs("root_tls_errors_in_certificates_are_reported", &["openssl"]) {
        return;
    }
    let folder = folder();
    certificates::server(&folder, "second", "ca");
    output(Command::new("openssl").args([
        "ec",
        "-aes128",
        "-passout",
        "pass:x",
        "-in",
        &folder.path("server.key"),
        "-out",
        &folder.path("locked.key"),
    ]));
    for (lines, expected) in [
        ("  cert_file: server.crt\n  key_file: second.key\n", "the key does not belong to the certificate"),
        ("  cert_file: server.key\n  key_file: server.key\n", "there is no certificate in PEM form in it"),
        ("  cert_file: server.crt\n  key_file: server.crt\n", "the key has no private key in PEM form"),
        ("  cert_file: server.crt\n  key_file: locked.key\n", "one with a passphrase cannot be read"),
        (
            "  cert_file: server.crt\n  key_file: server.key\n  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.key\n",
            "there is no authority for clients in PEM form in it",
        ),
    ] {
        let file = folder.write("web-config.yml", &format!("tls_server_config:\n{lines}"));
        let error = ConfigWatcher::open(&file, Duration::ZERO, Arc::default()).err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    }
    // The same inside the file itself.
    let inline = |name: &str| {
        let text = std::fs::read_to_string(folder.0.join(name)).unwrap();
        text.lines().map(|line| format!("    {line}\n")).collect::<String>()
    };
    let text = format!("tls_server_config:\n  cert: |\n{}  key: |\n{}", inline("server.crt"), inline("server.key"));
    let file = folder.write("web-config.yml", &text);
    assert!(ConfigWatcher::open(&file, Duration::ZERO, Arc::default()).is_ok());
}

#[test]
#[ignore = "needs curl and openssl"]
fn root_tls_slow_handshakes_end() {
    if !programs("root_tls_slow_handshakes_end", &NEEDED) {
        return;
    }
    let folder = folder();
    let file = folder.write("web-config.yml", SERVER);
    let limits = kstrobe_web::Limits { handshake: Duration::from_millis(200), ..Default::default() };
    let server = Running::start_file(Some(&file), limits);
    for part in [&b""[..], b"\x16\x03\x01", b"\x16\x03\x01\xff\xff", b"\x16"] {
        let mut stream = server.connect();
        stream.write_all(part).unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
    }
    wait_for("the end of all", || {
        let ended = server.ended("handshake_time") + server.ended("handshake");
        ((ended, server.counts().open) == (4, 0)).then_some(())
    });
}
