//! The agent as a process.

use super::metrics::Metrics;
use super::{Folder, http, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// The packs that run when nothing is said.
pub const DEFAULT_PACKS: [&str; 5] = ["recvfrom", "softirq", "syscalls", "tcp_backlog", "tcp_retransmits"];

/// Words before a command that take all rights of root from it. Whoever is not root has none, and no right to give them up.
pub fn without_rights() -> &'static [&'static str] {
    if nix::unistd::geteuid().is_root() { &["setpriv", "--inh-caps=-all", "--bounding-set=-all"] } else { &[] }
}

/// How to start an agent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Setup<'a> {
    /// Of the shipped packs, those that run.
    pub packs: &'a [&'a str],
    /// Probe files of the test's own: name and YAML text.
    pub probes: &'a [(&'a str, &'a str)],
    /// What the configuration has besides, in YAML.
    pub config: &'a str,
    /// Further arguments.
    pub arguments: &'a [&'a str],
    /// Words before the agent's own: a program that becomes it by exec.
    pub under: &'a [&'a str],
    /// Whether the overhead budget of the defaults holds. Else there is none: everything is to be counted, however fast the
    /// load is on this machine.
    pub budget: bool,
}

/// A running agent. Dropping it kills it; a test that fails shows its log.
pub struct Agent {
    child: Child,
    address: SocketAddr,
    folder: Folder,
}

impl Setup<'_> {
    /// Starts the agent and waits until it can be scraped.
    pub fn start(&self) -> Agent {
        let folder = Folder::new();
        let disabled: Vec<&str> = DEFAULT_PACKS.into_iter().filter(|pack| !self.packs.contains(pack)).collect();
        let mut config = format!("probes:\n  disable: [{}]\n", disabled.join(", "));
        if !self.probes.is_empty() {
            let own = folder.0.join("probes");
            std::fs::create_dir_all(&own).unwrap();
            for (name, text) in self.probes {
                std::fs::write(own.join(format!("{name}.yaml")), text).unwrap();
            }
            config += &format!("  directory: {}\n", own.display());
        }
        if !self.budget {
            config += "limits: { budget_percent: 0 }\n";
        }
        config += self.config;
        let config = folder.write("kstrobe.yaml", &config);
        Agent::spawn(folder, &config, self)
    }
}

impl Agent {
    /// Starts the agent as its packages do, with the configuration that they install, but for the address.
    pub fn shipped() -> Agent {
        let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/kstrobe.yaml");
        Agent::spawn(Folder::new(), &config, &Setup::default())
    }

    fn spawn(folder: Folder, config: &Path, setup: &Setup<'_>) -> Agent {
        let log = std::fs::File::create(folder.0.join("log")).unwrap();
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let child = under(setup.under)
            .args(["run", "--web.listen-address", &address.to_string(), "--config"])
            .arg(config)
            .args(setup.arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut agent = Agent { child, address, folder };
        // The verifier takes long to refuse the longest programs, and very long on an emulated processor.
        let limit = Duration::from_secs(if super::emulated() { 300 } else { 60 });
        wait_for("the agent's first scrape", limit, || {
            if let Some(status) = agent.child.try_wait().unwrap() {
                panic!("the agent ended with {status}:\n{}", agent.log());
            }
            agent.get("/metrics").filter(|(status, _)| *status == 200)
        });
        agent
    }

    /// Starts the agent with these of the shipped packs and waits until it can be scraped.
    pub fn start(packs: &[&str]) -> Agent {
        Agent::start_with(packs, &[])
    }

    /// The same with probes of the test's own, each with its name and YAML text.
    pub fn start_with(packs: &[&str], probes: &[(&str, &str)]) -> Agent {
        Setup { packs, probes, ..Setup::default() }.start()
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How often the thread of this name has waited so far.
    pub fn waits(&self, thread: &str) -> u64 {
        let [waits] = super::waits(&format!("/proc/{}/task", self.pid()), thread)[..] else {
            panic!("not one thread {thread}")
        };
        waits
    }

    /// What it exports now.
    pub fn scrape(&self) -> Metrics {
        let (status, body) = self.get("/metrics").expect("/metrics does not answer");
        assert_eq!(status, 200, "{body}");
        Metrics::parse(&body)
    }

    /// Status and body of a page; `None` when there is no connection.
    pub fn get(&self, path: &str) -> Option<(u16, String)> {
        get(self.address, path)
    }

    /// The JSON of a page that must be there.
    #[track_caller]
    pub fn json(&self, path: &str) -> Value {
        let (status, body) = self.get(path).expect("an answer");
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap()
    }

    /// The JSON of a page that may come later: `None` until it is there.
    pub fn json_once_there(&self, path: &str) -> Option<Value> {
        let (_, body) = self.get(path).filter(|(status, _)| *status == 200)?;
        Some(serde_json::from_str(&body).unwrap())
    }

    /// Status and bytes of a page that is no text.
    pub fn get_bytes(&self, path: &str) -> Option<(u16, Vec<u8>)> {
        get_bytes(self.address, path)
    }

    /// Status and body of the answer to a request without a body.
    pub fn ask(&self, method: &str, path: &str) -> Option<(u16, String)> {
        // A reload may load many programs.
        let http::Answer { status, body, .. } = http::ask(self.address, method, path, &[], "")?;
        Some((status, String::from_utf8(body).ok()?))
    }

    /// What it answers to the request for a reload, which must be with this status.
    #[track_caller]
    pub fn reload(&self, expected: u16) -> String {
        let (status, body) = self.ask("POST", "/-/reload").expect("/-/reload does not answer");
        assert_eq!(status, expected, "{body}");
        body
    }

    /// Writes a file into its folder as an editor does that renames: nobody ever sees half of it.
    pub fn write(&self, name: &str, text: &str) {
        let path = self.folder.0.join(name);
        let aside = path.with_extension("new");
        std::fs::write(&aside, text).unwrap();
        std::fs::rename(aside, path).unwrap();
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid().cast_signed()), signal).unwrap();
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The folder with its files.
    pub fn folder(&self) -> &Path {
        &self.folder.0
    }

    /// What it logged so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.0.join("log")).unwrap_or_default()
    }

    /// Asks it to stop; it must do so soon and call it a success.
    pub fn stop(self) {
        self.stop_by(Signal::SIGTERM);
    }

    /// The same with this signal.
    pub fn stop_by(self, signal: Signal) {
        self.signal(signal);
        self.has_stopped();
    }

    /// It got SIGTERM or SIGINT, and ends with status 0.
    pub fn has_stopped(mut self) {
        let status = self.wait();
        assert!(status.success(), "the agent ended with {status}:\n{}", self.log());
    }

    /// Ends it so that it can clean nothing up.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.wait();
    }

    fn wait(&mut self) -> ExitStatus {
        let limit = Duration::from_secs(if super::emulated() { 60 } else { 10 });
        wait_for("the agent's end", limit, || self.child.try_wait().unwrap())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the agent's log:\n{}", self.log());
        }
    }
}

pub use super::http::get;

fn get_bytes(address: SocketAddr, path: &str) -> Option<(u16, Vec<u8>)> {
    http::ask(address, "GET", path, &[], "").map(|answer| (answer.status, answer.body))
}

/// The agent's binary, started by another program unless there are no words for one.
fn under(words: &[&str]) -> Command {
    let binary = env!("CARGO_BIN_EXE_kstrobe");
    let Some((program, rest)) = words.split_first() else { return Command::new(binary) };
    let mut command = Command::new(program);
    command.args(rest).arg(binary);
    command
}

/// Runs the agent's binary with these arguments to its end, in the workspace's root.
pub fn command(arguments: &[&str]) -> Command {
    command_under(&[], arguments)
}

/// The same, started by another program.
pub fn command_under(words: &[&str], arguments: &[&str]) -> Command {
    let mut command = under(words);
    command.args(arguments).current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
    command
}
