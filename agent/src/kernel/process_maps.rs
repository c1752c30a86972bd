//! `/proc/PID/maps` as data: which file a user address lies in.

use std::fs;
use std::io;

/// The executable mappings of one process at one moment, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Maps {
    /// Ranges that do not overlap.
    pub mappings: Vec<Mapping>,
}

/// One executable range of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// Where in the file `start` lies.
    pub offset: u64,
    /// Device, as `maps` writes it, and inode: the file's identity; the inode is 0 when there is no file.
    pub file: (String, u64),
    /// Path as the process sees it, without ` (deleted)`; `[vdso]` and the like; empty for anonymous memory.
    pub path: String,
}

impl Maps {
    /// Reads the maps of a process.
    pub fn of(pid: u32) -> io::Result<Maps> {
        fs::read(format!("/proc/{pid}/maps")).map(|text| Maps::parse(&String::from_utf8_lossy(&text)))
    }

    /// Parses the file's text; lines of another form are left out.
    pub fn parse(text: &str) -> Maps {
        Maps { mappings: text.lines().filter_map(parse_line).collect() }
    }

    /// The mapping an address lies in.
    pub fn find(&self, address: u64) -> Option<&Mapping> {
        let after = self.mappings.partition_point(|m| m.start <= address);
        let mapping = self.mappings.get(after.checked_sub(1)?)?;
        (address < mapping.end).then_some(mapping)
    }
}

impl Mapping {
    /// Where in the file an address of this mapping lies.
    pub fn file_offset(&self, address: u64) -> u64 {
        address.wrapping_sub(self.start).wrapping_add(self.offset)
    }

    /// The last part of the path.
    pub fn short_name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }
}

/// `start-end perms offset dev inode   path`; only executable ranges can hold the address of an instruction.
fn parse_line(line: &str) -> Option<Mapping> {
    let mut rest = line;
    let mut word = || {
        let trimmed = rest.trim_start_matches(' ');
        let (word, after) = trimmed.split_once(' ').unwrap_or((trimmed, ""));
        rest = after;
        word
    };
    let (range, permissions, offset, device, inode) = (word(), word(), word(), word(), word());
    if permissions.as_bytes().get(2) != Some(&b'x') {
        return None;
    }
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let (start, end) = range.split_once('-')?;
    let path = rest.trim_start_matches(' ');
    Some(Mapping {
        start: hex(start)?,
        end: hex(end)?,
        offset: hex(offset)?,
        file: (device.to_owned(), inode.parse().ok()?),
        path: path.strip_suffix(" (deleted)").unwrap_or(path).to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
55d0c0a00000-55d0c0a01000 r--p 00000000 fe:01 131 /usr/bin/a program
55d0c0a01000-55d0c0a05000 r-xp 00001000 fe:01 131                        /usr/bin/a program
55d0c1000000-55d0c1021000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000010000 rwxp 00000000 00:00 0
7f0000020000-7f0000030000 r-xp 00002000 00:1f 77 /tmp/gone.so (deleted)
7ffd00000000-7ffd00002000 r-xp 00000000 00:00 0                          [vdso]
nonsense
7ffe-zz r-xp 0 00:00 0
";

    #[test]
    fn executable_ranges_and_their_files() {
        let maps = Maps::parse(TEXT);
        assert_eq!(maps.mappings.len(), 4);
        let program = maps.find(0x55d0_c0a0_1234).unwrap();
        assert_eq!((program.path.as_str(), program.short_name()), ("/usr/bin/a program", "a program"));
        assert_eq!(program.file, ("fe:01".to_owned(), 131));
        assert_eq!(program.file_offset(0x55d0_c0a0_1234), 0x1234);
        assert_eq!(maps.find(0x7f00_0000_0000).unwrap().path, "");
        assert_eq!(maps.find(0x7f00_0002_0010).unwrap().path, "/tmp/gone.so");
        assert_eq!(maps.find(0x7f00_0002_0010).unwrap().file_offset(0x7f00_0002_0010), 0x2010);
        assert_eq!(maps.find(0x7ffd_0000_0001).unwrap().path, "[vdso]");
    }

    #[test]
    fn addresses_outside() {
        let maps = Maps::parse(TEXT);
        for outside in [0, 0x55d0_c0a0_0fff, 0x55d0_c0a0_5000, 0x55d0_c100_0000, 0x7f00_0001_0000, u64::MAX] {
            assert_eq!(maps.find(outside), None, "{outside:#x}");
        }
        assert_eq!(Maps::parse("").find(1), None);
    }

    #[test]
    fn this_process() {
        let maps = Maps::of(std::process::id()).unwrap();
        let here = maps.find(this_process as *const () as usize as u64).unwrap();
        assert!(here.path.contains("kstrobe"), "{here:?}");
    }
}
