//! Programs of the distribution that serve as witnesses in tests and benchmarks: found, or installed.

use crate::apt::{Apt, finished};
use anyhow::{Context, Result, bail, ensure};
pub use kstrobe_testing::find;
use nix::unistd::geteuid;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A program (or header, when the name is a path) and the packages that have it: the first that installs is taken.
const NEEDED: &[(&str, &[&str])] = &[
    ("bpftrace", &["bpftrace"]),
    // Ubuntu before 25.04 ships it with the kernel's tools.
    ("bpftool", &["bpftool", "linux-tools-generic"]),
    ("ip", &["iproute2"]),
    ("ss", &["iproute2"]),
    ("nstat", &["iproute2"]),
    ("tc", &["iproute2"]),
    ("losetup", &["mount"]),
    ("setpriv", &["util-linux"]),
    ("unshare", &["util-linux"]),
    ("nft", &["nftables"]),
    ("postgres", &["postgresql"]),
    ("trace-cmd", &["trace-cmd"]),
    ("jsonnet", &["jsonnet"]),
    ("prometheus-alertmanager", &["prometheus-alertmanager"]),
    ("clang", &["clang"]),
    ("curl", &["curl"]),
    ("chromium", &["chromium"]),
    ("chromedriver", &["chromium-driver"]),
    ("openssl", &["openssl"]),
    ("systemd-socket-activate", &["systemd"]),
    ("runc", &["runc"]),
    ("podman", &["podman"]),
    ("conmon", &["conmon"]),
    ("tmux", &["tmux"]),
    // Client and server of SSH without a service.
    ("dropbear", &["dropbear-bin"]),
    // All that is in the containers of tests, so that it must be static.
    ("busybox", &["busybox-static"]),
    ("/usr/include/bpf/bpf_helpers.h", &["libbpf-dev"]),
];

/// The same for chores that are not part of the tests: installed when one is asked for.
const ON_REQUEST: &[(&str, &[&str])] = &[
    ("buildah", &["buildah"]),
    ("dpkg-source", &["dpkg-dev"]),
    ("make", &["make"]),
    ("patch", &["patch"]),
    ("rsync", &["rsync"]),
    ("jq", &["jq"]),
    ("rpm", &["rpm"]),
    ("aarch64-linux-gnu-gcc", &["gcc-aarch64-linux-gnu"]),
    ("/usr/aarch64-linux-gnu/lib/libc.a", &["libc6-dev-arm64-cross"]),
    ("qemu-aarch64-static", &["qemu-user-static"]),
];

/// Programs of crates.io for the same.
const CARGO_TOOLS: &[(&str, &str)] =
    &[("cargo-cyclonedx", "0.5.9"), ("cargo-deb", "3.8.0"), ("cargo-generate-rpm", "0.21.1")];

/// Programs that are unpacked beside the build and not installed, so that no service starts and nothing else of the machine
/// becomes newer: program, package, release of Debian.
const UNPACKED: &[(&str, &str, &str)] = &[
    ("prometheus", "prometheus", "sid"),
    ("promtool", "promtool", "sid"),
    ("prometheus-node-exporter", "prometheus-node-exporter", "sid"),
    ("victoria-metrics", "victoria-metrics", "sid"),
];

/// The same for chores that are not part of the tests.
const UNPACKED_ON_REQUEST: &[(&str, &str, &str)] = &[("etcd", "etcd-server", "sid")];

/// Names of the programs that are not there.
pub fn missing() -> Vec<&'static str> {
    let unpacked = UNPACKED.iter().map(|(name, ..)| *name);
    NEEDED.iter().map(|(name, _)| *name).chain(unpacked).filter(|name| find(name).is_none()).collect()
}

/// The given agent, or a development build.
pub fn development_agent(root: &Path, given: Option<&Path>) -> Result<PathBuf> {
    let program = match given {
        Some(given) => std::path::absolute(given)?,
        None => {
            let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
            finish(cargo.args(["build", "--quiet", "--locked", "--bin", "kstrobe"]).current_dir(root))?;
            root.join("target/debug/kstrobe")
        }
    };
    ensure!(program.is_file(), "there is no {}", program.display());
    Ok(program)
}

/// Why nothing can be installed here; `None` when it can.
pub fn cannot_install() -> Option<&'static str> {
    let system = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let family = system.lines().filter(|line| line.starts_with("ID=") || line.starts_with("ID_LIKE="));
    if !family.into_iter().any(|line| line.contains("debian") || line.contains("ubuntu")) {
        Some("not Debian or Ubuntu")
    } else if !geteuid().is_root() {
        Some("not root")
    } else {
        None
    }
}

/// Installs what is missing with apt-get. Nothing happens, not even an index update, when all is there.
pub fn install() -> Result<()> {
    install_these(&missing())
}

/// The same for these alone.
pub fn install_these(names: &[impl AsRef<str>]) -> Result<()> {
    let lacking: Vec<&str> = names.iter().map(AsRef::as_ref).filter(|name| find(name).is_none()).collect();
    if !lacking.is_empty() {
        update();
    }
    for name in lacking {
        if UNPACKED.iter().any(|(program, ..)| *program == name) {
            unpack(name)?;
            continue;
        }
        let known = NEEDED.iter().chain(ON_REQUEST).find(|(program, _)| *program == name);
        let (_, packages) = known.with_context(|| format!("it is not known which package has {name}"))?;
        println!("installing {}", packages[0]);
        let installed = packages.iter().any(|p| apt(&["install", "-y", "--no-install-recommends", p]).is_ok());
        if !installed || find(name).is_none() {
            bail!("no package of {} brought {name}", packages.join(", "));
        }
    }
    Ok(())
}

/// Path of one of the programs that are not installed, fetched if it is not there.
pub fn unpack(program: &str) -> Result<PathBuf> {
    if let Some(found) = find(program) {
        return Ok(found);
    }
    let known = UNPACKED.iter().chain(UNPACKED_ON_REQUEST).find(|(name, ..)| *name == program);
    let (_, package, release) = known.with_context(|| format!("it is not known which package has {program}"))?;
    println!("fetching {package} from Debian {release}");
    let folder = Path::new(kstrobe_testing::UNPACKED);
    fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    let apt = Apt::open(&folder.join("apt"), &[(*release).to_owned()])?;
    apt.download(&[(*package).to_owned()], folder)?;
    for entry in fs::read_dir(folder)? {
        let file = entry?.path();
        if file.extension().is_some_and(|extension| extension == "deb") {
            finished(Command::new("dpkg-deb").arg("-x").arg(&file).arg(folder))?;
            fs::remove_file(&file)?;
        }
    }
    find(program).with_context(|| format!("{package} of Debian {release} has no {program}"))
}

/// Runs a program that must end well, with its output on ours.
pub fn finish(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("starting {program}"))?;
    if status.success() { Ok(()) } else { bail!("{program} ended with {status}") }
}

/// A program of crates.io, built into a folder of ours if it is not there.
pub fn cargo_tool(root: &Path, name: &str) -> Result<PathBuf> {
    let known = CARGO_TOOLS.iter().find(|(tool, _)| *tool == name);
    let (_, version) = known.with_context(|| format!("it is not known which version of {name} is wanted"))?;
    let folder = root.join("target/tools");
    let program = folder.join("bin").join(name);
    if !program.is_file() {
        println!("building {name} {version}");
        let mut install = Command::new("cargo");
        // As it is shipped: a debug build packs a program for minutes.
        install.args(["install", "--quiet", "--locked", "--version", version, "--root"]);
        finish(install.arg(&folder).arg(name).current_dir(std::env::temp_dir()))?;
    }
    Ok(program)
}

/// Brings the index of packages up to date; what cannot be had is noticed when it is to be installed.
pub fn update() {
    // A mirror that lags behind has an index past its date; it is still signed.
    if apt(&["update"]).is_err() {
        let _ = apt(&["-o", "Acquire::Check-Valid-Until=false", "update"]);
    }
}

/// Installs one package; brings the index up to date when that is needed.
pub fn install_package(package: &str) -> Result<()> {
    let arguments = ["install", "-y", "--no-install-recommends", package];
    if apt(&arguments).is_ok() {
        return Ok(());
    }
    update();
    apt(&arguments)
}

fn apt(arguments: &[&str]) -> Result<()> {
    let status = Command::new("apt-get")
        .arg("-qq")
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdout(Stdio::null())
        .status()?;
    if status.success() { Ok(()) } else { bail!("apt-get {} failed", arguments.join(" ")) }
}
