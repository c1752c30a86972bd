//! Loading one probe's object. With [`attach`](super::attach) and [`events`](super::events) one of the three files that
//! name aya.

use crate::kernel::abilities::explain;
use crate::kernel::attach::{Attacher, Held};
use crate::kernel::detect::online_cpus;
use crate::kernel::events::Buffers;
use crate::kernel::function_hooks::{self, NotLoaded, Types};
use crate::kernel::privileges::lift_locked;
use crate::kernel::raw_load;
use crate::kernel::read::ProbeMaps;
use crate::kernel::sys::{KernelMap, link, perf, prog};
use crate::kernel::uprobe::{self, Places};
use crate::kernel::verifier_log;
use aya::maps::{Map, MapError};
use aya::programs::{Program, ProgramError};
use aya::{Ebpf, EbpfError, EbpfLoader};
use kstrobe_ebpf::Layout;
use kstrobe_ebpf::layout::{MapId, STACKS_MAPS};
use kstrobe_ebpf::typed::Attach;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};
use thiserror::Error;

/// What loading needs again and again. Holds the kernel's BTF (some 13 MB) once a tp_btf program was loaded: keep it while
/// loading probes, then drop it.
pub struct Loader {
    aya: EbpfLoader<'static>,
    /// For the ids of tracepoints; parsed when the first program needs it.
    btf: Option<aya::Btf>,
    /// For the ids of functions.
    types: Types,
    attacher: Attacher,
}

impl Default for Loader {
    fn default() -> Self {
        Self::new()
    }
}

impl Loader {
    /// Ready to load.
    pub fn new() -> Loader {
        lift_locked();
        let mut aya = EbpfLoader::new();
        // Our objects have no relocations against kernel types, so the loader's own copy of its BTF is not needed. Task storage
        // is a map type that aya creates but has no interface for.
        aya.btf(None).allow_unsupported_maps();
        Loader { aya, btf: None, types: Types::default(), attacher: Attacher::new() }
    }

    fn btf(&mut self) -> Result<&aya::Btf, String> {
        if self.btf.is_none() {
            let btf = aya::Btf::from_sys_fs()
                .map_err(|error| format!("the kernel's BTF cannot be read: {}", chain(&error)))?;
            self.btf = Some(btf);
        }
        self.btf.as_ref().ok_or_else(|| "the kernel's BTF cannot be read".into())
    }
}

/// Why a probe is not running. Nothing of it is left in the kernel.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The process may not do this.
    #[error("not permitted: {0}")]
    Permission(String),
    /// The kernel's verifier refused a program.
    #[error("the kernel refuses program {program}: {summary}")]
    Verifier {
        /// Name of the program.
        program: String,
        /// The lines that matter.
        summary: String,
        /// All of the verifier's log.
        log: String,
    },
    /// A map could not be made or filled.
    #[error("map {map}: {reason}")]
    Map {
        /// Name of the map.
        map: String,
        /// What happened.
        reason: String,
    },
    /// A program is loaded but its hook cannot be had.
    #[error("program {program} cannot be attached: {reason}")]
    Attach {
        /// Name of the program.
        program: String,
        /// What happened.
        reason: String,
    },
    /// The object is not what its layout says: a fault of the compiler.
    #[error("the compiled object is wrong: {0}")]
    Object(String),
}

/// A probe that runs. Dropping it detaches everything and frees all of its maps.
pub struct Loaded {
    // Fields drop in order: first no new runs, then the programs, then the maps.
    held: Vec<(usize, Held)>,
    ebpf: Ebpf,
    programs: Vec<LoadedProgram>,
    /// When the programs were attached, or the CPUs of theirs were looked at last; `None` while none is attached.
    looked: Option<Instant>,
    events: Option<Buffers>,
    maps: ProbeMaps,
}

struct LoadedProgram {
    name: String,
    attach: Attach,
    fd: OwnedFd,
    /// For how long each of its events on CPUs had been enabled at the last look; empty when they are new.
    enabled: Vec<Duration>,
}

/// A running program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgInfo {
    /// As in the object; the kernel keeps 15 bytes of it.
    pub name: String,
    /// Where it is attached.
    pub attach: Attach,
    /// Kernel's id, as `bpftool prog` shows it.
    pub id: u32,
    /// Instructions the verifier walked (0 before 5.16).
    pub verified_insns: u32,
    /// Bytes of machine code.
    pub jited_bytes: u32,
    /// Nanoseconds spent in it; counted only while [`prog::enable_stats`] is on.
    pub run_time_ns: u64,
    /// Runs; counted only while [`prog::enable_stats`] is on.
    pub run_cnt: u64,
    /// Runs left out because it was already running on that CPU.
    pub misses: u64,
}

impl std::fmt::Debug for Loaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let programs: Vec<_> = self.programs.iter().map(|p| (&p.name, &p.attach)).collect();
        f.debug_struct("Loaded").field("programs", &programs).finish_non_exhaustive()
    }
}

impl Loaded {
    /// The probe's maps.
    pub fn maps(&self) -> &ProbeMaps {
        &self.maps
    }

    /// The probe's maps, and where its records of single events come out, if it sends any.
    pub fn maps_and_events(&mut self) -> (&ProbeMaps, Option<&mut Buffers>) {
        (&self.maps, self.events.as_mut())
    }

    /// Attaches a program to places of one file in user space, until what is returned is closed.
    pub fn attach_user(&self, program: &str, places: &Places<'_>) -> Result<Vec<OwnedFd>, String> {
        let found = self.programs.iter().find(|p| p.name == program).ok_or_else(|| format!("no program {program}"))?;
        let way = uprobe::way(&found.attach).ok_or_else(|| format!("{program} is for another kind of hook"))?;
        uprobe::attach(found.fd.as_fd(), way.multi, places)
    }

    /// Runs a program at a raw tracepoint once, now, in this process, with these words as the tracepoint's arguments.
    pub fn test_run(&self, program: &str, args: &[u64]) -> io::Result<()> {
        let found = self.programs.iter().find(|p| p.name == program);
        let program = found.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("no program {program}")))?;
        prog::test_run(program.fd.as_fd(), args)
    }

    /// Attaches all programs in their order. Where one fails, none is attached.
    pub fn attach(&mut self, attacher: &mut Attacher) -> Result<(), LoadError> {
        let attached = (0..self.programs.len()).try_for_each(|at| self.attach_one(at, attacher));
        match attached {
            Ok(()) => self.looked = Some(Instant::now()),
            Err(_) => self.detach(),
        }
        attached
    }

    /// Attaches programs again that run on each CPU or on one of them, where these are not the CPUs that are online any more, or
    /// one of them was away: the kernel takes the event of a CPU that goes offline away for good, and one that comes
    /// later has none. Says whether it did. What fails is tried again the next time.
    pub fn follow_cpus(&mut self) -> Result<bool, LoadError> {
        let Some(passed) = self.looked.map(|looked| looked.elapsed()) else { return Ok(false) };
        let online = online_cpus().len();
        let (mut attacher, mut changed, mut failure) = (Attacher::new(), false, None);
        for at in 0..self.programs.len() {
            match self.still_attached(at, online, passed) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => {
                    failure.get_or_insert(error);
                    continue;
                }
            }
            self.held.retain(|(of, _)| *of != at);
            match self.attach_one(at, &mut attacher) {
                Ok(()) => changed = true,
                Err(error) => {
                    failure.get_or_insert(error);
                }
            }
        }
        self.looked = Some(Instant::now());
        failure.map_or(Ok(changed), Err)
    }

    /// Whether a program has the events of CPUs that it should have, and these have been enabled since the last look.
    fn still_attached(&mut self, at: usize, online: usize, passed: Duration) -> Result<bool, LoadError> {
        let program = &mut self.programs[at];
        let Some(wanted) = events_of_cpus(&program.attach, online) else { return Ok(true) };
        let events = self.held.iter().filter(|(of, _)| *of == at).filter_map(|(_, held)| held.downcast_ref());
        let enabled = events.map(perf::enabled_for).collect::<io::Result<Vec<Duration>>>().map_err(|error| {
            let reason = format!("whether its CPUs were online cannot be read: {error}");
            LoadError::Attach { program: program.name.clone(), reason }
        })?;
        let before = program.enabled.iter().copied().chain(std::iter::repeat(Duration::ZERO));
        // The kernel's clock is not quite the one that we go by.
        let stands = enabled.iter().zip(before).any(|(now, before)| now.saturating_sub(before) < passed / 2);
        let whole = enabled.len() == wanted && !stands;
        program.enabled = if whole { enabled } else { Vec::new() };
        Ok(whole)
    }

    /// Whether some program has to follow the CPUs that are online.
    pub fn is_of_cpus(&self) -> bool {
        self.programs.iter().any(|program| events_of_cpus(&program.attach, 1).is_some())
    }

    fn attach_one(&mut self, at: usize, attacher: &mut Attacher) -> Result<(), LoadError> {
        let LoadedProgram { name, attach, fd, enabled } = &mut self.programs[at];
        enabled.clear();
        // Those are left to `attach_user`: their places are found and found again while the probe runs.
        if uprobe::way(attach).is_some() {
            return Ok(());
        }
        let held = match function_hooks::is_function_hook(attach) {
            true => attacher.attach_function(fd.as_fd(), name, attach),
            false => find(&mut self.ebpf, name).and_then(|p| attacher.attach(p, name, attach)),
        };
        self.held.extend(held?.into_iter().map(|held| (at, held)));
        Ok(())
    }

    /// Runs programs at iterators, one after the other, each once per object.
    pub fn run_iterators(&self) -> io::Result<()> {
        self.held.iter().filter_map(|(_, held)| held.downcast_ref::<link::Iterator>()).try_for_each(link::Iterator::run)
    }

    /// Detaches all programs. They and their maps stay, and can be attached again.
    pub fn detach(&mut self) {
        (self.looked, self.held) = (None, Vec::new());
    }

    /// Its programs, in the order they were attached.
    pub fn programs(&self) -> io::Result<Vec<ProgInfo>> {
        let info = |program: &LoadedProgram| {
            let stats = prog::stats(program.fd.as_fd())?;
            Ok(ProgInfo {
                name: program.name.clone(),
                attach: program.attach.clone(),
                id: stats.id,
                verified_insns: stats.verified_insns,
                jited_bytes: stats.jited_bytes,
                run_time_ns: stats.run_time_ns,
                run_cnt: stats.run_cnt,
                misses: stats.recursion_misses,
            })
        };
        self.programs.iter().map(info).collect()
    }
}

/// How many events it takes where so many CPUs are online; `None` when it is not attached to CPUs. Other perf events (of tracepoints
/// and kprobes) run wherever they are hit.
fn events_of_cpus(attach: &Attach, online: usize) -> Option<usize> {
    match attach {
        Attach::Sample(_) => Some(online),
        Attach::Interval { .. } => Some(1),
        _ => None,
    }
}

/// Loads an object, fills its stacks of free slots, and attaches its programs in the order given. Whatever fails, nothing
/// stays behind.
pub fn load(
    loader: &mut Loader,
    object: &[u8],
    layout: &Layout,
    programs: &[(String, Attach)],
) -> Result<Loaded, LoadError> {
    let mut loaded = load_unattached(loader, object, layout, programs)?;
    loaded.attach(&mut loader.attacher).map(|()| loaded)
}

/// The same without attaching: the kernel has checked the programs, and [`Loaded::test_run`] runs them.
pub fn load_unattached(
    loader: &mut Loader,
    object: &[u8],
    layout: &Layout,
    programs: &[(String, Attach)],
) -> Result<Loaded, LoadError> {
    let ebpf = loader.aya.load(object).map_err(|error| object_error(error, object))?;
    let maps = open_maps(&ebpf, layout)?;
    let mut loaded = Loaded { held: Vec::new(), ebpf, programs: Vec::new(), looked: None, events: None, maps };
    for (name, attach) in programs {
        let fd = match function_hooks::is_function_hook(attach) || uprobe::way(attach).is_some() {
            true => load_past_aya(loader, &loaded, object, name, attach)?,
            false => load_program(loader, &mut loaded.ebpf, name, attach)?,
        };
        let (name, attach) = (name.clone(), attach.clone());
        loaded.programs.push(LoadedProgram { name, attach, fd, enabled: Vec::new() });
    }
    // Only now: until its programs are loaded, they name the map by the number of the descriptor that is taken here.
    loaded.events = open_events(&mut loaded.ebpf, layout)?;
    loaded
        .maps
        .fill_free_slots()
        .map_err(|error| LoadError::Map { map: "of free slots".into(), reason: error.to_string() })?;
    Ok(loaded)
}

/// Descriptors of our own for the layout's maps. aya keeps its own as well: until a program is loaded, its instructions name
/// maps by the number of that descriptor.
fn open_maps(ebpf: &Ebpf, layout: &Layout) -> Result<ProbeMaps, LoadError> {
    let open = |name: &str| {
        let map = ebpf.map(name).ok_or_else(|| LoadError::Object(format!("it has no map {name}")))?;
        let (Map::Array(data)
        | Map::HashMap(data)
        | Map::LruHashMap(data)
        | Map::Stack(data)
        | Map::StackTraceMap(data)
        | Map::RingBuf(data)
        | Map::PerfEventArray(data)
        | Map::Unsupported(data)) = map
        else {
            return Err(LoadError::Object(format!("map {name} is of a kind that no layout has")));
        };
        let failed = |error: io::Error| LoadError::Map { map: name.to_string(), reason: error.to_string() };
        let fd = data.fd().as_fd().try_clone_to_owned().map_err(failed)?;
        KernelMap::from_fd(fd).map_err(failed)
    };
    let maps = layout.maps.iter().map(|def| def.name.as_str()).map(open).collect::<Result<Vec<_>, _>>()?;
    ProbeMaps::new(layout.clone(), maps).map_err(LoadError::Object)
}

fn open_events(ebpf: &mut Ebpf, layout: &Layout) -> Result<Option<Buffers>, LoadError> {
    let Some(events) = &layout.events else { return Ok(None) };
    let name = &layout.map(events.map).name;
    let map = ebpf.take_map(name).ok_or_else(|| LoadError::Object(format!("it has no map {name}")))?;
    let opened = Buffers::open(map, events.buffer_bytes);
    opened.map(Some).map_err(|reason| LoadError::Map { map: name.clone(), reason })
}

fn find<'e>(ebpf: &'e mut Ebpf, name: &str) -> Result<&'e mut Program, LoadError> {
    ebpf.program_mut(name).ok_or_else(|| LoadError::Object(format!("it has no program {name}")))
}

fn load_program(loader: &mut Loader, ebpf: &mut Ebpf, name: &str, attach: &Attach) -> Result<OwnedFd, LoadError> {
    let program = find(ebpf, name)?;
    let result = match (attach, &mut *program) {
        (Attach::TpBtf { event }, Program::BtfTracePoint(p)) => {
            let unavailable = |reason| LoadError::Attach { program: name.to_string(), reason };
            p.load(event, loader.btf().map_err(unavailable)?)
        }
        (Attach::RawTp { .. }, Program::RawTracePoint(p)) => p.load(),
        (Attach::Tracepoint { .. }, Program::TracePoint(p)) => p.load(),
        (Attach::Interval { .. } | Attach::Sample(_), Program::PerfEvent(p)) => p.load(),
        (_, other) => {
            let kind = other.prog_type();
            return Err(LoadError::Object(format!(
                "program {name} lies in a section for {kind:?}, not for {attach:?}"
            )));
        }
    };
    result.map_err(|error| program_error(name, attach, error))?;
    let fd = program.fd().map_err(|error| program_error(name, attach, error))?;
    fd.as_fd().try_clone_to_owned().map_err(|error| LoadError::Object(error.to_string()))
}

/// Kinds of programs that aya has no interface for.
fn load_past_aya(
    loader: &mut Loader,
    loaded: &Loaded,
    object: &[u8],
    name: &str,
    attach: &Attach,
) -> Result<OwnedFd, LoadError> {
    let map = |wanted: &str| match wanted {
        raw_load::TABLES_MAP => match loaded.ebpf.map(wanted)? {
            Map::Array(data) => Some(data.fd().as_fd().as_raw_fd()),
            _ => None,
        },
        wanted => {
            let id = loaded.maps.layout().maps.iter().position(|def| def.name == wanted)?;
            Some(loaded.maps.map(MapId(id as u32)).as_fd().as_raw_fd())
        }
    };
    if let Some(way) = uprobe::way(attach) {
        let loaded = raw_load::load(object, name, &way.purpose(), map);
        return loaded.map_err(|refused| refusal(name, &refused.error, refused.log));
    }
    function_hooks::load(&mut loader.types, object, name, attach, map).map_err(|why| match why {
        NotLoaded::Unavailable(reason) => LoadError::Attach { program: name.to_string(), reason },
        NotLoaded::Refused(refused) => refusal(name, &refused.error, refused.log),
    })
}

fn object_error(error: EbpfError, object: &[u8]) -> LoadError {
    match error {
        EbpfError::MapError(MapError::CreateError { name, io_error }) => match io_error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                LoadError::Permission(format!("creating map {name}: {}", explain(&io_error)))
            }
            // aya goes on without type information when the kernel refuses it, and then maps that need it fail.
            Some(libc::EINVAL) => match refused_types(object) {
                Some(log) => LoadError::Object(format!("the kernel refuses its type information: {log}")),
                None if STACKS_MAPS.contains(&name.as_str()) => {
                    let reason = "the kernel keeps no stacks of this depth: see the sysctl kernel.perf_event_max_stack";
                    LoadError::Map { map: name, reason: reason.into() }
                }
                None => LoadError::Map { map: name, reason: "the kernel does not take such a map (EINVAL)".into() },
            },
            Some(libc::E2BIG | libc::ENOMEM) => {
                LoadError::Map { map: name, reason: format!("it is too large for this kernel ({io_error})") }
            }
            _ => LoadError::Map { map: name, reason: io_error.to_string() },
        },
        other => LoadError::Object(chain(&other)),
    }
}

/// What the kernel says about the object's BTF when it refuses it.
fn refused_types(object: &[u8]) -> Option<String> {
    use object::{Object, ObjectSection};
    let file = object::File::parse(object).ok()?;
    let btf = file.section_by_name(".BTF")?.data().ok()?;
    let refused = prog::load_btf(btf).err()?;
    let last = refused.log.lines().rev().map(str::trim).find(|line| !line.is_empty());
    Some(last.map_or_else(|| refused.error.to_string(), str::to_string))
}

/// Why the kernel does not load a program, out of the verifier's log.
fn refusal(name: &str, error: &io::Error, log: String) -> LoadError {
    if log.trim().is_empty() && matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES)) {
        return LoadError::Permission(format!("loading program {name}: {}", explain(error)));
    }
    let summary = match verifier_log::summary(&log) {
        text if text.is_empty() => format!("no reason given ({error})"),
        text => text,
    };
    LoadError::Verifier { program: name.to_string(), summary, log }
}

pub(super) fn program_error(name: &str, attach: &Attach, error: ProgramError) -> LoadError {
    let program = name.to_string();
    match error {
        ProgramError::LoadError { io_error, verifier_log } => refusal(name, &io_error, verifier_log.to_string()),
        ProgramError::SyscallError(error) => match (error.io_error.raw_os_error(), attach) {
            (Some(libc::EPERM | libc::EACCES), _) => {
                LoadError::Permission(format!("attaching program {name}: {}", explain(&error.io_error)))
            }
            (Some(libc::ENOENT), Attach::RawTp { event } | Attach::TpBtf { event }) => {
                LoadError::Attach { program, reason: format!("this kernel has no tracepoint {event}") }
            }
            _ => LoadError::Attach { program, reason: chain(&error) },
        },
        ProgramError::Btf(error) => {
            let reason = match attach {
                Attach::TpBtf { event } => {
                    format!("this kernel's BTF describes no tracepoint {event} ({})", chain(&error))
                }
                _ => chain(&error),
            };
            LoadError::Attach { program, reason }
        }
        other => LoadError::Object(format!("program {name}: {}", chain(&other))),
    }
}

/// An error with its causes, those left out that repeat what was said.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
