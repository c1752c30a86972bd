//! What is compared: each variant can be attached, and detached again with a count of what it saw.

use super::agent::{self, Agent, Settings};
use super::bpftrace::Script;
use super::hand_written::{self, Counts, Hooks, Links, Pair};
use anyhow::{Context, Result};
use aya::Btf;
use std::path::{Path, PathBuf};

/// One line of the table.
pub struct Variant {
    /// Letter by which people refer to it.
    pub letter: char,
    pub name: &'static str,
    setup: Setup,
}

/// A variant that cannot run here, and why.
pub struct Skipped {
    pub name: &'static str,
    /// Why it is not run.
    pub reason: String,
}

enum Setup {
    Nothing,
    Pair(Box<Pair>),
    Bpftrace(PathBuf),
    Agent { settings: Settings, metric: &'static str },
}

/// An attached variant. Dropped without [`Variant::detach`] (after an error) processes end; links end with the program.
pub enum Attached {
    /// The baseline.
    Nothing,
    Pair(Links),
    /// A process.
    Bpftrace(Script),
    /// A process.
    Agent(Box<Agent>),
}

impl Variant {
    pub fn attach(&mut self) -> Result<Attached> {
        Ok(match &mut self.setup {
            Setup::Nothing => Attached::Nothing,
            Setup::Pair(pair) => Attached::Pair(pair.attach()?),
            Setup::Bpftrace(file) => Attached::Bpftrace(Script::start(file)?),
            Setup::Agent { settings, .. } => Attached::Agent(Box::new(Agent::start(settings)?)),
        })
    }

    /// Detaches it and says how many calls of `getppid` it counted, if it counts any.
    pub fn detach(&mut self, attached: Attached) -> Result<Option<u64>> {
        match (&mut self.setup, attached) {
            (Setup::Pair(pair), Attached::Pair(links)) => pair.detach(links),
            (Setup::Bpftrace(_), Attached::Bpftrace(script)) => {
                script.stop("@ns", &libc::SYS_getppid.to_string()).map(Some)
            }
            (Setup::Agent { metric, .. }, Attached::Agent(agent)) => {
                let metrics = agent.scrape()?;
                agent.stop()?;
                let count = agent::value(&metrics, metric, "syscall=\"getppid\"");
                Ok(Some(count.with_context(|| format!("no {metric} for getppid in /metrics"))? as u64))
            }
            _ => Ok(None),
        }
    }
}

/// All variants that can run here, and those that cannot.
pub fn prepare(sources: &Path, build: &Path, agent: &Path) -> Result<(Vec<Variant>, Vec<Skipped>)> {
    let mut ready = vec![Variant { letter: 'a', name: "nothing attached", setup: Setup::Nothing }];
    let mut skipped = Vec::new();
    let btf = Btf::from_sys_fs().context("reading the kernel's BTF")?;
    let headers = hand_written::write_headers(build).map_err(|e| format!("{e:#}"));
    let pairs = [
        ('b', "empty tp_btf pair (the floor)", "empty.bpf.c", Hooks::Btf, Counts::None),
        ('c', "hand-written C, same shape", "same_shape.bpf.c", Hooks::Btf, Counts::Records),
        ('d', "hand-written C, the usual way", "usual.bpf.c", Hooks::Perf, Counts::Hash),
    ];
    for (letter, name, file, hooks, counts) in pairs {
        let pair = headers.clone().and_then(|()| {
            let object = hand_written::compile(&sources.join(file), build);
            object.and_then(|o| Pair::load(&o, hooks, counts, &btf)).map_err(|e| format!("{e:#}"))
        });
        match pair {
            Ok(pair) => ready.push(Variant { letter, name, setup: Setup::Pair(Box::new(pair)) }),
            Err(reason) => skipped.push(Skipped { name, reason }),
        }
    }
    let script = Variant { letter: 'e', name: "bpftrace one-liner", setup: Setup::Bpftrace(sources.join("pair.bt")) };
    offer(script, &mut ready, &mut skipped);
    for (letter, name, settings, metric) in agent_variants(sources, build, agent)? {
        offer(Variant { letter, name, setup: Setup::Agent { settings, metric } }, &mut ready, &mut skipped);
    }
    Ok((ready, skipped))
}

/// Names, settings and count metric of the agent's variants.
fn agent_variants(
    sources: &Path,
    build: &Path,
    agent: &Path,
) -> Result<[(char, &'static str, Settings, &'static str); 2]> {
    let same = agent::only(build, "bench_syscalls", Some(&sources.join("histogram_only.yaml")))?;
    let shipped = agent::only(build, "syscalls", None)?;
    let settings = |config| Settings { binary: agent.to_owned(), config: Some(config) };
    let count = "kstrobe_bench_syscall_duration_seconds_count";
    Ok([
        ('f', "kstrobe, the same histogram", settings(same), count),
        ('g', "kstrobe, shipped `syscalls` probe", settings(shipped), "kstrobe_syscall_duration_seconds_count"),
    ])
}

/// Attaches a variant once, to learn now and not in the middle of the run whether it can.
fn offer(mut variant: Variant, ready: &mut Vec<Variant>, skipped: &mut Vec<Skipped>) {
    let tried = variant.attach().and_then(|attached| match attached {
        Attached::Agent(agent) => agent.stop(),
        _ => Ok(()),
    });
    match tried {
        Ok(()) => ready.push(variant),
        Err(error) => skipped.push(Skipped { name: variant.name, reason: format!("{error:#}") }),
    }
}
