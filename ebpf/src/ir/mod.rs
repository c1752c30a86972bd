//! The intermediate representation: structured code over 64-bit variables, small enough to print, verify and interpret.
//!
//! There are no gotos and no loops: a function is a block of statements, blocks nest in `If`, and [`Stmt::Return`] leaves
//! the function with 0. A variable may be assigned in several branches. Every value is 64 bits; widths live in the
//! operations.

pub mod interp;
pub mod print;
#[cfg(test)]
pub(crate) mod sketch;
pub mod verify;

use crate::layout::{Layout, MapId, MapKind};
use crate::typed::Attach;

/// All programs of one probe, with the memory they share.
#[derive(Clone, Debug, PartialEq)]
pub struct Module {
    /// Programs, in the order they should be attached: what closes a span before what opens it.
    pub funcs: Vec<Func>,
    /// Read-only bytes (bucket tables), addressed by [`Op::Rodata`].
    pub rodata: Vec<u8>,
    /// Maps.
    pub layout: Layout,
}

/// One program.
#[derive(Clone, Debug, PartialEq)]
pub struct Func {
    /// C identifier, unique in the module.
    pub name: String,
    /// Where it attaches; `None` for code that only the interpreter runs (poll rows).
    pub attach: Option<Attach>,
    /// The system calls that it measures, where its hook has all of them; `None` where it has to see each event.
    pub calls: Option<Calls>,
    /// When its hook may rest.
    pub duty: Duty,
    /// Number of variables; `Var(0)` holds the context pointer at entry.
    pub vars: u32,
    /// Stack areas, in bytes; each is 8-byte aligned.
    pub slots: Vec<u32>,
    /// The code.
    pub body: Block,
}

/// What a program does for its probe's measurements, which says when its hook may rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Duty {
    /// It has to see each event.
    #[default]
    Always,
    /// What it adds, or the span that it begins, has a weight: its hook may be attached for a share of the time.
    Begins,
    /// Spans end here, and it can be read whether some are open ([`Layout::open`]): its hook may rest with those at which they begin.
    Ends,
    /// It changes open spans alone ([`Layout::open`]): its hook may rest while there are none.
    Watches,
}

/// Bytes of stack that a program may use. The kernel has 512 for a program and the functions that it calls (`MAX_BPF_STACK`), of which it
/// counts 32 for the dispatcher that calls a probe's program as a function ([`crate::dispatch`]).
pub const MAX_STACK_BYTES: u32 = 480;

/// The system calls of a program at `sys_enter` or `sys_exit`. It tests the number itself: what runs the programs of several probes
/// at one hook spares the call by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calls {
    /// Where the event has the number.
    pub number: NumberAt,
    /// Ascending.
    pub numbers: Vec<u32>,
}

/// Where an event has a number of 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberAt {
    /// At this byte of the context.
    Context(i16),
    /// Behind the typed pointer that the context begins with, at this byte.
    FirstArgument(i16),
}

/// The context pointer's variable.
pub const CTX: Var = Var(0);

/// A 64-bit variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Var(pub u32);

/// A stack area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u32);

/// Statements in order.
pub type Block = Vec<Stmt>;

/// A statement.
#[derive(Clone, Debug, PartialEq)]
pub enum Stmt {
    /// What follows comes from this place in the YAML file (1-based; for line info).
    Mark { line: u32, column: u32 },
    /// `var = op`.
    Set(Var, Op),
    /// Runs a call for its effect.
    Call(Call),
    /// `*(uN *)(ptr + offset) = value`; `ptr` points into a map value.
    Store {
        /// Map value pointer.
        ptr: Var,
        /// Bytes.
        offset: i32,
        /// Width.
        size: Size,
        /// What to store.
        value: Operand,
    },
    /// `*(u64 *)(ptr + offset) += value`.
    Add {
        /// Map value pointer.
        ptr: Var,
        /// Bytes.
        offset: i32,
        /// What to add.
        value: Operand,
        /// Several CPUs may hit the same word.
        atomic: bool,
    },
    /// Stores into the stack.
    StoreSlot {
        /// Area.
        slot: Slot,
        /// Bytes from its start; aligned to `size`.
        offset: u32,
        /// Width.
        size: Size,
        /// What to store.
        value: Operand,
    },
    /// Runs one of two blocks.
    If {
        /// The condition.
        cond: Cond,
        /// When it holds.
        then: Block,
        /// When it does not.
        otherwise: Block,
    },
    /// Leaves the program.
    Return,
}

/// A comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cond {
    /// How.
    pub op: CmpOp,
    /// Left side.
    pub a: Var,
    /// Right side.
    pub b: Operand,
}

/// Comparisons of 64-bit values; the `S` ones are signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CmpOp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    SLt,
    SLe,
    SGt,
    SGe,
    /// `a & b != 0`
    Test,
}

/// A value that is already there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// A variable.
    Var(Var),
    /// A constant: any 64 bits.
    Imm(i64),
}

/// Access widths in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Size {
    B1,
    B2,
    B4,
    B8,
}

impl Size {
    /// Width in bytes.
    pub fn bytes(self) -> u32 {
        match self {
            Size::B1 => 1,
            Size::B2 => 2,
            Size::B4 => 4,
            Size::B8 => 8,
        }
    }
    /// The width of `bytes` bytes, if there is one.
    pub fn of(bytes: u32) -> Option<Size> {
        Some(match bytes {
            1 => Size::B1,
            2 => Size::B2,
            4 => Size::B4,
            8 => Size::B8,
            _ => return None,
        })
    }
}

/// Something that gives a value.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    Copy(Operand),
    /// 64-bit arithmetic; wraps.
    Alu(AluOp, Var, Operand),
    /// 32-bit arithmetic on the low halves; wraps; the result is zero-extended.
    Alu32(AluOp, Var, Operand),
    /// Keep the low `bits` (8, 16 or 32), zero- or sign-extended to 64.
    Extend {
        /// Operand.
        a: Var,
        /// 8, 16 or 32.
        bits: u8,
        /// Sign-extend.
        signed: bool,
    },
    /// Swap bytes of the low 16, 32 or 64 bits, zero-extended.
    Swap {
        /// Operand.
        a: Var,
        /// 16, 32 or 64.
        bits: u8,
    },
    /// Zero-extending load. What `ptr` is decides what the verifier allows; see [`Space`].
    Load {
        /// Address.
        ptr: Var,
        /// Bytes.
        offset: i32,
        /// Width.
        size: Size,
        /// What the address points into.
        space: Space,
    },
    /// Zero-extending load from the stack.
    LoadSlot {
        /// Area.
        slot: Slot,
        /// Bytes from its start; aligned to `size`.
        offset: u32,
        /// Width.
        size: Size,
    },
    /// `*(u64 *)(ptr + offset) += value` at once, whatever others add meanwhile; the word as it was before.
    FetchAdd {
        /// Map value pointer.
        ptr: Var,
        /// Bytes.
        offset: i32,
        /// What to add.
        value: Operand,
    },
    /// Address of `rodata + offset`.
    Rodata(u32),
    /// A helper's result.
    Call(Call),
}

/// What an address points into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// The program's context.
    Ctx,
    /// A BTF-typed kernel object: a null or faulting address reads as 0 in the interpreter; programs test for null first.
    Kernel,
    /// A map value.
    Value,
    /// Read-only tables.
    Rodata,
}

/// Arithmetic. Shifts take their count modulo the width. `Div` and `Mod` are unsigned; x / 0 = 0 and x % 0 = x, as in eBPF.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AluOp {
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    And,
    Or,
    Xor,
    Shl,
    Shr,
    /// Arithmetic shift right.
    Sar,
}

/// A call of a kernel helper.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    pub helper: Helper,
    /// Its arguments; [`Helper::params`] tells their kinds.
    pub args: Vec<Arg>,
}

/// An argument of a helper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arg {
    /// A variable.
    Var(Var),
    /// A constant.
    Imm(i64),
    /// The address of a stack area plus an offset.
    Slot(Slot, u32),
    Map(MapId),
}

/// The helpers this compiler uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Helper {
    /// `(map, key slot) -> value pointer or 0`
    MapLookup,
    /// `(map, key slot, value slot, flags) -> 0 or -errno`
    MapUpdate,
    /// `(map, key slot) -> 0 or -errno`
    MapDelete,
    /// `(map, value slot, flags) -> 0 or -errno`
    MapPush,
    /// `(map, value slot) -> 0 or -errno`
    MapPop,
    /// `() -> ns`: CLOCK_MONOTONIC.
    KtimeGetNs,
    /// `() -> 32 random bits`
    GetPrandomU32,
    /// `() -> tgid << 32 | tid`
    GetCurrentPidTgid,
    /// `() -> gid << 32 | uid`
    GetCurrentUidGid,
    /// `(slot, size) -> 0 or -errno`
    GetCurrentComm,
    /// `() -> id`
    GetCurrentCgroupId,
    /// `() -> cpu`
    GetSmpProcessorId,
    /// `(ctx) -> address of the hooked function`
    GetFuncIp,
    /// `(ctx) -> number that was given when the program was attached`
    GetAttachCookie,
    /// `() -> task address`, only an address to the verifier.
    GetCurrentTask,
    /// `() -> task`, a trusted BTF pointer.
    GetCurrentTaskBtf,
    /// `(slot, size, address) -> 0 or -errno`; the area is zeroed on a fault.
    ProbeReadKernel,
    /// `(slot, size, address) -> 0 or -errno`; the area is zeroed on a fault.
    ProbeReadUser,
    /// `(slot, size, address) -> length with NUL or -errno`
    ProbeReadKernelStr,
    /// `(slot, size, address) -> length with NUL or -errno`
    ProbeReadUserStr,
    /// `(map, task, 0, flags) -> value pointer or 0`; flags 1 creates.
    TaskStorageGet,
    /// kfunc `(address, btf id) -> read-only BTF pointer`; the second argument is a constant.
    RdonlyCast,
    /// `(ctx, map, flags) -> stack id or -errno`
    GetStackId,
    /// `(map, value slot, bytes, flags) -> 0 or -errno`
    RingbufOutput,
    /// `(ctx, map, flags, value slot, bytes) -> 0 or -errno`
    PerfEventOutput,
}

/// What a helper's parameter takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Param {
    /// Variable or constant.
    Value,
    /// A variable.
    Var,
    /// A constant.
    Imm,
    /// A stack area the helper reads.
    SlotIn,
    /// A stack area the helper writes.
    SlotOut,
    Map,
    /// The program's context, [`CTX`].
    Context,
}

impl Helper {
    /// Whether the kernel lets this helper work on maps of this kind.
    pub fn takes(self, kind: MapKind) -> bool {
        match self {
            Helper::MapLookup | Helper::MapUpdate => {
                matches!(kind, MapKind::Array { .. } | MapKind::Hash | MapKind::LruHash)
            }
            Helper::MapDelete => matches!(kind, MapKind::Hash | MapKind::LruHash),
            Helper::GetStackId => kind == MapKind::StackTrace,
            Helper::RingbufOutput => kind == MapKind::RingBuf,
            Helper::PerfEventOutput => kind == MapKind::PerfEvents,
            Helper::MapPush | Helper::MapPop => kind == MapKind::Stack,
            Helper::TaskStorageGet => kind == MapKind::TaskStorage,
            _ => false,
        }
    }
    /// Kinds of the parameters, in order.
    pub fn params(self) -> &'static [Param] {
        use Param::{Context, Imm, Map, SlotIn, SlotOut, Value, Var};
        match self {
            Helper::MapLookup | Helper::MapDelete => &[Map, SlotIn],
            Helper::MapUpdate => &[Map, SlotIn, SlotIn, Imm],
            Helper::MapPush => &[Map, SlotIn, Imm],
            Helper::MapPop => &[Map, SlotOut],
            Helper::KtimeGetNs
            | Helper::GetPrandomU32
            | Helper::GetCurrentPidTgid
            | Helper::GetCurrentUidGid
            | Helper::GetCurrentCgroupId
            | Helper::GetSmpProcessorId
            | Helper::GetCurrentTask
            | Helper::GetCurrentTaskBtf => &[],
            Helper::GetFuncIp | Helper::GetAttachCookie => &[Context],
            Helper::GetCurrentComm => &[SlotOut, Imm],
            Helper::ProbeReadKernel | Helper::ProbeReadUser | Helper::ProbeReadKernelStr | Helper::ProbeReadUserStr => {
                &[SlotOut, Imm, Value]
            }
            Helper::TaskStorageGet => &[Map, Var, Imm, Imm],
            Helper::RdonlyCast => &[Var, Imm],
            Helper::GetStackId => &[Context, Map, Imm],
            Helper::RingbufOutput => &[Map, SlotIn, Imm, Imm],
            Helper::PerfEventOutput => &[Context, Map, Imm, SlotIn, Imm],
        }
    }
}
