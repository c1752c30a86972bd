//! The agent's door: hostile clients, credentials, systemd.

mod support;

use kstrobe_testing::certificates;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::Duration;
use support::agent::{self, Agent, Setup};
use support::metrics::Metrics;
use support::{Folder, Killed, memory_bytes, output, wait_for, witnesses};

/// What the agent may grow by under attack: connections and their buffers, an exposition or two.
const MAX_GROWTH_BYTES: u64 = 48 << 20;

/// The most memory that a process had begins anew at what it has.
fn forget_most(pid: u32) {
    std::fs::write(format!("/proc/{pid}/clear_refs"), "5").unwrap();
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = wait_for("a connection", Duration::from_secs(30), || TcpStream::connect(address).ok());
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

/// Status of an answer, 0 when there is none.
fn ask(address: SocketAddr, request: &[u8]) -> u16 {
    let mut stream = connect(address);
    // Who is refused while it still sends gets a reset.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let status = std::str::from_utf8(answer.get(9..12).unwrap_or_default()).unwrap_or_default();
    status.parse().unwrap_or(0)
}

#[test]
#[ignore = "needs root"]
fn root_web_hostile_clients_keep_nobody_out_and_cost_little() {
    let agent = Agent::start(&["syscalls", "softirq"]);
    let address = agent.address();
    for _ in 0..20 {
        agent.scrape();
    }
    let before = memory_bytes(agent.pid(), "VmRSS:");
    forget_most(agent.pid());

    // Slow ones: more than there is room for, each with half a header; scrapes go on among them.
    let mut slow: Vec<TcpStream> = Vec::new();
    for number in 0..1000 {
        let mut stream = connect(address);
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX-Slow: ");
        slow.push(stream);
        if number % 100 == 99 {
            assert_eq!(agent.get("/metrics").map(|(status, _)| status), Some(200), "beside {number} slow connections");
        }
    }
    drop(slow);

    // Wrong ones.
    let large = "b".repeat(1 << 20);
    for (request, expected) in [
        (format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\nX-A: {large}\r\n\r\n"), [431, 0]),
        (format!("GET /{large} HTTP/1.1\r\nHost: localhost\r\n\r\n"), [431, 0]),
        (format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "X-A: b\r\n".repeat(1000)), [431, 0]),
        ("GET /metrics HTTP/1.0\r\nAccept: ;;;q=,,,*/*;q=9e9\r\nAccept-Encoding: \u{1}\r\n\r\n".into(), [400, 400]),
        ("GET /metrics HTTP/1.0\r\nAccept: ;;;q=,,,*/*;q=9e9;version=\"\r\n\r\n".into(), [200, 200]),
        (format!("GET /metrics HTTP/1.0\r\nAccept: {}\r\n\r\n", "text/plain;q=0.1,".repeat(500)), [200, 200]),
        ("POST /metrics HTTP/1.0\r\nContent-Length: 0\r\n\r\n".into(), [405, 405]),
        ("DELETE /metrics HTTP/1.0\r\n\r\n".into(), [405, 405]),
        ("BREW /metrics HTTP/1.0\r\n\r\n".into(), [405, 405]),
        ("GET /../../etc/passwd HTTP/1.0\r\n\r\n".into(), [404, 404]),
        (
            "POST /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 99999999999\r\n\r\n"
                .into(),
            [413, 413],
        ),
        ("\u{16}\u{3}\u{1}\u{2}\u{0}".repeat(100), [400, 0]),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into(), [400, 0]),
    ] {
        for _ in 0..10 {
            let status = ask(address, request.as_bytes());
            assert!(expected.contains(&status), "{status} to {:?}", request.get(..80).unwrap_or(&request));
        }
    }

    // Very many at once: they get an answer, the scrape or word that there are too many. On a busy machine a connection whose
    // request is not there yet may be given up for a newer one.
    let given_up = || agent.scrape().sum("kstrobe_http_connections_ended_total", &[]) as usize;
    let given_up_before = given_up();
    let clients: Vec<_> = (0..1000)
        .map(|_| {
            let one = move || ask(address, b"GET /metrics HTTP/1.0\r\n\r\n");
            std::thread::Builder::new().stack_size(128 << 10).spawn(one).unwrap()
        })
        .collect();
    let statuses: Vec<u16> = clients.into_iter().map(|client| client.join().unwrap()).collect();
    let (fine, refused) = [200, 503].map(|wanted| statuses.iter().filter(|status| **status == wanted).count()).into();
    let given_up = given_up() - given_up_before;
    assert!(fine > 0 && fine + refused >= 500, "{statuses:?}");
    assert!(1000 - fine - refused <= given_up, "{given_up} of them ended by the agent: {statuses:?}");

    let metrics = agent.scrape();
    assert!(metrics.sum("kstrobe_http_open_connections", &[]) <= 128.0);
    assert!(metrics.sum("kstrobe_http_connections_total", &[]) > 2000.0);
    assert!(metrics.sum("kstrobe_http_connections_ended_total", &[("reason", "room")]) > 0.0);
    let [after, most] = ["VmRSS:", "VmHWM:"].map(|which| memory_bytes(agent.pid(), which));
    println!(
        "resident before {before} after {after} bytes, {most} at most; of 1000 scrapes at once {fine} fine, {refused} refused"
    );
    assert!(most < before + MAX_GROWTH_BYTES, "{before} bytes became {most}");
    agent.stop();
}

#[test]
#[ignore = "needs root"]
fn root_web_passwords_and_tokens_together() {
    let name = "root_web_passwords_and_tokens_together";
    if !witnesses(name, &["curl", "openssl"]) {
        return;
    }
    let folder = Folder::new();
    certificates::authority(&folder, "ca");
    certificates::server(&folder, "server", "ca");
    let authority = folder.path("ca.crt");
    // bcrypt's text of `secret`, at the lowest cost.
    let hash = "$2b$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW";
    let web = format!(
        "tls_server_config: {{ cert_file: server.crt, key_file: server.key }}\nbasic_auth_users: {{ alice: {hash} }}\n"
    );
    let web = folder.write("web-config.yml", &web);
    let token = folder.write("token", "0123456789abcdef\n");
    for with_token in [true, false] {
        let token = if with_token { format!("token_file: {}, ", token.display()) } else { String::new() };
        let captures = folder.0.join("captures");
        let config = format!("captures: {{ {token}dir: {} }}\nprobes: {{ enable: [softirq] }}\n", captures.display());
        let config = folder.write("kstrobe.yaml", &config);
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let address = format!("0.0.0.0:{port}");
        let mut command = agent::command(&["run", "--only", "softirq", "--web.listen-address", &address, "--config"]);
        command.arg(config).arg("--web.config.file").arg(&web).stdin(Stdio::null()).stderr(Stdio::null());
        let _running = Killed(command.spawn().unwrap());
        let status = |path: &str, credentials: &[&str]| {
            let mut curl = Command::new("curl");
            curl.args(["-s", "--max-time", "30", "-o", "/dev/null", "-w", "%{http_code}", "--cacert", &authority]);
            curl.args(credentials).arg(format!("https://localhost:{port}{path}"));
            let done = curl.output().unwrap();
            String::from_utf8_lossy(&done.stdout).parse::<u16>().unwrap()
        };
        let bearer = ["-H", "Authorization: Bearer 0123456789abcdef"];
        let basic = ["-u", "alice:secret"];
        wait_for("the agent", Duration::from_secs(60), || (status("/healthz", &basic) == 200).then_some(()));
        let captures = "/api/v1/captures";
        for (path, credentials, expected) in [
            ("/metrics", &[][..], 401),
            ("/metrics", &basic, 200),
            ("/metrics", &["-u", "alice:wrong"], 401),
            ("/metrics", &bearer, if with_token { 200 } else { 401 }),
            ("/metrics", &["-H", "Authorization: Bearer 0123456789abcdeX"], 401),
            (captures, &[], 401),
            (captures, &bearer, if with_token { 200 } else { 401 }),
            (captures, &basic, if with_token { 401 } else { 200 }),
            (
                captures,
                &["-u", "alice:secret", "-H", "Origin: https://evil.example"],
                if with_token { 401 } else { 403 },
            ),
        ] {
            assert_eq!(status(path, credentials), expected, "{path} {credentials:?}, token: {with_token}");
        }
    }
}

#[test]
#[ignore = "needs root"]
fn root_web_asks_for_certificates_of_clients_and_takes_new_ones_up() {
    if !witnesses("root_web_asks_for_certificates_of_clients_and_takes_new_ones_up", &["curl", "openssl"]) {
        return;
    }
    let folder = Folder::new();
    for authority in ["old", "new"] {
        certificates::authority(&folder, authority);
        certificates::server(&folder, &format!("{authority}-server"), authority);
        certificates::client(&folder, &format!("{authority}-client"), authority, "DNS:prometheus.example");
    }
    // Each file whole at once, as a tool that renews certificates puts it there.
    let show = |which: &str| {
        let files = ["-server.key", "-server.crt", ".crt"].map(|end| format!("{which}{end}"));
        for (from, to) in files.iter().zip(["server.key", "server.crt", "clients.crt"]) {
            std::fs::copy(folder.0.join(from), folder.0.join("next")).unwrap();
            std::fs::rename(folder.0.join("next"), folder.0.join(to)).unwrap();
        }
    };
    show("old");
    let web = "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n  client_ca_file: clients.crt\n  \
               client_auth_type: RequireAndVerifyClientCert\n";
    let web = folder.write("web-config.yml", web);
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    let mut command = agent::command(&["run", "--only", "softirq", "--web.listen-address", &address]);
    command.arg("--web.config.file").arg(&web).stdin(Stdio::null()).stderr(Stdio::null());
    let mut running = Killed(command.spawn().unwrap());
    // The page's text when the client of the one authority asks a server of the other, or why curl has none.
    let scrape = |server: &str, client: Option<&str>| {
        let mut curl = Command::new("curl");
        curl.args(["-s", "-S", "--fail", "--max-time", "30", "--cacert", &folder.path(&format!("{server}.crt"))]);
        if let Some(client) = client {
            curl.args(["--cert", &folder.path(&format!("{client}-client.crt"))]);
            curl.args(["--key", &folder.path(&format!("{client}-client.key"))]);
        }
        let done = curl.arg(format!("https://localhost:{port}/metrics")).output().unwrap();
        let why = || (done.status.code().unwrap(), String::from_utf8_lossy(&done.stderr).into_owned());
        if done.status.success() { Ok(String::from_utf8(done.stdout).unwrap()) } else { Err(why()) }
    };
    // curl's own numbers: the server ends the handshake, or right behind it; the client does not trust the server.
    let refused = |client: Option<&str>, server: &str| {
        let (code, why) = scrape(server, client).unwrap_err();
        assert!([35, 55, 56].contains(&code), "{code} {why}");
    };
    let distrusted = |server: &str, client: &str| assert_eq!(scrape(server, Some(client)).unwrap_err().0, 60);
    let first = wait_for("the agent", Duration::from_secs(60), || scrape("old", Some("old")).ok());
    refused(None, "old");
    refused(Some("new"), "old");
    distrusted("new", "old");
    show("new");
    let second = wait_for("the new certificates", Duration::from_secs(60), || scrape("new", Some("new")).ok());
    refused(None, "new");
    refused(Some("old"), "new");
    distrusted("old", "new");
    assert!(running.0.try_wait().unwrap().is_none(), "it was not started anew");
    let began = |text: &str| Metrics::parse(text).sum("process_start_time_seconds", &[]);
    assert_eq!(began(&first), began(&second));
    let reloads = Metrics::parse(&second).sum("kstrobe_web_config_reloads_total", &[]);
    assert!(reloads >= 1.0, "{reloads}");
}

#[test]
#[ignore = "needs root"]
fn root_web_systemd_hands_over_sockets_and_is_told() {
    let name = "root_web_systemd_hands_over_sockets_and_is_told";
    if !witnesses(name, &["systemd-socket-activate"]) {
        return;
    }
    let folder = Folder::new();
    let told = UnixDatagram::bind(folder.0.join("notify")).unwrap();
    told.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let listen = address.to_string();
    let notify = format!("--setenv=NOTIFY_SOCKET={}", folder.0.join("notify").display());
    let under = ["systemd-socket-activate", "--listen", &listen, &notify, "--setenv=WATCHDOG_USEC=400000"];
    let arguments = ["run", "--web.systemd-socket", "--only", "softirq"];
    let mut child = Killed(agent::command_under(&under, &arguments).stdin(Stdio::null()).spawn().unwrap());
    // The first connection is what it waits for before it starts the agent.
    let answer = wait_for("the agent", Duration::from_secs(60), || agent::get(address, "/healthz"));
    assert_eq!(answer.0, 200);
    let next = || {
        let mut bytes = [0; 256];
        let read = told.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..read]).into_owned()
    };
    assert_eq!(next().trim(), "READY=1");
    assert_eq!(next().trim(), "WATCHDOG=1");
    assert_eq!(next().trim(), "WATCHDOG=1");
    output(Command::new("kill").args(["-TERM", &child.0.id().to_string()]));
    wait_for("word of the end", Duration::from_secs(10), || (next().trim() == "STOPPING=1").then_some(()));
    assert!(child.0.wait().unwrap().success());

    let done = agent::command(&["run", "--web.systemd-socket"]).output().unwrap();
    let text = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(!done.status.success() && text.contains("systemd handed over no socket"), "{text}");
}

#[test]
#[ignore = "needs root"]
fn root_web_flags() {
    let setup = Setup { arguments: &["--web.max-requests", "1"], packs: &["softirq"], ..Setup::default() };
    let agent = setup.start();
    assert!(agent.get("/metrics").is_some_and(|(status, _)| status == 200));
    agent.stop();
    for (arguments, expected) in [
        (&["run", "--web.telemetry-path", "metrics"][..], "a path begins with `/`"),
        (&["run", "--web.telemetry-path", "/api/v1/probes"], "is something else already"),
        (&["run", "--web.config.file", "/no/such/file"], "/no/such/file: No such file"),
        (&["run", "--web.systemd-socket", "--web.listen-address", ":0"], "cannot be used with"),
        (&["check", "--web", "/no/such/file"], "/no/such/file: No such file"),
    ] {
        let done = agent::command(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(!done.status.success() && text.contains(expected), "{arguments:?}: {text}");
    }
}
