//! What the lab needs from the distribution: found, installed, or said by name.

use super::boot::qemu;
use crate::apt::{self, Apt, finished};
use crate::arch::Arch;
use crate::programs;
use std::fs;
use std::path::Path;
use std::process::Command;

/// QEMU 7.2 crashes guests that patch their own code, as attaching to tracepoints does; 10 does not.
const QEMU_MAJOR: u32 = 10;

/// A program and the package that has it.
const NEEDED: &[(&str, &str)] = &[
    ("busybox", "busybox-static"),
    ("ip", "iproute2"),
    // Makes test binaries a tenth of their size.
    ("strip", "binutils"),
    ("ldd", "libc-bin"),
    ("dpkg-deb", "dpkg"),
    ("apt-get", "apt"),
    // Verifies what comes from Debian's archive, on Ubuntu too.
    (apt::KEYRING, "debian-archive-keyring"),
];

/// Installs what is missing where that can be done; the error says by name what is still missing and why.
pub fn provide(cache: &Path, arch: Arch) -> Result<(), String> {
    let mut lacking = missing(arch);
    if lacking.is_empty() {
        return Ok(());
    }
    if let Some(why) = programs::cannot_install() {
        return Err(format!("{} missing and not installed: {why}", lacking.join(", ")));
    }
    println!("installing {}", lacking.join(", "));
    let mut reasons = Vec::new();
    for (name, package) in NEEDED.iter().filter(|(name, _)| programs::find(name).is_none()) {
        if let Err(error) = programs::install_package(package) {
            reasons.push(format!("{name}: {error:#}"));
        }
    }
    if qemu_major(arch).is_none_or(|major| major < QEMU_MAJOR)
        && let Err(error) = install_qemu(cache, arch)
    {
        reasons.push(format!("{error:#}"));
    }
    lacking = missing(arch);
    if lacking.is_empty() { Ok(()) } else { Err(format!("{} missing ({})", lacking.join(", "), reasons.join("; "))) }
}

fn missing(arch: Arch) -> Vec<String> {
    let mut names: Vec<String> =
        NEEDED.iter().filter(|(name, _)| programs::find(name).is_none()).map(|(name, _)| (*name).to_owned()).collect();
    match qemu_major(arch) {
        None => names.push(qemu(arch).into()),
        Some(major) if major < QEMU_MAJOR => {
            names.push(format!("{} {QEMU_MAJOR} or newer (here: {major})", qemu(arch)))
        }
        Some(_) => {}
    }
    names
}

/// The emulator's major version.
fn qemu_major(arch: Arch) -> Option<u32> {
    let text = finished(Command::new(qemu(arch)).arg("--version")).ok()?;
    text.split("version ").nth(1)?.split('.').next()?.parse().ok()
}

/// From the distribution; from its backports when its own is too old.
fn install_qemu(cache: &Path, arch: Arch) -> anyhow::Result<()> {
    let package = match arch {
        Arch::Amd64 => "qemu-system-x86",
        Arch::Arm64 => "qemu-system-arm",
    };
    programs::update();
    let candidate = finished(Command::new("apt-cache").args(["policy", package])).unwrap_or_default();
    // "Candidate: 1:10.0.2+ds-2": the epoch is not part of the program's version.
    let version = candidate.lines().find_map(|line| line.trim().strip_prefix("Candidate: "));
    let major = version.and_then(|v| v.rsplit(':').next()?.split('.').next()?.parse::<u32>().ok());
    if major.is_some_and(|major| major >= QEMU_MAJOR) {
        return programs::install_package(package);
    }
    let system = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let codename = system.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let Some(codename) = codename.filter(|_| system.lines().any(|line| line == "ID=debian")) else {
        anyhow::bail!("the distribution's {package} is {}", version.unwrap_or("not there"));
    };
    let suites = ["", "-updates", "-security", "-backports"].map(|kind| format!("{codename}{kind}"));
    Apt::open(&cache.join("apt/host"), &suites)?.install(&suites[3], package)
}
