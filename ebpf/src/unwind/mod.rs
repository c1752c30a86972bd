//! Stacks of programs without frame pointers: functions that walk the user stack of the current task by tables that the agent makes of
//! `.eh_frame`, and the [link] that puts them in place of `bpf_get_stackid` for user stacks.
//!
//! The kernel walks frame pointers alone, which Debian's programs and libc are built without. A table has a row for each address at which the
//! rule changes that leads from a frame to the one that called it. The tables of all processes lie in two arrays, [`Maps::rows`] and
//! [`Maps::pieces`]; [`Maps::processes`] says which pieces are a process's. A program finds the piece of an address, and in it the row, by
//! two binary searches without a call of a helper. Loops are those of `bpf_loop` (5.17), whose body the verifier follows once.
//!
//! Where a process has no table yet, its id goes into [`Maps::wanted`], and the kernel's own walk takes its place, as it does for code
//! that lies in no file (of JIT compilers, which keep frame pointers).

mod walk;

use crate::asm::AsmError;
use crate::ir::Helper;
use crate::isa::encode::{decode_slots, slots};
use crate::isa::{Alu, Insn, Op, Reg, helpers};
use crate::kernel_target::Btf;
use crate::kernel_target::btf_write::{Builder, IntKind};
use std::collections::BTreeSet;
use walk::{COUNTS, USER_STACK, WALK_STRIDE};

/// Rows that all tables have together, of 8 bytes.
pub const MAX_ROWS: u32 = 1 << 21;
/// Pieces of all processes.
pub const MAX_PIECES: u32 = 1 << 16;
/// Beyond, code that a process has made itself is left out.
pub const MAX_PIECES_OF_PROCESS: u32 = 1 << 9;
/// Processes that have tables.
pub const MAX_PROCESSES: u32 = 1 << 12;
/// Processes that wait for a look.
pub const MAX_WANTED: u32 = 1 << 10;
/// Most frames of a stack.
pub const MAX_FRAMES: u32 = 127;

/// Of the functions, as the kernel counts: 32 for each that needs no more. A program that calls them can use so much less.
pub const STACK_BYTES: u32 = 64;

/// In the id of a stack: it lies in [`StackMap::unwound`](crate::layout::StackMap::unwound).
pub const UNWOUND: u32 = 1 << 29;
/// Bytes before the frames of a value of that map: a hash of them, and their number.
pub const STACK_HEADER_BYTES: u32 = 16;

/// How the caller's frame is found. `sp` and `bp` are the registers `rsp` and `rbp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// There is no table for the address, or a rule that no row can say: frame pointers are followed.
    Unknown,
    /// The return address is not where the function was called from: that of a uretprobe.
    Stop,
    /// The frame was called by none.
    End,
    /// The canonical frame address is `sp + 8 * words`.
    Sp { words: u16, bp: SavedBp },
    /// The canonical frame address is `bp + 8 * words`.
    Bp { words: u16, bp: SavedBp },
    /// It is read from `bp - 8 * words`, and the caller's `bp` from `bp`: functions that align the stack.
    AlignedBp { words: u16 },
    /// An entry of the procedure linkage table: `sp + 8`, and 8 more from this byte of the entry's 16 on.
    Plt { from: u8 },
    /// The kernel's frame of a signal, which lies at `sp`.
    Signal,
}

/// Where the caller's `bp` is: 0 for in the register, else so many words below the canonical frame address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SavedBp(pub u8);

const KIND_END: i32 = 1;
const KIND_SP: i32 = 2;
const KIND_BP: i32 = 3;
const KIND_ALIGNED: i32 = 4;
const KIND_PLT: i32 = 5;
const KIND_SIGNAL: i32 = 6;
const KIND_STOP: i32 = 7;

/// A row as programs read it: from this address of the file on, the rule holds.
pub fn row(address: u32, rule: Rule) -> u64 {
    let (kind, words, bp) = match rule {
        Rule::Unknown => (0, 0, 0),
        Rule::End => (KIND_END, 0, 0),
        Rule::Sp { words, bp } => (KIND_SP, words, bp.0),
        Rule::Bp { words, bp } => (KIND_BP, words, bp.0),
        Rule::AlignedBp { words } => (KIND_ALIGNED, words, 0),
        Rule::Plt { from } => (KIND_PLT, 0, from),
        Rule::Signal => (KIND_SIGNAL, 0, 0),
        Rule::Stop => (KIND_STOP, 0, 0),
    };
    u64::from(address) | u64::from(words) << 32 | (kind as u64) << 48 | u64::from(bp) << 56
}

/// An executable mapping of a process. One without rows has no table: frame pointers are followed through its code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    pub start: u64,
    pub end: u64,
    /// What is subtracted from an address for that of a row.
    pub bias: u64,
    pub first_row: u32,
    pub rows: u32,
}

pub const PIECE_WORDS: usize = 4;
const PIECE_SHIFT: i32 = 5;
const PIECE_END: i16 = 8;
const PIECE_BIAS: i16 = 16;
const PIECE_FIRST: i16 = 24;
const PIECE_ROWS: i16 = 28;

impl Piece {
    pub fn words(&self) -> [u64; PIECE_WORDS] {
        [self.start, self.end, self.bias, u64::from(self.first_row) | u64::from(self.rows) << 32]
    }
}

/// Bytes of a value of [`Maps::processes`].
pub const PROCESS_BYTES: u32 = 24;

/// A process's table: `stack_start` is where its memory has the stack, which differs after `execve`; programs do not ask for it again before
/// `again_ns` (`CLOCK_MONOTONIC`).
pub fn process(stack_start: u64, first_piece: u32, pieces: u32, again_ns: u64) -> [u8; PROCESS_BYTES as usize] {
    let words = [stack_start, u64::from(first_piece) | u64::from(pieces) << 32, again_ns];
    let mut bytes = [0; PROCESS_BYTES as usize];
    for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

const PROCESS_STACK: i16 = 0;
const PROCESS_FIRST: i16 = 8;
const PROCESS_PIECES: i16 = 12;
const PROCESS_AGAIN: i16 = 16;

/// Values of [`Maps::wanted`]: the process has no table, or one that lacks something.
pub const NO_TABLE: u32 = 0;
pub const LACKING: u32 = 1;

/// How a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It came to the first function of the thread.
    Complete,
    /// The stack has more frames than are kept.
    Deep,
    /// The tables have no rule for an address, and no frame pointer leads on.
    NoRule,
    /// The stack could not be read, or does not grow.
    Unreadable,
    /// An address lies in no known mapping, and no frame pointer leads on.
    NoFile,
    /// The process has no table (yet), or cannot have one, as 32-bit ones and threads of the kernel: the kernel walked.
    NoTable,
    /// Another walk had been interrupted on this CPU: the kernel walked.
    Nested,
    /// The map of stacks was full, or another stack had the same id: the kernel walked.
    NoPlace,
}

impl Outcome {
    /// In the order of their counts.
    pub const ALL: [Outcome; 8] = [
        Outcome::Complete,
        Outcome::Deep,
        Outcome::NoRule,
        Outcome::Unreadable,
        Outcome::NoFile,
        Outcome::NoTable,
        Outcome::Nested,
        Outcome::NoPlace,
    ];

    /// Label value of the metric.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Complete => "complete",
            Outcome::Deep => "too_deep",
            Outcome::NoRule => "no_rule",
            Outcome::Unreadable => "unreadable",
            Outcome::NoFile => "no_file",
            Outcome::NoTable => "no_table",
            Outcome::Nested => "nested",
            Outcome::NoPlace => "no_place",
        }
    }
}

/// Bytes of the value of [`Maps::walks`].
pub fn walks_bytes(cpus: u32) -> u32 {
    WALK_STRIDE * cpus
}

/// Word of [`Maps::walks`] that counts walks with an outcome on a CPU.
pub fn count_at(cpu: u32, outcome: Outcome) -> usize {
    ((cpu * WALK_STRIDE + COUNTS as u32) / 8) as usize + outcome as usize
}

/// Maps by descriptor. All but `processes`, `wanted` and `stacks` are arrays of one element.
#[derive(Clone, Copy, Debug)]
pub struct Maps {
    /// [`MAX_ROWS`] words, see [`row`].
    pub rows: u32,
    /// [`MAX_PIECES`] times [`PIECE_WORDS`].
    pub pieces: u32,
    /// Hash from the id of a process (u32) to [`process`].
    pub processes: u32,
    /// Hash of ids of processes (u32 to u32) that the agent is to look at.
    pub wanted: u32,
    /// See [`walks_bytes`].
    pub walks: u32,
    /// The probe's: hash from id to stack.
    pub stacks: u32,
    /// The probe's first stack trace map.
    pub kernel_stacks: u32,
}

/// Where the kernel keeps what a walk begins with, in bytes from the start of each structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    task_mm: i16,
    task_real_parent: i16,
    task_tgid: i16,
    mm_start_stack: i16,
    regs_ip: i16,
    regs_sp: i16,
    regs_bp: i16,
    regs_cs: i16,
}

impl Facts {
    /// `None` where the types are not those of x86-64.
    pub fn of(types: &Btf) -> Option<Facts> {
        let at = |aggregate: &str, member: &str| {
            let member = types.member(types.find_aggregate(aggregate)?, member)?;
            i16::try_from(member.bit_offset / 8).ok()
        };
        Some(Facts {
            task_mm: at("task_struct", "mm")?,
            task_real_parent: at("task_struct", "real_parent")?,
            task_tgid: at("task_struct", "tgid")?,
            mm_start_stack: at("mm_struct", "start_stack")?,
            regs_ip: at("pt_regs", "ip")?,
            regs_sp: at("pt_regs", "sp")?,
            regs_bp: at("pt_regs", "bp")?,
            regs_cs: at("pt_regs", "cs")?,
        })
    }
}

/// Names of the types of a linked program's functions, and their BTF: the main program's first, then that of all others.
///
/// The verifier takes functions by address from programs with such types alone.
pub fn types() -> Vec<u8> {
    let mut types = Builder::new();
    let int = types.int("int", 4, IntKind::Signed);
    let long = types.int("unsigned long long", 8, IntKind::Unsigned);
    let context = types.ptr(long);
    let prototype = types.func_proto(int, &[("ctx", context)]);
    types.func("kstrobe", prototype, true);
    types.func("function", prototype, false);
    types.finish()
}

/// Numbers of the function types in [`types`].
const MAIN_TYPE: u32 = 5;
const STATIC_TYPE: u32 = 6;

/// `struct bpf_func_info` of all functions of a program, where some is taken by address.
pub fn functions(code: &[u64]) -> Option<Vec<[u32; 2]>> {
    let (mut at, mut by_address, mut starts) = (0, false, BTreeSet::new());
    for insn in decode_slots(code).unwrap_or_default() {
        if matches!(insn.op, Op::CallLocal | Op::LdFunction) {
            starts.insert(at + 1 + insn.imm);
            by_address |= insn.op == Op::LdFunction;
        }
        at += i64::from(insn.slots());
    }
    let others = starts.into_iter().map(|start| [start as u32, STATIC_TYPE]);
    by_address.then(|| [[0, MAIN_TYPE]].into_iter().chain(others).collect())
}

/// A program whose first calls of `bpf_get_stackid` for user stacks call the functions of this module instead, which lie behind it.
/// `None` where there are no such calls.
pub fn link(code: &[u64], maps: &Maps, facts: &Facts, cpus: u32, depth: u32) -> Result<Option<Vec<u64>>, AsmError> {
    let calls = user_stack_calls(code, maps.kernel_stacks);
    if calls.is_empty() {
        return Ok(None);
    }
    let mut linked = code.to_vec();
    for call in calls {
        let distance = code.len() as i32 - call as i32 - 1;
        linked[call] = slots(&[Insn::call_local(distance)])[0];
    }
    linked.extend(walk::functions(maps, facts, cpus, depth)?);
    Ok(Some(linked))
}

/// A linked program that does nothing else, to see whether a kernel takes it.
pub fn trial(maps: &Maps, facts: &Facts, cpus: u32) -> Vec<u64> {
    let call = Insn::call(helpers::id(Helper::GetStackId).unwrap_or_default());
    let insns = [Insn::ld_map(Reg::R2, maps.kernel_stacks), Insn::load_const(Reg::R3, USER_STACK), call, Insn::exit()];
    let code = slots(&insns);
    link(&code, maps, facts, cpus, 1).ok().flatten().unwrap_or(code)
}

/// Slots of calls of `bpf_get_stackid` with this map for the user's stack. Arguments are put into registers right before.
fn user_stack_calls(code: &[u64], map: u32) -> Vec<usize> {
    let mut calls = Vec::new();
    let (mut at, mut is_map, mut is_user) = (0, false, false);
    for insn in decode_slots(code).unwrap_or_default() {
        match insn.op {
            Op::LdMap if insn.dst == Reg::R2 => is_map = insn.imm == i64::from(map),
            Op::AluImm(_, Alu::Mov) if insn.dst == Reg::R3 => is_user = insn.imm == USER_STACK,
            Op::Call if helpers::id(Helper::GetStackId) == u32::try_from(insn.imm).ok() => {
                if is_map && is_user {
                    calls.push(at);
                }
                (is_map, is_user) = (false, false);
            }
            // What was put into registers before is gone, or came another way.
            Op::Call | Op::CallKfunc | Op::CallLocal => (is_map, is_user) = (false, false),
            _ => {}
        }
        at += insn.slots() as usize;
    }
    calls
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: Maps = Maps { rows: 1, pieces: 2, processes: 3, wanted: 4, walks: 5, stacks: 6, kernel_stacks: 7 };
    const FACTS: Facts = Facts {
        task_mm: 8,
        task_real_parent: 16,
        task_tgid: 24,
        mm_start_stack: 32,
        regs_ip: 128,
        regs_sp: 152,
        regs_bp: 32,
        regs_cs: 136,
    };

    fn call(map: u32, flags: i64) -> [Insn; 4] {
        let (map, flags) = (Insn::ld_map(Reg::R2, map), Insn::load_const(Reg::R3, flags));
        [Insn::mov(Reg::R1, Reg::R6), map, flags, Insn::call(helpers::id(Helper::GetStackId).unwrap())]
    }

    fn program(code: &[u64]) -> Vec<Insn> {
        decode_slots(code).unwrap()
    }

    #[test]
    fn only_the_first_try_of_a_user_stack_is_walked() {
        let kernel = call(MAPS.kernel_stacks, 0);
        let second = call(8, USER_STACK);
        let user = call(MAPS.kernel_stacks, USER_STACK);
        let code = slots(&[&kernel[..], &user, &second, &[Insn::exit()]].concat());
        let linked = link(&code, &MAPS, &FACTS, 4, 127).unwrap().unwrap();
        let changed: Vec<usize> = (0..code.len()).filter(|at| code[*at] != linked[*at]).collect();
        assert_eq!(changed, [9], "the call in the second of three groups of five slots");
        assert_eq!(program(&linked[9..10]), [Insn::call_local(code.len() as i32 - 10)]);
        let without = slots(&[&kernel[..], &second, &[Insn::exit()]].concat());
        assert_eq!(link(&without, &MAPS, &FACTS, 4, 127).unwrap(), None);
    }

    #[test]
    fn functions_of_a_linked_program_have_types() {
        let code = slots(&[&call(MAPS.kernel_stacks, USER_STACK)[..], &[Insn::exit()]].concat());
        assert_eq!(functions(&code), None, "there is one function");
        let linked = link(&code, &MAPS, &FACTS, 4, 127).unwrap().unwrap();
        let functions = functions(&linked).unwrap();
        let starts: Vec<u32> = functions.iter().map(|f| f[0]).collect();
        assert_eq!((starts.len(), starts[0], starts[1]), (3, 0, code.len() as u32));
        // Each begins where the one before ends.
        for start in &starts[1..] {
            assert_eq!(program(&linked[*start as usize - 1..*start as usize]), [Insn::exit()]);
        }
        let types = Btf::parse(types()).unwrap();
        let kind = |id| types.ty(id).kind;
        assert!(functions.iter().all(|f| kind(f[1]) == crate::kernel_target::btf::Kind::Func));
    }

    #[test]
    fn rows_and_pieces_lie_as_programs_read_them() {
        let bp = SavedBp(3);
        assert_eq!(row(0x1234_5678, Rule::Sp { words: 0x9a, bp }), 0x0302_009a_1234_5678);
        assert_eq!(row(1, Rule::Unknown), 1);
        assert_eq!(row(1, Rule::Plt { from: 11 }) >> 48, 0x0b05);
        let piece = Piece { start: 1, end: 2, bias: 3, first_row: 4, rows: 5 };
        assert_eq!(piece.words(), [1, 2, 3, 5 << 32 | 4]);
        assert_eq!(PIECE_WORDS * 8, 1 << PIECE_SHIFT);
        let counts: Vec<usize> = Outcome::ALL.map(|outcome| count_at(1, outcome)).to_vec();
        assert!(counts.windows(2).all(|pair| pair[0] + 1 == pair[1]) && counts[0] * 8 > walks_bytes(1) as usize);
    }

    #[test]
    fn facts_are_those_of_x86_64() {
        assert_eq!(Facts::of(&Btf::parse(types()).unwrap()), None);
    }
}
