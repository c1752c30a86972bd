//! apt with lists of its own: packages of other releases are looked up and fetched, and the machine's sources stay as they
//! are. The archive's address is the machine's, if it is Debian.

use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Verifies what comes from Debian's archive.
pub const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Where Debian's archive is when the machine's own sources do not say.
const PUBLIC_ARCHIVE: &str = "http://deb.debian.org/debian";

/// A view of Debian's archive.
pub struct Apt {
    folder: PathBuf,
}

impl Apt {
    /// The suites' indices, fetched into `folder`.
    pub fn open(folder: &Path, suites: &[String]) -> Result<Apt> {
        let mirror = mirror().unwrap_or_else(|| PUBLIC_ARCHIVE.to_owned());
        fs::create_dir_all(folder.join("lists/partial"))?;
        fs::create_dir_all(folder.join("archives/partial"))?;
        let line = |suite: &String| {
            let security = if suite.ends_with("-security") { "-security" } else { "" };
            format!("deb [arch=amd64 signed-by={KEYRING}] {mirror}{security} {suite} main\n")
        };
        fs::write(folder.join("sources.list"), suites.iter().map(line).collect::<String>())?;
        let apt = Apt { folder: folder.to_owned() };
        finished(apt.command("apt-get").arg("update"))?;
        Ok(apt)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let folder = self.folder.display();
        command.args(["-qq", "-o"]).arg(format!("Dir::Etc::SourceList={folder}/sources.list"));
        command.arg("-o").arg(format!("Dir::State::Lists={folder}/lists"));
        // A mirror that lags behind has an index past its date; it is still signed.
        for option in [
            "Acquire::Check-Valid-Until=false",
            "Dir::Etc::SourceParts=/dev/null",
            "Dir::Etc::PreferencesParts=/dev/null",
            "Dir::Cache::pkgcache=",
            "Dir::Cache::srcpkgcache=",
            "APT::Architecture=amd64",
            "APT::Architectures=amd64",
            // apt's own user cannot write here.
            "APT::Sandbox::User=root",
        ] {
            command.args(["-o", option]);
        }
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command
    }

    /// Names of the packages that fit a regular expression.
    pub fn search(&self, expression: &str) -> Result<Vec<String>> {
        let out = finished(self.command("apt-cache").args(["search", "--names-only", expression]))?;
        Ok(out.lines().filter_map(|line| Some(line.split_once(" - ")?.0.to_owned())).collect())
    }

    /// What a package depends on directly.
    pub fn depends(&self, package: &str) -> Result<Vec<String>> {
        let out = finished(self.command("apt-cache").args(["depends", package]))?;
        Ok(out.lines().filter_map(|line| Some(line.trim().strip_prefix("Depends: ")?.to_owned())).collect())
    }

    /// Names of the packages that would be installed with this one on a machine like this.
    pub fn closure(&self, package: &str) -> Result<Vec<String>> {
        let out = finished(self.command("apt-get").args(["install", "-s", "--no-install-recommends", package]))?;
        Ok(out.lines().filter_map(|line| line.strip_prefix("Inst ")?.split(' ').next().map(str::to_owned)).collect())
    }

    /// Fetches packages as files into a folder.
    pub fn download(&self, packages: &[String], into: &Path) -> Result<()> {
        finished(self.command("apt-get").arg("download").args(packages).current_dir(into)).map(drop)
    }

    /// Installs a package and what it needs from this suite where that has it.
    pub fn install(&self, suite: &str, package: &str) -> Result<()> {
        let arguments = ["install", "-y", "--no-install-recommends", "-t", suite, package];
        finished(self.command("apt-get").args(arguments)).map(drop)
    }
}

/// Address of the archive of Debian that the machine's own sources name.
fn mirror() -> Option<String> {
    let arguments = ["indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"];
    let out = finished(Command::new("apt-get").args(arguments)).ok()?;
    let found = out.lines().map(|line| line.trim_end_matches('/')).find(|line| line.ends_with("/debian"));
    found.map(str::to_owned)
}

/// Output of a command that must end well; what it complained about is the error.
pub fn finished(command: &mut Command) -> Result<String> {
    let Output { status, stdout, stderr } =
        command.output().with_context(|| format!("starting {:?}", command.get_program()))?;
    if status.success() {
        return Ok(String::from_utf8_lossy(&stdout).into_owned());
    }
    let complaint = String::from_utf8_lossy(&stderr);
    let program = command.get_program().to_string_lossy().into_owned();
    bail!("{program} ended with {status}: {}", complaint.trim().lines().last().unwrap_or("no reason given"))
}
