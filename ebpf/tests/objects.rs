//! Objects: what is in them, and that a real kernel takes them.

mod support;

use kstrobe_ebpf::Fault;
use kstrobe_ebpf::asm::Code;
use kstrobe_ebpf::elf::{Source, object};
use kstrobe_ebpf::ir::{Arg, CTX, Call, Func, Helper, Module, Op, Operand, Size, Slot, Space, Stmt, Var};
use kstrobe_ebpf::kernel_target::btf::{Btf, Kind};
use kstrobe_ebpf::lower::{Options, lower};
use kstrobe_ebpf::typed::Attach;
use object::{Object, ObjectSection, ObjectSymbol, RelocationTarget};
use std::process::Command;
use support::{random, span};

const SOURCE: Source = Source { file: "span.yaml", text: span::YAML };

fn codes(module: &Module) -> Vec<Code> {
    let options = Options::default();
    module.funcs.iter().map(|func| lower(func, module, &options).expect("the module is valid")).collect()
}

#[test]
fn every_function_keeps_the_verifiers_rules_that_can_be_checked_here() {
    let module = span::module();
    for (func, code) in module.funcs.iter().zip(codes(&module)) {
        let rule = support::check::broken_rule(&code, func.slots.iter().map(|bytes| bytes.next_multiple_of(8)).sum());
        assert_eq!(rule, None, "{}\n{}", func.name, code.listing());
    }
}

#[test]
fn equal_input_gives_equal_bytes() {
    let module = span::module();
    let bytes = object(&module, &codes(&module), &SOURCE).expect("the module is valid");
    assert_eq!(object(&module, &codes(&module), &SOURCE), Ok(bytes));
}

#[test]
fn sections_symbols_and_relocations_are_what_loaders_look_for() {
    let module = span::module();
    let codes = codes(&module);
    let bytes = object(&module, &codes, &SOURCE).expect("the module is valid");
    let elf = object::File::parse(bytes.as_slice()).expect("an ELF file");
    let names: Vec<&str> = elf.sections().filter_map(|section| section.name().ok()).collect();
    for expected in [
        "license",
        ".maps",
        ".rodata",
        "tp_btf/sys_exit",
        "tp_btf/sys_enter",
        "raw_tp/sched_switch",
        "tracepoint/sched/sched_switch",
        "perf_event",
        ".BTF",
        ".BTF.ext",
    ] {
        assert!(names.contains(&expected), "{expected} is not in {names:?}");
    }
    for name in ["storage", "values", "keys", "free", "tables", "span_end", "interval"] {
        let symbol = elf.symbols().find(|symbol| symbol.name() == Ok(name)).expect(name);
        assert!(symbol.is_global() && symbol.size() > 0, "{name}");
    }
    let end = elf.section_by_name("tp_btf/sys_exit").expect("a section");
    let targets: Vec<&str> = end
        .relocations()
        .map(|(_, relocation)| match relocation.target() {
            RelocationTarget::Symbol(at) => elf.symbol_by_index(at).expect("a symbol").name().expect("a name"),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(targets, ["storage", "values", "tables"]);
}

#[test]
fn names_that_the_kernel_would_refuse_are_errors_here() {
    type Change = fn(&mut Module);
    let with = |change: Change| {
        let mut module = span::module();
        let codes = codes(&module);
        change(&mut module);
        object(&module, &codes, &SOURCE).expect_err("must be refused")
    };
    let cases: [(Change, &str); 5] = [
        (|m| m.layout.maps[0].name = "a-b".into(), "`a-b` is not a C identifier"),
        (|m| m.layout.maps[0].name = "a234567890123456".into(), "longer than 15"),
        (|m| m.funcs[0].name = "values".into(), "two things are named `values`"),
        (|m| m.funcs[0].attach = None, "attaches nowhere"),
        (|m| m.layout.maps[1].key_bytes = 8, "cannot have keys of 8"),
    ];
    for (change, expected) in cases {
        let diagnostic = with(change);
        assert_eq!(diagnostic.fault, Fault::Bug);
        assert!(diagnostic.message.contains(expected), "{}", diagnostic.message);
    }
}

/// Loads an object with bpftool in a bpf file system of its own, so that nothing stays behind; then runs `more`. Returns what
/// was said; the error if it failed.
fn load(name: &str, bytes: &[u8], more: &str) -> Result<String, String> {
    let file = std::env::temp_dir().join(format!("kstrobe-{}-{name}.o", std::process::id()));
    std::fs::write(&file, bytes).expect("can write to the temporary directory");
    // Without -d, bpftool prints the verifier's log for what is refused, which is what we want to read.
    let script = format!(
        "set -e; mount -t bpf bpf /sys/fs/bpf; bpftool prog loadall \"$0\" /sys/fs/bpf/p pinmaps /sys/fs/bpf/m\n{more}"
    );
    let run = Command::new("unshare").args(["-m", "sh", "-c", &script]).arg(&file).output().expect("unshare");
    std::fs::remove_file(&file).expect("the object is still there");
    let said = String::from_utf8_lossy(&run.stdout).into_owned() + &String::from_utf8_lossy(&run.stderr);
    if run.status.success() { Ok(said) } else { Err(said) }
}

/// libbpf (in bpftool) and this kernel's verifier take the object, and both speak in lines of the YAML file.
#[test]
#[ignore = "needs root and bpftool"]
fn root_bpftool_loads_the_object_and_shows_yaml_lines() {
    let module = span::module();
    let bytes = object(&module, &codes(&module), &SOURCE).expect("the module is valid");
    let more = r#"
        for p in span_end span_start raw tracepoint interval; do
            bpftool prog dump xlated pinned /sys/fs/bpf/p/$p linum; done
        for m in storage values keys free; do bpftool map show pinned /sys/fs/bpf/m/$m; done"#;
    let loaded = load("span", &bytes, more);
    if kstrobe_testing::kernel() < (5, 11) {
        let said = loaded.expect_err("task storage came with 5.11");
        assert!(said.contains("map 'storage': failed to create"), "{said}");
        return;
    }
    let said = loaded.expect("bpftool loads it");
    for expected in [
        "; start: rawtracepoint:sys_enter [file:span.yaml line_num:3 line_col:3]",
        "; end: rawtracepoint:sys_exit [file:span.yaml line_num:4 line_col:3]",
        "; duration_seconds: { type: histogram, value: elapsed } [file:span.yaml line_num:6 line_col:3]",
        "task_storage  name storage  flags 0x1",
        "array  name values  flags 0x400",
        "hash  name keys  flags 0x0",
        "stack  name free  flags 0x0",
    ] {
        assert!(said.contains(expected), "`{expected}` is not in\n{said}");
    }
}

/// A cast to a BTF type by `bpf_rdonly_cast`, then a read through it.
#[test]
#[ignore = "needs root and bpftool"]
fn root_a_kernel_function_is_called_by_its_btf_id() {
    let raw = std::fs::read("/sys/kernel/btf/vmlinux").expect("the kernel has BTF");
    let btf = Btf::parse(raw).expect("the kernel's BTF can be read");
    let task = btf.find("task_struct", Kind::Struct).expect("a struct");
    let tgid = btf.member(task, "tgid").expect("a member").bit_offset / 8;
    let options = Options { rdonly_cast_btf_id: btf.find("bpf_rdonly_cast", Kind::Func) };
    if options.rdonly_cast_btf_id.is_none() {
        assert!(kstrobe_testing::kernel() < (6, 2), "bpf_rdonly_cast came with 6.2");
        return;
    }
    let cast = Call { helper: Helper::RdonlyCast, args: vec![Arg::Var(Var(1)), Arg::Imm(i64::from(task))] };
    let body = vec![
        Stmt::Set(Var(1), Op::Load { ptr: CTX, offset: 8, size: Size::B8, space: Space::Ctx }),
        Stmt::Set(Var(2), Op::Call(cast)),
        Stmt::Set(Var(3), Op::Load { ptr: Var(2), offset: tgid as i32, size: Size::B4, space: Space::Kernel }),
        Stmt::StoreSlot { slot: Slot(0), offset: 0, size: Size::B8, value: Operand::Var(Var(3)) },
    ];
    let module = support::module(Func { attach: raw_tp(), ..support::func(4, &[8], body) });
    let code = lower(&module.funcs[0], &module, &options).expect("valid");
    let bytes = object(&module, &[code], &SOURCE).expect("valid");
    let said = load("kfunc", &bytes, "bpftool prog dump xlated pinned /sys/fs/bpf/p/test").expect("it loads");
    // The verifier makes the cast a plain copy; the read becomes one that cannot fault.
    assert!(said.contains("*(u32 *)(r"), "{said}");
}

/// This kernel's verifier takes what random functions are lowered to, spills and all.
#[test]
#[ignore = "needs root and bpftool"]
fn root_the_verifier_takes_random_functions() {
    let mut state = 1u32;
    let mut numbers = |count: usize| -> Vec<u32> {
        let next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 8
        };
        std::iter::repeat_with(next).take(count).collect()
    };
    let mut module = support::module(support::func(1, &[], vec![]));
    module.funcs = (0..24)
        .map(|n| {
            let func = random::function(&numbers(60), if n % 2 == 0 { 2 } else { 14 });
            Func { name: format!("random_{n}"), attach: raw_tp(), ..func }
        })
        .collect();
    let bytes = object(&module, &codes(&module), &SOURCE).expect("valid");
    load("random", &bytes, "").expect("the verifier takes them");
}

fn raw_tp() -> Option<Attach> {
    Some(Attach::RawTp { event: "sched_switch".into() })
}
