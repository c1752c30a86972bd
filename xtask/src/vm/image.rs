//! The guest's file system: an archive that the kernel unpacks into memory (cpio, format `newc`).

use super::kernel::Kernel;
use super::system::System;
use crate::apt::finished;
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const INIT: &str = include_str!("init.sh");
const DIRECTORY: u32 = 0o040_755;
const LINK: u32 = 0o120_777;
const FILE: u32 = 0o100_000;

enum Content {
    Directory,
    Link(String),
    File { bytes: Vec<u8>, mode: u32 },
}

/// Files by absolute path in the guest.
pub struct Image<'s> {
    system: &'s System,
    entries: BTreeMap<String, Content>,
}

impl Image<'_> {
    /// A guest that can run shell scripts and set up networks; busybox provides most programs.
    pub fn new(system: &System) -> Result<Image<'_>> {
        let mut image = Image { system, entries: BTreeMap::new() };
        for folder in ["proc", "sys", "dev", "tmp", "run", "root", "out", "bin", "sbin", "usr/bin", "usr/sbin", "var"] {
            image.directory(&format!("/{folder}"));
        }
        image.entries.insert("/var/run".into(), Content::Link("/run".into()));
        image.write("/init", INIT.as_bytes().to_vec(), 0o755);
        let program = |name: &str| system.find(name).with_context(|| format!("there is no {name} for the guest"));
        image.put_at(&program("busybox")?, "/bin/busybox")?;
        // busybox's own shell would run its own `ip` in place of the program.
        image.program(&program("dash")?, "/bin/sh")?;
        image.program(&program("ip")?, "/sbin/ip")?;
        Ok(image)
    }

    /// A folder, with those above it.
    pub fn directory(&mut self, path: &str) {
        for (at, _) in path.match_indices('/').skip(1).chain([(path.len(), "")]) {
            self.entries.entry(path[..at].to_owned()).or_insert(Content::Directory);
        }
    }

    /// A file with this content.
    pub fn write(&mut self, path: &str, bytes: Vec<u8>, mode: u32) {
        if let Some((folder, _)) = path.rsplit_once('/').filter(|(folder, _)| !folder.is_empty()) {
            self.directory(folder);
        }
        self.entries.insert(path.to_owned(), Content::File { bytes, mode: FILE | mode });
    }

    /// A file, at another path than it has on the host.
    pub fn put_at(&mut self, from: &Path, to: &str) -> Result<()> {
        let bytes = fs::read(from).with_context(|| format!("reading {}", from.display()))?;
        let mode = fs::metadata(from)?.permissions().mode() & 0o777;
        self.write(to, bytes, mode);
        Ok(())
    }

    /// A file or a folder with all that is in it, at the path it has on the host.
    pub fn put(&mut self, from: &Path) -> Result<()> {
        if from.is_dir() {
            for entry in fs::read_dir(from)? {
                self.put(&entry?.path())?;
            }
            return Ok(());
        }
        self.put_at(from, &from.to_string_lossy())
    }

    /// A program with the libraries it is linked with.
    pub fn program(&mut self, from: &Path, to: &str) -> Result<()> {
        self.put_at(from, to)?;
        self.libraries(from)
    }

    /// The same without debug information, which is most of a test's bytes. Names of functions stay: stacks are tested by them.
    pub fn stripped(&mut self, from: &Path) -> Result<()> {
        // Another run of the lab may strip the same file.
        let small = from.with_extension(format!("{}.stripped", std::process::id()));
        finished(Command::new(self.system.strip()).args(["--strip-debug", "-o"]).arg(&small).arg(from))?;
        self.put_at(&small, &from.to_string_lossy())?;
        fs::remove_file(&small)?;
        self.libraries(from)
    }

    fn libraries(&mut self, program: &Path) -> Result<()> {
        for (file, path) in self.system.libraries(program)? {
            if !self.entries.contains_key(&path) {
                self.put_at(&file, &path)?;
            }
        }
        Ok(())
    }

    /// These modules of the kernel, and those they depend on, where modprobe finds them.
    pub fn modules(&mut self, kernel: &Kernel, names: &[String], work: &Path) -> Result<()> {
        let root = work.join("modules");
        let _ = fs::remove_dir_all(&root);
        let folder = root.join("lib/modules").join(&kernel.version);
        fs::create_dir_all(&folder)?;
        let mut files = BTreeMap::new();
        find_modules(&kernel.modules, &mut files)?;
        let mut wanted = names.to_vec();
        let built_in = built_in(&kernel.modules)?;
        let unknown = wanted.iter().find(|name| !files.contains_key(*name) && !built_in.contains(*name));
        anyhow::ensure!(
            unknown.is_none(),
            "kernel {} has no module {}",
            kernel.version,
            unknown.unwrap_or(&String::new())
        );
        let mut done = BTreeSet::new();
        while let Some(name) = wanted.pop() {
            // What is built in has no file.
            let Some(file) = files.get(&name).filter(|_| done.insert(name.clone())) else { continue };
            let bytes = unpacked(file)?;
            wanted.extend(depends(&bytes));
            fs::write(folder.join(format!("{name}.ko")), bytes)?;
        }
        finished(Command::new("busybox").args(["depmod", "-b"]).arg(&root).arg(&kernel.version))?;
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            self.put_at(&path, &format!("/lib/modules/{}/{name}", kernel.version))?;
        }
        Ok(())
    }

    pub fn archive(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (number, (path, content)) in self.entries.iter().enumerate() {
            let (mode, bytes) = match content {
                Content::Directory => (DIRECTORY, &[][..]),
                Content::Link(target) => (LINK, target.as_bytes()),
                Content::File { bytes, mode } => (*mode, &bytes[..]),
            };
            append(&mut out, number as u32 + 1, path.trim_start_matches('/'), mode, bytes);
        }
        append(&mut out, 0, "TRAILER!!!", 0, &[]);
        out
    }
}

/// One member: 13 numbers of 8 hexadecimal digits, the name with a NUL, the content, each padded to 4 bytes.
fn append(out: &mut Vec<u8>, inode: u32, name: &str, mode: u32, bytes: &[u8]) {
    let pad = |out: &mut Vec<u8>| out.resize(out.len().next_multiple_of(4), 0);
    // inode, mode, uid, gid, links, mtime, size, device (2), device it stands for (2), length of the name, checksum
    let numbers = [inode, mode, 0, 0, 1, 0, bytes.len() as u32, 0, 0, 0, 0, name.len() as u32 + 1, 0];
    out.extend_from_slice(b"070701");
    for number in numbers {
        out.extend_from_slice(format!("{number:08x}").as_bytes());
    }
    out.extend_from_slice(name.as_bytes());
    out.push(0);
    pad(out);
    out.extend_from_slice(bytes);
    pad(out);
}

/// Module files by name; names are written with `_` whatever the file's name has.
fn find_modules(folder: &Path, found: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            find_modules(&path, found)?;
        } else if let Some((name, _)) = name.split_once(".ko") {
            found.insert(name.replace('-', "_"), path);
        }
    }
    Ok(())
}

/// Names of the modules that are part of the kernel's image.
fn built_in(folder: &Path) -> Result<BTreeSet<String>> {
    let list = fs::read_to_string(folder.join("modules.builtin"))?;
    let names = list.lines().filter_map(|path| path.rsplit('/').next()?.strip_suffix(".ko"));
    Ok(names.map(|name| name.replace('-', "_")).collect())
}

/// A module's bytes; from 6.12 on Debian ships them compressed.
fn unpacked(file: &Path) -> Result<Vec<u8>> {
    if file.extension().is_none_or(|extension| extension != "xz") {
        return Ok(fs::read(file)?);
    }
    let out = Command::new("busybox").args(["unxz", "-c"]).arg(file).output()?;
    anyhow::ensure!(out.status.success(), "{} cannot be unpacked", file.display());
    Ok(out.stdout)
}

/// What a module depends on, from its `.modinfo`: strings `key=value` with a NUL each.
fn depends(module: &[u8]) -> Vec<String> {
    let strings = module.split(|byte| *byte == 0);
    let list = strings.filter_map(|text| std::str::from_utf8(text).ok()?.strip_prefix("depends="));
    list.flat_map(|names| names.split(',')).filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_what_the_format_says() {
        let mut image = Image { system: &System::Here, entries: BTreeMap::new() };
        image.write("/a/b", b"hello".to_vec(), 0o755);
        let archive = image.archive();
        assert_eq!(archive.len() % 4, 0);
        let text = String::from_utf8_lossy(&archive);
        assert_eq!(text.matches("070701").count(), 3, "the folder, the file, the end");
        // 110 bytes of header and "a\0" fill 112 bytes.
        assert_eq!(&archive[112..118], b"070701");
        assert_eq!(&archive[112 + 14..112 + 22], b"000081ed");
        assert_eq!(&archive[112 + 110..112 + 114], b"a/b\0");
        assert_eq!(&archive[112 + 116..112 + 121], b"hello", "after the name's padding");
    }

    #[test]
    fn dependencies_of_a_module_are_read() {
        assert_eq!(depends(b"\x7fELF\0alias=x\0depends=inet_diag,nf-tables\0intree=Y\0"), ["inet_diag", "nf_tables"]);
        assert!(depends(b"license=GPL\0depends=\0").is_empty());
    }
}
