//! The running agent: build, then serve, then drain. The one place that owns what runs.

mod attached;
mod budget;
mod events;
mod iterate;
mod meter;
mod poll;
mod probe;
mod pushers;
mod rules;
mod stacks;
mod traced;
mod upkeep;
mod user_hooks;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::cli::{SourceArgs, complain, log};
use crate::events::tail::Tail;
use crate::http::{self, Access, Denied, Endpoints, Status};
use crate::kernel::load::Loader;
use crate::kernel::tracefs::Tracefs;
use crate::kernel::{detect, instance, sys};
use crate::metrics::labels::Names;
use crate::plan::{self, Draft};
use crate::rules::{configured, desk::Desk};
use crate::sources::{self, Choice};
use crate::telemetry::{Observed, Telemetry};
use crate::{logging, prepare, receivers};
use events::Sink;
use kstrobe_export::Format;
use kstrobe_export::snapshot::{Exemplar, Moment, Snapshot};
use kstrobe_push::Receiver;
use probe::Running;
pub use stacks::{Recording, record};

/// What `kstrobe run` was asked for.
#[derive(Debug)]
pub struct Options {
    /// `--config`
    pub config: Option<PathBuf>,
    /// `--probes`, `--btf`
    pub source: SourceArgs,
    /// `--enable`, `--disable`, `--only`
    pub choice: Choice,
    /// `--web.listen-address`
    pub listen: Vec<String>,
    /// `--events`
    pub events: Option<String>,
    /// `--log.level`
    pub log_level: Option<String>,
    /// `--log.format json`
    pub log_json: Option<bool>,
}

/// How long captures that run may take to put down what they have once the agent stops.
const CAPTURES_END: Duration = Duration::from_secs(10);

/// Everything that runs.
struct App {
    probes: Vec<Mutex<Running>>,
    /// Label texts; also the lock that keeps reads of probes one at a time. Who needs both takes this one first.
    names: Mutex<Names>,
    telemetry: Telemetry,
    /// Scrapes that want iterators to be read.
    demand: iterate::Demand,
    /// Mistakes in files: what they ask for does not run, and has no probe to say so.
    mistakes: Vec<String>,
    /// Rules and captures.
    desk: Option<Arc<Desk>>,
    /// What became of what was sent to receivers.
    exports: Mutex<Vec<kstrobe_push::Watch>>,
}

/// What the agent needs to take captures.
struct Capturing {
    desk: Result<Arc<Desk>, Denied>,
    token_file: Option<PathBuf>,
}

/// A panic in one reader must not silence the agent: what it left is data that the next read replaces.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs until SIGINT or SIGTERM.
pub fn run(options: Options) -> ExitCode {
    let (agent, diagnostics) = sources::agent(options.config.as_deref());
    complain(&diagnostics);
    let Some(agent) = agent else { return ExitCode::from(1) };
    let level = options.log_level.as_deref().unwrap_or(&agent.log_level);
    if let Err(e) = logging::start(level, options.log_json.unwrap_or(agent.log_json)) {
        eprintln!("error: {e}");
        return ExitCode::from(2);
    }
    let (probes, diagnostics) = sources::chosen(&agent, options.source.probes.as_deref(), &options.choice);
    let Some(probes) = probes else {
        complain(&diagnostics);
        return ExitCode::from(1);
    };
    log(&diagnostics);
    let mistakes = diagnostics.iter().filter(|d| d.is_error()).map(|d| d.one_line()).collect();
    let drafts: Vec<Draft> = probes.into_iter().map(plan::draft).collect();
    let listen = if options.listen.is_empty() { &agent.listen } else { &options.listen };
    let sink = match Sink::open(options.events.as_deref().unwrap_or(&agent.events)) {
        Ok(sink) => sink,
        Err(e) => {
            eprintln!("error: {e}");
            return ExitCode::from(1);
        }
    };
    let capturing = Capturing::configured(&agent, &drafts);
    let (btf, receivers) = (options.source.btf.as_deref(), receivers::receivers(&agent.exporters));
    match serve(listen, &drafts, btf, mistakes, sink, capturing, receivers) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::from(1)
        }
    }
}

/// Starts the probes and serves them until told to stop.
fn serve(
    listen: &[String],
    drafts: &[Draft],
    btf: Option<&Path>,
    mistakes: Vec<String>,
    sink: Sink,
    capturing: Capturing,
    receivers: Vec<Receiver>,
) -> Result<(), Box<dyn std::error::Error>> {
    // The addresses first: nothing is attached for an agent that nobody could ask.
    let listeners = http::bind(listen)?;
    // Two threads serve any scraper; scrapes themselves run on blocking threads.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    // From here on a signal ends the agent in good order, also one that comes while probes are being attached.
    let stop = runtime.block_on(async { stop_signal() })?;
    let Capturing { desk, token_file } = capturing;
    let app = Arc::new(App::start(drafts, btf, mistakes, desk.as_ref().ok().cloned()));
    let upkeep = upkeep::start(app.clone())?;
    let tail =
        Arc::new(Tail::new(drafts.iter().map(Draft::outline).filter(|o| o.slow).map(|o| o.name.clone()).collect()));
    let reader = events::start(app.clone(), tail.clone(), sink)?;
    let (ended, follow) = (tail.clone(), tail);
    let stop = async move {
        stop.await;
        // Whoever follows events would keep the server waiting.
        ended.close();
    };
    let walker = iterate::start(&app)?;
    let rules = rules::start(&app)?;
    let addresses: Vec<_> = listeners.iter().map(TcpListener::local_addr).collect::<Result<_, _>>()?;
    let captures = http::Captures { access: Access::new(&addresses, token_file), desk: desk.clone() };
    if let (Access::Nobody(reason), Ok(_)) = (&captures.access, &desk) {
        tracing::warn!(reason, "the API of captures");
    }
    let pushers = pushers::start(&app, receivers, runtime.handle());
    let (scraped, listed, profiled, stacks) = (app.clone(), app.clone(), app.clone(), app);
    let endpoints = Endpoints {
        scrape: Box::new(move |format| scraped.scrape(format)),
        status: Box::new(move || listed.status()),
        stacks: Box::new(move || stacks.stacks()),
        profile: Box::new(move |request| profiled.profile_as(request)),
        events: follow,
        captures,
        version: env!("CARGO_PKG_VERSION").into(),
    };
    for l in &listeners {
        tracing::info!(address = %l.local_addr()?, "listening");
    }
    let served = runtime.block_on(http::serve(listeners, http::router(endpoints), stop));
    // The probes are still there for a last report.
    runtime.block_on(pushers.stop());
    if let Some(rules) = rules {
        rules.stop();
    }
    if let Ok(desk) = &desk {
        desk.service().close(CAPTURES_END);
    }
    upkeep.stop();
    reader.stop();
    if let Some(walker) = walker {
        walker.stop();
    }
    runtime.shutdown_timeout(std::time::Duration::from_secs(5));
    tracing::info!("stopped");
    Ok(served?)
}

impl Capturing {
    /// As the configuration says. An agent that cannot store captures still measures.
    fn configured(agent: &sources::AgentConfig, drafts: &[Draft]) -> Capturing {
        let metrics = || drafts.iter().flat_map(|draft| draft.outline().metrics.iter());
        let known = |name: &str| metrics().any(|metric| metric.about.name == name);
        let engine = crate::capture::engine::kernel();
        let desk = match configured::desk(agent, engine, known) {
            Ok(desk) => desk.ok_or_else(Denied::off),
            Err(reason) => {
                tracing::error!(%reason, "captures cannot be stored: there will be none");
                Err(Denied::broken(&reason))
            }
        };
        let token_file = agent.captures.as_ref().and_then(|captures| captures.token_file.as_ref());
        let token_file = token_file.map(|file| PathBuf::from(&file.value));
        if let Some(Err(reason)) = token_file.as_deref().map(http::token) {
            tracing::error!(reason, "the token of captures cannot be read");
        }
        Capturing { desk, token_file }
    }
}

impl App {
    fn start(drafts: &[Draft], btf: Option<&Path>, mistakes: Vec<String>, desk: Option<Arc<Desk>>) -> App {
        sys::raise_open_files();
        sweep();
        if drafts.is_empty() {
            tracing::warn!("no probe is enabled: there is nothing to measure (`kstrobe list` shows what there is)");
        }
        let target = prepare::look(drafts, btf);
        tracing::info!(kernel = target.release, cpus = target.cpus, btf = target.btf.is_some(), "kernel");
        if let Some(reason) = detect::without_btf(&target) {
            tracing::error!(reason, "no kernel types: most probes cannot run");
        }
        // Dropped when all are loaded: it holds the kernel's types, some 13 MB.
        let mut loader = Loader::new();
        let probes = drafts.iter().map(|d| Mutex::new(Running::start(d, &target, &mut loader, btf))).collect();
        let telemetry = Telemetry::new(env!("CARGO_PKG_VERSION"), None);
        telemetry.configured(mistakes.len());
        let names = Mutex::new(Names::new());
        App { probes, names, telemetry, demand: iterate::Demand::default(), mistakes, desk, exports: Mutex::default() }
    }

    /// Reads everything and writes an exposition.
    fn scrape(&self, format: Format) -> Vec<u8> {
        let begun = Instant::now();
        let (snapshot, exemplars) = self.snapshot();
        let own = self.telemetry.encode(format);
        let limit = kstrobe_export::DEFAULT_NATIVE_BUCKET_LIMIT;
        let body = kstrobe_export::exposition(&snapshot, &exemplars, &own, format, limit);
        self.telemetry.scraped(begun.elapsed());
        body
    }

    /// Reads everything; the agent's own metrics describe the same moment.
    fn snapshot(&self) -> (Snapshot, Vec<Exemplar>) {
        self.demand.fresh();
        let now = Moment::now();
        let mut families = Vec::new();
        let mut observed = Observed::default();
        {
            let mut names = lock(&self.names);
            for probe in &self.probes {
                families.append(&mut lock(probe).scrape(&mut names, now, &mut observed, &self.telemetry));
            }
        }
        let mut exemplars = Vec::new();
        if let Some(desk) = &self.desk {
            observed.captures = Some(desk.service().usage());
            observed.rules = desk.counts();
            exemplars = desk.exemplars();
        }
        observed.exports = lock(&self.exports).iter().map(kstrobe_push::Watch::usage).collect();
        self.telemetry.observe(observed);
        (Snapshot { at: now.wall, families }, exemplars)
    }

    fn status(&self) -> Status {
        Status { probes: self.probes.iter().map(|p| lock(p).status()).collect(), mistakes: self.mistakes.clone() }
    }
}

/// Puts right what a killed agent left in tracefs. Where there is no tracefs there is nothing.
fn sweep() {
    let swept = Tracefs::open().and_then(|tracefs| instance::sweep(&Arc::new(tracefs)));
    for swept in swept.into_iter().flatten() {
        match swept.result {
            Ok(()) => tracing::warn!(what = swept.what, "removed what a killed agent left"),
            Err(error) => tracing::error!(what = swept.what, %error, "what a killed agent left cannot be put right"),
        }
    }
}

/// Resolves when the agent should end.
fn stop_signal() -> std::io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        tracing::info!("stopping");
    })
}
