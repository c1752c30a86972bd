//! The output archive: a tar file that [Perfetto](https://ui.perfetto.dev) opens directly.
//!
//! Perfetto (58 and later) reads every file of an archive except below dot directories. So the merged trace is at the top level,
//! and all other files are in `.kstrobe`.

use crate::manifest::File;
use crate::private;
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::io::{self, Read, Seek, Write};
use tar::{Builder, EntryType, Header};

/// File name of the merged trace.
pub const MERGED: &str = "fleet.pftrace";
/// Directory of the files that Perfetto must skip.
pub const OTHERS: &str = ".kstrobe";

/// Name of a node's recording: trace-cmd shows several by the last part of their names.
pub fn dat_of(node: &str) -> String {
    // Node names are DNS names; other characters must not escape the directory.
    let safe = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    let name: String = node.chars().map(safe).collect();
    let name = if name.trim_matches('.').is_empty() { "node".to_owned() } else { name };
    format!("{OTHERS}/nodes/{name}.dat")
}

/// Streaming archive writer.
pub struct Archive<W: Write> {
    tar: Builder<W>,
    unix_seconds: u64,
    files: Vec<File>,
}

impl<W: Write> Archive<W> {
    /// Creates an archive; `seconds` is the mtime of its files.
    pub fn new(out: W, unix_seconds: u64) -> Archive<W> {
        Archive { tar: Builder::new(out), unix_seconds, files: Vec::new() }
    }

    /// Adds a file.
    pub fn add(&mut self, path: &str, mut from: impl Read + Seek) -> io::Result<()> {
        let bytes = from.seek(io::SeekFrom::End(0))?;
        from.rewind()?;
        let mut hashed = Hashed { from: from.take(bytes), hash: Sha256::new() };
        self.tar.append_data(&mut self.header(bytes), path, &mut hashed)?;
        if hashed.from.limit() > 0 {
            return Err(io::Error::other(format!("{path} became shorter while it was read")));
        }
        let mut sha256 = String::new();
        for byte in hashed.hash.finalize() {
            // Writing to a string cannot fail.
            let _ = write!(sha256, "{byte:02x}");
        }
        self.files.push(File { path: path.to_owned(), bytes, sha256 });
        Ok(())
    }

    /// Files added so far.
    pub fn files(&self) -> &[File] {
        &self.files
    }

    /// Adds the manifest and finishes the archive.
    pub fn finish(mut self, name: &str, text: &[u8]) -> io::Result<W> {
        self.tar.append_data(&mut self.header(text.len() as u64), name, text)?;
        let mut out = self.tar.into_inner()?;
        out.flush()?;
        Ok(out)
    }

    fn header(&self, bytes: u64) -> Header {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Regular);
        header.set_size(bytes);
        header.set_mode(private::MODE);
        header.set_mtime(self.unix_seconds);
        header
    }
}

/// Hashes the bytes that are read.
struct Hashed<R> {
    from: R,
    hash: Sha256,
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(buffer)?;
        self.hash.update(&buffer[..read]);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    #[test]
    fn files_come_out_as_they_went_in() {
        let mut archive = Archive::new(Vec::new(), 1_763_700_000);
        archive.add(MERGED, Cursor::new(b"merged")).unwrap();
        let long = dat_of(&"n".repeat(200));
        let big = vec![7; 100_000];
        // Wherever it stands.
        let mut from = Cursor::new(big.clone());
        from.set_position(5);
        archive.add(&long, from).unwrap();
        // Matches sha256sum of `merged` without a newline.
        let expected = "3f8f09c8e09f712b362183db69f4f061bd948d7a61e7663b585d723602c559b1";
        assert_eq!((archive.files()[0].bytes, archive.files()[0].sha256.as_str()), (6, expected));
        let tar = archive.finish(".kstrobe/manifest.json", b"{}").unwrap();
        let mut read = tar::Archive::new(&tar[..]);
        let mut found = Vec::new();
        for entry in read.entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut contents = Vec::new();
            assert_eq!(entry.header().mode().unwrap(), private::MODE);
            entry.read_to_end(&mut contents).unwrap();
            found.push((entry.path().unwrap().display().to_string(), contents));
        }
        let names: Vec<_> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, [MERGED, &long, ".kstrobe/manifest.json"]);
        assert_eq!((found[0].1.as_slice(), &found[1].1), (&b"merged"[..], &big));
    }

    #[test]
    fn names_stay_in_their_folder() {
        assert_eq!(dat_of("ip-10-0-0-7.ec2.internal"), ".kstrobe/nodes/ip-10-0-0-7.ec2.internal.dat");
        assert_eq!(dat_of("../../etc"), ".kstrobe/nodes/.._.._etc.dat");
        assert_eq!(dat_of(".."), ".kstrobe/nodes/node.dat");
    }
}
