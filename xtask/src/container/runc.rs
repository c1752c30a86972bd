//! A container that runs, by runc.

use super::bundle::{self, Outside};
use super::volume;
use crate::apt::finished;
use anyhow::{Context, Result, bail};
use nix::sched::{CloneFlags, setns};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long something may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);
/// How long an answer may take.
const REQUEST_LIMIT: Duration = Duration::from_secs(60);

/// What containers are made of.
pub struct Workshop {
    /// Where their folders are.
    pub folder: PathBuf,
    /// Files of the image.
    pub rootfs: PathBuf,
    /// The image's configuration.
    pub image: Value,
    /// Default profile of seccomp of a runtime.
    pub seccomp: Value,
    /// A folder for each rendered case of the chart.
    pub cases: PathBuf,
}

/// Any status is an answer.
fn client() -> ureq::Agent {
    let config = ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(REQUEST_LIMIT)).build();
    config.into()
}

fn answer(mut answer: ureq::http::Response<ureq::Body>) -> Result<(u16, String)> {
    Ok((answer.status().as_u16(), answer.body_mut().read_to_string()?))
}

/// A network namespace, removed when dropped.
struct Network(String);

/// A container. Dropping it removes it.
pub struct Container {
    name: String,
    folder: PathBuf,
    child: Option<Child>,
    network: Network,
    address: SocketAddr,
    host_network: bool,
}

impl Workshop {
    /// Makes a container of a case's DaemonSet, with other arguments and less capabilities when these are given.
    pub fn container(&self, case: &str, arguments: Option<&[&str]>, without: &[&str]) -> Result<Container> {
        let text = fs::read_to_string(self.cases.join(case).join("daemonset.json"))?;
        let pod = serde_json::from_str::<Value>(&text)?["spec"]["template"]["spec"].take();
        let name = format!("kstrobe-test-{}", std::process::id());
        let folder = self.folder.join(&name);
        // Of an earlier process of the same number.
        let _ = fs::remove_dir_all(&folder);
        for part in ["bundle", "account"] {
            fs::create_dir_all(folder.join(part))?;
        }
        let volumes = self.volumes(case, &pod, &folder)?;
        let network = Network::new(&name)?;
        fs::write(folder.join("hosts"), super::HOSTS)?;
        let outside = Outside {
            image: &self.image,
            volumes: &volumes,
            seccomp: &self.seccomp,
            network: &network.path(),
            hosts: &folder.join("hosts"),
            account: &folder.join("account"),
            cgroup: &format!("/{name}"),
            arguments,
            without,
        };
        let config = bundle::config(&pod, &outside)?;
        fs::write(folder.join("bundle/config.json"), serde_json::to_string_pretty(&config)?)?;
        finished(Command::new("cp").arg("-a").arg(&self.rootfs).arg(folder.join("bundle/rootfs")))?;
        let port = pod["containers"][0]["ports"][0]["containerPort"].as_u64().unwrap_or_default();
        let address = SocketAddr::from(([127, 0, 0, 1], u16::try_from(port)?));
        let host_network = pod["hostNetwork"] == true;
        Ok(Container { name, folder, child: None, network, address, host_network })
    }

    /// A folder for each volume but those of tracefs and control groups, which are the host's.
    fn volumes(&self, case: &str, pod: &Value, folder: &Path) -> Result<BTreeMap<String, PathBuf>> {
        let mut volumes = BTreeMap::new();
        for item in pod["volumes"].as_array().into_iter().flatten() {
            let name = item["name"].as_str().unwrap_or_default();
            let of_kernel = item["hostPath"]["path"].as_str().is_some_and(|path| path.starts_with("/sys/"));
            if of_kernel {
                continue;
            }
            let place = folder.join("volumes").join(name);
            fs::create_dir_all(&place)?;
            match name {
                "config" => volume::show(&place, 0, &volume::files(&self.cases.join(case))?)?,
                "probes" => volume::show(&place, 0, &volume::files(&self.cases.join(case).join("probes"))?)?,
                "token" => volume::show(&place, 0, &[("token".to_owned(), super::TOKEN.to_owned())])?,
                _ => {}
            }
            volumes.insert(name.to_owned(), place);
        }
        Ok(volumes)
    }
}

impl Container {
    /// Runs it to its end; what it printed and whether it called that a success.
    pub fn run(&self) -> Result<(bool, String)> {
        let output = self.runc(&["run", "--bundle"]).arg(self.folder.join("bundle")).arg(&self.name).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        Ok((output.status.success(), text))
    }

    /// Starts it and waits until it answers.
    pub fn start(mut self) -> Result<Container> {
        let log = File::create(self.folder.join("log"))?;
        let mut runc = self.runc(&["run", "--bundle"]);
        runc.arg(self.folder.join("bundle")).arg(&self.name).stdin(Stdio::null());
        self.child = Some(runc.stdout(log.try_clone()?).stderr(log).spawn().context("starting runc")?);
        self.wait("its health", |this| this.get("/healthz").ok().filter(|(status, _)| *status == 200))?;
        Ok(self)
    }

    /// Waits until something is there.
    pub fn wait<T>(&mut self, what: &str, look: impl Fn(&Container) -> Option<T>) -> Result<T> {
        let begin = Instant::now();
        loop {
            if let Some(found) = look(self) {
                return Ok(found);
            }
            if let Some(status) = self.child.as_mut().and_then(|child| child.try_wait().ok()?) {
                bail!("the container ended with {status}:\n{}", self.log());
            }
            if begin.elapsed() > PATIENCE {
                bail!("waited {PATIENCE:?} for {what}:\n{}", self.log());
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// What it printed.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// The folder of one of its volumes.
    pub fn volume(&self, name: &str) -> PathBuf {
        self.folder.join("volumes").join(name)
    }

    /// `/proc/PID/FILE` of its first process.
    pub fn proc(&self, file: &str) -> Result<String> {
        let state = finished(self.runc(&["state"]).arg(&self.name))?;
        let pid = serde_json::from_str::<Value>(&state)?["pid"].as_u64().context("runc tells no process id")?;
        Ok(fs::read_to_string(format!("/proc/{pid}/{file}"))?)
    }

    /// Status and body of a page.
    pub fn get(&self, path: &str) -> Result<(u16, String)> {
        let url = self.url(path);
        self.inside(move || answer(client().get(url).call()?))
    }

    /// The same of a request with a body and the token.
    pub fn post(&self, path: &str, body: &'static str) -> Result<(u16, String)> {
        let url = self.url(path);
        let token = format!("Bearer {}", super::TOKEN);
        self.inside(move || answer(client().post(url).header("Authorization", token).send(body)?))
    }

    /// Gives the pod's service account its files: a token, and who signs the API server's certificate.
    pub fn account(&self, token: &str, authority: &str) -> Result<()> {
        for (name, text) in [("token", token), ("ca.crt", authority), ("namespace", "kstrobe")] {
            fs::write(self.folder.join("account").join(name), text)?;
        }
        Ok(())
    }

    /// A listener in the pod's network.
    pub fn listen(&self, port: u16) -> Result<TcpListener> {
        self.inside(move || Ok(TcpListener::bind(("127.0.0.1", port))?))
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// What is done by a thread that goes into the pod's network, and ends there.
    fn inside<T: Send + 'static>(&self, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        let network = (!self.host_network).then(|| self.network.path());
        let done = std::thread::spawn(move || -> Result<T> {
            if let Some(network) = network {
                setns(File::open(network)?, CloneFlags::CLONE_NEWNET)?;
            }
            work()
        });
        done.join().map_err(|_| anyhow::anyhow!("a thread in the pod's network panicked"))?
    }

    fn runc(&self, arguments: &[&str]) -> Command {
        let mut runc = Command::new("runc");
        runc.arg("--root").arg(self.folder.join("runc")).args(arguments);
        runc
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.runc(&["delete", "--force"]).arg(&self.name).stderr(Stdio::null()).status();
        if let Some(mut child) = self.child.take() {
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Network {
    fn new(name: &str) -> Result<Network> {
        finished(Command::new("ip").args(["netns", "add", name]))?;
        let network = Network(name.to_owned());
        finished(Command::new("ip").args(["-n", name, "link", "set", "lo", "up"]))?;
        Ok(network)
    }

    fn path(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.0)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.0]).status();
    }
}
