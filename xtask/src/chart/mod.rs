//! `cargo xtask helm`: the chart, by Helm itself, by Kubernetes' and the Prometheus operator's schemas, and by the agent's own
//! parser.
//!
//! Helm is a library of Python here, with its files pinned by hash in `helm/tests/requirements.txt`; all is kept in
//! `target/helm`.

mod agent_files;

use crate::container;
use crate::programs::{self, finish};
use anyhow::{Context, Result, bail};
use clap::Args;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What to do besides checking.
#[derive(Args, Default)]
pub struct Options {
    /// Write what is made from the chart: the table in its README, and deploy/kstrobe.yaml
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
}

/// Runs everything.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let tools = prepare(root).map_err(anyhow::Error::msg)?;
    if let Some(why) = tools.lacking() {
        println!("not run: {why}");
    }
    check(root, &tools, options)?;
    if options.runc { container::check(root, &tools.cases(), options.agent.as_deref()) } else { Ok(()) }
}

/// Fetches what is missing; the reason when that cannot be.
pub fn prepare(root: &Path) -> Result<Tools, String> {
    let folder = root.join("target/helm");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let python = python(root, &folder).map_err(|error| format!("{error:#}"))?;
    let models = models(root, &folder).map_err(|error| format!("objects of the Prometheus operator: {error:#}"));
    Ok(Tools { folder, python, models })
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
    agent_files::check(&tools.cases())
}

impl Tools {
    /// A folder for each rendered case, once the chart was checked.
    pub fn cases(&self) -> PathBuf {
        self.folder.join("out/cases")
    }

    /// What is not checked, and why.
    pub fn lacking(&self) -> Option<&str> {
        self.models.as_ref().err().map(String::as_str)
    }
}

/// A Python with Helm and Kubernetes' schemas.
fn python(root: &Path, folder: &Path) -> Result<PathBuf> {
    let (venv, wanted) = (folder.join("venv"), root.join("helm/tests/requirements.txt"));
    let python = venv.join("bin/python");
    if !is_made_from(&venv, &[&wanted])? {
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
        made_from(&venv, &[&wanted])?;
    }
    Ok(python)
}

/// A folder with the script that checks the operator's objects, and its modules beside it, where node looks for them.
fn models(root: &Path, folder: &Path) -> Result<PathBuf> {
    let into = folder.join("node");
    let from = root.join("helm/tests");
    let (package, lock) = (from.join("package.json"), from.join("package-lock.json"));
    if !is_made_from(&into, &[&package, &lock])? {
        if let Some(missing) = ["node", "npm"].into_iter().find(|name| programs::find(name).is_none()) {
            bail!("{missing} is not installed");
        }
        fs::create_dir_all(&into)?;
        for file in [&package, &lock] {
            fs::copy(file, into.join(file.file_name().unwrap_or_default()))?;
        }
        let mut npm = Command::new("npm");
        finish(npm.args(["ci", "--silent", "--ignore-scripts", "--no-audit", "--no-fund"]).current_dir(&into))?;
        made_from(&into, &[&package, &lock])?;
    }
    fs::copy(from.join("crds.mjs"), into.join("crds.mjs"))?;
    Ok(into)
}

/// Whether a folder was made from these files as they are now.
fn is_made_from(folder: &Path, files: &[&Path]) -> Result<bool> {
    Ok(fs::read_to_string(folder.join("made-from")).is_ok_and(|text| Some(text) == texts(files).ok()))
}

fn made_from(folder: &Path, files: &[&Path]) -> Result<()> {
    Ok(fs::write(folder.join("made-from"), texts(files)?)?)
}

fn texts(files: &[&Path]) -> Result<String> {
    files.iter().map(|file| fs::read_to_string(file).with_context(|| file.display().to_string())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_made_anew_when_its_files_change() {
        let folder = std::env::temp_dir().join(format!("kstrobe-made-from-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join("wanted");
        fs::write(&file, "one").unwrap();
        assert!(!is_made_from(&folder, &[&file]).unwrap());
        made_from(&folder, &[&file]).unwrap();
        assert!(is_made_from(&folder, &[&file]).unwrap());
        fs::write(&file, "two").unwrap();
        assert!(!is_made_from(&folder, &[&file]).unwrap());
        fs::remove_dir_all(&folder).unwrap();
    }
}
