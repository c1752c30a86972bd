//! Files that processes map, as far as walks need them. Any user can map any file, so nothing of one is believed: what is read is bounded.

use super::rows;
use crate::kernel::process_maps::{Mapping, Maps};
use kstrobe_ebpf::unwind::{Rule, row};
use object::elf;
use object::read::elf::{ElfFile64, ProgramHeader as _};
use object::{Endianness, Object as _, ObjectSection as _, ReadCache, ReadRef};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};

/// Bytes of a section. That of LLVM's library has 10 MB.
const MAX_SECTION_BYTES: u64 = 64 << 20;
/// Bytes of a file that takes long to read: more than PostgreSQL's 9 MB, less than those of Node.js, a JVM or LLVM.
const LARGE_BYTES: u64 = 16 << 20;
/// Bytes that are read of one file.
const MAX_READ_BYTES: u64 = 2 * MAX_SECTION_BYTES;

/// What tells a file, and a version of it, from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Identity {
    /// Code that the kernel gives to all 64-bit processes.
    Vdso,
    /// Where functions return that have a uretprobe.
    Uretprobes,
    File {
        device: u64,
        inode: u64,
        modified: (i64, i64),
        bytes: u64,
    },
}

/// A mapped file.
#[derive(Debug)]
pub enum Opened {
    Vdso,
    Uretprobes,
    File(File, Identity),
}

impl Opened {
    /// The file of a mapping; `None` for memory without a file, for what cannot be opened, and of processes that have ended.
    pub fn of(pid: u32, mapping: &Mapping) -> Option<Opened> {
        match mapping.path.as_str() {
            "[vdso]" => Some(Opened::Vdso),
            "[uprobes]" => Some(Opened::Uretprobes),
            _ if mapping.file.1 == 0 => None,
            path => {
                // The link leads to the mapped file itself, in whatever mount namespace, deleted or not; it takes CAP_SYS_ADMIN or
                // CAP_CHECKPOINT_RESTORE. By its path another may be there, also a pipe that nothing writes to.
                let link = format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end);
                let by_path = || open(&format!("/proc/{pid}/root{path}"), Some(mapping.file.1));
                let (file, identity) = open(&link, None).or_else(by_path)?;
                Some(Opened::File(file, identity))
            }
        }
    }

    pub fn identity(&self) -> Identity {
        match self {
            Opened::Vdso => Identity::Vdso,
            Opened::Uretprobes => Identity::Uretprobes,
            Opened::File(_, identity) => *identity,
        }
    }

    pub fn is_large(&self) -> bool {
        matches!(self, Opened::File(_, Identity::File { bytes, .. }) if *bytes > LARGE_BYTES)
    }

    /// Where it is loaded, and its table; without a table where it is no ELF file or has none.
    pub fn read(self) -> Image {
        match self {
            // That of this process, as another could have written to its own.
            Opened::Vdso => vdso().map(|bytes| Image::of(bytes.as_slice())).unwrap_or_default(),
            Opened::Uretprobes => Image {
                segments: vec![Segment { offset: 0, bytes: u64::MAX >> 1, address: 0 }],
                rows: vec![row(0, Rule::Stop)],
            },
            Opened::File(mut file, _) => match has_few_sections(&mut file) {
                Ok(true) => Image::of(&ReadCache::new(Bounded { file, left: MAX_READ_BYTES })),
                _ => Image::default(),
            },
        }
    }
}

fn open(path: &str, inode: Option<u64>) -> Option<(File, Identity)> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    let about = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
    let identity = Identity::File {
        device: about.dev(),
        inode: about.ino(),
        modified: (about.mtime(), about.mtime_nsec()),
        bytes: about.len(),
    };
    inode.is_none_or(|inode| inode == about.ino()).then_some((file, identity))
}

fn vdso() -> Option<Vec<u8>> {
    let maps = Maps::of(std::process::id()).ok()?;
    let mapping = maps.mappings.iter().find(|mapping| mapping.path == "[vdso]")?;
    let mut bytes = vec![0; usize::try_from(mapping.end - mapping.start).ok()?];
    File::open("/proc/self/mem").ok()?.read_exact_at(&mut bytes, mapping.start).ok()?;
    Some(bytes)
}

/// Whether the number of section headers stands in the file's header, where it has 16 bits.
fn has_few_sections(file: &mut File) -> io::Result<bool> {
    let mut number = [0; 2];
    file.read_exact_at(&mut number, 60)?;
    Ok(number != [0; 2])
}

/// A file of which so many bytes can be read.
struct Bounded {
    file: File,
    left: u64,
}

impl Read for Bounded {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(to)?;
        self.left = self.left.checked_sub(read as u64).ok_or(io::ErrorKind::FileTooLarge)?;
        Ok(read)
    }
}

impl Seek for Bounded {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

/// What is kept of an ELF file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    segments: Vec<Segment>,
    rows: Vec<u64>,
}

/// A part of the file that is mapped with code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    offset: u64,
    bytes: u64,
    /// From the first address of the file.
    address: u64,
}

impl Image {
    /// Empty where it is no ELF file of 64 bits.
    fn of<'data, R: ReadRef<'data>>(data: R) -> Image {
        let Ok(file) = ElfFile64::<Endianness, R>::parse(data) else { return Image::default() };
        let endian = file.endian();
        let loads = || file.elf_program_headers().iter().filter(|header| header.p_type(endian) == elf::PT_LOAD);
        let base = loads().map(|header| header.p_vaddr(endian) & !0xfff).min().unwrap_or_default();
        let code = loads().filter(|header| header.p_flags(endian).contains(elf::PF_X));
        let segments = code.map(|header| Segment {
            offset: header.p_offset(endian),
            bytes: header.p_filesz(endian),
            address: header.p_vaddr(endian).wrapping_sub(base),
        });
        let section = file.section_by_name(".eh_frame").filter(|section| section.size() <= MAX_SECTION_BYTES);
        let rows =
            section.and_then(|section| Some(rows::rows(section.data().ok()?, section.address()))).unwrap_or_default();
        let packed = rows.iter().filter_map(|r| Some(row(u32::try_from(r.address.checked_sub(base)?).ok()?, r.rule)));
        Image { rows: packed.collect(), segments: segments.collect() }
    }

    /// As programs read them.
    pub fn rows(&self) -> &[u64] {
        &self.rows
    }

    pub fn without_rows(self) -> Image {
        Image { rows: Vec::new(), ..self }
    }

    /// Address, from the first of the file on, of the byte at this offset. Mappings begin at pages, which segments need not.
    pub fn address(&self, offset: u64) -> Option<u64> {
        let within = |s: &&Segment| (s.offset & !0xfff..s.offset + s.bytes).contains(&offset);
        // Two can share a page, which is mapped for each.
        let begins = |s: &&Segment| s.offset & !0xfff == offset;
        let segment = self.segments.iter().rev().find(begins).or_else(|| self.segments.iter().find(within));
        segment.map(|s| offset.wrapping_sub(s.offset).wrapping_add(s.address))
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::time::Instant;

    fn image(bytes: &[u8]) -> Image {
        let path = std::env::temp_dir().join(format!("kstrobe-unwind-{}-{}", std::process::id(), bytes.len()));
        std::fs::write(&path, bytes).unwrap();
        let (file, identity) = open(path.to_str().unwrap(), None).unwrap();
        std::fs::remove_file(&path).unwrap();
        Opened::File(file, identity).read()
    }

    #[test]
    fn files_that_claim_too_much_have_no_table() {
        let good = std::fs::read("/bin/sh").unwrap();
        assert!(image(&good).rows().len() > 1000);
        let file = ElfFile64::<Endianness, _>::parse(&*good).unwrap();
        let index = file.section_by_name(".eh_frame").unwrap().index().0;
        let headers = u64::from_le_bytes(good[40..48].try_into().unwrap()) as usize;
        let begun = Instant::now();
        let mut long = good.clone();
        // `sh_size`
        long[headers + 64 * index + 32..][..8].copy_from_slice(&(1u64 << 40).to_le_bytes());
        assert!(image(&long).rows().is_empty());
        let mut many = good.clone();
        // `e_shnum`, which is then in the first section.
        many[60..62].copy_from_slice(&[0, 0]);
        many[headers + 32..][..8].copy_from_slice(&(1u64 << 30).to_le_bytes());
        assert_eq!(image(&many), Image::default());
        assert!(begun.elapsed().as_secs() < 5);
        for end in [0, 3, 60, 61, 64, good.len() / 2] {
            assert!(image(&good[..end]).rows().is_empty());
        }
    }

    #[test]
    fn a_pipe_or_another_file_in_its_place_is_not_read() {
        let folder = std::env::temp_dir().join(format!("kstrobe-unwind-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
        let made = std::process::Command::new("mkfifo").arg(path("pipe")).status().unwrap();
        symlink("/bin/sh", folder.join("shell")).unwrap();
        assert!(made.success() && open(&path("pipe"), None).is_none());
        let inode = std::fs::metadata("/bin/sh").unwrap().ino();
        assert!(open(&path("shell"), Some(inode)).is_some());
        assert!(open(&path("shell"), Some(inode + 1)).is_none());
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn addresses_of_segments_that_share_a_page() {
        // As lld lays them out: a page of the file holds the end of one segment and the start of the next.
        let segment = |offset, bytes, address| Segment { offset, bytes, address };
        let image =
            Image { segments: vec![segment(0x5e0, 0x800, 0x15e0), segment(0xde0, 0x300, 0x2de0)], rows: Vec::new() };
        assert_eq!([0, 0x1000, 0x2000].map(|at| image.address(at)), [Some(0x2000), Some(0x3000), None]);
    }
}
