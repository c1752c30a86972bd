//! From files to what runs: [`files`] reads them and decides which probes run, [`plan`] makes each the compiler's input,
//! [`compile`] compiles them for this kernel, [`attempts`] without the kinds of hooks that the kernel refuses, [`exporters`] makes
//! exporters of the configuration, [`diagnostics`] shows mistakes, [`adhoc`] is what a command in a terminal changes of a probe.

pub mod adhoc;
pub mod attempts;
pub mod compile;
pub mod diagnostics;
pub mod exporters;
pub mod files;
pub mod plan;

use std::path::PathBuf;

/// Where configuration comes from: shared by all commands that read it.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct SourceArgs {
    /// File of probes, or directory of such files, besides the embedded ones; a file replaces the shipped one of its name, a probe the shipped one of its name.
    #[arg(long, value_name = "FILE|DIR")]
    pub probes: Option<PathBuf>,
    /// Kernel types to use instead of /sys/kernel/btf/vmlinux.
    #[arg(long, value_name = "FILE")]
    pub btf: Option<PathBuf>,
}
