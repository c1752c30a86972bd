//! Hooks: as users write them ([`HookKind`]), and as what they attach on a kernel ([`Attach`]). What differs from kind to kind and is
//! plain data stands here, so that other rooms ask for it and need no list of the kinds.

use crate::kernel_target::btf::ITERATOR;
use crate::source::SpannedStr;

/// A place in the kernel to run at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    pub kind: HookKind,
    /// As the user wrote it.
    pub text: SpannedStr,
}

impl Hook {
    /// What it may become: itself, or those of `first_of`.
    pub fn alternatives(&self) -> Vec<&Hook> {
        match &self.kind {
            HookKind::FirstOf(hooks) => hooks.iter().collect(),
            _ => vec![self],
        }
    }

    pub(crate) fn texts(&self) -> impl Iterator<Item = &SpannedStr> {
        let inner = match &self.kind {
            HookKind::FirstOf(hooks) => hooks.as_slice(),
            _ => &[],
        };
        [&self.text].into_iter().chain(inner.iter().map(|hook| &hook.text))
    }

    pub(crate) fn for_each_text(&mut self, visit: &mut dyn FnMut(&mut SpannedStr)) {
        visit(&mut self.text);
        if let HookKind::FirstOf(hooks) = &mut self.kind {
            hooks.iter_mut().for_each(|hook| visit(&mut hook.text));
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookKind {
    /// `tracepoint:SYSTEM:EVENT`: fields of the event's `format` as `args.NAME`.
    Tracepoint {
        /// Subsystem, e.g. `sock`.
        system: String,
        /// Event, e.g. `inet_sock_set_state`.
        event: String,
    },
    /// `rawtracepoint:EVENT`: the tracepoint's own C arguments as `args.NAME`, typed by BTF.
    RawTracepoint {
        /// Event, e.g. `softirq_entry`.
        event: String,
    },
    /// `syscall:NAME|[A, B]|*:enter|exit`.
    Syscall {
        /// Architecture-neutral names; empty means every system call.
        names: Vec<String>,
        /// Which end.
        edge: Edge,
    },
    /// `interval:s:1`, on one CPU.
    Interval {
        /// Nanoseconds between two runs.
        period_ns: u64,
    },
    /// `function:`, `fentry:`, `fexit:`, `kprobe:`, `kretprobe:`.
    Function {
        /// Name, or a pattern with `*` and `?`.
        name: String,
        /// Module, where the user names one.
        module: Option<String>,
        /// Bytes into the function (`kprobe:` only).
        offset: u64,
        /// Which end.
        edge: Edge,
        /// Which mechanism.
        via: Via,
    },
    /// `uprobe:PATH:SYMBOL[+OFFSET]`, `uretprobe:PATH:SYMBOL`.
    User {
        /// Program or library.
        binary: Binary,
        /// Symbol, plain or demangled, or a pattern with `*` and `?`.
        symbol: String,
        /// Bytes into the function.
        offset: u64,
        /// Which end.
        edge: Edge,
    },
    /// `usdt:PATH:PROVIDER:NAME`.
    Usdt {
        /// Program or library.
        binary: Binary,
        provider: String,
        name: String,
    },
    /// `profile:hz:99`, `hardware:EVENT:PERIOD`, `software:EVENT:PERIOD`, on every CPU.
    Sample(Sampling),
    /// `iter:task`, `iter:tcp`, ...: one run per object, at each read of the metrics.
    Iter {
        /// Kind of object.
        object: String,
    },
    /// `first_of:` the first of these that this kernel has.
    FirstOf(Vec<Hook>),
}

impl HookKind {
    /// The tracepoint, as `system:event`, whose format says what its fields are.
    pub fn tracepoint(&self) -> Option<String> {
        match self {
            HookKind::Tracepoint { system, event } => Some(format!("{system}:{event}")),
            _ => None,
        }
    }

    /// Name of the tracepoint that it is at, however it is hooked.
    pub fn event(&self) -> Option<&str> {
        match self {
            HookKind::Tracepoint { event, .. } | HookKind::RawTracepoint { event } => Some(event),
            _ => None,
        }
    }

    /// Names under which BTF describes what its programs are given: tracepoints and iterators.
    pub fn btf_events(&self) -> Vec<String> {
        match self {
            HookKind::RawTracepoint { event } => vec![event.clone()],
            HookKind::Syscall { .. } => vec!["sys_enter".into(), "sys_exit".into()],
            HookKind::Iter { object } => vec![format!("{ITERATOR}{object}")],
            _ => Vec::new(),
        }
    }

    /// The system calls that it names; none for all of them.
    pub fn syscalls(&self) -> &[String] {
        match self {
            HookKind::Syscall { names, .. } => names,
            _ => &[],
        }
    }

    /// The program or library that it lies in.
    pub fn binary(&self) -> Option<&Binary> {
        match self {
            HookKind::User { binary, .. } | HookKind::Usdt { binary, .. } => Some(binary),
            _ => None,
        }
    }

    /// The same, to be limited to one process.
    pub fn binary_mut(&mut self) -> Option<&mut Binary> {
        match self {
            HookKind::User { binary, .. } | HookKind::Usdt { binary, .. } => Some(binary),
            _ => None,
        }
    }

    /// The static probe point: file, provider and name.
    pub fn usdt(&self) -> Option<(&Binary, &str, &str)> {
        match self {
            HookKind::Usdt { binary, provider, name } => Some((binary, provider, name)),
            _ => None,
        }
    }

    /// The hardware event that it counts.
    pub fn counter(&self) -> Option<&str> {
        match self {
            HookKind::Sample(Sampling { event: PerfEvent::Hardware(name), .. }) => Some(name),
            _ => None,
        }
    }

    /// What a trace of ftrace records to show the same moments.
    pub fn recorded(&self) -> Recorded {
        let events = |events: Vec<String>| Recorded { events, functions: Vec::new() };
        match self {
            HookKind::Tracepoint { system, event } => events(vec![format!("{system}:{event}")]),
            // A raw tracepoint is known by its name alone; events of ftrace lie in a system.
            HookKind::RawTracepoint { event } => events(vec![format!("*:{event}")]),
            HookKind::Syscall { names, .. } if names.is_empty() => {
                events(["raw_syscalls:sys_enter", "raw_syscalls:sys_exit"].map(String::from).into())
            }
            HookKind::Syscall { names, .. } => {
                let both = |name: &String| ["enter", "exit"].map(|end| format!("syscalls:sys_{end}_{name}"));
                events(names.iter().flat_map(both).collect())
            }
            HookKind::Function { name, .. } => Recorded { events: Vec::new(), functions: vec![name.clone()] },
            // Which of several it is, a kernel says.
            HookKind::FirstOf(_)
            | HookKind::Interval { .. }
            | HookKind::User { .. }
            | HookKind::Usdt { .. }
            | HookKind::Sample(_)
            | HookKind::Iter { .. } => Recorded::default(),
        }
    }

    /// The kernel functions it names, as [`Target::functions`](crate::Target::functions) knows them: `name` or `module:name`.
    pub fn functions(&self) -> Option<String> {
        match self {
            HookKind::Function { name, module: None, .. } => Some(name.clone()),
            HookKind::Function { name, module: Some(module), .. } => Some(format!("{module}:{name}")),
            _ => None,
        }
    }
}

/// What a trace records in place of a hook; nothing where ftrace cannot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// `system:event`, with `*` for any system.
    pub events: Vec<String>,
    /// Kernel functions, or patterns of them.
    pub functions: Vec<String>,
}

/// How a kernel function is hooked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Via {
    /// `function:` the best there is: fentry, kprobe_multi, kprobe.
    Best,
    /// `fentry:`, `fexit:`.
    Fentry,
    /// `kprobe:`, `kretprobe:`.
    Kprobe,
}

/// A program or library, as the user names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Binary {
    /// A path, a pattern of paths, or a library's name (`libc`).
    pub path: String,
    /// Only this process.
    pub pid: Option<u32>,
}

/// What a perf event counts, and after how much of it the program runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sampling {
    /// What is counted.
    pub event: PerfEvent,
    /// How often.
    pub every: Every,
}

/// What a perf event counts.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PerfEvent {
    /// `profile:`: time on each CPU.
    CpuClock,
    /// `hardware:`, by perf's name.
    Hardware(String),
    /// `software:`, by perf's name.
    Software(String),
}

/// How often a perf event runs its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Every {
    /// So many times a second.
    Hertz(u64),
    /// After so many nanoseconds.
    Nanoseconds(u64),
    /// After so many events.
    Events(u64),
}

/// The two ends of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Edge {
    /// Before it runs.
    Enter,
    /// After it ran.
    Exit,
}

/// What attaches where: the compiler's choice for this target.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Attach {
    /// `tp_btf`: arguments are trusted BTF pointers, read directly.
    TpBtf {
        /// Tracepoint name.
        event: String,
    },
    /// `raw_tp`: the same arguments, read through a helper.
    RawTp {
        /// Tracepoint name.
        event: String,
    },
    /// Perf tracepoint: the event's formatted fields.
    Tracepoint {
        /// Subsystem.
        system: String,
        event: String,
    },
    /// cpu-clock on one CPU.
    Interval {
        /// Nanoseconds.
        period_ns: u64,
    },
    /// Entry of a kernel function: arguments are trusted BTF pointers, read directly.
    Fentry {
        function: String,
        /// Module it lies in; `None` for the kernel itself.
        module: Option<String>,
    },
    /// Exit of a kernel function: its arguments, then its result.
    Fexit {
        function: String,
        /// Module it lies in; `None` for the kernel itself.
        module: Option<String>,
    },
    /// Breakpoints or ftrace at kernel functions: registers.
    Kprobe {
        /// Functions, one program for all; each as `name` or `module:name`.
        functions: Vec<String>,
        /// Bytes into each.
        offset: u64,
        /// At the return.
        ret: bool,
        /// One kprobe_multi link rather than one perf event each.
        multi: bool,
    },
    /// Breakpoints in a program or library: registers.
    Uprobe {
        /// Where.
        binary: Binary,
        /// Symbol or pattern.
        symbol: String,
        /// Bytes into each.
        offset: u64,
        /// At the return.
        ret: bool,
        /// uprobe_multi links rather than one perf event each.
        multi: bool,
    },
    /// A static probe point of a program or library: registers.
    Usdt {
        /// Where.
        binary: Binary,
        provider: String,
        name: String,
        /// Only the places whose note says this of the arguments; `None` where the program reads none of them.
        args: Option<String>,
        /// uprobe_multi links rather than one perf event each.
        multi: bool,
    },
    /// A perf event on every CPU.
    Sample(Sampling),
    /// One run per object, when the agent reads the iterator.
    Iter {
        /// Kind of object.
        object: String,
    },
}

impl std::fmt::Display for Attach {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = self.kind();
        let of = |module: &Option<String>| module.as_ref().map(|m| format!("{m}:")).unwrap_or_default();
        let beyond = |offset: u64| if offset == 0 { String::new() } else { format!("+{offset}") };
        match self {
            Attach::TpBtf { event } | Attach::RawTp { event } => write!(f, "{kind}:{event}"),
            Attach::Tracepoint { system, event } => write!(f, "{kind}:{system}:{event}"),
            Attach::Interval { period_ns } => write!(f, "{kind}:{period_ns}ns"),
            Attach::Fentry { function, module } | Attach::Fexit { function, module } => {
                write!(f, "{kind}:{}{function}", of(module))
            }
            Attach::Kprobe { functions, offset, .. } => write!(f, "{kind}:{}{}", functions.join(","), beyond(*offset)),
            Attach::Uprobe { binary, symbol, offset, .. } => {
                write!(f, "{kind}:{}:{symbol}{}", binary.path, beyond(*offset))
            }
            Attach::Usdt { binary, provider, name, args, .. } => {
                let args = args.as_ref().map(|args| format!(" ({args})")).unwrap_or_default();
                write!(f, "{kind}:{}:{provider}:{name}{args}", binary.path)
            }
            Attach::Sample(Sampling { event, every }) => {
                let event = match event {
                    PerfEvent::CpuClock => "",
                    PerfEvent::Hardware(name) | PerfEvent::Software(name) => name,
                };
                match every {
                    Every::Hertz(n) => write!(f, "{kind}:{event}:hz:{n}"),
                    Every::Nanoseconds(n) => write!(f, "{kind}:{event}:{n}ns"),
                    Every::Events(n) => write!(f, "{kind}:{event}:{n}"),
                }
            }
            Attach::Iter { object } => write!(f, "{kind}:{object}"),
        }
    }
}

impl Attach {
    /// How many places it attaches to, as far as they are known before it does.
    pub fn attach_points(&self) -> usize {
        match self {
            Attach::Kprobe { functions, .. } => functions.len(),
            _ => 1,
        }
    }

    /// Whether its program runs at a tracepoint without a perf event: the kernel attaches those in microseconds.
    pub fn is_tracepoint_program(&self) -> bool {
        matches!(self, Attach::TpBtf { .. } | Attach::RawTp { .. })
    }

    /// The mechanism, as metrics and people name it.
    pub fn kind(&self) -> &'static str {
        match self {
            Attach::TpBtf { .. } => "tp_btf",
            Attach::RawTp { .. } => "raw_tp",
            Attach::Tracepoint { .. } => "tracepoint",
            Attach::Interval { .. } => "interval",
            Attach::Fentry { .. } => "fentry",
            Attach::Fexit { .. } => "fexit",
            Attach::Kprobe { ret: false, multi: false, .. } => "kprobe",
            Attach::Kprobe { ret: true, multi: false, .. } => "kretprobe",
            Attach::Kprobe { ret: false, multi: true, .. } => "kprobe_multi",
            Attach::Kprobe { ret: true, multi: true, .. } => "kretprobe_multi",
            Attach::Uprobe { ret: false, multi: false, .. } => "uprobe",
            Attach::Uprobe { ret: true, multi: false, .. } => "uretprobe",
            Attach::Uprobe { ret: false, multi: true, .. } => "uprobe_multi",
            Attach::Uprobe { ret: true, multi: true, .. } => "uretprobe_multi",
            Attach::Usdt { multi: false, .. } => "usdt",
            Attach::Usdt { multi: true, .. } => "usdt_multi",
            Attach::Sample(s) => match s.event {
                PerfEvent::CpuClock => "profile",
                PerfEvent::Hardware(_) => "hardware",
                PerfEvent::Software(_) => "software",
            },
            Attach::Iter { .. } => "iter",
        }
    }
    /// The ELF section of its program: libbpf attaches by it, aya reads the program's type before the `/`.
    pub fn section(&self) -> String {
        match self {
            Attach::TpBtf { event } => format!("tp_btf/{event}"),
            Attach::RawTp { event } => format!("raw_tp/{event}"),
            Attach::Tracepoint { system, event } => format!("tracepoint/{system}/{event}"),
            Attach::Interval { .. } | Attach::Sample(_) => "perf_event".into(),
            Attach::Fentry { function, .. } => format!("fentry/{function}"),
            Attach::Fexit { function, .. } => format!("fexit/{function}"),
            Attach::Kprobe { functions, offset: 0, ret, multi: false } if functions.len() == 1 => {
                format!("{}/{}", if *ret { "kretprobe" } else { "kprobe" }, functions[0])
            }
            Attach::Kprobe { ret: false, .. } | Attach::Usdt { .. } => "kprobe".into(),
            Attach::Kprobe { ret: true, .. } => "kretprobe".into(),
            Attach::Uprobe { ret: false, .. } => "uprobe".into(),
            Attach::Uprobe { ret: true, .. } => "uretprobe".into(),
            Attach::Iter { object } => format!("iter/{object}"),
        }
    }

    /// Why it was chosen, in words.
    pub fn why(&self) -> &'static str {
        match self {
            Attach::TpBtf { .. } => "BTF-typed tracepoint: arguments are read with plain loads",
            Attach::RawTp { .. } => "raw tracepoint: this kernel has no BTF-typed ones",
            Attach::Tracepoint { .. } => "perf tracepoint, as written",
            Attach::Interval { .. } => "cpu-clock on one CPU",
            Attach::Fentry { .. } | Attach::Fexit { .. } => "by BTF: arguments are read with plain loads",
            Attach::Kprobe { multi: true, .. }
            | Attach::Uprobe { multi: true, .. }
            | Attach::Usdt { multi: true, .. } => "one link for all places",
            Attach::Kprobe { .. } | Attach::Uprobe { .. } | Attach::Usdt { .. } => "one perf event for each place",
            Attach::Sample(_) => "a perf event on every CPU",
            Attach::Iter { .. } => "runs when the metrics are read",
        }
    }

    /// What it would be on a kernel that can do more.
    pub fn better(&self) -> Option<Attach> {
        match self {
            Attach::RawTp { event } => Some(Attach::TpBtf { event: event.clone() }),
            _ => None,
        }
    }

    /// The perf tracepoint: system and event.
    pub fn perf_tracepoint(&self) -> Option<(&str, &str)> {
        match self {
            Attach::Tracepoint { system, event } => Some((system, event)),
            _ => None,
        }
    }

    /// Name of the tracepoint that it is at.
    pub fn event(&self) -> Option<&str> {
        match self {
            Attach::TpBtf { event } | Attach::RawTp { event } | Attach::Tracepoint { event, .. } => Some(event),
            _ => None,
        }
    }

    /// Whether its programs are given the arguments of a tracepoint as they are, 8 bytes each.
    pub fn has_arguments(&self) -> bool {
        matches!(self, Attach::TpBtf { .. } | Attach::RawTp { .. })
    }

    /// Nanoseconds between two runs, where a clock starts them.
    pub fn period_ns(&self) -> Option<u64> {
        match self {
            Attach::Interval { period_ns } => Some(*period_ns),
            Attach::Sample(Sampling { event: PerfEvent::CpuClock, every }) => match every {
                Every::Hertz(n) => 1_000_000_000u64.checked_div(*n),
                Every::Nanoseconds(ns) => Some(*ns),
                Every::Events(_) => None,
            },
            _ => None,
        }
    }

    /// How many perf events it takes where so many CPUs are online; `None` when it is not attached to CPUs. Other perf events (of
    /// tracepoints and kprobes) run wherever they are hit.
    pub fn events_of_cpus(&self, online: usize) -> Option<usize> {
        match self {
            Attach::Sample(_) => Some(online),
            Attach::Interval { .. } => Some(1),
            _ => None,
        }
    }

    /// Whether the agent runs it by reading an iterator.
    pub fn is_iterator(&self) -> bool {
        matches!(self, Attach::Iter { .. })
    }

    /// The program or library that it lies in.
    pub fn binary(&self) -> Option<&Binary> {
        match self {
            Attach::Uprobe { binary, .. } | Attach::Usdt { binary, .. } => Some(binary),
            _ => None,
        }
    }
}
