//! Programs of the cluster: started, killed, started again, and watched until something is so.

use anyhow::{Context, Result, bail};
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Lines of the end of a log that a failure shows.
const SHOWN: usize = 20;

/// A program that runs beside the tests. Dropping it kills it.
pub struct Daemon {
    name: &'static str,
    command: Vec<String>,
    log: PathBuf,
    child: Child,
}

impl Daemon {
    /// Starts it; what it prints goes to `NAME.log` in a folder.
    pub fn start(name: &'static str, logs: &Path, command: Vec<String>) -> Result<Daemon> {
        let log = logs.join(format!("{name}.log"));
        let child = spawn(&command, &log).with_context(|| format!("starting {name}"))?;
        Ok(Daemon { name, command, log, child })
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends it at once.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Starts it again with the same command.
    pub fn again(&mut self) -> Result<()> {
        self.child = spawn(&self.command, &self.log).with_context(|| format!("starting {} again", self.name))?;
        Ok(())
    }

    /// Fails when it has ended, with the end of its log.
    pub fn running(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("{} ended with {status}:\n{}", self.name, end_of(&self.log)),
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

fn spawn(command: &[String], log: &Path) -> Result<Child> {
    let log = OpenOptions::new().create(true).append(true).open(log)?;
    // When this program is killed, the kernel ends its daemons.
    let mut daemon = Command::new("setpriv");
    daemon.args(["--pdeathsig", "KILL", "--"]).args(command);
    Ok(daemon.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?)
}

/// The last lines of a log.
pub fn end_of(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(SHOWN)..].join("\n")
}

/// Repeats a check until it succeeds. The error names the awaited state and the last failure.
pub fn until<T>(what: &str, limit: Duration, mut ask: impl FnMut() -> Result<T>) -> Result<T> {
    let begin = Instant::now();
    loop {
        match ask() {
            Ok(answer) => return Ok(answer),
            Err(error) if begin.elapsed() > limit => {
                return Err(error.context(format!("{what}: not within {} s", limit.as_secs())));
            }
            Err(_) => sleep(Duration::from_millis(500)),
        }
    }
}

/// A command line of owned words.
pub fn words<'a>(words: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    words.into_iter().map(str::to_owned).collect()
}
