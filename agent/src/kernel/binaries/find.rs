//! Which files a user's words mean: a path, a pattern of paths, or the name of a program or library; on this machine and in
//! the mount namespaces of its processes (containers).

use kstrobe_ebpf::program::Binary;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::error::FindError;
use super::file::{File, FileId, is_elf};
use super::pattern::{is_pattern, matches};
use crate::kernel::privileges::Capabilities;
use crate::kernel::procfs::Stat;

/// The mount namespaces and programs of the running processes at one moment.
#[derive(Debug, Default)]
pub struct ProcessSnapshot {
    proc: PathBuf,
    /// Root folders other than ours, each once, with a process that has it.
    roots: Vec<Root>,
    /// Running programs, each once in each root.
    programs: Vec<Program>,
    /// All processes, each with the code that it has mapped, which is read when it is first asked for: the kernel takes some
    /// microseconds per mapping.
    processes: Vec<(Process, OnceLock<Vec<Code>>)>,
    /// We lack the right to look into some.
    closed: bool,
}

/// A process as it was at a moment. One that is the same at another moment has mapped nothing in between.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Process {
    pid: u32,
    root: Option<u32>,
    /// Its start in ticks, and the bytes it has mapped.
    start_and_bytes: (u64, u64),
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
    /// The link `exe`, which ends in ` (deleted)` when the file is gone.
    exe: String,
    pid: u32,
}

/// Code of a file that a process has mapped.
#[derive(Debug)]
struct Code {
    /// Addresses, as the folder `map_files` names them.
    range: String,
    inode: u64,
    /// Ends in ` (deleted)` when nothing leads to the file any more.
    path: String,
}

/// Files that one hook may mean: a pattern that fits more was not meant so.
const MAX_FILES: usize = 64;
const DELETED: &str = " (deleted)";
/// Directories of libraries and programs that are named without a path.
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
pub fn named(words: &str) -> Result<Vec<File>, FindError> {
    ProcessSnapshot::look().find(&Binary { path: words.to_owned(), pid: None })
}

impl ProcessSnapshot {
    /// Looks at all processes. One that may not be looked into is left out, which is said where nothing is found.
    pub fn look() -> ProcessSnapshot {
        ProcessSnapshot::look_at(Path::new("/proc"))
    }

    /// Looks again. What is known of processes that have not changed need not be read again.
    pub fn look_again(self) -> ProcessSnapshot {
        let mut now = ProcessSnapshot::look_at(&self.proc);
        let mut known: BTreeMap<u32, _> = self.processes.into_iter().map(|(p, code)| (p.pid, (p, code))).collect();
        for (process, code) in &mut now.processes {
            match known.remove(&process.pid) {
                Some((before, known)) if before == *process => *code = known,
                _ => {}
            }
        }
        now
    }

    fn look_at(proc: &Path) -> ProcessSnapshot {
        let ours = root_id(&proc.join("self")).ok();
        let mut processes = ProcessSnapshot { proc: proc.into(), ..ProcessSnapshot::default() };
        let mut known = BTreeSet::new();
        for entry in fs::read_dir(proc).into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            let folder = entry.path();
            let id = match root_id(&folder) {
                Ok(id) => id,
                // One that has ended meanwhile is not there.
                Err(error) => {
                    processes.closed |= error.kind() == io::ErrorKind::PermissionDenied;
                    continue;
                }
            };
            let root = if Some(&id) == ours.as_ref() {
                None
            } else if let Some(known) = processes.roots.iter().find(|r| r.id == id) {
                Some(known.pid)
            } else {
                processes.roots.push(Root { pid, id });
                Some(pid)
            };
            let stat = Stat::of(&folder);
            let start_and_bytes = stat.map_or((0, 0), |stat| (stat.started_ticks, stat.virtual_bytes));
            processes.processes.push((Process { pid, root, start_and_bytes }, OnceLock::new()));
            if let Ok(exe) = fs::read_link(folder.join("exe")) {
                let exe = exe.to_string_lossy().into_owned();
                if known.insert((root, exe.clone())) {
                    processes.programs.push(Program { exe, pid });
                }
            }
        }
        processes
    }

    /// Files that the words mean, each inode once. The error says why there are none.
    pub fn find(&self, binary: &Binary) -> Result<Vec<File>, FindError> {
        let words = binary.path.as_str();
        let mut found = Found::default();
        match binary.pid {
            Some(pid) if !self.has_process(pid) => {
                return Err(FindError::NoProcess(pid));
            }
            Some(pid) if words.starts_with('/') => self.by_path(words, Some(pid), &mut found)?,
            Some(pid) => {
                self.code_of(pid).iter().for_each(|code| self.mapped(words, pid, Some(pid), code, &mut found));
            }
            None if words.starts_with('/') => {
                self.by_path(words, None, &mut found)?;
                for root in &self.roots {
                    self.by_path(words, Some(root.pid), &mut found)?;
                }
                self.deleted(words, &mut found);
            }
            None => {
                self.in_folders(words, &mut found);
                let mut known = BTreeSet::new();
                for (Process { pid, root, .. }, code) in self.code() {
                    // What many have mapped is one file in each root.
                    if known.insert((*root, code.inode, &code.path)) {
                        self.mapped(words, *pid, *root, code, &mut found);
                    }
                }
            }
        }
        match (found.files.is_empty(), found.error) {
            (false, _) => Ok(found.files),
            (true, Some(error)) => Err(error),
            (true, None) => Err(FindError::Nothing(self.nothing(words, binary.pid))),
        }
    }

    fn nothing(&self, words: &str, pid: Option<u32>) -> String {
        let why = match (words.starts_with('/'), pid) {
            (true, None) => format!("there is no file {words}"),
            (true, Some(pid)) => format!("process {pid} has no file {words}"),
            (false, None) => format!("no program or library `{words}` is found or running"),
            (false, Some(pid)) => format!("process {pid} has no program or library `{words}`"),
        };
        let closed = match (self.closed, Capabilities::effective().is_ok_and(|have| have.sys_ptrace)) {
            (false, _) => "",
            (true, false) => "; some processes cannot be looked into: that takes CAP_SYS_PTRACE",
            (true, true) => {
                "; some processes cannot be looked into although CAP_SYS_PTRACE is there: a security module forbids it"
            }
        };
        why + closed
    }

    /// Whether there is such a process.
    pub fn has_process(&self, pid: u32) -> bool {
        self.proc.join(pid.to_string()).exists()
    }

    /// Whether some process has code mapped from a file with this inode number: for files that no path leads to any more.
    pub fn runs(&self, id: &FileId) -> bool {
        self.code().any(|(_, code)| code.inode == id.inode())
    }

    /// Reads what code processes have mapped, if that is not known yet, so that nothing that follows takes long.
    pub fn read_code(&self) {
        self.code().for_each(drop);
    }

    /// The code that processes have mapped from files.
    fn code(&self) -> impl Iterator<Item = (&Process, &Code)> {
        self.processes.iter().flat_map(|(process, code)| {
            let code = code.get_or_init(|| self.code_of(process.pid));
            code.iter().map(move |code| (process, code))
        })
    }

    fn code_of(&self, pid: u32) -> Vec<Code> {
        // Names of files are bytes.
        let maps = fs::read(self.proc.join(pid.to_string()).join("maps")).unwrap_or_default();
        String::from_utf8_lossy(&maps).lines().filter_map(code_mapping).collect()
    }

    /// A path or a pattern of paths, below our root or that of a process.
    fn by_path(&self, words: &str, root: Option<u32>, found: &mut Found) -> Result<(), FindError> {
        if !is_pattern(words) {
            self.add(words, root, found);
            return Ok(());
        }
        let mut paths = vec![String::new()];
        for part in words.split('/').filter(|part| !part.is_empty()) {
            paths = match is_pattern(part) {
                false => paths.into_iter().map(|path| format!("{path}/{part}")).collect(),
                true => paths.iter().flat_map(|path| self.entries(path, part, root)).take(MAX_FILES + 1).collect(),
            };
            if paths.len() > MAX_FILES {
                return Err(FindError::TooMany { words: words.to_owned(), max: MAX_FILES });
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

    /// A file that a process has mapped code from, if it has this name.
    fn mapped(&self, name: &str, pid: u32, root: Option<u32>, code: &Code, found: &mut Found) {
        let Code { range, path, .. } = code;
        let plain = path.strip_suffix(DELETED).unwrap_or(path);
        if !is_named(plain.rsplit('/').next().unwrap_or_default(), name) {
            return;
        }
        if plain == path {
            self.add(path, root, found);
        } else if let Ok(handle) = fs::File::open(self.proc.join(pid.to_string()).join("map_files").join(range)) {
            // Replaced by a newer one, but still in use: only the mapping leads to it.
            found.add(handle.into(), format!("{path} of process {pid}"));
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
                found.error.get_or_insert(FindError::Open { file: shown(path, root), error });
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
    error: Option<FindError>,
}

impl Found {
    fn add(&mut self, handle: OwnedFd, shown: String) {
        let handle = fs::File::from(handle);
        let id = match FileId::of(&handle) {
            Ok(Some(id)) => id,
            Ok(None) => {
                self.error.get_or_insert(FindError::NotRegular(shown));
                return;
            }
            Err(error) => {
                self.error.get_or_insert(FindError::Read { file: shown, error });
                return;
            }
        };
        if self.files.len() < MAX_FILES && !self.files.iter().any(|file| file.id.same_file(&id)) {
            self.files.push(File { handle, id, shown });
        }
    }
}

fn root_id(process: &Path) -> io::Result<RootId> {
    let namespace = fs::read_link(process.join("ns/mnt"))?.to_string_lossy().into_owned();
    let root = fs::metadata(process.join("root"))?;
    Ok((namespace, root.dev(), root.ino()))
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

/// A line of `maps`, if it is code of a file.
fn code_mapping(line: &str) -> Option<Code> {
    // 7f1c2a400000-7f1c2a555000 r-xp 00026000 fe:01 1234       /usr/lib/x86_64-linux-gnu/libc.so.6
    let mut parts = line.splitn(6, ' ');
    let (range, access) = (parts.next()?, parts.next()?);
    let inode = parts.nth(2)?.parse().ok()?;
    let path = parts.next()?.trim_start();
    let is_code = access.contains('x') && path.starts_with('/');
    is_code.then(|| Code { range: range.into(), inode, path: path.into() })
}

#[cfg(test)]
mod tests;
