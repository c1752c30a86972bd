//! Objects: what is in them, and that a real kernel takes them.

mod support;

use kstrobe_ebpf::Fault;
use kstrobe_ebpf::asm::Code;
use kstrobe_ebpf::elf::{Source, object};
use kstrobe_ebpf::ir::Module;
use kstrobe_ebpf::lower::{Options, lower};
use object::{Object, ObjectSection, ObjectSymbol, RelocationTarget};
use std::process::Command;
use support::span;

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
    let with = |change: fn(&mut Module)| {
        let mut module = span::module();
        let codes = codes(&module);
        change(&mut module);
        object(&module, &codes, &SOURCE).expect_err("must be refused")
    };
    let cases: [(fn(&mut Module), &str); 5] = [
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

/// libbpf (in bpftool) and this kernel's verifier take the object, and both speak in lines of the YAML file.
#[test]
#[ignore = "needs root and bpftool"]
fn root_bpftool_loads_the_object_and_shows_yaml_lines() {
    let module = span::module();
    let bytes = object(&module, &codes(&module), &SOURCE).expect("the module is valid");
    let file = std::env::temp_dir().join(format!("kstrobe-{}.o", std::process::id()));
    std::fs::write(&file, bytes).expect("can write to the temporary directory");
    // A bpf file system of its own: nothing stays behind, whatever happens.
    let script = r#"set -e
        mount -t bpf bpf /sys/fs/bpf
        bpftool -d prog loadall "$0" /sys/fs/bpf/p pinmaps /sys/fs/bpf/m 2>/tmp/kstrobe-load.$$ || {
            cat /tmp/kstrobe-load.$$; rm /tmp/kstrobe-load.$$; exit 1; }
        rm /tmp/kstrobe-load.$$
        for p in span_end span_start raw tracepoint interval; do
            echo "== $p"; bpftool prog dump xlated pinned /sys/fs/bpf/p/$p linum; done
        for m in storage values keys free; do bpftool map show pinned /sys/fs/bpf/m/$m; done"#;
    let run = Command::new("unshare").args(["-m", "sh", "-c", script]).arg(&file).output().expect("unshare");
    let said = String::from_utf8_lossy(&run.stdout).into_owned() + &String::from_utf8_lossy(&run.stderr);
    std::fs::remove_file(&file).expect("the object is still there");
    assert!(run.status.success(), "{said}");
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
#[test]
fn zz_show() {
    let module = span::module();
    for (f, c) in module.funcs.iter().zip(codes(&module)) { println!("== {} {} slots {} stack\n{}", f.name, c.slots(), c.stack_bytes, c.listing()); }
    std::fs::write("/tmp/backaya/span.o", object(&module, &codes(&module), &SOURCE).unwrap()).unwrap();
}
