//! Which files a user's words mean: a path, a pattern of paths, or the name of a program or library; on this machine and in
//! the mount namespaces of its processes (containers).

use kstrobe_ebpf::program::Binary;
use std::collections::BTreeSet;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::pattern::{is_pattern, matches};

/// An open file that may be hooked. Open, so that what is read and what is hooked is the same file.
#[derive(Debug)]
pub struct File {
    /// To read it.
    pub handle: fs::File,
    /// Which file it is.
    pub id: FileId,
    /// As people should see it: with the process in whose mount namespace it lies, when that is not ours.
    pub shown: String,
}

impl File {
    /// A path that means this file to the kernel as long as it is open here, in whatever mount namespace it lies.
    pub fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.handle.as_raw_fd())
    }
}

/// Tells files apart as uprobes do: by inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    overlay: bool,
}

impl FileId {
    /// Its inode number.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Whether a hook in the one is a hook in the other.
    ///
    /// Containers of one image have the same file below mounts of their own, each with a device number of its own. The
    /// kernel hooks the file below, so that hooking it through each mount would count each event once per container.
    pub fn same_file(&self, other: &FileId) -> bool {
        let through = self.overlay || other.overlay;
        self.inode == other.inode
            && (self.device == other.device || through && (self.bytes, self.modified) == (other.bytes, other.modified))
    }
}

/// The mount namespaces and programs of the running processes at one moment.
#[derive(Debug, Default)]
pub struct World {
    proc: PathBuf,
    /// Root folders other than ours, each once, with a process that has it.
    roots: Vec<Root>,
    /// Running programs, each once in each root.
    programs: Vec<Program>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Root {
    pid: u32,
    id: RootId,
}

/// Mount namespace (as its link says), device and inode of the root folder.
type RootId = (String, u64, u64);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Program {
    /// `None` for ours.
    root: Option<u32>,
    /// The link `exe`, which ends in ` (deleted)` when the file is gone.
    exe: String,
    pid: u32,
}

/// Files that one hook may mean: a pattern that fits more was not meant so.
const MOST_FILES: usize = 64;
const DELETED: &str = " (deleted)";
/// Where libraries and programs lie that nobody names a path for.
const FOLDERS: [&str; 12] = [
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/local/lib",
    "/usr/local/bin",
    "/usr/local/sbin",
    "/usr/bin",
    "/usr/sbin",
    "/bin",
];

/// Files that a user's words mean at this moment. The error says why there are none.
pub fn named(words: &str) -> Result<Vec<File>, String> {
    World::look().find(&Binary { path: words.to_owned(), pid: None })
}

impl World {
    /// Looks at all processes. What may not be seen of one is not there.
    pub fn look() -> World {
        World::look_at(Path::new("/proc"))
    }

    fn look_at(proc: &Path) -> World {
        let ours = root_id(&proc.join("self"));
        let mut world = World { proc: proc.into(), ..World::default() };
        let mut known = BTreeSet::new();
        for entry in fs::read_dir(proc).into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            let folder = entry.path();
            let Some(id) = root_id(&folder) else { continue };
            let root = if Some(&id) == ours.as_ref() {
                None
            } else if let Some(known) = world.roots.iter().find(|r| r.id == id) {
                Some(known.pid)
            } else {
                world.roots.push(Root { pid, id });
                Some(pid)
            };
            if let Ok(exe) = fs::read_link(folder.join("exe")) {
                let exe = exe.to_string_lossy().into_owned();
                if known.insert((root, exe.clone())) {
                    world.programs.push(Program { root, exe, pid });
                }
            }
        }
        world
    }

    /// Files that the words mean, each inode once. The error says why there are none.
    pub fn find(&self, binary: &Binary) -> Result<Vec<File>, String> {
        let words = binary.path.as_str();
        let mut found = Found::default();
        match binary.pid {
            Some(pid) if !self.has_process(pid) => {
                return Err(format!("there is no process {pid}"));
            }
            Some(pid) if words.starts_with('/') => self.by_path(words, Some(pid), &mut found)?,
            Some(pid) => self.mapped(words, &Program { root: Some(pid), exe: String::new(), pid }, &mut found),
            None if words.starts_with('/') => {
                self.by_path(words, None, &mut found)?;
                for root in &self.roots {
                    self.by_path(words, Some(root.pid), &mut found)?;
                }
                self.deleted(words, &mut found);
            }
            None => {
                self.in_folders(words, &mut found);
                self.programs.iter().for_each(|program| self.mapped(words, program, &mut found));
            }
        }
        match (found.files.is_empty(), found.trouble) {
            (false, _) => Ok(found.files),
            (true, Some(trouble)) => Err(trouble),
            (true, None) => Err(match (words.starts_with('/'), binary.pid) {
                (true, None) => format!("there is no file {words}"),
                (true, Some(pid)) => format!("process {pid} has no file {words}"),
                (false, None) => format!("no program or library `{words}` is found or running"),
                (false, Some(pid)) => format!("process {pid} has no program or library `{words}`"),
            }),
        }
    }

    /// Whether there is such a process.
    pub fn has_process(&self, pid: u32) -> bool {
        self.proc.join(pid.to_string()).exists()
    }

    /// Whether some process has code mapped from a file with this inode number. Reads the mappings of all processes: for files
    /// that no path leads to any more.
    pub fn runs(&self, id: &FileId) -> bool {
        let inode = id.inode().to_string();
        fs::read_dir(&self.proc).into_iter().flatten().flatten().any(|entry| {
            let maps = fs::read_to_string(entry.path().join("maps")).unwrap_or_default();
            maps.lines().any(|line| {
                let mut fields = line.split_ascii_whitespace().skip(1);
                fields.next().is_some_and(|access| access.contains('x')) && fields.nth(2) == Some(inode.as_str())
            })
        })
    }

    /// A path or a pattern of paths, below our root or that of a process.
    fn by_path(&self, words: &str, root: Option<u32>, found: &mut Found) -> Result<(), String> {
        if !is_pattern(words) {
            self.add(words, root, found);
            return Ok(());
        }
        let mut paths = vec![String::new()];
        for part in words.split('/').filter(|part| !part.is_empty()) {
            paths = match is_pattern(part) {
                false => paths.into_iter().map(|path| format!("{path}/{part}")).collect(),
                true => paths.iter().flat_map(|path| self.entries(path, part, root)).take(MOST_FILES + 1).collect(),
            };
            if paths.len() > MOST_FILES {
                return Err(format!("`{words}` fits more than {MOST_FILES} files and folders"));
            }
        }
        for path in &paths {
            // A pattern means programs, whatever else lies beside them.
            match self.open(path, root) {
                Ok(handle) if !is_elf(&handle) => {}
                _ => self.add(path, root, found),
            }
        }
        Ok(())
    }

    /// What lies in a folder and fits, in name order.
    fn entries(&self, folder: &str, pattern: &str, root: Option<u32>) -> Vec<String> {
        let shown = if folder.is_empty() { "/" } else { folder };
        let Ok(handle) = self.open(shown, root) else { return Vec::new() };
        let entries = fs::read_dir(format!("/proc/self/fd/{}", handle.as_raw_fd())).into_iter().flatten().flatten();
        let names = entries.filter_map(|e| e.file_name().into_string().ok());
        // As in a shell, what begins with a dot is meant only by a pattern that does.
        let fitting = names.filter(|n| matches(pattern, n) && n.starts_with('.') == pattern.starts_with('.'));
        let mut paths: Vec<String> = fitting.map(|name| format!("{folder}/{name}")).collect();
        paths.sort();
        paths
    }

    /// Libraries and programs of this name in the usual folders of this machine: there before anything runs them.
    fn in_folders(&self, name: &str, found: &mut Found) {
        for folder in FOLDERS {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            let mut files: Vec<String> = entries.filter_map(|e| e.file_name().into_string().ok()).collect();
            files.retain(|file| is_named(file, name));
            files.sort();
            for path in files.iter().map(|file| format!("{folder}/{file}")) {
                // `libc.so` is a text for the linker, and a program's name may be that of a script.
                match self.open(&path, None) {
                    Ok(handle) if is_elf(&handle) => found.add(handle, path),
                    _ => {}
                }
            }
        }
    }

    /// Code that a process has mapped from files of this name.
    fn mapped(&self, name: &str, program: &Program, found: &mut Found) {
        let folder = self.proc.join(program.pid.to_string());
        let Ok(maps) = fs::read_to_string(folder.join("maps")) else { return };
        for (range, path) in code_mappings(&maps) {
            let plain = path.strip_suffix(DELETED).unwrap_or(path);
            if !is_named(plain.rsplit('/').next().unwrap_or_default(), name) {
                continue;
            }
            if plain == path {
                self.add(path, program.root, found);
            } else if let Ok(handle) = fs::File::open(folder.join("map_files").join(range)) {
                // Replaced by a newer one, but still in use: only the mapping leads to it.
                found.add(handle.into(), format!("{path} of process {}", program.pid));
            }
        }
    }

    /// Running programs whose file at this path was replaced or removed.
    fn deleted(&self, words: &str, found: &mut Found) {
        for program in &self.programs {
            let Some(path) = program.exe.strip_suffix(DELETED) else { continue };
            if matches(words, path)
                && let Ok(handle) = fs::File::open(self.proc.join(program.pid.to_string()).join("exe"))
            {
                found.add(handle.into(), format!("{} of process {}", program.exe, program.pid));
            }
        }
    }

    fn add(&self, path: &str, root: Option<u32>, found: &mut Found) {
        match self.open(path, root) {
            Ok(handle) => found.add(handle, shown(path, root)),
            Err(nix::Error::ENOENT | nix::Error::ENOTDIR) => {}
            Err(error) => {
                found.trouble.get_or_insert(format!("{} cannot be opened: {error}", shown(path, root)));
            }
        }
    }

    /// Opens what a path means to a process, or to us. Links in it lead where they lead for that process: an absolute one
    /// begins at its root, and none leads out of it.
    fn open(&self, path: &str, root: Option<u32>) -> nix::Result<OwnedFd> {
        use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
        use nix::sys::stat::Mode;
        // A pipe that somebody put there must not make us wait.
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let Some(pid) = root else { return open(path, flags, Mode::empty()) };
        let folder = self.proc.join(pid.to_string()).join("root");
        let folder = open(&folder, OFlag::O_PATH | OFlag::O_CLOEXEC | OFlag::O_DIRECTORY, Mode::empty())?;
        let how = OpenHow::new().flags(flags).resolve(ResolveFlag::RESOLVE_IN_ROOT);
        openat2(folder.as_fd(), path, how)
    }
}

fn shown(path: &str, root: Option<u32>) -> String {
    root.map_or_else(|| path.to_string(), |pid| format!("{path} of process {pid}"))
}

/// Files found so far.
#[derive(Default)]
struct Found {
    files: Vec<File>,
    /// What went wrong first.
    trouble: Option<String>,
}

impl Found {
    fn add(&mut self, handle: OwnedFd, shown: String) {
        let handle = fs::File::from(handle);
        let id = match file_id(&handle) {
            Ok(Some(id)) => id,
            Ok(None) => {
                self.trouble.get_or_insert(format!("{shown} is no regular file"));
                return;
            }
            Err(error) => {
                self.trouble.get_or_insert(format!("{shown} cannot be read: {error}"));
                return;
            }
        };
        if self.files.len() < MOST_FILES && !self.files.iter().any(|file| file.id.same_file(&id)) {
            self.files.push(File { handle, id, shown });
        }
    }
}

/// `None` when it is no regular file.
fn file_id(handle: &fs::File) -> std::io::Result<Option<FileId>> {
    let about = handle.metadata()?;
    let overlay = nix::sys::statfs::fstatfs(handle)?.filesystem_type() == nix::sys::statfs::OVERLAYFS_SUPER_MAGIC;
    let (device, inode, bytes) = (about.dev(), about.ino(), about.len());
    let id = FileId { device, inode, bytes, modified: (about.mtime(), about.mtime_nsec()), overlay };
    Ok(about.is_file().then_some(id))
}

fn is_elf(handle: &OwnedFd) -> bool {
    let mut magic = [0; 4];
    matches!(nix::sys::uio::pread(handle, &mut magic, 0), Ok(4)) && magic == *b"\x7fELF"
}

fn root_id(process: &Path) -> Option<RootId> {
    let namespace = fs::read_link(process.join("ns/mnt")).ok()?.to_string_lossy().into_owned();
    let root = fs::metadata(process.join("root")).ok()?;
    Some((namespace, root.dev(), root.ino()))
}

/// Whether a file of this name is meant: `libc` means `libc`, `libc.so.6` and `libc-2.31.so`, but not `libcrypt.so.1`.
fn is_named(file: &str, name: &str) -> bool {
    let Some(rest) = file.strip_prefix(name) else { return false };
    let version =
        rest.strip_prefix('-').is_some_and(|v| v.starts_with(|c: char| c.is_ascii_digit()) && v.contains(".so"));
    let numbers = |v: &str| v.chars().all(|c| c.is_ascii_digit() || c == '.');
    let library = |rest: &str| rest.strip_prefix(".so").is_some_and(numbers);
    // `libssl.so` means every version of it as well.
    rest.is_empty() || library(rest) || version || (name.ends_with(".so") && rest.starts_with('.') && numbers(rest))
}

/// Executable mappings of files in `maps`: address range and path, each path once.
fn code_mappings(maps: &str) -> Vec<(&str, &str)> {
    let mut found: Vec<(&str, &str)> = Vec::new();
    for line in maps.lines() {
        // 7f1c2a400000-7f1c2a555000 r-xp 00026000 fe:01 1234       /usr/lib/x86_64-linux-gnu/libc.so.6
        let mut parts = line.splitn(6, ' ');
        let (Some(range), Some(access)) = (parts.next(), parts.next()) else { continue };
        let path = parts.nth(3).unwrap_or_default().trim_start();
        if access.contains('x') && path.starts_with('/') && !found.iter().any(|(_, known)| *known == path) {
            found.push((range, path));
        }
    }
    found
}

#[cfg(test)]
mod tests;
