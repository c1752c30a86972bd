//! The agent as a static program, for this architecture or another one.

use crate::apt::finished;
use crate::arch::{Arch, cross};
use crate::programs::{self, finish};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds it where the Containerfile expects it. Only the last step differs from a plain build, so that everything else is
/// shared with it.
pub fn build(root: &Path, arch: Arch, profile: &str) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["rustc", "--quiet", "--locked", "-p", "kstrobe", "--bin", "kstrobe", "--profile", profile]);
    let mut folder = root.join("target");
    if arch != Arch::here() {
        cross(&mut build, arch)?;
        folder = folder.join(arch.of_compilers());
    }
    build.args(["--", "-C", "target-feature=+crt-static", "-C", "strip=debuginfo"]).current_dir(root);
    finish(&mut build)?;
    let built = folder.join(if profile == "dev" { "debug" } else { profile }).join("kstrobe");
    put(root, arch, &built)
}

/// Puts one there that has been built.
pub fn put(root: &Path, arch: Arch, built: &Path) -> Result<PathBuf> {
    checked(built, arch)?;
    let place = root.join("target/image").join(arch.of_images()).join("kstrobe");
    if let Some(folder) = place.parent() {
        fs::create_dir_all(folder)?;
    }
    if fs::canonicalize(built).is_ok_and(|built| fs::canonicalize(&place).is_ok_and(|there| there == built)) {
        return Ok(place);
    }
    // A program that runs cannot be written over, but it can be replaced.
    let _ = fs::remove_file(&place);
    fs::copy(built, &place).with_context(|| built.display().to_string())?;
    Ok(place)
}

/// It needs no library, and it starts.
fn checked(program: &Path, arch: Arch) -> Result<()> {
    ensure!(!libraries(program)?, "{} is not static", program.display());
    let version = match arch == Arch::here() {
        true => finished(Command::new(program).arg("version"))?,
        false => {
            programs::install_these(&["qemu-aarch64-static"])?;
            finished(Command::new("qemu-aarch64-static").arg(program).arg("version"))?
        }
    };
    println!("{}: {}", program.display(), version.lines().next().unwrap_or_default());
    Ok(())
}

/// Whether it needs libraries.
pub fn libraries(program: &Path) -> Result<bool> {
    let headers = finished(Command::new("readelf").args(["--wide", "--dynamic", "--program-headers"]).arg(program))?;
    Ok(headers.contains("(NEEDED)") || headers.contains("INTERP"))
}
