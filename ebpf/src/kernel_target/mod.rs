//! A kernel as plain data: what the compiler may assume about the machine the program will run on.
//!
//! The agent detects it; [`dump`] writes and reads it as text for tests and bug reports.

pub mod btf;
pub mod btf_write;
pub mod dump;
mod registers;
pub mod syscalls;
pub mod usdt;

use std::borrow::Cow;
use std::collections::BTreeMap;

pub use btf::Btf;

use crate::program::Binary;

/// A description of one kernel.
#[derive(Clone, Debug, Default)]
pub struct Target {
    /// `uname -r`, for messages only: no decision may depend on it.
    pub release: String,
    /// Processor architecture: register names and the system call table depend on it.
    pub arch: Arch,
    /// Possible CPUs (the highest id + 1): the size of per-CPU areas.
    pub cpus: u32,
    /// CPUs of each last-level cache, by the first of them. In a list those that share caches of their own stand together. Empty when
    /// not known.
    pub caches: Vec<Vec<u32>>,
    /// The kernel's own types, when it publishes them.
    pub btf: Option<Btf>,
    /// Formats of the tracepoints some probe asked for, by `system:event`.
    pub tracepoints: BTreeMap<String, TracepointFormat>,
    /// System calls by name.
    pub syscalls: BTreeMap<String, Syscall>,
    /// What the kernel can do.
    pub abilities: Abilities,
    /// Kernel functions some probe asked for that can be hooked, by the pattern that names them.
    pub functions: BTreeMap<String, Vec<Function>>,
    /// Types of the modules that such functions lie in, by module, where the kernel publishes them. They continue `btf`.
    pub modules: BTreeMap<String, Btf>,
    /// Hardware events that some probe counts, by perf's names: whether the machine has counters for them.
    pub counters: BTreeMap<String, Ability>,
    /// Static probe points some probe asked for, by [`usdt_name`]: the different ways in which their notes say where the
    /// arguments are, sorted. Absent when no such point was found.
    pub usdts: BTreeMap<String, Vec<String>>,
    /// The controller of cgroup version 1 whose groups `cgroup` means, where version 2 is not in use.
    pub cgroup_v1: Option<String>,
    /// Row types of the agent's poll sources, by source name.
    pub polls: BTreeMap<String, Vec<Field>>,
    /// Events come as records from an ftrace session, see [`Target::as_session`].
    pub session: bool,
}

impl Target {
    /// The kernel's constant for the place of [`Target::cgroup_v1`] among a task's controllers.
    pub fn cgroup_constant(&self) -> Option<String> {
        // Version 2 has renamed one.
        let name = |controller| if controller == "blkio" { "io" } else { controller };
        self.cgroup_v1.as_deref().map(|controller| format!("{}_cgrp_id", name(controller)))
    }

    /// The same kernel as an ftrace session sees it: events are records, and what does not stand in them cannot be read.
    pub fn as_session(&self) -> Target {
        let no = Ability::No("an ftrace session records events, and nothing else".into());
        let abilities = Abilities {
            tracepoint: Ability::Yes,
            tp_btf: no.clone(),
            raw_tp: no.clone(),
            perf_event: no.clone(),
            task_storage: no.clone(),
            current_task_btf: no.clone(),
            rdonly_cast: no.clone(),
            fentry: no.clone(),
            kprobe: no.clone(),
            kprobe_multi: no.clone(),
            uprobe: no.clone(),
            uprobe_multi: no.clone(),
            iter: no.clone(),
            // What maps can do is up to the interpreter, which has them all.
            mmapable: Ability::Yes,
            batch: Ability::Yes,
            ringbuf: Ability::Yes,
            probe_read_kernel: Ability::Yes,
            module_btf: Ability::Yes,
            atomic_fetch: Ability::Yes,
            func_ip: no,
        };
        Target { abilities, session: true, ..self.clone() }
    }

    /// The same with the types of the module, if it is one alone, that the functions of these patterns lie in: types of two
    /// modules have the same ids, so that a probe can have only one of them.
    pub fn with_module_of<'a>(&self, patterns: impl IntoIterator<Item = &'a str>) -> Cow<'_, Target> {
        let functions = patterns.into_iter().filter_map(|pattern| self.functions.get(pattern)).flatten();
        let mut modules: Vec<&str> = functions.filter_map(|f| f.module.as_deref()).collect();
        modules.sort_unstable();
        modules.dedup();
        match modules[..] {
            [one] => match self.modules.get(one) {
                Some(types) => Cow::Owned(Target { btf: Some(types.clone()), ..self.clone() }),
                None => Cow::Borrowed(self),
            },
            _ => Cow::Borrowed(self),
        }
    }

    /// The types that functions of a module, or of the kernel itself, are described in.
    pub(crate) fn types_of(&self, module: Option<&str>) -> Option<&Btf> {
        let btf = self.btf.as_ref()?;
        match module {
            None => Some(btf.base()),
            Some(module) => self.modules.get(module).filter(|types| types.same(btf)),
        }
    }
}

/// Processor architectures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Arch {
    /// amd64
    #[default]
    X86_64,
    /// arm64
    Aarch64,
}

impl Arch {
    /// Names of the `struct pt_regs` members that hold system call arguments 0..6, as member paths.
    pub fn syscall_args(self) -> [&'static str; 6] {
        match self {
            Arch::X86_64 => ["di", "si", "dx", "r10", "r8", "r9"],
            // At exit `regs[0]` holds the result.
            Arch::Aarch64 => ["orig_x0", "regs[1]", "regs[2]", "regs[3]", "regs[4]", "regs[5]"],
        }
    }
    /// The `struct pt_regs` member that holds the system call number while the call runs.
    pub fn syscall_nr(self) -> &'static str {
        match self {
            Arch::X86_64 => "orig_ax",
            Arch::Aarch64 => "syscallno",
        }
    }
}

/// A kernel function that can be hooked.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Function {
    /// Its symbol, with what the C compiler appended (`.isra.0`).
    pub symbol: String,
    /// The module it lies in; `None` for the kernel itself.
    pub module: Option<String>,
    /// Whether the kernel or one of its modules has another function of this name, as far as the list tells that it was found in.
    pub shared: bool,
    /// Whether ftrace can hook its entry: fentry and kprobe_multi need that, kprobes do not.
    pub traceable: bool,
}

/// A function's name as its source has it, without what the C compiler appended.
pub fn plain_name(symbol: &str) -> &str {
    symbol.split('.').next().unwrap_or(symbol)
}

/// The name under which [`Target::usdts`] has the probe points that a hook means.
pub fn usdt_name(binary: &Binary, provider: &str, name: &str) -> String {
    let process = binary.pid.map(|pid| format!("{pid}:")).unwrap_or_default();
    format!("{process}{}:{provider}:{name}", binary.path)
}

/// One system call.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Syscall {
    /// Its number on this architecture.
    pub number: u32,
    /// Its arguments from tracefs, in order; `None` when tracefs could not be read.
    pub args: Option<Vec<SyscallArg>>,
}

/// One argument of a system call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyscallArg {
    /// Kernel's name, e.g. `fd`.
    pub name: String,
    /// C type as printed in `format`, e.g. `unsigned int`, `struct sockaddr *`.
    pub ctype: String,
}

/// The `format` of a perf tracepoint, without the common fields.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct TracepointFormat {
    /// Fields in order.
    pub fields: Vec<Field>,
}

/// One field of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    pub name: String,
    /// Bytes from the record's start.
    pub offset: u32,
    pub ty: FieldType,
}

/// Types of record fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldType {
    /// An integer of 1, 2, 4 or 8 bytes.
    Int {
        /// Bytes.
        size: u8,
        /// Two's complement.
        signed: bool,
    },
    /// A kernel pointer.
    Pointer,
    /// A char array of this many bytes.
    Str(u16),
    /// A byte array of this many bytes.
    Bytes(u16),
    /// `__data_loc char[]`: offset in the low, length in the high 16 bits.
    DataLoc,
}

/// What a kernel can do, each found by trying, with the reason when it cannot.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Abilities {
    /// Programs at BTF-typed tracepoints.
    pub tp_btf: Ability,
    /// Programs at raw tracepoints.
    pub raw_tp: Ability,
    /// Programs at perf tracepoints.
    pub tracepoint: Ability,
    /// cpu-clock perf events.
    pub perf_event: Ability,
    /// Task storage in tracing programs (5.11).
    pub task_storage: Ability,
    /// `BPF_F_MMAPABLE` arrays (5.5).
    pub mmapable: Ability,
    /// Batch reads of hashes (5.6).
    pub batch: Ability,
    /// `bpf_probe_read_kernel` (5.5); without it `bpf_probe_read`.
    pub probe_read_kernel: Ability,
    /// `bpf_get_current_task_btf` (5.11).
    pub current_task_btf: Ability,
    /// `bpf_rdonly_cast` kfunc (6.2): turns an address into a BTF pointer that is read with plain loads.
    pub rdonly_cast: Ability,
    /// Programs at entry and exit of kernel functions by BTF (5.5).
    pub fentry: Ability,
    /// Perf-event kprobes.
    pub kprobe: Ability,
    /// kprobe_multi links (5.18, with CONFIG_FPROBE).
    pub kprobe_multi: Ability,
    /// Perf-event uprobes.
    pub uprobe: Ability,
    /// uprobe_multi links (6.6).
    pub uprobe_multi: Ability,
    /// `BPF_MAP_TYPE_RINGBUF` (5.8); without it a perf buffer.
    pub ringbuf: Ability,
    /// BTF iterators (5.8).
    pub iter: Ability,
    /// BTF of modules (5.11).
    pub module_btf: Ability,
    /// Atomic additions that give the word as it was before (5.12; arm64 5.18).
    pub atomic_fetch: Ability,
    /// `bpf_get_func_ip` at kprobes (5.15).
    pub func_ip: Ability,
}

impl Abilities {
    /// Each with its name, in the order of a dump.
    pub fn by_name(&mut self) -> [(&'static str, &mut Ability); 20] {
        // Destructured, so that a new ability cannot be forgotten here.
        let Abilities {
            tp_btf,
            raw_tp,
            tracepoint,
            perf_event,
            task_storage,
            mmapable,
            batch,
            probe_read_kernel,
            current_task_btf,
            rdonly_cast,
            fentry,
            kprobe,
            kprobe_multi,
            uprobe,
            uprobe_multi,
            ringbuf,
            iter,
            module_btf,
            atomic_fetch,
            func_ip,
        } = self;
        [
            ("tp_btf", tp_btf),
            ("raw_tp", raw_tp),
            ("tracepoint", tracepoint),
            ("perf_event", perf_event),
            ("task_storage", task_storage),
            ("mmapable", mmapable),
            ("batch", batch),
            ("probe_read_kernel", probe_read_kernel),
            ("current_task_btf", current_task_btf),
            ("rdonly_cast", rdonly_cast),
            ("fentry", fentry),
            ("kprobe", kprobe),
            ("kprobe_multi", kprobe_multi),
            ("uprobe", uprobe),
            ("uprobe_multi", uprobe_multi),
            ("ringbuf", ringbuf),
            ("iter", iter),
            ("module_btf", module_btf),
            ("atomic_fetch", atomic_fetch),
            ("func_ip", func_ip),
        ]
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Ability {
    /// It works.
    Yes,
    /// It does not; the reason as a person would say it.
    No(String),
    /// Not tried.
    #[default]
    Unknown,
}

impl Ability {
    /// Whether it is known to work.
    pub fn yes(&self) -> bool {
        matches!(self, Ability::Yes)
    }
}
