//! Debian's kernels: fetched, unpacked, never installed.

use crate::apt::{Apt, finished};
use crate::arch::Arch;
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Releases that the lab tests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Release {
    /// Debian 11.
    #[value(name = "5.10")]
    V5_10,
    /// Debian 12.
    #[value(name = "6.1")]
    V6_1,
    /// Debian 13.
    #[value(name = "6.12")]
    V6_12,
    /// The newest that Debian has.
    #[value(name = "sid")]
    Sid,
}

impl Release {
    /// All of them, oldest first.
    pub const ALL: [Release; 4] = [Release::V5_10, Release::V6_1, Release::V6_12, Release::Sid];

    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Release::V5_10 => "5.10",
            Release::V6_1 => "6.1",
            Release::V6_12 => "6.12",
            Release::Sid => "sid",
        }
    }

    /// As directories and columns of tables are called: by the release alone on x86-64.
    pub fn on(self, arch: Arch) -> String {
        match arch {
            Arch::Amd64 => self.name().to_owned(),
            Arch::Arm64 => format!("{}-{}", self.name(), arch.of_images()),
        }
    }

    fn suites(self) -> &'static [&'static str] {
        match self {
            Release::V5_10 => &["bullseye", "bullseye-security"],
            Release::V6_1 => &["bookworm", "bookworm-security"],
            Release::V6_12 => &["trixie", "trixie-security"],
            Release::Sid => &["sid"],
        }
    }

    /// What its packages' names begin with: security suites carry kernels of later releases too.
    fn prefix(self) -> String {
        match self {
            Release::Sid => "linux-image-".to_owned(),
            release => format!("linux-image-{}.", release.name()),
        }
    }
}

/// A kernel that can be booted.
pub struct Kernel {
    /// Its image.
    pub image: PathBuf,
    /// Its modules' folder, named as its version (`uname -r`).
    pub modules: PathBuf,
    /// `uname -r`
    pub version: String,
    /// What it runs on.
    pub arch: Arch,
}

/// The kernel of a release: from the cache, else from the archive.
pub fn fetch(cache: &Path, arch: Arch, release: Release) -> Result<Kernel> {
    let folder = folder(cache, arch, release);
    if !folder.join("version").is_file() {
        renew(cache, arch, release)?;
    }
    let version = fs::read_to_string(folder.join("version"))?;
    Ok(Kernel { image: folder.join("vmlinuz"), modules: folder.join("modules").join(&version), version, arch })
}

/// The same from the archive, whatever the cache has; that is kept until there is another.
pub fn renew(cache: &Path, arch: Arch, release: Release) -> Result<()> {
    let name = release.on(arch);
    println!("fetching kernel {name}");
    download(cache, arch, release, &folder(cache, arch, release)).with_context(|| format!("fetching kernel {name}"))
}

fn folder(cache: &Path, arch: Arch, release: Release) -> PathBuf {
    cache.join("kernels").join(release.on(arch))
}

fn download(cache: &Path, arch: Arch, release: Release, folder: &Path) -> Result<()> {
    let suites: Vec<String> = release.suites().iter().map(|suite| (*suite).to_owned()).collect();
    let apt = Apt::open_for(arch, &cache.join("apt").join(release.on(arch)), &suites)?;
    let work = folder.with_extension("part");
    let _ = fs::remove_dir_all(&work);
    fs::create_dir_all(work.join("debs"))?;
    let image = newest_image(&apt, arch, release, &work.join("debs"))?;
    let version = image.trim_start_matches("linux-image-").to_owned();
    let tree = work.join("tree");
    for deb in fs::read_dir(work.join("debs"))? {
        finished(Command::new("dpkg-deb").arg("-x").arg(deb?.path()).arg(&tree))?;
    }
    fs::remove_dir_all(work.join("debs"))?;
    fs::create_dir_all(work.join("modules"))?;
    // Packages may ship modules below /lib or /usr/lib, and the image below /boot or beside the modules.
    let modules = [tree.join("lib/modules"), tree.join("usr/lib/modules")].map(|folder| folder.join(&version));
    let modules = modules.iter().find(|folder| folder.is_dir()).context("the packages have no modules")?;
    let images = [tree.join(format!("boot/vmlinuz-{version}")), modules.join("vmlinuz")];
    let image = images.iter().find(|file| file.is_file()).context("the packages have no vmlinuz")?;
    fs::rename(image, work.join("vmlinuz"))?;
    fs::rename(modules, work.join("modules").join(&version))?;
    fs::remove_dir_all(&tree)?;
    fs::write(work.join("version"), &version)?;
    let _ = fs::remove_dir_all(folder);
    fs::rename(&work, folder)?;
    Ok(())
}

/// Fetches the packages of the newest image of the release; returns the image's name.
fn newest_image(apt: &Apt, arch: Arch, release: Release, into: &Path) -> Result<String> {
    let prefix = release.prefix();
    let mut images = apt.search(&format!("^linux-image-[0-9].*-cloud-{}$", arch.of_images()))?;
    images.retain(|name| name.starts_with(&prefix));
    images.sort_by_key(|name| std::cmp::Reverse(numbers(name)));
    let Some(newest) = images.first().cloned() else {
        bail!("the archive has no package {prefix}*-cloud-{}", arch.of_images());
    };
    let mut last_error = None;
    for image in images {
        let version = image.trim_start_matches("linux-image-");
        // From 7.x on the image is an empty package that depends on linux-{base,binary,modules}-VERSION.
        let mut packages: Vec<String> =
            apt.depends(&image)?.into_iter().filter(|name| name.ends_with(version)).collect();
        packages.push(image.clone());
        // A mirror may have dropped what its index still lists: the one before that serves too.
        match apt.download(&packages, into) {
            Ok(()) => return Ok(image),
            Err(error) => last_error = Some(error),
        }
    }
    Err(last_error.unwrap_or_else(|| anyhow::anyhow!("{newest} cannot be fetched")))
}

/// The numbers in a version, for comparing.
fn numbers(name: &str) -> Vec<u64> {
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::numbers;

    #[test]
    fn later_versions_compare_greater() {
        assert!(numbers("linux-image-5.10.0-46-cloud-amd64") > numbers("linux-image-5.10.0-9-cloud-amd64"));
        assert!(numbers("linux-image-6.12.100+deb13-cloud-amd64") > numbers("linux-image-6.12.99+deb13-cloud-amd64"));
        assert!(numbers("linux-image-7.2.1+deb14-cloud-amd64") > numbers("linux-image-6.19.1+deb14-cloud-amd64"));
    }
}
