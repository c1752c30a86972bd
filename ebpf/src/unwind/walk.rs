//! The code of a walk: the function that takes the place of `bpf_get_stackid`, and the step from one frame to the next.

use super::{
    Facts, KIND_ALIGNED, KIND_BP, KIND_END, KIND_PLT, KIND_SIGNAL, KIND_SP, KIND_STOP, LACKING, MAX_FRAMES, MAX_PIECES,
    MAX_PIECES_OF_PROCESS, MAX_ROWS, Maps, NO_TABLE, Outcome, PIECE_BIAS, PIECE_END, PIECE_FIRST, PIECE_ROWS,
    PIECE_SHIFT, PROCESS_AGAIN, PROCESS_FIRST, PROCESS_PIECES, PROCESS_STACK, STACK_HEADER_BYTES, UNWOUND,
};
use crate::asm::{AsmError, Label, Writer};
use crate::ir::{Helper, Size};
use crate::isa::{Alu, Insn, Jump, Reg, Width};

// Bytes of a CPU's words in `Maps::walks`.
const BUSY: i16 = 0;
const PC: i16 = 8;
const SP: i16 = 16;
const BP: i16 = 24;
/// Two words read from the stack: the caller's `bp` and the return address.
const READ_BP: i16 = 32;
const READ_PC: i16 = 40;
const FIRST: i16 = 48;
const PIECES: i16 = 52;
/// Not 0: the address is that of the next instruction to run, else that after a call.
const EXACT: i16 = 56;
const OUTCOME: i16 = 64;
/// Not 0: an address lay in no piece, or the tables did not lead on.
const CHANGED: i16 = 72;
/// Never written.
const ZERO: i16 = 80;
/// [`PROCESS_AGAIN`]
const AGAIN: i16 = 88;
pub(super) const COUNTS: i16 = 96;
/// The value of the map of stacks: hash, number, frames.
const HASH: i16 = COUNTS + 8 * Outcome::ALL.len() as i16;
const NUMBER: i16 = HASH + 8;
const FRAMES: i16 = HASH + STACK_HEADER_BYTES as i16;
pub(super) const WALK_STRIDE: u32 = (FRAMES as u32 + 8 * MAX_FRAMES).next_multiple_of(128);

const fn count_offset(outcome: Outcome) -> i16 {
    COUNTS + 8 * outcome as i16
}

/// `bpf_task_pt_regs` (5.15) and `bpf_loop` (5.17). No probe calls them.
const TASK_PT_REGS: u32 = 175;
const LOOP: u32 = 181;
/// `BPF_F_USER_STACK`
pub(super) const USER_STACK: i64 = 1 << 8;
/// Code segment of 64-bit programs (`__USER_CS`); others have no tables.
const USER_CS: i32 = 0x33;
/// `BPF_NOEXIST`
const NOEXIST: i64 = 1;
const EEXIST: i32 = 17;
/// Odd, with its bits spread evenly: 2 to the 64th by the golden ratio.
const MIX: i64 = 0x9e37_79b9_7f4a_7c15_u64 as i64;
/// Bits of an id: below [`UNWOUND`].
const ID_BITS: i32 = UNWOUND.trailing_zeros() as i32;
/// Of the kernel's frame of a signal, from `sp` on: `ucontext_t.uc_mcontext.gregs` (x86-64).
const SIGNAL_BP: i32 = 40 + 8 * 10;
const SIGNAL_SP: i32 = 40 + 8 * 15;
const SIGNAL_PC: i32 = 40 + 8 * 16;

/// The functions: `(ctx, stack trace map, BPF_F_USER_STACK) -> id or error`, as `bpf_get_stackid`, and the step from one frame to the
/// next.
pub(super) fn functions(maps: &Maps, facts: &Facts, cpus: u32, depth: u32) -> Result<Vec<u64>, AsmError> {
    let mut frame = Writer::default();
    frame.frame(maps, depth);
    let mut main = Writer::default();
    main.walk(maps, facts, cpus, depth);
    main.finish(&[&frame.finish(&[])?])
}

// Below the stack pointer of the walk.
const WALK_AT: i16 = -8;
const TASK_AT: i16 = -16;
const KEY_AT: i16 = -24;
const VALUE_AT: i16 = -32;

impl Writer {
    fn load(&mut self, size: Size, dst: Reg, src: Reg, off: i16) {
        self.add(Insn::ldx(size, dst, src, off));
    }
    fn store(&mut self, dst: Reg, off: i16, src: Reg) {
        self.add(Insn::stx(Size::B8, dst, off, src));
    }
    fn alu(&mut self, op: Alu, dst: Reg, src: Reg) {
        self.add(Insn::alu_reg(Width::W64, op, dst, src));
    }
    fn alu_imm(&mut self, op: Alu, dst: Reg, imm: i32) {
        self.add(Insn::alu_imm(Width::W64, op, dst, imm));
    }
    fn mov(&mut self, dst: Reg, src: Reg) {
        self.add(Insn::mov(dst, src));
    }
    /// `dst = src + imm`
    fn offset(&mut self, dst: Reg, src: Reg, imm: i32) {
        self.mov(dst, src);
        self.alu_imm(Alu::Add, dst, imm);
    }

    /// Looks the process up whose id lies at [`KEY_AT`]: register 0.
    fn look_up_process(&mut self, maps: &Maps, missing: Label) {
        self.add(Insn::ld_map(Reg::R1, maps.processes));
        self.offset(Reg::R2, Reg::R10, KEY_AT.into());
        self.call(Helper::MapLookup);
        self.jump(Insn::jmp_imm(Jump::Eq, Reg::R0, 0), missing);
        // Of other memory than the task's.
        self.load(Size::B8, Reg::R1, Reg::R0, PROCESS_STACK);
        self.jump(Insn::jmp_reg(Jump::Ne, Reg::R1, Reg::R8), missing);
    }

    /// Asks the agent to look at the process whose id lies at [`KEY_AT`].
    fn want(&mut self, maps: &Maps, why: u32) {
        self.add(Insn::st(Size::B4, Reg::R10, VALUE_AT, why as i32));
        self.add(Insn::ld_map(Reg::R1, maps.wanted));
        self.offset(Reg::R2, Reg::R10, KEY_AT.into());
        self.offset(Reg::R3, Reg::R10, VALUE_AT.into());
        self.add(Insn::load_const(Reg::R4, NOEXIST));
        self.call(Helper::MapUpdate);
    }

    /// Its only function is the step from one frame to the next.
    fn walk(&mut self, maps: &Maps, facts: &Facts, cpus: u32, depth: u32) {
        let [helper, release, nested, none, no_table] = [(); 5].map(|()| self.fresh());
        self.mov(Reg::R6, Reg::R1);
        self.mov(Reg::R7, Reg::R2);
        self.call(Helper::GetSmpProcessorId);
        self.jump(Insn::jmp_imm(Jump::Ge, Reg::R0, cpus as i32), helper);
        self.alu_imm(Alu::Mul, Reg::R0, WALK_STRIDE as i32);
        self.add(Insn::ld_map_value(Reg::R9, maps.walks, 0));
        self.alu(Alu::Add, Reg::R9, Reg::R0);
        self.store(Reg::R10, WALK_AT, Reg::R9);
        self.add(Insn::load_const(Reg::R1, 1));
        self.add(Insn::fetch_add(Reg::R9, BUSY, Reg::R1));
        self.jump(Insn::jmp_imm(Jump::Ne, Reg::R1, 0), nested);
        self.registers(facts, no_table);
        self.table(maps, facts, none, no_table);
        for (at, value) in [(NUMBER, 0), (HASH, 0), (CHANGED, 0), (EXACT, 1), (OUTCOME, Outcome::Deep as i32)] {
            self.add(Insn::st(Size::B8, Reg::R9, at, value));
        }
        self.add(Insn::load_const(Reg::R1, depth.into()));
        self.function(Insn::ld_function(Reg::R2, 0), 0);
        self.offset(Reg::R3, Reg::R10, WALK_AT.into());
        self.add(Insn::load_const(Reg::R4, 0));
        self.add(Insn::call(LOOP));
        self.count_outcome();
        let same = self.fresh();
        self.load(Size::B8, Reg::R1, Reg::R9, CHANGED);
        self.jump(Insn::jmp_imm(Jump::Eq, Reg::R1, 0), same);
        self.want_again(maps, same);
        self.bind(same);
        self.keep(maps, release);
        self.bind(none);
        self.want(maps, NO_TABLE);
        self.bind(no_table);
        self.count(Outcome::NoTable);
        self.jump(Insn::ja(0), release);
        self.bind(nested);
        self.add(Insn::load_const(Reg::R1, 1));
        self.add(Insn::atomic_add(Reg::R9, count_offset(Outcome::Nested), Reg::R1));
        self.bind(release);
        self.release();
        self.bind(helper);
        self.mov(Reg::R1, Reg::R6);
        self.mov(Reg::R2, Reg::R7);
        self.add(Insn::load_const(Reg::R3, USER_STACK));
        self.call(Helper::GetStackId);
        self.add(Insn::exit());
    }

    fn release(&mut self) {
        self.add(Insn::load_const(Reg::R1, -1));
        self.add(Insn::atomic_add(Reg::R9, BUSY, Reg::R1));
    }

    /// What the task's registers were in user space; register 8 is where its memory has the stack.
    fn registers(&mut self, facts: &Facts, none: Label) {
        self.call(Helper::GetCurrentTaskBtf);
        self.store(Reg::R10, TASK_AT, Reg::R0);
        self.load(Size::B8, Reg::R1, Reg::R0, facts.task_mm);
        self.jump(Insn::jmp_imm(Jump::Eq, Reg::R1, 0), none);
        self.load(Size::B8, Reg::R8, Reg::R1, facts.mm_start_stack);
        self.mov(Reg::R1, Reg::R0);
        self.add(Insn::call(TASK_PT_REGS));
        self.load(Size::B8, Reg::R1, Reg::R0, facts.regs_cs);
        self.alu_imm(Alu::And, Reg::R1, 0xffff);
        self.jump(Insn::jmp_imm(Jump::Ne, Reg::R1, USER_CS), none);
        for (from, to) in [(facts.regs_ip, PC), (facts.regs_sp, SP), (facts.regs_bp, BP)] {
            self.load(Size::B8, Reg::R1, Reg::R0, from);
            self.store(Reg::R9, to, Reg::R1);
        }
    }

    fn key_of_current(&mut self) {
        self.call(Helper::GetCurrentPidTgid);
        self.alu_imm(Alu::Rsh, Reg::R0, 32);
        self.store(Reg::R10, KEY_AT, Reg::R0);
    }

    /// The process's pieces, or those of the process that it was forked from, which has the same memory. Goes to `none`, with the process's
    /// id at [`KEY_AT`], where neither is known, and to `empty` where there are none.
    fn table(&mut self, maps: &Maps, facts: &Facts, none: Label, empty: Label) {
        let [missing, found, no_parent] = [(); 3].map(|()| self.fresh());
        self.key_of_current();
        self.look_up_process(maps, missing);
        self.jump(Insn::ja(0), found);
        self.bind(no_parent);
        self.key_of_current();
        self.jump(Insn::ja(0), none);
        self.bind(missing);
        self.load(Size::B8, Reg::R1, Reg::R10, TASK_AT);
        self.load(Size::B8, Reg::R1, Reg::R1, facts.task_real_parent);
        self.jump(Insn::jmp_imm(Jump::Eq, Reg::R1, 0), none);
        self.load(Size::B4, Reg::R1, Reg::R1, facts.task_tgid);
        self.store(Reg::R10, KEY_AT, Reg::R1);
        self.look_up_process(maps, no_parent);
        self.bind(found);
        self.load(Size::B8, Reg::R1, Reg::R0, PROCESS_AGAIN);
        self.store(Reg::R9, AGAIN, Reg::R1);
        self.load(Size::B4, Reg::R1, Reg::R0, PROCESS_PIECES);
        self.add(Insn::stx(Size::B4, Reg::R9, PIECES, Reg::R1));
        self.load(Size::B4, Reg::R2, Reg::R0, PROCESS_FIRST);
        self.add(Insn::stx(Size::B4, Reg::R9, FIRST, Reg::R2));
        let some = self.fresh();
        self.jump(Insn::jmp_imm(Jump::Ne, Reg::R1, 0), some);
        self.want_again(maps, empty);
        self.jump(Insn::ja(0), empty);
        self.bind(some);
    }

    /// Asks for what a process's table lacks, if the agent's last look was long enough ago.
    fn want_again(&mut self, maps: &Maps, not_yet: Label) {
        self.call(Helper::KtimeGetNs);
        self.load(Size::B8, Reg::R1, Reg::R9, AGAIN);
        self.jump(Insn::jmp_reg(Jump::Lt, Reg::R0, Reg::R1), not_yet);
        self.key_of_current();
        self.want(maps, LACKING);
    }

    /// Puts the stack into the probe's map and leaves with its id, a part of its hash.
    fn keep(&mut self, maps: &Maps, release: Label) {
        let [new, done, no_place] = [(); 3].map(|()| self.fresh());
        self.load(Size::B8, Reg::R8, Reg::R9, HASH);
        self.alu_imm(Alu::Rsh, Reg::R8, 64 - ID_BITS);
        self.store(Reg::R10, KEY_AT, Reg::R8);
        self.add(Insn::ld_map(Reg::R1, maps.stacks));
        self.offset(Reg::R2, Reg::R10, KEY_AT.into());
        self.call(Helper::MapLookup);
        self.jump(Insn::jmp_imm(Jump::Eq, Reg::R0, 0), new);
        self.load(Size::B8, Reg::R1, Reg::R0, 0);
        self.load(Size::B8, Reg::R2, Reg::R9, HASH);
        self.jump(Insn::jmp_reg(Jump::Eq, Reg::R1, Reg::R2), done);
        self.jump(Insn::ja(0), no_place);
        self.bind(new);
        self.add(Insn::ld_map(Reg::R1, maps.stacks));
        self.offset(Reg::R2, Reg::R10, KEY_AT.into());
        self.offset(Reg::R3, Reg::R9, HASH.into());
        self.add(Insn::load_const(Reg::R4, NOEXIST));
        self.call(Helper::MapUpdate);
        self.jump(Insn::jmp_imm(Jump::Eq, Reg::R0, 0), done);
        // Another CPU has added it.
        self.jump(Insn::jmp_imm(Jump::Ne, Reg::R0, -EEXIST), no_place);
        self.bind(done);
        self.release();
        self.mov(Reg::R0, Reg::R8);
        self.alu_imm(Alu::Or, Reg::R0, UNWOUND as i32);
        self.add(Insn::exit());
        self.bind(no_place);
        self.count(Outcome::NoPlace);
        self.jump(Insn::ja(0), release);
    }

    fn count_outcome(&mut self) {
        let none = self.fresh();
        self.load(Size::B8, Reg::R1, Reg::R9, OUTCOME);
        self.jump(Insn::jmp_imm(Jump::Ge, Reg::R1, Outcome::ALL.len() as i32), none);
        self.alu_imm(Alu::Lsh, Reg::R1, 3);
        self.alu(Alu::Add, Reg::R1, Reg::R9);
        self.load(Size::B8, Reg::R2, Reg::R1, COUNTS);
        self.alu_imm(Alu::Add, Reg::R2, 1);
        self.store(Reg::R1, COUNTS, Reg::R2);
        self.bind(none);
    }

    fn count(&mut self, outcome: Outcome) {
        let at = count_offset(outcome);
        self.load(Size::B8, Reg::R1, Reg::R9, at);
        self.alu_imm(Alu::Add, Reg::R1, 1);
        self.store(Reg::R9, at, Reg::R1);
    }

    /// `(number of the round, address of the walk's address) -> whether to stop`: adds the frame and finds the one that called it.
    fn frame(&mut self, maps: &Maps, depth: u32) {
        let [end, stop, no_rule, unreadable, advance] = [(); 5].map(|()| self.fresh());
        self.load(Size::B8, Reg::R9, Reg::R2, 0);
        self.load(Size::B8, Reg::R6, Reg::R9, PC);
        self.add_frame(depth, stop);
        // An address after a call may be that of the next function.
        let exact = self.fresh();
        self.load(Size::B8, Reg::R1, Reg::R9, EXACT);
        self.jump(Insn::jmp_imm(Jump::Ne, Reg::R1, 0), exact);
        self.alu_imm(Alu::Add, Reg::R6, -1);
        self.bind(exact);
        self.add(Insn::st(Size::B8, Reg::R9, EXACT, 0));
        let outside = self.fresh();
        let chain = self.fresh();
        self.find_piece(maps, outside, no_rule);
        self.find_row(maps, no_rule);
        self.caller(&Labels { end, no_rule, unreadable, advance });
        self.bind(unreadable);
        self.add(Insn::st(Size::B8, Reg::R9, OUTCOME, Outcome::Unreadable as i32));
        self.bind(stop);
        self.add(Insn::st(Size::B8, Reg::R9, CHANGED, 1));
        self.leave(1);
        self.bind(outside);
        self.add(Insn::st(Size::B8, Reg::R9, OUTCOME, Outcome::NoFile as i32));
        self.jump(Insn::ja(0), chain);
        self.bind(no_rule);
        self.add(Insn::st(Size::B8, Reg::R9, OUTCOME, Outcome::NoRule as i32));
        // Frame pointers, as the kernel follows them.
        self.bind(chain);
        self.load(Size::B8, Reg::R7, Reg::R9, BP);
        self.jump(Insn::jmp_imm(Jump::Eq, Reg::R7, 0), end);
        self.read_user(READ_BP, 16, 0, stop);
        self.add(Insn::st(Size::B8, Reg::R9, OUTCOME, Outcome::Deep as i32));
        self.alu_imm(Alu::Add, Reg::R7, 16);
        self.store(Reg::R9, SP, Reg::R7);
        self.load(Size::B8, Reg::R1, Reg::R9, READ_BP);
        self.store(Reg::R9, BP, Reg::R1);
        self.bind(advance);
        self.load(Size::B8, Reg::R1, Reg::R9, READ_PC);
        self.jump(Insn::jmp_imm(Jump::Eq, Reg::R1, 0), end);
        self.store(Reg::R9, PC, Reg::R1);
        self.leave(0);
        self.bind(end);
        self.add(Insn::st(Size::B8, Reg::R9, OUTCOME, Outcome::Complete as i32));
        self.leave(1);
    }

    /// Adds the address in register 6 to the stack and its hash.
    fn add_frame(&mut self, depth: u32, full: Label) {
        self.load(Size::B8, Reg::R1, Reg::R9, NUMBER);
        self.jump(Insn::jmp_imm(Jump::Ge, Reg::R1, depth as i32), full);
        self.mov(Reg::R2, Reg::R1);
        self.alu_imm(Alu::Lsh, Reg::R2, 3);
        self.alu(Alu::Add, Reg::R2, Reg::R9);
        self.store(Reg::R2, FRAMES, Reg::R6);
        self.alu_imm(Alu::Add, Reg::R1, 1);
        self.store(Reg::R9, NUMBER, Reg::R1);
        self.load(Size::B8, Reg::R1, Reg::R9, HASH);
        self.alu(Alu::Xor, Reg::R1, Reg::R6);
        self.add(Insn::ld_imm64(Reg::R2, MIX));
        self.alu(Alu::Mul, Reg::R1, Reg::R2);
        self.mov(Reg::R2, Reg::R1);
        self.alu_imm(Alu::Rsh, Reg::R2, 29);
        self.alu(Alu::Xor, Reg::R1, Reg::R2);
        self.store(Reg::R9, HASH, Reg::R1);
    }

    /// The last element of `count` (register 2) from `first` (register 1) on whose first word is not above a key: its address in register
    /// 0. There is one at least, and the first may be above. Registers 3 to 5 are lost.
    fn search(&mut self, search: &Search) {
        // The verifier follows each way through the search for itself, unless it knows as little of the numbers on one as on the other:
        // hence the first number, and the masks, which change none.
        let mask = search.most as i32 - 1;
        self.load(Size::B8, Reg::R3, Reg::R9, ZERO);
        self.alu_imm(Alu::And, Reg::R3, mask);
        self.add(Insn::ld_map_value(Reg::R4, search.map, 0));
        let mut step = search.most;
        while step > 1 {
            step /= 2;
            let less = self.fresh();
            self.offset(Reg::R5, Reg::R3, step as i32);
            self.alu_imm(Alu::And, Reg::R5, mask);
            self.jump(Insn::jmp_reg(Jump::Ge, Reg::R5, Reg::R2), less);
            self.element(search, Reg::R5);
            self.load(search.word, Reg::R0, Reg::R0, 0);
            self.jump(Insn::jmp_reg(Jump::Gt, Reg::R0, search.key), less);
            self.mov(Reg::R3, Reg::R5);
            self.bind(less);
        }
        self.element(search, Reg::R3);
    }

    /// Register 0 = address of the element of this number.
    fn element(&mut self, search: &Search, number: Reg) {
        self.mov(Reg::R0, number);
        self.alu(Alu::Add, Reg::R0, Reg::R1);
        self.alu_imm(Alu::And, Reg::R0, search.all as i32 - 1);
        self.alu_imm(Alu::Lsh, Reg::R0, search.shift);
        self.alu(Alu::Add, Reg::R0, Reg::R4);
    }

    /// Of the address in register 6: in register 7 the address that rows have, in registers 1 and 2 the rows.
    fn find_piece(&mut self, maps: &Maps, outside: Label, no_rows: Label) {
        self.load(Size::B4, Reg::R1, Reg::R9, FIRST);
        self.load(Size::B4, Reg::R2, Reg::R9, PIECES);
        let search = Search {
            map: maps.pieces,
            all: MAX_PIECES,
            most: MAX_PIECES_OF_PROCESS,
            shift: PIECE_SHIFT,
            word: Size::B8,
            key: Reg::R6,
        };
        self.search(&search);
        self.load(Size::B8, Reg::R1, Reg::R0, 0);
        self.jump(Insn::jmp_reg(Jump::Gt, Reg::R1, Reg::R6), outside);
        self.load(Size::B8, Reg::R1, Reg::R0, PIECE_END);
        self.jump(Insn::jmp_reg(Jump::Le, Reg::R1, Reg::R6), outside);
        self.load(Size::B8, Reg::R1, Reg::R0, PIECE_BIAS);
        self.mov(Reg::R7, Reg::R6);
        self.alu(Alu::Sub, Reg::R7, Reg::R1);
        self.load(Size::B4, Reg::R1, Reg::R0, PIECE_FIRST);
        self.load(Size::B4, Reg::R2, Reg::R0, PIECE_ROWS);
        self.jump(Insn::jmp_imm(Jump::Eq, Reg::R2, 0), no_rows);
    }

    /// The row in parts: registers 1 (kind), 2 (bytes) and 8 (words of the saved `bp`).
    fn find_row(&mut self, maps: &Maps, none: Label) {
        let search = Search { map: maps.rows, all: MAX_ROWS, most: MAX_ROWS, shift: 3, word: Size::B4, key: Reg::R7 };
        self.search(&search);
        self.load(Size::B8, Reg::R8, Reg::R0, 0);
        self.add(Insn::alu_reg(Width::W32, Alu::Mov, Reg::R1, Reg::R8));
        self.jump(Insn::jmp_reg(Jump::Gt, Reg::R1, Reg::R7), none);
        self.alu_imm(Alu::Rsh, Reg::R8, 32);
        self.mov(Reg::R2, Reg::R8);
        self.alu_imm(Alu::And, Reg::R2, 0xffff);
        self.alu_imm(Alu::Lsh, Reg::R2, 3);
        self.alu_imm(Alu::Rsh, Reg::R8, 16);
        self.mov(Reg::R1, Reg::R8);
        self.alu_imm(Alu::And, Reg::R1, 0xff);
        self.alu_imm(Alu::Rsh, Reg::R8, 8);
    }

    /// Reads the stack at register 7 plus an offset.
    fn read_user(&mut self, to: i16, bytes: i64, offset: i32, failed: Label) {
        self.offset(Reg::R1, Reg::R9, to.into());
        self.add(Insn::load_const(Reg::R2, bytes));
        self.offset(Reg::R3, Reg::R7, offset);
        self.call(Helper::ProbeReadUser);
        self.jump(Insn::jmp_imm(Jump::Ne, Reg::R0, 0), failed);
    }

    /// By a row: the caller's registers.
    fn caller(&mut self, labels: &Labels) {
        let [by_sp, by_bp, aligned, plt, signal, has_frame, one_word, has_bp] = [(); 8].map(|()| self.fresh());
        let stopped = self.fresh();
        let kinds = [
            (KIND_SP, by_sp),
            (KIND_BP, by_bp),
            (KIND_END, labels.end),
            (KIND_ALIGNED, aligned),
            (KIND_PLT, plt),
            (KIND_SIGNAL, signal),
            (KIND_STOP, stopped),
        ];
        for (kind, label) in kinds {
            self.jump(Insn::jmp_imm(Jump::Eq, Reg::R1, kind), label);
        }
        self.jump(Insn::ja(0), labels.no_rule);
        self.bind(stopped);
        self.add(Insn::st(Size::B8, Reg::R9, OUTCOME, Outcome::NoRule as i32));
        self.leave(1);
        self.bind(signal);
        self.load(Size::B8, Reg::R7, Reg::R9, SP);
        self.read_user(READ_PC, 8, SIGNAL_PC, labels.unreadable);
        self.read_user(BP, 8, SIGNAL_BP, labels.unreadable);
        self.read_user(SP, 8, SIGNAL_SP, labels.unreadable);
        self.add(Insn::st(Size::B8, Reg::R9, EXACT, 1));
        self.jump(Insn::ja(0), labels.advance);
        self.bind(plt);
        self.load(Size::B8, Reg::R7, Reg::R9, SP);
        self.alu_imm(Alu::Add, Reg::R7, 8);
        self.alu_imm(Alu::And, Reg::R6, 15);
        let before = self.fresh();
        self.jump(Insn::jmp_reg(Jump::Lt, Reg::R6, Reg::R8), before);
        self.alu_imm(Alu::Add, Reg::R7, 8);
        self.bind(before);
        self.add(Insn::load_const(Reg::R8, 0));
        self.jump(Insn::ja(0), has_frame);
        self.bind(aligned);
        self.load(Size::B8, Reg::R7, Reg::R9, BP);
        self.mov(Reg::R8, Reg::R2);
        self.read_user(READ_BP, 8, 0, labels.unreadable);
        self.alu(Alu::Sub, Reg::R7, Reg::R8);
        self.load(Size::B8, Reg::R1, Reg::R9, READ_BP);
        self.store(Reg::R9, BP, Reg::R1);
        self.read_user(READ_BP, 8, 0, labels.unreadable);
        self.load(Size::B8, Reg::R7, Reg::R9, READ_BP);
        self.add(Insn::load_const(Reg::R8, 0));
        self.jump(Insn::ja(0), has_frame);
        self.bind(by_bp);
        self.load(Size::B8, Reg::R7, Reg::R9, BP);
        self.alu(Alu::Add, Reg::R7, Reg::R2);
        self.jump(Insn::ja(0), has_frame);
        self.bind(by_sp);
        self.load(Size::B8, Reg::R7, Reg::R9, SP);
        self.alu(Alu::Add, Reg::R7, Reg::R2);
        // Register 7 is the canonical frame address: what the caller's `sp` is after the return.
        self.bind(has_frame);
        self.load(Size::B8, Reg::R1, Reg::R9, SP);
        self.jump(Insn::jmp_reg(Jump::Le, Reg::R7, Reg::R1), labels.unreadable);
        self.store(Reg::R9, SP, Reg::R7);
        // Both words lie side by side in most functions.
        self.jump(Insn::jmp_imm(Jump::Ne, Reg::R8, 2), one_word);
        self.read_user(READ_BP, 16, -16, labels.unreadable);
        self.jump(Insn::ja(0), has_bp);
        self.bind(one_word);
        self.read_user(READ_PC, 8, -8, labels.unreadable);
        self.jump(Insn::jmp_imm(Jump::Eq, Reg::R8, 0), labels.advance);
        self.alu_imm(Alu::Lsh, Reg::R8, 3);
        self.alu(Alu::Sub, Reg::R7, Reg::R8);
        self.read_user(READ_BP, 8, 0, labels.unreadable);
        self.bind(has_bp);
        self.load(Size::B8, Reg::R1, Reg::R9, READ_BP);
        self.store(Reg::R9, BP, Reg::R1);
        self.jump(Insn::ja(0), labels.advance);
    }
}

/// Where a step ends.
struct Labels {
    end: Label,
    /// Follows frame pointers.
    no_rule: Label,
    unreadable: Label,
    /// The caller's registers are there, its address as it was read.
    advance: Label,
}

/// A binary search in an array of one element.
struct Search {
    map: u32,
    /// Elements of the array.
    all: u32,
    /// Elements that are searched at most: a power of two.
    most: u32,
    /// Bytes of an element, as a power of two.
    shift: i32,
    /// The first word of an element.
    word: Size,
    key: Reg,
}
