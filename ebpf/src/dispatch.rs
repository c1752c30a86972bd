//! The code around the probes at one hook: what the hook runs (the *entry*), and the program that it continues with, in which each
//! probe's program is a function (the *dispatcher*).
//!
//! The kernel charges each program at a hook for the way to its first instruction, event by event. So a hook has one entry for good, which
//! jumps by a tail call into the dispatcher of the moment. To replace a dispatcher is to write one element of a map: each event
//! runs the old one or the new one, none both, none neither, whatever interrupts or moves the task.
//!
//! One of [`PERIOD`] events, or of a multiple where many come ([`TIMED_OF`]), runs a second dispatcher that takes the time of each function.
//! So does the event before, whose times do not count: its code is then in the caches as the first dispatcher's is, and takes as long.
//!
//! A hook has more programs than one dispatcher can have (the kernel takes 64 maps a program, `MAX_USED_MAPS`)? Then its last step is a
//! tail call into the entry of another one, for the events that some function there wants: that takes a fifth of the way into an entry
//! that the hook runs itself.

use crate::asm::{Label, Writer};
use crate::ir::{Calls, Helper, NumberAt, Size};
use crate::isa::encode::decode_slots;
use crate::isa::{Alu, Insn, Jump, Op, Reg, Width, helpers};
use crate::unwind;
use std::collections::BTreeSet;

pub use crate::asm::AsmError;

/// Most functions of one dispatcher: each has a bit of the word [`ACTIVE`].
pub const MAX_BODIES: usize = u64::BITS as usize - 1;
/// Bit of [`ACTIVE`], and of the words of [`table`], for the entry that follows.
pub const NEXT_BIT: u8 = 63;
/// Numbers of system calls that the table has; those beyond are left to the functions. The tables of x86-64 and arm64 end below.
pub const TABLE_ENTRIES: usize = 512;
/// One of so many events of a CPU is counted, and measured. A prime, so that a load that repeats itself is not always measured at the same
/// place.
pub const PERIOD: u64 = 61;
/// Elements of the map of dispatchers.
pub const PLAIN: u32 = 0;
/// See [`PLAIN`]. When the element is empty, the plain dispatcher runs.
pub const TIMED: u32 = 1;
/// The entry that follows, if any.
pub const NEXT: u32 = 2;
/// Elements of the map of programs.
pub const PROGRAMS: u32 = 3;

/// Bytes of the value of the words' map: those of all CPUs after a line of its own for what all CPUs read.
pub fn words_bytes(cpus: u32) -> u32 {
    LINE * (cpus + 1)
}
/// Two lines of a cache, since neighbours are fetched in pairs.
const LINE: u32 = 128;
/// Byte of the word with one bit for each function that is to run.
pub const ACTIVE: u32 = 0;
/// Byte of the word that says of how many counted events one is measured, which then stands for all of them: a power of two, less 1.
pub const TIMED_OF: u32 = 8;
/// Byte of a CPU's words.
pub fn cpu_words(cpu: u32) -> u32 {
    LINE * (cpu + 1)
}
/// Of a CPU's words: events until one is measured.
const LEFT: i16 = 0;
/// Of a CPU's words: how many events were counted.
pub const ROUNDS: u32 = 8;

/// Bytes of the value of the map of costs, see [`cost_at`]. Behind those of the CPUs are costs that do not count, of all CPUs.
pub fn costs_bytes(cpus: u32, bodies: usize) -> u32 {
    (cpus + 1) * cost_stride(bodies)
}

fn cost_stride(bodies: usize) -> u32 {
    (COST * (bodies as u32 + 1)).next_multiple_of(LINE)
}

/// A sum of nanoseconds and how many were added, each times the counted events for which it stands.
const COST: u32 = 16;
/// What takes longer was interrupted: a program's length is bounded.
const MAX_NS: i32 = 1 << 15;
/// Of a program that walks stacks: 127 frames, each with two searches in tables of megabytes.
const MAX_WALK_NS: i32 = 1 << 17;

/// Byte of a function's cost on a CPU: a sum of nanoseconds, each with one reading of the clock in it, and the number of runs. The
/// cost before the first function's is that of two readings in a row.
pub fn cost_at(cpu: u32, bodies: usize, body: Option<usize>) -> u32 {
    cpu * cost_stride(bodies) + COST * body.map_or(0, |body| body as u32 + 1)
}

/// A probe's program as a function.
#[derive(Clone, Copy, Debug)]
pub struct Body<'a> {
    /// Relocated; it takes the context and leaves by `exit`.
    pub code: &'a [u64],
    /// Bit of [`ACTIVE`].
    pub bit: u8,
    pub calls: Option<&'a Calls>,
}

/// Maps by descriptor. All but the programs are arrays of one element.
#[derive(Clone, Copy, Debug)]
pub struct Maps {
    /// Dispatchers, and the entry that follows.
    pub programs: u32,
    /// See [`words_bytes`].
    pub words: u32,
}

/// What the entries of all hooks share: it wakes the agent when many events come in a short time. Maps by descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Alarm {
    /// An array of one element, [`AlarmWords`]. CPUs change it without locks: two at once may count one event, or send two records.
    pub words: u32,
    /// The ring buffer of the record, one word.
    pub ring: u32,
}

/// The words by which [`Alarm`] counts. Each counted event stands for [`PERIOD`] events of its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum AlarmWords {
    /// Counted events until it is looked at the time; 0 counts none.
    Left,
    /// When it was looked at last, in ns of CLOCK_MONOTONIC.
    Since,
    /// What [`AlarmWords::Left`] begins with again.
    Every,
    /// A record is sent, and [`AlarmWords::Left`] stays 0, when fewer ns have passed since the last look.
    Within,
}

impl AlarmWords {
    pub const BYTES: u32 = (AlarmWords::Within as u32 + 1) * 8;

    const fn at(self) -> i16 {
        self as i16 * 8
    }
}

/// `BPF_RB_FORCE_WAKEUP`: a reader is woken whatever it has read so far.
const FORCE_WAKEUP: i64 = 2;

/// The program that the kernel runs at the hook.
pub fn entry(maps: &Maps, alarm: Option<&Alarm>, cpus: u32) -> Result<Vec<u64>, AsmError> {
    let mut code = Writer::default();
    let [plain, counted, timed] = [(); 3].map(|()| code.fresh());
    code.add(Insn::mov(Reg::R6, Reg::R1));
    code.call(Helper::GetSmpProcessorId);
    code.jump(Insn::jmp_imm(Jump::Ge, Reg::R0, cpus as i32), plain);
    code.words_of_cpu(maps);
    code.add(Insn::ldx(Size::B8, Reg::R2, Reg::R1, LEFT));
    code.jump(Insn::jmp_imm(Jump::Eq, Reg::R2, 0), counted);
    code.add(Insn::alu_imm(Width::W64, Alu::Add, Reg::R2, -1));
    code.add(Insn::stx(Size::B8, Reg::R1, LEFT, Reg::R2));
    code.jump(Insn::jmp_imm(Jump::Ne, Reg::R2, 0), plain);
    // The event before one that is counted.
    code.add(Insn::ldx(Size::B8, Reg::R8, Reg::R1, ROUNDS as i16));
    code.add(Insn::alu_imm(Width::W64, Alu::Add, Reg::R8, 1));
    code.jump(Insn::ja(0), timed);
    code.bind(counted);
    code.add(Insn::st(Size::B8, Reg::R1, LEFT, PERIOD as i32 - 1));
    code.add(Insn::ldx(Size::B8, Reg::R8, Reg::R1, ROUNDS as i16));
    code.add(Insn::alu_imm(Width::W64, Alu::Add, Reg::R8, 1));
    code.add(Insn::stx(Size::B8, Reg::R1, ROUNDS as i16, Reg::R8));
    if let Some(alarm) = alarm {
        code.count_down(alarm, timed);
    }
    code.bind(timed);
    code.timed_of(Reg::R1, maps);
    code.add(Insn::alu_reg(Width::W64, Alu::And, Reg::R8, Reg::R1));
    code.jump(Insn::jmp_imm(Jump::Ne, Reg::R8, 0), plain);
    code.tail_call(maps, TIMED);
    code.bind(plain);
    code.tail_call(maps, PLAIN);
    // There is no dispatcher.
    code.tail_call(maps, NEXT);
    code.leave(0);
    code.finish(&[])
}

/// What a dispatcher is made of.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    pub maps: Maps,
    /// An array of one element with the words of [`table`], where some function has [`Body::calls`].
    pub table: Option<u32>,
    /// In their order.
    pub bodies: &'a [Body<'a>],
    /// Whether it continues with the entry at [`NEXT`].
    pub has_next: bool,
}

/// The dispatcher.
pub fn plain(parts: &Parts<'_>) -> Result<Vec<u64>, AsmError> {
    let mut code = Writer::default();
    code.select(parts);
    let bodies = parts.bodies;
    for (i, body) in bodies.iter().enumerate() {
        let skip = code.fresh();
        code.when_active(body.bit, skip);
        code.run(i);
        code.bind(skip);
    }
    code.go_on(parts);
    code.bind(OUT);
    code.leave(0);
    code.finish(&codes(bodies))
}

/// The same with the functions' code in place of calls: calls and returns, which some processors guard, are much of what it takes
/// to pass an event over. The verifier has to follow what one function leads to through all that come after it, so
/// that this is for few and short ones. `None` for others.
pub fn inline(parts: &Parts<'_>) -> Option<Vec<u64>> {
    let bodies = parts.bodies;
    if bodies.iter().map(|body| body.code.len()).sum::<usize>() > MAX_INLINE_SLOTS {
        return None;
    }
    let mut code = Writer::default();
    code.select(parts);
    // The functions use all registers; their stack ends above these two.
    code.add(Insn::stx(Size::B8, Reg::R10, CONTEXT_AT, Reg::R6));
    code.add(Insn::stx(Size::B8, Reg::R10, BITS_AT, Reg::R7));
    for (i, body) in bodies.iter().enumerate() {
        let skip = code.fresh();
        if i > 0 {
            code.add(Insn::ldx(Size::B8, Reg::R7, Reg::R10, BITS_AT));
        }
        code.when_active(body.bit, skip);
        code.add(Insn::ldx(Size::B8, Reg::R1, Reg::R10, CONTEXT_AT));
        for insn in decode_slots(body.code).ok()? {
            match insn.op {
                Op::Exit => code.jump(Insn::ja(0), skip),
                // It has functions of its own behind it.
                Op::CallLocal | Op::LdFunction => return None,
                _ => code.add(insn),
            }
        }
        code.bind(skip);
    }
    if parts.has_next {
        code.add(Insn::ldx(Size::B8, Reg::R6, Reg::R10, CONTEXT_AT));
        code.add(Insn::ldx(Size::B8, Reg::R7, Reg::R10, BITS_AT));
        code.go_on(parts);
    }
    code.bind(OUT);
    code.leave(0);
    code.finish(&[]).ok()
}

/// Most slots of functions that [`inline`] takes together.
const MAX_INLINE_SLOTS: usize = 4096;

/// Bytes of the stack below those of a function, [`MAX_STACK_BYTES`](crate::ir::MAX_STACK_BYTES).
const CONTEXT_AT: i16 = -(crate::ir::MAX_STACK_BYTES as i16) - 8;
const BITS_AT: i16 = CONTEXT_AT - 8;

/// The same with the time of each function that runs, which it adds to the costs, an array of one element.
pub fn timed(parts: &Parts<'_>, costs: u32, cpus: u32) -> Result<Vec<u64>, AsmError> {
    let mut code = Writer::default();
    let bodies = parts.bodies;
    code.select(parts);
    let (counted, end) = (code.fresh(), code.fresh());
    code.call(Helper::GetSmpProcessorId);
    code.jump(Insn::jmp_imm(Jump::Ge, Reg::R0, cpus as i32), end);
    code.add(Insn::mov(Reg::R9, Reg::R0));
    code.words_of_cpu(&parts.maps);
    code.add(Insn::ldx(Size::B8, Reg::R1, Reg::R1, LEFT));
    code.jump(Insn::jmp_imm(Jump::Ne, Reg::R1, 0), counted);
    // The event before the one that counts: behind the costs of all CPUs.
    code.add(Insn::load_const(Reg::R9, cpus.into()));
    code.bind(counted);
    code.add(Insn::alu_imm(Width::W64, Alu::Mul, Reg::R9, cost_stride(bodies.len()) as i32));
    code.add(Insn::ld_map_value(Reg::R8, costs, 0));
    code.add(Insn::alu_reg(Width::W64, Alu::Add, Reg::R8, Reg::R9));
    code.call(Helper::KtimeGetNs);
    code.add(Insn::mov(Reg::R9, Reg::R0));
    code.lap(&parts.maps, cost_at(0, bodies.len(), None), MAX_NS);
    for (i, body) in bodies.iter().enumerate() {
        let skip = code.fresh();
        code.when_active(body.bit, skip);
        code.run(i);
        let most = if unwind::functions(body.code).is_some() { MAX_WALK_NS } else { MAX_NS };
        code.lap(&parts.maps, cost_at(0, bodies.len(), Some(i)), most);
        code.bind(skip);
    }
    code.bind(end);
    code.go_on(parts);
    code.bind(OUT);
    code.leave(0);
    code.finish(&codes(bodies))
}

/// Descriptors of the maps that relocated code names.
pub fn maps(code: &[u64]) -> BTreeSet<u32> {
    let wide = code.iter().filter(|slot| **slot as u8 == LD_IMM64);
    // The source field says what is loaded: 1 a map, 2 an address in its value.
    wide.filter(|slot| matches!(**slot >> 12 & 0xf, 1 | 2)).map(|slot| (*slot >> 32) as u32).collect()
}

/// Code byte of the load of 64 bits.
const LD_IMM64: u8 = 0x18;

/// For each number of a system call the bits of the functions that measure it, and of what follows; `None` where each of them has to
/// see each event.
pub fn table(bodies: &[Body<'_>]) -> Option<Vec<u64>> {
    number(bodies)?;
    let all =
        bodies.iter().filter(|body| body.calls.is_none()).fold(1 << NEXT_BIT, |bits, body| bits | 1u64 << body.bit);
    let mut words = vec![all; TABLE_ENTRIES];
    for body in bodies {
        for number in body.calls.iter().flat_map(|calls| &calls.numbers) {
            if let Some(word) = words.get_mut(*number as usize) {
                *word |= 1 << body.bit;
            }
        }
    }
    Some(words)
}

/// Whether a function wants events of this number of a system call.
pub fn wants(calls: Option<&Calls>, number: usize) -> bool {
    calls.is_none_or(|calls| calls.numbers.iter().any(|wanted| *wanted as usize == number))
}

/// Where the events of a hook have their number. Functions at one hook agree in it.
fn number(bodies: &[Body<'_>]) -> Option<NumberAt> {
    bodies.iter().find_map(|body| body.calls).map(|calls| calls.number)
}

/// Where all code of a dispatcher ends.
const OUT: Label = Label(0);

impl Writer {
    /// Lets register 1 point to the words of the CPU in register 0, which is lost.
    fn words_of_cpu(&mut self, maps: &Maps) {
        self.add(Insn::alu_imm(Width::W64, Alu::Mul, Reg::R0, LINE as i32));
        self.add(Insn::ld_map_value(Reg::R1, maps.words, cpu_words(0)));
        self.add(Insn::alu_reg(Width::W64, Alu::Add, Reg::R1, Reg::R0));
    }

    /// Loads the word [`TIMED_OF`].
    fn timed_of(&mut self, into: Reg, maps: &Maps) {
        self.add(Insn::ld_map_value(into, maps.words, TIMED_OF));
        self.add(Insn::ldx(Size::B8, into, into, 0));
    }

    /// Counts an event for the alarm. Leads to `end`, if not by what follows.
    fn count_down(&mut self, alarm: &Alarm, end: Label) {
        let soon = self.fresh();
        self.add(Insn::ld_map_value(Reg::R7, alarm.words, 0));
        self.add(Insn::ldx(Size::B8, Reg::R2, Reg::R7, AlarmWords::Left.at()));
        self.jump(Insn::jmp_imm(Jump::Eq, Reg::R2, 0), end);
        self.add(Insn::alu_imm(Width::W64, Alu::Add, Reg::R2, -1));
        // Before what follows: hooks within the calls must not count down to 0 as well.
        self.add(Insn::stx(Size::B8, Reg::R7, AlarmWords::Left.at(), Reg::R2));
        self.jump(Insn::jmp_imm(Jump::Ne, Reg::R2, 0), end);
        self.call(Helper::KtimeGetNs);
        self.add(Insn::mov(Reg::R1, Reg::R0));
        self.add(Insn::ldx(Size::B8, Reg::R2, Reg::R7, AlarmWords::Since.at()));
        self.add(Insn::stx(Size::B8, Reg::R7, AlarmWords::Since.at(), Reg::R0));
        self.add(Insn::alu_reg(Width::W64, Alu::Sub, Reg::R1, Reg::R2));
        self.add(Insn::ldx(Size::B8, Reg::R2, Reg::R7, AlarmWords::Within.at()));
        self.jump(Insn::jmp_reg(Jump::Lt, Reg::R1, Reg::R2), soon);
        self.add(Insn::ldx(Size::B8, Reg::R2, Reg::R7, AlarmWords::Every.at()));
        self.add(Insn::stx(Size::B8, Reg::R7, AlarmWords::Left.at(), Reg::R2));
        self.jump(Insn::ja(0), end);
        self.bind(soon);
        self.add(Insn::stx(Size::B8, Reg::R10, -8, Reg::R0));
        self.add(Insn::ld_map(Reg::R1, alarm.ring));
        self.add(Insn::mov(Reg::R2, Reg::R10));
        self.add(Insn::alu_imm(Width::W64, Alu::Add, Reg::R2, -8));
        self.add(Insn::load_const(Reg::R3, 8));
        self.add(Insn::load_const(Reg::R4, FORCE_WAKEUP));
        self.call(Helper::RingbufOutput);
    }

    /// Continues with the program in this element; goes on here when there is none.
    fn tail_call(&mut self, maps: &Maps, element: u32) {
        self.add(Insn::mov(Reg::R1, Reg::R6));
        self.add(Insn::ld_map(Reg::R2, maps.programs));
        self.add(Insn::load_const(Reg::R3, element.into()));
        self.add(Insn::call(helpers::TAIL_CALL));
    }

    /// Puts the context into register 6, and the bits of the functions that are to run into register 7. Leaves when there are none.
    fn select(&mut self, parts: &Parts<'_>) {
        let Parts { maps, table, bodies, .. } = *parts;
        self.add(Insn::mov(Reg::R6, Reg::R1));
        self.add(Insn::ld_map_value(Reg::R1, maps.words, ACTIVE));
        self.add(Insn::ldx(Size::B8, Reg::R7, Reg::R1, 0));
        if let (Some(table), Some(number)) = (table, number(bodies)) {
            let other = self.fresh();
            match number {
                NumberAt::Context(at) => self.add(Insn::ldx(Size::B8, Reg::R1, Reg::R6, at)),
                NumberAt::FirstArgument(at) => {
                    self.add(Insn::ldx(Size::B8, Reg::R1, Reg::R6, 0));
                    self.add(Insn::ldx(Size::B4, Reg::R1, Reg::R1, at));
                }
            }
            // Numbers have 32 bits.
            self.add(Insn::alu_reg(Width::W32, Alu::Mov, Reg::R1, Reg::R1));
            self.jump(Insn::jmp_imm(Jump::Ge, Reg::R1, TABLE_ENTRIES as i32), other);
            self.add(Insn::alu_imm(Width::W64, Alu::Lsh, Reg::R1, 3));
            self.add(Insn::ld_map_value(Reg::R2, table, 0));
            self.add(Insn::alu_reg(Width::W64, Alu::Add, Reg::R2, Reg::R1));
            self.add(Insn::ldx(Size::B8, Reg::R2, Reg::R2, 0));
            self.add(Insn::alu_reg(Width::W64, Alu::And, Reg::R7, Reg::R2));
            self.bind(other);
        }
        self.jump(Insn::jmp_imm(Jump::Eq, Reg::R7, 0), OUT);
    }

    fn when_active(&mut self, bit: u8, skip: Label) {
        // Immediates have 32 bits and are extended by their sign.
        if bit < 31 {
            let run = self.fresh();
            self.jump(Insn::jmp_imm(Jump::Set, Reg::R7, 1 << bit), run);
            self.jump(Insn::ja(0), skip);
            self.bind(run);
            return;
        }
        self.add(Insn::mov(Reg::R1, Reg::R7));
        self.add(Insn::alu_imm(Width::W64, Alu::Rsh, Reg::R1, bit.into()));
        self.add(Insn::alu_imm(Width::W64, Alu::And, Reg::R1, 1));
        self.jump(Insn::jmp_imm(Jump::Eq, Reg::R1, 0), skip);
    }

    /// Continues with the entry that follows, if one is there and wants the event.
    fn go_on(&mut self, parts: &Parts<'_>) {
        if parts.has_next {
            self.when_active(NEXT_BIT, OUT);
            self.tail_call(&parts.maps, NEXT);
        }
    }

    fn run(&mut self, body: usize) {
        self.add(Insn::mov(Reg::R1, Reg::R6));
        self.function(Insn::call_local(0), body);
    }

    /// Adds the time since the last reading of the clock (register 9) to a cost (register 8 points to those of this CPU). Only one CPU
    /// writes it; an interrupt between may lose one.
    fn lap(&mut self, maps: &Maps, cost: u32, most_ns: i32) {
        let interrupted = self.fresh();
        self.call(Helper::KtimeGetNs);
        self.add(Insn::mov(Reg::R1, Reg::R0));
        self.add(Insn::alu_reg(Width::W64, Alu::Sub, Reg::R1, Reg::R9));
        self.add(Insn::mov(Reg::R9, Reg::R0));
        self.jump(Insn::jmp_imm(Jump::Ge, Reg::R1, most_ns), interrupted);
        let cost = cost as i16;
        self.timed_of(Reg::R3, maps);
        self.add(Insn::alu_imm(Width::W64, Alu::Add, Reg::R3, 1));
        self.add(Insn::alu_reg(Width::W64, Alu::Mul, Reg::R1, Reg::R3));
        self.add(Insn::ldx(Size::B8, Reg::R2, Reg::R8, cost));
        self.add(Insn::alu_reg(Width::W64, Alu::Add, Reg::R2, Reg::R1));
        self.add(Insn::stx(Size::B8, Reg::R8, cost, Reg::R2));
        self.add(Insn::ldx(Size::B8, Reg::R2, Reg::R8, cost + 8));
        self.add(Insn::alu_reg(Width::W64, Alu::Add, Reg::R2, Reg::R3));
        self.add(Insn::stx(Size::B8, Reg::R8, cost + 8, Reg::R2));
        self.bind(interrupted);
    }
}

/// The functions behind a dispatcher.
fn codes<'a>(bodies: &[Body<'a>]) -> Vec<&'a [u64]> {
    bodies.iter().map(|body| body.code).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::encode::slots;

    const MAPS: Maps = Maps { programs: 7, words: 8 };

    /// A function that no other is equal to.
    fn function(mark: i32) -> Vec<u64> {
        slots(&[Insn::load_const(Reg::R2, mark.into()), Insn::load_const(Reg::R0, 0), Insn::exit()])
    }

    fn program(code: &[u64]) -> Vec<Insn> {
        decode_slots(code).unwrap()
    }

    /// The marks of the functions that are called, in the order of the calls.
    fn called(code: &[u64]) -> Vec<i64> {
        let mut at = 0;
        let mut marks = Vec::new();
        for insn in program(code) {
            if insn.op == Op::CallLocal {
                marks.push(program(&code[(at + 1 + insn.imm) as usize..])[0].imm);
            }
            at += i64::from(insn.slots());
        }
        marks
    }

    fn calls(numbers: &[u32]) -> Calls {
        Calls { number: NumberAt::Context(8), numbers: numbers.to_vec() }
    }

    #[test]
    fn each_function_is_called_once_in_order() {
        let codes = [function(10), function(20), function(30)];
        let narrow = calls(&[3]);
        let bodies: Vec<Body<'_>> = codes
            .iter()
            .zip([0, 5, 62])
            .map(|(code, bit)| Body { code, bit, calls: (bit == 5).then_some(&narrow) })
            .collect();
        let parts = |table, has_next| Parts { maps: MAPS, table, bodies: &bodies, has_next };
        for parts in [None, Some(9)].map(|table| [false, true].map(|next| parts(table, next))).as_flattened() {
            assert_eq!(called(&plain(parts).unwrap()), [10, 20, 30]);
            assert_eq!(called(&timed(parts, 6, 4).unwrap()), [10, 20, 30]);
        }
        let all = plain(&parts(Some(9), false)).unwrap();
        assert_eq!(maps(&all), [8, 9].into(), "words and table");
        assert_eq!(maps(&plain(&parts(None, true)).unwrap()), [7, 8].into(), "programs and words");
        assert_eq!(maps(&timed(&parts(None, false), 6, 4).unwrap()), [6, 8].into(), "costs and words");
        assert_eq!(maps(&entry(&MAPS, None, 4).unwrap()), [7, 8].into());
        let alarm = Alarm { words: 10, ring: 11 };
        assert_eq!(maps(&entry(&MAPS, Some(&alarm), 4).unwrap()), [7, 8, 10, 11].into());
    }

    #[test]
    fn inlined_functions_end_where_the_next_begins() {
        let codes = [function(10), function(20)];
        let bodies: Vec<Body<'_>> =
            codes.iter().zip([0, 40]).map(|(code, bit)| Body { code, bit, calls: None }).collect();
        let parts = Parts { maps: MAPS, table: None, bodies: &bodies, has_next: false };
        let code = inline(&parts).unwrap();
        let all = program(&code);
        assert_eq!(all.iter().filter(|insn| insn.op == Op::Exit).count(), 1, "its own");
        let marks = all.iter().filter(|insn| insn.dst == Reg::R2 && [10, 20].contains(&insn.imm));
        assert_eq!(marks.map(|insn| insn.imm).collect::<Vec<_>>(), [10, 20]);
        // The first function's end leads to where the second's bits are read again.
        let end = all.iter().position(|insn| insn.op == Op::Ja && insn.off == 0).unwrap();
        let next = &all[end + 1];
        assert_eq!((next.dst, next.src, next.off), (Reg::R7, Reg::R10, BITS_AT));
        let long = vec![slots(&[Insn::exit()])[0]; MAX_INLINE_SLOTS + 1];
        assert_eq!(inline(&Parts { bodies: &[Body { code: &long, bit: 0, calls: None }], ..parts }), None);
    }

    #[test]
    fn the_table_has_the_bits_of_those_that_measure_a_call() {
        let code = function(1);
        let (first, second) = (calls(&[0, 3]), calls(&[3, 511, 512]));
        let body = |bit, calls| Body { code: &code, bit, calls };
        let words = table(&[body(1, Some(&first)), body(2, Some(&second)), body(6, None)]).unwrap();
        assert_eq!(words.len(), TABLE_ENTRIES);
        let follows = 1 << NEXT_BIT;
        assert!(words.iter().all(|word| word & follows != 0), "until it is known what follows");
        let at = |number: usize| words[number] & !follows;
        assert_eq!([0, 1, 3, 511].map(at), [0b100_0010, 0b100_0000, 0b100_0110, 0b100_0100]);
        assert_eq!(table(&[body(0, None)]), None, "there is nothing to spare");
    }

    #[test]
    fn costs_of_cpus_and_functions_lie_apart() {
        for bodies in [1, 7, 8, MAX_BODIES] {
            let all = (0..3).flat_map(|cpu| {
                let of = move |body| cost_at(cpu, bodies, body);
                [None].into_iter().chain((0..bodies).map(Some)).map(of)
            });
            let all: Vec<u32> = all.collect();
            assert!(all.windows(2).all(|pair| pair[1] >= pair[0] + COST), "{bodies}: {all:?}");
            let not_counted = 3 * cost_stride(bodies);
            assert!(all.last().unwrap() + COST <= not_counted && not_counted < costs_bytes(3, bodies), "{bodies}");
        }
        assert!(cpu_words(3) + ROUNDS + 8 <= words_bytes(4));
    }
}
