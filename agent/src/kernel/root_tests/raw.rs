//! Programs of an object loaded without aya.

use super::objects::{Item, Prog, count, insn, map, object};
use crate::kernel::raw_load::RawProgram;
use crate::kernel::sys::map::kind as map_kind;
use crate::kernel::sys::prog::kind;
use crate::kernel::sys::{KernelMap, MapSpec};
use kstrobe_ebpf::layout::{MapDef, MapKind};
use std::os::fd::AsFd;

fn two_programs() -> Vec<u8> {
    let maps: [MapDef; 1] = [map("counts", MapKind::Array { mmap: false }, 4, 8, 1)];
    // Reads beyond the stack: the verifier says so at its line.
    let bad = vec![Item::Insn(insn(0x79, 1, 10, 8, 0)), Item::Insn(insn(0x95, 0, 0, 0, 0))];
    let prog = |name, section, items| Prog { name, section, items };
    object(&maps, &[prog("kt_bad", "uretprobe", bad), prog("kt_count", "uprobe", count("counts", 0))])
}

#[test]
fn a_program_is_taken_out_of_its_object() {
    let object = two_programs();
    assert!(RawProgram::of_object(&object, "kt_count").is_ok());
    assert_eq!(RawProgram::of_object(&object, "other").unwrap_err(), "it has no program other");
    for n in 0..object.len() {
        // Whatever is cut off, there is an error or a program, and no panic.
        let _ = RawProgram::of_object(&object[..n], "kt_count");
    }
}

#[test]
#[ignore = "needs root"]
fn root_raw_programs_load_with_their_maps_and_lines() {
    let object = two_programs();
    let spec = MapSpec { kind: map_kind::ARRAY, key_bytes: 4, value_bytes: 8, entries: 1, ..MapSpec::default() };
    let counts = KernelMap::create(&spec).unwrap();
    let fd = |name: &str| (name == "counts").then(|| counts.as_fd());
    RawProgram::of_object(&object, "kt_count").unwrap().load(kind::KPROBE, 0, fd).unwrap();

    let none = RawProgram::of_object(&object, "kt_count").unwrap().load(kind::KPROBE, 0, |_| None).unwrap_err();
    assert_eq!(none.error.to_string(), "there is no map counts");
    let refused = RawProgram::of_object(&object, "kt_bad").unwrap().load(kind::KPROBE, 0, fd).unwrap_err();
    assert!(refused.log.contains("value: line 1"), "{}", refused.log);
}
