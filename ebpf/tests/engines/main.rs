//! Interpreter and eBPF machine agree with results worked out by hand, with a second meaning of the language written down
//! here, and with the mathematics of buckets. The kernel's own test runs the same cases (`agent/tests/root_engines.rs`).

mod buckets;
mod cases;
mod corpus;
mod generate;
mod places;
mod random;
mod records;
mod vm;

use corpus::Left;
use kstrobe_ebpf::asm::Code;
use kstrobe_ebpf::ir::interp::{Machine, Memory};
use kstrobe_ebpf::ir::{Block, Module, Op, Size, Space, Stmt};
use kstrobe_ebpf::layout::{Index, PASSES};
use kstrobe_ebpf::lower::{Options, lower};
use kstrobe_ebpf::{Program, Source, Target, compile};

/// A compiled program with the code of its functions.
struct Compiled {
    module: Module,
    codes: Vec<Code>,
    /// Ids of cgroups that all conditions mean.
    selected: Vec<u64>,
}

fn compiled(program: &Program, target: &Target) -> Result<Compiled, String> {
    let artifact = compile(program, target).map_err(|errors| errors[0].message.clone())?;
    // `compile` gives an object; the code in it, once more as instructions.
    let rdonly_cast =
        target.btf.as_ref().and_then(|b| b.find("bpf_rdonly_cast", kstrobe_ebpf::kernel_target::btf::Kind::Func));
    let options = Options { rdonly_cast_btf_id: rdonly_cast };
    let mut module = artifact.module;
    module.funcs.iter_mut().for_each(|func| plain_adds(&mut func.body));
    let codes = module.funcs.iter().map(|func| lower(func, &module, &options).map_err(|e| e.message));
    let codes = codes.collect::<Result<_, _>>()?;
    Ok(Compiled { module, codes, selected: Vec::new() })
}

/// rbpf adds nothing atomically.
fn plain_adds(block: &mut Block) {
    for at in (0..block.len()).rev() {
        if let Stmt::Set(before, Op::FetchAdd { ptr, offset, value }) = block[at] {
            let load = Op::Load { ptr, offset, size: Size::B8, space: Space::Value };
            let add = Stmt::Add { ptr, offset, value, atomic: false };
            block.splice(at..=at, [Stmt::Set(before, load), add]);
        }
    }
    for stmt in block {
        match stmt {
            Stmt::Add { atomic, .. } => *atomic = false,
            Stmt::If { then, otherwise, .. } => {
                plain_adds(then);
                plain_adds(otherwise);
            }
            _ => {}
        }
    }
}

/// The functions in the order of events: attach order is the other way round.
fn order(module: &Module) -> impl Iterator<Item = usize> {
    (0..module.funcs.len()).rev()
}

fn interpreted(compiled: &Compiled, ctx: &[u64], kernel: &Memory, user: &Memory) -> Result<Left, String> {
    let Compiled { module, selected, .. } = compiled;
    let mut machine = Machine::new(&module.layout).map_err(|trap| trap.to_string())?;
    machine.environment.now_ns = 1_000_000;
    machine.environment.function = vm::FUNCTION;
    machine.environment.cookie = vm::COOKIE;
    machine.environment.kernel = kernel.clone();
    machine.environment.user = user.clone();
    let table = &module.layout.tables[0];
    if let Some((free, slots)) = table.free_at_start() {
        slots.for_each(|slot| assert!(machine.push(free, &slot.to_le_bytes())));
    }
    for map in &module.layout.selected {
        selected.iter().for_each(|id| assert!(machine.insert(map.map, &id.to_le_bytes(), &PASSES.to_le_bytes())));
    }
    let ctx: Vec<u8> = ctx.iter().flat_map(|word| word.to_le_bytes()).collect();
    for func in order(module) {
        machine.run(module, func, &ctx).map_err(|trap| trap.to_string())?;
    }
    let values = machine.array(table.values).chunks(8).map(|w| u64::from_le_bytes(w.try_into().unwrap())).collect();
    let slot = |value: &[u8]| u32::from_le_bytes(value[..4].try_into().unwrap());
    let keys = match table.index {
        Index::Hash { map, .. } => machine.hash(map).into_iter().map(|(key, value)| (key, slot(&value))).collect(),
        _ => Vec::new(),
    };
    Ok(Left { values, keys })
}

fn executed(compiled: &Compiled, ctx: &[u64], kernel: &Memory, user: &Memory) -> Result<Left, String> {
    let Compiled { module, codes, selected } = compiled;
    let mut vm = vm::Vm::new(module, codes, kernel.clone(), user.clone());
    module.layout.selected.iter().for_each(|map| vm.fill(map.map, selected, PASSES));
    for func in order(module) {
        vm.run(func, ctx).map_err(|error| format!("{error}\n{}", codes[func].listing()))?;
    }
    let table = &module.layout.tables[0];
    let keys = if let Index::Hash { map, .. } = table.index { vm.keys(map) } else { Vec::new() };
    Ok(Left { values: vm.values(table.values).to_vec(), keys })
}

/// Both engines must leave the same.
fn agreed(compiled: &Compiled, ctx: &[u64], kernel: &Memory, user: &Memory) -> Result<Left, String> {
    let a = interpreted(compiled, ctx, kernel, user).map_err(|error| format!("interpreter: {error}"))?;
    let b = executed(compiled, ctx, kernel, user).map_err(|error| format!("rbpf: {error}"))?;
    if a == b { Ok(a) } else { Err(format!("interpreter leaves {a:x?}\nrbpf leaves {b:x?}")) }
}

/// The object of a compiled program must be there too: tests of the kernel load it.
#[test]
fn objects_are_made() {
    let case = &corpus::cases()[0];
    let target = case.target(false, false);
    let probe = kstrobe_ebpf::check(&case.program, &target).expect("it checks");
    assert_eq!(probe.name, "case");
    let artifact = compile(&case.program, &target).expect("it compiles");
    let again = kstrobe_ebpf::assemble(artifact.module.clone(), &target, Source { file: "case", text: "" });
    assert_eq!(again.expect("it assembles").object, artifact.object);
}
