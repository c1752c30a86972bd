//! `cargo xtask helm`: the chart, by Helm itself, by Kubernetes' and the Prometheus operator's schemas, by the API server's own
//! code, and by the agent's own parser.
//!
//! Helm is a library of Python here, with its files pinned by hash in `helm/tests/requirements.txt`; all is kept in
//! `target/helm`.

mod agent_files;
mod definitions;

use crate::container;
use crate::made_from;
use crate::programs::{self, finish};
use anyhow::{Context, Result, bail};
use clap::Args;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What to do besides checking.
#[derive(Args, Default)]
pub struct Options {
    /// Also have the API server's whole part for custom resources, with etcd, judge right and wrong objects; it is built once,
    /// which takes minutes
    #[arg(long)]
    api_server: bool,
    /// Write what is made from the chart: the table in its README, and helm/manifests/kstrobe.yaml
    #[arg(long)]
    bless: bool,
    /// Also run the chart's pod in a container of the image on this machine (root)
    #[arg(long)]
    runc: bool,
    /// The agent in these containers: a static one goes into the image, another one takes its libraries along; without it a
    /// static one is built
    #[arg(long, requires = "runc")]
    agent: Option<PathBuf>,
}

/// What the checks need, once it is there.
pub struct Tools {
    folder: PathBuf,
    python: PathBuf,
    /// The folder with the operator's models, or why there is none.
    models: Result<PathBuf, String>,
    /// The API server's validation of definitions, or why there is none.
    checker: Result<PathBuf, String>,
}

/// Runs everything.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let tools = prepare(root).map_err(anyhow::Error::msg)?;
    for why in tools.lacking() {
        println!("not run: {why}");
    }
    check(root, &tools, options)?;
    if options.api_server {
        definitions::judge(root, &tools.python, &tools.definitions())?;
    }
    if options.runc { container::check(root, &tools.cases(), options.agent.as_deref()) } else { Ok(()) }
}

/// Fetches what is missing; the reason when that cannot be.
pub fn prepare(root: &Path) -> Result<Tools, String> {
    let folder = folder(root);
    let python = python(root).map_err(|error| format!("{error:#}"))?;
    let models = models(root, &folder).map_err(|error| format!("objects of the Prometheus operator: {error:#}"));
    let checker = definitions::checker(root).map_err(|error| format!("the API server's validation of CRDs: {error:#}"));
    Ok(Tools { folder, python, models, checker })
}

/// The folder of rendered cases, made by the checks if it is not there.
pub fn cases(root: &Path) -> Result<PathBuf> {
    let tools = prepare(root).map_err(anyhow::Error::msg)?;
    check(root, &tools, &Options::default())?;
    Ok(tools.cases())
}

/// All checks.
pub fn check(root: &Path, tools: &Tools, options: &Options) -> Result<()> {
    let out = tools.folder.join("out");
    // What an earlier run left would be taken for this one's.
    let _ = fs::remove_dir_all(&out);
    let mut chart = Command::new(&tools.python);
    chart.arg(root.join("helm/tests/chart.py")).arg(&out).env("PYTHONDONTWRITEBYTECODE", "1");
    if options.bless {
        chart.arg("--bless");
    }
    finish(&mut chart)?;
    if let Ok(models) = &tools.models {
        finish(Command::new("node").arg(models.join("crds.mjs")).arg(out.join("operator.json")))?;
    }
    if let Ok(checker) = &tools.checker {
        definitions::check(root, checker, &tools.definitions())?;
    }
    agent_files::check(&tools.cases())
}

impl Tools {
    /// A folder for each rendered case, once the chart was checked.
    pub fn cases(&self) -> PathBuf {
        self.folder.join("out/cases")
    }

    /// A file for each definition of a custom resource, once the chart was checked.
    fn definitions(&self) -> PathBuf {
        self.folder.join("out/definitions")
    }

    /// What is not checked, and why.
    pub fn lacking(&self) -> impl Iterator<Item = &str> {
        [&self.models, &self.checker].into_iter().filter_map(|made| made.as_ref().err().map(String::as_str))
    }
}

fn folder(root: &Path) -> PathBuf {
    root.join("target/helm")
}

/// A Python with Helm and Kubernetes' schemas.
pub fn python(root: &Path) -> Result<PathBuf> {
    let folder = folder(root);
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let (venv, wanted) = (folder.join("venv"), root.join("helm/tests/requirements.txt"));
    let python = venv.join("bin/python");
    if !made_from::is_current(&venv, &[&wanted]) {
        if programs::find("python3").is_none() {
            bail!("python3 is not installed");
        }
        // Half of one is worse than none.
        let _ = fs::remove_dir_all(&venv);
        finish(Command::new("python3").args(["-m", "venv"]).arg(&venv))
            .context("Python makes no environment of its own: apt-get install python3-venv")?;
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes", "-r"]);
        finish(pip.arg(&wanted)).context("Helm for Python cannot be installed")?;
        made_from::remember(&venv, &[&wanted])?;
    }
    Ok(python)
}

/// A folder with the script that checks the operator's objects, and its modules beside it, where node looks for them.
fn models(root: &Path, folder: &Path) -> Result<PathBuf> {
    let into = folder.join("node");
    let from = root.join("helm/tests");
    let (package, lock) = (from.join("package.json"), from.join("package-lock.json"));
    if !made_from::is_current(&into, &[&package, &lock]) {
        if let Some(missing) = ["node", "npm"].into_iter().find(|name| programs::find(name).is_none()) {
            bail!("{missing} is not installed");
        }
        fs::create_dir_all(&into)?;
        for file in [&package, &lock] {
            fs::copy(file, into.join(file.file_name().unwrap_or_default()))?;
        }
        let mut npm = Command::new("npm");
        finish(npm.args(["ci", "--silent", "--ignore-scripts", "--no-audit", "--no-fund"]).current_dir(&into))?;
        made_from::remember(&into, &[&package, &lock])?;
    }
    fs::copy(from.join("crds.mjs"), into.join("crds.mjs"))?;
    Ok(into)
}
