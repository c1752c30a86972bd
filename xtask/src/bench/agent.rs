//! The agent, or another exporter, as a process: started on a free loopback port, scraped, measured from outside, stopped.

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// An agent that has not answered by then is taken for broken.
const START_LIMIT: Duration = Duration::from_secs(20);
/// Time for a scrape.
const SCRAPE_LIMIT: Duration = Duration::from_secs(20);

/// The packs that run when nothing is said: the stems of the files below `probes/`.
pub const DEFAULT_PACKS: [&str; 5] = ["recvfrom", "softirq", "syscalls", "tcp_backlog", "tcp_retransmits"];

/// How to start it.
#[derive(Clone, Debug)]
pub struct Settings {
    pub binary: PathBuf,
    /// Its configuration file; none runs the default set of probes.
    pub config: Option<PathBuf>,
}

/// Writes a configuration that runs one probe and nothing else. A probe that is not shipped is in `probe_file`.
pub fn only(build: &Path, probe: &str, probe_file: Option<&Path>) -> Result<PathBuf> {
    match probe_file {
        Some(file) => {
            let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
            these(build, probe, &text, &[probe.to_owned()])
        }
        None => configuration(build, probe, ""),
    }
}

/// Writes one with every shipped probe; those that this kernel cannot run are left out by the agent.
pub fn all_shipped(build: &Path) -> Result<PathBuf> {
    let (probes, _) = kstrobe_config::probes(&kstrobe_config::embedded());
    let names: Vec<&str> = probes.iter().map(|probe| probe.name()).collect();
    let config = build.join("all_shipped.yaml");
    fs::write(&config, format!("probes:\n  enable: [{}]\n", names.join(", ")))?;
    Ok(config)
}

/// Writes a configuration that runs these probes of the text of one file and nothing else. Their budget is all CPUs: sampled or
/// suspended in a flood, a probe would count fewer calls than were made.
pub fn these(build: &Path, name: &str, text: &str, probes: &[String]) -> Result<PathBuf> {
    let folder = build.join(name);
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("probes.yaml"), text)?;
    let more = format!(
        "  directory: {}\n  enable: [{}]\nlimits: {{ budget_percent: 100 }}\n",
        folder.display(),
        probes.join(", ")
    );
    configuration(build, name, &more)
}

/// Writes one without the packs that run by default, but for one of this name, and with more keys of `probes:`, then others.
fn configuration(build: &Path, name: &str, more: &str) -> Result<PathBuf> {
    let disabled: Vec<&str> = DEFAULT_PACKS.into_iter().filter(|&pack| pack != name).collect();
    let config = build.join(format!("{name}.yaml"));
    let text = format!("probes:\n  disable: [{}]\n{more}", disabled.join(", "));
    fs::write(&config, text).with_context(|| format!("writing {}", config.display()))?;
    Ok(config)
}

/// A running agent. Dropping it kills it.
pub struct Agent {
    child: Child,
    address: SocketAddr,
    /// From the process's start to the end of the first good scrape.
    pub first_scrape: Duration,
}

impl Agent {
    /// Starts it and waits for the first good scrape.
    pub fn start(settings: &Settings) -> Result<Agent> {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut command = Command::new(&settings.binary);
        command.arg("run").arg("--web.listen-address").arg(address.to_string());
        if let Some(config) = &settings.config {
            command.arg("--config").arg(config);
        }
        Agent::from_command(command, address)
    }

    /// Any exporter that listens there.
    pub fn from_command(mut command: Command, address: SocketAddr) -> Result<Agent> {
        let begin = Instant::now();
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("starting {}", command.get_program().display()))?;
        let mut agent = Agent { child, address, first_scrape: Duration::ZERO };
        while let Err(error) = agent.scrape() {
            if let Some(status) = agent.child.try_wait()? {
                bail!("the agent stopped ({status}); try: {command:?}");
            }
            if begin.elapsed() > START_LIMIT {
                bail!("no scrape within {START_LIMIT:?}: {error:#}; try: {command:?}");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        agent.first_scrape = begin.elapsed();
        Ok(agent)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Of its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The text of `/metrics`.
    pub fn scrape(&self) -> Result<String> {
        Ok(String::from_utf8(self.ask("Accept: text/plain\r\n")?)?)
    }

    /// The body of `/metrics` for these headers, each ending a line.
    pub fn ask(&self, headers: &str) -> Result<Vec<u8>> {
        self.get("/metrics", headers)
    }

    /// The body of an answer to a request with these headers.
    pub fn get(&self, path: &str, headers: &str) -> Result<Vec<u8>> {
        let mut stream = TcpStream::connect_timeout(&self.address, Duration::from_secs(1))?;
        stream.set_read_timeout(Some(SCRAPE_LIMIT))?;
        // HTTP/1.0: the answer comes whole, not in chunks, and its end is the end of the stream.
        stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n{headers}\r\n").as_bytes())?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").context("an answer without a body")?;
        let head = String::from_utf8_lossy(&answer[..end]).into_owned();
        let status = head.lines().next().unwrap_or_default();
        if !status.contains(" 200 ") {
            bail!("{path} answered {status}");
        }
        Ok(answer.split_off(end + 4))
    }

    /// Time to the first byte of the body of `/metrics` and to its end, and its bytes.
    pub fn time(&self, headers: &str) -> Result<(Duration, Duration, usize)> {
        let mut stream = TcpStream::connect_timeout(&self.address, Duration::from_secs(1))?;
        stream.set_read_timeout(Some(SCRAPE_LIMIT))?;
        let begin = Instant::now();
        stream.write_all(format!("GET /metrics HTTP/1.0\r\nHost: localhost\r\n{headers}\r\n").as_bytes())?;
        let (mut head, mut piece) = (Vec::new(), vec![0; 64 << 10]);
        let body = loop {
            let read = stream.read(&mut piece)?;
            if read == 0 {
                bail!("an answer without a body");
            }
            head.extend_from_slice(&piece[..read]);
            match head.windows(4).position(|four| four == b"\r\n\r\n") {
                Some(end) if end + 4 < head.len() => break head.len() - end - 4,
                _ => {}
            }
        };
        let (first, mut bytes) = (begin.elapsed(), body);
        loop {
            match stream.read(&mut piece)? {
                0 => break,
                read => bytes += read,
            }
        }
        if !head.starts_with(b"HTTP/1.0 200") {
            bail!("/metrics answered {}", String::from_utf8_lossy(&head[..head.len().min(64)]));
        }
        Ok((first, begin.elapsed(), bytes))
    }

    /// CPU time of all its threads so far. `schedstat` counts nanoseconds, `stat` only clock ticks.
    pub fn cpu_time(&self) -> Result<Duration> {
        self.cpu_time_of("")
    }

    /// CPU time of its threads whose names begin so.
    pub fn cpu_time_of(&self, name: &str) -> Result<Duration> {
        let mut total = 0;
        for task in fs::read_dir(self.proc().join("task"))? {
            let task = task?.path();
            let comm = fs::read_to_string(task.join("comm")).unwrap_or_default();
            if comm.starts_with(name) {
                let text = fs::read_to_string(task.join("schedstat")).unwrap_or_default();
                total += text.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0);
            }
        }
        Ok(Duration::from_nanos(total))
    }

    /// Resident memory in bytes.
    pub fn resident_bytes(&self) -> Result<u64> {
        self.status("VmRSS:")
    }

    /// Most resident memory since [`Agent::forget_peak`].
    pub fn peak_bytes(&self) -> Result<u64> {
        self.status("VmHWM:")
    }

    /// The peak is what is resident now.
    pub fn forget_peak(&self) -> Result<()> {
        fs::write(self.proc().join("clear_refs"), "5").context("writing /proc/PID/clear_refs")
    }

    fn status(&self, name: &str) -> Result<u64> {
        let status = fs::read_to_string(self.proc().join("status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let line = line.with_context(|| format!("no {name} in /proc/PID/status"))?;
        let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
        Ok(kib * 1024)
    }

    /// Asks it to stop and waits.
    pub fn stop(mut self) -> Result<()> {
        kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM)?;
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(10) {
            if let Some(status) = self.child.try_wait()? {
                return if status.success() { Ok(()) } else { bail!("the agent stopped with {status}") };
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        bail!("the agent did not stop within 10 s of SIGTERM")
    }

    fn proc(&self) -> PathBuf {
        Path::new("/proc").join(self.child.id().to_string())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Both fail once it has stopped, which is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The value of the only series of `name` that has `label` among its labels.
pub fn value(metrics: &str, name: &str, label: &str) -> Option<f64> {
    metrics
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.strip_prefix(name)?.strip_prefix('{')?.split_once("} "))
        .find(|(labels, _)| labels.contains(label))
        .and_then(|(_, value)| value.split(' ').next()?.parse().ok())
}

/// The value of the series of `name` that has no labels.
pub fn plain_value(metrics: &str, name: &str) -> Option<f64> {
    let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    value.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn value_is_of_the_whole_name_and_the_right_label() {
        let text = "# TYPE a_count counter\na_count{x=\"1\"} 7\na_count{x=\"2\"} 8\na{x=\"2\"} 9\n";
        assert_eq!(super::value(text, "a_count", "x=\"2\""), Some(8.0));
        assert_eq!(super::value(text, "a", "x=\"2\""), Some(9.0));
        assert_eq!(super::value(text, "a", "x=\"3\""), None);
    }
}
