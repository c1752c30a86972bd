//! Writes an object's own type information: `.BTF` (types of maps, tables and functions) and `.BTF.ext` (which function
//! and which source line each instruction belongs to). Formats: the kernel's `Documentation/bpf/btf.rst`.

use std::collections::HashMap;

/// `BTF_MAGIC`, and version 1 with no flags.
const MAGIC: [u8; 4] = [0x9f, 0xeb, 1, 0];
/// Bytes of both headers in the form used here (`.BTF.ext` without CO-RE relocations).
const HEADER_BYTES: u32 = 24;
/// A line record packs line and column into 32 bits: 22 for the line, 10 for the column.
const MAX_LINE: u32 = (1 << 22) - 1;
const MAX_COLUMN: u32 = (1 << 10) - 1;

/// Kinds of type (`BTF_KIND_*`).
#[derive(Clone, Copy)]
#[repr(u32)]
enum Kind {
    Int = 1,
    Ptr = 2,
    Array = 3,
    Struct = 4,
    Const = 10,
    Func = 12,
    FuncProto = 13,
    Var = 14,
    Datasec = 15,
}

/// Number of a type; 0 is `void`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TypeId(u32);

/// Place of a text in the string section; the default is the empty text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Text(u32);

/// Types and strings written so far. Equal integers, pointers and arrays are written once.
pub struct Btf {
    types: Vec<u32>,
    strings: Vec<u8>,
    texts: HashMap<String, Text>,
    count: u32,
    known: HashMap<Vec<u32>, TypeId>,
}

impl Default for Btf {
    fn default() -> Self {
        Btf::new()
    }
}

impl Btf {
    /// Only `void` and the empty string.
    pub fn new() -> Btf {
        Btf { types: Vec::new(), strings: vec![0], texts: HashMap::new(), count: 0, known: HashMap::new() }
    }

    /// The place of a text, which ends at its first NUL.
    pub fn text(&mut self, text: &str) -> Text {
        let text = text.split('\0').next().unwrap_or_default();
        if text.is_empty() {
            return Text(0);
        }
        if let Some(place) = self.texts.get(text) {
            return *place;
        }
        let place = Text(self.strings.len() as u32);
        self.strings.extend_from_slice(text.as_bytes());
        self.strings.push(0);
        self.texts.insert(text.to_string(), place);
        place
    }

    fn add(&mut self, name: Text, kind: Kind, entries: usize, size_or_type: u32, rest: &[u32]) -> TypeId {
        let mut words = vec![name.0, (kind as u32) << 24 | entries as u32, size_or_type];
        words.extend_from_slice(rest);
        if let Some(id) = self.known.get(&words) {
            return *id;
        }
        self.types.extend_from_slice(&words);
        self.count += 1;
        self.known.insert(words, TypeId(self.count));
        TypeId(self.count)
    }

    /// An unsigned integer.
    pub fn uint(&mut self, name: &str, bytes: u32) -> TypeId {
        let name = self.text(name);
        self.add(name, Kind::Int, 0, bytes, &[bytes * 8])
    }
    /// C's `int`.
    pub fn int(&mut self) -> TypeId {
        let name = self.text("int");
        self.add(name, Kind::Int, 0, 4, &[1 << 24 | 32])
    }
    /// `target *`
    pub fn pointer(&mut self, target: TypeId) -> TypeId {
        self.add(Text(0), Kind::Ptr, 0, target.0, &[])
    }
    /// `const target`
    pub fn constant(&mut self, target: TypeId) -> TypeId {
        self.add(Text(0), Kind::Const, 0, target.0, &[])
    }
    /// `element[count]`
    pub fn array(&mut self, element: TypeId, count: u32) -> TypeId {
        let index = self.int();
        self.add(Text(0), Kind::Array, 0, 0, &[element.0, index.0, count])
    }
    /// A nameless struct of 8-byte members, and its size.
    pub fn struct_of_words(&mut self, members: &[(&str, TypeId)]) -> (TypeId, u32) {
        let mut rest = Vec::new();
        for ((name, ty), at) in members.iter().zip(0u32..) {
            rest.extend([self.text(name).0, ty.0, at * 64]);
        }
        let bytes = 8 * members.len() as u32;
        (self.add(Text(0), Kind::Struct, members.len(), bytes, &rest), bytes)
    }
    /// What the macro `__uint(name, value)` of libbpf's headers makes: `int (*name)[value]`.
    pub fn number(&mut self, value: u32) -> TypeId {
        let int = self.int();
        let array = self.array(int, value);
        self.pointer(array)
    }
    /// A global variable.
    pub fn var(&mut self, name: &str, ty: TypeId) -> TypeId {
        let name = self.text(name);
        self.add(name, Kind::Var, 0, ty.0, &[1])
    }
    /// The variables of a section: each with its offset and size.
    pub fn section(&mut self, name: &str, bytes: u32, vars: &[(TypeId, u32, u32)]) -> TypeId {
        let name = self.text(name);
        let rest: Vec<u32> = vars.iter().flat_map(|(var, offset, bytes)| [var.0, *offset, *bytes]).collect();
        self.add(name, Kind::Datasec, vars.len(), bytes, &rest)
    }
    /// `result (parameter)`
    pub fn prototype(&mut self, result: TypeId, name: &str, parameter: TypeId) -> TypeId {
        let name = self.text(name);
        self.add(Text(0), Kind::FuncProto, 1, result.0, &[name.0, parameter.0])
    }
    /// A global function.
    pub fn function(&mut self, name: &str, prototype: TypeId) -> TypeId {
        let name = self.text(name);
        self.add(name, Kind::Func, 1, prototype.0, &[])
    }

    /// The bytes of `.BTF`.
    pub fn finish(&self) -> Vec<u8> {
        let types = self.types.len() as u32 * 4;
        let mut out = MAGIC.to_vec();
        put(&mut out, &[HEADER_BYTES, 0, types, types, self.strings.len() as u32]);
        put(&mut out, &self.types);
        out.extend_from_slice(&self.strings);
        out
    }
}

/// The part of `.BTF.ext` that describes one section of code. Offsets are bytes from the section's start.
pub struct SectionInfo {
    name: Text,
    functions: Vec<[u32; 2]>,
    lines: Vec<[u32; 4]>,
}

impl SectionInfo {
    /// Nothing yet.
    pub fn new(name: Text) -> SectionInfo {
        SectionInfo { name, functions: Vec::new(), lines: Vec::new() }
    }
    /// A function starts at `offset`.
    pub fn function(&mut self, offset: u32, function: TypeId) {
        self.functions.push([offset, function.0]);
    }
    /// From `offset` on, instructions come from this line. Numbers that do not fit are cut to the largest that does.
    pub fn line(&mut self, offset: u32, file: Text, text: Text, line: u32, column: u32) {
        self.lines.push([offset, file.0, text.0, line.min(MAX_LINE) << 10 | column.min(MAX_COLUMN)]);
    }
}

/// The bytes of `.BTF.ext`.
pub fn extended(sections: &[SectionInfo]) -> Vec<u8> {
    let mut functions = Vec::new();
    let mut lines = Vec::new();
    // Each part starts with the size of its records.
    put(&mut functions, &[8]);
    put(&mut lines, &[16]);
    for section in sections {
        put(&mut functions, &[section.name.0, section.functions.len() as u32]);
        put(&mut functions, section.functions.as_flattened());
        if !section.lines.is_empty() {
            put(&mut lines, &[section.name.0, section.lines.len() as u32]);
            put(&mut lines, section.lines.as_flattened());
        }
    }
    let mut out = MAGIC.to_vec();
    put(&mut out, &[HEADER_BYTES, 0, functions.len() as u32, functions.len() as u32, lines.len() as u32]);
    out.extend(functions);
    out.extend(lines);
    out
}

fn put(out: &mut Vec<u8>, words: &[u32]) {
    out.extend(words.iter().flat_map(|word| word.to_le_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_types_and_texts_are_written_once() {
        let mut btf = Btf::new();
        let a = btf.number(7);
        assert_eq!(btf.number(7), a);
        assert_ne!(btf.number(8), a);
        assert_eq!(btf.text("x"), btf.text("x"));
        assert_eq!(btf.text("x\0y"), btf.text("x"));
        assert_eq!(btf.text(""), Text(0));
    }

    #[test]
    fn an_int_as_the_kernel_reads_it() {
        let mut btf = Btf::new();
        btf.uint("u64", 8);
        let mut expected = MAGIC.to_vec();
        put(&mut expected, &[24, 0, 16, 16, 5, /* name, kind, bytes, bits */ 1, 1 << 24, 8, 64]);
        expected.extend(b"\0u64\0");
        assert_eq!(btf.finish(), expected);
    }

    #[test]
    fn lines_and_columns_that_do_not_fit_are_cut() {
        let mut info = SectionInfo::new(Text(1));
        info.line(8, Text(0), Text(0), u32::MAX, 5000);
        assert_eq!(info.lines, [[8, 0, 0, u32::MAX]]);
    }
}
