//! apt with lists of its own: packages of other releases are looked up and fetched, and the machine's sources stay as they
//! are. The archive's address is the machine's, if it is Debian.

use crate::arch::Arch;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Verifies what comes from Debian's archive.
pub const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Where Debian's archive is when the machine's own sources do not say.
const PUBLIC_ARCHIVE: &str = "http://deb.debian.org/debian";

/// An option of apt: by it, this machine has no packages.
const NOTHING_INSTALLED: &str = "Dir::State::status=/dev/null";

/// A view of Debian's archive.
pub struct Apt {
    folder: PathBuf,
    arch: Arch,
}

impl Apt {
    /// The suites' indices of packages, fetched into `folder`.
    pub fn open(folder: &Path, suites: &[String]) -> Result<Apt> {
        Apt::open_for(Arch::Amd64, folder, suites)
    }

    /// The same for packages of another architecture.
    pub fn open_for(arch: Arch, folder: &Path, suites: &[String]) -> Result<Apt> {
        Apt::of_kinds(arch, folder, suites, &["deb"])
    }

    /// The same with those of source packages.
    pub fn with_sources(folder: &Path, suites: &[String]) -> Result<Apt> {
        Apt::of_kinds(Arch::Amd64, folder, suites, &["deb", "deb-src"])
    }

    fn of_kinds(arch: Arch, folder: &Path, suites: &[String], kinds: &[&str]) -> Result<Apt> {
        let mirror = mirror().unwrap_or_else(|| PUBLIC_ARCHIVE.to_owned());
        fs::create_dir_all(folder.join("lists/partial"))?;
        fs::create_dir_all(folder.join("archives/partial"))?;
        let lines = |suite: &String| {
            let security = if suite.ends_with("-security") { "-security" } else { "" };
            let options = format!("[arch={} signed-by={KEYRING}]", arch.of_images());
            let line = |kind| format!("{kind} {options} {mirror}{security} {suite} main\n");
            kinds.iter().map(line).collect::<String>()
        };
        fs::write(folder.join("sources.list"), suites.iter().map(lines).collect::<String>())?;
        let apt = Apt { folder: folder.to_owned(), arch };
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
            // apt's own user cannot write here.
            "APT::Sandbox::User=root",
        ] {
            command.args(["-o", option]);
        }
        for option in ["APT::Architecture", "APT::Architectures"] {
            command.arg("-o").arg(format!("{option}={}", self.arch.of_images()));
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

    /// These packages and all that they need, as on a machine where nothing is installed.
    pub fn closure(&self, packages: &[&str]) -> Result<Vec<String>> {
        let arguments = [NOTHING_INSTALLED, "install", "-s", "--no-install-recommends"];
        let out = finished(self.command("apt-get").arg("-o").args(arguments).args(packages))?;
        Ok(out.lines().filter_map(|line| line.strip_prefix("Inst ")?.split(' ').next().map(str::to_owned)).collect())
    }

    /// Fetches packages as files into a folder, in the suites' versions, whatever this machine has.
    pub fn download(&self, packages: &[String], into: &Path) -> Result<()> {
        let mut get = self.command("apt-get");
        finished(get.args(["-o", NOTHING_INSTALLED, "download"]).args(packages).current_dir(into)).map(drop)
    }

    /// Unpacks packages into a folder that does not exist yet: all of them, or the folder is not made.
    pub fn unpack(&self, packages: &[String], into: &Path) -> Result<()> {
        let (fetched, partial) = (into.with_extension("fetched"), into.with_extension("partial"));
        for folder in [&fetched, &partial] {
            // What an earlier run left may be of another day's release.
            let _ = fs::remove_dir_all(folder);
            fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        }
        self.download(packages, &fetched)?;
        for entry in fs::read_dir(&fetched)? {
            finished(Command::new("dpkg-deb").arg("-x").arg(entry?.path()).arg(&partial))?;
        }
        fs::remove_dir_all(&fetched)?;
        fs::rename(&partial, into).with_context(|| format!("creating {}", into.display()))
    }

    /// Unpacks a source package, with Debian's patches, into a folder that does not exist yet.
    pub fn source(&self, package: &str, into: &Path) -> Result<()> {
        let fetched = into.with_extension("fetched");
        let _ = fs::remove_dir_all(&fetched);
        fs::create_dir_all(&fetched).with_context(|| format!("creating {}", fetched.display()))?;
        finished(self.command("apt-get").args(["source", "--download-only", package]).current_dir(&fetched))?;
        let files = fs::read_dir(&fetched)?.flatten().map(|entry| entry.path());
        let description = files.into_iter().find(|path| path.extension().is_some_and(|extension| extension == "dsc"));
        let description = description.with_context(|| format!("the archive has no source of {package}"))?;
        finished(Command::new("dpkg-source").arg("-x").arg(description).arg(into))?;
        Ok(fs::remove_dir_all(&fetched)?)
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
