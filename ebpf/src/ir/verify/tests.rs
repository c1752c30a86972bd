use super::*;
use crate::ir::sketch::*;
use crate::ir::{Arg, Helper};

fn errors(module: &Module) -> Vec<String> {
    verify(module).err().unwrap_or_default()
}

/// Exactly one violation, which says this.
fn rejects(body: Block, expected: &str) {
    let found = errors(&module(body.clone()));
    assert!(found.len() == 1 && found[0].contains(expected), "{body:?}\n  gave: {found:#?}\n  not:  {expected}");
}

fn accepts(body: Block) {
    let found = errors(&module(body.clone()));
    assert!(found.is_empty(), "{body:?}\n  gave: {found:#?}");
}

/// `v1 = map_lookup(values, &s0)`, untested.
fn lookup() -> Block {
    vec![store_slot(0, 0, Size::B4, i(0)), set_call(1, Helper::MapLookup, &[map(0), slot(0)])]
}

fn after_lookup(body: Block) -> Block {
    [lookup(), body].concat()
}

/// The same, tested.
fn after_test(body: Block) -> Block {
    after_lookup([vec![when(1, CmpOp::Eq, i(0), vec![Stmt::Return])], body].concat())
}

fn with_func(change: impl FnOnce(&mut Func)) -> Vec<String> {
    let mut m = module(vec![]);
    change(&mut m.funcs[0]);
    errors(&m)
}

fn with_map(change: impl FnOnce(&mut MapDef)) -> Vec<String> {
    let mut m = module(vec![]);
    change(&mut m.layout.maps[0]);
    errors(&m)
}

#[test]
fn names() {
    for bad in ["", "1a", "a-b", "ä", &"a".repeat(64)] {
        let found = with_func(|f| f.name = bad.into());
        assert!(found.len() == 1 && found[0].contains("not a C identifier of 1 to 63"), "{bad}: {found:?}");
    }
    assert!(with_func(|f| f.name = "_a1".into()).is_empty());
    assert!(with_func(|f| f.name = "a".repeat(63)).is_empty());
    assert!(with_map(|m| m.name = "a".repeat(15)).is_empty());
    assert!(with_map(|m| m.name = "a".repeat(16))[0].contains("not a C identifier of 1 to 15"));
    assert!(with_map(|m| m.name = "keys".into())[0].contains("another map has this name"));
    let mut twice = module(vec![]);
    twice.funcs.push(twice.funcs[0].clone());
    assert_eq!(errors(&twice), ["function `test`: another function has this name"]);
}

#[test]
fn maps() {
    assert!(with_map(|m| m.value_bytes = 0)[0].contains("values have no bytes"));
    assert!(with_map(|m| m.entries = 0)[0].contains("no entries"));
    assert!(with_map(|m| m.key_bytes = 8)[0].contains("the key's size"));
    assert!(with_map(|m| m.kind = MapKind::Stack)[0].contains("the key's size"));
    let no_key = |m: &mut MapDef| (m.kind, m.key_bytes) = (MapKind::Hash, 0);
    assert!(with_map(no_key)[0].contains("the key's size"));
}

#[test]
fn vars() {
    rejects(vec![copy(0, i(1))], "`v0 = 1`: the context is never assigned");
    rejects(vec![copy(16, i(1))], "v16 does not exist");
    rejects(vec![copy(1, v(16))], "v16 does not exist");
    rejects(vec![store_slot(3, 0, Size::B1, i(0))], "s3 does not exist");
    assert!(with_func(|f| f.vars = 0)[0].contains("no variable for the context"));
}

#[test]
fn assigned() {
    rejects(vec![copy(1, v(2))], "`v1 = v2`: v2 is not assigned");
    rejects(vec![when(2, CmpOp::Eq, i(0), vec![])], "`if v2 == 0`: v2 is not assigned");
    rejects(vec![copy(1, i(1)), when(1, CmpOp::Eq, v(2), vec![])], "v2 is not assigned");
    let one_side =
        |otherwise| vec![copy(1, i(1)), when_else(1, CmpOp::Gt, i(0), vec![copy(2, i(1))], otherwise), copy(3, v(2))];
    rejects(one_side(vec![]), "`v3 = v2`: v2 is not assigned on every path before");
    accepts(one_side(vec![copy(2, i(2))]));
    accepts(one_side(vec![Stmt::Return]));
    rejects(after_test(vec![add(1, 0, v(2))]), "v2 is not assigned");
    rejects(vec![set(1, Op::Alu32(AluOp::Add, Var(2), i(1)))], "v2 is not assigned");
    rejects(vec![set_call(1, Helper::RdonlyCast, &[Arg::Var(Var(2)), Arg::Imm(7)])], "argument 1: v2 is not assigned");
}

#[test]
fn stack() {
    assert!(with_func(|f| f.slots = vec![473, 1])[0].contains("488 bytes of stack; it may have 480"));
    assert!(with_func(|f| f.slots = vec![472, 1]).is_empty());
    assert!(with_func(|f| f.slots = vec![0])[0].contains("slot of 0 bytes"));
    rejects(vec![store_slot(0, 8, Size::B1, i(0))], "1 bytes at 8 of s0, which has 8");
    rejects(vec![store_slot(0, 2, Size::B4, i(0))], "not aligned");
    rejects(vec![store_slot(0, 0, Size::B8, i(0)), load_slot(1, 0, 4, Size::B8)], "not aligned");
    rejects(vec![load_slot(1, 0, 0, Size::B8)], "byte 0 of s0 is not written");
    rejects(vec![store_slot(0, 0, Size::B4, i(0)), load_slot(1, 0, 0, Size::B8)], "byte 4 of s0 is not written");
    accepts(vec![store_slot(0, 0, Size::B8, i(0)), load_slot(1, 0, 6, Size::B2)]);
    let one_side = vec![
        copy(1, i(1)),
        when(1, CmpOp::Gt, i(0), vec![store_slot(0, 0, Size::B8, i(1))]),
        load_slot(2, 0, 0, Size::B8),
    ];
    rejects(one_side, "byte 0 of s0 is not written on every path");
}

#[test]
fn stack_areas_of_helpers() {
    let update = |stmts: Block| {
        [stmts, vec![Stmt::Call(call(Helper::MapUpdate, &[map(1), slot(0), slot(2), Arg::Imm(0)]))]].concat()
    };
    let (key, low) = (store_slot(0, 0, Size::B8, i(0)), store_slot(2, 0, Size::B8, i(0)));
    rejects(update(vec![low.clone()]), "byte 0 of s0 is not written");
    rejects(update(vec![key.clone(), low.clone()]), "byte 8 of s2 is not written");
    accepts(update(vec![key, low, store_slot(2, 8, Size::B8, i(0))]));
    rejects(vec![set_call(1, Helper::MapLookup, &[map(1), Arg::Slot(Slot(0), 4)])], "8 bytes at 4 of s0, which has 8");
    rejects(vec![set_call(1, Helper::GetCurrentComm, &[slot(0), Arg::Imm(16)])], "16 bytes at 0 of s0");
    accepts(vec![set_call(1, Helper::GetCurrentComm, &[slot(2), Arg::Imm(16)]), load_slot(2, 2, 8, Size::B8)]);
    accepts(vec![set_call(1, Helper::MapPop, &[map(2), slot(0)]), load_slot(2, 0, 0, Size::B4)]);
    rejects(
        vec![set_call(1, Helper::MapPop, &[map(2), slot(0)]), load_slot(2, 0, 0, Size::B8)],
        "byte 4 of s0 is not written",
    );
    let read = |helper| set_call(1, helper, &[slot(0), Arg::Imm(8), Arg::Imm(0)]);
    accepts(vec![read(Helper::ProbeReadKernel), load_slot(2, 0, 0, Size::B8)]);
    accepts(vec![read(Helper::ProbeReadUserStr), load_slot(2, 0, 0, Size::B1)]);
    rejects(vec![read(Helper::ProbeReadUserStr), load_slot(2, 0, 0, Size::B8)], "byte 1 of s0 is not written");
}

#[test]
fn widths() {
    rejects(vec![copy(1, i(1)), set(2, Op::Extend { a: Var(1), bits: 64, signed: true })], "cannot extend 64 bits");
    rejects(vec![copy(1, i(1)), set(2, Op::Swap { a: Var(1), bits: 8 })], "cannot swap 8 bits");
}

#[test]
fn calls() {
    let one = |helper, args: &[Arg]| vec![set_call(1, helper, args)];
    rejects(one(Helper::KtimeGetNs, &[Arg::Imm(0)]), "takes 0 arguments, not 1");
    rejects(one(Helper::MapLookup, &[map(0)]), "takes 2 arguments, not 1");
    rejects(one(Helper::MapLookup, &[map(9), slot(0)]), "map 9 does not exist");
    rejects(one(Helper::MapLookup, &[map(2), slot(0)]), "map_lookup does not take map free");
    rejects(one(Helper::MapLookup, &[map(3), slot(0)]), "map_lookup does not take map tasks");
    rejects(one(Helper::MapPop, &[map(0), slot(0)]), "map_pop does not take map values");
    rejects(one(Helper::MapDelete, &[map(0), slot(0)]), "map_delete does not take map values");
    rejects(one(Helper::MapLookup, &[slot(0), slot(0)]), "argument 1: must be a map");
    rejects(one(Helper::MapLookup, &[map(0), Arg::Imm(0)]), "argument 2: must be a stack area");
    rejects(one(Helper::GetCurrentComm, &[slot(2), Arg::Var(CTX)]), "argument 2: must be a constant");
    rejects(one(Helper::RdonlyCast, &[Arg::Imm(1), Arg::Imm(1)]), "argument 1: must be a variable");
    rejects(one(Helper::ProbeReadKernel, &[slot(0), Arg::Imm(8), map(0)]), "must be a variable or a constant");
    rejects(one(Helper::ProbeReadKernel, &[slot(0), Arg::Imm(0), Arg::Imm(0)]), "not a size of 1 to 512");
    rejects(one(Helper::ProbeReadKernel, &[slot(0), Arg::Imm(-8), Arg::Imm(0)]), "not a size of 1 to 512");
    rejects(one(Helper::MapUpdate, &[map(1), slot(0), slot(2), Arg::Imm(3)]), "argument 4: must be one of [0, 1, 2]");
    rejects(one(Helper::MapPush, &[map(2), slot(0), Arg::Imm(1)]), "argument 3: must be one of [0, 2]");
    let storage = |zero, flags| {
        let get = set_call(2, Helper::TaskStorageGet, &[map(3), Arg::Var(Var(1)), Arg::Imm(zero), Arg::Imm(flags)]);
        vec![set_call(1, Helper::GetCurrentTaskBtf, &[]), get]
    };
    accepts(storage(0, 1));
    rejects(storage(5, 1), "argument 3: must be one of [0]");
    rejects(storage(0, 2), "argument 4: must be one of [0, 1]");
    let cast = |id| vec![copy(2, i(1)), set_call(1, Helper::RdonlyCast, &[Arg::Var(Var(2)), Arg::Imm(id)])];
    accepts(cast(7));
    rejects(cast(0), "not a BTF id");
}

#[test]
fn rodata() {
    rejects(vec![set(1, Op::Rodata(64))], "past the 64 read-only bytes");
    let at = |offset, size| vec![set(1, Op::Rodata(56)), load(2, Space::Rodata, 1, offset, size)];
    accepts(at(0, Size::B8));
    rejects(at(8, Size::B8), "8 bytes at 64 of 64");
    rejects(at(-64, Size::B8), "8 bytes at -8 of 64");
    rejects(at(2, Size::B4), "4 bytes at 58 are not aligned");
    let moved = |by| vec![set(1, Op::Rodata(0)), alu_stmt(1, AluOp::Add, by), load(2, Space::Rodata, 1, 0, Size::B1)];
    rejects(moved(i(64)), "1 bytes at 64 of 64");
    accepts(moved(i(63)));
    // An offset from run time is the kernel's business.
    accepts([vec![set_call(3, Helper::KtimeGetNs, &[])], moved(v(3))].concat());
}

fn alu_stmt(var: u32, op: AluOp, by: Operand) -> Stmt {
    alu(var, op, var, by)
}

#[test]
fn null() {
    let touch = || vec![add(1, 0, i(1))];
    rejects(after_lookup(touch()), "v1 may be null");
    rejects(after_lookup(vec![store(1, 0, Size::B8, i(0))]), "v1 may be null");
    rejects(after_lookup(vec![load(2, Space::Value, 1, 0, Size::B8)]), "v1 may be null");
    rejects(after_lookup(vec![alu_stmt(1, AluOp::Add, i(8))]), "may be null");
    accepts(after_test(touch()));
    accepts(after_lookup(vec![when(1, CmpOp::Ne, i(0), touch())]));
    rejects(after_lookup(vec![when(1, CmpOp::Eq, i(0), touch())]), "v1 is a number, not the address of a map value");
    rejects(after_lookup(vec![when(1, CmpOp::Ne, i(0), vec![]), add(1, 0, i(1))]), "v1 may be null");
    // A test of one copy holds for the other, but not for another lookup of the same key.
    accepts(after_lookup(vec![copy(2, v(1)), when(2, CmpOp::Eq, i(0), vec![Stmt::Return]), add(1, 0, i(1))]));
    let again = set_call(2, Helper::MapLookup, &[map(0), slot(0)]);
    rejects(after_lookup(vec![again, when(2, CmpOp::Eq, i(0), vec![Stmt::Return]), add(1, 0, i(1))]), "v1 may be null");
    let storage = vec![
        set_call(2, Helper::GetCurrentTaskBtf, &[]),
        set_call(1, Helper::TaskStorageGet, &[map(3), Arg::Var(Var(2)), Arg::Imm(0), Arg::Imm(1)]),
    ];
    rejects([storage, touch()].concat(), "v1 may be null");
}

#[test]
fn null_tests_survive_joins() {
    let retry = |after: Block| {
        let again = set_call(1, Helper::MapLookup, &[map(0), slot(0)]);
        let miss = vec![again, when(1, CmpOp::Eq, i(0), after)];
        after_lookup(vec![when(1, CmpOp::Eq, i(0), miss), add(1, 0, i(1))])
    };
    accepts(retry(vec![Stmt::Return]));
    rejects(retry(vec![]), "v1 may be null");
    // Null on one path, an address on the other: still a pointer, to be tested.
    let maybe = |test: Block| {
        [after_test(vec![copy(2, i(0)), when(3, CmpOp::Gt, i(5), vec![copy(2, v(1))])]), test, vec![add(2, 8, i(1))]]
            .concat()
    };
    let with_v3 = |body: Block| [vec![set_call(3, Helper::KtimeGetNs, &[])], body].concat();
    rejects(with_v3(maybe(vec![])), "v2 may be null");
    accepts(with_v3(maybe(vec![when(2, CmpOp::Eq, i(0), vec![Stmt::Return])])));
    let number = after_test(vec![copy(2, i(7)), when(3, CmpOp::Gt, i(5), vec![copy(2, v(1))]), add(2, 0, i(1))]);
    rejects(with_v3(number), "v2 is not the same kind of thing on every path");
}

#[test]
fn pointers() {
    rejects(vec![copy(1, i(64)), store(1, 0, Size::B8, i(0))], "v1 is a number, not the address of a map value");
    rejects(vec![store(0, 0, Size::B8, i(0))], "v0 is the context, not the address of a map value");
    rejects(vec![set(1, Op::Rodata(0)), add(1, 0, i(1))], "v1 is an address of read-only data, not");
    rejects(vec![load(1, Space::Rodata, 0, 0, Size::B8)], "v0 is the context");
    rejects(vec![load(1, Space::Kernel, 0, 0, Size::B8)], "v0 is the context");
    rejects(after_test(vec![load(2, Space::Ctx, 1, 0, Size::B8)]), "v1 is the address of a map value");
    rejects(vec![load(1, Space::Ctx, 0, -8, Size::B8)], "before the context");
    rejects(vec![load(1, Space::Ctx, 0, 4, Size::B8)], "not aligned");
    rejects(after_test(vec![store(1, 24, Size::B1, i(0))]), "1 bytes at 24 of 24");
    rejects(after_test(vec![add(1, 20, i(0))]), "8 bytes at 20 are not aligned");
    rejects(after_test(vec![add(1, -8, i(0))]), "8 bytes at -8 of 24");
    accepts(after_test(vec![
        alu_stmt(1, AluOp::Add, i(16)),
        add(1, 0, i(0)),
        alu_stmt(1, AluOp::Sub, i(16)),
        add(1, 16, i(0)),
    ]));
    rejects(after_test(vec![alu_stmt(1, AluOp::Add, i(24)), add(1, 0, i(0))]), "8 bytes at 24 of 24");
    rejects(after_test(vec![alu_stmt(1, AluOp::And, i(-8))]), "arithmetic with the address of a map value");
    rejects(after_test(vec![alu(2, AluOp::Add, 1, v(1))]), "arithmetic with the address of a map value");
    rejects(vec![alu(1, AluOp::Sub, 0, i(8))], "arithmetic with the context");
    accepts(vec![alu(1, AluOp::Add, 0, i(8))]);
    rejects(vec![alu(1, AluOp::Add, 0, i(8)), load(1, Space::Ctx, 1, 0, Size::B8)], "v1 is a number");
    rejects(after_test(vec![store(1, 0, Size::B8, v(1))]), "v1 is the address of a map value, not a number");
    rejects(after_test(vec![store_slot(1, 0, Size::B8, v(1))]), "not a number");
    rejects(after_test(vec![when(1, CmpOp::Gt, i(0), vec![])]), "it can only be compared with 0");
    rejects(after_test(vec![when(1, CmpOp::Eq, i(8), vec![])]), "it can only be compared with 0");
    rejects(after_test(vec![set(2, Op::Extend { a: Var(1), bits: 32, signed: false })]), "not a number");
    rejects(after_test(vec![set(2, Op::Swap { a: Var(1), bits: 32 })]), "not a number");
    rejects(after_test(vec![set(2, Op::Alu32(AluOp::Add, Var(1), i(1)))]), "not a number");
    rejects(
        after_test(vec![set_call(2, Helper::ProbeReadKernel, &[slot(1), Arg::Imm(8), Arg::Var(Var(1))])]),
        "argument 3: v1 is the address of a map value, not a number",
    );
}

#[test]
fn returns() {
    rejects(vec![Stmt::Return, copy(1, i(1)), copy(2, i(1))], "`v1 = 1`: every path has returned before");
    let both =
        |otherwise| vec![copy(1, i(1)), when_else(1, CmpOp::Gt, i(0), vec![Stmt::Return], otherwise), copy(2, i(1))];
    rejects(both(vec![Stmt::Return]), "every path has returned before");
    accepts(both(vec![]));
    accepts(vec![Stmt::Return, Stmt::Mark { line: 1, column: 1 }]);
}

#[test]
fn nesting() {
    let nest = |depth| (0..depth).fold(vec![Stmt::Return], |body, _| vec![when(1, CmpOp::Gt, i(0), body)]);
    accepts([vec![copy(1, i(1))], nest(200)].concat());
    rejects([vec![copy(1, i(1))], nest(201)].concat(), "blocks nest more than 200 deep");
}

#[test]
fn marks_give_the_place() {
    rejects(vec![Stmt::Mark { line: 0, column: 1 }], "count from 1");
    rejects(vec![Stmt::Mark { line: 1, column: 0 }], "count from 1");
    let body = vec![Stmt::Mark { line: 12, column: 5 }, copy(1, v(2))];
    assert_eq!(errors(&module(body)), ["function `test` at 12:5: `v1 = v2`: v2 is not assigned on every path before"]);
}

#[test]
fn one_mistake_gives_one_message_and_two_give_two() {
    let body = vec![copy(1, v(2)), copy(3, v(1)), copy(4, v(5))];
    let found = errors(&module(body));
    assert_eq!(found.len(), 2, "{found:?}");
}
