//! The C programs: built with clang, loaded with aya, attached and detached once per round.

use super::buckets;
use crate::programs;
use anyhow::{Context, Result, anyhow, bail};
use aya::maps::{Array, HashMap, MapData};
use aya::programs::{BtfTracePoint, TracePoint, tp_btf::BtfTracePointLinkId, trace_point::TracePointLinkId};
use aya::{Btf, Ebpf, EbpfLoader};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// System call slots of the array: x86-64 and arm64 have fewer than 500 calls; the last slot takes the rest.
const SLOTS: u32 = 512;
/// `getppid`, which the load calls.
const GETPPID: u32 = libc::SYS_getppid as u32;

/// How a pair of programs is attached.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Hooks {
    /// `tp_btf/sys_enter` and `tp_btf/sys_exit`.
    Btf,
    /// The perf tracepoints of the same names.
    Perf,
}

/// Where counts of a pair are kept.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Counts {
    /// It counts nothing.
    None,
    /// `records`: an array of whole histograms.
    Records,
    /// `counts`: a hash with a key per bucket.
    Hash,
}

/// A loaded pair of programs.
pub struct Pair {
    ebpf: Ebpf,
    hooks: Hooks,
    counts: Counts,
    seen_before: u64,
}

/// The links of an attached pair.
pub enum Links {
    /// Of [`Hooks::Btf`].
    Btf(BtfTracePointLinkId, BtfTracePointLinkId),
    /// Of [`Hooks::Perf`].
    Perf(TracePointLinkId, TracePointLinkId),
}

/// One element of `records`.
type Record = [u64; 1 + buckets::RECORD_BUCKETS];

/// Writes `vmlinux.h` and `buckets.h` into `folder`, so that [`compile`] can include them.
pub fn write_headers(folder: &Path) -> Result<()> {
    let bpftool = programs::find("bpftool").context("bpftool is not installed")?;
    let dump = Command::new(bpftool)
        .args(["btf", "dump", "file", "/sys/kernel/btf/vmlinux", "format", "c"])
        .output()
        .context("running bpftool")?;
    if !dump.status.success() {
        bail!("bpftool btf dump failed: {}", String::from_utf8_lossy(&dump.stderr).trim());
    }
    fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    fs::write(folder.join("vmlinux.h"), dump.stdout)?;
    let cpus = aya::util::nr_cpus().map_err(|(path, e)| anyhow!("{path}: {e}"))?;
    fs::write(folder.join("buckets.h"), buckets::header(u32::try_from(cpus)?, SLOTS))?;
    Ok(())
}

/// Compiles one C file at -O2.
pub fn compile(source: &Path, folder: &Path) -> Result<PathBuf> {
    let clang = programs::find("clang").context("clang is not installed")?;
    let arch = if cfg!(target_arch = "aarch64") { "arm64" } else { "x86" };
    let object = folder.join(source.file_stem().context("C file without a name")?).with_extension("o");
    let output = Command::new(clang)
        .args(["-g", "-O2", "-Wall", "-Wno-missing-declarations", "-target", "bpf"])
        .arg(format!("-D__TARGET_ARCH_{arch}"))
        .arg("-I")
        .arg(folder)
        .arg("-c")
        .arg(source)
        .arg("-o")
        .arg(&object)
        .output()
        .context("running clang")?;
    if !output.status.success() {
        bail!("clang refused {}:\n{}", source.display(), String::from_utf8_lossy(&output.stderr));
    }
    Ok(object)
}

impl Pair {
    /// Loads an object that has the programs `on_enter` and `on_exit`.
    pub fn load(object: &Path, hooks: Hooks, counts: Counts, btf: &Btf) -> Result<Pair> {
        let mut ebpf = EbpfLoader::new()
            .btf(Some(btf))
            // Task storage is used by the programs only.
            .allow_unsupported_maps()
            .load_file(object)
            .with_context(|| format!("loading {}", object.display()))?;
        for (name, event) in [("on_enter", "sys_enter"), ("on_exit", "sys_exit")] {
            let program = ebpf.program_mut(name).with_context(|| format!("no program {name}"))?;
            match hooks {
                Hooks::Btf => <&mut BtfTracePoint>::try_from(program)?.load(event, btf),
                Hooks::Perf => <&mut TracePoint>::try_from(program)?.load(),
            }
            .with_context(|| format!("the kernel refused {name} of {}", object.display()))?;
        }
        Ok(Pair { ebpf, hooks, counts, seen_before: 0 })
    }

    /// Attaches both programs; the exit first, so that every start finds its end.
    pub fn attach(&mut self) -> Result<Links> {
        Ok(match self.hooks {
            Hooks::Btf => {
                let exit = self.btf_program("on_exit")?.attach()?;
                Links::Btf(self.btf_program("on_enter")?.attach()?, exit)
            }
            Hooks::Perf => {
                let exit = self.perf_program("on_exit")?.attach("raw_syscalls", "sys_exit")?;
                Links::Perf(self.perf_program("on_enter")?.attach("raw_syscalls", "sys_enter")?, exit)
            }
        })
    }

    /// Detaches both and returns how many calls of `getppid` were counted since the last time, if it counts.
    pub fn detach(&mut self, links: Links) -> Result<Option<u64>> {
        match links {
            Links::Btf(enter, exit) => {
                self.btf_program("on_enter")?.detach(enter)?;
                self.btf_program("on_exit")?.detach(exit)?;
            }
            Links::Perf(enter, exit) => {
                self.perf_program("on_enter")?.detach(enter)?;
                self.perf_program("on_exit")?.detach(exit)?;
            }
        }
        let Some(seen) = self.counted()? else { return Ok(None) };
        let before = std::mem::replace(&mut self.seen_before, seen);
        Ok(Some(seen - before))
    }

    fn btf_program(&mut self, name: &str) -> Result<&mut BtfTracePoint> {
        Ok(self.ebpf.program_mut(name).context("program is gone")?.try_into()?)
    }

    fn perf_program(&mut self, name: &str) -> Result<&mut TracePoint> {
        Ok(self.ebpf.program_mut(name).context("program is gone")?.try_into()?)
    }

    /// Calls of `getppid` counted since the load.
    fn counted(&self) -> Result<Option<u64>> {
        match self.counts {
            Counts::None => Ok(None),
            Counts::Records => {
                let map = self.ebpf.map("records").context("no map records")?;
                let records: Array<&MapData, Record> = map.try_into()?;
                let mut total = 0;
                for index in (GETPPID..records.len()).step_by(SLOTS as usize) {
                    total += records.get(&index, 0)?[1..].iter().sum::<u64>();
                }
                Ok(Some(total))
            }
            Counts::Hash => {
                let map = self.ebpf.map("counts").context("no map counts")?;
                // Key: system call number, bucket.
                let counts: HashMap<&MapData, [u32; 2], u64> = map.try_into()?;
                let mut total = 0;
                for entry in counts.iter() {
                    let ([nr, _], count) = entry?;
                    total += if nr == GETPPID { count } else { 0 };
                }
                Ok(Some(total))
            }
        }
    }
}
