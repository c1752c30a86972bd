//! `kstrobe doctor`: what this machine lacks, and what that costs.

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use std::path::PathBuf;
use std::process::ExitCode;

use super::{Output, table};
use crate::app::memory::{self, Need};
use crate::config::SourceArgs;
use crate::config::compile;
use crate::config::diagnostics::print_diagnostics;
use crate::config::files::{self, AgentConfig, Choice};
use crate::config::plan;
use crate::kernel::abilities;
use crate::kernel::detect;
use crate::kernel::privileges::{self, Privileges};
use crate::kernel::tracefs::How;

/// Descriptors with which the default probes, a reload of them and some connections have room.
const FEW_DESCRIPTORS: u64 = 1024;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Agent configuration (kstrobe.yaml) whose probes and captures are looked at; without it, the embedded defaults.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    source: SourceArgs,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// One line of the report.
struct Finding {
    what: &'static str,
    state: State,
    /// Without it no probe runs.
    vital: bool,
}

enum State {
    /// With details.
    Found(String),
    /// With the reason, and what cannot be done without it.
    Missing(String),
}
use State::{Found, Missing};

pub fn run(args: &Args) -> ExitCode {
    // Before anything is tried, which lifts limits.
    let privileges = privileges::privileges();
    let target = compile::examine();
    let a = &target.abilities;
    let mut findings = of_privileges(&privileges, detect::without_btf(&target));
    for f in abilities::report(a) {
        let state = match f.reason {
            None => Found("works".into()),
            Some(reason) => Missing(format!("{reason}: {}", f.cost)),
        };
        findings.push(Finding { what: f.what, state, vital: false });
    }
    if let Some(reason) = target.btf.as_ref().and_then(detect::without_init) {
        findings.push(Finding { what: "events of process 1", state: Missing(reason.into()), vital: false });
    }
    findings.push(of_descriptors());
    findings.push(of_memory(args));
    let usable = a.tp_btf.yes() || a.raw_tp.yes() || a.tracepoint.yes();
    let broken = !usable || findings.iter().any(|f| f.vital && matches!(f.state, Missing(_)));
    match args.output {
        Output::Text => text(&findings, &target.release, usable),
        Output::Json => {
            let list: Vec<_> = findings
                .iter()
                .map(|f| {
                    let (ok, text) = match &f.state {
                        Found(text) => (true, text),
                        Missing(text) => (false, text),
                    };
                    serde_json::json!({ "what": f.what, "ok": ok, "detail": text })
                })
                .collect();
            println!("{}", serde_json::json!({ "kernel": target.release, "usable": usable, "findings": list }));
        }
    }
    if broken { ExitCode::from(1) } else { ExitCode::SUCCESS }
}

fn text(findings: &[Finding], release: &str, usable: bool) {
    println!("kernel {release}");
    let rows: Vec<_> = findings
        .iter()
        .map(|f| match &f.state {
            Found(text) => vec!["ok".into(), f.what.into(), text.clone()],
            Missing(text) => vec!["MISSING".into(), f.what.into(), text.clone()],
        })
        .collect();
    table(&["", "what", "detail"], &rows);
    println!("{}", if usable { "probes can run here" } else { "no probe can run here" });
}

/// Whether there are descriptors for programs and maps.
fn of_descriptors() -> Finding {
    let state = match getrlimit(Resource::RLIMIT_NOFILE) {
        Err(e) => Missing(format!("cannot be read: {e}")),
        Ok((_, hard)) if hard < FEW_DESCRIPTORS => Missing(format!(
            "RLIMIT_NOFILE is {hard}: each probe takes a dozen, and connections a quarter of what is left; set it to {FEW_DESCRIPTORS} \
             or more (`LimitNOFILE=`)"
        )),
        Ok((_, hard)) => Found(format!("RLIMIT_NOFILE is {hard}")),
    };
    Finding { what: "open files", state, vital: false }
}

/// Whether there is memory for what the configuration enables.
fn of_memory(args: &Args) -> Finding {
    let state = match (need(args), memory::limit()) {
        (None, _) => Missing("not known: the configuration has mistakes".into()),
        (Some(need), None) => Found(format!("no limit; {}", need.text())),
        (Some(need), Some(limit)) => match need.exceeds(&limit) {
            Some(reason) => Missing(reason),
            None => Found(format!("limit of {} ({}); {}", memory::mib(limit.bytes), limit.from, need.text())),
        },
    };
    Finding { what: "memory", state, vital: false }
}

/// `None` when the configuration has mistakes, which are printed.
fn need(args: &Args) -> Option<Need> {
    let file = args.config.as_deref().map(files::file).transpose();
    let (agent, diagnostics) = match file {
        Ok(None) => (Some(AgentConfig::default()), Vec::new()),
        Ok(Some(file)) => files::check_agent(&file),
        Err(unread) => (None, vec![unread]),
    };
    print_diagnostics(&diagnostics);
    let agent = agent?;
    let (probes, _) = files::chosen(&agent, args.source.probes.as_deref(), &Choice::default());
    let plans = probes.unwrap_or_default().into_iter().map(plan::plan);
    let prepared = compile::prepare(plans, args.source.btf.as_deref());
    Some(Need::of(prepared.planned.iter().map(|(_, artifact)| artifact), &agent))
}

fn of_privileges(p: &Privileges, without_btf: Option<String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |what, state, vital| findings.push(Finding { what, state, vital });
    match &p.capabilities {
        Err(e) => add("capabilities", Missing(format!("cannot be read: {e}")), false),
        Ok(c) => {
            let has = |yes: bool, cost: &str| if yes { Found("held".into()) } else { Missing(cost.into()) };
            add("CAP_BPF", has(c.bpf || c.sys_admin, "not held: no program can be loaded"), true);
            add("CAP_PERFMON", has(c.perfmon || c.sys_admin, "not held: no program can look at the kernel"), true);
            add(
                "CAP_SYS_ADMIN",
                has(
                    c.sys_admin,
                    "not held: no captures, no `bpf_programs`, no fentry in modules, and uprobes only from Linux 6.6 on",
                ),
                false,
            );
            let others = "not held: programs of other containers have no names in stacks, and their files no uprobes";
            add("CAP_SYS_PTRACE", has(c.sys_ptrace, others), false);
            add("CAP_SYSLOG", has(c.syslog, "not held: no kernel symbol names"), false);
            if let Some(most) = p.most_locked {
                let limit = format!("not held: all maps share the {} KiB of RLIMIT_MEMLOCK", most >> 10);
                let state = if most == RLIM_INFINITY {
                    Found("not needed: no limit".into())
                } else {
                    has(c.sys_resource, &limit)
                };
                add("CAP_SYS_RESOURCE", state, false);
            }
        }
    }
    let btf = match without_btf {
        None => Found("published".into()),
        Some(why) => Missing(format!("{why}: most probes have no types to go by")),
    };
    add("kernel BTF", btf, false);
    let state = match &p.tracefs {
        Ok(How::Mounted(path)) => Found(format!("mounted at {}", path.display())),
        Ok(How::Detached | How::Namespace) => Found("mounted in a private namespace".into()),
        Err(e) => Missing(format!("{e}: no argument names of system calls")),
    };
    add("tracefs", state, false);
    findings
}
