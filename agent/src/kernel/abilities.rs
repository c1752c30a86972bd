//! What the kernel can do, found by trying: each ability is a program of a few instructions or a tiny map, loaded and dropped
//! again. Programs at functions are attached for a moment, to one that is never called.

pub mod known;
mod uprobes;

use crate::kernel::attach::{AttachError, kprobe};
use crate::kernel::error::{BtfError, KernelError};
use crate::kernel::functions;
use crate::kernel::mmap::Values;
use crate::kernel::parallel::beside;
use crate::kernel::privileges::{Capabilities, forbidding, lift_locked};
use crate::kernel::sys::map::ENOTSUPP;
use crate::kernel::sys::map::{MMAPABLE, NO_PREALLOC, kind as map_kind};
use crate::kernel::sys::prog::{
    ATTACH_KPROBE_MULTI, ATTACH_TRACE_FENTRY, ATTACH_TRACE_ITER, ATTACH_TRACE_RAW_TP, Refused, kind as prog_kind,
};
use crate::kernel::sys::{self, KernelMap, MapSpec, ProgSpec, link, perf, prog};
use crate::kernel::tracefs::Tracefs;
use known::Known;
use kstrobe_ebpf::kernel_target::btf::{ITERATOR, Kind};
use kstrobe_ebpf::kernel_target::btf_write::{Builder, IntKind};
use kstrobe_ebpf::kernel_target::{Abilities, Ability, Btf};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::OnceLock;
use thiserror::Error;

/// An instruction: opcode, destination, source, offset, immediate.
pub(super) const fn insn(op: u8, dst: u8, src: u8, off: i16, imm: i32) -> u64 {
    op as u64 | (dst as u64) << 8 | (src as u64) << 12 | (off as u16 as u64) << 16 | (imm as u32 as u64) << 32
}
/// `r[dst] = imm`
pub(super) const fn mov(dst: u8, imm: i32) -> u64 {
    insn(0xb7, dst, 0, 0, imm)
}
/// `r[dst] = r[src]`
pub(super) const fn copy(dst: u8, src: u8) -> u64 {
    insn(0xbf, dst, src, 0, 0)
}
pub(super) const fn call(helper: i32) -> u64 {
    insn(0x85, 0, 0, 0, helper)
}
pub(super) const EXIT: u64 = insn(0x95, 0, 0, 0, 0);
const EMPTY: [u64; 2] = [mov(0, 0), EXIT];

const PROBE_READ_KERNEL: i32 = 113;
const TASK_STORAGE_GET: i32 = 156;
const GET_CURRENT_TASK_BTF: i32 = 158;
const GET_FUNC_IP: i32 = 173;

/// The kernel's types, or why there are none. The first caller reads them, and others wait for it.
pub type Types<'t> = &'t (dyn Fn() -> Result<&'t Btf, &'t BtfError> + Sync);

/// Tries everything but what is known to work. `tracefs` is the reason when it cannot be read.
///
/// Hooks that wait for the kernel's grace periods are tried in threads of their own. Those at kernel functions share one thread,
/// as they change the code of the same function.
pub fn probe(types: Types<'_>, tracefs: Result<&Tracefs, &io::Error>, cpu: u32, known: &Known) -> Abilities {
    lift_locked();
    let unless_known = |name: &str, attempt: &dyn Fn() -> Ability| match known.has(name) {
        true => Ability::Yes,
        false => attempt(),
    };
    let with_types = |attempt: &dyn Fn(&Btf) -> Ability| match types() {
        Ok(btf) => attempt(btf),
        Err(reason) => Ability::No(reason.to_string()),
    };
    let tp_btf = OnceLock::new();
    let tp_btf = || {
        let attempt = || with_types(&|btf| ability(load_tp_btf(btf, &EMPTY)));
        Ability::clone(tp_btf.get_or_init(|| unless_known("tp_btf", &attempt)))
    };
    let at_functions = || {
        let kprobe = unless_known("kprobe", &|| ability(try_kprobe(cpu)));
        let kprobe_multi = unless_known("kprobe_multi", &|| ability(try_kprobe_multi()));
        let attempt = |btf: &Btf| ability(try_fentry(btf, tp_btf().yes(), has_function_tracer(tracefs)));
        (kprobe, kprobe_multi, unless_known("fentry", &|| with_types(&attempt)))
    };
    let uprobe = || unless_known("uprobe", &|| ability(uprobes::try_events()));
    let uprobe_multi = || unless_known("uprobe_multi", &|| ability(uprobes::try_links()));
    std::thread::scope(|scope| {
        let (uprobe, uprobe_multi) = (beside(scope, &uprobe), beside(scope, &uprobe_multi));
        let at_functions = beside(scope, &at_functions);
        let abilities = Abilities {
            rdonly_cast: unless_known("rdonly_cast", &|| with_types(&|btf| try_rdonly_cast(btf, tp_btf().yes()))),
            iter: unless_known("iter", &|| with_types(&|btf| ability(try_iterator(btf)))),
            tp_btf: tp_btf(),
            raw_tp: unless_known("raw_tp", &|| ability(load_raw_tp(&EMPTY))),
            tracepoint: try_tracepoint(tracefs, cpu),
            perf_event: unless_known("perf_event", &|| try_perf_event(cpu)),
            task_storage: unless_known("task_storage", &|| ability(try_task_storage())),
            mmapable: unless_known("mmapable", &|| ability(try_mmapable())),
            batch: unless_known("batch", &|| ability(try_batch())),
            ringbuf: unless_known("ringbuf", &|| ability(try_ringbuf())),
            probe_read_kernel: unless_known("probe_read_kernel", &|| ability(load_raw_tp(&probe_read_kernel()))),
            current_task_btf: unless_known("current_task_btf", &|| ability(try_current_task_btf())),
            module_btf: ability(try_module_btf()),
            atomic_fetch: unless_known("atomic_fetch", &|| ability(try_atomic_fetch())),
            func_ip: unless_known("func_ip", &|| ability(try_func_ip())),
            ..Abilities::default()
        };
        let (kprobe, kprobe_multi, fentry) = at_functions.wait();
        Abilities {
            uprobe: uprobe.wait(),
            uprobe_multi: uprobe_multi.wait(),
            kprobe,
            kprobe_multi,
            fentry,
            ..abilities
        }
    })
}

/// Removes what was attached only to try it, without waiting for the grace periods that it takes: up to a tenth of a second.
fn remove_later(attached: impl Send + 'static) {
    // Without a thread the value is dropped here, with the closure.
    let _ = std::thread::Builder::new().name("remove-trial".into()).spawn(move || drop(attached));
}

/// Why the kernel lacks an ability.
#[derive(Debug, Error)]
pub enum Lack {
    /// A system call is refused.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// A program is loaded and cannot be attached.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// A program or its types are refused.
    #[error("{}", refusal(.0))]
    Program(Refused),
    /// What the kernel was built without, or is too old for.
    #[error("{0}")]
    Feature(String),
}

impl From<Refused> for Lack {
    fn from(refused: Refused) -> Lack {
        Lack::Program(refused)
    }
}

impl From<&str> for Lack {
    fn from(feature: &str) -> Lack {
        Lack::Feature(feature.to_owned())
    }
}

fn ability<T>(result: Result<T, Lack>) -> Ability {
    match result {
        Ok(_) => Ability::Yes,
        Err(reason) => Ability::No(reason.to_string()),
    }
}

fn load_program(kind: u32, attach: (u32, u32), insns: &[u64]) -> Result<OwnedFd, Lack> {
    let (attach_type, attach_btf_id) = attach;
    let spec = ProgSpec { kind, attach_type, attach_btf_id, insns, name: "kstrobe_try", ..ProgSpec::default() };
    Ok(prog::load(&spec)?)
}

fn load_raw_tp(insns: &[u64]) -> Result<OwnedFd, Lack> {
    load_program(prog_kind::RAW_TRACEPOINT, (0, 0), insns)
}

fn load_tp_btf(btf: &Btf, insns: &[u64]) -> Result<OwnedFd, Lack> {
    let find = |event: &str| btf.find(&format!("btf_trace_{event}"), Kind::Typedef);
    let id = find("sched_switch")
        .or_else(|| find("sys_enter"))
        .ok_or("the kernel's BTF describes no tracepoints (btf_trace_sched_switch is missing)")?;
    load_program(prog_kind::TRACING, (ATTACH_TRACE_RAW_TP, id), insns)
}

/// `probe_read_kernel(fp - 8, 8, 0)`
fn probe_read_kernel() -> [u64; 7] {
    [copy(1, 10), insn(0x07, 1, 0, 0, -8), mov(2, 8), mov(3, 0), call(PROBE_READ_KERNEL), mov(0, 0), EXIT]
}

fn try_rdonly_cast(btf: &Btf, tp_btf: bool) -> Ability {
    let ids = btf.find("bpf_rdonly_cast", Kind::Func).zip(btf.find("task_struct", Kind::Struct));
    let Some((function, task)) = ids else {
        return Ability::No("this kernel has no function bpf_rdonly_cast (Linux 6.2 has it)".into());
    };
    // The call's source register 2 says: a kernel function, by its BTF id.
    let insns = [mov(1, 0), mov(2, task as i32), insn(0x85, 0, 2, 0, function as i32), mov(0, 0), EXIT];
    ability(if tp_btf { load_tp_btf(btf, &insns) } else { load_raw_tp(&insns) })
}

fn try_tracepoint(tracefs: Result<&Tracefs, &io::Error>, cpu: u32) -> Ability {
    let attempt = || {
        load_program(prog_kind::TRACEPOINT, (0, 0), &EMPTY)?;
        let tracefs = tracefs.map_err(|error| Lack::Feature(error.to_string()))?;
        let unreadable = |error| Lack::Feature(format!("tracefs cannot be read: {error}"));
        tracefs.list("events").map_err(unreadable)?;
        Ok(perf::cpu_clock(1_000_000_000, cpu).map_err(KernelError::perf)?)
    };
    ability(attempt())
}

fn try_perf_event(cpu: u32) -> Ability {
    let attempt = || {
        load_program(prog_kind::PERF_EVENT, (0, 0), &EMPTY)?;
        Ok(perf::cpu_clock(1_000_000_000, cpu).map_err(KernelError::perf)?)
    };
    ability(attempt())
}

/// Functions to try hooks at: attached, they cost nothing, as only the kernel's own tests call the first, and no code calls
/// the second twice.
const HARMLESS: [&str; 2] = ["bpf_fentry_test1", "kernel_power_off"];

/// A load proves nothing: kernels without ftrace load such programs and then cannot attach them. `others_load`: programs at
/// tracepoints by BTF do, which take the same rights.
fn try_fentry(btf: &Btf, others_load: bool, tracer: Option<bool>) -> Result<(), Lack> {
    let id = HARMLESS.iter().find_map(|name| btf.find(name, Kind::Func));
    let id = id.ok_or("the kernel's BTF describes no functions (bpf_fentry_test1 is missing)")?;
    let (attach_type, attach_btf_id) = (ATTACH_TRACE_FENTRY, id);
    let spec = ProgSpec { kind: prog_kind::TRACING, attach_type, attach_btf_id, insns: &EMPTY, ..ProgSpec::default() };
    let prog = prog::load(&ProgSpec { name: "kstrobe_try", ..spec }).map_err(|refused| {
        match refused.error.raw_os_error() {
            // Rights, lockdown and filters of system calls make no difference between these two.
            Some(libc::EPERM | libc::EACCES) if others_load && refused.log.trim().is_empty() => Lack::Feature(format!(
                "this kernel has none: it takes programs at tracepoints by BTF and refuses those at functions ({})",
                refused.error
            )),
            _ => refused.into(),
        }
    })?;
    link::attach_tracing(prog.as_fd()).map(remove_later).map_err(|error| match error.raw_os_error() {
        Some(ENOTSUPP | libc::EOPNOTSUPP | libc::ENOENT | libc::ENODEV | libc::EINVAL | libc::EBUSY) => {
            Lack::Feature(without_fentry(tracer, &error))
        }
        _ => KernelError::bpf("bpf(BPF_RAW_TRACEPOINT_OPEN)", error).into(),
    })
}

fn without_fentry(tracer: Option<bool>, error: &io::Error) -> String {
    let lacks = match tracer {
        Some(true) => "CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS",
        Some(false) => "CONFIG_FUNCTION_TRACER",
        None => "CONFIG_FUNCTION_TRACER or CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS",
    };
    format!("this kernel cannot attach to functions by BTF, as one built without {lacks} ({error})")
}

/// Whether ftrace traces functions here, where tracefs shows it.
fn has_function_tracer(tracefs: Result<&Tracefs, &io::Error>) -> Option<bool> {
    let tracers = tracefs.ok()?.read("available_tracers").ok()?;
    Some(tracers.split_whitespace().any(|tracer| tracer == "function"))
}

/// Over tasks: there always are some. Not run, as that would walk them all.
fn try_iterator(btf: &Btf) -> Result<(), Lack> {
    let id = btf.find(&format!("{ITERATOR}task"), Kind::Func);
    let id = id.ok_or("this kernel has no iterators (Linux 5.8 has them)")?;
    let prog = load_program(prog_kind::TRACING, (ATTACH_TRACE_ITER, id), &EMPTY)?;
    link::attach_iterator(prog.as_fd()).map_err(|error| KernelError::bpf("bpf(BPF_LINK_CREATE)", error))?;
    Ok(())
}

fn try_kprobe(cpu: u32) -> Result<(), Lack> {
    let kind = kprobe::event_kind()
        .map_err(|_| "this kernel has no perf kprobes, as one built without CONFIG_KPROBE_EVENTS")?;
    let prog = load_program(prog_kind::KPROBE, (0, 0), &EMPTY)?;
    let attempt =
        |name: &&str| perf::attach_kprobe(prog.as_fd(), kind, perf::Place::Symbol { name, offset: 0 }, false, cpu);
    remove_later(first_that_works(attempt).map_err(KernelError::perf)?);
    Ok(())
}

fn try_kprobe_multi() -> Result<(), Lack> {
    let prog = load_program(prog_kind::KPROBE, (ATTACH_KPROBE_MULTI, 0), &EMPTY)?;
    let attempt = |name: &&str| link::attach_kprobe_multi(prog.as_fd(), &[*name], false);
    first_that_works(attempt).map(remove_later).map_err(|error| match error.raw_os_error() {
        Some(libc::EOPNOTSUPP | libc::EINVAL) => {
            "this kernel has no kprobe_multi links (Linux 5.18 has, built with CONFIG_FPROBE)".into()
        }
        _ => KernelError::bpf("bpf(BPF_LINK_CREATE)", error).into(),
    })
}

fn first_that_works<T>(attempt: impl Fn(&&str) -> io::Result<T>) -> io::Result<T> {
    let [first, second] = &HARMLESS;
    attempt(first).or_else(|error| attempt(second).map_err(|_| error))
}

/// Types of modules are there when the kernel publishes those of a loaded one and gives its handle away.
fn try_module_btf() -> Result<(), Lack> {
    let Some(module) = functions::modules_with_types().into_iter().next() else {
        let none = std::fs::read_to_string("/proc/modules").is_ok_and(|text| text.trim().is_empty());
        return Err(match none {
            true => "this kernel has no module loaded".into(),
            false => {
                "this kernel publishes no types of modules (Linux 5.11 does, with CONFIG_DEBUG_INFO_BTF_MODULES)".into()
            }
        });
    };
    sys::btf::of_module(&module).map_err(|error| KernelError::bpf("bpf(BPF_BTF_GET_FD_BY_ID)", error))?;
    Ok(())
}

fn try_current_task_btf() -> Result<(), Lack> {
    match load_raw_tp(&[call(GET_CURRENT_TASK_BTF), mov(0, 0), EXIT]) {
        Ok(_) => Ok(()),
        // Of a helper that it does not know; for lack of rights it says EPERM or EACCES.
        Err(Lack::Program(refused)) if refused.error.raw_os_error() == Some(libc::EINVAL) => {
            Err("this kernel has no helper bpf_get_current_task_btf (Linux 5.11 has it)".into())
        }
        Err(lack) => Err(lack),
    }
}

/// A storage map, and a program at a raw tracepoint that uses it (5.11 had the map, but not for tracing programs).
fn try_task_storage() -> Result<(), Lack> {
    let map = task_storage_map()?;
    let fd = map.as_fd().as_raw_fd();
    // Source register 1 of the two-slot load says: a map, by its descriptor.
    let insns = [
        call(GET_CURRENT_TASK_BTF),
        copy(2, 0),
        insn(0x18, 1, 1, 0, fd),
        0,
        mov(3, 0),
        mov(4, 0),
        call(TASK_STORAGE_GET),
        mov(0, 0),
        EXIT,
    ];
    load_raw_tp(&insns).map(drop)
}

/// An empty task storage map with values of 8 bytes.
pub fn task_storage_map() -> Result<KernelMap, Lack> {
    let mut types = Builder::new();
    let key = types.int("int", 4, IntKind::Signed);
    let value = types.int("unsigned long long", 8, IntKind::Unsigned);
    let btf = prog::load_btf(&types.finish())?;
    let spec = MapSpec {
        kind: map_kind::TASK_STORAGE,
        key_bytes: 4,
        value_bytes: 8,
        flags: NO_PREALLOC,
        name: "kstrobe_try",
        btf: Some((btf.as_fd(), key, value)),
        ..MapSpec::default()
    };
    KernelMap::create(&spec).map_err(map_refused)
}

fn tiny_array(flags: u32) -> io::Result<KernelMap> {
    let spec = MapSpec { kind: map_kind::ARRAY, key_bytes: 4, value_bytes: 8, entries: 1, flags, ..MapSpec::default() };
    KernelMap::create(&MapSpec { name: "kstrobe_try", ..spec })
}

fn try_mmapable() -> Result<(), Lack> {
    let map = tiny_array(MMAPABLE).map_err(map_refused)?;
    match Values::open(&map) {
        Ok(Values::Mapped(_)) => Ok(()),
        Ok(Values::Copied(_)) => Err("the map was made, but mmap(2) of it is refused".into()),
        Err(error) => Err(map_refused(error)),
    }
}

fn try_batch() -> Result<(), Lack> {
    let spec = MapSpec { kind: map_kind::HASH, key_bytes: 4, value_bytes: 4, entries: 2, ..MapSpec::default() };
    let map = KernelMap::create(&MapSpec { name: "kstrobe_try", ..spec }).map_err(map_refused)?;
    map.update(&[1, 0, 0, 0], &[2, 0, 0, 0], 0).map_err(map_refused)?;
    let entries = map.batches().map_err(|error| match error.raw_os_error() {
        Some(libc::EINVAL) => "this kernel cannot read maps in batches (Linux 5.6 can)".into(),
        _ => map_refused(error),
    })?;
    if entries.len() == 1 { Ok(()) } else { Err("a batch read did not return what was written".into()) }
}

/// An addition on the stack. A kernel whose compiler does not know it, as that of arm64 before 5.18, would interpret the whole program.
fn try_atomic_fetch() -> Result<(), Lack> {
    const NONE: &str = "this kernel has no atomic additions that fetch (Linux 5.12 has them, on arm64 5.18)";
    let insns = [insn(0x7a, 10, 0, -8, 0), mov(0, 1), insn(0xdb, 10, 0, -8, 1), mov(0, 0), EXIT];
    let program = load_raw_tp(&insns).map_err(|lack| match lack {
        Lack::Program(refused) if refused.error.raw_os_error() == Some(libc::EINVAL) => NONE.into(),
        other => other,
    })?;
    let compiled = |program: &OwnedFd| prog::stats(program.as_fd()).is_ok_and(|stats| stats.jited_bytes > 0);
    if !compiled(&program) && compiled(&load_raw_tp(&EMPTY)?) {
        return Err(NONE.into());
    }
    Ok(())
}

fn try_func_ip() -> Result<(), Lack> {
    load_program(prog_kind::KPROBE, (0, 0), &[call(GET_FUNC_IP), mov(0, 0), EXIT]).map(drop).map_err(
        |lack| match lack {
            Lack::Program(refused) if refused.error.raw_os_error() == Some(libc::EINVAL) => {
                "this kernel has no bpf_get_func_ip at kprobes (Linux 5.15 has)".into()
            }
            other => other,
        },
    )
}

fn try_ringbuf() -> Result<(), Lack> {
    // The largest page of any machine: the kernel takes only whole ones.
    let spec = MapSpec { kind: map_kind::RINGBUF, entries: 64 << 10, name: "kstrobe_try", ..MapSpec::default() };
    match KernelMap::create(&spec) {
        Ok(_) => Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            Err("this kernel has no ring buffers (Linux 5.8 has)".into())
        }
        Err(error) => Err(KernelError::bpf(MAP_CREATE, error).into()),
    }
}

/// What a person can do about an error of bpf(2).
pub fn explain(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => match Capabilities::effective().map(|have| have.missing()) {
            Ok(None) => {
                format!("the kernel forbids it although CAP_BPF and CAP_PERFMON are there ({error}): {}", forbidding())
            }
            Ok(Some(missing)) => format!("needs {missing} (or root)"),
            Err(_) => "needs CAP_BPF and CAP_PERFMON (or root)".into(),
        },
        Some(libc::ENOSYS) => "this kernel was built without bpf(2)".into(),
        Some(libc::ENOMEM) => "the kernel has no memory for it".into(),
        _ => error.to_string(),
    }
}

pub(super) fn refusal(refused: &Refused) -> String {
    // "unknown func bpf_x#158", "invalid func ...": the sentence that names the cause comes early, statistics at the end.
    let line = refused.log.lines().find(|line| {
        let line = line.to_ascii_lowercase();
        ["unknown", "invalid", "not allowed", "not supported", "cannot", "must"].iter().any(|word| line.contains(word))
    });
    match line {
        Some(line) => format!("{} ({})", line.trim(), refused.error),
        None if refused.error.raw_os_error() == Some(libc::EINVAL) => {
            "this kernel does not know this kind of program or map (EINVAL)".into()
        }
        None => explain(&refused.error),
    }
}

const MAP_CREATE: &str = "bpf(BPF_MAP_CREATE)";

fn map_refused(error: io::Error) -> Lack {
    match error.raw_os_error() {
        Some(libc::EINVAL) => "this kernel does not know this kind of map (EINVAL)".into(),
        _ => KernelError::bpf(MAP_CREATE, error).into(),
    }
}

/// What a person can do about an error of perf_event_open(2).
pub fn perf_refusal(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            let level = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
            perf_forbidden(&Capabilities::effective().unwrap_or_default(), level.trim(), forbidding)
        }
        Some(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP) => format!("this kernel has no such perf event ({error})"),
        _ => format!("perf_event_open: {error}"),
    }
}

/// The missing right where perf_event_open(2) is forbidden. From a level of 3 on, which distributions add, it takes
/// CAP_SYS_ADMIN.
fn perf_forbidden(have: &Capabilities, level: &str, forbidding: impl FnOnce() -> String) -> String {
    let needs = match have.sys_admin {
        true => return format!("perf_event_open is forbidden although CAP_SYS_ADMIN is there: {}", forbidding()),
        false if level.parse().is_ok_and(|level: i32| level > 2) => {
            format!("CAP_SYS_ADMIN, as kernel.perf_event_paranoid is {level}")
        }
        false if have.perfmon => "CAP_SYS_ADMIN".to_owned(),
        false => "CAP_PERFMON".to_owned(),
    };
    format!("perf_event_open is forbidden: needs {needs}")
}

/// One ability for a person: what it is, and what it costs not to have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Its name.
    pub what: &'static str,
    /// Why it is missing; `None` when it works.
    pub reason: Option<String>,
    /// What it costs to be without.
    pub cost: &'static str,
}

/// All abilities, the most wanted first.
pub fn report(a: &Abilities) -> Vec<Report> {
    let of = |what, ability: &Ability, cost| {
        let reason = match ability {
            Ability::Yes => None,
            Ability::No(reason) => Some(reason.clone()),
            Ability::Unknown => Some("not tried".to_string()),
        };
        Report { what, reason, cost }
    };
    vec![
        of("BTF-typed tracepoints", &a.tp_btf, "raw ones are used: a helper call per field, and no time off CPU"),
        of("raw tracepoints", &a.raw_tp, "`rawtracepoint:` and `syscall:` need these or the BTF-typed ones"),
        of("perf tracepoints", &a.tracepoint, "`tracepoint:` hooks cannot be used"),
        of("perf events", &a.perf_event, "`interval:` hooks cannot be used"),
        of(
            "uprobe_multi links",
            &a.uprobe_multi,
            "a perf event for each place in a program, which takes CAP_SYS_ADMIN",
        ),
        of("uprobes", &a.uprobe, "`uprobe:`, `uretprobe:` and `usdt:` need these or uprobe_multi links"),
        of("task storage", &a.task_storage, "a hash is used: slower, and bounded by `max_entries`"),
        of("current task as BTF", &a.current_task_btf, "as without task storage"),
        of("mmapable arrays", &a.mmapable, "scrapes copy values by system calls"),
        of("batch reads", &a.batch, "scrapes read hashes key by key"),
        of("ring buffers", &a.ringbuf, "slow events come through perf buffers: one for each CPU"),
        of("bpf_probe_read_kernel", &a.probe_read_kernel, "fields cannot be read at raw tracepoints"),
        of("bpf_rdonly_cast", &a.rdonly_cast, "casts and descriptors cost a helper call per field"),
        of("fentry", &a.fentry, "`function:` uses kprobes: slower, and no arguments at the return"),
        of("kprobe_multi", &a.kprobe_multi, "patterns of functions take a kprobe for each function, and at most 128"),
        of("kprobes", &a.kprobe, "`kprobe:` hooks cannot be used, nor functions without BTF"),
        of("bpf_get_func_ip", &a.func_ip, "a pattern of functions does not tell which of them an event is of"),
        of("atomic fetch", &a.atomic_fetch, "slots of label sets are handed out one by one at the start"),
        of("iterators", &a.iter, "`iter:` hooks cannot be used"),
        of("types of modules", &a.module_btf, "arguments of functions of modules have no names and types"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(errno: i32, log: &str) -> String {
        refusal(&Refused { error: io::Error::from_raw_os_error(errno), log: log.into() })
    }

    #[test]
    fn reasons_name_the_cause() {
        let log = "0: (85) call unknown#158\nprogram of this type cannot use helper bpf_get_current_task_btf#158\nprocessed 1 insns";
        assert!(refused(libc::EINVAL, log).contains("unknown#158"));
        assert_eq!(refused(libc::EINVAL, ""), "this kernel does not know this kind of program or map (EINVAL)");
        assert_eq!(refused(libc::ENOSYS, ""), "this kernel was built without bpf(2)");
        assert!(refused(libc::EPERM, "").contains("CAP_BPF and CAP_PERFMON"));
    }

    #[test]
    fn what_perf_needs_is_named_alone() {
        let reason = |have: Capabilities, level| perf_forbidden(&have, level, || "why".into());
        let none = Capabilities::default();
        let perfmon = Capabilities { perfmon: true, ..none };
        let root = Capabilities { sys_admin: true, ..perfmon };
        assert_eq!(reason(none, "2"), "perf_event_open is forbidden: needs CAP_PERFMON");
        let admin = "perf_event_open is forbidden: needs CAP_SYS_ADMIN, as kernel.perf_event_paranoid is 3";
        assert_eq!((reason(none, "3"), reason(perfmon, "3")), (admin.to_owned(), admin.to_owned()));
        assert_eq!(reason(root, "3"), "perf_event_open is forbidden although CAP_SYS_ADMIN is there: why");
    }

    #[test]
    fn a_kernel_that_lacks_fentry_says_what_it_was_built_without() {
        let reason = |tracer| without_fentry(tracer, &io::Error::from_raw_os_error(ENOTSUPP));
        assert!(
            reason(Some(true)).contains("without CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS ("),
            "{}",
            reason(Some(true))
        );
        assert!(reason(Some(false)).contains("without CONFIG_FUNCTION_TRACER ("), "{}", reason(Some(false)));
        assert!(reason(None).contains(" or "), "{}", reason(None));
    }

    #[test]
    fn instructions_are_encoded_as_the_kernel_reads_them() {
        assert_eq!(EXIT.to_le_bytes(), [0x95, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(insn(0x07, 1, 0, 0, -8).to_le_bytes(), [0x07, 0x01, 0, 0, 0xf8, 0xff, 0xff, 0xff]);
        assert_eq!(insn(0x18, 1, 1, -1, 5).to_le_bytes(), [0x18, 0x11, 0xff, 0xff, 5, 0, 0, 0]);
    }
}
