//! `cargo xtask image`: the agent as a static program, and the image with it.

use crate::programs;
use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// An architecture as images and as compilers name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Arch {
    /// x86_64
    Amd64,
    /// aarch64
    Arm64,
}

/// What to build.
#[derive(Args)]
pub struct Options {
    /// Architecture [default: this machine's]
    #[arg(long, value_enum)]
    arch: Option<Arch>,
    /// Cargo's profile; `dev` is quicker to build
    #[arg(long, default_value = "release")]
    profile: String,
}

/// A built image.
pub struct Image {
    storage: PathBuf,
    name: String,
}

impl Arch {
    fn here() -> Arch {
        if cfg!(target_arch = "aarch64") { Arch::Arm64 } else { Arch::Amd64 }
    }

    fn of_images(self) -> &'static str {
        match self {
            Arch::Amd64 => "amd64",
            Arch::Arm64 => "arm64",
        }
    }

    fn of_compilers(self) -> &'static str {
        match self {
            Arch::Amd64 => "x86_64-unknown-linux-gnu",
            Arch::Arm64 => "aarch64-unknown-linux-gnu",
        }
    }
}

/// Builds the program and the image.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let arch = options.arch.unwrap_or(Arch::here());
    let program = program(root, arch, &options.profile)?;
    println!("{}: {} KiB, static", program.display(), fs::metadata(&program)?.len() / 1024);
    let image = build(root, arch)?;
    let layout = root.join("target/image").join(format!("{}.oci", arch.of_images()));
    let _ = fs::remove_dir_all(&layout);
    finish(image.buildah().args(["push", "--quiet", &image.name]).arg(format!("oci:{}:kstrobe", layout.display())))?;
    println!("{}: the image, as an OCI layout", layout.display());
    bill_of_materials(root, arch)
}

/// The image of this machine's architecture, quick to build.
pub fn for_tests(root: &Path) -> Result<Image> {
    let arch = Arch::here();
    program(root, arch, "dev")?;
    build(root, arch)
}

/// The agent, linked statically, where the Containerfile expects it.
fn program(root: &Path, arch: Arch, profile: &str) -> Result<PathBuf> {
    let target = arch.of_compilers();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--locked", "-p", "kstrobe", "--profile", profile, "--target", target]).current_dir(root);
    finish(build.env("RUSTFLAGS", "-C target-feature=+crt-static"))?;
    let folder = if profile == "dev" { "debug" } else { profile };
    let built = root.join("target").join(target).join(folder).join("kstrobe");
    if arch == Arch::here() {
        let answer = Command::new("ldd").arg(&built).output().context("starting ldd")?;
        let said = String::from_utf8_lossy(&answer.stdout).into_owned() + &String::from_utf8_lossy(&answer.stderr);
        if !said.contains("statically linked") && !said.contains("not a dynamic executable") {
            bail!("{} is not static: {}", built.display(), said.trim());
        }
    }
    let place = root.join("target/image").join(arch.of_images()).join("kstrobe");
    if let Some(folder) = place.parent() {
        fs::create_dir_all(folder)?;
    }
    // A program that runs cannot be written over, but it can be replaced.
    let _ = fs::remove_file(&place);
    fs::copy(&built, &place).with_context(|| built.display().to_string())?;
    Ok(place)
}

fn build(root: &Path, arch: Arch) -> Result<Image> {
    programs::install_these(&["buildah"])?;
    let image = Image { storage: root.join("target/image/storage"), name: format!("kstrobe-{}", arch.of_images()) };
    let git = |arguments: &[&str]| {
        let answer = Command::new("git").args(arguments).current_dir(root).output().ok()?;
        answer.status.success().then(|| String::from_utf8_lossy(&answer.stdout).trim().to_owned())
    };
    let revision = git(&["rev-parse", "HEAD"]).unwrap_or_else(|| "unknown".to_owned());
    let mut buildah = image.buildah();
    buildah.args(["build", "--quiet", "--isolation", "chroot", "--timestamp", "0"]);
    buildah.arg(format!("--platform=linux/{}", arch.of_images()));
    buildah.arg(format!("--build-arg=VERSION={}", env!("CARGO_PKG_VERSION")));
    buildah.arg(format!("--build-arg=REVISION={revision}"));
    finish(buildah.args(["-t", &image.name, "-f", "packaging/Containerfile", "."]).current_dir(root))?;
    Ok(image)
}

impl Image {
    fn buildah(&self) -> Command {
        let mut buildah = Command::new("buildah");
        // A storage of its own: nothing of the machine's is read or changed.
        buildah.args(["--storage-driver", "vfs", "--root"]).arg(self.storage.join("root"));
        buildah.arg("--runroot").arg(self.storage.join("run"));
        buildah
    }

    /// Its configuration: entry point, user, labels.
    pub fn config(&self) -> Result<serde_json::Value> {
        let text =
            finished(self.buildah().args(["inspect", "--type", "image", "--format", "{{json .OCIv1}}", &self.name]))?;
        Ok(serde_json::from_str(&text)?)
    }

    /// A folder with its files.
    pub fn files(&self, into: &Path) -> Result<()> {
        let container = finished(self.buildah().args(["from", "--quiet", &self.name]))?;
        let mounted = finished(self.buildah().args(["mount", container.trim()]))?;
        fs::create_dir_all(into)?;
        let copied = finish(Command::new("cp").arg("-a").arg(format!("{}/.", mounted.trim())).arg(into));
        finished(self.buildah().args(["rm", container.trim()]))?;
        copied
    }
}

/// What is in the program, for who has to know.
fn bill_of_materials(root: &Path, arch: Arch) -> Result<()> {
    if programs::find("cargo-cyclonedx").is_none() {
        println!("no bill of materials: cargo install --locked cargo-cyclonedx");
        return Ok(());
    }
    let name = format!("kstrobe-{}.cdx", arch.of_images());
    let mut cyclonedx = Command::new("cargo");
    cyclonedx.args([
        "cyclonedx",
        "--quiet",
        "--format",
        "json",
        "--spec-version",
        "1.5",
        "--manifest-path",
        "agent/Cargo.toml",
    ]);
    cyclonedx.args(["--target", arch.of_compilers(), "--override-filename", &name]);
    finish(cyclonedx.current_dir(root))?;
    let place = root.join("target/image").join(format!("{name}.json"));
    // It writes beside every crate's manifest.
    for crate_folder in ["agent", "config", "ebpf", "export", "ftrace", "push", "web", "mixin", "workloads"] {
        let written = root.join(crate_folder).join(format!("{name}.json"));
        if crate_folder == "agent" {
            fs::copy(&written, &place).with_context(|| written.display().to_string())?;
        }
        // Not every crate is there, nor does the agent need every one.
        let _ = fs::remove_file(&written);
    }
    println!("{}: what is in it", place.display());
    Ok(())
}

fn finish(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("starting {program}"))?;
    if status.success() { Ok(()) } else { bail!("{program} ended with {status}") }
}

fn finished(command: &mut Command) -> Result<String> {
    crate::apt::finished(command)
}
