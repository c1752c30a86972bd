//! A real server as a process of the test's own, which can be killed and started again where it was.
#![allow(dead_code, reason = "every test crate uses a part of it")]

use serde_json::Value;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take to start on a busy machine.
const SOON: Duration = Duration::from_secs(120);

/// Where a program is: named by a variable, installed, or unpacked beside the build by `cargo xtask test`.
pub fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let unpacked = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/programs/usr/bin");
    let mut folders = path.split(':').chain(["/usr/sbin", unpacked]);
    folders.find_map(|folder| Some(Path::new(folder).join(name)).filter(|file| file.is_file()))
}

/// Whether a test's server is there. Where it could have been fetched its absence fails the test; elsewhere the test is
/// noted as not run.
pub fn there(test: &str, name: &str, why: &str) -> Option<PathBuf> {
    let found = if name == "otelcol" { std::env::var_os("KSTROBE_OTELCOL").map(PathBuf::from) } else { program(name) };
    if found.is_none() {
        let reason = format!("{test}: {why}");
        eprintln!("not run here: {reason}");
        match std::env::var_os("KSTROBE_NOT_RUN_FILE") {
            Some(list) => {
                let mut file = OpenOptions::new().create(true).append(true).open(list).unwrap();
                writeln!(file, "{reason}").unwrap();
            }
            // The collector is opt-in everywhere.
            None => assert_eq!(name, "otelcol", "{reason}"),
        }
    }
    found
}

/// A free port of loopback.
pub fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// A running one. Dropping it kills it.
pub struct Server {
    program: PathBuf,
    arguments: Vec<String>,
    /// Where a page says that it is ready; without a page any answer does.
    address: SocketAddr,
    ready: &'static str,
    pub folder: PathBuf,
    child: Child,
}

impl Server {
    /// `arguments` is given a folder of its own.
    pub fn start(
        program: &Path,
        address: SocketAddr,
        ready: &'static str,
        arguments: impl Fn(&Path) -> Vec<String>,
    ) -> Server {
        let name = format!("kstrobe-push-{}-{}", std::process::id(), address.port());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let arguments = arguments(&folder);
        let child = spawn(program, &arguments, &folder);
        let mut server = Server { program: program.to_owned(), arguments, address, ready, folder, child };
        server.wait();
        server
    }

    fn wait(&mut self) {
        let begun = Instant::now();
        let ready = |(status, _): (u16, String)| status == 200 || self.ready.is_empty();
        while !get(self.address, &format!("/{}", self.ready)).is_some_and(ready) {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "it ended with {ended:?}:\n{}", self.log());
            assert!(begun.elapsed() < SOON, "it does not start:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Ends it at once.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends it in good order.
    pub fn terminate(&mut self) {
        let status = Command::new("kill").arg(self.child.id().to_string()).status().unwrap();
        assert!(status.success());
        self.child.wait().unwrap();
    }

    /// Starts it again with all it had.
    pub fn again(&mut self) {
        self.child = spawn(&self.program, &self.arguments, &self.folder);
        self.wait();
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// `data.result` of an instant query of Prometheus' API.
    pub fn query(&self, expression: &str) -> Vec<Value> {
        let plain = |byte: &u8| byte.is_ascii_alphanumeric();
        let escaped: String = expression
            .bytes()
            .map(|b| if plain(&b) { char::from(b).to_string() } else { format!("%{b:02X}") })
            .collect();
        let (status, body) = get(self.address, &format!("/api/v1/query?query={escaped}")).expect("an answer");
        assert_eq!(status, 200, "{body}");
        let answer: Value = serde_json::from_str(&body).unwrap();
        answer["data"]["result"].as_array().unwrap().clone()
    }

    /// The value of the only series.
    pub fn value(&self, expression: &str) -> Option<f64> {
        match self.query(expression).as_slice() {
            [] => None,
            [one] => one["value"][1].as_str().map(|text| text.parse().unwrap()),
            several => panic!("{expression}: {several:?}"),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = self.log();
            eprintln!("its log ends:\n{}", &log[log.len().saturating_sub(4000)..]);
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn spawn(program: &Path, arguments: &[String], folder: &Path) -> Child {
    let log: File = OpenOptions::new().create(true).append(true).open(folder.join("log")).unwrap();
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    command.spawn().unwrap()
}

/// Status and body of a page.
pub fn get(address: SocketAddr, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(30))).ok()?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}
