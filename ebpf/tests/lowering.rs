//! One short listing for each thing that lowering decides.

mod support;

use kstrobe_ebpf::Fault;
use kstrobe_ebpf::diag::Diagnostic;
use kstrobe_ebpf::ir::{
    AluOp, Arg, Block, CTX, Call, CmpOp, Cond, Func, Helper, Op, Operand, Size, Slot, Space, Stmt, Var,
};
use kstrobe_ebpf::layout::MapId;
use kstrobe_ebpf::lower::{Options, lower};

fn try_lower(func: Func, options: Options) -> Result<String, Diagnostic> {
    let module = support::module(func);
    lower(&module.funcs[0], &module, &options).map(|code| code.listing())
}

/// Compares instructions; slots and the final `r0 = 0; exit` are left out.
#[track_caller]
fn check(slots: &[u32], body: Block, expected: &[&str]) {
    let listing = try_lower(support::func(10, slots, body), Options::default()).expect("the function is valid");
    let lines: Vec<&str> = listing.lines().filter_map(|line| Some(line.split_once(": ")?.1)).collect();
    let (code, end) = lines.split_at(lines.len() - 2);
    assert_eq!(end, ["r0 = 0", "exit"]);
    assert_eq!(code, expected, "\n{listing}");
}

fn v(n: u32) -> Var {
    Var(n)
}
fn load(var: Var, word: i32) -> Stmt {
    Stmt::Set(var, Op::Load { ptr: CTX, offset: word * 8, size: Size::B8, space: Space::Ctx })
}
fn keep(word: u32, value: impl Into<Keep>) -> Stmt {
    let Keep(value) = value.into();
    Stmt::StoreSlot { slot: Slot(0), offset: word * 8, size: Size::B8, value }
}
struct Keep(Operand);
impl From<Var> for Keep {
    fn from(var: Var) -> Keep {
        Keep(Operand::Var(var))
    }
}
impl From<i64> for Keep {
    fn from(value: i64) -> Keep {
        Keep(Operand::Imm(value))
    }
}
fn set(var: Var, op: Op) -> Stmt {
    Stmt::Set(var, op)
}
fn alu(op: AluOp, a: Var, b: Var) -> Op {
    Op::Alu(op, a, Operand::Var(b))
}
fn when(op: CmpOp, then: Block, otherwise: Block) -> Stmt {
    Stmt::If { cond: Cond { op, a: v(1), b: Operand::Imm(7) }, then, otherwise }
}

#[test]
fn constants_take_the_shortest_form_and_copies_of_them_vanish() {
    let body = vec![
        keep(0, -5),
        keep(1, 1 << 40),
        keep(0, i64::from(u32::MAX)),
        set(v(1), Op::Copy(Operand::Imm(3))),
        set(v(2), Op::Copy(Operand::Var(v(1)))),
        keep(1, v(2)),
    ];
    check(
        &[16],
        body,
        &[
            "*(u64 *)(r10 -16) = -5",
            "r0 = 0x10000000000 ll",
            "*(u64 *)(r10 -8) = r0",
            "w0 = -1",
            "*(u64 *)(r10 -16) = r0",
            "*(u64 *)(r10 -8) = 3",
        ],
    );
}

#[test]
fn results_nobody_reads_are_not_computed() {
    let clock = Call { helper: Helper::KtimeGetNs, args: vec![] };
    check(&[8], vec![load(v(1), 0), set(v(2), alu(AluOp::Add, v(1), v(1))), set(v(3), Op::Call(clock))], &[]);
}

#[test]
fn the_second_operand_survives_the_first_step() {
    let body = |dst| vec![load(v(1), 0), load(v(2), 1), set(dst, alu(AluOp::Sub, v(1), v(2))), keep(0, dst)];
    let loads = ["r0 = *(u64 *)(r1 +0)", "r1 = *(u64 *)(r1 +8)"];
    check(&[8], body(v(3)), &[loads[0], loads[1], "r0 -= r1", "*(u64 *)(r10 -8) = r0"]);
    check(&[8], body(v(2)), &[loads[0], loads[1], "r0 -= r1", "r1 = r0", "*(u64 *)(r10 -8) = r1"]);
}

#[test]
fn widening_and_swapping() {
    let extend = |bits, signed| Op::Extend { a: v(1), bits, signed };
    let body = vec![
        load(v(1), 0),
        set(v(1), extend(32, false)),
        set(v(1), extend(16, false)),
        set(v(1), extend(8, true)),
        set(v(1), Op::Swap { a: v(1), bits: 16 }),
        keep(0, v(1)),
    ];
    let expected = [
        "r0 = *(u64 *)(r1 +0)",
        "w0 = w0",
        "r0 &= 65535",
        "r0 <<= 56",
        "r0 s>>= 56",
        "r0 = be16 r0",
        "*(u64 *)(r10 -8) = r0",
    ];
    check(&[8], body, &expected);
}

#[test]
fn an_arm_that_is_empty_costs_one_jump() {
    let head = "r0 = *(u64 *)(r1 +0)";
    check(
        &[8],
        vec![load(v(1), 0), when(CmpOp::SLt, vec![keep(0, 1)], vec![])],
        &[head, "if r0 s>= 0x7 goto pc+1", "*(u64 *)(r10 -8) = 1"],
    );
    check(
        &[8],
        vec![load(v(1), 0), when(CmpOp::SLt, vec![], vec![keep(0, 1)])],
        &[head, "if r0 s< 0x7 goto pc+1", "*(u64 *)(r10 -8) = 1"],
    );
    check(
        &[8],
        vec![load(v(1), 0), when(CmpOp::Eq, vec![Stmt::Return], vec![]), keep(0, 1)],
        &[head, "if r0 == 0x7 goto pc+1", "*(u64 *)(r10 -8) = 1"],
    );
}

#[test]
fn what_is_unlikely_and_leaves_goes_behind_the_rest() {
    let unlikely = vec![keep(0, 2), Stmt::Return];
    check(
        &[8],
        vec![load(v(1), 0), when(CmpOp::Gt, vec![keep(0, 1)], unlikely), keep(0, 3)],
        &[
            "r0 = *(u64 *)(r1 +0)",
            "if r0 <= 0x7 goto pc+3",
            "*(u64 *)(r10 -8) = 1",
            "*(u64 *)(r10 -8) = 3",
            "goto pc+1",
            "*(u64 *)(r10 -8) = 2",
        ],
    );
}

#[test]
fn what_follows_a_test_belongs_to_the_line_before_it() {
    let mark = |line| Stmt::Mark { line, column: 1 };
    let arm = |line| vec![mark(line), keep(0, i64::from(line))];
    for otherwise in [vec![], arm(4), vec![Stmt::Return]] {
        let body = vec![mark(2), load(v(1), 0), when(CmpOp::Eq, arm(3), otherwise), keep(0, 9)];
        let module = support::module(support::func(2, &[8], body));
        let code = lower(&module.funcs[0], &module, &Options::default()).expect("valid");
        let last = code.slots() - 3;
        let line = code.marks.iter().rev().find(|mark| mark.slot <= last).expect("a mark at slot 0").line;
        assert_eq!(line, 2, "{:?}\n{}", code.marks, code.listing());
    }
}

#[test]
fn a_bit_test_has_no_opposite() {
    check(
        &[8],
        vec![load(v(1), 0), when(CmpOp::Test, vec![keep(0, 1)], vec![keep(0, 2)])],
        &["r0 = *(u64 *)(r1 +0)", "if r0 & 0x7 goto pc+2", "*(u64 *)(r10 -8) = 2", "goto pc+1", "*(u64 *)(r10 -8) = 1"],
    );
}

#[test]
fn calls_get_their_arguments_in_place_and_what_outlives_them_survives() {
    let lookup = Call { helper: Helper::MapLookup, args: vec![Arg::Map(MapId(1)), Arg::Slot(Slot(0), 4)] };
    let body = vec![
        load(v(1), 0),
        keep(0, 0),
        set(v(2), Op::Call(lookup)),
        Stmt::If {
            cond: Cond { op: CmpOp::Eq, a: v(2), b: Operand::Imm(0) },
            then: vec![Stmt::Return],
            otherwise: vec![],
        },
        Stmt::Add { ptr: v(2), offset: 8, value: Operand::Var(v(1)), atomic: true },
        Stmt::Add { ptr: v(2), offset: 0, value: Operand::Imm(1), atomic: false },
    ];
    let expected = [
        "r6 = *(u64 *)(r1 +0)",
        "*(u64 *)(r10 -8) = 0",
        "r1 = map[1]",
        "r2 = r10",
        "r2 += -4",
        "call bpf_map_lookup_elem#1",
        "if r0 == 0x0 goto pc+4",
        "lock *(u64 *)(r0 +8) += r6",
        "r1 = *(u64 *)(r0 +0)",
        "r1 += 1",
        "*(u64 *)(r0 +0) = r1",
    ];
    check(&[8], body, &expected);
}

#[test]
fn what_is_fetched_takes_the_place_of_what_is_added() {
    let lookup = Call { helper: Helper::MapLookup, args: vec![Arg::Map(MapId(1)), Arg::Slot(Slot(0), 0)] };
    let fetch = |value| Op::FetchAdd { ptr: v(1), offset: 8, value };
    let body = vec![
        keep(0, 0),
        set(v(1), Op::Call(lookup)),
        Stmt::If {
            cond: Cond { op: CmpOp::Eq, a: v(1), b: Operand::Imm(0) },
            then: vec![Stmt::Return],
            otherwise: vec![],
        },
        set(v(2), fetch(Operand::Imm(1))),
        // The result is not read: nothing is fetched, and the word is added to all the same.
        set(v(3), fetch(Operand::Var(v(2)))),
        Stmt::Add { ptr: v(1), offset: 0, value: Operand::Var(v(2)), atomic: false },
    ];
    let expected = [
        "*(u64 *)(r10 -8) = 0",
        "r1 = map[1]",
        "r2 = r10",
        "r2 += -8",
        "call bpf_map_lookup_elem#1",
        "if r0 == 0x0 goto pc+6",
        "r2 = 1",
        "r2 = atomic64_fetch_add((u64 *)(r0 +8), r2)",
        "lock *(u64 *)(r0 +8) += r2",
        "r1 = *(u64 *)(r0 +0)",
        "r1 += r2",
        "*(u64 *)(r0 +0) = r1",
    ];
    check(&[8], body, &expected);
}

#[test]
fn tables_are_reached_by_address_and_far_fields_by_an_addition() {
    let body = vec![
        set(v(1), Op::Rodata(24)),
        set(v(2), Op::Load { ptr: v(1), offset: 40_000, size: Size::B2, space: Space::Rodata }),
        keep(0, v(2)),
    ];
    let expected = ["r0 = rodata[24]", "r0 += 40000", "r0 = *(u16 *)(r0 +0)", "*(u64 *)(r10 -8) = r0"];
    check(&[8], body, &expected);
}

#[test]
fn a_kernel_function_is_called_by_btf_id_or_not_at_all() {
    let body = || {
        let cast = Call { helper: Helper::RdonlyCast, args: vec![Arg::Var(v(1)), Arg::Imm(114)] };
        vec![load(v(1), 0), set(v(2), Op::Call(cast)), keep(0, v(2))]
    };
    let known = Options { rdonly_cast_btf_id: Some(65_475) };
    let listing = try_lower(support::func(3, &[8], body()), known).expect("its id is known");
    assert!(listing.contains("1: r2 = 114\n2: call kfunc#65475\n"), "{listing}");
    let unknown = try_lower(support::func(3, &[8], body()), Options::default());
    assert_eq!(unknown.map_err(|d| d.fault), Err(Fault::Bug));
}

#[test]
fn too_much_stack_is_a_limit_with_the_bytes_in_it() {
    let diagnostic = try_lower(support::func(1, &[505, 1], vec![]), Options::default()).expect_err("520 bytes");
    assert_eq!(diagnostic.fault, Fault::Limit);
    assert_eq!(diagnostic.message, "program test needs 520 bytes of stack, it may have 480");
    assert!(try_lower(support::func(1, &[472, 1], vec![]), Options::default()).is_ok());
    assert!(try_lower(support::func(1, &[u32::MAX, u32::MAX], vec![]), Options::default()).is_err());
}

#[test]
fn ir_that_breaks_its_rules_is_refused_without_a_panic() {
    let map = Call { helper: Helper::MapLookup, args: vec![Arg::Map(MapId(9)), Arg::Slot(Slot(0), 0)] };
    let cases = [
        vec![keep(0, v(3))],
        vec![keep(0, v(99))],
        vec![set(v(99), Op::Copy(Operand::Imm(0)))],
        vec![keep(1, 0)],
        vec![Stmt::Call(map)],
        vec![set(v(1), Op::Rodata(4000)), set(v(2), alu(AluOp::Add, v(1), v(1))), keep(0, v(2))],
        vec![set(v(1), Op::Swap { a: CTX, bits: 8 })],
        vec![load(v(1), 0), when(CmpOp::Eq, vec![load(v(2), 1)], vec![]), keep(0, v(2))],
    ];
    for body in cases {
        let result = try_lower(support::func(4, &[8], body.clone()), Options::default());
        assert_eq!(result.map_err(|d| d.fault), Err(Fault::Bug), "{body:?}");
    }
}
