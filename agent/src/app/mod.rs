//! The running agent: build, then serve, then drain. The one place that owns what runs.

mod budgets;
mod captures;
mod cluster;
mod endpoints;
mod events;
mod exporters;
mod exports;
mod history;
mod housekeeping;
mod in_process;
mod iterate;
mod kernel_log;
mod load_config;
pub mod logging;
pub mod memory;
mod pace;
mod reload;
mod rights;
mod rules;
mod session;
mod stacks;
mod task;
mod unwind;
mod view;
mod watch;
mod web;
mod workloads;

use axum::Router;
use std::convert::Infallible;
use std::io::PipeWriter;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

use thiserror::Error;
use tokio::runtime::Runtime;

use crate::capture::rules::engine::RuleEngine;
use crate::config::SourceArgs;
use crate::config::compile::{self, Compiled, Target};
use crate::config::diagnostics::{log_diagnostics, print_diagnostics};
use crate::config::files::diag::Diagnostic;
use crate::config::files::{AgentConfig, Choice};
use crate::config::plan::ProbePlan;
use crate::kernel::hooks::entry::EntryCost;
use crate::kernel::load::Loader;
use crate::kernel::load::Shared;
use crate::kernel::tracefs::Tracefs;
use crate::kernel::{detect, instance, parallel, sys};
use crate::kubernetes;
use crate::kubernetes::other_nodes::OtherNodes;
use crate::kubernetes::probe_controller;
use crate::metrics::events::exemplars::Exemplars;
use crate::metrics::events::tail::Tail;
use crate::metrics::labels::Names;
use crate::metrics::telemetry::{self, Observed, Telemetry, WorkloadsUse};
use crate::metrics::workload_names::WorkloadNames;
use crate::probe::lock::{NamesLock, ProbeLock, ScrapeLock};
use crate::probe::status::{NodeStatus, Status};
use crate::probe::{Probe, Tried, lock};
use captures::CaptureDeps;
pub use endpoints::{
    Captures, Endpoints, Exposition, ProfileError, ProfileRequest, Reload, ReloadRefused, StacksStatus,
};
use events::Sink;
use exporters::Exporters;
use exports::Exports;
pub use history::{HistoryOff, HistoryStore, Recorded};
pub use in_process::{InProcess, InProcessError};
use kstrobe_export::reading::{PackedFamily, Reading};
use kstrobe_export::snapshot::{Descriptor, Exemplar, Family, Moment, Snapshot};
use kstrobe_export::{Form, Gone, KeptBytes};
use kstrobe_web::hosts::Name;
use kstrobe_web::systemd::{News, notify};
use load_config::{LoadOutcome, LoadedConfig};
use logging::Level;
use memory::Need;
pub use session::{Account, Next, Session, SessionError, Totals};
pub use stacks::{RecordError, Recording, record};
pub use view::view;

/// Options of `kstrobe run`.
#[derive(Debug)]
pub struct Options {
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
    pub events: Option<String>,
    pub log_level: Option<String>,
    /// `--log.format json`
    pub log_json: Option<bool>,
    /// `--kubernetes.custom-resources`
    pub custom_resources: bool,
    /// Files of the cluster's `Probe` objects for this node.
    pub handed: probe_controller::Files,
}

/// A probe that scrapes and housekeeping share.
type SharedProbe = Arc<ProbeLock>;
/// Options of the web server.
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
    /// A reload replaces the list: clone it for each pass.
    probes: RwLock<Arc<[SharedProbe]>>,
    /// What programs of all probes share.
    shared: Shared,
    entry_cost: EntryCost,
    names: NamesLock,
    telemetry: Telemetry,
    scrape_lock: ScrapeLock,
    /// Requests for walks of iterators.
    iter_trigger: iterate::IterTrigger,
    captures: RwLock<Captures>,
    /// Changes for the thread that writes single events.
    events: Mutex<events::Change>,
    /// Wakes that thread, once there is one.
    events_wake: Mutex<Option<PipeWriter>>,
    /// What threads that look at intervals wait by.
    pace: Arc<pace::Pace>,
    config_status: Mutex<ConfigStatus>,
    /// What probes without a budget of their own may cost together, in millionths of one CPU's time.
    budget_ppm: AtomicU64,
    /// Populated buckets of a native histogram; 0 for no limit.
    native_bucket_limit: AtomicUsize,
    /// Counters of the web server.
    web: Arc<kstrobe_web::Counters>,
    /// Queues and totals of exporters.
    exports: Arc<Exports>,
    exemplars: Mutex<Exemplars>,
    /// Packed parts of expositions that the next one may have again.
    kept: KeptBytes,
    /// Workload names by cgroup id.
    workload_names: Arc<WorkloadNames>,
    /// Events for the workloads thread.
    workloads: workloads::EventSender,
    /// Its last statistics.
    workloads_use: Mutex<Option<WorkloadsUse>>,
    /// Counters of requests to Kubernetes.
    kubernetes: Arc<kstrobe_kube::Counters>,
    /// The node's name, for titles of profiles.
    node: Mutex<String>,
    /// Serialises the symbolisation of profiles.
    resolving: Mutex<()>,
    /// What metrics were in the last minutes.
    history: Arc<HistoryStore>,
    /// The readings from which the next second of it is made.
    sampler: Mutex<history::Sampler>,
}

/// Problems of the configuration, for the status page.
#[derive(Debug, Default)]
struct ConfigStatus {
    /// Mistakes in files: a probe that cannot be parsed has no status of its own.
    mistakes: Vec<String>,
    /// Why the last reload was refused, if it was.
    refused: Vec<String>,
}

/// How long the removal of ftrace sessions may take at the end.
const SESSIONS_END: Duration = Duration::from_secs(5);

/// Runs until SIGINT or SIGTERM. `router` makes the routes from the endpoints.
pub fn run(options: Options, router: fn(Endpoints) -> Router) -> ExitCode {
    let mut outcome = load_config::read(&options, None);
    let Some(loaded) = outcome.loaded.take() else {
        print_diagnostics(&outcome.diagnostics);
        return ExitCode::from(1);
    };
    let (level, json) = loaded.log(&options);
    let level = match logging::start(level, json) {
        Ok(level) => level,
        Err(e) => {
            eprintln!("error: {e}");
            return ExitCode::from(2);
        }
    };
    log_diagnostics(&outcome.diagnostics);
    let sink = match Sink::open(loaded.events(&options)) {
        Ok(sink) => sink,
        Err(e) => {
            eprintln!("error: {e}");
            return ExitCode::from(1);
        }
    };
    // Before there are threads: systemd's sockets are read from the environment, which is then changed.
    let bound = match web::open(loaded.listen(&options), &options.web) {
        Ok(bound) => bound,
        Err(code) => return code,
    };
    let Err(e) = serve(options, router, bound, loaded, outcome, sink, level);
    eprintln!("error: {e}");
    ExitCode::from(1)
}

/// Why the agent does not run.
#[derive(Debug, Error)]
enum ServeError {
    /// Threads, signals and sockets.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The process lacks the rights for every probe.
    #[error("{0}")]
    Rights(String),
}

/// Builds the agent, spawns its tasks and serves until SIGINT or SIGTERM, which end the process here.
fn serve(
    options: Options,
    router: fn(Endpoints) -> Router,
    bound: web::Listeners,
    loaded: LoadedConfig,
    outcome: LoadOutcome,
    sink: Sink,
    level: Level,
) -> Result<Infallible, ServeError> {
    let web::Listeners { listeners, source } = bound;
    let addresses: Vec<SocketAddr> = listeners.iter().map(TcpListener::local_addr).collect::<Result<_, _>>()?;
    // Two threads serve any scraper; scrapes themselves run on blocking threads.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    // Handle signals before probes are attached, so that a signal then ends the agent in good order.
    let stop = runtime.block_on(async { stop_signal() })?;
    let (commands, received) = channel();
    runtime.block_on(async { reload_signal(commands.clone()) })?;

    let history = Arc::new(HistoryStore::new(&loaded.agent.history));
    let deps = CaptureDeps { addresses, source: source.clone(), exports: Arc::default(), history: history.clone() };
    let (app, events) = build(&options, &loaded, &outcome, &deps)?;
    let tail = Arc::new(Tail::new(loaded.slow(), loaded.agent.kept_events));

    let tasks = spawn(&app, &loaded, &tail, sink, events, &runtime)?;
    cluster::start(&app, &options, &loaded.agent, &commands, runtime.handle());
    let other_nodes = OtherNodes::find(&loaded.agent, options.custom_resources);
    let reload = Reload { open: options.lifecycle, ask: Box::new(move || reload::request(&commands, "a client asks")) };
    let most_requests = options.web.most_requests;
    let endpoints =
        Endpoints { other_nodes, most_requests, ..endpoints(&app, tail.clone(), reload, &options.web.telemetry_path) };
    let hosts = kstrobe_web::Hosts::of_machine(options.web.hosts.clone());
    let started = reload::Started::new(&loaded.agent, loaded.listen(&options), loaded.log(&options).1);
    let exporters = tasks.exporters.clone();
    let context =
        reload::ReloadContext { app: app.clone(), options, level, tail: tail.clone(), deps, exporters, started };
    reload::start(context, received, outcome.seen, outcome.directory)?;
    drop(loaded);

    let tls = source.settings().tls.is_some();
    for l in &listeners {
        tracing::info!(address = %l.local_addr()?, tls, "listening");
    }
    let own_credentials = Some(own_credentials(app.clone()));
    let (router, limits) = (router(endpoints), limits());
    let server = kstrobe_web::Server { listeners, router, config: source, limits, hosts, own_credentials };
    notify(News::Ready);
    runtime.spawn(web::stay_alive());
    let served = runtime.block_on(server.run(async move {
        stop.await;
        notify(News::Stopping);
        // Clients that follow events or seconds would keep the server open.
        tail.close();
        history.close();
    }));

    drain(app, tasks, &runtime);
    served?;
    tracing::info!("stopped");
    // With the process the kernel frees programs, maps and links. Detaching them one by one, and waiting for busy threads,
    // would take a busy machine longer than systemd and the kubelet wait.
    std::process::exit(0)
}

/// Starts the probes. Fails where none can run for want of rights.
fn build(
    options: &Options,
    loaded: &LoadedConfig,
    outcome: &LoadOutcome,
    deps: &CaptureDeps,
) -> Result<(Arc<App>, Receiver<workloads::Event>), ServeError> {
    let captures = captures::start(&loaded.agent, &loaded.plans, deps);
    let (sender, events) = workloads::event_channel();
    let btf = options.source.btf.as_deref();
    if loaded.plans.is_empty() {
        tracing::warn!("no probe is enabled: there is nothing to measure (`kstrobe list` shows what there is)");
    }
    let begun = Instant::now();
    let target = compile::look(&loaded.plans, btf);
    tracing::info!(ms = milliseconds(begun), "looked at the kernel");
    let app = Arc::new(App::start(&target, &loaded.plans, &loaded.agent, btf, captures, deps, sender));
    match rights::lacking(&app) {
        Some(lacking) if lacking.all => return Err(ServeError::Rights(lacking.text)),
        Some(lacking) => tracing::error!(reason = lacking.text, "not all probes run"),
        None => {}
    }
    let mistakes = outcome.diagnostics.iter().filter(|d| d.is_error()).map(Diagnostic::one_line);
    let mistakes: Vec<String> = mistakes.collect();
    app.configured(mistakes.len(), loaded);
    lock(&app.config_status).mistakes = mistakes;
    Ok((app, events))
}

/// Tasks that [`drain`] waits for. All others end with the process.
struct Tasks {
    reader: events::Reader,
    exporters: Arc<Exporters>,
}

fn spawn(
    app: &Arc<App>,
    loaded: &LoadedConfig,
    tail: &Arc<Tail>,
    sink: Sink,
    events: Receiver<workloads::Event>,
    runtime: &Runtime,
) -> Result<Tasks, ServeError> {
    housekeeping::start(app.clone())?;
    budgets::start(app.clone(), budgets::Rest::Allowed)?;
    history::start(app.clone())?;
    let reader = events::start(app.clone(), tail.clone(), sink)?;
    iterate::start(app)?;
    workloads::start(app, events, &loaded.agent, runtime.handle())?;
    unwind::start(app)?;
    kernel_log::start(app.history.clone())?;
    rules::start(app)?;
    let (receivers, unsendable) = crate::config::exporters::receivers(&loaded.agent.exporters);
    unsendable.iter().for_each(|reason| tracing::error!("{reason}"));
    let exporters = Arc::new(Exporters::new(app.clone(), runtime.handle().clone()));
    exporters.begin(receivers);
    Ok(Tasks { reader, exporters })
}

/// Ends what would be lost with the process: captures, single events, reports, and sessions that the kernel would keep.
fn drain(app: Arc<App>, tasks: Tasks, runtime: &Runtime) {
    captures::close(&app.captures(), None);
    tasks.reader.stop();
    // After the captures, which exporters send, and before the probes end, which the last report reads.
    runtime.block_on(tasks.exporters.stop());
    end_sessions(app);
}

/// Requests with the token of captures, which need no other credentials.
fn own_credentials(app: Arc<App>) -> kstrobe_web::OwnCredentials {
    Arc::new(move |headers| app.captures().access.is_token(headers))
}

/// Removes the ftrace sessions of probes, which outlive the process. A removal that takes too long is left to the next start.
fn end_sessions(app: Arc<App>) {
    let (end, ended) = channel::<()>();
    std::thread::spawn(move || {
        app.probes().iter().for_each(|probe| probe.lock().end_session());
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

fn endpoints(app: &Arc<App>, events: Arc<Tail>, reload: Reload, telemetry_path: &str) -> Endpoints {
    let [read, written, listed, profiled, stacks, captures] = std::array::from_fn(|_| app.clone());
    Endpoints {
        read: Box::new(move || read.read()),
        write: Box::new(move |exposition, send| written.write(exposition, send)),
        status: Box::new(move || listed.status()),
        stacks: Box::new(move || stacks.stacks()),
        profile: Box::new(move |request| profiled.profile_as(request)),
        events,
        history: app.history.clone(),
        captures: Box::new(move || captures.captures()),
        other_nodes: None,
        reload,
        version: env!("CARGO_PKG_VERSION").into(),
        telemetry_path: telemetry_path.to_owned(),
        most_requests: 0,
    }
}

impl App {
    /// Compiles the probes for this kernel and starts them. `btf` is the file that the target's types come from, by default the kernel's own.
    fn start(
        target: &Target,
        plans: &[ProbePlan],
        agent: &AgentConfig,
        btf: Option<&Path>,
        captures: Captures,
        deps: &CaptureDeps,
        workloads: workloads::EventSender,
    ) -> App {
        let workload_names = Arc::<WorkloadNames>::default();
        sys::raise_open_files();
        sweep();
        tracing::info!(kernel = target.release, cpus = target.cpus, btf = target.btf.is_some(), "kernel");
        if let Some(reason) = detect::without_btf(target) {
            tracing::error!(reason, "no kernel types: most probes cannot run");
        }
        if let Some(reason) = target.btf.as_ref().and_then(detect::without_init) {
            tracing::warn!("{reason}");
        }
        let shared = Shared::default();
        // Before any program counts the calls that it makes.
        let has_barriers =
            target.btf.as_ref().is_some_and(|types| detect::has_barriers_at_system_calls(types, &detect::release()));
        let entry_cost = EntryCost::measure(has_barriers).unwrap_or(EntryCost::USUAL);
        let EntryCost { enter, exit, other } = entry_cost;
        tracing::debug!(enter_ns = enter, exit_ns = exit, other_ns = other, "cost of reaching a program");
        let begun = Instant::now();
        let compiled = parallel::map(plans.iter().collect(), || (), |(), plan| compile::probe(plan, target));
        let compile_ms = milliseconds(begun);
        // Before the first map is made: the kernel kills a process above its limit without a message of the agent's.
        let need = Need::of(compiled.iter().filter_map(Compiled::artifact), agent);
        if let Some(reason) = memory::limit().and_then(|limit| need.exceeds(&limit)) {
            tracing::error!(reason, "too little memory");
        }
        let begun = Instant::now();
        let load = |loader: &mut Loader, (plan, compiled): (&ProbePlan, Compiled)| {
            let begun = Instant::now();
            let tried = Tried::load(plan, &compiled, loader);
            tracing::debug!(probe = plan.meta().name, ms = milliseconds(begun), "loaded");
            (compiled, tried)
        };
        // Dropped at the end of the start: it holds the kernel's BTF, some 10 MB.
        let new_loader = || Loader::for_target(shared.clone(), target, btf);
        let loaded = parallel::map(plans.iter().zip(compiled).collect(), new_loader, load);
        let load_ms = milliseconds(begun);
        let begun = Instant::now();
        let batch = shared.hooks.batch();
        let start = |loader: &mut Loader, (at, plan, loaded): (usize, &ProbePlan, (Compiled, Tried))| {
            let begun = Instant::now();
            let probe = Probe::start_tried(plan, loaded, target, loader, btf);
            tracing::debug!(probe = plan.meta().name, ms = milliseconds(begun), "attached");
            (at, Arc::new(ProbeLock::new(probe)))
        };
        let mut in_order: Vec<_> =
            plans.iter().zip(loaded).enumerate().map(|(at, (plan, loaded))| (at, plan, loaded)).collect();
        // Programs of few system calls come last: other calls then end before the entries that these fill.
        in_order.sort_by_key(|(_, _, (compiled, _))| !compiled.measures_all_calls());
        // Symbols of their files take long to read, and their programs share no hook with others.
        let (of_files, others): (Vec<_>, Vec<_>) =
            in_order.into_iter().partition(|(_, _, (compiled, _))| compiled.is_of_files());
        let mut loader = new_loader();
        let mut probes: Vec<_> = others.into_iter().map(|probe| start(&mut loader, probe)).collect();
        probes.extend(parallel::map(of_files, new_loader, start));
        drop(batch);
        probes.sort_by_key(|(at, _)| *at);
        let probes = probes.into_iter().map(|(_, probe)| probe).collect();
        tracing::info!(compile_ms, load_ms, attach_ms = milliseconds(begun), "probes started");
        let app = App {
            shared,
            entry_cost,
            probes: RwLock::default(),
            names: NamesLock::new(Names::new().with_workload_names(workload_names.clone())),
            telemetry: Telemetry::new(env!("CARGO_PKG_VERSION"), None),
            scrape_lock: ScrapeLock::default(),
            iter_trigger: iterate::IterTrigger::default(),
            captures: RwLock::new(captures),
            events: Mutex::default(),
            events_wake: Mutex::default(),
            pace: deps.history.pace.clone(),
            config_status: Mutex::default(),
            budget_ppm: AtomicU64::default(),
            native_bucket_limit: AtomicUsize::default(),
            web: deps.source.counters().clone(),
            exports: deps.exports.clone(),
            exemplars: Mutex::default(),
            kept: KeptBytes::default(),
            workload_names,
            workloads,
            workloads_use: Mutex::default(),
            kubernetes: Arc::default(),
            node: Mutex::new(kubernetes::node_or_host(&Default::default())),
            resolving: Mutex::default(),
            history: deps.history.clone(),
            sampler: Mutex::default(),
        };
        app.replace_probes(probes, |_| ());
        app
    }

    /// Applies the settings of a configuration that is now in force.
    fn configured(&self, mistakes: usize, loaded: &LoadedConfig) {
        self.telemetry.configured(mistakes, &loaded.hash);
        *lock(&self.node) = kubernetes::node_or_host(&loaded.agent.kubernetes);
        self.set_budget(&loaded.agent);
        self.native_bucket_limit.store(loaded.agent.native_bucket_limit, Relaxed);
        self.history.configure(&loaded.agent.history);
        self.workload_names.set_timeouts(workloads::Pace::of(&loaded.agent).timeouts());
    }

    fn set_budget(&self, agent: &AgentConfig) {
        let cpus = u64::try_from(detect::online_cpus().len()).unwrap_or(1);
        self.budget_ppm.store(agent.budget_ppm.saturating_mul(cpus), Relaxed);
    }

    fn probes(&self) -> Arc<[SharedProbe]> {
        self.probes.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the list of probes. A full read clones the list under the lock of `names`, so that no read of the old list
    /// is under way when this returns. `also` runs under that lock, too.
    fn replace_probes(&self, probes: Vec<SharedProbe>, also: impl FnOnce(&mut Names)) {
        let iterated = probes.iter().any(|probe| probe.lock().iterator().is_some());
        let mut names = self.names.lock();
        *self.probes.write().unwrap_or_else(PoisonError::into_inner) = probes.into();
        self.iter_trigger.set_active(iterated);
        self.workloads.send(workloads::Event::Probes);
        also(&mut names);
        drop(names);
        self.pace.notify();
    }

    fn captures(&self) -> Captures {
        self.captures.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn rules(&self) -> Option<Arc<RuleEngine>> {
        self.captures().rules.ok()
    }

    /// Writes an exposition of a reading, and counts it.
    fn write(&self, exposition: &Exposition<'_>, send: &mut kstrobe_export::Send<'_>) -> Result<(), Gone> {
        let Exposition { reading, late, format, gzip } = *exposition;
        let unfinished = self.telemetry.exposition();
        late.inspect(|age| self.telemetry.scraped_late(*age));
        let (begun, mut sending) = (Instant::now(), Duration::ZERO);
        let own = self.telemetry.encode(format);
        let age = telemetry::age(format, late.unwrap_or_default());
        let own = [own.strip_suffix(kstrobe_export::END).unwrap_or(&own), &age].concat();
        let form = Form { format, native_bucket_limit: self.native_bucket_limit.load(Relaxed) };
        let mut send = |piece| {
            let begun = Instant::now();
            let sent = send(piece);
            sending += begun.elapsed();
            sent
        };
        let written = kstrobe_export::write(reading, &own, form, gzip.then_some(&self.kept), &mut send);
        if written.is_ok() && late.is_none() {
            self.telemetry.scraped(reading.took + begun.elapsed().saturating_sub(sending));
        }
        unfinished.ends();
        written
    }

    /// Reads all probes for an exposition.
    fn read(&self) -> Reading {
        let begun = Instant::now();
        let (at, families, exemplars) =
            self.read_with(Probe::read, |family: &PackedFamily| (&*family.about, &*family.columns));
        Reading { at, took: begun.elapsed(), families, exemplars }
    }

    /// Reads all probes for those who need all values at once.
    fn snapshot(&self) -> (Snapshot, Vec<Exemplar>) {
        let (at, families, exemplars) =
            self.read_with(Probe::scrape, |family: &Family| (&*family.about, &*family.columns));
        (Snapshot { at, families }, exemplars)
    }

    /// Reads all probes, and observes the agent's own metrics at the same moment.
    fn read_with<T>(
        &self,
        read: impl Fn(&mut Probe, &mut Names, Moment, &mut Observed, &Telemetry) -> Vec<T>,
        about: impl Fn(&T) -> (&Descriptor, &[u32]),
    ) -> (SystemTime, Vec<T>, Vec<Exemplar>) {
        self.end_rest();
        self.iter_trigger.refresh();
        // Two concurrent reads would publish in any order, and the older counts could come last.
        let _scrape = self.scrape_lock.lock();
        let now = Moment::now();
        let mut families = Vec::new();
        let mut observed = Observed::default();
        {
            let mut names = self.names.lock();
            for probe in self.probes().iter() {
                families.append(&mut read(&mut probe.lock(), &mut names, now, &mut observed, &self.telemetry));
            }
        }
        let mut exemplars = Vec::new();
        if let Some(rules) = self.rules() {
            observed.captures = Some(rules.service().usage());
            observed.rules = rules.counts();
            exemplars = rules.exemplars();
        }
        observed.web = Some(self.web.counts());
        exemplars.append(&mut lock(&self.exemplars).of(families.iter().map(about)));
        observed.workloads = lock(&self.workloads_use).clone();
        observed.kubernetes = self.kubernetes.counts();
        observed.unwind = self.shared.unwinder.current().map(|tables| unwind::used(&tables));
        observed.exports = self.exports.usage();
        observed.history = self.history.usage();
        observed.history_disk = self.history.disk_usage();
        self.telemetry.observe(observed);
        (now.wall, families, exemplars)
    }

    fn status(&self) -> Status {
        let probes = self.probes().iter().map(|probe| probe.lock().status()).collect();
        let node = NodeStatus {
            name: lock(&self.node).clone(),
            kernel: detect::release(),
            cpus: detect::online_cpus().len(),
            budget_ppm: Some(self.budget_ppm.load(Relaxed)).filter(|ppm| *ppm > 0),
        };
        let status = lock(&self.config_status);
        let history = self.history.stopped().unwrap_or_default();
        Status { node, probes, mistakes: status.mistakes.clone(), refused: status.refused.clone(), history }
    }
}

fn milliseconds(since: Instant) -> u64 {
    since.elapsed().as_millis().try_into().unwrap_or(u64::MAX)
}

/// Removes tracefs instances of agents that were killed. Does nothing without tracefs.
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

/// Makes SIGHUP reload the configuration.
fn reload_signal(commands: reload::CommandSender) -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut hangup = signal(SignalKind::hangup())?;
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            if commands.send(reload::Command::Reload("SIGHUP", None)).is_err() {
                return;
            }
        }
    });
    Ok(())
}
