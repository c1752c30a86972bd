//! A checked probe: every name resolved against the target, every node typed. `check` makes it, `build` consumes it.

mod operators;
mod same;

use crate::buckets::BucketSpec;
use crate::diag::{Diagnostic, Place};
use crate::program::{Aggregate, Keep, Limits};

pub use operators::{Arith, Bitfield, Cmp, Unary};

// What the compiler's input says of hooks stands in its output as it is: rooms that know only the output find it here.
pub use crate::hook::{Attach, Binary, Every, PerfEvent, Sampling};
pub use crate::program::{SpanField, StackSpec};

/// A checked probe.
#[derive(Clone, Debug, PartialEq)]
pub struct Probe {
    /// C identifier.
    pub name: String,
    /// Where it runs.
    pub shape: Shape,
    /// What it measures.
    pub metrics: Vec<Metric>,
    /// What it sends of single events.
    pub slow: Option<Slow>,
    /// What was chosen among several ways, and why.
    pub choices: Vec<Choice>,
    /// Expressions that compile but are probably mistakes.
    pub warnings: Vec<Diagnostic>,
    /// The limits to keep.
    pub limits: Limits,
}

/// A choice the compiler made for this kernel: people see it in `explain`, the API and the metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// What the user wrote.
    pub wanted: String,
    /// What it became.
    pub got: String,
    /// Why not something better, each reason a sentence.
    pub because: Vec<String>,
}

/// See [`crate::program::Slow`]. What is read differs by site and lies in [`SlowMeasure`].
#[derive(Clone, Debug, PartialEq)]
pub struct Slow {
    /// Place of `slow.when`.
    pub place: Place,
    /// Field names, types and decoders, in the user's order; those of [`Slow::otlp_span`] last.
    pub fields: Vec<Label>,
    pub otlp_span: Vec<SpanField>,
    /// Most records a second on each CPU.
    pub max_per_second: u32,
    /// See [`crate::program::Slow::buffer_bytes`].
    pub buffer_bytes: Option<u32>,
}

/// What a slow record reads at one site.
#[derive(Clone, Debug, PartialEq)]
pub struct SlowMeasure {
    /// Whether to send one.
    pub when: Expr,
    /// One value per field.
    pub fields: Vec<Expr>,
}

/// See [`crate::program::Shape`]. Hooks that share an attach point are one [`Site`]. A probe whose conditions are never true on the
/// target is [`Shape::At`] no site.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// One measurement per event. `where` is [`Site::filter`].
    At(Vec<Site>),
    /// Paired events.
    Span {
        /// Start sites.
        start: Vec<StartSite>,
        /// End sites.
        end: Vec<EndSite>,
        /// How the two find each other.
        key: SpanKey,
        /// Saved values: name and type (scalars and strings).
        save: Vec<(String, Ty)>,
        /// Which start counts.
        keep: Keep,
        /// Most open spans (hash keys only).
        max_open: u32,
        /// Some metric reads [`Kind::OffCpu`] or [`Kind::OnCpu`], so switches must be watched.
        off_cpu: bool,
        /// Starts are filtered beyond the hook's own selection, so an end without a start is no loss.
        filtered: bool,
    },
    /// State per key.
    Steps {
        /// What finds the state: types of the key.
        key: Vec<Ty>,
        /// Fields of the state: name and type.
        fields: Vec<(String, Ty)>,
        /// Most keys.
        max_entries: u32,
        /// What happens where; steps of one attach point stand together, in the user's order.
        sites: Vec<StepSite>,
    },
    /// Rows read in user space; fields are [`Kind::Arg`]s.
    Poll {
        /// Source name.
        source: String,
        /// Nanoseconds between reads.
        every_ns: u64,
        /// `where`.
        filter: Option<Expr>,
        /// One measurement per metric, in the order of [`Probe::metrics`]; `None` where its condition is never true.
        measures: Vec<Option<Measure>>,
    },
}

/// How starts and ends are paired.
#[derive(Clone, Debug, PartialEq)]
pub enum SpanKey {
    /// By the current task.
    Task,
    /// By values with a known small range each (product at most 65,536): an array index. The domains, in order.
    Dense(Vec<u32>),
    /// By any value: a hash. The types, in order.
    Hash(Vec<Ty>),
}

/// A step of [`Shape::Steps`] at one attach point.
#[derive(Clone, Debug, PartialEq)]
pub struct StepSite {
    /// Where to attach.
    pub attach: Attach,
    /// As the user wrote the hook.
    pub place: Place,
    /// The hook's own selection.
    pub select: Select,
    /// The key.
    pub by: Vec<Expr>,
    /// What of the step's condition needs no state.
    pub filter: Option<Expr>,
    /// What of it does.
    pub state_filter: Option<Expr>,
    /// What must hold besides for something to be measured.
    pub measured: Option<Expr>,
    /// Fields (by index) and their new values.
    pub set: Vec<(u32, Expr)>,
    /// Metrics (by index) measured here.
    pub observe: Vec<(u32, Measure)>,
    /// Whether the state is forgotten.
    pub delete: bool,
    /// What is sent of single events here.
    pub slow: Option<SlowMeasure>,
}

impl StepSite {
    /// All conditions, in the order in which they are looked at.
    pub fn conditions(&self) -> impl Iterator<Item = &Expr> {
        self.filter.iter().chain(&self.state_filter).chain(&self.measured)
    }
}

/// The events of one attach point: which of them count, and what is measured there.
#[derive(Clone, Debug, PartialEq)]
pub struct Site {
    /// Where to attach.
    pub attach: Attach,
    /// As the user wrote the hook(s).
    pub place: Place,
    /// The hook's own selection (system call numbers), then `where`.
    pub select: Select,
    /// `where`.
    pub filter: Option<Expr>,
    /// One measurement per metric, in the order of [`Probe::metrics`]; `None` where its condition is never true.
    pub measures: Vec<Option<Measure>>,
    /// What is sent of single events here.
    pub slow: Option<SlowMeasure>,
}

/// A start site of a span.
#[derive(Clone, Debug, PartialEq)]
pub struct StartSite {
    /// Where to attach.
    pub attach: Attach,
    /// As the user wrote it.
    pub place: Place,
    /// The hook's own selection.
    pub select: Select,
    /// The span's `where`.
    pub filter: Option<Expr>,
    /// The pairing key (empty for [`SpanKey::Task`]).
    pub by: Vec<Expr>,
    /// One value per saved name.
    pub save: Vec<Expr>,
}

/// An end site of a span.
#[derive(Clone, Debug, PartialEq)]
pub struct EndSite {
    /// Where to attach.
    pub attach: Attach,
    /// As the user wrote it.
    pub place: Place,
    /// The hook's own selection.
    pub hook: Select,
    /// What of it has to be looked at: nothing, where the open span tells.
    pub select: Select,
    /// The span's `where` for its end, evaluated before the span is looked up.
    pub before: Option<Expr>,
    /// The probe's `where`.
    pub filter: Option<Expr>,
    /// The pairing key (empty for [`SpanKey::Task`]).
    pub by: Vec<Expr>,
    /// One measurement per metric, in the order of [`Probe::metrics`]; `None` where its condition is never true.
    pub measures: Vec<Option<Measure>>,
    /// What is sent of single events here.
    pub slow: Option<SlowMeasure>,
}

/// Which events of an attach point the hook means.
#[derive(Clone, Debug, PartialEq)]
pub enum Select {
    All,
    /// Those whose value is one of these (sorted): system call numbers.
    OneOf(Expr, Vec<u64>),
    /// Those with this pointer: an iterator runs its program once more at its end, without an object.
    NotNull(Expr),
}

/// A metric's own properties; what it reads differs by site and lies in [`Measure`].
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    /// Name without prefix.
    pub name: String,
    /// Place of the name.
    pub place: Place,
    pub kind: MetricKind,
    /// Label names, types and decoders, in the user's order; those of stacks are followed by the fields of
    /// [`crate::layout::CellKind::Stacks`].
    pub labels: Vec<Label>,
    /// Most label sets.
    pub max_series: u32,
}

/// See [`crate::program::MetricKind`].
#[derive(Clone, Debug, PartialEq)]
pub enum MetricKind {
    /// A sum.
    Counter,
    /// See [`crate::program::MetricKind::Gauge`]; `signed` tells how to read the stored 64 bits.
    Gauge {
        /// Two's complement.
        signed: bool,
        keep: Option<Aggregate>,
    },
    /// A distribution.
    Histogram(BucketSpec),
    /// Sums by call stack.
    Stacks(StackSpec),
}

/// A label: what is stored as the key, and how user space turns it into text.
#[derive(Clone, Debug, PartialEq)]
pub struct Label {
    /// Prometheus label name.
    pub name: String,
    /// Type of the stored value: an integer, a bool, a string or bytes.
    pub ty: Ty,
    /// How to print it.
    pub decoder: Decoder,
    /// Number of possible values `0..n` when small and known (softirq vectors, system calls, bool).
    pub domain: Option<u32>,
}

/// What one metric reads at one site.
#[derive(Clone, Debug, PartialEq)]
pub struct Measure {
    /// The metric's `where`.
    pub filter: Option<Expr>,
    /// The value as an unsigned 64-bit integer (signed for a signed gauge).
    pub value: Expr,
    /// One expression per label.
    pub labels: Vec<Expr>,
}

/// Turns a stored key into label text, in user space, at read time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Decoder {
    /// Decimal.
    Unsigned,
    /// Decimal, two's complement of the type's width.
    Signed,
    /// `true` / `false`.
    Bool,
    /// Bytes up to the first NUL; invalid UTF-8 replaced.
    Str,
    /// System call number to name.
    Syscall,
    /// Error number (positive) to `ENOENT`.
    Errno,
    /// TCP state number to `established`.
    TcpState,
    /// Address family to `ipv4`, `ipv6`, `unix`.
    AddressFamily,
    /// Softirq vector to `net_rx`.
    Softirq,
    /// 4 or 16 bytes in network order to text.
    Ip,
    /// Port in network byte order.
    PortBe,
    /// Interface index to name.
    IfName,
    /// Signal number to `SIGKILL`.
    Signal,
    /// Nanoseconds to seconds; only in events.
    Duration,
    /// Address in hexadecimal; only in events.
    Address,
    /// Kernel address to `symbol`.
    Ksym,
    /// The agent's id of a place in a program or library to the name of what is there.
    PlaceName,
    /// Address in the process of the same record to `symbol`.
    Usym,
    /// Id of a kernel's stack to frames, outermost last; only in events.
    KernelStack,
    /// The same of a stack of the process that the record is of.
    UserStack,
    /// Device number to `sda`.
    Disk,
    /// Named values; others in decimal.
    Enum(Vec<(i64, String)>),
    /// Named values and what all others are; `None` prints decimal.
    Map(Vec<(i64, String)>, Option<String>),
    /// What another decoder makes of it, as one of these texts; what none of them fits is this text, or stays.
    Texts(Box<Decoder>, Vec<(TextPattern, String)>, Option<String>),
    /// Id of a cgroup to what the agent knows it as.
    Cgroup(CgroupName),
}

/// A condition that the agent puts to the text of a label.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TextPattern {
    Is(String),
    /// All that begin so.
    Begins(String),
}

impl TextPattern {
    pub fn fits(&self, text: &str) -> bool {
        match self {
            TextPattern::Is(this) => text == this,
            TextPattern::Begins(so) => text.starts_with(so.as_str()),
        }
    }
}

/// What the processes of a cgroup belong to, by one of its names. The kernel knows ids; only the agent knows these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CgroupName {
    /// Namespace of its pod.
    Namespace,
    /// Name of its pod.
    Pod,
    /// Name of its container.
    Container,
    /// What made its pod: a deployment and the like.
    Workload,
    /// The systemd unit.
    Unit,
    /// The path of the cgroup itself, below the mount of its hierarchy.
    CgroupPath,
}

impl CgroupName {
    /// All of them.
    pub const ALL: [CgroupName; 6] = [
        CgroupName::Namespace,
        CgroupName::Pod,
        CgroupName::Container,
        CgroupName::Workload,
        CgroupName::Unit,
        CgroupName::CgroupPath,
    ];

    /// As the language spells it.
    pub fn name(self) -> &'static str {
        match self {
            CgroupName::Namespace => "namespace",
            CgroupName::Pod => "pod",
            CgroupName::Container => "container",
            CgroupName::Workload => "workload",
            CgroupName::Unit => "unit",
            CgroupName::CgroupPath => "cgroup_path",
        }
    }

    /// The one that is spelled so.
    pub fn of(name: &str) -> Option<CgroupName> {
        CgroupName::ALL.into_iter().find(|known| known.name() == name)
    }
}

/// Which cgroups a condition means: those for which every term holds. Terms are in order of name and values, each once, so that
/// what means the same is equal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Selector {
    /// At least one.
    pub terms: Vec<SelectorTerm>,
}

/// One comparison of a name. What a cgroup has no name for has the empty one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SelectorTerm {
    pub name: CgroupName,
    pub wanted: WantedNames,
    /// It is another one.
    pub negated: bool,
}

/// Which names of a cgroup are meant.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WantedNames {
    OneOf(Vec<String>),
    /// All that begin so.
    Begin(String),
}

impl WantedNames {
    /// Whether the name that a cgroup has not is meant.
    fn has_none(&self) -> bool {
        match self {
            WantedNames::OneOf(values) => values.iter().any(String::is_empty),
            WantedNames::Begin(prefix) => prefix.is_empty(),
        }
    }
}

impl Selector {
    /// Whether it is about pods as a whole: where it holds for a pod's own cgroup, it holds for all cgroups inside.
    pub fn is_of_pods(&self) -> bool {
        let of_pods = |name| matches!(name, CgroupName::Namespace | CgroupName::Pod | CgroupName::Workload);
        // A term that only excludes holds outside of pods as well, where new pods begin.
        let names_pods = |term: &SelectorTerm| !term.negated && !term.wanted.has_none();
        self.terms.iter().all(|term| of_pods(term.name)) && self.terms.iter().any(names_pods)
    }
}

impl std::fmt::Display for Selector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, SelectorTerm { name, wanted, negated }) in self.terms.iter().enumerate() {
            let and = if i > 0 { " && " } else { "" };
            let not = if *negated { "not " } else { "" };
            match wanted {
                WantedNames::OneOf(values) => write!(f, "{and}{} {not}in {values:?}", name.name())?,
                WantedNames::Begin(prefix) => write!(f, "{and}{not}starts_with({}, {prefix:?})", name.name())?,
            }
        }
        Ok(())
    }
}

/// The types of the language. Widths and signs are explicit; nothing widens silently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ty {
    /// 8, 16, 32 or 64 bits. Held in a 64-bit register, zero- or sign-extended.
    Int {
        /// Width in bits.
        bits: u8,
        /// Two's complement.
        signed: bool,
    },
    /// 0 or 1.
    Bool,
    /// A kernel address of a BTF type (0 = void).
    Ptr {
        /// BTF id of what it points to, qualifiers stripped.
        to: u32,
        /// How it may be read.
        trust: Trust,
    },
    /// NUL-padded text of at most this many bytes.
    Str(u16),
    /// Raw bytes (an IPv6 address).
    Bytes(u16),
}

/// How memory behind a pointer may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Trust {
    /// The verifier knows its BTF type: a plain load, faults read as 0.
    Btf,
    /// Only an address to the verifier: `bpf_probe_read_kernel`, faults read as 0.
    Probe,
    /// An address in the current process: `bpf_probe_read_user`.
    User,
}

impl Ty {
    /// Unsigned, 64 bits.
    pub const U64: Ty = Ty::Int { bits: 64, signed: false };
    /// Unsigned, 32 bits.
    pub const U32: Ty = Ty::Int { bits: 32, signed: false };
    pub const S64: Ty = Ty::Int { bits: 64, signed: true };
    pub const S32: Ty = Ty::Int { bits: 32, signed: true };

    /// Bytes it takes in a key or saved state, before alignment.
    pub fn bytes(self) -> u32 {
        match self {
            Ty::Int { bits, .. } => u32::from(bits) / 8,
            Ty::Bool => 1,
            Ty::Ptr { .. } => 8,
            Ty::Str(n) | Ty::Bytes(n) => u32::from(n),
        }
    }
    /// Whether a value fits one 64-bit register.
    pub fn is_scalar(self) -> bool {
        !matches!(self, Ty::Str(_) | Ty::Bytes(_))
    }
}

/// A typed node. Equal ones have equal values, wherever they are written: they are computed once.
#[derive(Clone, Debug)]
pub struct Expr {
    pub kind: Kind,
    /// Its type.
    pub ty: Ty,
    /// Whether it counts nanoseconds (`elapsed`, `10ms`, `nsecs - start.t`).
    pub duration: bool,
    /// Where it was written.
    pub place: Place,
}

/// The kinds of typed node. Operands already have the types the operator wants.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A constant, as the 64 bits of its extended value.
    Const(u64),
    /// A constant string: only as an operand of [`Kind::StrEq`] and kin, or as a whole label.
    Str(Vec<u8>),
    /// `nsecs`: `bpf_ktime_get_ns`.
    Now,
    /// `pid`: thread group id.
    Pid,
    /// `tid`: thread id.
    Tid,
    Uid,
    Gid,
    /// `comm`: 16 bytes.
    Comm,
    /// `cgroup`: id of the current cgroup (v2).
    Cgroup,
    Cpu,
    /// Address of the kernel function that the event is of: `bpf_get_func_ip`.
    FunctionAddress,
    /// Id that the agent gave to the place in a program or library: `bpf_get_attach_cookie`.
    PlaceId,
    /// The current `struct task_struct *`.
    Task,
    /// 64 bits of the program's context at this byte offset, truncated to the node's type: tracepoint argument
    /// `offset / 8` of `tp_btf` and `raw_tp`, or 64-bit perf context words.
    Arg {
        /// Bytes from the context's start.
        offset: u32,
    },
    /// The same, where the verifier refuses to load it as it cannot type it: copied by a helper.
    ArgCopy {
        /// Bytes from the context's start.
        offset: u32,
    },
    /// A field of the perf tracepoint record (or poll row) at this offset, of the node's type's size.
    Field {
        /// Bytes from the record's start.
        offset: u32,
    },
    /// A `__data_loc` string of the perf tracepoint record, as `Str`.
    DataLoc {
        /// Bytes from the record's start to the 4-byte locator.
        offset: u32,
    },
    /// A value read from memory behind `base` (a pointer): `ty.bytes()` bytes at `offset`; 0 when the pointer is null
    /// or the read faults. A bitfield reads `size` bytes, shifts right by `shift` and keeps `width` bits.
    Load {
        /// The pointer; its [`Trust`] says how to read.
        base: Box<Expr>,
        /// Bytes from the pointer.
        offset: i32,
        /// Set for bitfields.
        bitfield: Option<Bitfield>,
    },
    /// `base + offset`: the address of an embedded struct or array; 0 stays 0.
    Offset {
        /// The pointer.
        base: Box<Expr>,
        /// Bytes.
        offset: i32,
    },
    /// `base + index * scale`: an element's address. The check has bounded the index.
    Element {
        /// The array's address.
        base: Box<Expr>,
        /// Unsigned index.
        index: Box<Expr>,
        /// Bytes per element.
        scale: u32,
        /// Elements; an index at or past it reads as 0 (the address becomes null).
        count: u32,
    },
    /// `str(ptr, n)`: NUL-terminated text behind a kernel or user pointer, NUL-padded.
    StrAt(Box<Expr>),
    /// Address of the `struct file` behind a descriptor of the current task, 0 if there is none.
    FdFile(Box<Expr>),
    /// Address of the `struct sock` behind a descriptor of the current task, 0 if it is no socket.
    FdSock(Box<Expr>),
    /// `start.NAME`.
    Saved(u32),
    /// `state.NAME` of [`Shape::Steps`], 0 or empty where nothing was set.
    State(u32),
    /// `kstack` (at most so many frames): id in the stack map, negative when there is none.
    KernelStack,
    /// `ustack`: likewise of the process.
    UserStack,
    /// `elapsed`, nanoseconds.
    Elapsed,
    /// `elapsed.off_cpu`: the part of the span the task was switched out.
    OffCpu,
    /// `elapsed.on_cpu`: the rest.
    OnCpu,
    /// `-a`, `~a`, in the node's width.
    Unary(Unary, Box<Expr>),
    /// `!a` on booleans.
    Not(Box<Expr>),
    /// Arithmetic in the node's width and sign; wraps; division by zero gives 0.
    Arith(Arith, Box<Expr>, Box<Expr>),
    /// Comparison of two operands of one type (sign taken from it); the node is a bool.
    Cmp(Cmp, Box<Expr>, Box<Expr>),
    /// `a && b`: `b` is not evaluated when `a` is false.
    And(Box<Expr>, Box<Expr>),
    /// `a || b`.
    Or(Box<Expr>, Box<Expr>),
    /// `c ? a : b`: only one side is evaluated.
    Cond(Box<Expr>, Box<Expr>, Box<Expr>),
    /// A conversion to the node's type: truncation, zero- or sign-extension (by the operand's sign), non-zero test.
    Convert(Box<Expr>),
    /// Swap the bytes of a 16-, 32- or 64-bit value (`ntohs`, `ntohl`).
    Swap(Box<Expr>),
    /// `log2(x)`: floor, 0 for 0.
    Log2(Box<Expr>),
    /// The first `literal.len()` bytes equal the literal; for whole-string equality the literal ends in NUL
    /// (unless it fills the type).
    StrEq(Box<Expr>, Vec<u8>),
    /// An integer is one of these constants, which ascend.
    OneOf(Box<Expr>, Vec<u64>),
    /// The id is that of a cgroup that the agent says is selected. Stands only among what `&&` joins in a `where`.
    Selected(Box<Expr>, Selector),
}
