//! Functions of an ELF file by name, demangled name or pattern.

use object::elf::{self, FileHeader64};
use object::read::elf::{SectionHeader as _, Sym as _, SymbolTable};
use object::{Endianness, ReadRef};
use std::collections::BTreeMap;

use super::elf::Image;
use super::error::FileError;
use super::pattern::{is_pattern, matches};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// As the symbol table has it, without a version (`@@GLIBC_2.2.5`).
    pub name: String,
    /// Where it lies in memory, before relocation.
    pub address: u64,
    /// Bytes of code; 0 when the symbol does not say.
    pub size: u64,
    /// Its code is chosen when the program starts: what lies here is only the choice.
    pub indirect: bool,
}

impl Function {
    /// Its name as people write it: demangled when it is one of Rust or C++.
    pub fn readable(&self) -> String {
        shown(&self.name)
    }
}

/// A symbol as people write it.
pub fn shown(symbol: &str) -> String {
    readable(symbol).map_or_else(|| symbol.to_owned(), |[full, _]| full)
}

/// A place in the file to hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Symbol; the first of them when several share the place.
    pub name: String,
    /// Bytes from the file's start.
    pub offset: u64,
}

/// Every function, by address, each address once for each name.
pub fn all<'data, R: ReadRef<'data>>(image: &Image<'data, R>) -> Vec<Function> {
    named(image, |_| true)
}

/// The functions whose symbols fit, likewise. The others cost no memory: libraries have tens of thousands.
fn named<'data, R: ReadRef<'data>>(image: &Image<'data, R>, fits: impl Fn(&[u8]) -> bool) -> Vec<Function> {
    let tables = [image.file.elf_symbol_table(), image.file.elf_dynamic_symbol_table()];
    let mut found: Vec<Function> = tables.into_iter().flat_map(|t| of_table(image, t, &fits)).collect();
    found.sort_by(|a, b| (a.address, &a.name).cmp(&(b.address, &b.name)));
    found.dedup_by(|a, b| a.address == b.address && a.name == b.name);
    found
}

fn of_table<'data, R: ReadRef<'data>>(
    image: &Image<'data, R>,
    table: &SymbolTable<'data, FileHeader64<Endianness>, R>,
    fits: impl Fn(&[u8]) -> bool,
) -> Vec<Function> {
    let endian = image.endian();
    // All names in one read: one for each name costs a system call each where the file is not in memory.
    let strings = image.file.elf_section_table().section(table.string_section());
    let Ok(strings) = strings.and_then(|s| s.data(endian, image.file.data())) else { return Vec::new() };
    let functions = table.iter().filter_map(|symbol| {
        let kind = symbol.st_info().st_type();
        let address = symbol.st_value(endian);
        let defined = symbol.st_shndx(endian) != elf::SHN_UNDEF && address != 0;
        if !defined || !matches!(kind, elf::STT_FUNC | elf::STT_GNU_IFUNC) {
            return None;
        }
        let name = strings.get(symbol.st_name(endian) as usize..)?;
        let name = name.split(|b| matches!(b, 0 | b'@')).next().unwrap_or_default();
        if name.is_empty() || !fits(name) {
            return None;
        }
        let (size, indirect) = (symbol.st_size(endian), kind == elf::STT_GNU_IFUNC);
        Some(Function { name: String::from_utf8_lossy(name).into_owned(), address, size, indirect })
    });
    functions.collect()
}

/// The demangled name with and without parameters (C++) or hash (Rust).
fn readable(name: &str) -> Option<[String; 2]> {
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        let plain = format!("{rust:#}");
        return Some([plain.clone(), plain]);
    }
    if !name.starts_with("_Z") {
        return None;
    }
    let symbol = cpp_demangle::Symbol::new(name).ok()?;
    let bare = cpp_demangle::DemangleOptions::new().no_params().no_return_type();
    Some([symbol.demangle().ok()?, symbol.demangle_with_options(&bare).ok()?])
}

/// What the C compiler appends to the name of a function it made a variant of.
fn is_variant(name: &str, of: &str) -> bool {
    let rest = name.strip_prefix(of).unwrap_or_default();
    [".isra.", ".constprop.", ".part."].iter().any(|suffix| rest.starts_with(suffix))
}

/// Where the functions named so lie in the file: by symbol, by demangled name, or by pattern of either; `0x...` is an
/// address. `beyond` bytes into each. The error says why there are none.
pub fn find<'data, R: ReadRef<'data>>(
    image: &Image<'data, R>,
    wanted: &str,
    beyond: u64,
    most: usize,
) -> Result<Vec<Place>, FileError> {
    if let Some(digits) = wanted.strip_prefix("0x") {
        let address = u64::from_str_radix(digits, 16).map_err(|_| FileError::NoAddress(wanted.into()))?;
        let offset = address.checked_add(beyond).and_then(|a| image.code_offset(a));
        let offset = offset.ok_or_else(|| FileError::NoCode(wanted.into()))?;
        return Ok(vec![Place { name: wanted.into(), offset }]);
    }
    // Most hooks name a symbol as it is. A pattern may be one, too (Go has `main.(*Server).Handle`), and fit others.
    let exact = |name: &[u8]| name == wanted.as_bytes();
    let mut functions = if is_pattern(wanted) { Vec::new() } else { named(image, exact) };
    if functions.is_empty() {
        functions = all(image);
    }
    if functions.is_empty() {
        return Err(FileError::Stripped);
    }
    let found = choose(&functions, wanted);
    if found.is_empty() {
        return Err(FileError::NoFunction { wanted: wanted.into(), near: near(&functions, wanted) });
    }
    if found.iter().all(|f| f.indirect) {
        return Err(FileError::Indirect(found[0].name.clone()));
    }
    let mut places = BTreeMap::new();
    for function in found.iter().filter(|f| !f.indirect) {
        if beyond > 0 && function.size > 0 && beyond >= function.size {
            return Err(FileError::BehindEnd { function: function.name.clone(), bytes: function.size });
        }
        let offset = function.address.checked_add(beyond).and_then(|a| image.code_offset(a));
        let offset = offset.ok_or_else(|| FileError::OutsideCode(function.name.clone()))?;
        places.entry(offset).or_insert_with(|| Place { name: function.name.clone(), offset });
    }
    if places.len() > most {
        let found = places.len();
        return Err(FileError::TooMany { wanted: wanted.into(), found, things: "functions", max: most });
    }
    Ok(places.into_values().collect())
}

/// Exact symbols first, then exact demangled names, then variants that the compiler made; a pattern fits symbols and
/// demangled names.
fn choose<'f>(functions: &'f [Function], wanted: &str) -> Vec<&'f Function> {
    let fitting = |fits: &dyn Fn(&Function) -> bool| functions.iter().filter(|f| fits(f)).collect::<Vec<_>>();
    let demangled =
        |f: &Function, fits: &dyn Fn(&str) -> bool| readable(&f.name).is_some_and(|n| n.iter().any(|n| fits(n)));
    if is_pattern(wanted) {
        return fitting(&|f| !f.indirect && (matches(wanted, &f.name) || demangled(f, &|n| matches(wanted, n))));
    }
    let exact = fitting(&|f| f.name == wanted);
    if !exact.is_empty() {
        return exact;
    }
    let exact = fitting(&|f| demangled(f, &|n| n == wanted));
    if !exact.is_empty() {
        return exact;
    }
    fitting(&|f| is_variant(&f.name, wanted))
}

/// A hint for a name that fits nothing.
fn near(functions: &[Function], wanted: &str) -> Option<String> {
    let names: Vec<String> = functions.iter().map(Function::readable).collect();
    kstrobe_ebpf::diag::did_you_mean(wanted, names.iter().map(String::as_str)).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::super::elf::tests::{CODE, Contents, DATA, elf_file};
    use super::*;

    const MAX_FUNCTIONS: usize = 8;

    fn places(wanted: &str, beyond: u64) -> Result<Vec<(String, u64)>, FileError> {
        let f = elf::STT_FUNC;
        let symbols = vec![
            ("exec_simple_query", CODE + 0x10, 16, f),
            ("exec_bind", CODE + 0x20, 16, f),
            ("exec_alias", CODE + 0x20, 16, f),
            ("exec_table", DATA, 16, elf::STT_OBJECT),
            ("memcpy@@GLIBC_2.14", CODE + 0x30, 16, elf::STT_GNU_IFUNC),
            ("split.isra.0", CODE + 0x40, 16, f),
            ("split.cold", CODE + 0x50, 16, f),
            ("_ZN4core3fmt5write17h0123456789abcdefE", CODE + 0x60, 16, f),
            ("_ZN2db5QueryEiPKc", CODE + 0x70, 16, f),
            ("outside", DATA, 16, f),
            ("open@@GLIBC_2.2.5", CODE + 0x80, 0, f),
        ];
        let bytes = elf_file(&Contents { symbols, ..Contents::default() });
        let image = Image::parse(&*bytes).unwrap();
        Ok(find(&image, wanted, beyond, MAX_FUNCTIONS)?.into_iter().map(|p| (p.name, p.offset)).collect())
    }

    fn names(wanted: &str) -> Vec<String> {
        places(wanted, 0).unwrap().into_iter().map(|p| p.0).collect()
    }

    #[test]
    fn names_patterns_and_demangled_names() {
        assert_eq!(places("exec_bind", 0).unwrap(), [("exec_bind".into(), 0x1020)]);
        assert_eq!(places("exec_bind", 4).unwrap(), [("exec_bind".into(), 0x1024)]);
        // Two names of one place are one place.
        assert_eq!(names("exec_*"), ["exec_simple_query", "exec_alias"]);
        assert_eq!(names("open"), ["open"]);
        assert_eq!(names("split"), ["split.isra.0"]);
        assert_eq!(names("core::fmt::write"), ["_ZN4core3fmt5write17h0123456789abcdefE"]);
        assert_eq!(names("db::Query"), ["_ZN2db5QueryEiPKc"]);
        assert_eq!(names("db::Query(int, char const*)"), ["_ZN2db5QueryEiPKc"]);
        assert_eq!(names("db::*"), ["_ZN2db5QueryEiPKc"]);
        assert_eq!(places("0x401010", 0).unwrap(), [("0x401010".into(), 0x1010)]);
    }

    #[test]
    fn what_cannot_be_hooked_says_why() {
        let why = |wanted, beyond| places(wanted, beyond).unwrap_err().to_string();
        assert_eq!(why("exec_bnd", 0), "it has no function `exec_bnd`; did you mean `exec_bind`?");
        assert_eq!(
            why("memcpy", 0),
            "the code of `memcpy` is chosen when a program starts (IFUNC): hook the variant in use"
        );
        assert_eq!(why("exec_bind", 16), "`exec_bind` has only 16 bytes of code");
        assert_eq!(why("outside", 0), "`outside` does not lie in the file's code");
        assert_eq!(why("0x600000", 0), "it has no code at 0x600000");
        assert_eq!(why("0xg", 0), "`0xg` is no address");
        let none = elf_file(&Contents::default());
        let image = Image::parse(&*none).unwrap();
        assert_eq!(
            find(&image, "main", 0, MAX_FUNCTIONS).unwrap_err().to_string(),
            "it has no symbols (it is stripped)"
        );
    }

    #[test]
    fn too_many_is_refused_with_the_number() {
        let many: Vec<String> = (0..9).map(|i| format!("f{i}")).collect();
        let symbols = many.iter().zip(0..).map(|(n, i)| (n.as_str(), CODE + i * 16, 16, elf::STT_FUNC)).collect();
        let bytes = elf_file(&Contents { symbols, ..Contents::default() });
        let image = Image::parse(&*bytes).unwrap();
        assert_eq!(
            find(&image, "f*", 0, MAX_FUNCTIONS).unwrap_err().to_string(),
            "`f*` fits 9 functions, at most 8 are hooked"
        );
        assert_eq!(find(&image, "f?", 0, 9).unwrap().len(), 9);
    }
}
