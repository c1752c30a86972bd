//! The running agent: build, then serve, then drain. The one place that owns what runs.

mod attached;
mod budget;
mod capturing;
mod cluster;
mod drain;
mod endpoints;
mod events;
mod exports;
mod intent;
mod iterate;
pub mod logging;
pub mod memory;
mod meter;
mod poll;
mod probe;
mod pushers;
mod reload;
mod rights;
mod rules;
mod stacks;
mod traced;
mod upkeep;
mod user_hooks;
mod watch;
mod web;
mod workloads;

use axum::Router;
use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use crate::capture::rules::engine::RuleEngine;
use crate::config::SourceArgs;
use crate::config::compile;
use crate::config::files::diag::Diagnostic;
use crate::config::files::{AgentConfig, Choice};
use crate::config::plan::Draft;
use crate::kernel::load::Loader;
use crate::kernel::tracefs::Tracefs;
use crate::kernel::{detect, instance, sys};
use crate::kubernetes;
use crate::kubernetes::other_nodes::Neighbours;
use crate::kubernetes::probe_controller;
use crate::metrics::events::exemplars::Exemplars;
use crate::metrics::events::tail::Tail;
use crate::metrics::labels::Names;
use crate::metrics::owners::Owners;
use crate::metrics::telemetry::{self, Observed, Telemetry, WorkloadsUse};
use crate::probe::status::Status;
use capturing::Around;
pub use endpoints::{Captures, Endpoints, ProfileError, ProfileRequest, Reload, StacksStatus};
use events::Sink;
use exports::Exports;
use intent::{Intent, Reading};
use kstrobe_export::Format;
use kstrobe_export::snapshot::{Exemplar, Moment, Snapshot};
use kstrobe_web::hosts::Name;
use kstrobe_web::systemd::{News, notify};
use logging::Level;
use logging::{log_diagnostics, print_diagnostics};
use memory::Need;
use probe::Running;
use pushers::Pushers;
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
    /// `--web.enable-lifecycle`
    pub lifecycle: bool,
    /// `--web.*` but the addresses
    pub web: WebOptions,
    /// `--events`
    pub events: Option<String>,
    /// `--log.level`
    pub log_level: Option<String>,
    /// `--log.format json`
    pub log_json: Option<bool>,
    /// `--kubernetes.custom-resources`
    pub custom_resources: bool,
    /// Probes that the cluster hands to this node.
    pub handed: probe_controller::Files,
}

/// A probe that others may be reading.
type Probe = Arc<Mutex<Running>>;
/// How the agent is to be reached.
#[derive(Debug)]
pub struct WebOptions {
    /// `--web.config.file`
    pub config: Option<PathBuf>,
    /// `--web.allowed-host`
    pub hosts: Vec<Name>,
    /// `--web.systemd-socket`
    pub systemd_socket: bool,
    /// `--web.telemetry-path`
    pub telemetry_path: String,
    /// `--web.max-requests`
    pub most_requests: usize,
}

/// Everything that runs.
struct App {
    /// Whoever works through them takes the list anew each time: a reload puts another one here.
    probes: RwLock<Arc<[Probe]>>,
    /// Label texts; also the lock that keeps reads of probes one at a time. Who needs both takes this one first.
    names: Mutex<Names>,
    telemetry: Telemetry,
    /// Whoever reads everything has it until that is told. It is taken before all others.
    turn: Mutex<()>,
    /// Scrapes that want iterators to be read.
    demand: iterate::Demand,
    /// Rules and captures, and who may ask for them.
    captures: RwLock<Captures>,
    /// For the thread that writes single events.
    events: Mutex<events::Change>,
    told: Mutex<Told>,
    /// Populated buckets of a native histogram; 0 for no limit.
    native_bucket_limit: AtomicUsize,
    /// What happened at the server's doors.
    web: Arc<kstrobe_web::Counters>,
    /// What goes to receivers.
    exports: Arc<Exports>,
    /// Single events by the series that they were counted in.
    exemplars: Mutex<Exemplars>,
    /// What cgroups belong to.
    owners: Arc<Owners>,
    /// Whoever follows them.
    workloads: workloads::Asks,
    /// What it last said of itself.
    workloads_use: Mutex<Option<WorkloadsUse>>,
    /// What came of asking Kubernetes.
    kubernetes: Arc<kstrobe_kube::Counters>,
    /// The node's name, for titles.
    node: Mutex<String>,
    /// Makes profiles wait for one another while they get their names.
    resolving: Mutex<()>,
}

/// What is to be told of the configuration.
#[derive(Debug, Default)]
struct Told {
    /// Mistakes in files: what they ask for does not run, and has no probe to say so.
    mistakes: Vec<String>,
    /// Why the last reload was refused, if it was.
    refused: Vec<String>,
}

/// How long the removal of ftrace sessions may take at the end.
const SESSIONS_END: Duration = Duration::from_secs(5);

/// A panic in one reader must not silence the agent: what it left is data that the next read replaces.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs until SIGINT or SIGTERM. `router` makes routes of what the agent answers.
pub fn run(options: Options, router: fn(Endpoints) -> Router) -> ExitCode {
    let mut reading = intent::read(&options, None);
    let Some(intent) = reading.intent.take() else {
        print_diagnostics(&reading.diagnostics);
        return ExitCode::from(1);
    };
    let (level, json) = intent.log(&options);
    let level = match logging::start(level, json) {
        Ok(level) => level,
        Err(e) => {
            eprintln!("error: {e}");
            return ExitCode::from(2);
        }
    };
    log_diagnostics(&reading.diagnostics);
    let sink = match Sink::open(intent.events(&options)) {
        Ok(sink) => sink,
        Err(e) => {
            eprintln!("error: {e}");
            return ExitCode::from(1);
        }
    };
    // Before there are threads: systemd's sockets come by the environment.
    let door = match web::open(intent.listen(&options), &options.web) {
        Ok(door) => door,
        Err(code) => return code,
    };
    let Err(e) = serve(options, router, door, intent, reading, sink, level);
    eprintln!("error: {e}");
    ExitCode::from(1)
}

/// Starts the probes and serves them until SIGINT or SIGTERM, which end the process here.
fn serve(
    options: Options,
    router: fn(Endpoints) -> Router,
    door: web::Door,
    intent: Intent,
    reading: Reading,
    sink: Sink,
    level: Level,
) -> Result<Infallible, Box<dyn std::error::Error>> {
    let web::Door { listeners, source } = door;
    let addresses: Vec<SocketAddr> = listeners.iter().map(TcpListener::local_addr).collect::<Result<_, _>>()?;
    // Two threads serve any scraper; scrapes themselves run on blocking threads.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    // From here on a signal ends the agent in good order, also one that comes while probes are being attached.
    let stop = runtime.block_on(async { stop_signal() })?;
    let (asks, asked) = channel();
    runtime.block_on(async { reload_signal(asks.clone()) })?;
    let around = Around { addresses, source: source.clone(), exports: Arc::default() };
    let captures = capturing::start(&intent.agent, &intent.drafts, &around);
    let (asks_of_workloads, news) = workloads::asks();
    let btf = options.source.btf.as_deref();
    let app = Arc::new(App::start(&intent.drafts, &intent.agent, btf, captures, &around, asks_of_workloads));
    match rights::lacking(&app) {
        Some(lacking) if lacking.all => return Err(lacking.text.into()),
        Some(lacking) => tracing::error!(reason = lacking.text, "not all probes run"),
        None => {}
    }
    let mistakes = reading.diagnostics.iter().filter(|d| d.is_error()).map(Diagnostic::one_line);
    let mistakes: Vec<String> = mistakes.collect();
    app.configured(mistakes.len(), &intent);
    lock(&app.told).mistakes = mistakes;
    upkeep::start(app.clone())?;
    let tail = Arc::new(Tail::new(intent.slow(), intent.agent.kept_events));
    let reader = events::start(app.clone(), tail.clone(), sink)?;
    let ended = tail.clone();
    let stop = async move {
        stop.await;
        notify(News::Stopping);
        // Whoever follows events would keep the server waiting.
        ended.close();
    };
    iterate::start(&app)?;
    workloads::start(&app, news, &intent.agent, runtime.handle())?;
    rules::start(&app)?;
    let (receivers, unsendable) = crate::config::exporters::receivers(&intent.agent.exporters);
    unsendable.iter().for_each(|reason| tracing::error!("{reason}"));
    let pushers = Arc::new(Pushers::new(app.clone(), runtime.handle().clone()));
    pushers.begin(receivers);
    let tls = source.settings().tls.is_some();
    let neighbours = Neighbours::find(&intent.agent, options.custom_resources);
    let endpoints = Endpoints { neighbours, ..endpoints(&app, tail.clone(), &options, asks.clone()) };
    let hosts = kstrobe_web::Hosts::of_machine(options.web.hosts.clone());
    cluster::start(&app, &options, &intent.agent, &asks, runtime.handle());
    let started = reload::Started::new(&intent.agent, intent.listen(&options), intent.log(&options).1);
    let fixed = reload::Fixed { app: app.clone(), options, level, tail, around, pushers: pushers.clone(), started };
    reload::start(fixed, asked, reading.seen, reading.directory)?;
    drop(intent);
    for l in &listeners {
        tracing::info!(address = %l.local_addr()?, tls, "listening");
    }
    let bearer = app.clone();
    let own_credentials: kstrobe_web::OwnCredentials =
        Arc::new(move |headers| bearer.captures().access.is_token(headers));
    let (router, limits) = (router(endpoints), limits());
    let own_credentials = Some(own_credentials);
    let server = kstrobe_web::Server { listeners, router, source, limits, hosts, own_credentials };
    notify(News::Ready);
    runtime.spawn(web::stay_alive());
    let served = runtime.block_on(server.run(stop));
    capturing::close(&app.captures(), None);
    reader.stop();
    // What ended has been handed over, and the probes are still there for a last report.
    runtime.block_on(pushers.stop());
    end_sessions(app);
    served?;
    tracing::info!("stopped");
    // With the process the kernel frees programs, maps and links. Detaching them one by one, and waiting for busy threads,
    // would take a busy machine longer than systemd and the kubelet wait.
    std::process::exit(0)
}

/// Removes the ftrace sessions of probes, which outlive the process. A removal that takes too long is left to the next start.
fn end_sessions(app: Arc<App>) {
    let (end, ended) = channel::<()>();
    std::thread::spawn(move || {
        app.probes().iter().for_each(|probe| lock(probe).end_session());
        drop(end);
    });
    if ended.recv_timeout(SESSIONS_END) == Err(RecvTimeoutError::Timeout) {
        tracing::warn!("ftrace sessions could not be removed in time: the next start of the agent removes them");
    }
}

/// Bounds of the server, now that the probes have their descriptors.
fn limits() -> kstrobe_web::Limits {
    let (usual, spare) = (kstrobe_web::Limits::default(), sys::spare_descriptors());
    let limits = usual.clone().within(spare);
    if limits.connections < usual.connections {
        let (connections, usual) = (limits.connections, usual.connections);
        tracing::warn!(connections, usual, spare, "fewer connections than usual: RLIMIT_NOFILE leaves few descriptors");
    }
    limits
}

fn endpoints(app: &Arc<App>, events: Arc<Tail>, options: &Options, asks: Sender<reload::Ask>) -> Endpoints {
    let [scraped, late, listed, profiled, stacks, captures] = std::array::from_fn(|_| app.clone());
    Endpoints {
        scrape: Box::new(move |format| scraped.scrape(format)),
        late: Box::new(move |format, whole, age| late.late(format, whole, age)),
        status: Box::new(move || listed.status()),
        stacks: Box::new(move || stacks.stacks()),
        profile: Box::new(move |request| profiled.profile_as(request)),
        events,
        captures: Box::new(move || captures.captures()),
        neighbours: None,
        reload: Reload { open: options.lifecycle, ask: Box::new(move || reload::ask(&asks, "a client asks")) },
        version: env!("CARGO_PKG_VERSION").into(),
        telemetry_path: options.web.telemetry_path.clone(),
        most_requests: options.web.most_requests,
    }
}

impl App {
    fn start(
        drafts: &[Draft],
        agent: &AgentConfig,
        btf: Option<&Path>,
        captures: Captures,
        around: &Around,
        workloads: workloads::Asks,
    ) -> App {
        let owners = Arc::<Owners>::default();
        sys::raise_open_files();
        sweep();
        if drafts.is_empty() {
            tracing::warn!("no probe is enabled: there is nothing to measure (`kstrobe list` shows what there is)");
        }
        let target = compile::look(drafts, btf);
        tracing::info!(kernel = target.release, cpus = target.cpus, btf = target.btf.is_some(), "kernel");
        if let Some(reason) = detect::without_btf(&target) {
            tracing::error!(reason, "no kernel types: most probes cannot run");
        }
        if let Some(reason) = target.btf.as_ref().and_then(detect::without_init) {
            tracing::warn!("{reason}");
        }
        // Dropped when all are loaded: it holds the kernel's types, some 13 MB.
        let mut loader = Loader::new();
        let compiled: Vec<_> = drafts.iter().map(|draft| draft.compile(&target)).collect();
        // Before the first map is made: the kernel kills a process above its limit without a message of the agent's.
        let need = Need::of(compiled.iter().flatten(), agent);
        if let Some(reason) = memory::limit().and_then(|limit| need.exceeds(&limit)) {
            tracing::error!(reason, "too little memory");
        }
        let start = |(draft, compiled)| {
            Arc::new(Mutex::new(Running::start_compiled(draft, compiled, &target, &mut loader, btf)))
        };
        let probes = drafts.iter().zip(compiled).map(start).collect();
        let app = App {
            probes: RwLock::default(),
            names: Mutex::new(Names::new().with_owners(owners.clone())),
            telemetry: Telemetry::new(env!("CARGO_PKG_VERSION"), None),
            turn: Mutex::default(),
            demand: iterate::Demand::default(),
            captures: RwLock::new(captures),
            events: Mutex::default(),
            told: Mutex::default(),
            native_bucket_limit: AtomicUsize::default(),
            web: around.source.counters().clone(),
            exports: around.exports.clone(),
            exemplars: Mutex::default(),
            owners,
            workloads,
            workloads_use: Mutex::default(),
            kubernetes: Arc::default(),
            node: Mutex::new(kubernetes::node_or_host(&Default::default())),
            resolving: Mutex::default(),
        };
        app.run_these(probes);
        app
    }

    /// This configuration is what counts now.
    fn configured(&self, mistakes: usize, intent: &Intent) {
        self.telemetry.configured(mistakes, &intent.hash);
        *lock(&self.node) = kubernetes::node_or_host(&intent.agent.kubernetes);
        self.native_bucket_limit.store(intent.agent.native_bucket_limit, Relaxed);
        self.owners.set_patience(workloads::Pace::of(&intent.agent).patience());
    }

    /// The probes that run now.
    fn probes(&self) -> Arc<[Probe]> {
        self.probes.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// From now on these are the probes that run. Whoever reads all of them has the names locked and takes the list then: when
    /// this is done, nobody reads by an older one.
    fn run_these(&self, probes: Vec<Probe>) {
        let iterated = probes.iter().any(|probe| lock(probe).iterated().is_some());
        let _names = lock(&self.names);
        *self.probes.write().unwrap_or_else(PoisonError::into_inner) = probes.into();
        self.demand.serve(iterated);
        self.workloads.tell(workloads::News::Probes);
    }

    /// Rules and captures now.
    fn captures(&self) -> Captures {
        self.captures.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn rules(&self) -> Option<Arc<RuleEngine>> {
        self.captures().rules.ok()
    }

    /// Reads everything and writes an exposition.
    fn scrape(&self, format: Format) -> Vec<u8> {
        let begun = Instant::now();
        let (snapshot, exemplars) = self.snapshot();
        let own = self.telemetry.encode(format);
        let own =
            [own.strip_suffix(kstrobe_export::END).unwrap_or(&own), &telemetry::age(format, Duration::ZERO)].concat();
        let limit = self.native_bucket_limit.load(Relaxed);
        let body = kstrobe_export::exposition(&snapshot, &exemplars, &own, format, limit);
        self.telemetry.scraped(begun.elapsed());
        body
    }

    /// Writes this age into an exposition of [`App::scrape`].
    fn late(&self, format: Format, mut whole: Vec<u8>, age: Duration) -> Vec<u8> {
        self.telemetry.scraped_late(age);
        let fresh = telemetry::age(format, Duration::ZERO);
        whole.truncate(whole.len().saturating_sub(fresh.len()));
        whole.append(&mut telemetry::age(format, age));
        whole
    }

    /// Reads everything; the agent's own metrics describe the same moment.
    fn snapshot(&self) -> (Snapshot, Vec<Exemplar>) {
        self.demand.fresh();
        // Of two that read at once, the one with the older counts must not have the last word.
        let _turn = lock(&self.turn);
        let now = Moment::now();
        let mut families = Vec::new();
        let mut observed = Observed::default();
        {
            let mut names = lock(&self.names);
            for probe in self.probes().iter() {
                families.append(&mut lock(probe).scrape(&mut names, now, &mut observed, &self.telemetry));
            }
        }
        let mut exemplars = Vec::new();
        if let Some(rules) = self.rules() {
            observed.captures = Some(rules.service().usage());
            observed.rules = rules.counts();
            exemplars = rules.exemplars();
        }
        observed.web = Some(self.web.counts());
        exemplars.append(&mut lock(&self.exemplars).of(&families));
        observed.workloads = lock(&self.workloads_use).clone();
        observed.kubernetes = self.kubernetes.counts();
        observed.exports = self.exports.usage();
        self.telemetry.observe(observed);
        (Snapshot { at: now.wall, families }, exemplars)
    }

    fn status(&self) -> Status {
        let probes = self.probes().iter().map(|probe| lock(probe).status()).collect();
        let told = lock(&self.told);
        Status { probes, mistakes: told.mistakes.clone(), refused: told.refused.clone() }
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

/// From now on SIGHUP asks for a reload.
fn reload_signal(asks: Sender<reload::Ask>) -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut hangup = signal(SignalKind::hangup())?;
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            if asks.send(reload::Ask::Read("SIGHUP", None)).is_err() {
                return;
            }
        }
    });
    Ok(())
}
