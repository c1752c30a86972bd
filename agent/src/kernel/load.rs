//! Loading one probe's object: its maps are created from the layout, its programs relocated and loaded, each once.

use crate::kernel::abilities::explain;
use crate::kernel::attach::{AttachError, Attacher, Link, Places, ProgramType, tp_btf, uprobe, uprobe_multi};
use crate::kernel::binaries::find::ProcessSnapshot;
use crate::kernel::detect::{online_cpus, possible_cpus};
use crate::kernel::error::KernelError;
use crate::kernel::events::{BufferError, Buffers};
use crate::kernel::hooks::{Body, HookError, Hooks, Member, Role, Slicing, Use};
use crate::kernel::kernel_types::KernelTypes;
use crate::kernel::object::{Code, Object, ObjectError, TABLES_MAP};
use crate::kernel::privileges::lift_locked;
use crate::kernel::read::ProbeMaps;
use crate::kernel::sys::KernelMap;
use crate::kernel::sys::map::{MapSpec, RDONLY_PROG, kind as map_kind};
use crate::kernel::sys::prog::{self, Lines, ProgSpec, Refused};
use crate::kernel::unwind::{self, Tables, Unwinder};
use crate::kernel::verifier_log;
use kstrobe_ebpf::ir::{Calls, Duty};
use kstrobe_ebpf::layout::{MapDef, STACKS_MAPS};
use kstrobe_ebpf::typed::Attach;
use kstrobe_ebpf::{Layout, Target};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;

/// What loading needs again and again. Holds the kernel's BTF once a tracing program was loaded: keep it while loading probes,
/// then drop it.
pub struct Loader {
    types: KernelTypes,
    attacher: Attacher,
    shared: Shared,
    processes: Option<ProcessSnapshot>,
}

/// What the probes of a process share.
#[derive(Clone, Debug)]
pub struct Shared {
    pub hooks: Arc<Hooks>,
    pub unwinder: Arc<Unwinder>,
}

impl Default for Shared {
    fn default() -> Shared {
        Shared { hooks: Hooks::new(possible_cpus()), unwinder: Arc::default() }
    }
}

impl Default for Loader {
    fn default() -> Self {
        Self::new()
    }
}

impl Loader {
    /// Ready to load. Its probes share hooks with one another alone.
    pub fn new() -> Loader {
        Loader::with_types(Shared::default(), KernelTypes::default())
    }

    /// Ready to load probes that share this, for a target whose types came from the file `btf`, by default from the kernel, where
    /// they need not be read again.
    pub fn for_target(shared: Shared, target: &Target, btf: Option<&Path>) -> Loader {
        Loader::with_types(shared, KernelTypes::of(target.btf.clone().filter(|_| btf.is_none())))
    }

    /// Lifts RLIMIT_MEMLOCK, which kernels before 5.11 charge maps to.
    fn with_types(shared: Shared, types: KernelTypes) -> Loader {
        lift_locked();
        Loader { types, attacher: Attacher::new(), shared, processes: None }
    }
}

impl Loader {
    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    /// The processes at one moment, the same for all probes that are loaded.
    pub fn processes(&mut self) -> &ProcessSnapshot {
        self.processes.get_or_insert_with(ProcessSnapshot::look)
    }

    /// Tables for the programs of a probe, if they take user stacks where that is possible.
    fn unwind_tables(&mut self, layout: &Layout) -> Option<Arc<Tables>> {
        layout.stacks.as_ref()?.unwound?;
        let facts = self.types.unwind_facts()?;
        self.shared.unwinder.tables(facts, layout.cpus)
    }
}

/// A program of an object.
#[derive(Clone, Debug)]
pub struct Program {
    /// As in the object.
    pub name: String,
    pub attach: Attach,
    /// The system calls that it measures, where its hook has all of them.
    pub calls: Option<Calls>,
    /// When its hook may rest.
    pub duty: Duty,
}

impl From<&(String, Attach)> for Program {
    fn from((name, attach): &(String, Attach)) -> Program {
        Program { name: name.clone(), attach: attach.clone(), calls: None, duty: Duty::Always }
    }
}

/// Why a probe is not running. Nothing of it is left in the kernel.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The process lacks a right.
    #[error("not permitted: {action}: {}", explain(error))]
    Permission {
        /// `creating map counts`
        action: String,
        /// EPERM or EACCES.
        error: io::Error,
    },
    /// The kernel's verifier refused a program.
    #[error("the kernel refuses program {program}: {summary}")]
    Verifier {
        /// Name of the program.
        program: String,
        /// The errno of BPF_PROG_LOAD.
        error: io::Error,
        /// The lines that matter.
        summary: String,
        /// All of the verifier's log.
        log: String,
    },
    /// A map could not be made or filled.
    #[error("map {map}: {error}")]
    Map {
        /// Name of the map.
        map: String,
        /// Why.
        error: MapError,
    },
    /// A program is accepted but not what runs at its hook.
    #[error("program {program}: {error}")]
    Hook {
        /// Name of the program.
        program: String,
        /// Why.
        error: HookError,
    },
    /// A program is loaded but its hook cannot be had.
    #[error("program {program} cannot be attached: {error}")]
    Attach {
        /// Name of the program.
        program: String,
        /// Why.
        error: AttachError,
    },
    /// The object is not what its layout says: a fault of the compiler.
    #[error("the compiled object is wrong: {0}")]
    Object(#[from] ObjectError),
}

impl LoadError {
    /// Whether the program has more paths than the verifier follows: another kind of hook, with a longer program, has no fewer.
    pub fn is_too_complex(&self) -> bool {
        match self {
            LoadError::Verifier { error, log, .. } => {
                error.raw_os_error() == Some(libc::E2BIG) || verifier_log::is_too_complex(log)
            }
            _ => false,
        }
    }
}

/// Why a map is not there.
#[derive(Debug, Error)]
pub enum MapError {
    /// The kernel keeps stacks of fewer frames.
    #[error("the kernel keeps no stacks of this depth: see the sysctl kernel.perf_event_max_stack")]
    StackDepth,
    /// The kernel does not know the kind, or not with these sizes.
    #[error("the kernel does not take such a map (EINVAL)")]
    Invalid,
    /// The kernel has no room.
    #[error("it is too large for this kernel ({0})")]
    TooLarge(io::Error),
    /// Another error of bpf(2).
    #[error(transparent)]
    Kernel(io::Error),
    /// Its memory cannot be mapped for reading events.
    #[error(transparent)]
    Buffer(BufferError),
}

/// A probe that runs. Dropping it detaches everything and frees all of its maps.
pub struct Loaded {
    // Fields drop in order: first no new runs, then the programs, then the maps.
    links: Vec<(usize, Link)>,
    programs: Vec<LoadedProgram>,
    /// When the programs were attached, or the CPUs of theirs were looked at last; `None` while none is attached.
    looked: Option<Instant>,
    events: Option<Buffers>,
    maps: ProbeMaps,
    /// The dispatchers name it as long as the programs are members.
    _tables: Option<KernelMap>,
    /// As these.
    _unwind: Option<Arc<Tables>>,
}

struct LoadedProgram {
    name: String,
    attach: Attach,
    calls: Option<Calls>,
    duty: Duty,
    /// Relocated.
    code: Vec<u64>,
    fd: OwnedFd,
    /// Its place among the programs at its hook; none at iterators, and before it is attached.
    member: Option<Member>,
    /// For how long each of its events on CPUs had been enabled at the last look; empty when they are new.
    enabled: Vec<Duration>,
}

/// A running program.
#[derive(Clone, Debug, PartialEq)]
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
    /// What it has cost, as far as that is measured.
    pub used: Option<Use>,
    /// Events left out, for all programs of its hook, because one was already running on that CPU.
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

    /// Attaches a program to places of one file in user space, until all links are dropped.
    pub fn attach_user(&self, program: &str, places: &Places<'_>) -> Result<Vec<Link>, AttachError> {
        let found = self.programs.iter().find(|p| p.name == program);
        let found = found.ok_or_else(|| AttachError::NoProgram(program.to_owned()))?;
        match &found.attach {
            Attach::Uprobe { multi, .. } | Attach::Usdt { multi, .. } => match multi {
                true => uprobe_multi::attach(found.entry(), places),
                false => uprobe::attach(found.entry(), places),
            },
            _ => Err(AttachError::OtherHook(program.to_owned())),
        }
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
            self.links.retain(|(of, _)| *of != at);
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
        let Some(wanted) = program.attach.events_of_cpus(online) else { return Ok(true) };
        let links = self.links.iter().filter(|(of, _)| *of == at).filter_map(|(_, link)| link.enabled_for());
        let enabled = links.collect::<io::Result<Vec<Duration>>>().map_err(|error| {
            let reason = format!("whether its CPUs were online cannot be read: {error}");
            let error = KernelError::new("read", error, reason).into();
            LoadError::Attach { program: program.name.clone(), error }
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
        self.programs.iter().any(|program| program.attach.events_of_cpus(1).is_some())
    }

    fn attach_one(&mut self, at: usize, attacher: &mut Attacher) -> Result<(), LoadError> {
        let program = &mut self.programs[at];
        program.enabled.clear();
        if !is_shared(&program.attach) {
            let links = attacher.attach(program.entry(), &program.attach);
            let links = links.map_err(|error| attach_error(&program.name, error))?;
            self.links.extend(links.into_iter().map(|link| (at, link)));
        }
        if let Some(member) = &program.member {
            member.activate(true);
        }
        Ok(())
    }

    /// Puts all programs to the others at their hooks.
    fn join(&mut self, loader: &mut Loader) -> Result<(), LoadError> {
        let Loader { types, attacher, shared: Shared { hooks, .. }, .. } = loader;
        let control = self.maps.control().cloned();
        let open = self.maps.open_spans().map_err(|error| map_error("of open spans", MapError::Kernel(error)))?;
        let open = open.map(Arc::new);
        for program in self.programs.iter_mut().filter(|program| !program.attach.is_iterator()) {
            let LoadedProgram { name, attach, calls, duty, code, fd, member, .. } = program;
            let failed = |error| hook_error(name, error);
            let kind = ProgramType::of(attach, types).map_err(|error| attach_error(name, error.into()))?;
            let loaded = fd.try_clone().map_err(|error| failed(HookError::Map(error)))?;
            let role = match (&control, *duty, &open) {
                (Some(control), Duty::Begins, _) => Role::Begins(control.clone()),
                (Some(control), Duty::Ends, Some(open)) => Role::Ends(control.clone(), open.clone()),
                (Some(control), Duty::Watches, Some(open)) => Role::Watches(control.clone(), open.clone()),
                _ => Role::All,
            };
            let (name, code, calls) = (name.clone(), std::mem::take(code), calls.take());
            let body = Body { name, code, calls, role, program: loaded };
            let joined = match is_shared(attach) {
                true => hooks.join(attach, &kind, body, attacher),
                false => hooks.join_alone(attach, &kind, body),
            };
            *member = Some(joined.map_err(failed)?);
        }
        Ok(())
    }

    /// Says whether its measurements may begin for a share of the time alone.
    pub fn slice(&self, slicing: Slicing) {
        let member = self.programs.iter().find_map(|program| program.member.as_ref());
        if let (Some(member), Some(weights)) = (member, self.maps.control()) {
            member.slice(weights, slicing);
        }
    }

    /// What its programs have cost so far, as far as that is measured.
    pub fn used(&self) -> impl Iterator<Item = (&str, &Attach, Use)> {
        let of = |p: &'_ LoadedProgram| p.member.as_ref().and_then(Member::used);
        self.programs.iter().filter_map(move |p| Some((p.name.as_str(), &p.attach, of(p)?)))
    }

    /// A program that the kernel does not take together with the others at its hook, and not beside them.
    pub fn not_accepted(&self) -> Option<&str> {
        let accepted = |program: &&LoadedProgram| program.member.as_ref().is_none_or(Member::is_accepted);
        self.programs.iter().find(|program| !accepted(program)).map(|program| program.name.as_str())
    }

    /// Runs programs at iterators, one after the other, each once per object.
    pub fn run_iterators(&self) -> io::Result<()> {
        self.links.iter().try_for_each(|(_, link)| match link {
            Link::Iterator(iterator) => iterator.run(),
            Link::Bpf { .. } | Link::Event(_) => Ok(()),
        })
    }

    /// Lets no program run. They and their maps stay, and can be attached again.
    pub fn detach(&mut self) {
        // What closes spans stops last.
        self.programs.iter().rev().filter_map(|p| p.member.as_ref()).for_each(|member| member.activate(false));
        (self.looked, self.links) = (None, Vec::new());
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
                used: program.member.as_ref().and_then(Member::used),
                misses: prog::stats(program.entry())?.recursion_misses,
            })
        };
        self.programs.iter().map(info).collect()
    }
}

impl LoadedProgram {
    /// What the kernel runs at its hook.
    fn entry(&self) -> BorrowedFd<'_> {
        self.member.as_ref().map_or(self.fd.as_fd(), Member::entry)
    }
}

/// Whether one entry serves all programs at the hook. Hooks in files, and on CPUs that come and go, are attached for each program
/// again and again.
fn is_shared(attach: &Attach) -> bool {
    attach.binary().is_none() && attach.events_of_cpus(1).is_none() && !attach.is_iterator()
}

/// Loads an object, fills its stacks of free slots, and attaches its programs in the order given. Whatever fails, nothing
/// stays behind. Within a [batch](Hooks::batch) they run from its end on.
pub fn load(
    loader: &mut Loader,
    object: &[u8],
    layout: &Layout,
    programs: impl IntoIterator<Item: Into<Program>>,
) -> Result<Loaded, LoadError> {
    let loaded = load_unattached(loader, object, layout, programs)?;
    attach_loaded(loader, loaded)
}

/// The second half of [`load`].
pub fn attach_loaded(loader: &mut Loader, mut loaded: Loaded) -> Result<Loaded, LoadError> {
    loaded.join(loader)?;
    loaded.attach(&mut loader.attacher).map(|()| loaded)
}

/// The same without attaching: the kernel has checked the programs, and [`Loaded::test_run`] runs them.
pub fn load_unattached(
    loader: &mut Loader,
    object: &[u8],
    layout: &Layout,
    programs: impl IntoIterator<Item: Into<Program>>,
) -> Result<Loaded, LoadError> {
    let mut object = Object::parse(object)?;
    object.check(layout)?;
    let types = Types::load(&mut object)?;
    let maps = create_maps(&object, layout, &types)?;
    let tables = object.tables().map(create_tables).transpose()?;
    let by_name = |name: &str| match name {
        TABLES_MAP => tables.as_ref(),
        _ => layout.maps.iter().position(|def| def.name == name).map(|at| &maps[at]),
    };
    object.relocate(|name| by_name(name).map(|map| map.as_fd().as_raw_fd()))?;
    let unwind = loader.unwind_tables(layout);
    let mut load = |Program { name, attach, calls, duty }: Program| {
        let mut code = object.code(&name)?;
        let mut fd = load_program(&mut loader.types, &code, types.fd(), &name, &attach)?;
        if let Some(insns) = unwind.as_ref().and_then(|tables| tables.link(&code.insns, layout, &maps)) {
            let unlinked = std::mem::replace(&mut code.insns, insns);
            match load_program(&mut loader.types, &code, None, &name, &attach) {
                Ok(program) => fd = program,
                Err(error) => {
                    tracing::warn!(program = name, %error, "its user stacks follow frame pointers alone");
                    code.insns = unlinked;
                }
            }
        }
        Ok(LoadedProgram { name, attach, calls, duty, code: code.insns, fd, member: None, enabled: Vec::new() })
    };
    let programs = programs.into_iter().map(|program| load(program.into())).collect::<Result<_, LoadError>>()?;
    let events = open_events(&maps, layout)?;
    let maps = ProbeMaps::new(layout.clone(), maps).map_err(ObjectError::from)?;
    maps.fill_free_slots().map_err(|error| map_error("of free slots", MapError::Kernel(error)))?;
    Ok(Loaded { links: Vec::new(), programs, looked: None, events, maps, _tables: tables, _unwind: unwind })
}

/// The object's type information in the kernel. Without it most maps and programs load all the same: it serves the verifier's
/// messages and bpftool.
enum Types {
    Loaded(OwnedFd),
    /// With the kernel's answer; `None` where the kernel knows no BTF.
    Missing(Option<Refused>),
}

impl Types {
    fn load(object: &mut Object) -> Result<Types, ObjectError> {
        Ok(match object.load_types()? {
            Some(Ok(fd)) => Types::Loaded(fd),
            Some(Err(refused)) => Types::Missing(Some(refused)),
            None => Types::Missing(None),
        })
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Types::Loaded(fd) => Some(fd.as_fd()),
            Types::Missing(_) => None,
        }
    }
}

fn create_maps(object: &Object, layout: &Layout, types: &Types) -> Result<Vec<KernelMap>, LoadError> {
    let create = |def: &MapDef| {
        let (key, value) = object.types_of_map(&def.name);
        let spec = MapSpec {
            kind: def.kind.number(),
            key_bytes: def.key_bytes,
            value_bytes: def.value_bytes,
            entries: def.entries,
            flags: def.kind.flags(),
            name: &def.name,
            // Stacks and buffers take no types; they have no type of a key.
            btf: types.fd().filter(|_| key != 0).map(|fd| (fd, key, value)),
        };
        KernelMap::create(&spec).map_err(|error| not_created(&def.name, error, types))
    };
    layout.maps.iter().map(create).collect()
}

/// An array of one value, which neither programs nor processes can write once it is frozen.
fn create_tables(bytes: &[u8]) -> Result<KernelMap, LoadError> {
    let spec = MapSpec {
        kind: map_kind::ARRAY,
        key_bytes: 4,
        value_bytes: bytes.len() as u32,
        entries: 1,
        flags: RDONLY_PROG,
        name: TABLES_MAP,
        btf: None,
    };
    let failed = |error| not_created(TABLES_MAP, error, &Types::Missing(None));
    let map = KernelMap::create(&spec).map_err(failed)?;
    map.update(&[0; 4], bytes, 0).map_err(failed)?;
    map.freeze().map_err(failed)?;
    Ok(map)
}

fn not_created(name: &str, error: io::Error, types: &Types) -> LoadError {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => LoadError::Permission { action: format!("creating map {name}"), error },
        // A map that needs types, which the kernel has refused.
        Some(libc::EINVAL) => match types {
            Types::Missing(Some(refused)) => ObjectError::RefusedTypes(last_line(refused)).into(),
            _ if STACKS_MAPS.contains(&name) => map_error(name, MapError::StackDepth),
            _ => map_error(name, MapError::Invalid),
        },
        Some(libc::E2BIG | libc::ENOMEM) => map_error(name, MapError::TooLarge(error)),
        _ => map_error(name, MapError::Kernel(error)),
    }
}

fn last_line(refused: &Refused) -> String {
    let last = refused.log.lines().rev().map(str::trim).find(|line| !line.is_empty());
    last.map_or_else(|| refused.error.to_string(), str::to_string)
}

fn map_error(name: &str, error: MapError) -> LoadError {
    LoadError::Map { map: name.to_owned(), error }
}

fn open_events(maps: &[KernelMap], layout: &Layout) -> Result<Option<Buffers>, LoadError> {
    let Some(events) = &layout.events else { return Ok(None) };
    let (map, name) = (&maps[events.map.0 as usize], &layout.map(events.map).name);
    let opened = Buffers::open(map, events.buffer_bytes);
    opened.map(Some).map_err(|error| map_error(name, MapError::Buffer(error)))
}

fn load_program(
    types: &mut KernelTypes,
    code: &Code,
    btf: Option<BorrowedFd<'_>>,
    name: &str,
    attach: &Attach,
) -> Result<OwnedFd, LoadError> {
    let program = ProgramType::of(attach, types).map_err(|error| attach_error(name, error.into()))?;
    if !program.fits(code.kind) {
        let (program, attach) = (name.to_owned(), format!("{attach:?}"));
        return Err(ObjectError::OtherSection { program, section: code.section.clone(), attach }.into());
    }
    let spec = ProgSpec {
        kind: program.kind,
        attach_type: program.attach_type,
        attach_btf_id: program.attach_btf_id,
        attach_btf: program.attach_btf,
        lines: btf.map(|btf| Lines { btf, functions: &code.functions, lines: &code.lines }),
        insns: &code.insns,
        name,
    };
    // Programs with lines are as the compiler has made them.
    let load = if spec.lines.is_some() { prog::load } else { unwind::load };
    load(&spec).map_err(|refused| not_loaded(name, refused))
}

/// Why the kernel does not load a program, out of the verifier's log.
fn not_loaded(name: &str, Refused { error, log }: Refused) -> LoadError {
    if log.trim().is_empty() && matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES)) {
        return LoadError::Permission { action: format!("loading program {name}"), error };
    }
    let summary = match verifier_log::summary(&log) {
        text if text.is_empty() => format!("no reason given ({error})"),
        text => text,
    };
    LoadError::Verifier { program: name.to_string(), error, summary, log }
}

fn hook_error(name: &str, error: HookError) -> LoadError {
    match error {
        HookError::Attach(error) => attach_error(name, error),
        HookError::Program { refused, .. } => not_loaded(name, refused),
        error => LoadError::Hook { program: name.to_owned(), error },
    }
}

fn attach_error(name: &str, error: AttachError) -> LoadError {
    let program = name.to_owned();
    match error {
        AttachError::Kernel(KernelError { call, error, .. })
            if call == tp_btf::CALL && matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES)) =>
        {
            LoadError::Permission { action: format!("attaching program {program}"), error }
        }
        error => LoadError::Attach { program, error },
    }
}
