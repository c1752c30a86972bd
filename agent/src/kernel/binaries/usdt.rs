//! Static probe points: the `.note.stapsdt` section that `<sys/sdt.h>` writes.

use object::{Endianness, ReadRef, U32, U64, pod};

use super::elf::Image;
use super::error::FileError;
use super::pattern::matches;

/// A place of a static probe point. One point may have several, each inlined copy its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// Provider, e.g. `postgresql`.
    pub provider: String,
    /// Name, e.g. `query__start`.
    pub name: String,
    /// Where the arguments are, as the assembler wrote it: `8@%rbx -4@112(%rsp)`.
    pub args: String,
    /// The instruction, in bytes from the file's start.
    pub offset: u64,
    /// The 16-bit number that must not be 0 for the program to pass here, in bytes from the file's start.
    pub semaphore: Option<u64>,
}

/// `n_type` of these notes.
const NT_STAPSDT: u32 = 3;
/// No binary comes near: Node.js has some dozens, libc 30, JVMs a thousand.
const MAX_SITES: usize = 65_536;

/// Every place of every probe point. Notes that make no sense are left out.
pub fn all<'data, R: ReadRef<'data>>(image: &Image<'data, R>) -> Vec<Site> {
    let Some((_, mut notes)) = image.section(".note.stapsdt") else { return Vec::new() };
    let endian = image.endian();
    // What prelink or a linker script moved after the notes were written has this section's address moved as well.
    let base = image.section(".stapsdt.base").map(|(address, _)| address);
    let mut sites = Vec::new();
    while sites.len() < MAX_SITES
        && let Some((note, rest)) = Note::read(notes, endian)
    {
        notes = rest;
        if note.kind == NT_STAPSDT
            && note.owner == b"stapsdt\0"
            && let Some(site) = site(image, note.body, base)
        {
            sites.push(site);
        }
    }
    sites.sort_by(|a, b| (&a.provider, &a.name, a.offset).cmp(&(&b.provider, &b.name, b.offset)));
    sites
}

/// The places of the points that fit; the error says why there are none.
pub fn find<'data, R: ReadRef<'data>>(
    image: &Image<'data, R>,
    provider: &str,
    name: &str,
    most: usize,
) -> Result<Vec<Site>, FileError> {
    let sites = all(image);
    if sites.is_empty() {
        return Err(FileError::NoProbePoints);
    }
    let found: Vec<Site> =
        sites.iter().filter(|s| matches(provider, &s.provider) && matches(name, &s.name)).cloned().collect();
    if found.is_empty() {
        let known: Vec<String> = sites.iter().map(|s| format!("{}:{}", s.provider, s.name)).collect();
        let wanted = format!("{provider}:{name}");
        let near = kstrobe_ebpf::diag::did_you_mean(&wanted, known.iter().map(String::as_str)).map(str::to_owned);
        return Err(FileError::NoProbePoint { wanted, near });
    }
    if found.len() > most {
        let wanted = format!("{provider}:{name}");
        return Err(FileError::TooMany { wanted, found: found.len(), things: "places", max: most });
    }
    Ok(found)
}

struct Note<'data> {
    kind: u32,
    owner: &'data [u8],
    body: &'data [u8],
}

impl<'data> Note<'data> {
    fn read(bytes: &'data [u8], endian: Endianness) -> Option<(Note<'data>, &'data [u8])> {
        let (header, rest) = pod::from_bytes::<[U32<Endianness>; 3]>(bytes).ok()?;
        let [owner, body, kind] = header.map(|n| n.get(endian));
        let (owner, rest) = padded(rest, owner)?;
        let (body, rest) = padded(rest, body)?;
        Some((Note { kind, owner, body }, rest))
    }
}

/// So many bytes, and what follows at the next multiple of 4.
fn padded(bytes: &[u8], size: u32) -> Option<(&[u8], &[u8])> {
    let size = size as usize;
    let (part, _) = bytes.split_at_checked(size)?;
    // The last note's padding may be cut off.
    let rest = bytes.get(size.next_multiple_of(4)..).unwrap_or_default();
    Some((part, rest))
}

fn site<'data, R: ReadRef<'data>>(image: &Image<'data, R>, body: &[u8], base: Option<u64>) -> Option<Site> {
    let endian = image.endian();
    let (addresses, text) = pod::from_bytes::<[U64<Endianness>; 3]>(body).ok()?;
    let [location, base_then, semaphore] = addresses.map(|n| n.get(endian));
    let moved = base.map_or(0, |base| base.wrapping_sub(base_then));
    let mut texts = text.split(|b| *b == 0).map(|t| String::from_utf8_lossy(t).into_owned());
    let (provider, name) = (texts.next()?, texts.next()?);
    let args = texts.next().unwrap_or_default();
    let offset = image.code_offset(location.wrapping_add(moved))?;
    // A semaphore that the file does not hold could not be raised: the program would never come by.
    let semaphore = match semaphore {
        0 => None,
        address => Some(image.file_offset(address.wrapping_add(moved))?),
    };
    Some(Site { provider, name, args, offset, semaphore })
}

#[cfg(test)]
mod tests {
    use super::super::elf::tests::{CODE, Contents, DATA, elf_file};
    use super::*;

    fn note(kind: u32, location: u64, semaphore: u64, texts: &str) -> Vec<u8> {
        let mut body: Vec<u8> = [location, 0x5000, semaphore].iter().flat_map(|n| n.to_le_bytes()).collect();
        body.extend(texts.bytes());
        let mut note: Vec<u8> = [8, body.len() as u32, kind].iter().flat_map(|n| n.to_le_bytes()).collect();
        note.extend(b"stapsdt\0");
        note.extend(&body);
        note.resize(note.len().next_multiple_of(4), 0);
        note
    }

    fn file(base: u64) -> Vec<u8> {
        let notes = [
            note(3, CODE + 8, 0, "db\0query__start\x008@%rdi -4@$5\0"),
            note(9, CODE, 0, "db\0other\0\0"),
            note(3, CODE + 0x20, DATA + 2, "db\0query__done\0\0"),
            note(3, CODE + 4, 0, "db\0query__start\x008@%rsi -4@$5\0"),
            note(3, 4, 0, "db\0nowhere\0\0"),
            note(3, CODE, 4, "db\0no_semaphore\0\0"),
        ];
        elf_file(&Contents { notes: notes.concat(), base, ..Contents::default() })
    }

    #[test]
    fn sites_with_arguments_and_semaphores() {
        let bytes = file(0x5000);
        let image = Image::parse(&*bytes).unwrap();
        let site = |name: &str, args: &str, offset, semaphore| Site {
            provider: "db".into(),
            name: name.into(),
            args: args.into(),
            offset,
            semaphore,
        };
        assert_eq!(
            all(&image),
            [
                site("query__done", "", 0x1020, Some(0x1802)),
                site("query__start", "8@%rsi -4@$5", 0x1004, None),
                site("query__start", "8@%rdi -4@$5", 0x1008, None),
            ]
        );
        assert_eq!(find(&image, "db", "query__start", 8).unwrap().len(), 2);
        assert_eq!(find(&image, "*", "query__*", 8).unwrap().len(), 3);
        let why = |provider, name, most| find(&image, provider, name, most).unwrap_err().to_string();
        assert_eq!(
            why("db", "query_start", 8),
            "it has no static probe point `db:query_start`; did you mean `db:query__start`?"
        );
        assert_eq!(why("db", "*", 2), "`db:*` fits 3 places, at most 2 are hooked");
    }

    #[test]
    fn a_moved_base_moves_every_address() {
        let bytes = file(0x5010);
        let image = Image::parse(&*bytes).unwrap();
        let done = find(&image, "db", "query__done", 8).unwrap();
        assert_eq!((done[0].offset, done[0].semaphore), (0x1030, Some(0x1812)));
    }

    #[test]
    fn a_file_without_notes_has_none() {
        let bytes = elf_file(&Contents::default());
        let image = Image::parse(&*bytes).unwrap();
        assert_eq!(find(&image, "a", "b", 1).unwrap_err().to_string(), "it has no static probe points (USDT)");
    }
}
