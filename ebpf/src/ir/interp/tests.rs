use super::*;
use crate::ir::sketch::*;
use crate::ir::{AluOp, Arg, CTX, CmpOp, Helper, Operand, Var};
use crate::layout::{MapId, MapKind};

/// Runs `body`; it leaves results in the array map, whose first element is 3 u64.
fn run_in(machine: &mut Machine, body: Block, ctx: &[u8]) -> Result<(), Trap> {
    machine.run(&module(body), 0, ctx)
}

fn machine() -> Machine {
    Machine::new(&layout()).unwrap()
}

fn word(bytes: &[u8], i: usize) -> u64 {
    little_endian(&bytes[8 * i..8 * i + 8])
}

/// `v15 = &values[index]`, then `body`.
fn with_record(index: i64, body: Block) -> Block {
    let mut block = vec![
        store_slot(0, 0, Size::B4, i(index)),
        set_call(15, Helper::MapLookup, &[map(0), slot(0)]),
        when(15, CmpOp::Eq, i(0), vec![Stmt::Return]),
    ];
    block.extend(body);
    block
}

/// What the value of `ops` is: the variable 1 after them.
fn value_of(machine: &mut Machine, mut ops: Block, ctx: &[u8]) -> Result<u64, Trap> {
    ops.extend(with_record(0, vec![store(15, 0, Size::B8, v(1))]));
    run_in(machine, ops, ctx)?;
    Ok(word(machine.array(MapId(0)), 0))
}

fn trap_of(body: Block) -> String {
    run_in(&mut machine(), body, &[0; 16]).expect_err("must trap").message
}

#[test]
fn branches_return_and_fall_through() {
    for (input, expected) in [(1, 10), (2, 20), (3, 0)] {
        let mut m = machine();
        let body = with_record(
            2,
            vec![
                copy(1, i(input)),
                when(1, CmpOp::Eq, i(3), vec![Stmt::Return]),
                when_else(1, CmpOp::Eq, i(1), vec![copy(2, i(10))], vec![copy(2, i(20))]),
                add(15, 8, v(2)),
            ],
        );
        run_in(&mut m, body, &[]).unwrap();
        assert_eq!(word(m.array(MapId(0)), 2 * 3 + 1), expected);
    }
}

#[test]
fn widths_of_stores_and_loads() {
    let mut m = machine();
    let body = with_record(
        0,
        vec![
            store(15, 0, Size::B8, i(-1)),
            store(15, 2, Size::B2, i(0x1_2345)),
            store(15, 4, Size::B1, i(0)),
            load(1, Space::Value, 15, 0, Size::B4),
            add(15, 8, v(1)),
            add(15, 8, v(1)),
        ],
    );
    run_in(&mut m, body, &[]).unwrap();
    assert_eq!(word(m.array(MapId(0)), 0), 0xffff_ff00_2345_ffff);
    assert_eq!(word(m.array(MapId(0)), 1), 2 * 0x2345_ffff);
}

#[test]
fn context_rodata_and_slots_load_zero_extended() {
    let mut m = machine();
    let ctx = 0x8877_6655_4433_2211u64.to_le_bytes();
    assert_eq!(value_of(&mut m, vec![load(1, Space::Ctx, 0, 4, Size::B4)], &ctx), Ok(0x8877_6655));
    let ops = vec![set(2, Op::Rodata(8)), alu(2, AluOp::Add, 2, i(4)), load(1, Space::Rodata, 2, 2, Size::B2)];
    assert_eq!(value_of(&mut m, ops, &ctx), Ok(0x0f0e));
    let ops = vec![store_slot(1, 8, Size::B8, i(-2)), load_slot(1, 1, 10, Size::B2)];
    assert_eq!(value_of(&mut m, ops, &ctx), Ok(0xffff));
}

#[test]
fn helpers_answer_from_the_environment() {
    let mut m = machine();
    m.environment = Environment {
        now_ns: 1000,
        tick_ns: 7,
        pid_tgid: 5 << 32 | 6,
        uid_gid: 8 << 32 | 9,
        cgroup_id: 77,
        function: 0xffff_ffff_8100_0000,
        cookie: 4,
        cpu: 3,
        task: 0xffff_8880_0000_1000,
        comm: *b"nginx\0\0\0\0\0\0\0\0\0\0\0",
        ..Environment::default()
    };
    for (helper, expected) in [
        (Helper::KtimeGetNs, 1000),
        (Helper::KtimeGetNs, 1007),
        (Helper::GetCurrentPidTgid, 5 << 32 | 6),
        (Helper::GetCurrentUidGid, 8 << 32 | 9),
        (Helper::GetCurrentCgroupId, 77),
        (Helper::GetSmpProcessorId, 3),
        (Helper::GetCurrentTask, 0xffff_8880_0000_1000),
        (Helper::GetCurrentTaskBtf, 0xffff_8880_0000_1000),
    ] {
        assert_eq!(value_of(&mut m, vec![set_call(1, helper, &[])], &[]), Ok(expected), "{helper:?}");
    }
    for (helper, expected) in [(Helper::GetFuncIp, 0xffff_ffff_8100_0000), (Helper::GetAttachCookie, 4)] {
        assert_eq!(value_of(&mut m, vec![set_call(1, helper, &[Arg::Var(CTX)])], &[]), Ok(expected), "{helper:?}");
    }
    let comm = Stmt::Call(call(Helper::GetCurrentComm, &[slot(2), Arg::Imm(16)]));
    let ops = vec![comm, load_slot(1, 2, 0, Size::B8)];
    assert_eq!(value_of(&mut m, ops, &[]), Ok(u64::from_le_bytes(*b"nginx\0\0\0")));
    let short = Stmt::Call(call(Helper::GetCurrentComm, &[slot(2), Arg::Imm(4)]));
    assert_eq!(value_of(&mut m, vec![short, load_slot(1, 2, 0, Size::B4)], &[]), Ok(0x0069_676e));
}

#[test]
fn kernel_memory_reads_fault_to_zero() {
    let mut m = machine();
    m.environment.kernel.map(0xffff_8880_0000_0000, [1, 2, 3, 4, 5, 6, 7, 8]);
    m.environment.user.map(0x7000, *b"abc\0");
    let at = |address: i64, offset| vec![copy(2, i(address)), load(1, Space::Kernel, 2, offset, Size::B2)];
    let kernel = 0xffff_8880_0000_0000u64 as i64;
    assert_eq!(value_of(&mut m, at(kernel, 3), &[]), Ok(0x0504), "unaligned reads are fine");
    assert_eq!(value_of(&mut m, at(kernel, 7), &[]), Ok(0));
    assert_eq!(value_of(&mut m, at(0, 3), &[]), Ok(0));

    let read = |helper, address: i64| {
        vec![
            store_slot(0, 0, Size::B8, i(-1)),
            set_call(1, helper, &[slot(0), Arg::Imm(4), Arg::Imm(address)]),
            load_slot(2, 0, 0, Size::B4),
            alu(2, AluOp::Shl, 2, i(32)),
            set(1, Op::Extend { a: Var(1), bits: 32, signed: false }),
            alu(1, AluOp::Or, 1, v(2)),
        ]
    };
    assert_eq!(value_of(&mut m, read(Helper::ProbeReadKernel, kernel), &[]), Ok(0x0403_0201 << 32));
    assert_eq!(value_of(&mut m, read(Helper::ProbeReadKernel, 0x7000), &[]), Ok(0xffff_fff2), "-EFAULT, zeroed");
    assert_eq!(value_of(&mut m, read(Helper::ProbeReadUser, 0x7000), &[]), Ok(0x0063_6261 << 32));
    assert_eq!(value_of(&mut m, read(Helper::ProbeReadUserStr, 0x7001), &[]), Ok(0xff00_6362 << 32 | 3));
    assert_eq!(value_of(&mut m, read(Helper::ProbeReadKernelStr, 0x7001), &[]), Ok(0xffff_fff2));
}

#[test]
fn hash_maps_return_what_the_kernel_does() {
    let key = |k: i64| store_slot(0, 0, Size::B8, i(k));
    let value = |x: i64| vec![store_slot(2, 0, Size::B8, i(x)), store_slot(2, 8, Size::B8, i(0))];
    let update = |k, x, flags| {
        let mut ops = value(x);
        ops.extend([key(k), set_call(1, Helper::MapUpdate, &[map(1), slot(0), slot(2), Arg::Imm(flags)])]);
        ops
    };
    let mut m = machine();
    for (ops, expected) in [
        (update(1, 10, 2), -2),
        (update(1, 10, 0), 0),
        (update(1, 11, 1), -17),
        (update(2, 20, 1), 0),
        (update(3, 30, 0), -7),
        (update(1, 12, 3), -22),
        (vec![key(2), set_call(1, Helper::MapDelete, &[map(1), slot(0)])], 0),
        (vec![key(2), set_call(1, Helper::MapDelete, &[map(1), slot(0)])], -2),
        (update(3, 30, 0), 0),
        (vec![key(9), set_call(1, Helper::MapLookup, &[map(1), slot(0)])], 0),
    ] {
        assert_eq!(value_of(&mut m, ops.clone(), &[]), Ok(expected as i64 as u64), "{ops:?}");
    }
    let entries: Vec<_> = m.hash(MapId(1)).into_iter().map(|(k, x)| (word(&k, 0), word(&x, 0), x.len())).collect();
    assert_eq!(entries, [(1, 10, 16), (3, 30, 16)]);
    assert!(m.delete(MapId(1), &3u64.to_le_bytes()) && !m.delete(MapId(1), &3u64.to_le_bytes()));
}

#[test]
fn in_an_lru_hash_what_was_used_least_recently_makes_room() {
    let mut layout = layout();
    layout.maps[1].kind = MapKind::LruHash;
    let mut m = Machine::new(&layout).unwrap();
    let call = |k: i64, helper, more: &[Arg]| {
        let mut ops: Block = [(0, k), (2, k), (3, 0)].map(|(at, x)| store_slot(at, 0, Size::B8, i(x))).into();
        ops[2] = store_slot(2, 8, Size::B8, i(0));
        ops.push(set_call(1, helper, &[&[map(1), slot(0)], more].concat()));
        ops
    };
    let update = |k| call(k, Helper::MapUpdate, &[slot(2), Arg::Imm(0)]);
    for k in [1, 2] {
        assert_eq!(value_of(&mut m, update(k), &[]), Ok(0));
    }
    assert_ne!(value_of(&mut m, call(1, Helper::MapLookup, &[]), &[]), Ok(0), "a use");
    assert_eq!(value_of(&mut m, update(3), &[]), Ok(0));
    let keys = |m: &Machine| m.hash(MapId(1)).into_iter().map(|(k, _)| word(&k, 0)).collect::<Vec<_>>();
    assert_eq!((keys(&m), m.evicted(MapId(1))), (vec![1, 3], 1));
    assert!(m.delete(MapId(1), &1u64.to_le_bytes()));
    assert_eq!(value_of(&mut m, update(4), &[]), Ok(0));
    assert_eq!((keys(&m), m.evicted(MapId(1))), (vec![3, 4], 1), "there was room");
}

#[test]
fn reused_hash_elements_start_from_the_new_value() {
    let mut m = machine();
    let insert = vec![
        store_slot(0, 0, Size::B8, i(5)),
        store_slot(2, 0, Size::B8, i(1)),
        store_slot(2, 8, Size::B8, i(0)),
        Stmt::Call(call(Helper::MapUpdate, &[map(1), slot(0), slot(2), Arg::Imm(0)])),
        set_call(3, Helper::MapLookup, &[map(1), slot(0)]),
        when(3, CmpOp::Eq, i(0), vec![Stmt::Return]),
        add(3, 8, i(7)),
        load(1, Space::Value, 3, 8, Size::B8),
    ];
    assert_eq!(value_of(&mut m, insert.clone(), &[]), Ok(7));
    m.delete(MapId(1), &5u64.to_le_bytes());
    assert_eq!(value_of(&mut m, insert, &[]), Ok(7));
}

#[test]
fn stacks_push_pop_and_fill_up() {
    let mut m = machine();
    assert!(m.push(MapId(2), &7u32.to_le_bytes()) && m.push(MapId(2), &8u32.to_le_bytes()));
    assert!(!m.push(MapId(0), &[1]));
    let pop = vec![
        set_call(1, Helper::MapPop, &[map(2), slot(0)]),
        load_slot(2, 0, 0, Size::B4),
        alu(1, AluOp::Add, 1, v(2)),
    ];
    assert_eq!(value_of(&mut m, pop.clone(), &[]), Ok(8));
    assert_eq!(value_of(&mut m, pop.clone(), &[]), Ok(7));
    assert_eq!(value_of(&mut m, pop.clone(), &[]), Ok(-2i64 as u64), "empty: -ENOENT and a zeroed value");
    let push = |x, flags| {
        vec![store_slot(0, 0, Size::B4, i(x)), set_call(1, Helper::MapPush, &[map(2), slot(0), Arg::Imm(flags)])]
    };
    for (x, flags, expected) in [(1, 0, 0), (2, 0, 0), (3, 0, 0), (4, 0, -7), (4, 2, 0), (5, 1, -22)] {
        assert_eq!(value_of(&mut m, push(x, flags), &[]), Ok(expected as i64 as u64), "{x}");
    }
    for expected in [4, 3, 2] {
        assert_eq!(value_of(&mut m, pop.clone(), &[]), Ok(expected));
    }
}

#[test]
fn task_storage_belongs_to_its_task() {
    let mut m = machine();
    let get = |flags| set_call(3, Helper::TaskStorageGet, &[map(3), Arg::Var(Var(2)), Arg::Imm(0), Arg::Imm(flags)]);
    let bump = |task| {
        vec![
            copy(2, i(task)),
            copy(1, i(0)),
            get(0),
            when(3, CmpOp::Eq, i(0), vec![get(1)]),
            when(3, CmpOp::Ne, i(0), vec![add(3, 8, i(1)), load(1, Space::Value, 3, 8, Size::B8)]),
        ]
    };
    for (task, expected) in [(0x1000, 1), (0x1000, 2), (0x2000, 1), (0x1000, 3), (0, 0)] {
        assert_eq!(value_of(&mut m, bump(task), &[]), Ok(expected));
    }
    let stored: Vec<_> = m.task_storage(MapId(3)).into_iter().map(|(task, x)| (task, word(&x, 1))).collect();
    assert_eq!(stored, [(0x1000, 3), (0x2000, 1)]);
    m.forget_task(0x1000);
    assert_eq!(value_of(&mut m, bump(0x1000), &[]), Ok(1), "a reused element is zeroed");
}

#[test]
fn array_lookups_past_the_end_find_nothing() {
    let mut m = machine();
    let lookup = |k| vec![store_slot(0, 0, Size::B4, i(k)), set_call(1, Helper::MapLookup, &[map(0), slot(0)])];
    assert_eq!(value_of(&mut m, lookup(4), &[]), Ok(0));
    assert_ne!(value_of(&mut m, lookup(3), &[]), Ok(0));
    m.array_mut(MapId(0))[24] = 9;
    assert_eq!(m.array(MapId(0)).len(), 4 * 24);
    assert!(m.array(MapId(1)).is_empty() && m.array(MapId(99)).is_empty() && m.hash(MapId(99)).is_empty());
}

#[test]
fn what_the_kernel_would_refuse_traps() {
    let lookup_missing = vec![store_slot(0, 0, Size::B8, i(9)), set_call(1, Helper::MapLookup, &[map(1), slot(0)])];
    let null_store = [lookup_missing, vec![store(1, 0, Size::B8, i(1))]].concat();
    let cases: Vec<(Block, &str)> = vec![
        (vec![copy(1, v(2))], "v2 is read before it is set"),
        (vec![copy(99, i(0))], "no variable v99"),
        (null_store, "null map value"),
        (vec![copy(1, i(0x1234)), store(1, 0, Size::B8, i(1))], "0x1234 is no map value"),
        (with_record(0, vec![store(15, 24, Size::B8, i(1))]), "24-byte map value"),
        (with_record(1, vec![store(15, -8, Size::B8, i(1))]), "24-byte map value"),
        (with_record(0, vec![alu(15, AluOp::Add, 15, i(1 << 20)), add(15, 16, i(1)), add(15, 24, i(1))]), "24-byte"),
        (with_record(0, vec![alu(15, AluOp::Add, 15, i(4 << 20)), add(15, 0, i(1))]), "in no map"),
        (with_record(0, vec![add(15, 4, i(1))]), "not aligned"),
        (with_record(0, vec![store(15, 2, Size::B4, i(1))]), "not aligned"),
        (vec![load(1, Space::Ctx, 0, 16, Size::B8)], "load of 8 bytes at 16 of the context"),
        (vec![load(1, Space::Ctx, 0, -8, Size::B8)], "load of 8 bytes at -8 of the context"),
        (vec![load(1, Space::Ctx, 0, 4, Size::B8)], "not aligned"),
        (vec![set(1, Op::Rodata(64))], "past its 64 bytes"),
        (vec![set(1, Op::Rodata(60)), load(1, Space::Rodata, 1, 0, Size::B8)], "not aligned"),
        (vec![set(1, Op::Rodata(56)), load(1, Space::Rodata, 1, 8, Size::B8)], "at 64 of read-only data"),
        (vec![load(1, Space::Rodata, 0, 0, Size::B8)], "read-only data"),
        (vec![load_slot(1, 0, 0, Size::B4)], "byte 0 of slot 0 is read before it is written"),
        (vec![store_slot(0, 0, Size::B2, i(0)), load_slot(1, 0, 0, Size::B4)], "byte 2 of slot 0"),
        (vec![store_slot(0, 8, Size::B1, i(0))], "1 bytes at 8 of slot 0, which has 8"),
        (vec![store_slot(0, 2, Size::B4, i(0))], "not aligned"),
        (vec![store_slot(7, 0, Size::B4, i(0))], "no stack slot 7"),
        (vec![set_call(1, Helper::MapLookup, &[map(1), slot(0)])], "read before it is written"),
        (vec![set_call(1, Helper::MapLookup, &[map(2), slot(0)])], "does not take map free"),
        (vec![set_call(1, Helper::MapLookup, &[map(9), slot(0)])], "no map 9"),
        (vec![set_call(1, Helper::MapLookup, &[map(1)])], "takes 2 arguments"),
        (vec![set_call(1, Helper::MapLookup, &[map(1), Arg::Imm(0)])], "must be a stack area"),
        (vec![set_call(1, Helper::MapLookup, &[slot(0), slot(0)])], "wants a map"),
        (vec![set_call(1, Helper::GetCurrentComm, &[slot(0), Arg::Imm(16)])], "16 bytes at 0 of slot 0"),
        (vec![set_call(1, Helper::GetCurrentComm, &[slot(0), Arg::Imm(-1)])], "GetCurrentComm of"),
        (vec![set(1, Op::Extend { a: Var(0), bits: 7, signed: false })], "cannot extend 7 bits"),
        (vec![set(1, Op::Swap { a: Var(0), bits: 8 })], "cannot swap 8 bits"),
    ];
    for (body, expected) in cases {
        let message = trap_of(body.clone());
        assert!(message.contains(expected), "{body:?}\n  gave: {message}\n  not:  {expected}");
    }
    assert!(machine().run(&module(vec![]), 1, &[]).is_err());
}

#[test]
fn deep_nesting_traps_and_does_not_overflow_the_stack() {
    let nest = |depth| (0..depth).fold(vec![Stmt::Return], |body, _| vec![when(0, CmpOp::Ne, i(0), body)]);
    assert!(run_in(&mut machine(), nest(200), &[]).is_ok());
    assert!(trap_of(nest(300)).contains("deep"));
}

#[test]
fn bytes_behind_a_string_are_not_written() {
    let mut m = machine();
    m.environment.kernel.map(0x9000, *b"a\0");
    let read = set_call(1, Helper::ProbeReadKernelStr, &[slot(0), Arg::Imm(8), Arg::Imm(0x9000)]);
    let trap = run_in(&mut m, vec![read.clone(), load_slot(1, 0, 0, Size::B4)], &[]).unwrap_err();
    assert!(trap.message.contains("byte 2 of slot 0"), "{trap}");
    run_in(&mut m, vec![read, load_slot(1, 0, 0, Size::B2)], &[]).unwrap();
}

#[test]
fn runs_start_with_fresh_variables_and_stack() {
    let mut m = machine();
    run_in(&mut m, vec![copy(1, i(1)), store_slot(0, 0, Size::B8, i(1))], &[]).unwrap();
    assert!(run_in(&mut m, vec![copy(2, Operand::Var(Var(1)))], &[]).is_err());
    assert!(run_in(&mut m, vec![load_slot(1, 0, 0, Size::B8)], &[]).is_err());
}
