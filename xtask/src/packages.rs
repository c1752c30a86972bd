//! `cargo xtask packages`: Debian and RPM packages of the static program, each installed and removed in a copy of this system
//! of their own.

use crate::apt::finished;
use crate::arch::Arch;
use crate::container::program;
use crate::programs::{self, finish};
use anyhow::{Context, Result, ensure};
use nix::unistd::geteuid;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What to build.
#[derive(clap::Args)]
pub struct Options {
    /// Architecture; can be given several times [default: this machine's]
    #[arg(long, value_enum)]
    arch: Vec<Arch>,
    /// Cargo's profile; `dev` is quicker to build
    #[arg(long, default_value = "release")]
    profile: String,
}

/// In every package.
const FILES: [&str; 4] = [
    "/usr/bin/kstrobe",
    "kstrobe.service",
    "/etc/kstrobe/kstrobe.yaml",
    "/usr/share/doc/kstrobe/probes/syscalls/syscalls.yaml",
];

/// The life of a Debian package.
const DEB: &str = r#"
dpkg -i "$package"
/usr/bin/kstrobe version
/usr/bin/kstrobe check --syntax-only /usr/share/doc/kstrobe/probes/*/*.yaml
test -L /etc/systemd/system/multi-user.target.wants/kstrobe.service
dpkg -V kstrobe
echo '# mine' >> /etc/kstrobe/kstrobe.yaml
dpkg -i "$package"
grep -q '^# mine' /etc/kstrobe/kstrobe.yaml
dpkg -r kstrobe
test ! -e /usr/bin/kstrobe
grep -q '^# mine' /etc/kstrobe/kstrobe.yaml
dpkg -P kstrobe
test ! -e /etc/kstrobe/kstrobe.yaml
test ! -L /etc/systemd/system/multi-user.target.wants/kstrobe.service
"#;

/// The life of an RPM, in a database of its own.
const RPM: &str = r#"
rpm --initdb
rpm -i --force-debian --nodeps "$package"
/usr/bin/kstrobe version
/usr/bin/kstrobe check --syntax-only /usr/share/doc/kstrobe/probes/*/*.yaml
test -f /usr/lib/systemd/system/kstrobe.service
rpm -V --nodeps kstrobe
echo '# mine' >> /etc/kstrobe/kstrobe.yaml
rpm -U --force --force-debian --nodeps "$package"
grep -q '^# mine' /etc/kstrobe/kstrobe.yaml
test -x /usr/bin/kstrobe
rpm -e kstrobe
test ! -e /usr/bin/kstrobe
grep -q '^# mine' /etc/kstrobe/kstrobe.yaml.rpmsave
"#;

/// This system below a file system in memory, which takes all changes; its end is the namespace's.
const COPY: &str = r#"
mount -t tmpfs tmpfs "$folder"
mkdir "$folder/new" "$folder/work" "$folder/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$folder/new,workdir=$folder/work" "$folder/root"
mount -t proc proc "$folder/root/proc"
mount --rbind /dev "$folder/root/dev"
cp "$file" "$folder/root/package"
exec chroot "$folder/root" env package=/package sh -e -c "$life"
"#;

/// Builds and tries them.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let all = if options.arch.is_empty() { vec![Arch::here()] } else { options.arch.clone() };
    programs::install_these(&["rpm"])?;
    for arch in all {
        program::build(root, arch, &options.profile)?;
        let deb = package(root, "cargo-deb", "deb", arch, &options.profile)?;
        let text = finished(Command::new("dpkg-deb").arg("--info").arg(&deb))?;
        ensure!(text.contains(&format!("Architecture: {}", arch.of_images())), "{}:\n{text}", deb.display());
        contents(&deb, &finished(Command::new("dpkg-deb").arg("--contents").arg(&deb))?)?;
        let rpm = package(root, "cargo-generate-rpm", "rpm", arch, &options.profile)?;
        contents(&rpm, &finished(Command::new("rpm").args(["-qpl"]).arg(&rpm))?)?;
        if arch != Arch::here() || !geteuid().is_root() {
            println!("not installed: {} packages on this machine as this user", arch.of_images());
            continue;
        }
        for (file, life) in [(&deb, DEB), (&rpm, RPM)] {
            tried(root, file, life).with_context(|| format!("the life of {}", file.display()))?;
            println!("{}: installed, changed, removed", file.display());
        }
    }
    Ok(())
}

/// Builds one from the program that is there.
fn package(root: &Path, tool: &str, kind: &str, arch: Arch, profile: &str) -> Result<PathBuf> {
    let mut command = Command::new(programs::cargo_tool(root, tool)?);
    let into = root.join("target/packages").join(format!("kstrobe-{}.{kind}", arch.of_images()));
    if let Some(folder) = into.parent() {
        fs::create_dir_all(folder)?;
    }
    match kind {
        "deb" => command.args(["deb", "--quiet", "-p", "kstrobe", "--no-build", "--no-strip"]),
        _ => command.args(["generate-rpm", "-p", "agent"]),
    };
    command.args(["--profile", profile, "-o"]).arg(&into);
    if arch != Arch::here() {
        command.args(["--target", arch.of_compilers()]);
    }
    finish(command.current_dir(root))?;
    Ok(into)
}

fn contents(package: &Path, list: &str) -> Result<()> {
    for file in FILES {
        ensure!(list.contains(file), "{} has no {file}:\n{list}", package.display());
    }
    println!("{}: {} KiB", package.display(), fs::metadata(package)?.len() / 1024);
    Ok(())
}

fn tried(root: &Path, file: &Path, life: &str) -> Result<()> {
    let folder = root.join("target/packages/copy");
    fs::create_dir_all(&folder)?;
    let mut shell = Command::new("unshare");
    shell.args(["--mount", "--propagation", "private", "sh", "-e", "-c", COPY]);
    shell.env("folder", &folder).env("file", file).env("life", life);
    finished(&mut shell).map(drop)
}
