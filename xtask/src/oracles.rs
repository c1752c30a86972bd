//! Programs that read what we write: tests named `oracle_` and their witness. No test needs more than one of them.

use crate::programs;
use anyhow::{Context, Result, bail};
use nix::unistd::geteuid;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Begins the name of every such test.
pub const TESTS: &str = "oracle_";
/// A Python with packages, for the tests that ask it.
struct Python {
    /// Names it.
    variable: &'static str,
    /// Of our own in `target`.
    folder: &'static str,
    packages: &'static [&'static str],
}

/// Perfetto's package, and what it reads messages with.
const PERFETTO: Python = Python {
    variable: "KSTROBE_PYTHON",
    folder: "target/perfetto",
    packages: &["perfetto==0.59.1", "protobuf==7.36.2"],
};
const DUCKDB: Python =
    Python { variable: "KSTROBE_DUCKDB_PYTHON", folder: "target/duckdb", packages: &["duckdb==2.0.1"] };

/// A witness.
pub struct Oracle {
    /// Of the step that runs its tests.
    pub step: &'static str,
    /// Begins the names of its tests.
    pub tests: &'static str,
    /// Gets it ready and says what its tests find in their environment; the error is why it is not there.
    pub ready: fn(&Path) -> Result<Environment, String>,
}

/// Names and values.
pub type Environment = Vec<(&'static str, PathBuf)>;

/// All of them.
pub const ALL: [Oracle; 4] = [
    Oracle { step: "oracle: trace-cmd", tests: "oracle_trace_cmd_", ready: |_| installed("trace-cmd") },
    Oracle {
        step: "oracle: Perfetto's Python package",
        tests: "oracle_perfetto_",
        ready: |root| python(&PERFETTO, root),
    },
    Oracle { step: "oracle: DuckDB's Python package", tests: "oracle_duckdb_", ready: duckdb },
    Oracle { step: "oracle: node", tests: "oracle_node_", ready: |_| installed("node") },
];

fn installed(program: &str) -> Result<Environment, String> {
    programs::find(program).map(|_| Vec::new()).ok_or_else(|| format!("{program} is not installed"))
}

/// Its tests compare with an agent that counts.
fn duckdb(root: &Path) -> Result<Environment, String> {
    if geteuid().is_root() { python(&DUCKDB, root) } else { Err("not root".to_owned()) }
}

/// The Python that is named, or our own in `target`, made once.
fn python(python: &Python, root: &Path) -> Result<Environment, String> {
    let Python { variable, packages, .. } = python;
    if std::env::var_os(variable).is_some() {
        return Ok(Vec::new());
    }
    let folder = root.join(python.folder);
    let python = folder.join("bin/python");
    // Written last: without it what is there may be half of it.
    let ready = folder.join("ready");
    let wanted = packages.join(" ");
    if fs::read_to_string(&ready).is_ok_and(|made| made == wanted) {
        return Ok(vec![(variable, python)]);
    }
    let host = programs::find("python3").ok_or("python3 is not installed")?;
    let make = || {
        quietly(Command::new(host).args(["-m", "venv", "--clear"]).arg(&folder))?;
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
        quietly(Command::new(&python).args(pip).args(*packages))?;
        fs::write(&ready, &wanted).with_context(|| format!("writing {}", ready.display()))
    };
    make().map_err(|error| format!("no Python with {wanted} ({error:#}); {variable} may name one"))?;
    Ok(vec![(variable, python)])
}

/// Runs a command; the error has the last line of what it said.
fn quietly(command: &mut Command) -> Result<()> {
    let done =
        command.stdin(Stdio::null()).output().with_context(|| format!("starting {:?}", command.get_program()))?;
    if done.status.success() {
        return Ok(());
    }
    // Python tells on standard output that it has no `venv`.
    let said = [done.stdout, done.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("nothing said").trim();
    bail!("{:?}: {}: {last}", command.get_program(), done.status)
}
