//! This machine's kernel as a [`Target`].

use crate::kernel::abilities::{self, known::Known, known::Store};
use crate::kernel::attach::perf_event;
use crate::kernel::error::BtfError;
use crate::kernel::formats;
use crate::kernel::functions;
use crate::kernel::parallel;
use crate::kernel::topology;
use crate::kernel::tracefs::Tracefs;
use kstrobe_ebpf::kernel_target::btf::Kind;
use kstrobe_ebpf::kernel_target::{Abilities, Ability, Arch, Btf, Syscall, Target};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Instant;
use syscalls::SysnoSet;

/// Where the kernel publishes its types.
pub const KERNEL_BTF: &str = "/sys/kernel/btf/vmlinux";

/// What the probes need to know about the kernel beyond what every probe needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Perf tracepoints whose fields are read, as `system:event`.
    pub tracepoints: BTreeSet<String>,
    /// System calls whose arguments are read by name.
    pub syscalls: BTreeSet<String>,
    /// Kernel functions and patterns of them, as `name` or `module:name`.
    pub functions: BTreeSet<String>,
    /// Hardware events that are counted, by perf's names.
    pub counters: BTreeSet<String>,
    /// BTF to use in place of the kernel's own.
    pub btf: Option<PathBuf>,
    /// Try abilities that are known to work, too.
    pub try_all: bool,
}

/// Describes the kernel. Never fails: what cannot be found out is absent, and [`Target::abilities`] says why.
/// [`Target::polls`] and [`Target::usdts`] are left empty.
pub fn detect(wanted: &Wanted) -> Target {
    let begun = Instant::now();
    let types = OnceLock::new();
    let types_of = || types.get_or_init(|| timed(|| read_btf(wanted.btf.as_deref()).inspect(Btf::prepare)));
    let tracefs = Tracefs::open();
    let cpu = first_online_cpu();
    // Types out of a file decide about abilities too, so that what is known does not hold for them.
    let store = (wanted.btf.is_none() && !wanted.try_all).then(Store::here);
    let known = store.as_ref().map(known_abilities).unwrap_or_default();
    let find_functions = || timed(|| functions::find(&wanted.functions, tracefs.as_ref().ok()));
    let ((abilities, abilities_ms), (functions, functions_ms)) = std::thread::scope(|scope| {
        let functions = parallel::beside(scope, &find_functions);
        let abilities = timed(|| abilities::probe(&|| types_of().0.as_ref(), tracefs.as_ref(), cpu, &known));
        (abilities, functions.wait())
    });
    types_of();
    let (btf, types_ms) = types.into_inner().map_or((None, 0), |(types, ms)| (types.ok(), ms));
    if let Some(store) = &store {
        keep_abilities(store, &known, &abilities);
    }
    let tracefs = tracefs.ok();
    let modules = functions::module_types(&functions, btf.as_ref());
    let target = Target {
        session: false,
        release: release(),
        arch: if cfg!(target_arch = "aarch64") { Arch::Aarch64 } else { Arch::X86_64 },
        cpus: possible_cpus(),
        caches: topology::caches(),
        cgroup_v1: cgroup_v1(),
        btf,
        tracepoints: tracepoints(tracefs.as_ref(), &wanted.tracepoints),
        syscalls: system_calls(tracefs.as_ref(), &wanted.syscalls),
        abilities,
        functions,
        modules,
        counters: wanted.counters.iter().map(|name| (name.clone(), perf_event::hardware(name, cpu))).collect(),
        usdts: BTreeMap::new(),
        polls: BTreeMap::new(),
    };
    let ms = milliseconds(begun);
    tracing::debug!(ms, types_ms, abilities_ms, functions_ms, known = !known.is_empty(), "kernel examined");
    target
}

/// A result, and the milliseconds that it took.
fn timed<T>(task: impl FnOnce() -> T) -> (T, u64) {
    let begun = Instant::now();
    let result = task();
    (result, milliseconds(begun))
}

fn milliseconds(begun: Instant) -> u64 {
    begun.elapsed().as_millis().try_into().unwrap_or(u64::MAX)
}

fn known_abilities(store: &Store) -> Known {
    store.read().unwrap_or_else(|reason| {
        tracing::debug!(%reason, "all abilities of the kernel are tried");
        Known::default()
    })
}

/// Keeps abilities for the next start. Without a folder for them, as on a read-only file system, each start tries them.
fn keep_abilities(store: &Store, known: &Known, abilities: &Abilities) {
    let found = Known::of(abilities);
    if found == *known {
        return;
    }
    if let Err(reason) = store.write(&found) {
        tracing::debug!(%reason, "the next start will try all abilities of the kernel again");
    }
}

/// The controller whose groups have names, where that is not version 2.
fn cgroup_v1() -> Option<String> {
    let found = kstrobe_workloads::cgroups::Hierarchies::here(None).ok()?;
    found.followed()?.1.map(str::to_owned)
}

/// BTF from a file, by default the kernel's own, or why there is none.
pub fn read_btf(path: Option<&Path>) -> Result<Btf, BtfError> {
    let file = path.unwrap_or(Path::new(KERNEL_BTF));
    let bytes = std::fs::read(file).map_err(|error| match (path, error.kind()) {
        (None, std::io::ErrorKind::NotFound) => BtfError::Absent,
        _ => BtfError::Read { file: file.to_owned(), error },
    })?;
    Btf::parse(bytes).map_err(|error| BtfError::Parse { file: file.to_owned(), error })
}

/// Why a kernel so found has no types; `None` when it has.
pub fn without_btf(target: &Target) -> Option<String> {
    match (&target.btf, &target.abilities.tp_btf) {
        (Some(_), _) => None,
        (None, Ability::No(reason)) => Some(reason.clone()),
        (None, _) => Some("this kernel publishes no BTF".into()),
    }
}

/// What is lost on a kernel that runs no program while process 1 is current, but that process's own, and counts none of the runs
/// it leaves out as missed; None on others. Linux has no such rule; some kernels made for virtual machines do, and their BTF
/// shows it: `bpf_prog_aux` has `init_owned`.
pub fn without_init(btf: &Btf) -> Option<&'static str> {
    let aux = btf.find("bpf_prog_aux", Kind::Struct)?;
    btf.member(aux, "init_owned")?;
    Some(
        "this kernel runs no program while process 1 is current (its `bpf_prog_aux` has `init_owned`): calls of that process, \
         and interrupts that arrive while it runs, are in no count, nor counted as missed",
    )
}

/// `uname -r`.
pub fn release() -> String {
    nix::sys::utsname::uname().map(|u| u.release().to_string_lossy().into_owned()).unwrap_or_default()
}

/// The first two numbers of a release of the kernel.
pub fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse::<u32>().ok());
    numbers.next().flatten().zip(numbers.next().flatten())
}

/// Whether a task takes a full barrier after each tracepoint of system calls once a grace period of RCU Tasks Trace has seen it
/// (`rcu_read_unlock_trace_special`): since Linux 6.13 such a tracepoint is a reader of that. To detach a program there begins one.
pub fn has_barriers_at_system_calls(btf: &Btf, release: &str) -> bool {
    version(release).is_some_and(|version| version >= (6, 13))
        && btf.find("rcu_read_unlock_trace_special", Kind::Func).is_some()
}

/// Highest possible CPU id + 1: CPUs may come and go below it.
pub fn possible_cpus() -> u32 {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    // Too few would let two CPUs add to one shard without atomics, so without sysfs the next best source counts.
    let of_softirqs = || possible_in(&std::fs::read_to_string("/proc/softirqs").ok()?);
    let online = || std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    cpu_list(&text).last().map(|last| last + 1).or_else(of_softirqs).unwrap_or_else(online)
}

/// The kernel writes a column per possible CPU: `CPU0 CPU1 ...`.
fn possible_in(softirqs: &str) -> Option<u32> {
    let last: u32 = softirqs.lines().next()?.split_whitespace().last()?.strip_prefix("CPU")?.parse().ok()?;
    (last < 1 << 16).then(|| last + 1)
}

/// The lowest CPU that is running: CPU 0 can be offline on some machines.
pub fn first_online_cpu() -> u32 {
    online_cpus().first().copied().unwrap_or(0)
}

/// CPUs that are running; all that may be where sysfs cannot be read.
pub fn online_cpus() -> Vec<u32> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let online = cpu_list(&text);
    if online.is_empty() { (0..possible_cpus()).collect() } else { online }
}

/// `0-3,5` as numbers, ascending. What is not understood is left out.
pub(super) fn cpu_list(text: &str) -> Vec<u32> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>())
            // No kernel has more than 8192 CPUs.
            && last < 1 << 16
        {
            cpus.extend(first..=last);
        }
    }
    cpus.sort_unstable();
    cpus
}

fn tracepoints(
    tracefs: Option<&Tracefs>,
    wanted: &BTreeSet<String>,
) -> BTreeMap<String, kstrobe_ebpf::kernel_target::TracepointFormat> {
    let Some(tracefs) = tracefs else { return BTreeMap::new() };
    let read = |name: &String| {
        let (system, event) = name.split_once(':')?;
        let text = tracefs.read(&format!("events/{system}/{event}/format")).ok()?;
        Some((name.clone(), formats::tracepoint(&text)))
    };
    wanted.iter().filter_map(read).collect()
}

fn system_calls(tracefs: Option<&Tracefs>, wanted: &BTreeSet<String>) -> BTreeMap<String, Syscall> {
    let describe = |call: syscalls::Sysno| {
        let name = call.name().to_string();
        let args = if wanted.contains(&name) { enter_format(tracefs, &name) } else { None };
        let args = args.map(|text| formats::syscall_args(&text));
        (name, Syscall { number: call.id() as u32, args })
    };
    SysnoSet::all().iter().map(describe).collect()
}

/// The format of a system call's enter event. Events carry the name of the kernel's function, which differs for a few calls
/// (`stat` is `newstat`, `sendfile` is `sendfile64`, `umount2` is `umount`).
fn enter_format(tracefs: Option<&Tracefs>, name: &str) -> Option<String> {
    let names = [name.to_string(), format!("new{name}"), format!("{name}64"), name.trim_end_matches('2').to_string()];
    let tracefs = tracefs?;
    names.iter().find_map(|name| tracefs.read(&format!("events/syscalls/sys_enter_{name}/format")).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists() {
        assert_eq!(cpu_list("0-3,5\n"), [0, 1, 2, 3, 5]);
        assert_eq!(cpu_list("0\n"), [0]);
        assert_eq!(cpu_list("8-9,1"), [1, 8, 9]);
        assert_eq!(cpu_list(""), [0; 0]);
        assert_eq!(cpu_list("x,2-,4294967295,0-4294967295,7"), [7]);
    }

    #[test]
    fn cpus_without_sysfs() {
        assert_eq!(possible_in("                    CPU0       CPU1       CPU5\n          HI:  1 2 3\n"), Some(6));
        assert_eq!((possible_in(""), possible_in("HI: 1\n"), possible_in("CPU4294967295\n")), (None, None, None));
        let here = std::fs::read_to_string("/proc/softirqs").unwrap();
        assert_eq!(possible_in(&here), Some(possible_cpus()));
    }

    #[test]
    fn system_call_numbers_are_this_machines() {
        let calls = system_calls(None, &BTreeSet::from(["getpid".to_string()]));
        assert_eq!(calls["getpid"].number, libc::SYS_getpid as u32);
        assert_eq!(calls["recvfrom"].number, libc::SYS_recvfrom as u32);
        assert_eq!(calls["getpid"].args, None, "without tracefs they are unknown");
        assert!(calls.len() > 300);
    }

    #[test]
    fn a_target_comes_out_even_without_rights() {
        let target = detect(&Wanted { tracepoints: ["no:such".to_string()].into(), ..Wanted::default() });
        assert!(target.cpus >= 1);
        assert!(!target.release.is_empty());
        assert!(target.tracepoints.is_empty());
        assert_ne!(target.abilities.raw_tp, kstrobe_ebpf::kernel_target::Ability::Unknown);
    }
}
