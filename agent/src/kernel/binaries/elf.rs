//! An ELF file of this machine as far as hooks need it: bytes in, no I/O.

use super::error::FileError;
use object::elf;
use object::read::elf::{ElfFile64, FileHeader as _, ProgramHeader as _};
use object::{Endianness, Object, ObjectSection, ReadRef};

/// An ELF file whose programs run natively here.
pub struct Image<'data, R: ReadRef<'data>> {
    pub(super) file: ElfFile64<'data, Endianness, R>,
    segments: Vec<Segment>,
}

/// A part of the file that is mapped into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    address: u64,
    offset: u64,
    bytes: u64,
    executable: bool,
}

/// More program headers than any linker writes: a damaged file.
const MAX_SEGMENTS: usize = 1024;

#[cfg(target_arch = "x86_64")]
const MACHINE: elf::Machine = elf::EM_X86_64;
#[cfg(target_arch = "aarch64")]
const MACHINE: elf::Machine = elf::EM_AARCH64;

impl<'data, R: ReadRef<'data>> Image<'data, R> {
    /// Reads the headers. The error says what the file is instead.
    pub fn parse(data: R) -> Result<Self, FileError> {
        let magic = data.read_bytes_at(0, 5).map_err(|()| FileError::NoElf)?;
        match magic {
            [0x7f, b'E', b'L', b'F', 2] => {}
            // Registers and system calls of 32-bit programs differ from those the hook's values are read from.
            [0x7f, b'E', b'L', b'F', 1] => return Err(FileError::Bits32),
            [b'#', b'!', ..] => return Err(FileError::Script),
            _ => return Err(FileError::NoElf),
        }
        let file = ElfFile64::<Endianness, R>::parse(data).map_err(FileError::Damaged)?;
        let endian = file.endian();
        let header = file.elf_header();
        if header.e_machine(endian) != MACHINE {
            return Err(FileError::OtherProcessor);
        }
        if !matches!(header.e_type(endian), elf::ET_EXEC | elf::ET_DYN) {
            return Err(FileError::NoProgram);
        }
        let headers = file.elf_program_headers();
        let loads = headers.iter().take(MAX_SEGMENTS).filter(|h| h.p_type(endian) == elf::PT_LOAD);
        let segments = loads.map(|h| Segment {
            address: h.p_vaddr(endian),
            offset: h.p_offset(endian),
            bytes: h.p_filesz(endian),
            executable: h.p_flags(endian).contains(elf::PF_X),
        });
        let segments = segments.collect();
        Ok(Image { file, segments })
    }

    /// Where the code at this address lies in the file; `None` outside of code.
    pub fn code_offset(&self, address: u64) -> Option<u64> {
        self.offset(address, true)
    }

    /// Where the byte at this address lies in the file; `None` where the file has none.
    pub fn file_offset(&self, address: u64) -> Option<u64> {
        self.offset(address, false)
    }

    fn offset(&self, address: u64, code: bool) -> Option<u64> {
        self.segments.iter().filter(|s| s.executable || !code).find_map(|s| {
            let inside = address.checked_sub(s.address).filter(|n| *n < s.bytes)?;
            s.offset.checked_add(inside)
        })
    }

    pub(super) fn endian(&self) -> Endianness {
        self.file.endian()
    }

    /// A section's address and contents.
    pub(super) fn section(&self, name: &str) -> Option<(u64, &'data [u8])> {
        let section = self.file.section_by_name(name)?;
        Some((section.address(), section.data().ok()?))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// What a test's ELF file holds.
    #[derive(Default)]
    pub(in crate::kernel::binaries) struct Contents<'a> {
        /// Name, address, size, type.
        pub symbols: Vec<(&'a str, u64, u64, elf::SymbolType)>,
        /// Contents of `.note.stapsdt`.
        pub notes: Vec<u8>,
        /// Address of `.stapsdt.base`.
        pub base: u64,
    }

    /// Code lies at this address and 4 KiB into the file ...
    pub(in crate::kernel::binaries) const CODE: u64 = 0x40_1000;
    const CODE_BYTES: u64 = 0x800;
    /// ... and data at this one, 6 KiB into the file.
    pub(in crate::kernel::binaries) const DATA: u64 = 0x60_0000;
    const DATA_BYTES: u64 = 0x100;

    fn put(bytes: &mut Vec<u8>, halves: &[u16], words: &[u32], longs: &[u64]) {
        halves.iter().for_each(|n| bytes.extend(n.to_le_bytes()));
        words.iter().for_each(|n| bytes.extend(n.to_le_bytes()));
        longs.iter().for_each(|n| bytes.extend(n.to_le_bytes()));
    }

    /// A small program: headers, code, data, then notes, symbols, names and section headers.
    pub(in crate::kernel::binaries) fn elf_file(contents: &Contents) -> Vec<u8> {
        let section_names = b"\0.text\0.stapsdt.base\0.note.stapsdt\0.symtab\0.strtab\0";
        let named = |name: &str| section_names.windows(name.len()).position(|w| w == name.as_bytes()).unwrap() as u32;
        let mut strings = vec![0];
        let mut symbols = vec![0; 24];
        for (name, address, size, kind) in &contents.symbols {
            put(&mut symbols, &[], &[strings.len() as u32], &[]);
            // Global, of this type, default visibility, in the first section.
            put(&mut symbols, &[u16::from(1 << 4 | kind.0), 1], &[], &[*address, *size]);
            strings.extend(name.bytes().chain([0]));
        }
        let notes_at = 0x1000 + CODE_BYTES + DATA_BYTES;
        let symbols_at = notes_at + contents.notes.len() as u64;
        let strings_at = symbols_at + symbols.len() as u64;
        let names_at = strings_at + strings.len() as u64;
        let sections_at = names_at + section_names.len() as u64;

        let mut out = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        put(&mut out, &[elf::ET_EXEC.0, MACHINE.0], &[1], &[CODE, 64, sections_at]);
        put(&mut out, &[], &[0], &[]);
        put(&mut out, &[64, 56, 2, 64, 7, 6], &[], &[]);
        for (flags, at, address, size) in [(5, 0x1000, CODE, CODE_BYTES), (6, 0x1800, DATA, DATA_BYTES)] {
            put(&mut out, &[], &[1, flags], &[at, address, address, size, size, 1]);
        }
        out.resize(0x1000, 0);
        out.resize(0x1800, 0x90);
        out.resize(notes_at as usize, 0);
        for part in [&contents.notes, &symbols, &strings, &section_names.to_vec()] {
            out.extend(part);
        }
        let mut section = |name: &str, kind: u32, address: u64, at: u64, size: u64, link: u32, entry: u64| {
            put(&mut out, &[], &[named(name), kind], &[0, address, at, size]);
            put(&mut out, &[], &[link, 0], &[1, entry]);
        };
        section("\0", 0, 0, 0, 0, 0, 0);
        section(".text", 1, CODE, 0x1000, CODE_BYTES, 0, 0);
        section(".stapsdt.base", 1, contents.base, 0x1800, 1, 0, 0);
        section(".note.stapsdt", 7, 0, notes_at, contents.notes.len() as u64, 0, 0);
        section(".symtab", 2, 0, symbols_at, symbols.len() as u64, 5, 24);
        section(".strtab", 3, 0, strings_at, strings.len() as u64, 0, 0);
        section("\0", 3, 0, names_at, section_names.len() as u64, 0, 0);
        out
    }

    fn refusal(bytes: &[u8]) -> String {
        Image::parse(bytes).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn addresses_become_places_in_the_file() {
        let bytes = elf_file(&Contents::default());
        let image = Image::parse(&*bytes).unwrap();
        assert_eq!(image.code_offset(CODE + 4), Some(0x1004));
        assert_eq!(image.code_offset(CODE + CODE_BYTES), None);
        assert_eq!(image.code_offset(DATA), None, "data is no code");
        assert_eq!(image.file_offset(DATA + 0xff), Some(0x18ff));
        assert_eq!(image.file_offset(u64::MAX), None);
        assert_eq!(bytes[0x1000], 0x90);
    }

    #[test]
    fn what_is_no_program_is_named() {
        assert_eq!(refusal(b""), "it is no ELF file");
        assert_eq!(refusal(b"hello, world"), "it is no ELF file");
        assert_eq!(refusal(b"#!/bin/sh\n"), "it is a script: hook its interpreter");
        assert_eq!(refusal(b"\x7fELF\x01"), "it is a 32-bit program, which is not supported");
        let bytes = elf_file(&Contents::default());
        assert!(refusal(&bytes[..32]).starts_with("it is a damaged ELF file"), "{}", refusal(&bytes[..32]));
        let mut other = bytes.clone();
        other[18] = 8;
        assert_eq!(refusal(&other), "it is made for another processor");
        let mut object = bytes;
        object[16] = 1;
        assert_eq!(refusal(&object), "it is an ELF file, but neither a program nor a shared library");
    }

    #[test]
    fn every_truncation_is_survived() {
        let contents = Contents { symbols: vec![("f", CODE, 8, elf::STT_FUNC)], ..Contents::default() };
        let bytes = elf_file(&contents);
        for n in 0..bytes.len() {
            if let Ok(image) = Image::parse(&bytes[..n]) {
                let _ = crate::kernel::binaries::symbols::all(&image);
                let _ = crate::kernel::binaries::usdt::all(&image);
            }
        }
    }
}
