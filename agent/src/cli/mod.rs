//! The command line: what can be asked, and what each answer looks like. Exit codes: 0 fine, 1 a fault was found, 2 wrong
//! usage.

mod capture;
mod check;
mod client;
mod compile;
mod doctor;
pub mod draw;
mod events;
mod explain;
mod fleet;
mod history;
mod list;
mod new;
mod print;
mod report;
mod rescue;
mod slo;
mod stacks;
mod target;
mod terminal;
mod tool;
mod top;
mod version;
mod view;
mod watch;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand, ValueEnum};

use crate::app;
use crate::config::SourceArgs;
use crate::config::compile::Target;
use crate::config::files::Choice;
use crate::config::files::diag::Diagnostic;
use crate::config::plan::ProbePlan;
use crate::http;
use crate::kernel::sys;
use kstrobe_web::hosts::Name;

/// Kernel latency histograms from YAML probes, as Prometheus metrics.
#[derive(Debug, Parser)]
#[command(name = "kstrobe", version, about, propagate_version = true, subcommand_required = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// How to print what a person reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Tables and text.
    #[default]
    Text,
    /// JSON.
    Json,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the agent.
    Run(RunArgs),
    /// Check probe files: YAML, names, types, and whether this kernel can run them.
    Check(check::Args),
    /// Show what a probe becomes on this kernel: hooks and why, maps, bytes, instructions.
    Explain(explain::Args),
    /// Compile one probe to an eBPF object that any libbpf loader takes.
    Compile(compile::Args),
    /// Start a commented file of a probe.
    New(new::Args),
    /// List probes, tracepoints or system calls.
    List(list::Args),
    /// Show what a running agent measures: rates, quantiles, heat maps, slow events.
    Top(top::Args),
    /// Print what a running agent measures of one metric, a line for each interval.
    Watch(watch::Args),
    /// Show what there is of the past: range, metrics, gaps; `export` writes it for other programs.
    History(Box<history::Args>),
    /// Serve the page and the queries of a recorded history, from a file or a folder: no agent, no root.
    View(view::Args),
    /// Print the last slow events of a running agent.
    Events(events::Args),
    /// Run one probe for a while and draw what it measures: `kstrobe tool runqlat -d 10s`, or `kstrobe runqlat -d 10s`.
    Tool(tool::Args),
    /// Run a probe for a while and write its sums by call stack: folded text, pprof or a flame graph.
    Stacks(stacks::Args),
    /// Record a trace of the kernel: events, functions and calls, of everybody or of some.
    Capture(Box<capture::Args>),
    /// Write the recording of a `kstrobe capture` that was killed.
    Rescue(rescue::Args),
    /// Ask the agents of many nodes of a Kubernetes cluster; also the plugin `kubectl kstrobe`.
    Fleet(fleet::Args),
    /// Say what a capture tells: waits and work, functions, wakeups, interrupts, packets, block requests.
    Report(report::Args),
    /// Print the events of a capture, all or chosen ones; with -o, write them as a smaller capture.
    Print(Box<print::Args>),
    /// Print recording rules and alerts for an objective on any latency: 99.9 % of them within 10 ms.
    Slo(slo::Args),
    /// Say what this machine lacks, and what that costs.
    Doctor(doctor::Args),
    /// Describe this kernel to people elsewhere.
    Target(target::Args),
    /// Print the version.
    Version(version::Args),
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// A tool or probe by its name.
    #[command(external_subcommand)]
    Named(Vec<OsString>),
}

/// The kernel that probes are compiled for.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct KernelArgs {
    /// Kernel types to use instead of /sys/kernel/btf/vmlinux.
    #[arg(long, value_name = "FILE")]
    pub btf: Option<PathBuf>,
    /// Compile for the kernel that FILE describes, not for this one: what `kstrobe target dump` printed there.
    #[arg(long, value_name = "FILE")]
    pub target: Option<PathBuf>,
}

impl KernelArgs {
    /// The kernel, as far as these probes need it.
    fn target(&self, plans: &[ProbePlan]) -> Result<Target, Diagnostic> {
        match &self.target {
            Some(file) => crate::config::compile::described(file, self.btf.as_deref()),
            None => Ok(crate::config::compile::look(plans, self.btf.as_deref())),
        }
    }
}

#[derive(Debug, clap::Args)]
struct RunArgs {
    /// Agent configuration (kstrobe.yaml); without it, the embedded defaults.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    source: SourceArgs,
    /// Probes or packs to run besides the default ones.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    enable: Vec<String>,
    /// Probes or packs not to run, also of those that `--only` names.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    disable: Vec<String>,
    /// Run these probes or packs and no others, whatever the configuration enables and disables.
    #[arg(long, value_name = "NAME", value_delimiter = ',', conflicts_with = "enable")]
    only: Vec<String>,
    /// Address to serve on; may be given several times [default: 127.0.0.1:9779].
    #[arg(long = "web.listen-address", value_name = "ADDR")]
    listen: Vec<String>,
    /// Let everybody who can reach the agent ask for a reload by POST or PUT /-/reload. Without it those may who may ask
    /// for captures.
    #[arg(long = "web.enable-lifecycle")]
    lifecycle: bool,
    /// TLS, passwords and limits, as exporters of Prometheus share them (web-config.yml); read again when it changes.
    #[arg(long = "web.config.file", value_name = "FILE")]
    web_config: Option<PathBuf>,
    /// Name under which plain HTTP is answered besides addresses, localhost and the machine's own name: NAME, *.DOMAIN, or * for any;
    /// may be given several times.
    #[arg(long = "web.allowed-host", value_name = "NAME", value_delimiter = ',', value_parser = Name::parse)]
    hosts: Vec<Name>,
    /// Serve on the sockets that systemd hands over, not on addresses.
    #[arg(long = "web.systemd-socket", conflicts_with = "listen")]
    systemd_socket: bool,
    /// Path of the metrics.
    #[arg(long = "web.telemetry-path", value_name = "PATH", default_value = "/metrics", value_parser = http::telemetry_path)]
    telemetry_path: String,
    /// Scrapes at once, those that wait included; 0 for any number.
    #[arg(long = "web.max-requests", value_name = "N", default_value_t = http::DEFAULT_REQUESTS)]
    most_requests: usize,
    /// Where single events (`slow:`) are written as lines of JSON: stderr, none or a file [default: none].
    #[arg(long, value_name = "stderr|none|FILE")]
    events: Option<String>,
    /// Do this node's part of `Capture` and `Probe` objects (kstrobe.dev) in the agent's own namespace. NODE_NAME says which node this is.
    #[arg(long = "kubernetes.custom-resources")]
    custom_resources: bool,
    /// Least severe messages to log: error, warn, info, debug, trace.
    #[arg(long = "log.level", value_name = "LEVEL")]
    log_level: Option<String>,
    /// Format of log lines.
    #[arg(long = "log.format", value_name = "FORMAT")]
    log_format: Option<LogFormat>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    Logfmt,
    Json,
}

/// Reads the command line and does what it says.
pub fn main() -> ExitCode {
    let command = match fleet::as_plugin() {
        Some(args) => Command::Fleet(args),
        None => Cli::parse().command,
    };
    if !matches!(command, Command::Run(_)) {
        // `kstrobe list | head` ends quietly, as other tools do. The agent must outlive the reader of its log.
        sys::end_on_broken_pipe();
    }
    match command {
        Command::Run(args) => run(args),
        Command::Check(args) => check::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Compile(args) => compile::run(&args),
        Command::New(args) => new::run(&args),
        Command::List(args) => list::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Watch(args) => watch::run(&args),
        Command::History(args) => history::run(&args),
        Command::View(args) => view::run(&args),
        Command::Events(args) => events::run(&args),
        Command::Tool(args) => tool::run(&args),
        Command::Named(words) => tool::external(words),
        Command::Stacks(args) => stacks::run(&args),
        Command::Capture(args) => capture::run(&args),
        Command::Fleet(args) => fleet::run(args),
        Command::Report(args) => report::run(&args),
        Command::Rescue(args) => rescue::run(&args),
        Command::Print(args) => print::run(&args),
        Command::Slo(args) => slo::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Target(args) => target::run(&args),
        Command::Version(args) => version::run(&args),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "kstrobe", &mut std::io::stdout());
            ExitCode::SUCCESS
        }
    }
}

fn run(args: RunArgs) -> ExitCode {
    let options = app::Options {
        config: args.config,
        source: args.source,
        choice: Choice { enable: args.enable, disable: args.disable, only: args.only },
        listen: args.listen,
        lifecycle: args.lifecycle,
        web: app::WebOptions {
            config: args.web_config,
            hosts: args.hosts,
            systemd_socket: args.systemd_socket,
            telemetry_path: args.telemetry_path,
            most_requests: args.most_requests,
        },
        events: args.events,
        log_level: args.log_level,
        log_json: args.log_format.map(|f| f == LogFormat::Json),
        custom_resources: args.custom_resources,
        handed: crate::kubernetes::probe_controller::Files::default(),
    };
    app::run(options, http::router)
}

/// Prints an error; the exit code of a command that failed.
fn fail(error: impl std::fmt::Display) -> ExitCode {
    eprintln!("error: {error}");
    ExitCode::from(1)
}

/// Prints a table with aligned columns.
pub fn table(header: &[&str], rows: &[Vec<String>]) {
    let mut widths: Vec<usize> = header.iter().map(|h| h.len()).collect();
    for row in rows {
        for (w, cell) in widths.iter_mut().zip(row) {
            *w = (*w).max(cell.chars().count());
        }
    }
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<String> = cells.zip(&widths).map(|(c, w)| format!("{c:<w$}")).collect();
        println!("{}", padded.join("  ").trim_end());
    };
    line(&mut header.iter().copied());
    for row in rows {
        line(&mut row.iter().map(String::as_str));
    }
}
