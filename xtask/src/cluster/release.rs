//! The chart in the cluster, by Helm. Kubernetes older than the chart is for gets what the chart renders, without Helm.

use crate::chart;
use crate::programs::finish;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The oldest version that the chart is for.
pub const SINCE: (u32, u32) = (1, 28);

/// Helm, and the chart.
pub struct Chart {
    python: PathBuf,
    script: PathBuf,
    /// The values of the tests.
    pub values: PathBuf,
    /// A folder with a file for each definition of a custom resource.
    pub definitions: PathBuf,
    /// The script by which an API server judges definitions and objects.
    judge: PathBuf,
}

impl Chart {
    /// Fetches Helm if it is not there.
    pub fn prepare(root: &Path) -> Result<Chart> {
        let folder = root.join("target/cluster/chart");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let chart = Chart {
            python: chart::python(root)?,
            script: root.join("helm/tests/release.py"),
            values: root.join("xtask/cluster/values.yaml"),
            definitions: folder.join("definitions"),
            judge: root.join("helm/tests/server.py"),
        };
        finish(chart.command().arg("definitions").arg(&chart.definitions))?;
        Ok(chart)
    }

    fn command(&self) -> Command {
        let mut python = Command::new(&self.python);
        python.env("PYTHONDONTWRITEBYTECODE", "1").arg(&self.script);
        python
    }

    /// All that the chart makes of the values, as YAML.
    pub fn render(&self) -> Result<String> {
        crate::apt::finished(self.command().arg("render").arg(&self.values))
    }

    /// Helm in the node's network: `install`, `upgrade`, `rollback`, `test`, `status` or `uninstall`. Returns what it prints.
    pub fn helm(&self, kubeconfig: &str, action: &str, more: &[&str]) -> Result<String> {
        self.inside(&self.script, &[&[action, kubeconfig], more].concat())
            .with_context(|| format!("helm {action} {}", more.join(" ")))
    }

    /// Has the API server judge the chart's definitions and right and wrong objects.
    pub fn judge(&self, url: &str, authority: &str, identity: [&str; 2]) -> Result<String> {
        let definitions = self.definitions.display().to_string();
        self.inside(&self.judge, &[url, authority, &definitions, identity[0], identity[1]])
    }

    fn inside(&self, script: &Path, arguments: &[&str]) -> Result<String> {
        let [nsenter, net] = super::network::inside();
        let mut python = Command::new(nsenter);
        python.env("PYTHONDONTWRITEBYTECODE", "1").arg(net).arg(&self.python).arg(script).args(arguments);
        let Output { status, stdout, stderr } = python.output()?;
        let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        ensure!(status.success(), "{}", [stdout.trim(), stderr.trim()].join("\n"));
        Ok(stdout.trim().to_owned())
    }
}
