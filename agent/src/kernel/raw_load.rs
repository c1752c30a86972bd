//! Loads one program of an object with an attach type of our choice: aya 0.14 offers none for kprobes and uprobes, and links
//! to many places at once want `BPF_TRACE_KPROBE_MULTI` or `BPF_TRACE_UPROBE_MULTI` there.

use crate::kernel::sys::prog::{self, Notes, ProgSpec, Refused};
use object::read::elf::ElfFile64;
use object::{LittleEndian, Object, ObjectSection, ObjectSymbol, RelocationTarget, SymbolIndex};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// A program as an object has it.
#[derive(Debug)]
pub struct RawProgram {
    name: String,
    insns: Vec<u64>,
    /// Instructions that name a map: slot, map, and for a table in it the offset.
    maps: Vec<MapUse>,
    btf: Vec<u8>,
    functions: Vec<[u32; 2]>,
    lines: Vec<[u32; 4]>,
}

#[derive(Debug)]
struct MapUse {
    slot: usize,
    map: String,
    /// Address of the map's contents rather than the map.
    contents: bool,
}

/// `BPF_PSEUDO_MAP_FD`: the constant is a map, by its descriptor.
const A_MAP: u64 = 1;
/// `BPF_PSEUDO_MAP_VALUE`: the constant is the address of the contents of an array of one element.
const CONTENTS_OF_A_MAP: u64 = 2;
/// First two bytes of `.BTF.ext`.
const BTF_MAGIC: u32 = 0xeb9f;

impl RawProgram {
    /// Takes a program out of an object of ours. The error says what is wrong with the object.
    pub fn of_object(object: &[u8], name: &str) -> Result<RawProgram, String> {
        let file = ElfFile64::<LittleEndian>::parse(object).map_err(|e| e.to_string())?;
        let symbol =
            file.symbols().find(|s| s.name() == Ok(name)).ok_or_else(|| format!("it has no program {name}"))?;
        let index = symbol.section_index().ok_or_else(|| format!("{name} lies in no section"))?;
        let section = file.section_by_index(index).map_err(|e| e.to_string())?;
        let (start, bytes) = (symbol.address(), symbol.size());
        let code = section.data_range(start, bytes).ok().flatten();
        let code = code.ok_or_else(|| format!("{name} lies outside of its section"))?;
        let insns = code.chunks_exact(8).map(|c| u64::from_le_bytes([c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7]]));
        let mut maps = Vec::new();
        for (at, relocation) in section.relocations() {
            if !(start..start + bytes).contains(&at) {
                continue;
            }
            let RelocationTarget::Symbol(target) = relocation.target() else { continue };
            let (map, contents) = map_of(&file, target)?;
            maps.push(MapUse { slot: ((at - start) / 8) as usize, map, contents });
        }
        let part = |name: &str| file.section_by_name(name).and_then(|s| s.data().ok()).unwrap_or_default();
        let (btf, extended) = (part(".BTF"), part(".BTF.ext"));
        let section_name = section.name().map_err(|e| e.to_string())?;
        let within = start as u32..(start + bytes) as u32;
        Ok(RawProgram {
            name: name.into(),
            insns: insns.collect(),
            maps,
            btf: btf.to_vec(),
            functions: records(btf, extended, section_name, &within).unwrap_or_default(),
            lines: records(btf, extended, section_name, &within).unwrap_or_default(),
        })
    }

    /// Loads it. `map` gives the descriptor of a map by its name; tables lie in the map `.rodata`.
    pub fn load<'fd>(
        &self,
        kind: u32,
        attach_type: u32,
        map: impl Fn(&str) -> Option<BorrowedFd<'fd>>,
    ) -> Result<OwnedFd, Refused> {
        let other = |message: String| Refused { error: io::Error::other(message), log: String::new() };
        let mut insns = self.insns.clone();
        for used in &self.maps {
            let fd = map(&used.map).ok_or_else(|| other(format!("there is no map {}", used.map)))?;
            let Some([first, second]) = insns.get_mut(used.slot..used.slot + 2) else {
                return Err(other(format!("{} names a map beyond its end", self.name)));
            };
            // A constant of two slots: the source register says what it is, the first half is the descriptor and the
            // second the offset into the contents, which the object has in the first.
            let (source, offset) =
                if used.contents { (CONTENTS_OF_A_MAP, *first & 0xffff_ffff << 32) } else { (A_MAP, 0) };
            *first = *first & 0x0fff | source << 12 | u64::from(fd.as_raw_fd() as u32) << 32;
            *second = *second & 0xffff_ffff | offset;
        }
        // Without its notes the program is as good; only what the verifier says of a bad one is harder to read.
        let btf = if self.functions.is_empty() { None } else { prog::load_btf(&self.btf).ok() };
        let notes = btf.as_ref().map(|btf| Notes { btf: btf.as_fd(), functions: &self.functions, lines: &self.lines });
        prog::load(&ProgSpec { kind, attach_type, insns: &insns, name: &self.name, notes, ..ProgSpec::default() })
    }
}

/// The map that a symbol means, and whether its contents are meant.
fn map_of(file: &ElfFile64<'_, LittleEndian>, symbol: SymbolIndex) -> Result<(String, bool), String> {
    let symbol = file.symbol_by_index(symbol).map_err(|e| e.to_string())?;
    let section = symbol.section_index().and_then(|index| file.section_by_index(index).ok());
    let section = section.and_then(|s| s.name().ok()).unwrap_or_default();
    match section {
        ".maps" => Ok((symbol.name().map_err(|e| e.to_string())?.to_string(), false)),
        ".rodata" => Ok((section.to_string(), true)),
        _ => Err(format!("it refers to something in section `{section}`")),
    }
}

/// Records of `.BTF.ext` (functions of 2 words or lines of 4) about one program, with instructions counted from its start.
fn records<const N: usize>(
    btf: &[u8],
    extended: &[u8],
    section: &str,
    within: &std::ops::Range<u32>,
) -> Option<Vec<[u32; N]>> {
    let word = |bytes: &[u8], at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    if word(extended, 0)? & 0xffff != BTF_MAGIC {
        return None;
    }
    let header = word(extended, 4)? as usize;
    let at = header + word(extended, if N == 2 { 8 } else { 16 })? as usize;
    let bytes = word(extended, if N == 2 { 12 } else { 20 })? as usize;
    let part = extended.get(at..at + bytes)?;
    // Names lie in the string section of `.BTF`, whose place its header tells.
    let strings = word(btf, 4)? as usize + word(btf, 16)? as usize;
    let mut at = 4;
    while at < part.len() {
        let (name, count) = (word(part, at)? as usize, word(part, at + 4)? as usize);
        let name = btf.get(strings + name..)?.split(|b| *b == 0).next()?;
        let body = part.get(at + 8..at + 8 + count * 4 * N)?;
        at += 8 + body.len();
        if name != section.as_bytes() {
            continue;
        }
        let numbers: Vec<u32> = (0..count * N).filter_map(|i| word(body, 4 * i)).collect();
        let (records, _) = numbers.as_chunks::<N>();
        let ours = records.iter().filter(|r| within.contains(&r[0]));
        let from_start = |record: &[u32; N]| {
            let mut record = *record;
            record[0] = (record[0] - within.start) / 8;
            record
        };
        return Some(ours.map(from_start).collect());
    }
    None
}
