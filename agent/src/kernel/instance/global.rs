//! The global buffer, and settings that exist only once: taken when they are unused, and put back exactly as they were found.
//!
//! Before 6.11 function_graph runs in the global buffer alone; later its roots and depth are still settings of all. What was found
//! is in a file before anything is changed, so that the next start can put it back when this process is killed.

use super::Swept;
use crate::kernel::sys;
use crate::kernel::tracefs::Tracefs;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

const FOLDER: &str = "/run/kstrobe";
const LOCK: &str = "/run/kstrobe/global-trace.lock";
const STATE: &str = "/run/kstrobe/global-trace.json";

/// Files that say how calls are followed.
const GRAPH: [&str; 3] = ["set_graph_function", "set_graph_notrace", "max_graph_depth"];
/// The other files that a recording may change, besides `options`, the buffers' sizes and what concerns single events.
const BUFFER: [&str; 10] = [
    "trace_clock",
    "buffer_percent",
    "set_event_pid",
    "set_event_notrace_pid",
    "set_ftrace_pid",
    "set_ftrace_notrace_pid",
    "set_ftrace_filter",
    "set_ftrace_notrace",
    "tracing_cpumask",
    "tracing_thresh",
];

/// How much is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Part {
    /// The buffer with all its settings.
    Whole,
    /// Roots and depth of function_graph.
    Graph,
}

/// Why it cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum TakeError {
    /// Somebody uses it.
    #[error("the kernel's global trace is in use: {}", .0.join("; "))]
    InUse(Vec<String>),
    /// It cannot be seen, saved or changed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// What was taken. Dropping it puts it back.
#[derive(Debug)]
pub struct Global {
    tracefs: Arc<Tracefs>,
    state: Mutex<State>,
    _lock: Flock<File>,
}

/// What is to be put back, as the state file has it.
#[derive(Debug, Serialize, Deserialize)]
struct State {
    boot_id: String,
    pid: u32,
    part: Part,
    found: Vec<Setting>,
    touched: Vec<Touched>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Setting {
    file: String,
    text: String,
}

/// An event that had neither filter nor trigger, and was switched off.
#[derive(Debug, Serialize, Deserialize)]
struct Touched {
    event: String,
    triggers: Vec<String>,
}

impl Global {
    /// Takes it and saves what is found.
    pub fn take(tracefs: &Arc<Tracefs>, part: Part) -> Result<Global, TakeError> {
        std::fs::create_dir_all(FOLDER).map_err(|e| said(FOLDER, "cannot be made", &e))?;
        let Some(lock) = lock()? else {
            let owner = std::fs::read_to_string(LOCK).unwrap_or_default();
            return Err(TakeError::InUse(vec![format!("{} records in it", owner.trim())]));
        };
        if let Some(left) = left()? {
            put_back(tracefs, &left)?;
        }
        let uses = uses(tracefs, part)?;
        if !uses.is_empty() {
            return Err(TakeError::InUse(uses));
        }
        let state = State {
            boot_id: sys::boot_id()?,
            pid: std::process::id(),
            part,
            found: found(tracefs, part)?,
            touched: vec![],
        };
        state.save()?;
        lock.set_len(0)?;
        (&*lock).write_all(format!("kstrobe (process {})\n", state.pid).as_bytes())?;
        Ok(Global { tracefs: tracefs.clone(), state: Mutex::new(state), _lock: lock })
    }

    /// See [`super::Instance::touch_event`].
    pub fn touch_event(&self, system: &str, event: &str, triggers: &[String]) -> Result<(), TakeError> {
        let path = format!("events/{system}/{event}");
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match state.touched.iter_mut().find(|touched| touched.event == path) {
            Some(touched) => touched.triggers.extend_from_slice(triggers),
            None => {
                let says = |file: &str| self.tracefs.read(&format!("{path}/{file}"));
                let has_triggers = says("trigger")?.lines().any(|line| !line.starts_with('#'));
                if says("filter")?.trim() != "none" || has_triggers {
                    return Err(TakeError::InUse(vec![format!("{system}:{event} has a filter or triggers")]));
                }
                state.touched.push(Touched { event: path, triggers: triggers.to_vec() });
            }
        }
        Ok(state.save()?)
    }
}

impl Drop for Global {
    fn drop(&mut self) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = put_back(&self.tracefs, &state) {
            tracing::warn!(reason = %error, "the kernel's global trace is not as it was found");
        }
    }
}

impl State {
    /// Written beside it and renamed: the file is whole or not there.
    fn save(&self) -> io::Result<()> {
        let new = format!("{STATE}.new");
        let written = serde_json::to_vec(self).map_err(io::Error::other).and_then(|text| std::fs::write(&new, text));
        written.and_then(|()| std::fs::rename(&new, STATE)).map_err(|e| said(STATE, "cannot be written", &e))
    }
}

/// Puts back what a dead owner left; `None` when there is nothing to do.
pub(super) fn restore_left(tracefs: &Tracefs) -> Option<Swept> {
    if !Path::new(STATE).exists() {
        return None;
    }
    let (what, result) = match lock() {
        Ok(None) => return None,
        Ok(Some(_lock)) => match left() {
            Ok(None) => return None,
            Ok(Some(left)) => (format!(" of process {}", left.pid), put_back(tracefs, &left)),
            Err(error) => (String::new(), Err(error)),
        },
        Err(error) => (String::new(), Err(error)),
    };
    Some(Swept { what: format!("settings of the global trace{what}"), result })
}

/// `None` when somebody has it.
fn lock() -> io::Result<Option<Flock<File>>> {
    let mut options = File::options();
    let file = options.read(true).write(true).create(true).truncate(false).open(LOCK);
    match Flock::lock(file.map_err(|e| said(LOCK, "cannot be opened", &e))?, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, nix::errno::Errno::EWOULDBLOCK)) => Ok(None),
        Err((_, errno)) => Err(said(LOCK, "cannot be locked", &errno.into())),
    }
}

/// What an owner left that died since the machine's start.
fn left() -> io::Result<Option<State>> {
    let text = match std::fs::read(STATE) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text?,
    };
    let state: State =
        serde_json::from_slice(&text).map_err(|e| said(STATE, "cannot be understood: remove it", &e.into()))?;
    if state.boot_id == sys::boot_id()? {
        return Ok(Some(state));
    }
    std::fs::remove_file(STATE)?;
    Ok(None)
}

/// Who or what uses it, in words.
fn uses(tracefs: &Tracefs, part: Part) -> io::Result<Vec<String>> {
    let mut uses = Vec::new();
    let top = tracefs.read("current_tracer")?;
    match part {
        Part::Whole => {
            if top.trim() != "nop" {
                uses.push(format!("current_tracer is {}", top.trim()));
            }
            let events = tracefs.read("set_event")?;
            match events.lines().collect::<Vec<_>>()[..] {
                [] => {}
                [one] => uses.push(format!("event {one} is enabled")),
                [first, ref rest @ ..] => uses.push(format!("event {first} and {} more are enabled", rest.len())),
            }
            let commands = tracefs.read("set_ftrace_filter").unwrap_or_default();
            if let Some(command) = commands.lines().find(|line| line.contains(':') && !line.starts_with('#')) {
                uses.push(format!("set_ftrace_filter has `{command}`"));
            }
            let mut records = 0;
            for cpu in tracefs.list("per_cpu")? {
                let stats = tracefs.read(&format!("per_cpu/{cpu}/stats"))?;
                records += kstrobe_ftrace::trace::CpuStats::parse(&stats).entries;
            }
            if records > 0 {
                uses.push(format!("{records} records in `trace` were not read; writing to `trace` throws them away"));
            }
            uses.extend(readers());
        }
        Part::Graph => {
            let others = tracefs.list(super::INSTANCES)?.into_iter();
            let tracers = others.map(|name| format!("{}/{name}/current_tracer", super::INSTANCES));
            for file in std::iter::once("current_tracer".to_owned()).chain(tracers) {
                // An instance may be gone since it was listed.
                if tracefs.read(&file).is_ok_and(|tracer| tracer.trim() == "function_graph") {
                    uses.push(format!("{file} is function_graph"));
                }
            }
            for setting in found(tracefs, part)? {
                if !matches!(written(&setting).as_str(), "" | "0") {
                    uses.push(format!("{} is set", setting.file));
                }
            }
        }
    }
    Ok(uses)
}

/// Processes that wait for records of the global buffer, as far as they can be seen.
fn readers() -> Vec<String> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let reads = |process: &std::fs::DirEntry| {
        let files = std::fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        let mut places = files.filter_map(|file| std::fs::read_link(file.path()).ok());
        places.any(|place| {
            let place = place.to_string_lossy();
            (place.ends_with("/trace_pipe") || place.ends_with("/trace_pipe_raw")) && !place.contains("instances/")
        })
    };
    let numbers = processes.filter(|process| process.file_name().to_string_lossy().parse::<u32>().is_ok());
    let named = |process: std::fs::DirEntry| {
        let comm = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
        format!("process {} ({}) reads trace_pipe", process.file_name().to_string_lossy(), comm.trim())
    };
    numbers.filter(reads).map(named).collect()
}

/// All settings of a part, as they are.
fn found(tracefs: &Tracefs, part: Part) -> io::Result<Vec<Setting>> {
    let mut files: Vec<String> = GRAPH.map(str::to_owned).into();
    if part == Part::Whole {
        files.extend(BUFFER.map(str::to_owned));
        files.extend(tracefs.list("options")?.into_iter().map(|name| format!("options/{name}")));
        files.extend(tracefs.list("per_cpu")?.into_iter().map(|cpu| format!("per_cpu/{cpu}/buffer_size_kb")));
        files.push("tracing_on".into());
    }
    files.retain(|file| tracefs.exists(file));
    // What cannot be read (function tracing that the kernel switched off after a fault) cannot be changed either.
    Ok(files.into_iter().filter_map(|file| Some(Setting { text: tracefs.read(&file).ok()?, file })).collect())
}

/// What is written into a file so that it says the same again.
fn written(setting: &Setting) -> String {
    let text = setting.text.trim();
    match setting.file.as_str() {
        "trace_clock" => {
            let set = text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
            set.unwrap_or("local").to_owned()
        }
        // `7 (expanded: 1408)`: no memory yet, and the size it gets at the first use. That cannot be undone, and is the size
        // that the next user expects.
        file if file.ends_with("/buffer_size_kb") => match text.split_once("(expanded: ") {
            Some((_, size)) => size.trim_end_matches(')').to_owned(),
            None => text.to_owned(),
        },
        file if file.starts_with("set_") => {
            let names = text.lines().filter(|line| !line.starts_with('#') && !line.starts_with("no pid"));
            // Functions of modules are followed by the module's name.
            names.filter_map(|line| line.split_whitespace().next()).collect::<Vec<_>>().join("\n")
        }
        _ => text.to_owned(),
    }
}

/// Puts all back and removes the state file. What does not become as it was is in the error; the file stays then.
fn put_back(tracefs: &Tracefs, state: &State) -> io::Result<()> {
    let mut wrong = Vec::new();
    let mut write = |file: &str, text: &str| {
        if let Err(error) = tracefs.write(file, text) {
            wrong.push(format!("{file} does not take `{text}` ({error})"));
        }
    };
    if state.part == Part::Whole {
        write("tracing_on", "0");
        write("current_tracer", "nop");
        write("set_event", "");
        for touched in &state.touched {
            for trigger in touched.triggers.iter().rev() {
                // One that was never set cannot be removed.
                let _ = tracefs.write(&format!("{}/trigger", touched.event), &format!("!{trigger}"));
            }
            write(&format!("{}/filter", touched.event), "0");
        }
        write("trace", "");
    }
    for setting in &state.found {
        if tracefs.read(&setting.file).ok().as_ref() != Some(&setting.text) {
            write(&setting.file, &written(setting));
        }
    }
    for setting in &state.found {
        let now = tracefs.read(&setting.file).unwrap_or_default();
        if written(&Setting { file: setting.file.clone(), text: now.clone() }) != written(setting) {
            wrong.push(format!("{} says `{}`, not `{}`", setting.file, now.trim(), setting.text.trim()));
        }
    }
    if wrong.is_empty() {
        return std::fs::remove_file(STATE);
    }
    Err(io::Error::other(format!("{}; it is tried again until {STATE} is removed", wrong.join("; "))))
}

fn said(path: &str, what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{path} {what} ({error})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_written_as_they_were_found() {
        let cases = [
            ("trace_clock", "local global [mono] boot\n", "mono"),
            ("per_cpu/cpu0/buffer_size_kb", "7 (expanded: 1408)\n", "1408"),
            ("per_cpu/cpu0/buffer_size_kb", "64\n", "64"),
            ("set_ftrace_filter", "#### all functions enabled ####\n", ""),
            ("set_graph_function", "tcp_v4_rcv\nveth_xmit [veth]\n", "tcp_v4_rcv\nveth_xmit"),
            ("set_ftrace_pid", "no pid\n", ""),
            ("set_event_pid", "12\n13\n", "12\n13"),
            ("options/stacktrace", "0\n", "0"),
            ("tracing_cpumask", "ff,ffffffff\n", "ff,ffffffff"),
        ];
        for (file, text, expected) in cases {
            assert_eq!(written(&Setting { file: file.into(), text: text.into() }), expected, "{file}");
        }
    }
}
