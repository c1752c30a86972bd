//! Hooks of one probe in programs and libraries: attached to existing files, and to new ones later.

use std::ffi::{CString, NulError};
use std::time::{Duration, Instant};

use kstrobe_ebpf::program::Binary;
use kstrobe_ebpf::typed::Attach;
use thiserror::Error;

use crate::kernel::attach::{AttachError, Link, Places, is_user_hook};
use crate::kernel::binaries::file::FileId;
use crate::kernel::binaries::find::ProcessSnapshot;
use crate::kernel::binaries::{self, File, FileError};
use crate::kernel::load::Loaded;

/// Interval of the search for files. A process snapshot is up to one second old, so that a new program is hooked within ten
/// seconds.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(9);

/// The hooks of a probe in files of user space.
pub struct UserHooks {
    hooks: Vec<UserHook>,
    looked: Instant,
    /// Files are not hooked until [`UserHooks::wake`].
    rests: bool,
}

/// Why a file is not hooked.
#[derive(Debug, Error)]
enum HookError {
    /// It has no such place.
    #[error(transparent)]
    File(#[from] FileError),
    /// Another version of the program.
    #[error(
        "its arguments lie elsewhere than in the file the probe was compiled for: restart the agent while this program runs"
    )]
    OtherArguments,
    /// Its path cannot be passed to the kernel.
    #[error(transparent)]
    Path(#[from] NulError),
    /// The kernel refuses.
    #[error(transparent)]
    Attach(#[from] AttachError),
}

/// One program.
struct UserHook {
    program: String,
    attach: Attach,
    files: Vec<Attached>,
    /// Files that were found but not hooked: not tried again until they change. With the reason, unless another program of
    /// the probe is for them.
    passed: Vec<(FileId, Option<String>)>,
    /// Why no file was found at the last look.
    none: Option<String>,
}

/// A file that is hooked.
struct Attached {
    id: FileId,
    shown: String,
    places: usize,
    /// Dropping them detaches.
    _links: Vec<Link>,
}

/// A change of a hooked file, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileChange {
    /// The hook, with the mechanism chosen for it.
    pub hook: String,
    pub file: String,
    pub change: Change,
}

/// See [`FileChange`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// It is hooked at so many places.
    Attached(usize),
    /// Nothing runs it any more.
    Detached,
    /// It cannot be hooked, with the reason.
    Refused(String),
}

/// Logs changes of hooked files.
pub(super) fn log_changes(probe: &str, changes: &[FileChange]) {
    for FileChange { hook, file, change } in changes {
        match change {
            Change::Attached(places) => tracing::info!(probe, hook, file, places, "attached"),
            Change::Detached => tracing::info!(probe, hook, file, "detached: nothing runs it any more"),
            Change::Refused(reason) => tracing::warn!(probe, hook, file, reason, "not attached"),
        }
    }
}

impl UserHooks {
    /// Of a probe's programs those that are for files; `None` when there are none.
    pub fn new(programs: &[(String, Attach)]) -> Option<UserHooks> {
        let user = programs.iter().filter(|(_, attach)| is_user_hook(attach));
        let hooks: Vec<UserHook> = user.map(|(program, attach)| UserHook::new(program, attach)).collect();
        (!hooks.is_empty()).then(|| UserHooks { hooks, looked: Instant::now(), rests: false })
    }

    /// Whether a file of some program is known by its name alone.
    pub fn by_name(&self) -> bool {
        self.hooks.iter().any(|hook| binary(&hook.attach).is_some_and(|binary| !binary.path.starts_with('/')))
    }

    /// When to look again.
    pub fn due(&self) -> Instant {
        self.looked + LOOK_EVERY
    }

    /// Hooks new files and detaches files that no process runs any more.
    pub(super) fn look(&mut self, loaded: &Loaded, processes: &ProcessSnapshot) -> Vec<FileChange> {
        self.looked = Instant::now();
        if self.rests {
            return Vec::new();
        }
        let attaches: Vec<Attach> = self.hooks.iter().map(|h| h.attach.clone()).collect();
        self.hooks.iter_mut().flat_map(|hook| hook.look(loaded, processes, &attaches)).collect()
    }

    /// Detaches all files until [`UserHooks::wake`].
    pub fn rest(&mut self) {
        self.rests = true;
        for hook in &mut self.hooks {
            hook.files.clear();
            hook.passed.clear();
        }
    }

    /// Hooks files again.
    pub(super) fn wake(&mut self, loaded: &Loaded, processes: &ProcessSnapshot) -> Vec<FileChange> {
        self.rests = false;
        self.look(loaded, processes)
    }

    /// Why something of the probe is hooked nowhere; empty when all is.
    pub fn reason(&self) -> String {
        let mut reasons: Vec<String> = Vec::new();
        for hook in self.hooks.iter().filter(|h| h.files.is_empty()) {
            // Programs for the other ways in which a probe point's arguments may lie: one of them is enough.
            let sibling = |other: &&UserHook| !other.files.is_empty() && is_same_point(&other.attach, &hook.attach);
            if self.hooks.iter().find(sibling).is_none() {
                let reason = hook.reason();
                if !reasons.contains(&reason) {
                    reasons.push(reason);
                }
            }
        }
        reasons.join("; ")
    }

    /// Each hooked file with the number of places, and each that cannot be hooked with the reason.
    pub fn files(&self) -> Vec<String> {
        let attached = self.hooks.iter().flat_map(|h| &h.files).map(|file| counted(&file.shown, file.places));
        let refused = self.hooks.iter().flat_map(|h| &h.passed).filter_map(|(_, why)| why.clone());
        let mut all: Vec<String> = attached.chain(refused).collect();
        all.sort();
        all.dedup();
        all
    }
}

fn counted(file: &str, places: usize) -> String {
    format!("{file}: {places} {}", if places == 1 { "place" } else { "places" })
}

/// Whether two programs are for one probe point whose arguments lie in different ways.
fn is_same_point(a: &Attach, b: &Attach) -> bool {
    match (a, b) {
        (
            Attach::Usdt { binary: b1, provider: p1, name: n1, .. },
            Attach::Usdt { binary: b2, provider: p2, name: n2, .. },
        ) => (b1, p1, n1) == (b2, p2, n2),
        _ => false,
    }
}

fn binary(attach: &Attach) -> Option<&Binary> {
    match attach {
        Attach::Uprobe { binary, .. } | Attach::Usdt { binary, .. } => Some(binary),
        _ => None,
    }
}

impl UserHook {
    fn new(program: &str, attach: &Attach) -> UserHook {
        let (program, attach) = (program.to_string(), attach.clone());
        UserHook { program, attach, files: Vec::new(), passed: Vec::new(), none: None }
    }

    fn reason(&self) -> String {
        match (&self.none, self.passed.iter().find_map(|(_, why)| why.as_ref())) {
            (Some(none), _) => format!("waiting: {none}"),
            (None, Some(why)) => why.clone(),
            (None, None) => "waiting for a file to hook".into(),
        }
    }

    fn look(&mut self, loaded: &Loaded, processes: &ProcessSnapshot, all: &[Attach]) -> Vec<FileChange> {
        let Some(binary) = binary(&self.attach) else { return Vec::new() };
        let (found, none) = match processes.find(binary) {
            Ok(files) => (files, None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        self.none = none;
        let mut changes = Vec::new();
        let gone_with = binary.pid.filter(|pid| !processes.has_process(*pid));
        let is_there = |id: &FileId| found.iter().any(|file| file.id.same_file(id));
        self.passed.retain(|(id, _)| is_there(id));
        self.files.retain(|file| {
            // A file that was replaced, or whose container is gone, is detached once no process runs it: the hook keeps its
            // inode.
            let lives = is_there(&file.id) || (gone_with.is_none() && processes.runs(&file.id));
            if !lives {
                let (hook, file) = (self.attach.to_string(), file.shown.clone());
                changes.push(FileChange { hook, file, change: Change::Detached });
            }
            lives
        });
        for file in &found {
            let hooked = self.files.iter().any(|known| known.id.same_file(&file.id));
            if !hooked && !self.passed.iter().any(|(id, _)| id.unchanged(&file.id)) {
                changes.extend(self.take(loaded, file, all));
            }
        }
        changes
    }

    /// Hooks a file that is new.
    fn take(&mut self, loaded: &Loaded, file: &File, all: &[Attach]) -> Option<FileChange> {
        let before = self.passed.iter().position(|(id, _)| id.same_file(&file.id));
        let before = before.and_then(|at| self.passed.swap_remove(at).1);
        let change = match self.attach_to(loaded, file, all) {
            Ok(None) => {
                self.passed.push((file.id, None));
                return None;
            }
            Ok(Some(attached)) => {
                let places = attached.places;
                self.files.push(attached);
                Change::Attached(places)
            }
            Err(error) => {
                let why = error.to_string();
                let reason = format!("{}: {why}", file.shown);
                let said = before.as_ref() == Some(&reason);
                self.passed.push((file.id, Some(reason)));
                if said {
                    return None;
                }
                Change::Refused(why)
            }
        };
        Some(FileChange { hook: self.attach.to_string(), file: file.shown.clone(), change })
    }

    /// `None` when another program of this probe is for this file.
    fn attach_to(&self, loaded: &Loaded, file: &File, all: &[Attach]) -> Result<Option<Attached>, HookError> {
        let Some(places) = binaries::places(file, &self.attach)? else {
            let for_it = |attach: &&Attach| matches!(binaries::places(file, attach), Ok(Some(_)));
            return match all.iter().filter(|a| is_same_point(a, &self.attach)).find(for_it) {
                Some(_) => Ok(None),
                None => Err(HookError::OtherArguments),
            };
        };
        let Some(binary) = binary(&self.attach) else { return Ok(None) };
        let path = CString::new(file.path())?;
        let at_return = matches!(self.attach, Attach::Uprobe { ret: true, .. });
        let (offsets, semaphores, ids) = (&places.offsets, &places.semaphores, &places.ids);
        let places = Places { path: &path, offsets, semaphores, ids, at_return, pid: binary.pid };
        let links = loaded.attach_user(&self.program, &places)?;
        Ok(Some(Attached { id: file.id, shown: file.shown.clone(), places: offsets.len(), _links: links }))
    }
}
