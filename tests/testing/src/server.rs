//! A real server as a process of a test's own, which can be killed and started again where it was.

use crate::{Folder, http, wait_for};
use std::fs::OpenOptions;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How long a server may take to start on a busy machine.
const SOON: Duration = Duration::from_secs(120);

/// Lines of the end of a log that a failed test shows.
const SHOWN: usize = 40;

/// A free port of loopback.
pub fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// A running one, on loopback alone. Dropping it kills it, and shows the end of its log when the test has failed.
#[derive(Debug)]
pub struct Server {
    program: PathBuf,
    arguments: Vec<String>,
    address: SocketAddr,
    ready: &'static str,
    /// Its files, and its `log`.
    pub folder: Folder,
    child: Child,
}

impl Server {
    /// Starts it and waits until the page `ready` says 200; without a page any answer does. `arguments` is given its folder.
    #[track_caller]
    pub fn start(
        program: &Path,
        address: SocketAddr,
        ready: &'static str,
        arguments: impl FnOnce(&Folder) -> Vec<String>,
    ) -> Server {
        let folder = Folder::new();
        let arguments = arguments(&folder);
        let child = spawn(program, &arguments, &folder);
        let mut server = Server { program: program.to_owned(), arguments, address, ready, folder, child };
        server.wait();
        server
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    #[track_caller]
    fn wait(&mut self) {
        let name = self.program.display().to_string();
        wait_for(&name, SOON, || {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "{name} ended with {ended:?}:\n{}", self.log());
            let (status, _) = http::get(self.address, &format!("/{}", self.ready.trim_start_matches('/')))?;
            (status == 200 || self.ready.is_empty()).then_some(())
        });
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

    /// What it printed.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.0.join("log")).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let end = &lines[lines.len().saturating_sub(SHOWN)..];
            eprintln!("the log of {} ends:\n{}", self.program.display(), end.join("\n"));
        }
    }
}

fn spawn(program: &Path, arguments: &[String], folder: &Folder) -> Child {
    let log = OpenOptions::new().create(true).append(true).open(folder.0.join("log")).unwrap();
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    command.spawn().unwrap_or_else(|error| panic!("{}: {error}", program.display()))
}
