//! Tiny objects for tests, assembled by hand.

use kstrobe_ebpf::kernel_target::btf_write::{Builder, IntKind, MemberDef};
use kstrobe_ebpf::layout::{MapDef, MapKind};
use object::write::{Object, Relocation, SectionId, Symbol, SymbolSection};
use object::{
    Architecture, BinaryFormat, Endianness, RelocationFlags, SectionFlags, SectionKind, SymbolKind, SymbolScope, elf,
};

/// An instruction: opcode, destination, source, offset, immediate.
pub const fn insn(op: u8, dst: u8, src: u8, off: i16, imm: i32) -> u64 {
    op as u64 | (dst as u64) << 8 | (src as u64) << 12 | (off as u16 as u64) << 16 | (imm as u32 as u64) << 32
}

/// One instruction, or the address of a map.
pub enum Item {
    Insn(u64),
    Map(&'static str),
}

pub struct Prog {
    pub name: &'static str,
    pub section: &'static str,
    pub items: Vec<Item>,
}

/// `map[0] += 1` of an array with 8-byte values, then return `result`.
pub fn count(map: &'static str, result: i32) -> Vec<Item> {
    let mut items = vec![
        Item::Insn(insn(0x62, 10, 0, -4, 0)),
        Item::Map(map),
        Item::Insn(insn(0xbf, 2, 10, 0, 0)),
        Item::Insn(insn(0x07, 2, 0, 0, -4)),
        Item::Insn(insn(0x85, 0, 0, 0, 1)),
    ];
    items.extend([
        Item::Insn(insn(0x15, 0, 0, 2, 0)),
        Item::Insn(insn(0xb7, 1, 0, 0, 1)),
        Item::Insn(insn(0xdb, 0, 1, 0, 0)),
        Item::Insn(insn(0xb7, 0, 0, 0, result)),
        Item::Insn(insn(0x95, 0, 0, 0, 0)),
    ]);
    items
}

/// Returns early for every process but this one.
fn own_process_only() -> Vec<Item> {
    vec![
        Item::Insn(insn(0x85, 0, 0, 0, 14)),
        Item::Insn(insn(0x77, 0, 0, 0, 32)),
        Item::Insn(insn(0x15, 0, 0, 2, std::process::id() as i32)),
        Item::Insn(insn(0xb7, 0, 0, 0, 0)),
        Item::Insn(insn(0x95, 0, 0, 0, 0)),
    ]
}

/// [`count`] for this process only.
pub fn count_own(map: &'static str) -> Vec<Item> {
    let mut items = own_process_only();
    items.extend(count(map, 0));
    items
}

/// Takes a slot from a stack of free slots into the first value of an array, for this process only.
pub fn pop(stack: &'static str, array: &'static str) -> Vec<Item> {
    let mut items = own_process_only();
    items.extend([
        Item::Insn(insn(0x62, 10, 0, -4, 0)),
        Item::Map(array),
        Item::Insn(insn(0xbf, 2, 10, 0, 0)),
        Item::Insn(insn(0x07, 2, 0, 0, -4)),
        Item::Insn(insn(0x85, 0, 0, 0, 1)),
        Item::Insn(insn(0x15, 0, 0, 4, 0)),
        Item::Insn(insn(0xbf, 2, 0, 0, 0)),
        Item::Map(stack),
        Item::Insn(insn(0x85, 0, 0, 0, 88)),
        Item::Insn(insn(0xb7, 0, 0, 0, 0)),
        Item::Insn(insn(0x95, 0, 0, 0, 0)),
    ]);
    items
}

pub fn map(name: &str, kind: MapKind, key_bytes: u32, value_bytes: u32, entries: u32) -> MapDef {
    MapDef { name: name.into(), kind, key_bytes, value_bytes, entries }
}

/// An object with these maps and programs. Line info says that instruction `i` of a program comes from line `i + 1`
/// of `test.yaml`.
pub fn object(maps: &[MapDef], progs: &[Prog]) -> Vec<u8> {
    let mut o = Object::new(BinaryFormat::Elf, Architecture::Bpf, Endianness::Little);
    let mut b = Builder::new();
    let license = o.add_section(vec![], b"license".to_vec(), SectionKind::Data);
    o.set_section_data(license, &b"GPL\0"[..], 1);
    let symbols = add_maps(&mut o, &mut b, maps);
    let mut ext = (Vec::new(), Vec::new());
    let int = b.int("int", 4, IntKind::Signed);
    let ctx = b.ptr(0);
    let proto = b.func_proto(int, &[("ctx", ctx)]);
    let file = b.string("test.yaml");
    for prog in progs {
        let section = o.add_section(vec![], prog.section.as_bytes().to_vec(), SectionKind::Text);
        let mut bytes = Vec::new();
        let mut relocations = Vec::new();
        let mut lines = Vec::new();
        for (i, item) in prog.items.iter().enumerate() {
            lines.push((bytes.len() as u32, i as u32 + 1));
            match item {
                Item::Insn(insn) => bytes.extend(insn.to_le_bytes()),
                Item::Map(map) => {
                    relocations.push((bytes.len() as u64, *map));
                    bytes.extend(insn(0x18, 1, 0, 0, 0).to_le_bytes());
                    bytes.extend([0; 8]);
                }
            }
        }
        o.append_section_data(section, &bytes, 8);
        add_symbol(&mut o, prog.name, section, 0, bytes.len() as u64, SymbolKind::Text);
        for (offset, map) in relocations {
            let symbol = symbols.iter().find(|(name, _)| name == map).expect("a map of this object").1;
            let flags = RelocationFlags::Elf { r_type: elf::R_BPF_64_64 };
            o.add_relocation(section, Relocation { offset, symbol, addend: 0, flags }).unwrap();
        }
        let name = b.string(prog.section);
        let func = b.func(prog.name, proto, true);
        ext.0.extend([name, 1, 0, func]);
        ext.1.extend([name, lines.len() as u32]);
        for (offset, line) in lines {
            let text = b.string(&format!("value: line {line}"));
            ext.1.extend([offset, file, text, line << 10 | 5]);
        }
    }
    add_btf(&mut o, b".BTF", b.finish());
    add_btf(&mut o, b".BTF.ext", ext_section(&ext.0, &ext.1));
    o.write().unwrap()
}

fn add_maps(o: &mut Object<'_>, b: &mut Builder, maps: &[MapDef]) -> Vec<(String, object::write::SymbolId)> {
    if maps.is_empty() {
        return vec![];
    }
    let section = o.add_section(vec![], b".maps".to_vec(), SectionKind::Data);
    o.section_mut(section).flags = section_flags(elf::SHF_ALLOC | elf::SHF_WRITE);
    let int = b.int("int", 4, IntKind::Signed);
    let byte = b.int("unsigned char", 1, IntKind::Unsigned);
    let (mut symbols, mut vars, mut offset) = (vec![], vec![], 0u32);
    for def in maps {
        let (kind, flags) = match def.kind {
            MapKind::Hash => (1, 0),
            MapKind::Array { mmap } => (2, if mmap { 0x400 } else { 0 }),
            MapKind::Stack => (23, 0),
            MapKind::TaskStorage => (29, 1),
            other => panic!("no {other:?} here"),
        };
        // `__uint(name, n)` is `int (*name)[n]`.
        let number = |b: &mut Builder, n: u32| {
            let array = b.array(int, int, n);
            b.ptr(array)
        };
        let pointer_to = |b: &mut Builder, bytes: u32| {
            let ty = if bytes == 4 { int } else { b.array(byte, int, bytes) };
            b.ptr(ty)
        };
        let mut fields = vec![("type", number(b, kind))];
        if def.key_bytes > 0 {
            fields.push(("key", pointer_to(b, def.key_bytes)));
        }
        fields.push(("value", pointer_to(b, def.value_bytes)));
        if def.entries > 0 {
            fields.push(("max_entries", number(b, def.entries)));
        }
        if flags > 0 {
            fields.push(("map_flags", number(b, flags)));
        }
        let members: Vec<MemberDef<'_>> =
            fields.iter().enumerate().map(|(i, (name, ty))| MemberDef::at(i as u32 * 8, name, *ty)).collect();
        let bytes = fields.len() as u32 * 8;
        let ty = b.structure("", bytes, &members);
        let var = b.var(&def.name, ty);
        vars.push((var, offset, bytes));
        o.append_section_data(section, &vec![0; bytes as usize], 8);
        let id = add_symbol(o, &def.name, section, offset.into(), bytes.into(), SymbolKind::Data);
        symbols.push((def.name.clone(), id));
        offset += bytes;
    }
    b.datasec(".maps", offset, &vars);
    symbols
}

fn section_flags(sh_flags: elf::SectionFlags) -> SectionFlags {
    SectionFlags::Elf { sh_type: elf::SHT_PROGBITS, sh_flags }
}

fn add_symbol(
    o: &mut Object<'_>,
    name: &str,
    section: SectionId,
    value: u64,
    size: u64,
    kind: SymbolKind,
) -> object::write::SymbolId {
    o.add_symbol(Symbol {
        name: name.as_bytes().to_vec(),
        value,
        size,
        kind,
        scope: SymbolScope::Dynamic,
        weak: false,
        section: SymbolSection::Section(section),
        flags: object::SymbolFlags::None,
    })
}

fn add_btf(o: &mut Object<'_>, name: &[u8], bytes: Vec<u8>) {
    let section = o.add_section(vec![], name.to_vec(), SectionKind::Other);
    o.section_mut(section).flags = section_flags(elf::SectionFlags(0));
    o.set_section_data(section, bytes, 4);
}

fn ext_section(funcs: &[u32], lines: &[u32]) -> Vec<u8> {
    let (funcs_bytes, lines_bytes) = (4 + funcs.len() as u32 * 4, 4 + lines.len() as u32 * 4);
    let mut out = vec![0x9f, 0xeb, 1, 0];
    let header = [24, 0, funcs_bytes, funcs_bytes, lines_bytes];
    let words = header.iter().chain(&[8]).chain(funcs).chain(&[16]).chain(lines);
    words.for_each(|word| out.extend(word.to_le_bytes()));
    out
}
