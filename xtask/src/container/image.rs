//! `cargo xtask image`: the image with the static program, by buildah.

use super::program;
use super::sbom;
use crate::apt::finished;
use crate::arch::Arch;
use crate::programs::{self, finish};
use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What to build.
#[derive(Args)]
pub struct Options {
    /// Architecture; can be given several times [default: this machine's]
    #[arg(long, value_enum)]
    arch: Vec<Arch>,
    /// Cargo's profile; `dev` is quicker to build
    #[arg(long, default_value = "release")]
    profile: String,
}

/// A built image.
pub struct Image {
    storage: PathBuf,
    name: String,
}

/// Builds program, image and bill of materials.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let all = if options.arch.is_empty() { vec![Arch::here()] } else { options.arch.clone() };
    for arch in all {
        let program = program::build(root, arch, &options.profile)?;
        println!("{}: {} KiB, static", program.display(), fs::metadata(&program)?.len() / 1024);
        let image = build(root, arch)?;
        image.check(arch, &root.join("target/image").join(format!("{}.files", arch.of_images())))?;
        let layout = root.join("target/image").join(format!("{}.oci", arch.of_images()));
        let _ = fs::remove_dir_all(&layout);
        let to = format!("oci:{}:kstrobe", layout.display());
        finish(image.buildah().args(["push", "--quiet", &image.name]).arg(to))?;
        println!("{}: the image, as an OCI layout", layout.display());
        let bill = root.join("target/image").join(format!("kstrobe-{}.cdx.json", arch.of_images()));
        let parts = sbom::write(root, arch, &bill)?;
        println!("{}: bill of materials, {parts} crates", bill.display());
    }
    Ok(())
}

/// The image of this machine's architecture: with this program, or one that is quick to build.
pub fn for_tests(root: &Path, program: Option<&Path>) -> Result<Image> {
    let arch = Arch::here();
    match program {
        Some(program) => program::put(root, arch, program).map(drop)?,
        None => program::build(root, arch, "dev").map(drop)?,
    }
    build(root, arch)
}

/// The files of an image of a program that takes libraries, and its configuration.
pub fn plain(program: &Path, into: &Path) -> Result<Value> {
    fs::create_dir_all(into)?;
    fs::copy(program, into.join("kstrobe")).with_context(|| program.display().to_string())?;
    let listed = finished(Command::new("ldd").arg(program))?;
    // `libc.so.6 => /lib/.../libc.so.6 (0x..)`, and the loader without an arrow.
    let files = listed.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    finish(Command::new("cp").args(["--dereference", "--parents"]).args(files).arg(into))?;
    Ok(json!({"config": {"Entrypoint": ["/kstrobe"]}}))
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
    finished(buildah.args(["-t", &image.name, "-f", "packaging/Containerfile", "."]).current_dir(root))?;
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
    pub fn config(&self) -> Result<Value> {
        let text = finished(self.buildah().args(["inspect", "--type", "image", &self.name]))?;
        Ok(serde_json::from_str::<Value>(&text)?["OCIv1"].take())
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

    /// One read-only program, and labels that say which.
    fn check(&self, arch: Arch, folder: &Path) -> Result<()> {
        let config = self.config()?;
        ensure!(config["architecture"] == arch.of_images(), "the image is for {}", config["architecture"]);
        ensure!(config["config"]["Entrypoint"][0] == "/kstrobe", "{config:#}");
        for label in ["title", "description", "licenses", "source", "version", "revision"] {
            let value = &config["config"]["Labels"][format!("org.opencontainers.image.{label}")];
            ensure!(
                value.as_str().is_some_and(|text| !text.is_empty() && text != "unknown"),
                "label {label} is {value}"
            );
        }
        let _ = fs::remove_dir_all(folder);
        self.files(folder)?;
        let listed = finished(Command::new("find").arg(folder).args(["-mindepth", "1", "-printf", "%P %m %U:%G\\n"]))?;
        fs::remove_dir_all(folder)?;
        ensure!(listed == "kstrobe 555 0:0\n", "the image has these files:\n{listed}");
        Ok(())
    }
}
