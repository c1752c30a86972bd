//! What the cluster is made of: Kubernetes, from a folder of released programs or built from Debian's source package, and
//! Debian's etcd, containerd and network plugins, which are unpacked beside the build and not installed.

use crate::apt::{Apt, finished};
use crate::programs;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Of the same version, all of them.
const PROGRAMS: [&str; 4] = ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet"];

/// Release of Debian whose source package has all of Kubernetes; later ones have kubectl alone.
const SOURCE_RELEASE: &str = "bookworm";
/// Its version, which the source package does not carry as the build wants it.
const SOURCE_VERSION: (u32, u32, u32) = (1, 20, 2);
/// Its compiler: later ones refuse this source.
const SOURCE_COMPILER: &str = "golang-1.19";
/// A library whose version in the source package reads maps as compilers before 1.18 have them: the API server would crash at the
/// first custom resource. The package has a later version.
const RENEWED: (&str, &str) = ("golang-github-modern-go-reflect2-dev", "github.com/modern-go/reflect2");

/// The first version whose kubelet wants the newer containerd.
const CONTAINERD_2: (u32, u32) = (1, 26);

/// Paths of all programs.
pub struct Programs {
    /// Major and minor version of Kubernetes.
    pub version: (u32, u32),
    /// Where Kubernetes' programs are.
    pub kubernetes: PathBuf,
    /// kubectl, not older than they are.
    pub kubectl: PathBuf,
    pub etcd: PathBuf,
    /// A folder with containerd, its shim and ctr.
    pub containerd: PathBuf,
    /// The version of containerd's configuration.
    pub containerd_config: u32,
    /// A folder with the plugins bridge, host-local and portmap.
    pub network_plugins: PathBuf,
}

impl Programs {
    /// Fetches and builds what is not there yet.
    pub fn prepare(root: &Path, given: Option<&Path>) -> Result<Programs> {
        let folder = root.join("target/cluster");
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        programs::install_these(&["ip", "nft", "setpriv", "unshare", "runc", "busybox", "openssl", "curl"])?;
        let kubernetes = match given {
            Some(given) => std::path::absolute(given)?,
            None => build(&folder)?,
        };
        for program in PROGRAMS {
            ensure!(kubernetes.join(program).is_file(), "{} has no {program}", kubernetes.display());
        }
        let version = version(&kubernetes.join("kubelet"))?;
        let (release, containerd_config) = if version < CONTAINERD_2 { ("bookworm", 2) } else { ("sid", 3) };
        let containerd = unpacked(&folder, release, &["containerd"])?.join("usr/bin");
        let newest = unpacked(&folder, "sid", &["etcd-server", "containernetworking-plugins", "kubectl"])?;
        let kubectl = Some(kubernetes.join("kubectl")).filter(|path| path.is_file());
        Ok(Programs {
            version,
            kubectl: kubectl.unwrap_or_else(|| newest.join("usr/bin/kubectl")),
            kubernetes,
            etcd: newest.join("usr/bin/etcd"),
            containerd,
            containerd_config,
            network_plugins: newest.join("usr/lib/cni"),
        })
    }
}

/// Major and minor version, as a program prints it: `Kubernetes v1.20.2`.
fn version(program: &Path) -> Result<(u32, u32)> {
    let text = finished(Command::new(program).arg("--version"))?;
    parse_version(&text).with_context(|| format!("{} says `{}`", program.display(), text.trim()))
}

fn parse_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.trim().strip_prefix("Kubernetes v")?.split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// A folder with packages of a release of Debian.
fn unpacked(folder: &Path, release: &str, packages: &[&str]) -> Result<PathBuf> {
    let into = folder.join(format!("{release}-{}", packages[0]));
    if !into.is_dir() {
        println!("fetching {} from Debian {release}", packages.join(", "));
        let apt = Apt::open(&folder.join("apt").join(release), &[release.to_owned()])?;
        apt.unpack(&packages.iter().map(|&name| name.to_owned()).collect::<Vec<_>>(), &into)?;
    }
    Ok(into)
}

/// Kubernetes from Debian's source package, which has its libraries with it.
fn build(folder: &Path) -> Result<PathBuf> {
    let (major, minor, patch) = SOURCE_VERSION;
    let into = folder.join(format!("kubernetes-{major}.{minor}.{patch}"));
    if into.is_dir() {
        return Ok(into);
    }
    programs::install_these(&["dpkg-source", "make", "patch", "rsync", "jq"])?;
    let apt = Apt::with_sources(&folder.join("apt/source"), &[SOURCE_RELEASE.to_owned()])?;
    let compiler = folder.join("compiler");
    if !compiler.is_dir() {
        let packages = ["go", "src"].map(|part| format!("{SOURCE_COMPILER}-{part}"));
        apt.unpack(&[&packages[..], &[RENEWED.0.to_owned()]].concat(), &compiler)?;
    }
    let renewed = compiler.join("usr/share/gocode/src").join(RENEWED.1);
    let compiler = compiler.join("usr/lib").join(SOURCE_COMPILER.replace("golang", "go"));
    let source = folder.join("source");
    let _ = fs::remove_dir_all(&source);
    println!("fetching the source of Kubernetes from Debian {SOURCE_RELEASE}");
    apt.source("kubernetes", &source)?;
    let library = source.join("vendor").join(RENEWED.1);
    fs::remove_dir_all(&library).with_context(|| library.display().to_string())?;
    finished(Command::new("cp").arg("-a").arg(&renewed).arg(&library))?;
    // The build looks for itself in a path of Go's.
    fs::create_dir_all(source.join(".go/src/k8s.io"))?;
    std::os::unix::fs::symlink("../../..", source.join(".go/src/k8s.io/kubernetes"))?;
    println!("building Kubernetes {major}.{minor}.{patch}, which takes ten minutes of two CPUs, once");
    let what = PROGRAMS.iter().chain(&["kubectl"]).map(|name| format!("cmd/{name}"));
    let path = std::env::var("PATH").unwrap_or_default();
    let mut make = Command::new("make");
    make.arg(format!("WHAT={}", what.collect::<Vec<_>>().join(" "))).current_dir(&source);
    make.env("PATH", format!("{}:{path}", compiler.join("bin").display())).env("GOROOT", &compiler);
    make.env("GOPATH", source.join(".go")).env("HOME", folder).env("CGO_ENABLED", "0").env("GOFLAGS", "-mod=vendor");
    make.env("KUBE_GIT_VERSION", format!("v{major}.{minor}.{patch}")).env("KUBE_GIT_COMMIT", "debian");
    make.env("KUBE_GIT_TREE_STATE", "archive");
    make.env("KUBE_GIT_MAJOR", major.to_string()).env("KUBE_GIT_MINOR", minor.to_string());
    finished(&mut make).context("building Kubernetes")?;
    let partial = into.with_extension("partial");
    let _ = fs::remove_dir_all(&partial);
    fs::create_dir_all(&partial)?;
    for program in PROGRAMS.iter().chain(&["kubectl"]) {
        let built = source.join("_output/bin").join(program);
        fs::copy(&built, partial.join(program)).with_context(|| built.display().to_string())?;
    }
    // Sources and objects are 3 GB.
    fs::remove_dir_all(&source)?;
    fs::rename(&partial, &into)?;
    Ok(into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_what_programs_print() {
        assert_eq!(parse_version("Kubernetes v1.20.2\n"), Some((1, 20)));
        assert_eq!(parse_version("Kubernetes v1.36.0-rc.1"), Some((1, 36)));
        assert_eq!(parse_version("v1.36.0"), None);
        assert_eq!(parse_version("Kubernetes vnext"), None);
    }
}
