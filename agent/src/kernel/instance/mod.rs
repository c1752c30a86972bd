//! A ring buffer of ftrace for one user: an instance of tracefs, or the global buffer where a tracer
//! runs nowhere else.
//!
//! An instance ends with its owner. Whether the owner lives is seen by a lock on the instance's directory, which the kernel
//! releases with the process however it ends, and which holds across containers; process number and start time are in the name
//! for people.

pub mod global;
mod pages;
mod sweep;

use crate::kernel::procfs::Stat;
use crate::kernel::tracefs::Tracefs;
use global::Global;
use kstrobe_ftrace::trace::CpuStats;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use pages::PageReader;
pub use sweep::{Swept, sweep};

const INSTANCES: &str = "instances";

/// Options that change what is recorded, with the kernel's defaults. A new instance takes over most of them from the top-level buffer,
/// and before Linux 7 those of the tracers (from `func_stack_trace` on) are one for all buffers. Not among them is `record-tgid`: to
/// switch it off in one buffer stops it in all.
const OPTIONS: [(&str, &str); 19] = [
    ("stacktrace", "0"),
    ("userstacktrace", "0"),
    ("overwrite", "1"),
    ("record-cmd", "1"),
    ("markers", "1"),
    ("event-fork", "0"),
    ("function-fork", "0"),
    ("function-trace", "1"),
    ("copy_trace_marker", "0"),
    ("disable_on_free", "0"),
    ("pause-on-trace", "0"),
    ("func_stack_trace", "0"),
    ("func-no-repeats", "0"),
    ("func-args", "0"),
    ("funcgraph-irqs", "1"),
    ("funcgraph-args", "0"),
    ("funcgraph-retaddr", "0"),
    ("sleep-time", "1"),
    ("graph-time", "1"),
];

/// A ring buffer with its settings. Dropping it removes the instance, or puts the global buffer back as it was found.
#[derive(Debug)]
pub struct Instance {
    tracefs: Arc<Tracefs>,
    /// What its files' paths begin with: `instances/NAME/`, or nothing.
    below: String,
    place: Place,
    /// Options that were changed with ours in the top-level buffer, as they were found there.
    shared: Mutex<Vec<(String, String)>>,
}

/// Why an instance cannot be taken over.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    #[error("its owner uses it")]
    InUse,
    #[error(transparent)]
    Io(#[from] io::Error),
}

#[derive(Debug)]
enum Place {
    /// Its name, and the lock that says that its owner lives.
    Own(String, #[allow(dead_code, reason = "held, not read")] Flock<OwnedFd>),
    Global(Global),
}

impl Instance {
    /// Makes an instance. It records nothing yet: tracing is off.
    pub fn create(tracefs: &Arc<Tracefs>) -> io::Result<Instance> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // No sweep runs between the directory's making and its lock.
        let _no_sweep = lock(tracefs, INSTANCES, FlockArg::LockShared)?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = sweep::name(std::process::id(), start_ticks()?, number);
        let path = format!("{INSTANCES}/{name}");
        tracefs.make_directory(&path).map_err(|e| said(&path, "cannot be made", &e))?;
        let held = lock(tracefs, &path, FlockArg::LockExclusiveNonblock).inspect_err(|_| {
            // There is nothing in it; what cannot be removed now, the next sweep removes.
            let _ = tracefs.remove_directory(&path);
        })?;
        let instance = Instance::new(tracefs, format!("{path}/"), Place::Own(name, held));
        instance.write("tracing_on", "0")?;
        instance.set_default_options()?;
        Ok(instance)
    }

    /// Takes an instance over whose owner is dead; `None` when it is gone.
    pub fn adopt(tracefs: &Arc<Tracefs>, name: &str) -> Result<Option<Instance>, AdoptError> {
        let path = format!("{INSTANCES}/{name}");
        if !tracefs.exists(&path) {
            return Ok(None);
        }
        let directory = tracefs.open_at(&path, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
        match Flock::lock(directory, FlockArg::LockExclusiveNonblock) {
            Ok(held) => Ok(Some(Instance::new(tracefs, format!("{path}/"), Place::Own(name.to_owned(), held)))),
            Err((_, Errno::EWOULDBLOCK)) => Err(AdoptError::InUse),
            Err((_, errno)) => Err(said(&path, "cannot be locked", &errno.into()).into()),
        }
    }

    /// Takes the global buffer, if it is unused. Tracing is off then.
    pub fn global(tracefs: &Arc<Tracefs>) -> Result<Instance, global::TakeError> {
        let taken = Global::take(tracefs, global::Part::Whole)?;
        let instance = Instance::new(tracefs, String::new(), Place::Global(taken));
        instance.write("tracing_on", "0")?;
        instance.write("trace", "")?;
        instance.set_default_options()?;
        Ok(instance)
    }

    fn new(tracefs: &Arc<Tracefs>, below: String, place: Place) -> Instance {
        Instance { tracefs: tracefs.clone(), below, place, shared: Mutex::default() }
    }

    /// Runs a tracer, with the kernel's default options: those of a tracer may be there only from then on.
    pub fn set_tracer(&self, tracer: &str) -> io::Result<()> {
        self.write("current_tracer", tracer)?;
        self.set_default_options()
    }

    /// Sets an option. One that is the same for all buffers becomes what it was with the end of this one.
    pub fn set_option(&self, option: &str, value: &str) -> io::Result<()> {
        let file = format!("options/{option}");
        if self.read(&file)?.trim() == value {
            return Ok(());
        }
        let top = || self.tracefs.read(&file).ok();
        let found = top();
        self.write(&file, value)?;
        if let (Place::Own(..), Some(found)) = (&self.place, found.filter(|found| Some(found) != top().as_ref())) {
            self.shared.lock().unwrap_or_else(PoisonError::into_inner).push((file, found.trim().to_owned()));
        }
        Ok(())
    }

    /// Sets options that change records, and that were not requested, to the kernel's default.
    fn set_default_options(&self) -> io::Result<()> {
        for (option, default) in OPTIONS {
            if self.has(&format!("options/{option}")) {
                self.set_option(option, default)?;
            }
        }
        Ok(())
    }

    /// Its name; empty for the global buffer.
    pub fn name(&self) -> &str {
        match &self.place {
            Place::Own(name, _) => name,
            Place::Global(_) => "",
        }
    }

    /// Whether it is the global buffer.
    pub fn is_global(&self) -> bool {
        matches!(self.place, Place::Global(_))
    }

    /// The tracefs it lies in.
    pub fn tracefs(&self) -> &Arc<Tracefs> {
        &self.tracefs
    }

    /// A file of it as people find it: below the root of tracefs.
    pub fn path(&self, file: &str) -> String {
        format!("{}{file}", self.below)
    }

    /// What a file of it says.
    pub fn read(&self, file: &str) -> io::Result<String> {
        self.tracefs.read(&self.path(file))
    }

    /// Replaces what a file of it says. The error names the file and the text.
    pub fn write(&self, file: &str, text: &str) -> io::Result<()> {
        let path = self.path(file);
        self.tracefs.write(&path, text).map_err(|e| said(&path, &format!("does not take `{}`", short(text)), &e))
    }

    /// Adds to what a file of it says.
    pub fn append(&self, file: &str, text: &str) -> io::Result<()> {
        let path = self.path(file);
        self.tracefs.append(&path, text).map_err(|e| said(&path, &format!("does not take `{}`", short(text)), &e))
    }

    /// Whether this kernel has a file of it.
    pub fn has(&self, file: &str) -> bool {
        self.tracefs.exists(&self.path(file))
    }

    /// All events, as `SYSTEM:EVENT`, in the kernel's order.
    pub fn events(&self) -> io::Result<Vec<(String, String)>> {
        let text = self.tracefs.read("available_events")?;
        let event = |line: &str| line.split_once(':').map(|(system, event)| (system.to_owned(), event.to_owned()));
        Ok(text.lines().filter_map(event).collect())
    }

    /// Tells that settings of an event are about to be changed, with the triggers it will be given. The global buffer refuses
    /// when the event has settings of somebody else.
    pub fn touch_event(&self, system: &str, event: &str, triggers: &[String]) -> Result<(), global::TakeError> {
        match &self.place {
            Place::Own(..) => Ok(()),
            Place::Global(global) => global.touch_event(system, event, triggers),
        }
    }

    /// Numbers of the CPUs that there are buffers for.
    pub fn cpus(&self) -> io::Result<Vec<u32>> {
        let names = self.tracefs.list(&self.path("per_cpu"))?;
        let mut cpus: Vec<u32> = names.iter().filter_map(|name| name.strip_prefix("cpu")?.parse().ok()).collect();
        cpus.sort_unstable();
        Ok(cpus)
    }

    /// The kernel's count of what a CPU wrote.
    pub fn stats(&self, cpu: u32) -> io::Result<CpuStats> {
        Ok(CpuStats::parse(&self.read(&format!("per_cpu/cpu{cpu}/stats"))?))
    }

    /// Reads the pages of a CPU, `page_bytes` each (see `events/header_page`).
    pub fn reader(&self, cpu: u32, page_bytes: usize) -> io::Result<PageReader> {
        let path = self.path(&format!("per_cpu/cpu{cpu}/trace_pipe_raw"));
        let file = self.tracefs.open_at(&path, OFlag::O_RDONLY | OFlag::O_NONBLOCK).map(File::from);
        Ok(PageReader::new(file.map_err(|e| said(&path, "cannot be opened", &e))?, page_bytes))
    }

    /// The clock that is set.
    pub fn clock(&self) -> io::Result<String> {
        let text = self.read("trace_clock")?;
        let set = text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
        set.map(str::to_owned).ok_or_else(|| io::Error::other(format!("{}: no clock is set", self.path("trace_clock"))))
    }

    /// Sets the clock; what was recorded is thrown away.
    pub fn set_clock(&self, clock: &str) -> io::Result<()> {
        self.write("trace_clock", clock)
    }

    /// Sets the buffer of each CPU, in KiB.
    pub fn set_buffer_kib(&self, kib: u64) -> io::Result<()> {
        self.write("buffer_size_kb", &kib.to_string())
    }

    /// Starts or stops recording.
    pub fn set_on(&self, on: bool) -> io::Result<()> {
        self.write("tracing_on", if on { "1" } else { "0" })
    }

    /// Whether it records; a trigger may have stopped it.
    pub fn is_on(&self) -> io::Result<bool> {
        Ok(self.read("tracing_on")?.trim() != "0")
    }

    /// Whether a tracer can run in it.
    pub fn has_tracer(&self, tracer: &str) -> io::Result<bool> {
        Ok(self.read("available_tracers")?.split_whitespace().any(|name| name == tracer))
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let shared = self.shared.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (file, found) in shared.drain(..).rev() {
            if let Err(error) = self.tracefs.write(&file, &found) {
                tracing::warn!(file, found, reason = %error, "an option of the kernel's global trace is not as it was found");
            }
        }
        if let Place::Own(name, _) = &self.place
            && let Err(error) = remove(&self.tracefs, name)
        {
            tracing::warn!(instance = name, reason = %error, "a tracing instance cannot be removed; the next start tries again");
        }
    }
}

/// Turns everything of an instance off and removes it.
fn remove(tracefs: &Tracefs, name: &str) -> io::Result<()> {
    for (file, text) in [("tracing_on", "0"), ("current_tracer", "nop"), ("events/enable", "0")] {
        // Removal does the same; where it is refused, so is this, and it says why.
        let _ = tracefs.write(&format!("{INSTANCES}/{name}/{file}"), text);
    }
    // The kernel says busy as long as a file of it is open: readers that are just ending.
    const TRIES: u32 = 20;
    let path = format!("{INSTANCES}/{name}");
    for _ in 1..TRIES {
        match tracefs.remove_directory(&path) {
            Err(error) if error.raw_os_error() == Some(Errno::EBUSY as i32) => {
                std::thread::sleep(Duration::from_millis(10));
            }
            result => return result,
        }
    }
    tracefs.remove_directory(&path)
}

fn lock(tracefs: &Tracefs, path: &str, how: FlockArg) -> io::Result<Flock<OwnedFd>> {
    let directory = tracefs.open_at(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
    Flock::lock(directory, how).map_err(|(_, errno)| said(path, "cannot be locked", &errno.into()))
}

/// When this process started, in clock ticks since boot.
fn start_ticks() -> io::Result<u64> {
    let stat = Stat::of(Path::new("/proc/self"));
    stat.map(|stat| stat.started_ticks)
        .ok_or_else(|| io::Error::other("/proc/self/stat cannot be read, or has another form than expected"))
}

/// The same kind of error in words.
fn said(path: &str, what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{path} {what} ({error})"))
}

/// Texts may be long lists.
fn short(text: &str) -> &str {
    const SHOWN: usize = 200;
    text.char_indices().nth(SHOWN).map_or(text, |(end, _)| &text[..end])
}
