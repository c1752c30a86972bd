//! Why there is no recording.

use super::format::Format;
use super::report::CaptureError;
use super::unfinished::RescueError;
use crate::kernel::instance::global::TakeError;
use kstrobe_ftrace::dat::DatError;
use std::io;
use std::path::PathBuf;

/// The error of a recording, or of its conversion to another format.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The control groups of its pods are not known.
    #[error("{0}")]
    Pods(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Another program uses the tracer.
    #[error("{0}. Stop that first; nothing of it was changed")]
    InUse(#[source] TakeError),
    #[error("{0}{hint}", hint = hint(.0))]
    Io(#[from] io::Error),
    #[error("{event}: {setting} is refused: {error}")]
    Event {
        event: String,
        setting: Setting,
        #[source]
        error: io::Error,
    },
    #[error("starting `{program}`: {error}")]
    Start {
        program: String,
        #[source]
        error: io::Error,
    },
    #[error("it was stopped before it began")]
    Stopped,
    #[error("nothing can be written to {}: {error}", file.display())]
    Open {
        file: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("writing {}: {error}", file.display())]
    Write {
        file: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("a capture cannot be stored: {0}")]
    Store(#[source] io::Error),
    #[error("the recording cannot be read: {0}")]
    Read(#[source] io::Error),
    #[error("the recording cannot be read: {0}")]
    Dat(#[from] DatError),
    #[error("the recording cannot be read: {0}")]
    Report(#[from] CaptureError),
    #[error("it cannot be written: {0}")]
    Convert(#[source] io::Error),
    #[error("no thread for a capture: {0}")]
    Thread(#[source] io::Error),
    #[error("the recorder failed: this is an error in kstrobe, please report it with the agent's log")]
    RecorderPanic,
    #[error("the conversion failed, see the agent's log")]
    ConversionPanic,
    #[error(transparent)]
    Rescue(#[from] RescueError),
    /// The engine records nothing.
    #[error("{0}")]
    Absent(&'static str),
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => ": recording needs root, or CAP_SYS_ADMIN and tracefs",
        _ => "",
    }
}

impl From<TakeError> for Error {
    fn from(error: TakeError) -> Error {
        match error {
            TakeError::Io(error) => error.into(),
            in_use => Error::InUse(in_use),
        }
    }
}

/// A setting of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Setting {
    Filter(String),
    Trigger(String),
}

impl std::fmt::Display for Setting {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Setting::Filter(text) => write!(out, "filter `{text}`"),
            Setting::Trigger(text) => write!(out, "trigger `{text}`"),
        }
    }
}

/// What is wrong with a request, on this kernel or on all.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error("nothing to record: say which events (-e) or which tracer (-p)")]
    Nothing,
    #[error("roots and depth of call graphs need `-p function_graph`")]
    NoGraph,
    #[error("functions can be chosen with `-p function` or `-p function_graph` only")]
    NoFunctions,
    #[error(
        "a stack with each function needs `-p function`, and functions that are chosen with -l: with all functions it would bring the \
         machine to a halt"
    )]
    UnboundedStacks,
    #[error("`{0}` is no name of a function, nor a pattern of names")]
    FunctionName(String),
    #[error("no function that can be traced is `{0}` (see available_filter_functions)")]
    NoFunction(String),
    #[error("this kernel has no tracer `{tracer}`; it has {there}")]
    NoTracer { tracer: String, there: String },
    #[error("this kernel has no clock `{clock}`; it has {there}")]
    NoClock { clock: String, there: String },
    #[error("option `{option}` cannot be set by itself: {setter}")]
    OptionOfKey { option: String, setter: &'static str },
    #[error("this kernel has no option `{option}` for this tracer{}", hint.as_ref().map(|near| format!(": did you mean `{near}`?")).unwrap_or_default())]
    NoOption { option: String, hint: Option<String> },
    #[error(
        "{} holds what a killed recorder left: write it with `kstrobe rescue {}`, or remove the folder", folder.display(), file.display()
    )]
    Unfinished { file: PathBuf, folder: PathBuf },
    #[error("a buffer of no size")]
    EmptyBuffer,
    #[error("{kib} KiB for each of {cpus} CPUs is more than half of the free memory: at most {most}")]
    BufferTooLarge { kib: u64, cpus: u64, most: u64 },
    #[error("there is no CPU {0}")]
    NoCpu(u32),
    #[error("no event of this kernel is `{pattern}`{}", like(similar))]
    NoEvent { pattern: String, similar: Vec<String> },
    #[error("the request excludes all events that it names")]
    AllExcluded,
    /// `log` has the lines of the kernel's `error_log`, whose caret points into the setting.
    #[error("{event} does not take the {setting}{}\n  its fields are {}", lines(log), fields.join(", "))]
    Setting { event: String, setting: Setting, log: Vec<String>, fields: Vec<String> },
    #[error("pod `{0}`: its control groups are not known")]
    PodNotLocated(String),
    #[error("`{}` is no control group: it has no cgroup.procs", .0.display())]
    NotACgroup(PathBuf),
    #[error("there is no process or thread {0}")]
    NoProcess(i32),
    #[error("no command was given to restrict the recording to")]
    NoCommand,
    #[error("cannot run `{program}`: {error}")]
    Command {
        program: String,
        #[source]
        error: io::Error,
    },
}

fn like(similar: &[String]) -> String {
    if similar.is_empty() { String::new() } else { format!("; there are {}", similar.join(", ")) }
}

fn lines(log: &[String]) -> String {
    log.iter().map(|line| format!("\n  {line}")).collect()
}

/// Why a capture has no file of a format.
#[derive(Debug, thiserror::Error)]
pub enum NoFile {
    #[error("nothing was recorded")]
    Empty,
    #[error("{0}")]
    Unreadable(#[source] Error),
    #[error("there is no {} of it: {error}", format.name())]
    Conversion {
        format: Format,
        #[source]
        error: Error,
    },
}
