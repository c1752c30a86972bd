//! Architectures that are built for, and compilers of the other one.

use crate::programs::{self, finish};
use anyhow::{Result, bail};
use clap::ValueEnum;
use std::process::Command;

/// An architecture as images and as compilers name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Arch {
    /// x86_64
    Amd64,
    /// aarch64
    Arm64,
}

impl Arch {
    /// This machine's.
    pub fn here() -> Arch {
        if cfg!(target_arch = "aarch64") { Arch::Arm64 } else { Arch::Amd64 }
    }

    /// In platforms of images and names of Debian's packages.
    pub fn of_images(self) -> &'static str {
        match self {
            Arch::Amd64 => "amd64",
            Arch::Arm64 => "arm64",
        }
    }

    /// In targets of compilers.
    pub fn of_compilers(self) -> &'static str {
        match self {
            Arch::Amd64 => "x86_64-unknown-linux-gnu",
            Arch::Arm64 => "aarch64-unknown-linux-gnu",
        }
    }
}

/// Compiler and linker for another architecture.
pub fn cross(build: &mut Command, arch: Arch) -> Result<()> {
    if arch != Arch::Arm64 {
        bail!("{} is only built on its own kind", arch.of_images());
    }
    let target = arch.of_compilers();
    if programs::find("rustup").is_some() {
        finish(Command::new("rustup").args(["--quiet", "target", "add", target]))?;
    }
    programs::install_these(&["aarch64-linux-gnu-gcc", "/usr/aarch64-linux-gnu/lib/libc.a"])?;
    build.args(["--target", target]).env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc");
    Ok(())
}
