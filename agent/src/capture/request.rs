//! A request for a recording, from the command line, the API or a rule.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// One recording. Lists that are empty do not restrict.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    /// The kernel's tracer; `None` records events only.
    pub tracer: Option<String>,
    /// Events, in the order of the request.
    pub events: Vec<EventRequest>,
    /// Functions of the tracer, globs allowed (`set_ftrace_filter`).
    pub functions: Vec<String>,
    /// Functions to leave out (`set_ftrace_notrace`).
    pub not_functions: Vec<String>,
    /// Functions whose calls are recorded with all that they call (`set_graph_function`).
    pub graph_roots: Vec<String>,
    /// Calls of calls recorded by the function_graph tracer; `None` has no limit.
    pub max_graph_depth: Option<u32>,
    /// A kernel stack with each event.
    pub stacks: bool,
    /// A kernel stack with each function; the kernel's functions must be restricted then.
    pub function_stacks: bool,
    /// Whose work is recorded.
    pub scope: Scope,
    /// CPUs to record; empty: all.
    pub cpus: Vec<u32>,
    /// The clock; `None`: `mono`, which user programs can read too.
    pub clock: Option<String>,
    /// Ring buffer of each CPU in KiB; `None` leaves the choice to the recorder.
    pub buffer_kib: Option<u64>,
    /// Options of tracing, and whether each is on. The others have the kernel's defaults.
    pub options: Vec<(String, bool)>,
    /// When to begin by the wall clock; `None`: as soon as it can. All is set up before.
    pub start_at: Option<SystemTime>,
    /// Duration; `None`: until cancelled, or until the command ends.
    pub duration: Option<Duration>,
    /// Bytes of pages after which recording stops.
    pub max_bytes: Option<u64>,
    /// Keeps only the last of it, until something happens.
    pub flight: Option<Flight>,
}

/// Events of one pattern.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventRequest {
    /// `SYSTEM:EVENT`, `SYSTEM`, `EVENT` or `all`, with globs.
    pub pattern: String,
    /// In the kernel's filter language.
    pub filter: Option<String>,
    /// In the kernel's trigger language, e.g. `traceoff if comm == "mysqld"`.
    pub triggers: Vec<String>,
    /// Leaves out what earlier patterns took in.
    pub exclude: bool,
}

/// Whose work is recorded. Several kinds are added up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Threads; the first thread of a process (its number) stands for all of them.
    pub pids: Vec<i32>,
    /// Threads of these names, globs allowed.
    pub comms: Vec<String>,
    /// Threads in these control groups and those below them.
    pub cgroups: Vec<PathBuf>,
    /// Threads in these pods, `NAMESPACE/NAME` or `NAME`.
    pub pods: Vec<String>,
    /// A command to start, and to stop with.
    pub command: Vec<String>,
    /// Restricts to the command: without this it only says how long.
    pub only_command: bool,
    /// Children of these threads as well.
    pub children: bool,
}

/// Flight recorder: the ring buffer overwrites its oldest records until it is stopped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flight {
    /// Events that end it, each with a filter in the kernel's language.
    pub stop_on: Vec<(String, Option<String>)>,
    /// How much is recorded after such an event.
    pub after: Duration,
}
