//! What a fuzzer begins with: cases made from the fixtures of the tests, and those that were kept.

use super::CASE_BYTES;
use anyhow::{Context, Result};
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

/// What is kept for a target, packed.
const MAX_BYTES: usize = 70 << 10;
/// A part of a text that is long enough to have calls that begin and end.
const TEXT_BYTES: usize = 6 << 10;
/// Bytes of a page of the recorded kernels.
const PAGE_BYTES: usize = 4096;

/// The choice to write what was read as trace.dat, too: see `written_and_read` in `fuzz/src/cases/whole.rs`.
const WRITE: u8 = 0x20;

/// Different cases.
type Cases = BTreeSet<Vec<u8>>;

/// Writes a target's cases into an empty folder, one file each.
pub fn unpack(root: &Path, target: &str, folder: &Path) -> Result<()> {
    let (seeds, kept) = (seeds(root, target)?, kept(root, target)?);
    println!("{target}: begins with {} cases from fixtures and {} kept", seeds.len(), kept.len());
    for (number, case) in seeds.union(&kept).enumerate() {
        fs::write(folder.join(format!("{number:05}")), case)?;
    }
    Ok(())
}

/// Keeps the cases of a folder, the small ones first, but those that are made from fixtures.
pub fn pack(root: &Path, target: &str, folder: &Path) -> Result<()> {
    let seeds = seeds(root, target)?;
    let mut cases = Vec::new();
    for entry in fs::read_dir(folder)? {
        cases.push(fs::read(entry?.path())?);
    }
    cases.retain(|case| !seeds.contains(case));
    cases.sort_by_key(|case| (case.len(), case.clone()));
    let mut few = cases.len();
    let mut packed = archive(&cases)?;
    while packed.len() > MAX_BYTES {
        few = few * 9 / 10;
        packed = archive(&cases[..few])?;
    }
    let file = archive_of(root, target);
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    }
    fs::write(&file, &packed).with_context(|| format!("writing {}", file.display()))?;
    println!("{target}: kept {few} of {} cases that are no fixtures, {} bytes packed", cases.len(), packed.len());
    Ok(())
}

fn archive(cases: &[Vec<u8>]) -> Result<Vec<u8>> {
    let mut tar = tar::Builder::new(GzEncoder::new(Vec::new(), flate2::Compression::best()));
    for (number, case) in cases.iter().enumerate() {
        let mut header = tar::Header::new_ustar();
        header.set_size(case.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, format!("{number:05}"), &case[..])?;
    }
    Ok(tar.into_inner()?.finish()?)
}

fn kept(root: &Path, target: &str) -> Result<Cases> {
    let mut cases = Cases::new();
    let Ok(packed) = fs::read(archive_of(root, target)) else { return Ok(cases) };
    for entry in tar::Archive::new(GzDecoder::new(&packed[..])).entries()? {
        let mut case = Vec::new();
        entry?.read_to_end(&mut case)?;
        cases.insert(case);
    }
    Ok(cases)
}

fn archive_of(root: &Path, target: &str) -> PathBuf {
    root.join(format!("tests/fuzz/corpus/{target}.tar.gz"))
}

/// A target's cases from the fixtures.
fn seeds(root: &Path, target: &str) -> Result<Cases> {
    let mut files = Vec::new();
    fixtures(&root.join("ftrace/tests/fixtures"), &mut files)?;
    let cases = files.iter().flat_map(|(path, bytes)| match target {
        "format" => formats(path, bytes),
        "page" => pages(path, bytes),
        "dat" if path.ends_with(".dat") => [0, WRITE].map(|choices| [bytes, &[choices][..]].concat()).to_vec(),
        "text" if path.ends_with(".txt") => {
            // The head, and a part that begins anywhere.
            let part = |from: usize| bytes[from..bytes.len().min(from + TEXT_BYTES)].to_vec();
            vec![part(0), part(bytes.len() / 2)]
        }
        _ => Vec::new(),
    });
    Ok(cases.filter(|case| case.len() <= CASE_BYTES).collect())
}

/// Each format of an event, with a record that has a number in every field.
fn formats(path: &str, bytes: &[u8]) -> Vec<Vec<u8>> {
    if path.ends_with("/header_page") {
        return vec![bytes.to_vec()];
    }
    if !path.ends_with("/formats") && !path.contains("/formats-") {
        return Vec::new();
    }
    let text = String::from_utf8_lossy(bytes);
    let case = |rest: &str| {
        let rest = rest.split("system: ").next().unwrap_or_default();
        [b"name: ", rest.as_bytes(), b"\0", &[8; 128]].concat()
    };
    text.split("name: ").skip(1).map(case).collect()
}

/// One page alone, and several CPUs with one each; in front of them the choices that `page` in `fuzz/src/cases/mod.rs` reads.
fn pages(path: &str, bytes: &[u8]) -> Vec<Vec<u8>> {
    let kernel = ["/5.10/", "/6.1/", "/6.12/", "/sid/"].iter().position(|kernel| path.contains(kernel));
    let Some(kernel) = kernel.filter(|_| path.ends_with(".raw")) else { return Vec::new() };
    let some = |cpus: u8, write: u8| {
        let choices = [kernel as u8 * 2, (cpus - 1) << 1, 0, write];
        bytes.chunks(PAGE_BYTES * usize::from(cpus)).take(6).map(move |pages| [&choices, pages].concat())
    };
    some(1, 0).chain(some(4, WRITE)).collect()
}

/// All packed files below a folder, unpacked, by path without `.gz`.
fn fixtures(folder: &Path, files: &mut Vec<(String, Vec<u8>)>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            fixtures(&path, files)?;
        } else if path.extension().is_some_and(|end| end == "gz") {
            let mut bytes = Vec::new();
            GzDecoder::new(fs::File::open(&path)?).read_to_end(&mut bytes)?;
            files.push((path.with_extension("").to_string_lossy().into_owned(), bytes));
        }
    }
    Ok(())
}
