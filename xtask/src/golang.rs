//! Short programs in Go over the libraries that Debian packages: fetched with their compiler, unpacked, built once and kept in
//! `target`. Nothing is installed.

use crate::apt::{Apt, finished};
use crate::made_from;
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A library as Debian's sid has it.
pub struct Library {
    /// Its folder in `target`.
    pub folder: &'static str,
    /// The package. It brings the libraries that it needs, and the compiler.
    pub package: &'static str,
    /// Large packages among these that our programs do not import. A missing one fails the build by name.
    pub unused: &'static [&'static str],
}

impl Library {
    /// Builds `main.go` of a folder, unless that was done before; returns the program, which has the folder's name.
    pub fn build(&self, root: &Path, source: &Path) -> Result<PathBuf> {
        let folder = root.join("target").join(self.folder);
        let name = source.file_name().with_context(|| format!("{} has no name", source.display()))?;
        let (into, main) = (folder.join(name), source.join("main.go"));
        let program = into.join(name);
        if !made_from::is_current(&into, &[&main]) {
            let unpacked = folder.join("packages");
            if !unpacked.is_dir() {
                self.fetch(&folder, &unpacked)?;
            }
            println!("building {}, which takes minutes", main.strip_prefix(root).unwrap_or(&main).display());
            fs::create_dir_all(&into).with_context(|| format!("creating {}", into.display()))?;
            compile(&folder, &unpacked, &main, &program)?;
            made_from::remember(&into, &[&main])?;
        }
        Ok(program)
    }

    fn fetch(&self, folder: &Path, unpacked: &Path) -> Result<()> {
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        let apt = Apt::open(&folder.join("apt"), &["sid".to_owned()])?;
        let mut packages = apt.closure(&[self.package])?;
        packages.retain(|package| package.starts_with("golang-") && !self.unused.contains(&package.as_str()));
        println!("fetching {} packages", packages.len());
        apt.unpack(&packages, unpacked)
    }
}

fn compile(folder: &Path, unpacked: &Path, main: &Path, program: &Path) -> Result<()> {
    let libraries = unpacked.join("usr/lib");
    let compilers = fs::read_dir(&libraries).with_context(|| format!("reading {}", libraries.display()))?;
    let compilers = compilers.flatten().map(|entry| entry.path());
    let compiler = compilers.filter(|path| path.join("bin/go").is_file()).max().context("no Go compiler came along")?;
    let mut go = Command::new(compiler.join("bin/go"));
    go.args(["build", "-trimpath", "-ldflags=-s -w", "-o"]).arg(program).arg(main).current_dir(folder);
    for (name, value) in
        [("GOROOT", &compiler), ("GOPATH", &unpacked.join("usr/share/gocode")), ("GOCACHE", &folder.join("cache"))]
    {
        go.env(name, value);
    }
    // Packages are found by path alone, and nothing is fetched by Go itself.
    for (name, value) in [("GO111MODULE", "off"), ("GOTOOLCHAIN", "local"), ("CGO_ENABLED", "0"), ("GOFLAGS", "")] {
        go.env(name, value);
    }
    finished(&mut go).map(drop)
}
