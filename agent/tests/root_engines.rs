//! The kernel does what interpreter and rbpf do: the compiler's own corpus, random expressions and bucket schemes, run
//! with `BPF_PROG_TEST_RUN`. See `ebpf/tests/engines`, where the cases lie.

#[path = "../../ebpf/tests/engines/corpus.rs"]
#[allow(dead_code, reason = "other engines read memory in more ways")]
mod corpus;
#[path = "../../ebpf/tests/engines/generate.rs"]
mod generate;

use corpus::{Case, Left, Placed, REGION_BYTES, cases, judge, one_metric, target};
use generate::{ARGS, Numbers, scheme, values, word};
use kstrobe::kernel::{Loaded, Loader, load_unattached};
use kstrobe_ebpf::ir::{Arg, Call, CmpOp, Cond, Duty, Func, Helper, Module, Op, Operand, Size, Slot, Stmt, Var};
use kstrobe_ebpf::layout::{Layout, MapDef, MapId, MapKind};
use kstrobe_ebpf::lower::{Options, lower};
use kstrobe_ebpf::program::MetricKind;
use kstrobe_ebpf::typed::Attach;
use kstrobe_ebpf::{Artifact, Program, Source, Target, compile};
use std::sync::atomic::Ordering::Relaxed;

fn compiled(program: &Program, target: &Target) -> Result<Artifact, String> {
    compile(program, target).map_err(|errors| errors[0].message.clone())
}

fn loaded(loader: &mut Loader, artifact: &Artifact) -> Result<Loaded, String> {
    let programs: Vec<_> = artifact.programs.iter().map(|p| (p.name.clone(), p.attach.clone())).collect();
    load_unattached(loader, &artifact.object, &artifact.module.layout, &programs).map_err(|error| error.to_string())
}

fn left(loaded: &Loaded) -> Left {
    let table = loaded.maps().table(0).expect("a first table");
    let values = table.values.iter().map(|word| word.load(Relaxed)).collect();
    let mut keys: Vec<_> = table.index.iter().map(|(key, slot)| (key.to_vec(), *slot)).collect();
    keys.sort();
    Left { values, keys }
}

/// Runs all programs once in the order of events, which is the reverse of the order in which they attach.
fn run(loader: &mut Loader, artifact: &Artifact, ctx: &[u64], selected: &[u64]) -> Result<Left, String> {
    let loaded = loaded(loader, artifact)?;
    let ids = selected.iter().copied().collect();
    for condition in &artifact.module.layout.selected {
        loaded.maps().select(condition.map, &ids, |_| false).map_err(|error| error.to_string())?;
    }
    for program in artifact.programs.iter().rev() {
        loaded.test_run(&program.name, ctx).map_err(|error| format!("test run: {error}"))?;
    }
    Ok(left(&loaded))
}

/// Kernel memory that a test can write: the value of a map, and where it lies.
struct Arena {
    loaded: Loaded,
    address: u64,
}

const ARENA_BYTES: u32 = 4096;

impl Arena {
    /// A program stores the address of the map's value in the value itself. The compiler never makes such code, and its
    /// checks would refuse it; the kernel lets root do it.
    fn new(loader: &mut Loader) -> Arena {
        let value = Var(1);
        let store = Stmt::Store { ptr: value, offset: 0, size: Size::B8, value: Operand::Var(value) };
        let lookup = Call { helper: Helper::MapLookup, args: vec![Arg::Map(MapId(0)), Arg::Slot(Slot(0), 0)] };
        let body = vec![
            Stmt::StoreSlot { slot: Slot(0), offset: 0, size: Size::B4, value: Operand::Imm(0) },
            Stmt::Set(value, Op::Call(lookup)),
            Stmt::If {
                cond: Cond { op: CmpOp::Ne, a: value, b: Operand::Imm(0) },
                then: vec![store],
                otherwise: vec![],
            },
        ];
        let attach = Attach::RawTp { event: "case_end".into() };
        let func = Func {
            name: "where".into(),
            attach: Some(attach.clone()),
            calls: None,
            duty: Duty::Always,
            vars: 2,
            slots: vec![4],
            body,
        };
        let map = MapDef {
            name: "arena".into(),
            kind: MapKind::Array { mmap: false },
            key_bytes: 4,
            value_bytes: ARENA_BYTES,
            entries: 1,
        };
        let layout = Layout { cpus: 1, maps: vec![map], ..Layout::default() };
        let module = Module { funcs: vec![func], rodata: vec![], layout };
        let code = lower(&module.funcs[0], &module, &Options::default()).expect("it lowers");
        let object =
            kstrobe_ebpf::elf::object(&module, &[code], &Source { file: "arena", text: "" }).expect("an object");
        let loaded = load_unattached(loader, &object, &module.layout, &[("where".into(), attach)]).expect("it loads");
        loaded.test_run("where", &[]).expect("it runs");
        let mut value = vec![0; ARENA_BYTES as usize];
        assert!(loaded.maps().map(MapId(0)).lookup(&[0; 4], &mut value).expect("a lookup"));
        let address = u64::from_le_bytes(value[..8].try_into().expect("8 bytes"));
        assert!(address >> 63 == 1, "{address:#x} is no kernel address");
        Arena { loaded, address }
    }

    /// Puts a case's regions in place: the kernel's in the arena, the process's here.
    fn place(&self, case: &Case) -> (Vec<Vec<u8>>, Placed) {
        let mut placed = Placed::default();
        let mut own = Vec::new();
        for (i, (name, user)) in case.regions().enumerate() {
            own.push(vec![0u8; REGION_BYTES]);
            let here = own[i].as_ptr() as u64;
            placed.put(name, if user { here } else { self.address + (i * REGION_BYTES) as u64 });
        }
        let mut arena = vec![0; ARENA_BYTES as usize];
        for (i, (name, _)) in case.regions().enumerate() {
            let bytes = case.bytes(name, &placed);
            arena[i * REGION_BYTES..][..REGION_BYTES].copy_from_slice(&bytes);
            own[i].copy_from_slice(&bytes);
        }
        self.loaded.maps().map(MapId(0)).update(&[0; 4], &arena, 0).expect("an update");
        (own, placed)
    }
}

fn run_case(loader: &mut Loader, arena: &Arena, case: &Case) -> Result<(), String> {
    let artifact = compiled(&case.program, &case.target(false, false))?;
    let (_own, placed) = arena.place(case);
    for row in &case.rows {
        let left = run(loader, &artifact, &case.context(row, &placed), &case.selected);
        let left = left.map_err(|e| format!("`{}`: {e}", row.line))?;
        judge(row, &artifact.module.layout, &left)?;
    }
    Ok(())
}

#[test]
#[ignore = "needs root"]
fn root_every_case_gives_in_the_kernel_what_was_worked_out() {
    let mut loader = Loader::new();
    let arena = Arena::new(&mut loader);
    let wrong: Vec<String> = cases()
        .iter()
        .filter_map(|case| run_case(&mut loader, &arena, case).err().map(|error| format!("{}: {error}", case.place)))
        .collect();
    assert!(wrong.is_empty(), "{} wrong\n{}", wrong.len(), wrong.join("\n"));
}

/// The same numbers in each run, so that a failure is there again.
fn numbers(seed: u32, count: usize) -> Vec<u32> {
    let mut state = u64::from(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 16) as u32
    };
    (0..count).map(|_| next()).collect()
}

#[test]
#[ignore = "needs root"]
fn root_random_expressions_mean_in_the_kernel_what_the_language_says() {
    let mut loader = Loader::new();
    let kernel = target(&ARGS, false, false);
    for seed in 0..400 {
        let choices = numbers(seed, 20 + seed as usize % 100);
        let node = Numbers(choices.iter()).expression();
        let text = node.text();
        let artifact =
            compiled(&one_metric(MetricKind::Gauge(None), &text), &kernel).unwrap_or_else(|e| panic!("{text}: {e}"));
        let loaded = loaded(&mut loader, &artifact).unwrap_or_else(|e| panic!("{text}: {e}"));
        for words in numbers(seed + 1_000_000, 16 * 8).chunks(16) {
            let ctx: Vec<u64> = words.chunks(2).map(|pair| word(pair[0], pair[1])).collect();
            loaded.test_run(&artifact.programs[0].name, &ctx).expect("it runs");
            assert_eq!(left(&loaded).values, [node.stored(&ctx), 1], "{text} of {ctx:x?}");
        }
    }
}

#[test]
#[ignore = "needs root"]
fn root_the_bucket_index_in_the_kernel_is_the_mathematical_one() {
    let mut loader = Loader::new();
    let kernel = target(&[("u64", "v")], false, false);
    let schemes = (0..120).filter_map(|seed| {
        let numbers = numbers(seed, 60);
        scheme(&numbers).map(|scheme| (scheme, numbers))
    });
    let (mut tried, mut checked) = (0, 0);
    for (scheme, numbers) in schemes {
        let program = one_metric(MetricKind::Histogram(scheme.spec.clone()), "args.v");
        let artifact = compiled(&program, &kernel).unwrap_or_else(|e| panic!("{:?}: {e}", scheme.spec));
        let loaded = loaded(&mut loader, &artifact).unwrap_or_else(|e| panic!("{:?}: {e}", scheme.spec));
        let mut want = vec![0u64; 1 + scheme.buckets()];
        for value in values(&scheme, &numbers) {
            want[0] = want[0].wrapping_add(value);
            want[1 + scheme.index(value)] += 1;
            loaded.test_run(&artifact.programs[0].name, &[value]).expect("it runs");
            let found = left(&loaded).values;
            let at = (0..want.len()).find(|i| found[*i] != want[*i]);
            assert_eq!(at, None, "{value} of {:?}", scheme.spec);
            checked += 1;
        }
        tried += 1;
    }
    assert!(tried > 60 && checked > 5000, "{tried} schemes, {checked} values");
}
