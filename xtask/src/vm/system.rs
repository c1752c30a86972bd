//! Where a guest's programs come from: this machine, or packages of another architecture, unpacked and never installed.

use crate::apt::{Apt, finished};
use crate::arch::Arch;
use crate::programs;
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Packages with what guests and tests run, in the release that libraries are taken from too.
const PACKAGES: &[&str] =
    &["bpftool", "busybox-static", "dash", "iproute2", "mount", "nftables", "trace-cmd", "util-linux"];
/// Those with what is hooked and not run: without what they depend on.
const HOOKED: &str = "postgresql-15";
const SUITES: [&str; 2] = ["bookworm", "bookworm-security"];
/// As many as the kernel follows (`MAXSYMLINKS`).
const MAX_LINKS: usize = 40;
const FOLDERS: [&str; 5] = ["usr/sbin", "usr/bin", "sbin", "bin", "usr/lib/postgresql/15/bin"];

/// The programs and libraries of one architecture.
pub enum System {
    /// What is installed here.
    Here,
    /// Debian's packages, unpacked below a folder.
    Unpacked(PathBuf),
}

impl System {
    /// Finds them, or fetches them into the lab's cache.
    pub fn of(arch: Arch, cache: &Path) -> Result<System> {
        if arch == Arch::here() {
            return Ok(System::Here);
        }
        let tree = cache.join("system").join(arch.of_images());
        if !tree.is_dir() {
            unpack(arch, cache, &tree).with_context(|| format!("fetching programs for {}", arch.of_images()))?;
        }
        Ok(System::Unpacked(tree))
    }

    /// A program's file.
    pub fn find(&self, program: &str) -> Option<PathBuf> {
        match self {
            System::Here => programs::find(program),
            System::Unpacked(tree) => {
                FOLDERS.iter().map(|folder| followed(tree, tree.join(folder).join(program))).find(|file| file.is_file())
            }
        }
    }

    /// The program that strips its binaries.
    pub fn strip(&self) -> &'static str {
        match self {
            System::Here => "strip",
            System::Unpacked(_) => "aarch64-linux-gnu-strip",
        }
    }

    /// The libraries that a program is linked with, and its interpreter: the file here, and its path in a guest.
    pub fn libraries(&self, program: &Path) -> Result<Vec<(PathBuf, String)>> {
        match self {
            System::Here => {
                // It fails for what is linked statically.
                let listed = finished(Command::new("ldd").arg(program)).unwrap_or_default();
                let paths =
                    listed.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
                Ok(paths.map(|path| (PathBuf::from(path), path.to_owned())).collect())
            }
            System::Unpacked(tree) => {
                let mut found = Vec::new();
                needed(tree, program, &mut found, &mut BTreeSet::new())?;
                Ok(found)
            }
        }
    }
}

/// Where a file of a tree is: its absolute links, as `/sbin/ip` is one, would lead to a file of this machine.
fn followed(tree: &Path, mut file: PathBuf) -> PathBuf {
    for _ in 0..MAX_LINKS {
        let Ok(target) = fs::read_link(&file) else { break };
        let folder = file.parent().unwrap_or(tree);
        file = match target.strip_prefix("/") {
            Ok(within) => tree.join(within),
            Err(_) => folder.join(target),
        };
    }
    file
}

fn unpack(arch: Arch, cache: &Path, tree: &Path) -> Result<()> {
    println!("fetching programs for {}", arch.of_images());
    let apt = Apt::open_for(arch, &cache.join("apt/system"), &SUITES.map(str::to_owned))?;
    apt.unpack(&[apt.closure(PACKAGES)?, vec![HOOKED.to_owned()]].concat(), tree)
}

/// Libraries that a file needs, and theirs, by `readelf`: programs of another architecture do not run under `ldd`.
fn needed(tree: &Path, file: &Path, found: &mut Vec<(PathBuf, String)>, seen: &mut BTreeSet<String>) -> Result<()> {
    let headers = finished(Command::new("readelf").args(["--wide", "--dynamic", "--program-headers"]).arg(file))?;
    let bracketed = |line: &str, before: &str| -> Option<String> {
        let (_, rest) = line.split_once(before)?;
        Some(rest.split_once(']')?.0.to_owned())
    };
    for line in headers.lines() {
        if let Some(path) = bracketed(line, "program interpreter: ").filter(|path| seen.insert(path.clone())) {
            found.push((tree.join(path.trim_start_matches('/')), path));
        } else if let Some(name) = line.split_once("(NEEDED)").and_then(|(_, rest)| bracketed(rest, "["))
            && seen.insert(name.clone())
        {
            let folders = ["lib", "usr/lib"].map(|folder| format!("{folder}/aarch64-linux-gnu/{name}"));
            let path = folders.into_iter().find(|path| tree.join(path).is_file());
            let path = path.with_context(|| format!("{} needs {name}, which no package has", file.display()))?;
            needed(tree, &tree.join(&path), found, seen)?;
            found.push((tree.join(&path), format!("/{path}")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn absolute_links_stay_within_the_tree() {
        let tree = std::env::temp_dir().join(format!("kstrobe-links-{}", std::process::id()));
        let file = |name: &str| tree.join(name);
        for folder in ["sbin", "bin"] {
            fs::create_dir_all(file(folder)).unwrap();
        }
        fs::write(file("bin/sh.real"), "").unwrap();
        symlink("/bin/sh", file("sbin/sh")).unwrap();
        symlink("sh.real", file("bin/sh")).unwrap();
        symlink("loop", file("bin/loop")).unwrap();
        assert_eq!(followed(&tree, file("sbin/sh")), file("bin/sh.real"));
        assert!(!followed(&tree, file("bin/loop")).is_file());
        assert_eq!(System::Unpacked(tree.clone()).find("sh"), Some(file("bin/sh.real")));
        fs::remove_dir_all(&tree).unwrap();
    }
}
