//! Puts programs, maps and tables into an ELF object that both aya and libbpf load.

mod btf;

use crate::asm::{Code, Mark, Target};
use crate::diag::Diagnostic;
use crate::ir::{Func, Module};
use crate::isa::encode::SLOT_BYTES;
use crate::layout::{MapDef, MapKind};
use btf::{Btf, SectionInfo, Text, TypeId, extended};
use object::write::{Object, Relocation, SectionId, Symbol, SymbolId, SymbolSection};
use object::{
    Architecture, BinaryFormat, Endianness, RelocationFlags, SectionKind, SymbolFlags, SymbolKind, SymbolScope, elf,
};
use std::collections::BTreeSet;

/// Name of the variable in `.rodata` that holds the tables.
const TABLES: &str = "tables";
/// Kernel names of maps are cut after this many bytes (`BPF_OBJ_NAME_LEN` less the NUL).
const MAP_NAME_BYTES: usize = 15;

/// The YAML text that line info points into.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// Name of the file.
    pub file: &'a str,
    pub text: &'a str,
}

/// The object of a module; `codes` are its functions' code, in the same order. Equal input gives equal bytes.
pub fn object(module: &Module, codes: &[Code], source: &Source) -> Result<Vec<u8>, Diagnostic> {
    if codes.len() != module.funcs.len() {
        return Err(Diagnostic::bug(format!("{} programs have {} codes", module.funcs.len(), codes.len())));
    }
    check_names(module)?;
    let mut writer = Writer {
        object: Object::new(BinaryFormat::Elf, Architecture::Bpf, Endianness::Little),
        btf: Btf::new(),
        maps: Vec::new(),
        tables: None,
    };
    writer.license();
    writer.maps(&module.layout.maps)?;
    writer.tables(&module.rodata);
    let sections = writer.programs(module, codes, source)?;
    writer.finish(&sections)
}

/// The kernel refuses an object's BTF as a whole when one name in it is no C identifier.
fn check_names(module: &Module) -> Result<(), Diagnostic> {
    let mut seen = BTreeSet::from([TABLES, "_license"]);
    let maps = module.layout.maps.iter().map(|map| map.name.as_str());
    if let Some(long) = maps.clone().find(|name| name.len() > MAP_NAME_BYTES) {
        return Err(Diagnostic::bug(format!("the map name `{long}` is longer than {MAP_NAME_BYTES} bytes")));
    }
    for name in maps.chain(module.funcs.iter().map(|func| func.name.as_str())) {
        let identifier = name.bytes().all(|b| b == b'_' || b.is_ascii_alphanumeric())
            && name.bytes().next().is_some_and(|b| !b.is_ascii_digit());
        if !identifier {
            return Err(Diagnostic::bug(format!("`{name}` is not a C identifier")));
        }
        if !seen.insert(name) {
            return Err(Diagnostic::bug(format!("two things are named `{name}`")));
        }
    }
    Ok(())
}

struct Writer {
    object: Object<'static>,
    btf: Btf,
    maps: Vec<SymbolId>,
    tables: Option<SymbolId>,
}

impl Writer {
    fn section(&mut self, name: &str, kind: SectionKind) -> SectionId {
        self.object.add_section(Vec::new(), name.as_bytes().to_vec(), kind)
    }

    /// libbpf refuses maps and programs whose symbols are not global with default visibility.
    fn symbol(&mut self, name: &str, section: SectionId, value: u64, size: u64, kind: SymbolKind) -> SymbolId {
        self.object.add_symbol(Symbol {
            name: name.as_bytes().to_vec(),
            value,
            size,
            kind,
            scope: SymbolScope::Dynamic,
            weak: false,
            section: SymbolSection::Section(section),
            flags: SymbolFlags::None,
        })
    }

    /// Most helpers that tracing needs are only for programs under the GPL.
    fn license(&mut self) {
        let section = self.section("license", SectionKind::Data);
        let text = b"GPL\0";
        self.object.set_section_data(section, &text[..], 1);
        self.symbol("_license", section, 0, text.len() as u64, SymbolKind::Data);
    }

    /// `.maps`: the bytes are zeros, all there is to know of a map lies in the type of its variable.
    fn maps(&mut self, maps: &[MapDef]) -> Result<(), Diagnostic> {
        if maps.is_empty() {
            return Ok(());
        }
        let section = self.section(".maps", SectionKind::Data);
        let (mut offset, mut vars) = (0, Vec::new());
        for map in maps {
            let (ty, bytes) = map_type(&mut self.btf, map)?;
            vars.push((self.btf.var(&map.name, ty), offset, bytes));
            self.object.append_section_data(section, &vec![0; bytes as usize], 8);
            let symbol = self.symbol(&map.name, section, u64::from(offset), u64::from(bytes), SymbolKind::Data);
            self.maps.push(symbol);
            offset += bytes;
        }
        self.btf.section(".maps", offset, &vars);
        Ok(())
    }

    /// `.rodata`: loaders make it one array map, frozen, whose contents the verifier may rely on.
    fn tables(&mut self, rodata: &[u8]) {
        if rodata.is_empty() {
            return;
        }
        let section = self.section(".rodata", SectionKind::ReadOnlyData);
        self.object.set_section_data(section, rodata.to_vec(), 8);
        let bytes = rodata.len() as u32;
        let ty = bytes_type(&mut self.btf, bytes);
        let ty = self.btf.constant(ty);
        let var = self.btf.var(TABLES, ty);
        self.btf.section(".rodata", bytes, &[(var, 0, bytes)]);
        self.tables = Some(self.symbol(TABLES, section, 0, u64::from(bytes), SymbolKind::Data));
    }

    fn programs(&mut self, module: &Module, codes: &[Code], source: &Source) -> Result<Vec<SectionInfo>, Diagnostic> {
        let context = self.btf.uint("unsigned long long", 8);
        let context = self.btf.pointer(context);
        let int = self.btf.int();
        let prototype = self.btf.prototype(int, "ctx", context);
        let file = self.btf.text(source.file);
        let lines: Vec<Text> = source.text.lines().map(|line| self.btf.text(line.trim())).collect();
        // In the order of the first program of each, for the same bytes every time.
        let mut sections: Vec<(String, SectionId, SectionInfo)> = Vec::new();
        for (func, code) in module.funcs.iter().zip(codes) {
            let bug = || Diagnostic::bug(format!("{} attaches nowhere", func.name));
            let name = func.attach.as_ref().ok_or_else(bug)?.section();
            let at = match sections.iter().position(|(other, ..)| *other == name) {
                Some(at) => at,
                None => {
                    let id = self.section(&name, SectionKind::Text);
                    let info = SectionInfo::new(self.btf.text(&name));
                    sections.push((name, id, info));
                    sections.len() - 1
                }
            };
            let (_, section, info) = &mut sections[at];
            let start = self.program(func, code, *section)?;
            info.function(start, self.btf.function(&func.name, prototype));
            line_info(info, start, code, file, &lines);
        }
        Ok(sections.into_iter().map(|(_, _, info)| info).collect())
    }

    /// Adds one program; gives its offset in the section.
    fn program(&mut self, func: &Func, code: &Code, section: SectionId) -> Result<u32, Diagnostic> {
        let bytes = code.bytes();
        let start = self.object.append_section_data(section, &bytes, 8);
        self.symbol(&func.name, section, start, bytes.len() as u64, SymbolKind::Text);
        for reloc in &code.relocs {
            let symbol = match reloc.target {
                Target::Map(map) => self.maps.get(map.0 as usize).copied(),
                Target::Rodata(_) => self.tables,
            };
            let symbol = symbol.ok_or_else(|| {
                Diagnostic::bug(format!("{} refers to {:?}, which does not exist", func.name, reloc.target))
            })?;
            let relocation = Relocation {
                offset: start + u64::from(reloc.slot * SLOT_BYTES),
                symbol,
                addend: 0,
                flags: RelocationFlags::Elf { r_type: elf::R_BPF_64_64 },
            };
            self.object.add_relocation(section, relocation).map_err(|error| failed(&error))?;
        }
        Ok(start as u32)
    }

    fn finish(mut self, sections: &[SectionInfo]) -> Result<Vec<u8>, Diagnostic> {
        let parts = [(".BTF", self.btf.finish()), (".BTF.ext", extended(sections))];
        for (name, bytes) in parts {
            let section = self.section(name, SectionKind::Other);
            self.object.set_section_data(section, bytes, 4);
        }
        self.object.write().map_err(|error| failed(&error))
    }
}

fn failed(error: &object::write::Error) -> Diagnostic {
    Diagnostic::bug(format!("cannot write the object: {error}"))
}

/// Line info must name the first instruction of every function, whether or not it has a mark.
fn line_info(info: &mut SectionInfo, start: u32, code: &Code, file: Text, lines: &[Text]) {
    let first = Mark { slot: 0, line: 1, column: 1 };
    let implied = (code.marks.first().map(|mark| mark.slot) != Some(0)).then_some(first);
    for mark in implied.iter().chain(&code.marks) {
        let text = (mark.line as usize).checked_sub(1).and_then(|at| lines.get(at)).copied().unwrap_or_default();
        info.line(start + mark.slot * SLOT_BYTES, file, text, mark.line, mark.column);
    }
}

/// The type of a map's variable, and its size.
fn map_type(btf: &mut Btf, map: &MapDef) -> Result<(TypeId, u32), Diagnostic> {
    let key_fits = match map.kind {
        MapKind::Array { .. } | MapKind::TaskStorage | MapKind::StackTrace => map.key_bytes == 4,
        MapKind::Hash | MapKind::LruHash => map.key_bytes > 0,
        MapKind::Stack | MapKind::PerfEvents => true,
        MapKind::RingBuf => map.key_bytes == 0,
    };
    let no_values = map.value_bytes == 0 && map.kind != MapKind::RingBuf;
    if !key_fits || no_values {
        let (key, value) = (map.key_bytes, map.value_bytes);
        return Err(Diagnostic::bug(format!(
            "the map `{}` cannot have keys of {key} and values of {value} bytes",
            map.name
        )));
    }
    let mut members = vec![("type", btf.number(map.kind.number()))];
    match map.kind {
        // Have no key, and the kernel takes no types for their values.
        MapKind::Stack => members.push(("value_size", btf.number(map.value_bytes))),
        MapKind::RingBuf => {}
        // The kernel takes no types for these either.
        MapKind::PerfEvents | MapKind::StackTrace => {
            members.push(("key_size", btf.number(4)));
            members.push(("value_size", btf.number(map.value_bytes)));
        }
        MapKind::Array { .. } | MapKind::Hash | MapKind::LruHash | MapKind::TaskStorage => {
            let key = match map.kind {
                MapKind::TaskStorage => btf.int(),
                _ => bytes_type(btf, map.key_bytes),
            };
            let value = bytes_type(btf, map.value_bytes);
            members.push(("key", btf.pointer(key)));
            members.push(("value", btf.pointer(value)));
        }
    }
    // Task storage grows with the tasks; the kernel refuses a number for it.
    if map.kind != MapKind::TaskStorage {
        members.push(("max_entries", btf.number(map.entries)));
    }
    if map.kind.flags() != 0 {
        members.push(("map_flags", btf.number(map.kind.flags())));
    }
    Ok(btf.struct_of_words(&members))
}

/// The most telling type of so many bytes: numbers where they divide evenly. Arrays are flat: aya takes only the inner
/// dimension of others.
fn bytes_type(btf: &mut Btf, bytes: u32) -> TypeId {
    let (name, width) = match bytes {
        _ if bytes.is_multiple_of(8) => ("unsigned long long", 8),
        _ if bytes.is_multiple_of(4) => ("unsigned int", 4),
        _ => ("unsigned char", 1),
    };
    let element = btf.uint(name, width);
    if bytes == width { element } else { btf.array(element, bytes / width) }
}
