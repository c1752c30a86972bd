//! `kstrobe fleet capture`

use super::super::fail;
use super::super::stacks::duration;
use super::Reach;
use super::error::Error;
use super::progress::Progress;
use kstrobe_fleet::node_session::{Limits, Stage};
use kstrobe_fleet::run::{Outcome, Run, Spec};
use kstrobe_fleet::target::Target;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// How often progress is shown.
const TELL: Duration = Duration::from_millis(250);
/// Pods that are named before it begins.
const MAX_NAMED: usize = 5;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    reach: Reach,
    /// Record what this probe sees: its hooks, context switches and wakeups.
    #[arg(long, value_name = "NAME")]
    probe: Option<String>,
    /// Record this event, with a filter in the kernel's language: `sched:sched_switch if prev_comm == "x"`.
    #[arg(short, long = "event", value_name = "EVENT")]
    events: Vec<String>,
    /// Tracer, such as function_graph or function.
    #[arg(short = 'p', long, value_name = "TRACER")]
    tracer: Option<String>,
    /// Functions whose calls function_graph records, with all that they call.
    #[arg(short = 'g', long = "graph-root", value_name = "FUNCTION")]
    graph_roots: Vec<String>,
    /// How deep function_graph follows calls.
    #[arg(long, value_name = "LEVELS")]
    max_graph_depth: Option<u32>,
    /// Functions that the tracer records; patterns with * are allowed.
    #[arg(long = "function", value_name = "FUNCTION")]
    functions: Vec<String>,
    /// Only threads of this name; patterns with * are allowed.
    #[arg(long = "comm", value_name = "NAME")]
    comms: Vec<String>,
    /// Stack of the kernel with each event.
    #[arg(short = 'T', long)]
    stacks: bool,
    /// How long, e.g. 10s or 500ms.
    #[arg(short, long, value_name = "TIME", value_parser = duration, default_value = "10s")]
    duration: Duration,
    /// Most bytes to record on each node, e.g. 64MiB [default: the agents' own].
    #[arg(long, value_name = "BYTES")]
    max_bytes: Option<String>,
    /// With -l: record everything on the nodes of these pods. Without it the work of the pods alone is recorded, unless --comm says
    /// whose.
    #[arg(long, requires = "selector")]
    whole_nodes: bool,
    /// Leave the captures on the nodes, too.
    #[arg(long)]
    keep: bool,
    /// Where to write it.
    #[arg(short, long, value_name = "FILE", default_value = "kstrobe.tar")]
    output: PathBuf,
}

pub async fn run(args: Args) -> Result<ExitCode, Error> {
    let request = request(&args);
    if args.probe.is_none() && request.is_empty() {
        return Err(Error::NothingToRecord);
    }
    let folder = Folder::beside(&args.output)?;
    let door = args.reach.door()?;
    let targets = args.reach.targets(&door, false).await?;
    say_whose(&args, &targets.0);
    let mut request = Value::Object(request);
    if let Some(bytes) = &args.max_bytes {
        request["max_bytes"] = json!(bytes);
    }
    let spec = Spec {
        probe: args.probe.clone(),
        request,
        duration: args.duration,
        keep: args.keep,
        whole_nodes: args.whole_nodes,
    };
    let (stop, stopped) = watch::channel(false);
    let mut interrupts = signal(SignalKind::interrupt())?;
    let run = Run::new(door, targets, spec, Limits::default(), &folder.0, stopped);
    let mut progress = Progress::new();
    let mut going = std::pin::pin!(run.go());
    let mut tick = tokio::time::interval(TELL);
    loop {
        tokio::select! {
            () = &mut going => break,
            _ = tick.tick() => progress.show(&run.look()),
            _ = interrupts.recv() => {
                if stop.send_replace(true) {
                    progress.end(&run.look());
                    return Ok(fail("given up: captures that run end by themselves"));
                }
                progress.say("ending: what was recorded so far is fetched; once more gives up");
            }
        }
    }
    progress.end(&run.look());
    let (recorder, out) = (format!("kstrobe {}", env!("CARGO_PKG_VERSION")), args.output.clone());
    let together = {
        let run = Arc::clone(&run);
        let selector = args.reach.selector.clone();
        tokio::task::spawn_blocking(move || run.put_together(&recorder, selector, &out))
    };
    let together = tokio::select! {
        together = together => together?,
        _ = interrupts.recv() => return Ok(fail("given up: nothing is written")),
    };
    let outcome = together.map_err(|error| Error::File { file: args.output.clone(), error })?;
    tell(&outcome, &args.output);
    Ok(ExitCode::from(outcome.exit_code))
}

/// Prints which tasks are recorded.
fn say_whose(args: &Args, targets: &[Target]) {
    let nodes = targets.len();
    match &args.reach.selector {
        Some(selector) if !args.whole_nodes && args.comms.is_empty() => {
            let pods: Vec<&str> = targets.iter().flat_map(|target| &target.pods).map(String::as_str).collect();
            let (shown, more) = pods.split_at(pods.len().min(MAX_NAMED));
            let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
            eprintln!(
                "recording the work of {} pods with the labels {selector} on {nodes} nodes (--whole-nodes records everything): {}{more}",
                pods.len(),
                shown.join(", "),
            );
        }
        _ if args.comms.is_empty() => eprintln!("recording everything on {nodes} nodes"),
        _ => eprintln!("recording threads called {} on {nodes} nodes", args.comms.join(", ")),
    }
}

/// What every agent is sent.
fn request(args: &Args) -> Map<String, Value> {
    let mut request = Map::new();
    let mut put = |key: &str, value: Value, there: bool| {
        if there {
            request.insert(key.to_owned(), value);
        }
    };
    let event = |text: &String| match text.split_once(" if ") {
        Some((event, filter)) => json!({"event": event.trim(), "filter": filter.trim()}),
        None => json!(text),
    };
    put("events", args.events.iter().map(event).collect(), !args.events.is_empty());
    put("tracer", json!(args.tracer), args.tracer.is_some());
    if args.tracer.is_none() && !args.graph_roots.is_empty() {
        put("tracer", json!("function_graph"), true);
    }
    put("graph", json!(args.graph_roots), !args.graph_roots.is_empty());
    put("depth", json!(args.max_graph_depth), args.max_graph_depth.is_some());
    put("functions", json!(args.functions), !args.functions.is_empty());
    put("comms", json!(args.comms), !args.comms.is_empty());
    put("stacks", json!(true), args.stacks);
    request
}

fn tell(outcome: &Outcome, out: &Path) {
    let manifest = &outcome.manifest;
    for node in &manifest.nodes {
        node.warnings.iter().for_each(|warning| eprintln!("{}: note: {warning}", node.node));
        if node.corrected_ns != 0 {
            let ms = node.corrected_ns as f64 / 1e6;
            eprintln!(
                "{}: note: its wall clock is {ms:.1} ms ahead of the others', and its times were set right",
                node.node
            );
        }
    }
    if outcome.written {
        let (records, lost) = manifest
            .nodes
            .iter()
            .filter_map(|node| node.capture.as_ref())
            .fold((0, 0), |sum, capture| (sum.0 + capture.records, sum.1 + capture.lost));
        eprintln!(
            "{}: {} nodes, {records} records, {lost} lost, from {}",
            out.display(),
            manifest.downloaded,
            manifest.started
        );
        eprintln!("open it in https://ui.perfetto.dev; .kstrobe/manifest.json in it says more");
    }
    if manifest.failed > 0 {
        eprintln!("{} of {} nodes failed:", manifest.failed, manifest.nodes.len());
        for node in manifest.nodes.iter().filter(|node| node.status != Stage::Downloaded) {
            let error = if node.error.is_empty() { "it came no further" } else { &node.error };
            eprintln!("  {}: {error} ({})", node.node, node.failed_at.unwrap_or(node.status).name());
        }
    }
}

/// A folder for downloads on the disk that the file will be on, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn beside(out: &Path) -> Result<Folder, Error> {
        use std::os::unix::fs::DirBuilderExt;
        let name = out.file_name().ok_or_else(|| Error::FileName(out.to_owned()))?;
        let mut own = std::ffi::OsString::from(".");
        own.push(name);
        own.push(format!(".{}", std::process::id()));
        let folder = out.with_file_name(own);
        // Traces tell what others do.
        let made = std::fs::DirBuilder::new().mode(0o700).create(&folder);
        match made {
            Ok(()) => Ok(Folder(folder)),
            Err(error) => Err(Error::File { file: folder, error }),
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
