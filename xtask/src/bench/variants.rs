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
    pub setup: Setup,
}

/// A variant that cannot run here, and why.
pub struct Skipped {
    pub name: &'static str,
    /// Why it is not run.
    pub reason: String,
}

/// How something is attached.
pub enum Setup {
    /// The baseline.
    Nothing,
    /// Hand-written programs, each pair at the same hooks.
    Pairs(Vec<Pair>),
    /// A script.
    Bpftrace(PathBuf),
    /// The agent; the metric counts calls of `getppid`.
    Agent { settings: Settings, metric: Option<&'static str> },
}

/// What is attached. Dropped without [`Setup::detach`] (after an error) processes end; links end with the program.
pub enum Attached {
    /// The baseline.
    Nothing,
    Pairs(Vec<Links>),
    /// A process.
    Bpftrace(Script),
    /// A process.
    Agent(Box<Agent>),
}

impl Setup {
    pub fn attach(&mut self) -> Result<Attached> {
        Ok(match self {
            Setup::Nothing => Attached::Nothing,
            Setup::Pairs(pairs) => Attached::Pairs(pairs.iter_mut().map(Pair::attach).collect::<Result<_>>()?),
            Setup::Bpftrace(file) => Attached::Bpftrace(Script::start(file)?),
            Setup::Agent { settings, .. } => Attached::Agent(Box::new(Agent::start(settings)?)),
        })
    }

    /// Detaches it and says how many calls of `getppid` it counted, if it counts any.
    pub fn detach(&mut self, attached: Attached) -> Result<Option<u64>> {
        match (self, attached) {
            (Setup::Pairs(pairs), Attached::Pairs(links)) => {
                let mut counted = None;
                for (pair, links) in pairs.iter_mut().zip(links) {
                    counted = pair.detach(links)?;
                }
                Ok(counted)
            }
            (Setup::Bpftrace(_), Attached::Bpftrace(script)) => {
                script.stop("@ns", &libc::SYS_getppid.to_string()).map(Some)
            }
            (Setup::Agent { metric, .. }, Attached::Agent(agent)) => {
                let metrics = agent.scrape()?;
                agent.stop()?;
                let Some(metric) = metric else { return Ok(None) };
                let count = agent::value(&metrics, metric, "syscall=\"getppid\"");
                Ok(Some(count.with_context(|| format!("no {metric} for getppid in /metrics"))? as u64))
            }
            _ => Ok(None),
        }
    }

    /// Attaches it once, to learn now and not in the middle of the run whether it can; else why not.
    pub fn refusal(&mut self) -> Option<String> {
        let tried = self.attach().and_then(|attached| match attached {
            // It has counted nothing yet.
            Attached::Agent(agent) => agent.stop(),
            attached => self.detach(attached).map(drop),
        });
        tried.err().map(|error| format!("{error:#}"))
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
            Ok(pair) => ready.push(Variant { letter, name, setup: Setup::Pairs(vec![pair]) }),
            Err(reason) => skipped.push(Skipped { name, reason }),
        }
    }
    let script = Variant { letter: 'e', name: "bpftrace one-liner", setup: Setup::Bpftrace(sources.join("pair.bt")) };
    offer(script, &mut ready, &mut skipped);
    for (letter, name, settings, metric) in agent_variants(sources, build, agent)? {
        offer(
            Variant { letter, name, setup: Setup::Agent { settings, metric: Some(metric) } },
            &mut ready,
            &mut skipped,
        );
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

fn offer(mut variant: Variant, ready: &mut Vec<Variant>, skipped: &mut Vec<Skipped>) {
    match variant.setup.refusal() {
        None => ready.push(variant),
        Some(reason) => skipped.push(Skipped { name: variant.name, reason }),
    }
}
