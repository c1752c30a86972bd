//! Addresses to names: kernel ones by `/proc/kallsyms`, user ones by the process's memory map and its ELF files.
//!
//! What cannot be found leaves a frame that says so, never an error: processes end and files are replaced while we look.

use super::processes::Processes;
use super::{Addresses, Frame, MISSED_KERNEL, MISSED_USER, Named, Profile, Resolved, SMALL, UNKNOWN};
use crate::kernel::process_maps::Mapping;
use blazesym::symbolize::source::{Elf, Kernel, Process, Source};
use blazesym::symbolize::{Input, Symbolized, Symbolizer};
use blazesym::{MaybeDefault, Pid};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;

/// What pprof and perf call the kernel's own code.
const KERNEL_MODULE: &str = "[kernel.kallsyms]";

/// Symbols of the kernel and of files, once they were read. Files that are replaced and processes that take the id of
/// another make them untrue after a while.
pub struct Symbols(Symbolizer);

impl Symbols {
    /// None are read yet.
    pub fn new() -> Symbols {
        Symbols(Symbolizer::builder().enable_code_info(false).enable_inlined_fns(false).build())
    }
}

impl Default for Symbols {
    fn default() -> Self {
        Self::new()
    }
}

/// Names for every address of a profile.
///
/// `processes` are those seen while it was taken; they are looked at once more. Reads all of kallsyms (some 10 MB) and the
/// symbol tables of all files that occur: call it where blocking is allowed.
pub fn resolve(profile: Profile, processes: Processes) -> Resolved {
    resolve_by(&Symbols::new(), profile, processes)
}

/// The same with symbols that may have been read already.
pub fn resolve_by(Symbols(symbolizer): &Symbols, profile: Profile, mut processes: Processes) -> Resolved {
    let mut frames = Frames::default();
    let wanted = Wanted::of(&profile);
    kernel_frames(symbolizer, &wanted.kernel, &mut frames);
    let mut files = HashMap::new();
    for (&pid, addresses) in &wanted.user {
        processes.refresh(pid);
        user_frames(symbolizer, pid, &processes, addresses, &mut files, &mut frames);
    }
    let samples = profile.samples.into_iter().map(|sample| {
        let mut named = Vec::new();
        push(&mut named, &mut frames, 0, &sample.kernel, true);
        let measured = named.iter().take_while(|frame| is_ours(&frames.all[**frame as usize].name)).count();
        named.drain(..measured);
        push(&mut named, &mut frames, sample.pid, &sample.user, false);
        Named { labels: sample.labels, pid: sample.pid, frames: named, value: sample.value }
    });
    Resolved {
        samples: samples.collect(),
        metric: profile.metric,
        node: profile.node,
        unit: profile.unit,
        period_ns: profile.period_ns,
        start_unix_ns: profile.start_unix_ns,
        duration_ns: profile.duration_ns,
        frames: frames.all,
    }
}

/// Frames by where they come from; pid 0 is the kernel.
#[derive(Default)]
struct Frames {
    all: Vec<Frame>,
    of: HashMap<(u32, u64), u32>,
    /// Frames without an address, by name.
    stand_ins: HashMap<&'static str, u32>,
}

impl Frames {
    fn add(&mut self, pid: u32, address: u64, name: Arc<str>, module: Option<Arc<str>>) {
        let id = self.all.len() as u32;
        self.all.push(Frame { name, module, address, kernel: pid == 0 });
        self.of.insert((pid, address), id);
    }

    fn get(&mut self, pid: u32, address: u64) -> u32 {
        if !self.of.contains_key(&(pid, address)) {
            self.add(pid, address, UNKNOWN.into(), None);
        }
        self.of[&(pid, address)]
    }

    /// A frame that stands for frames that are not known.
    fn stand_in(&mut self, name: &'static str, kernel: bool) -> u32 {
        let all = &mut self.all;
        *self.stand_ins.entry(name).or_insert_with(|| {
            all.push(Frame { name: name.into(), module: None, address: 0, kernel });
            all.len() as u32 - 1
        })
    }
}

/// Whether a kernel function is only there because we measure: the leaf of a stack taken at a tracepoint is our program, and
/// what calls it is the tracepoint's machinery.
fn is_ours(name: &str) -> bool {
    const PREFIXES: [&str; 6] =
        ["bpf_prog_", "bpf_trace_run", "__bpf_trace_", "__traceiter_", "bpf_trampoline_", "trace_call_bpf"];
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Appends a half stack. One that was not kept says so with a frame.
fn push(named: &mut Vec<u32>, frames: &mut Frames, pid: u32, addresses: &Addresses, kernel: bool) {
    match addresses {
        Addresses::Known(addresses) => named.extend(code(addresses).map(|address| frames.get(pid, address))),
        Addresses::Missed if kernel => named.push(frames.stand_in(MISSED_KERNEL, kernel)),
        Addresses::Missed => named.push(frames.stand_in(MISSED_USER, kernel)),
        Addresses::Small => named.push(frames.stand_in(SMALL, kernel)),
    }
}

/// Addresses of instructions: all but the leaf's are return addresses, and the call before one may be the last
/// instruction of its function (`noreturn`), so that the address itself belongs to the next.
fn code(addresses: &[u64]) -> impl Iterator<Item = u64> + '_ {
    addresses.iter().enumerate().map(|(i, &a)| if i == 0 { a } else { a.saturating_sub(1) })
}

/// Each address once.
#[derive(Default)]
struct Wanted {
    kernel: BTreeSet<u64>,
    user: BTreeMap<u32, BTreeSet<u64>>,
}

impl Wanted {
    fn of(profile: &Profile) -> Wanted {
        let mut wanted = Wanted::default();
        for sample in &profile.samples {
            if let Addresses::Known(addresses) = &sample.kernel {
                wanted.kernel.extend(code(addresses));
            }
            if let Addresses::Known(addresses) = &sample.user {
                wanted.user.entry(sample.pid).or_default().extend(code(addresses));
            }
        }
        wanted
    }
}

fn kernel_frames(symbolizer: &Symbolizer, addresses: &BTreeSet<u64>, frames: &mut Frames) {
    if addresses.is_empty() {
        return;
    }
    // A vmlinux file lies beside few kernels, may be of another one, and knows no modules.
    let kernel = Kernel { vmlinux: MaybeDefault::None, ..Kernel::default() };
    let addresses: Vec<u64> = addresses.iter().copied().collect();
    let names = symbolizer.symbolize(&Source::Kernel(kernel), Input::AbsAddr(&addresses)).unwrap_or_default();
    let module: Arc<str> = KERNEL_MODULE.into();
    for (i, &address) in addresses.iter().enumerate() {
        let name = names.get(i).and_then(name_of).unwrap_or_else(|| UNKNOWN.into());
        frames.add(0, address, name, Some(module.clone()));
    }
}

fn name_of(symbol: &Symbolized<'_>) -> Option<Arc<str>> {
    symbol.as_sym().map(|s| s.name.as_ref().into())
}

/// Readable paths of files by identity (device and inode): a file is opened once, however many processes map it. What one process
/// that has ended no longer leads to, the next may.
type Files = HashMap<(String, u64), PathBuf>;

fn user_frames(
    symbolizer: &Symbolizer,
    pid: u32,
    processes: &Processes,
    addresses: &BTreeSet<u64>,
    files: &mut Files,
    frames: &mut Frames,
) {
    let mut by_file: BTreeMap<&(String, u64), Vec<(&Mapping, u64)>> = BTreeMap::new();
    let mut of_none = Vec::new();
    for &address in addresses {
        match processes.find(pid, address) {
            Some(mapping) if mapping.file.1 != 0 => by_file.entry(&mapping.file).or_default().push((mapping, address)),
            Some(mapping) => of_none.push((mapping, address)),
            None => frames.add(pid, address, UNKNOWN.into(), None),
        }
    }
    if !of_none.is_empty() {
        // The vDSO, or code that a JIT compiler wrote and perhaps described in /tmp/perf-PID.map. Each asking reads the process's
        // mappings anew.
        let source = Source::Process(Process { debug_syms: false, ..Process::new(Pid::from(pid)) });
        let addresses: Vec<u64> = of_none.iter().map(|(_, address)| *address).collect();
        let symbols = symbolizer.symbolize(&source, Input::AbsAddr(&addresses)).unwrap_or_default();
        for (i, &(mapping, address)) in of_none.iter().enumerate() {
            let name = symbols.get(i).and_then(name_of).unwrap_or_else(|| unnamed(mapping, address));
            frames.add(pid, address, name, module(mapping));
        }
    }
    for (file, places) in by_file {
        if !files.contains_key(file) {
            files.extend(readable(pid, places[0].0).map(|path| (file.clone(), path)));
        }
        let path = files.get(file);
        let offsets: Vec<u64> = places.iter().map(|(mapping, address)| mapping.file_offset(*address)).collect();
        let symbols = path.and_then(|path| {
            let elf = Elf { debug_syms: false, ..Elf::new(path) };
            symbolizer.symbolize(&Source::Elf(elf), Input::FileOffset(&offsets)).ok()
        });
        let symbols = symbols.unwrap_or_default();
        let module = module(places[0].0);
        for (i, &(mapping, address)) in places.iter().enumerate() {
            let name = symbols.get(i).and_then(name_of).unwrap_or_else(|| unnamed(mapping, address));
            frames.add(pid, address, name, module.clone());
        }
    }
}

fn module(mapping: &Mapping) -> Option<Arc<str>> {
    (!mapping.path.is_empty()).then(|| mapping.path.as_str().into())
}

/// A file known, a function not: `libfoo.so+0x1234`, the offset being that in the file.
fn unnamed(mapping: &Mapping, address: u64) -> Arc<str> {
    match mapping.short_name() {
        "" => UNKNOWN.into(),
        file => format!("{file}+{:#x}", mapping.file_offset(address)).into(),
    }
}

/// A path under which we can open a file that a process maps, if it still is that file.
///
/// `map_files` always is, even of a deleted file, but following it takes CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE; the
/// process's own root finds files of containers; our own root is left when the process has ended.
fn readable(pid: u32, mapping: &Mapping) -> Option<PathBuf> {
    let candidates = [
        format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end),
        format!("/proc/{pid}/root{}", mapping.path),
        mapping.path.clone(),
    ];
    let same = |path: &String| std::fs::metadata(path).is_ok_and(|m| m.ino() == mapping.file.1);
    candidates.into_iter().find(same).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::process_maps::Maps;
    use crate::metrics::profiles::{Sample, folded};

    #[inline(never)]
    fn first_of_two(n: u64) -> u64 {
        std::hint::black_box(n) + 1
    }

    #[inline(never)]
    fn second_of_two(n: u64) -> u64 {
        std::hint::black_box(n) * 3
    }

    fn address(f: fn(u64) -> u64) -> u64 {
        f as *const () as usize as u64
    }

    fn user(pid: u32, addresses: Vec<u64>) -> Profile {
        let sample = Sample { pid, user: Addresses::Known(addresses.into()), value: 1, ..Sample::default() };
        Profile { samples: vec![sample], ..Profile::default() }
    }

    /// A process that has ended and had these maps.
    fn seen(maps: Maps) -> Processes {
        let mut processes = Processes::default();
        processes.insert(1 << 23, maps);
        processes
    }

    fn names(resolved: &Resolved) -> Vec<&str> {
        resolved.samples[0].frames.iter().map(|f| &*resolved.frames[*f as usize].name).collect()
    }

    #[test]
    fn functions_of_this_process() {
        assert_eq!(first_of_two(1) + second_of_two(1), 5);
        // The second address is a return address: the first byte after a call that ends its function.
        let leaf = address(first_of_two);
        let caller = address(second_of_two) + 1;
        let resolved = resolve(user(std::process::id(), vec![leaf, caller]), Processes::default());
        let found = names(&resolved);
        assert!(found[0].ends_with("::first_of_two") && found[1].ends_with("::second_of_two"), "{found:?}");
        assert_eq!((resolved.frames[0].kernel, resolved.samples[0].pid), (false, std::process::id()));
        let text = folded::write(&resolved);
        assert!(
            text.ends_with("::second_of_two;kstrobe::metrics::profiles::symbols::tests::first_of_two 1\n"),
            "{text}"
        );
    }

    #[test]
    fn a_caller_is_the_call_not_what_follows_it() {
        let start = address(second_of_two);
        let resolved = resolve(user(std::process::id(), vec![start, start]), Processes::default());
        let found = names(&resolved);
        assert!(found[0].ends_with("::second_of_two"), "{found:?}");
        assert!(!found[1].ends_with("::second_of_two"), "the byte before a function is not in it: {found:?}");
    }

    #[test]
    fn a_process_that_is_gone() {
        // Larger than any pid the kernel gives (2^22).
        let resolved = resolve(user(1 << 23, vec![0x1000, 0x2000]), Processes::default());
        assert_eq!(names(&resolved), [UNKNOWN, UNKNOWN]);
    }

    #[test]
    fn a_process_that_is_gone_but_was_seen() {
        let resolved = resolve(user(1 << 23, vec![address(first_of_two)]), seen(Maps::of(std::process::id()).unwrap()));
        assert!(names(&resolved)[0].ends_with("::first_of_two"), "{resolved:?}");
    }

    #[test]
    fn a_file_is_read_by_way_of_a_process_that_still_runs() {
        let maps = Maps::of(std::process::id()).unwrap();
        // Where no other process has anything by that name.
        let text = std::fs::read_to_string("/proc/self/maps").unwrap().replace("/deps/", "/nowhere/");
        let mut processes = seen(Maps::parse(&text));
        processes.insert(1 << 23 | 1, maps);
        let sample = |pid| user(pid, vec![address(first_of_two)]).samples.remove(0);
        let profile = Profile { samples: vec![sample(1 << 23), sample(1 << 23 | 1)], ..Profile::default() };
        let resolved = resolve(profile, processes);
        let name = |i: usize| resolved.frames[resolved.samples[i].frames[0] as usize].name.to_string();
        assert!(name(0).contains("+0x") && name(1).ends_with("::first_of_two"), "{} {}", name(0), name(1));
    }

    #[test]
    fn a_file_that_is_gone_or_another_leaves_its_name() {
        let line = |inode: u64, path: &str| format!("1000-9000 r-xp 00002000 fe:01 {inode} {path}\n");
        for (inode, path) in [(5, "/nowhere/libgone.so"), (u64::MAX, "/bin/sh"), (5, "/nowhere/libgone.so (deleted)")] {
            let resolved = resolve(user(1 << 23, vec![0x1234]), seen(Maps::parse(&line(inode, path))));
            let file = path.trim_end_matches(" (deleted)").rsplit('/').next().unwrap();
            assert_eq!(names(&resolved), [format!("{file}+0x2234")]);
        }
    }

    #[test]
    fn missed_halves_say_so() {
        // Without frame pointers, walks of user stacks find numbers that are no addresses.
        let nonsense =
            Sample { pid: 7, user: Addresses::Known([0, 1, u64::MAX].into()), value: 1, ..Sample::default() };
        let missed =
            Sample { pid: 7, kernel: Addresses::Missed, user: Addresses::Missed, value: 2, ..Sample::default() };
        let small = Sample { user: Addresses::Small, value: 3, ..Sample::default() };
        let profile = Profile { samples: vec![nonsense, missed, small], ..Profile::default() };
        let mut resolved = resolve(profile, Processes::default());
        assert_eq!(names(&resolved), [UNKNOWN; 3]);
        resolved.samples.remove(0);
        assert_eq!(names(&resolved), [MISSED_KERNEL, MISSED_USER]);
        assert_eq!(folded::write(&resolved), "[missed user stack];[missed kernel stack]_[k] 2\n[small stacks] 3\n");
    }

    #[test]
    #[ignore = "needs root"]
    fn root_kernel_functions() {
        let text = std::fs::read_to_string("/proc/kallsyms").unwrap();
        let find = |name: &str| {
            let line = text.lines().find(|l| l.split_whitespace().nth(2) == Some(name)).unwrap();
            u64::from_str_radix(line.split_whitespace().next().unwrap(), 16).unwrap()
        };
        let kernel = vec![find("schedule") + 4, find("hrtimer_nanosleep") + 9];
        let sample = Sample { kernel: Addresses::Known(kernel.into()), value: 1, ..Sample::default() };
        let resolved = resolve(Profile { samples: vec![sample], ..Profile::default() }, Processes::default());
        assert_eq!(names(&resolved), ["schedule", "hrtimer_nanosleep"]);
        assert!(resolved.frames.iter().all(|f| f.kernel));
    }
}
