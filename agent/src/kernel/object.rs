//! The compiled object as the loader takes it: parsed once, its programs relocated once. The only file that names aya-obj.

use crate::kernel::read::{LayoutError, check_map};
use crate::kernel::sys::prog::{self, Refused, kind};
use aya_obj::btf::BtfError;
use aya_obj::generated::bpf_insn;
use aya_obj::maps::Map;
use aya_obj::relocation::EbpfRelocationError;
use aya_obj::{Function, Object as Parsed, ParseError, Program, ProgramSection};
use kstrobe_ebpf::Layout;
use std::collections::{HashMap, HashSet};
use std::os::fd::{OwnedFd, RawFd};
use thiserror::Error;

/// Name of the map that holds the read-only tables.
pub const TABLES_MAP: &str = ".rodata";

/// The object is not what its layout says, or no object at all: a fault of the compiler.
#[derive(Debug, Error)]
pub enum ObjectError {
    /// It is not read as an object.
    #[error(transparent)]
    Parse(#[from] ParseError),
    /// Its type information is broken.
    #[error(transparent)]
    Types(#[from] BtfError),
    /// A program names a map that is not there.
    #[error("{}: {}", .0, source_text(.0))]
    Relocate(#[from] EbpfRelocationError),
    /// It lacks a map of the layout.
    #[error("it has no map {0}")]
    NoMap(String),
    /// It lacks a program.
    #[error("it has no program {0}")]
    NoProgram(String),
    /// A program lies in a section for another type of program.
    #[error("program {program} lies in a section for {section}, not for {attach}")]
    OtherSection {
        program: String,
        /// As aya names it.
        section: String,
        /// The hook.
        attach: String,
    },
    /// The kernel does not take its type information; the last line of what it says.
    #[error("the kernel refuses its type information: {0}")]
    RefusedTypes(String),
    /// Its maps are not those of the layout.
    #[error(transparent)]
    Layout(#[from] LayoutError),
}

fn source_text(error: &EbpfRelocationError) -> String {
    std::error::Error::source(error).map(ToString::to_string).unwrap_or_default()
}

/// A parsed object.
pub struct Object {
    parsed: Parsed,
    maps: HashMap<String, Map>,
}

/// A relocated program with its source lines, as BPF_PROG_LOAD takes them.
pub struct Code {
    /// `BPF_PROG_TYPE_*` of the section that it lies in; `None` for those that no probe has.
    pub kind: Option<u32>,
    /// The section, for messages.
    pub section: String,
    /// Instructions.
    pub insns: Vec<u64>,
    /// `struct bpf_func_info`
    pub functions: Vec<[u32; 2]>,
    /// `struct bpf_line_info`
    pub lines: Vec<[u32; 4]>,
}

impl Object {
    /// Reads an object.
    pub fn parse(bytes: &[u8]) -> Result<Object, ObjectError> {
        let mut parsed = Parsed::parse(bytes)?;
        let maps = std::mem::take(&mut parsed.maps);
        Ok(Object { parsed, maps })
    }

    /// Hands the type information to the kernel, without the kinds of types that this kernel does not know. `None` where the
    /// object has none or the kernel knows no BTF.
    pub fn load_types(&mut self) -> Result<Option<Result<OwnedFd, Refused>>, ObjectError> {
        let Some(features) = aya::features().btf() else { return Ok(None) };
        let types = self.parsed.fixup_and_sanitize_btf(features)?;
        Ok(types.map(|types| prog::load_btf(&types.to_bytes())))
    }

    /// Checks that the maps are those of the layout.
    pub fn check(&self, layout: &Layout) -> Result<(), ObjectError> {
        for def in &layout.maps {
            let map = self.maps.get(&def.name).ok_or_else(|| ObjectError::NoMap(def.name.clone()))?;
            check_map(def, [map.map_type(), map.key_size(), map.value_size(), map.max_entries()])?;
        }
        Ok(())
    }

    /// BTF ids of a map's key and value; 0 for none.
    pub fn types_of_map(&self, name: &str) -> (u32, u32) {
        match self.maps.get(name) {
            Some(Map::Btf(map)) => (map.def.btf_key_type_id, map.def.btf_value_type_id),
            _ => (0, 0),
        }
    }

    /// The bytes of the read-only tables.
    pub fn tables(&self) -> Option<&[u8]> {
        self.maps.get(TABLES_MAP).map(Map::data)
    }

    /// Puts the descriptors of maps into the programs.
    pub fn relocate(&mut self, descriptor: impl Fn(&str) -> Option<RawFd>) -> Result<(), ObjectError> {
        let Object { parsed, maps } = self;
        let known = maps.iter().filter_map(|(name, map)| Some((name.as_str(), descriptor(name)?, map)));
        // No program calls a function of the object.
        Ok(parsed.relocate_maps(known, &HashSet::new())?)
    }

    /// A program of the object.
    pub fn code(&self, name: &str) -> Result<Code, ObjectError> {
        let missing = || ObjectError::NoProgram(name.to_owned());
        let program = self.parsed.programs.get(name).ok_or_else(missing)?;
        let function = self.parsed.functions.get(&program.function_key()).ok_or_else(missing)?;
        Ok(Code::of(program, function))
    }
}

impl Code {
    fn of(program: &Program, function: &Function) -> Code {
        let functions = &function.func_info.func_info;
        let lines = &function.line_info.line_info;
        Code {
            kind: kind_of(&program.section),
            section: format!("{:?}", program.section),
            insns: function.instructions.iter().map(encode).collect(),
            functions: functions.iter().map(|f| [f.insn_off, f.type_id]).collect(),
            lines: lines.iter().map(|l| [l.insn_off, l.file_name_off, l.line_off, l.line_col]).collect(),
        }
    }
}

/// `BPF_PROG_TYPE_*` of a section.
fn kind_of(section: &ProgramSection) -> Option<u32> {
    use ProgramSection as S;
    Some(match section {
        S::KProbe | S::KRetProbe | S::UProbe { .. } | S::URetProbe { .. } => kind::KPROBE,
        S::TracePoint => kind::TRACEPOINT,
        S::PerfEvent => kind::PERF_EVENT,
        S::RawTracePoint => kind::RAW_TRACEPOINT,
        S::BtfTracePoint | S::FEntry { .. } | S::FExit { .. } | S::Iter { .. } => kind::TRACING,
        _ => return None,
    })
}

fn encode(insn: &bpf_insn) -> u64 {
    u64::from(insn.code)
        | u64::from(insn.dst_reg()) << 8
        | u64::from(insn.src_reg()) << 12
        | u64::from(insn.off as u16) << 16
        | u64::from(insn.imm as u32) << 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::root_tests::objects::{Item, Prog, count, map, object};
    use kstrobe_ebpf::layout::MapKind;

    fn two_programs() -> Vec<u8> {
        let nothing = || [0xb7, 0x95].map(Item::Insn).into();
        let progs = [
            Prog { name: "first", section: "kprobe/first", items: nothing() },
            Prog { name: "second", section: "kprobe/second", items: count("counts", 7) },
        ];
        object(&[map("counts", MapKind::Array { mmap: false }, 4, 8, 1)], &progs)
    }

    #[test]
    fn a_program_comes_with_its_maps_and_lines() {
        let mut object = Object::parse(&two_programs()).unwrap();
        object.relocate(|name| (name == "counts").then_some(42)).unwrap();
        let code = object.code("second").unwrap();
        assert_eq!(
            (code.kind, code.insns.len()),
            (Some(kind::KPROBE), 11),
            "ten instructions, one of them of two slots"
        );
        assert_eq!((code.insns[1], code.insns[2]), (0x18 | 1 << 8 | 1 << 12 | 42 << 32, 0));
        assert_eq!(code.functions.iter().map(|f| f[0]).collect::<Vec<_>>(), [0]);
        let lines: Vec<(u32, u32)> = code.lines.iter().map(|l| (l[0], l[3] >> 10)).collect();
        assert_eq!(lines[..3], [(0, 1), (1, 2), (3, 3)], "the third instruction stands behind a wide one");
        assert_eq!(lines.len(), 10);
    }

    #[test]
    fn a_missing_program_or_map_is_named() {
        let bytes = two_programs();
        let mut object = Object::parse(&bytes).unwrap();
        assert_eq!(object.code("third").err().unwrap().to_string(), "it has no program third");
        let unknown = object.relocate(|_| None).unwrap_err().to_string();
        assert!(unknown.contains("second"), "{unknown}");
        assert!(Object::parse(b"no object").is_err());
        for end in 0..bytes.len() {
            let _ = Object::parse(&bytes[..end]).map(|object| object.code("first").map(|code| code.insns));
        }
    }
}
