//! From an open file to what can be hooked in it.

use kstrobe_ebpf::typed::Attach;
use object::{ReadCache, ReadRef};
use std::fs;

use super::elf::Image;
use super::error::FileError;
use super::file::File;
use super::place_names;
use super::symbols::{self, Function, Place};
use super::usdt::{self, Site};

/// Places that one hook may take in one file.
pub const MAX_PLACES: usize = 512;
/// Most bytes read in one piece: the largest symbol tables of browsers have half of it. A file that asks
/// for more wants the agent's memory.
const MAX_BYTES: u64 = 128 << 20;

/// A file that is read as needed, never in pieces that are too large.
#[derive(Clone, Copy)]
struct Pieces<'a>(&'a ReadCache<&'a fs::File>);

impl<'a> ReadRef<'a> for Pieces<'a> {
    fn len(self) -> Result<u64, ()> {
        self.0.len()
    }
    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        if size > MAX_BYTES { Err(()) } else { self.0.read_bytes_at(offset, size) }
    }
    fn read_bytes_at_until(self, range: std::ops::Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        self.0.read_bytes_at_until(range, delimiter)
    }
}

/// The places of the functions that a symbol or pattern means, `beyond` bytes into each.
pub fn functions(file: &File, symbol: &str, beyond: u64) -> Result<Vec<Place>, FileError> {
    let cache = ReadCache::new(&file.handle);
    symbols::find(&Image::parse(Pieces(&cache))?, symbol, beyond, MAX_PLACES)
}

/// The places of the static probe points that fit.
pub fn probes(file: &File, provider: &str, name: &str) -> Result<Vec<Site>, FileError> {
    let cache = ReadCache::new(&file.handle);
    usdt::find(&Image::parse(Pieces(&cache))?, provider, name, MAX_PLACES)
}

/// Where a program is to be hooked into one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// Instructions, in bytes from the file's start, ascending.
    pub offsets: Vec<u64>,
    /// For each of them the semaphore, likewise, 0 for none; empty when none has one.
    pub semaphores: Vec<u64>,
    /// For each of them the id that the program gets when it is hit.
    pub ids: Vec<u64>,
}

/// The places that a user-space hook means in a file. `None` when the file has the probe point, but its arguments lie
/// elsewhere than where this program reads them.
pub fn places(file: &File, attach: &Attach) -> Result<Option<Places>, FileError> {
    match attach {
        Attach::Uprobe { symbol, offset, .. } => {
            let (offsets, ids) = functions(file, symbol, *offset)?
                .into_iter()
                .map(|place| (place.offset, place_names::id(&symbols::shown(&place.name))))
                .unzip();
            Ok(Some(Places { offsets, semaphores: Vec::new(), ids }))
        }
        Attach::Usdt { provider, name, args, .. } => {
            let sites = probes(file, provider, name)?;
            Ok(places_of(sites.into_iter().filter(|site| args.as_ref().is_none_or(|args| site.args == *args))))
        }
        other => Err(FileError::OtherHook(other.clone())),
    }
}

fn places_of(sites: impl Iterator<Item = Site>) -> Option<Places> {
    let mut sites: Vec<Site> = sites.collect();
    sites.sort_by_key(|site| (site.offset, site.semaphore));
    // Two probe points that a pattern means may stand at one instruction.
    sites.dedup_by_key(|site| (site.offset, site.semaphore));
    let of = |value: fn(&Site) -> u64| sites.iter().map(value).collect::<Vec<u64>>();
    let (offsets, ids) = (of(|site| site.offset), of(|site| place_names::id(&site.name)));
    let semaphores = of(|site| site.semaphore.unwrap_or(0));
    let none = semaphores.iter().all(|s| *s == 0);
    let semaphores = if none { Vec::new() } else { semaphores };
    (!offsets.is_empty()).then_some(Places { offsets, semaphores, ids })
}

/// Every function that has a name.
pub fn all_functions(file: &File) -> Result<Vec<Function>, FileError> {
    let cache = ReadCache::new(&file.handle);
    Ok(symbols::all(&Image::parse(Pieces(&cache))?))
}

/// Every static probe point.
pub fn all_probes(file: &File) -> Result<Vec<Site>, FileError> {
    let cache = ReadCache::new(&file.handle);
    Ok(usdt::all(&Image::parse(Pieces(&cache))?))
}

#[cfg(test)]
mod tests {
    use super::super::find::ProcessSnapshot;
    use super::*;
    use kstrobe_ebpf::program::Binary;

    fn file(path: &str) -> File {
        let processes = ProcessSnapshot::default();
        processes.find(&Binary { path: path.into(), pid: None }).unwrap().remove(0)
    }

    #[test]
    fn functions_of_the_test_itself_are_where_its_code_is() {
        let own = file(std::env::current_exe().unwrap().to_str().unwrap());
        let places = functions(&own, "kstrobe::kernel::binaries::open::tests::marked", 0).unwrap();
        assert_eq!(places.len(), 1, "{places:?}");
        // The code in memory is the code in the file at that place.
        let mut code = [0; 8];
        std::os::unix::fs::FileExt::read_exact_at(&own.handle, &mut code, places[0].offset).unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let address = marked as fn() -> u64 as usize as u64;
        let offset = maps.lines().find_map(|line| {
            let mut fields = line.split_whitespace();
            let (from, to) = fields.next()?.split_once('-')?;
            let hex = |text| u64::from_str_radix(text, 16).ok();
            let (from, to, at) = (hex(from)?, hex(to)?, hex(fields.nth(1)?)?);
            (from..to).contains(&address).then_some(address - from + at)
        });
        assert_eq!(Some(places[0].offset), offset);
        assert_ne!(code, [0; 8]);
    }

    #[test]
    fn places_of_probe_points_keep_their_semaphores() {
        let site =
            |offset, semaphore| Site { provider: "p".into(), name: "n".into(), args: String::new(), offset, semaphore };
        let of = |sites: &[Site]| places_of(sites.iter().cloned());
        let two = of(&[site(8, None), site(4, Some(100)), site(4, Some(100))]).unwrap();
        let id = place_names::id("n");
        assert_eq!((two.offsets, two.semaphores, two.ids), (vec![4, 8], vec![100, 0], vec![id, id]));
        assert_eq!(of(&[site(4, None)]), Some(Places { offsets: vec![4], semaphores: vec![], ids: vec![id] }));
        assert_eq!(of(&[]), None);
    }

    #[inline(never)]
    fn marked() -> u64 {
        std::hint::black_box(7)
    }

    #[test]
    fn getaddrinfo_is_in_libc() {
        let libc =
            ProcessSnapshot::look().find(&Binary { path: "libc".into(), pid: Some(std::process::id()) }).unwrap();
        assert_eq!(libc.len(), 1, "{libc:?}");
        assert_eq!(functions(&libc[0], "getaddrinfo", 0).unwrap().len(), 1);
        let why = functions(&libc[0], "getaddrinf", 0).unwrap_err().to_string();
        assert_eq!(why, "it has no function `getaddrinf`; did you mean `getaddrinfo`?");
    }
}
