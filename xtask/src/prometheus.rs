//! A Prometheus of its own: Debian's newest, unpacked beside the build.

use crate::programs;
use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A server that is not ready by then is taken for broken.
const START_LIMIT: Duration = Duration::from_secs(30);

/// A program that the kernel ends when the thread that started it has ended, however that was: a signal to us alone leaves no time for
/// [`Running`] to be dropped. It is setpriv of util-linux that asks for it (`PR_SET_PDEATHSIG`) and then becomes the program.
pub fn ending_with_us(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "--"]).arg(program);
    command
}

/// A process that does not outlive us.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended already, or ends now.
        let _ = kill(Pid::from_raw(self.0.id().cast_signed()), Signal::SIGTERM);
        let _ = self.0.wait();
    }
}

/// A server that scrapes and answers.
pub struct Prometheus {
    address: String,
    /// Where its data are.
    pub data: PathBuf,
    process: Running,
}

/// One series of an answer.
pub struct Sample {
    labels: BTreeMap<String, String>,
    /// Its value; a histogram's number of observations.
    pub value: f64,
}

impl Sample {
    /// What a label says.
    pub fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }

    /// `a="x", b="y"`, without what all series of a demonstration share.
    pub fn labels(&self) -> String {
        let shown = self.labels.iter().filter(|(name, _)| !["__name__", "job", "instance"].contains(&name.as_str()));
        shown.map(|(name, value)| format!("{name}={value:?}")).collect::<Vec<_>>().join(", ")
    }
}

impl Prometheus {
    /// Starts it with this configuration and no data, and waits until it is ready.
    pub fn start(folder: &Path, address: &str, configuration: &str, flags: &[&str]) -> Result<Prometheus> {
        let binary = programs::unpack("prometheus")?;
        let data = folder.join("prometheus-data");
        if data.exists() {
            fs::remove_dir_all(&data)?;
        }
        let config = folder.join("prometheus.yml");
        fs::write(&config, configuration)?;
        let log = folder.join("prometheus.log");
        let mut command = ending_with_us(&binary);
        command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", data.display()))
            .arg(format!("--web.listen-address={address}"))
            .args(flags)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log)?);
        let mut process = Running(command.spawn().with_context(|| format!("starting {}", binary.display()))?);
        let begin = Instant::now();
        while ureq::get(&format!("http://{address}/-/ready")).call().is_err() {
            if process.0.try_wait()?.is_some() || begin.elapsed() > START_LIMIT {
                bail!("Prometheus does not run; its log: {}", fs::read_to_string(&log)?);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(Prometheus { address: address.to_owned(), data, process })
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.process.0.id()
    }

    /// The series that an expression gives now, in the server's order.
    pub fn query(&self, expression: &str) -> Result<Vec<Sample>> {
        let url = format!("http://{}/api/v1/query", self.address);
        let answer: Value = ureq::get(&url)
            .query("query", expression)
            .call()
            .with_context(|| format!("asking for {expression}"))?
            .body_mut()
            .read_json()?;
        let series = answer["data"]["result"].as_array().cloned().unwrap_or_default();
        Ok(series.iter().filter_map(sample).collect())
    }

    /// Makes it collect its garbage, so that what its heap holds is alive.
    pub fn collect_garbage(&self) -> Result<()> {
        let mut answer = ureq::get(&format!("http://{}/debug/pprof/heap?gc=1", self.address)).call()?;
        answer.body_mut().read_to_vec().map(drop).context("the answer to a collection of garbage")
    }

    /// What it tells of itself, in text.
    pub fn own_metrics(&self) -> Result<String> {
        Ok(ureq::get(&format!("http://{}/metrics", self.address)).call()?.body_mut().read_to_string()?)
    }
}

fn sample(series: &Value) -> Option<Sample> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let labels = series["metric"].as_object()?.iter().map(|(name, value)| (name.clone(), text(value))).collect();
    let value = series["value"][1].as_str().or_else(|| series["histogram"][1]["count"].as_str())?;
    Some(Sample { labels, value: value.parse().ok()? })
}
