//! Loading a program of an object with bpf(2) alone, for what aya has no interface for: a kprobe or uprobe program for a multi
//! link, functions of modules.

use crate::kernel::sys::prog::{self, Lines, ProgSpec, Refused};
use object::{Object, ObjectSection, ObjectSymbol, RelocationTarget, SectionIndex, SymbolKind};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};

/// Bytes of an instruction.
const INSN_BYTES: u64 = 8;
/// The source register of a 64-bit constant that is a map's descriptor, or an address in the value of such a map.
const PSEUDO_MAP_FD: u64 = 1;
const PSEUDO_MAP_VALUE: u64 = 2;
/// Name of the map that holds the read-only tables.
pub const TABLES_MAP: &str = ".rodata";

/// How a program is to be loaded.
#[derive(Clone, Copy, Debug, Default)]
pub struct Purpose<'a> {
    /// One of [`prog::kind`].
    pub kind: u32,
    /// `enum bpf_attach_type`, where the kind needs it.
    pub attach_type: u32,
    /// BTF id of the function that a tracing program attaches to.
    pub attach_btf_id: u32,
    /// The module's BTF that this id is from.
    pub attach_btf: Option<BorrowedFd<'a>>,
}

/// A program as it lies in an object, with the descriptors of its maps put in.
#[derive(Debug, Default)]
struct Code {
    insns: Vec<u64>,
    functions: Vec<[u32; 2]>,
    lines: Vec<[u32; 4]>,
}

/// Loads the program `name` of an object. `map` gives the descriptor of a map by its name; the read-only tables are one
/// named [`TABLES_MAP`]. Types and lines that the kernel refuses are left out: they only serve messages.
pub fn load(
    object: &[u8],
    name: &str,
    purpose: &Purpose<'_>,
    map: impl Fn(&str) -> Option<RawFd>,
) -> Result<OwnedFd, Refused> {
    let wrong = |reason: String| Refused { error: io::Error::other(reason), log: String::new() };
    let file = object::File::parse(object).map_err(|error| wrong(error.to_string()))?;
    let code = code(&file, name, map).map_err(wrong)?;
    let types = file.section_by_name(".BTF").and_then(|s| prog::load_btf(s.data().ok()?).ok());
    let Purpose { kind, attach_type, attach_btf_id, attach_btf } = *purpose;
    let spec = ProgSpec { kind, attach_type, attach_btf_id, attach_btf, insns: &code.insns, name, lines: None };
    let lines = types.as_ref().map(|btf| Lines { btf: btf.as_fd(), functions: &code.functions, lines: &code.lines });
    prog::load(&ProgSpec { lines, ..spec })
}

fn code(file: &object::File<'_>, name: &str, map: impl Fn(&str) -> Option<RawFd>) -> Result<Code, String> {
    let symbol = file
        .symbols()
        .find(|s| s.kind() == SymbolKind::Text && s.name() == Ok(name))
        .ok_or_else(|| format!("the object has no program {name}"))?;
    let index = symbol.section_index().ok_or_else(|| format!("the program {name} lies in no section"))?;
    let section = file.section_by_index(index).map_err(|error| error.to_string())?;
    let data = section.data().map_err(|error| error.to_string())?;
    let (start, end) = (symbol.address(), symbol.address().saturating_add(symbol.size()));
    let bytes = data.get(start as usize..end as usize).ok_or_else(|| format!("the program {name} is cut short"))?;
    let mut insns: Vec<u64> =
        bytes.chunks_exact(INSN_BYTES as usize).map(|b| u64::from_le_bytes(b.try_into().unwrap_or_default())).collect();
    for (offset, relocation) in section.relocations().filter(|(offset, _)| (start..end).contains(offset)) {
        let RelocationTarget::Symbol(target) = relocation.target() else {
            return Err(format!("a relocation of {name} has no symbol"));
        };
        let target = file.symbol_by_index(target).map_err(|error| error.to_string())?;
        let at = ((offset - start) / INSN_BYTES) as usize;
        let pair = insns.get_mut(at..at + 2).ok_or_else(|| format!("a relocation of {name} lies behind its end"))?;
        refer(pair, file, &target, &map)?;
    }
    let (functions, lines) = records(file, index, start..end).unwrap_or_default();
    Ok(Code { insns, functions, lines })
}

/// Turns a 64-bit constant into a map, or into an address in the read-only tables; there the constant so far is the offset.
fn refer(
    pair: &mut [u64],
    file: &object::File<'_>,
    target: &object::Symbol<'_, '_>,
    map: &impl Fn(&str) -> Option<RawFd>,
) -> Result<(), String> {
    let section = target.section_index().and_then(|i: SectionIndex| file.section_by_index(i).ok());
    let in_tables = section.is_some_and(|s| s.name() == Ok(TABLES_MAP));
    let name = if in_tables { TABLES_MAP } else { target.name().unwrap_or_default() };
    let fd = map(name).ok_or_else(|| format!("there is no map {name}"))?;
    let pseudo = if in_tables { PSEUDO_MAP_VALUE } else { PSEUDO_MAP_FD };
    let offset = if in_tables { (pair[0] >> 32).wrapping_add(target.address()) & 0xffff_ffff } else { 0 };
    // opcode and destination, source register, descriptor; the second half holds the offset in its immediate.
    pair[0] = pair[0] & 0x0fff | pseudo << 12 | (fd as u32 as u64) << 32;
    pair[1] = offset << 32;
    Ok(())
}

type Records = (Vec<[u32; 2]>, Vec<[u32; 4]>);

/// The program's part of `.BTF.ext`, counted in instructions from its start as the kernel wants it.
fn records(file: &object::File<'_>, section: SectionIndex, range: std::ops::Range<u64>) -> Option<Records> {
    let data = file.section_by_name(".BTF.ext")?.data().ok()?;
    let types = file.section_by_name(".BTF")?.data().ok()?;
    let section = file.section_by_index(section).ok()?;
    let name = section.name().ok()?;
    let part = |at: usize| -> Option<&[u8]> {
        let from = word(data, 4)?.checked_add(word(data, at)?)? as usize;
        data.get(from..from.checked_add(word(data, at + 4)? as usize)?)
    };
    let within = |insn: u32| range.contains(&u64::from(insn));
    let count = |insn: u32| ((u64::from(insn) - range.start) / INSN_BYTES) as u32;
    let mut functions = part_of_section(part(8)?, types, name)?;
    functions.retain(|r: &[u32; 2]| within(r[0]));
    functions.iter_mut().for_each(|r| r[0] = count(r[0]));
    let mut lines = part_of_section(part(16)?, types, name)?;
    lines.retain(|r: &[u32; 4]| within(r[0]));
    lines.iter_mut().for_each(|r| r[0] = count(r[0]));
    Some((functions, lines))
}

/// Records of one section of the object: `u32` bytes of a record, then for each section its name, a count and the records.
fn part_of_section<const N: usize>(part: &[u8], types: &[u8], name: &str) -> Option<Vec<[u32; N]>> {
    let size = word(part, 0)? as usize;
    if size < 4 * N {
        return None;
    }
    let mut at = 4;
    while at < part.len() {
        let (section, count) = (word(part, at)?, word(part, at + 4)? as usize);
        let records = part.get(at + 8..(at + 8).checked_add(count.checked_mul(size)?)?)?;
        if text(types, section)? == name.as_bytes() {
            let record = |bytes: &[u8]| std::array::from_fn(|i| word(bytes, 4 * i).unwrap_or_default());
            return Some(records.chunks_exact(size).map(record).collect());
        }
        at += 8 + records.len();
    }
    None
}

fn word(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(data.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

/// A text of BTF: header words are its length, then offset and length of types and of strings.
fn text(types: &[u8], offset: u32) -> Option<&[u8]> {
    let strings = word(types, 4)?.checked_add(word(types, 16)?)?;
    let tail = types.get(strings.checked_add(offset)? as usize..)?;
    Some(&tail[..tail.iter().position(|b| *b == 0)?])
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
    fn a_program_is_cut_out_of_its_object_with_its_maps_and_lines() {
        let object = two_programs();
        let file = object::File::parse(&*object).unwrap();
        let code = code(&file, "second", |name| (name == "counts").then_some(42)).unwrap();
        assert_eq!(code.insns.len(), 11, "ten instructions, one of them of two slots");
        assert_eq!((code.insns[1], code.insns[2]), (0x18 | 1 << 8 | 1 << 12 | 42 << 32, 0));
        assert_eq!(code.functions.iter().map(|f| f[0]).collect::<Vec<_>>(), [0]);
        let lines: Vec<(u32, u32)> = code.lines.iter().map(|l| (l[0], l[3] >> 10)).collect();
        assert_eq!(lines[..3], [(0, 1), (1, 2), (3, 3)], "the third instruction stands behind a wide one");
        assert_eq!(lines.len(), 10);
    }

    #[test]
    fn what_is_not_there_is_said() {
        let object = two_programs();
        let file = object::File::parse(&*object).unwrap();
        assert_eq!(code(&file, "third", |_| None).unwrap_err(), "the object has no program third");
        assert_eq!(code(&file, "second", |_| None).unwrap_err(), "there is no map counts");
        let refused = load(b"no object", "p", &Purpose::default(), |_| None).unwrap_err();
        assert!(!refused.error.to_string().is_empty());
        for end in 0..object.len() {
            let _ = load(&object[..end], "no such program", &Purpose::default(), |_| None);
        }
    }
}
