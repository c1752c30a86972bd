//! The tables of processes: of which files they are, when they are made and when they go. A file's table is made once for all processes that
//! map it.

use super::file::{Identity, Image, Opened};
use super::ranges::Ranges;
use super::{Unavailable, load, lock};
use crate::kernel::mmap::Words;
use crate::kernel::process_maps::{Mapping, Maps as ProcessMaps};
use crate::kernel::procfs::Stat;
use crate::kernel::sys::map::{MapSpec, kind};
use crate::kernel::sys::prog::{self, ProgSpec};
use crate::kernel::sys::{KernelMap, monotonic_ns};
use kstrobe_ebpf::layout::{Layout, StackMap};
use kstrobe_ebpf::unwind::{
    self, Facts, LACKING, MAX_PIECES, MAX_PIECES_OF_PROCESS, MAX_ROWS, Outcome, PIECE_WORDS, Piece, STACK_HEADER_BYTES,
};
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Mutex;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

/// From one look for processes that have ended to the next.
const SWEEP_EVERY: Duration = Duration::from_secs(10);
/// Shortest and longest time from one look at a process to the next: the longest where nothing new was found, as at code that a process
/// makes itself.
const LOOKS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));

/// Time of one pass that makes tables.
const PASS: Duration = Duration::from_millis(20);
/// How long a file's table stays that no process maps: programs are started again.
const KEEP_FILES: Duration = Duration::from_secs(300);

/// Tables of processes, and the maps in which programs read them.
#[derive(Debug)]
pub struct Tables {
    facts: Facts,
    cpus: u32,
    rows: Words,
    pieces: Words,
    processes: KernelMap,
    wanted: KernelMap,
    walks: Words,
    state: Mutex<State>,
    /// As of the last pass: reading files can take long.
    size: Mutex<Size>,
}

#[derive(Debug)]
struct State {
    free_rows: Ranges,
    free_pieces: Ranges,
    files: HashMap<Identity, File>,
    /// Large files that wait to be read, and those with the one that is being read.
    large: VecDeque<Opened>,
    unread: HashSet<Identity>,
    processes: HashMap<u32, Process>,
    swept: Instant,
    /// Files and processes whose tables had no room.
    no_room: u64,
}

/// A file that processes map.
#[derive(Debug)]
struct File {
    image: Image,
    rows: Range<u32>,
    /// Processes that map it.
    users: u32,
    /// Since when there are none.
    unused: Option<Instant>,
}

#[derive(Debug)]
struct Process {
    started: u64,
    stack_start: u64,
    /// `None` where something of it had no room or could not be read.
    maps: Option<ProcessMaps>,
    pieces: Range<u32>,
    files: Vec<Identity>,
    looked: Instant,
    /// Until the next look.
    pause: Duration,
}

/// What there is of tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    pub processes: usize,
    pub files: usize,
    pub rows: u32,
    /// Files and processes without a table because there was no room for it.
    pub no_room: u64,
}

impl Tables {
    pub(super) fn create(facts: Facts, cpus: u32) -> Result<Tables, Unavailable> {
        let hash = |name, value_bytes, entries| {
            KernelMap::create(&MapSpec {
                kind: kind::HASH,
                key_bytes: 4,
                value_bytes,
                entries,
                name,
                ..MapSpec::default()
            })
        };
        Ok(Tables {
            facts,
            cpus,
            rows: Words::create("ks_unwind_rows", MAX_ROWS * 8)?,
            pieces: Words::create("ks_unwind_piece", MAX_PIECES * PIECE_WORDS as u32 * 8)?,
            processes: hash("ks_unwind_procs", unwind::PROCESS_BYTES, unwind::MAX_PROCESSES)?,
            wanted: hash("ks_unwind_want", 4, unwind::MAX_WANTED)?,
            walks: Words::create("ks_unwind_walk", unwind::walks_bytes(cpus))?,
            state: Mutex::new(State {
                free_rows: Ranges::new(MAX_ROWS),
                free_pieces: Ranges::new(MAX_PIECES),
                files: HashMap::new(),
                large: VecDeque::new(),
                unread: HashSet::new(),
                processes: HashMap::new(),
                swept: Instant::now(),
                no_room: 0,
            }),
            size: Mutex::default(),
        })
    }

    /// Loads a program that walks, and nothing else.
    pub(super) fn try_kernel(&self) -> Result<(), Unavailable> {
        let map = |kind, value_bytes| {
            KernelMap::create(&MapSpec {
                kind,
                key_bytes: 4,
                value_bytes,
                entries: 2,
                name: "ks_try",
                ..MapSpec::default()
            })
        };
        let (stacks, kernel_stacks) = (map(kind::HASH, STACK_HEADER_BYTES + 8)?, map(kind::STACK_TRACE, 8)?);
        let maps = self.maps(&stacks, &kernel_stacks);
        let insns = unwind::trial(&maps, &self.facts, self.cpus);
        let spec = ProgSpec { kind: prog::kind::RAW_TRACEPOINT, insns: &insns, name: "ks_try", ..ProgSpec::default() };
        load(&spec).map(drop).map_err(Unavailable::Refused)
    }

    fn maps(&self, stacks: &KernelMap, kernel_stacks: &KernelMap) -> unwind::Maps {
        let descriptor = |map: &KernelMap| map.as_fd().as_raw_fd() as u32;
        unwind::Maps {
            rows: self.rows.descriptor(),
            pieces: self.pieces.descriptor(),
            processes: descriptor(&self.processes),
            wanted: descriptor(&self.wanted),
            walks: self.walks.descriptor(),
            stacks: descriptor(stacks),
            kernel_stacks: descriptor(kernel_stacks),
        }
    }

    /// A program that walks user stacks by the tables; `None` where it takes none.
    pub fn link(&self, code: &[u64], layout: &Layout, maps: &[KernelMap]) -> Option<Vec<u64>> {
        let StackMap { map, unwound, depth, .. } = layout.stacks.as_ref()?;
        let maps = self.maps(&maps[(*unwound)?.0 as usize], &maps[map.0 as usize]);
        unwind::link(code, &maps, &self.facts, self.cpus, *depth).ok()?
    }

    /// How often walks ended so.
    pub fn walks(&self) -> [(Outcome, u64); Outcome::ALL.len()] {
        let words = self.walks.values.words();
        Outcome::ALL.map(|outcome| {
            let of = |cpu| words.get(unwind::count_at(cpu, outcome)).map_or(0, |word| word.load(Ordering::Relaxed));
            (outcome, (0..self.cpus).map(of).sum())
        })
    }

    pub fn size(&self) -> Size {
        *lock(&self.size)
    }

    /// Makes the tables that programs have asked for, and forgets those of processes that have ended. What one pass has no time for is left
    /// to the next.
    pub fn serve(&self) -> io::Result<()> {
        let mut state = lock(&self.state);
        let begun = Instant::now();
        for (key, why) in self.wanted.entries()?.iter() {
            let (Ok(key), Ok(why)) = (<[u8; 4]>::try_from(key), <[u8; 4]>::try_from(why)) else { continue };
            let (pid, now) = (u32::from_ne_bytes(key), Instant::now());
            // Before the look: what changes from here on is asked for again.
            self.wanted.delete(&key)?;
            let is_early = state.processes.get(&pid).is_some_and(|process| {
                !process.is_due(now) && (u32::from_ne_bytes(why) == LACKING || process.is_same(pid))
            });
            if is_early {
                continue;
            }
            self.look_or_forget(&mut state, pid, now);
            if begun.elapsed() > PASS {
                break;
            }
        }
        // Programs ask where a walk ends, which one through code without a table need not.
        let now = Instant::now();
        let due = state.processes.iter().find(|(_, process)| process.maps.is_none() && process.is_due(now));
        if let Some(pid) = due.map(|(pid, _)| *pid) {
            self.look_or_forget(&mut state, pid, now);
        }
        if state.swept.elapsed() >= SWEEP_EVERY {
            self.sweep(&mut state);
        }
        *lock(&self.size) = Size {
            processes: state.processes.len(),
            files: state.files.len(),
            rows: state.free_rows.used(),
            no_room: state.no_room,
        };
        Ok(())
    }

    /// A large file that a process maps. To read it takes seconds: on another thread than [`Tables::serve`].
    pub fn next_large(&self) -> Option<Opened> {
        lock(&self.state).large.pop_front()
    }

    pub fn add_large(&self, identity: Identity, image: Image) {
        let mut state = lock(&self.state);
        // Tables that were made since do not know it, or wait for it themselves.
        if state.unread.remove(&identity) {
            state.large.retain(|opened| opened.identity() != identity);
            state.add(identity, image, &self.rows, Instant::now());
        }
    }

    /// Forgets processes that have ended, and files that none has mapped for long.
    fn sweep(&self, state: &mut State) {
        let now = Instant::now();
        state.swept = now;
        let gone = |(pid, process): (&u32, &Process)| (!process.is_same(*pid)).then_some(*pid);
        let ended: Vec<u32> = state.processes.iter().filter_map(gone).collect();
        ended.into_iter().for_each(|pid| self.forget(state, pid));
        let is_old =
            |file: &mut File| file.unused.is_some_and(|since| now.saturating_duration_since(since) > KEEP_FILES);
        for (_, file) in state.files.extract_if(|_, file| is_old(file)) {
            state.free_rows.give_back(file.rows, now);
        }
    }

    fn look_or_forget(&self, state: &mut State, pid: u32, now: Instant) {
        if let Err(error) = self.look(state, pid, now) {
            tracing::debug!(pid, %error, "its table cannot be written");
            self.forget(state, pid);
        }
    }

    fn look(&self, state: &mut State, pid: u32, now: Instant) -> io::Result<()> {
        let Some(stat) = Stat::of_pid(pid) else {
            self.forget(state, pid);
            return Ok(());
        };
        let maps = ProcessMaps::of(pid).unwrap_or_default();
        let known = state.processes.get(&pid).filter(|known| known.stack_start == stat.stack_start);
        let later = known.map_or(LOOKS.0, |known| (known.pause * 2).min(LOOKS.1));
        let is_as_before = known.is_some_and(|known| known.maps.as_ref() == Some(&maps));
        let before = known.map_or(0, |known| known.files.len());
        if is_as_before && let Some(process) = state.processes.get_mut(&pid) {
            (process.looked, process.pause) = (now, later);
            let Range { start, end } = process.pieces;
            return self.put(pid, &stat, start..end, later);
        }
        if state.processes.len() >= unwind::MAX_PROCESSES as usize && !state.processes.contains_key(&pid) {
            state.no_room += 1;
            return Ok(());
        }
        let Pieces { pieces, files, mut is_whole } = state.pieces(pid, &maps, &self.rows, now);
        let range = state.free_pieces.take(pieces.len() as u32, now).unwrap_or_else(|| {
            state.no_room += 1;
            is_whole = false;
            0..0
        });
        let words = self.pieces.values.words();
        for (piece, at) in pieces.iter().zip(range.clone()) {
            for (word, to) in piece.words().into_iter().zip(&words[at as usize * PIECE_WORDS..]) {
                to.store(word, Ordering::Relaxed);
            }
        }
        fence(Ordering::SeqCst);
        let pause = if is_whole && files.len() > before { LOOKS.0 } else { later };
        let process = Process {
            started: stat.started_ticks,
            stack_start: stat.stack_start,
            maps: (is_whole && !maps.mappings.is_empty()).then_some(maps),
            pieces: range.clone(),
            files,
            looked: now,
            pause,
        };
        let old = state.processes.insert(pid, process);
        let put = self.put(pid, &stat, range, pause);
        if let Some(old) = old {
            state.release(old, now);
        }
        put
    }

    /// Lets programs find the pieces of a process. One without any has its parent's, or the kernel's own walk.
    fn put(&self, pid: u32, stat: &Stat, pieces: Range<u32>, pause: Duration) -> io::Result<()> {
        if pieces.is_empty() {
            return self.processes.delete(&pid.to_ne_bytes()).map(drop);
        }
        let again = monotonic_ns().saturating_add(pause.as_nanos() as u64);
        let value = unwind::process(stat.stack_start, pieces.start, pieces.end - pieces.start, again);
        self.processes.update(&pid.to_ne_bytes(), &value, 0)
    }

    fn forget(&self, state: &mut State, pid: u32) {
        let Some(process) = state.processes.remove(&pid) else { return };
        match self.processes.delete(&pid.to_ne_bytes()) {
            Ok(_) => state.release(process, Instant::now()),
            // Its pieces stay taken: programs may read them.
            Err(error) => tracing::error!(pid, %error, "its table cannot be removed"),
        }
    }
}

impl Process {
    fn is_due(&self, now: Instant) -> bool {
        now >= self.looked + self.pause
    }

    /// Whether the process of this id still is this one, and runs the same program.
    fn is_same(&self, pid: u32) -> bool {
        Stat::of_pid(pid).is_some_and(|stat| (stat.started_ticks, stat.stack_start) == (self.started, self.stack_start))
    }
}

/// The executable mappings of a process.
struct Pieces {
    /// Ascending.
    pieces: Vec<Piece>,
    files: Vec<Identity>,
    /// Whether all that has a table is there.
    is_whole: bool,
}

impl State {
    fn pieces(&mut self, pid: u32, maps: &ProcessMaps, rows: &Words, now: Instant) -> Pieces {
        let (mut pieces, mut files, mut is_whole) = (Vec::new(), Vec::new(), true);
        let most = MAX_PIECES_OF_PROCESS as usize;
        // Code that a process makes itself can be in many mappings, of which programs need not know.
        let with_all = maps.mappings.len() <= most;
        for mapping in maps.mappings.iter().filter(|mapping| with_all || !mapping.path.is_empty()).take(most) {
            let mut piece = Piece { start: mapping.start, end: mapping.end, ..Piece::default() };
            match self.file(pid, mapping, rows, now) {
                Some(Known::File(identity)) => {
                    if let Some(file) = self.files.get_mut(&identity) {
                        if !files.contains(&identity) {
                            files.push(identity);
                            file.users += 1;
                            file.unused = None;
                        }
                        if let Some(address) = file.image.address(mapping.offset) {
                            piece.bias = mapping.start.wrapping_sub(address);
                            (piece.first_row, piece.rows) = (file.rows.start, file.rows.end - file.rows.start);
                        }
                    }
                }
                Some(Known::NotYet) => is_whole = false,
                None => {}
            }
            pieces.push(piece);
        }
        Pieces { pieces, files, is_whole }
    }

    /// The file of a mapping, with its tables; `None` for memory of no file that can be read.
    fn file(&mut self, pid: u32, mapping: &Mapping, words: &Words, now: Instant) -> Option<Known> {
        let opened = Opened::of(pid, mapping)?;
        let identity = opened.identity();
        if self.files.contains_key(&identity) {
            return Some(Known::File(identity));
        }
        if opened.is_large() {
            if self.unread.insert(identity) {
                self.large.push_back(opened);
            }
            return Some(Known::NotYet);
        }
        let is_added = self.add(identity, opened.read(), words, now);
        Some(if is_added { Known::File(identity) } else { Known::NotYet })
    }

    /// Adds a file; `false` where its table has no room.
    fn add(&mut self, identity: Identity, image: Image, words: &Words, now: Instant) -> bool {
        let rows = image.rows();
        let Some(range) = self.free_rows.take(rows.len() as u32, now) else {
            self.no_room += 1;
            // There is room for these after a rest, when the process is looked at again.
            for (_, file) in self.files.extract_if(|_, file| file.users == 0) {
                self.free_rows.give_back(file.rows, now);
            }
            return false;
        };
        for (row, at) in rows.iter().zip(range.clone()) {
            if let Some(to) = words.values.words().get(at as usize) {
                to.store(*row, Ordering::Relaxed);
            }
        }
        self.files.insert(identity, File { image: image.without_rows(), rows: range, users: 0, unused: Some(now) });
        true
    }

    fn release(&mut self, process: Process, now: Instant) {
        self.free_pieces.give_back(process.pieces, now);
        for file in process.files {
            if let Some(file) = self.files.get_mut(&file) {
                file.users = file.users.saturating_sub(1);
                file.unused = (file.users == 0).then_some(now);
            }
        }
    }
}

/// What is known of a mapped file.
enum Known {
    File(Identity),
    /// It has no room, or is large and not read yet.
    NotYet,
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::kernel::detect::{possible_cpus, read_btf};
    use std::process::{Child, Command};

    fn tables() -> Tables {
        let facts = Facts::of(&read_btf(None).unwrap()).unwrap();
        let tables = Tables::create(facts, possible_cpus()).unwrap();
        tables.try_kernel().unwrap();
        tables
    }

    /// A process that runs another program than this one.
    fn sleep() -> Child {
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        let program = format!("/proc/{}/exe", child.id());
        while std::fs::read_link(&program).is_ok_and(|exe| exe == std::env::current_exe().unwrap()) {
            std::thread::yield_now();
        }
        // Until its loader has mapped the libraries.
        std::thread::sleep(Duration::from_millis(100));
        child
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn ask(tables: &Tables, pid: u32, why: u32) -> Size {
        tables.wanted.update(&pid.to_ne_bytes(), &why.to_ne_bytes(), 0).unwrap();
        tables.serve().unwrap();
        tables.size()
    }

    fn is_known_to_programs(tables: &Tables, pid: u32) -> bool {
        tables.processes.lookup(&pid.to_ne_bytes(), &mut [0; unwind::PROCESS_BYTES as usize]).unwrap()
    }

    #[test]
    #[ignore = "needs root"]
    fn root_tables_of_files_are_shared_and_go_with_processes() {
        let tables = tables();
        let (first, second) = (sleep(), sleep());
        let one = ask(&tables, first.id(), unwind::NO_TABLE);
        assert!(one.processes == 1 && one.files >= 3 && one.rows > 1000 && one.no_room == 0, "{one:?}");
        assert!(is_known_to_programs(&tables, first.id()));
        let two = ask(&tables, second.id(), unwind::NO_TABLE);
        assert_eq!(two, Size { processes: 2, ..one }, "the same files");
        let looked = || lock(&tables.state).processes[&second.id()].looked;
        let before = looked();
        ask(&tables, second.id(), LACKING);
        assert_eq!(looked(), before, "it was looked at just before");
        let gone = first.id();
        end(first);
        let long_ago = Instant::now().checked_sub(KEEP_FILES + SWEEP_EVERY).unwrap();
        lock(&tables.state).swept = long_ago;
        tables.serve().unwrap();
        assert_eq!((tables.size(), is_known_to_programs(&tables, gone)), (Size { processes: 1, ..one }, false));
        end(second);
        lock(&tables.state).swept = long_ago;
        tables.serve().unwrap();
        assert_eq!(tables.size(), Size { processes: 0, ..one }, "its programs may be started again");
        let mut state = lock(&tables.state);
        state.swept = long_ago;
        state.files.values_mut().for_each(|file| file.unused = Some(long_ago));
        drop(state);
        tables.serve().unwrap();
        assert_eq!(tables.size(), Size::default());
    }

    #[test]
    #[ignore = "needs root"]
    fn root_what_has_no_room_gets_it_later() {
        let tables = tables();
        let child = sleep();
        lock(&tables.state).free_rows = Ranges::new(1000);
        let without = ask(&tables, child.id(), unwind::NO_TABLE);
        assert!(without.no_room > 0 && without.rows <= 1000, "{without:?}");
        let mut state = lock(&tables.state);
        state.free_rows = Ranges::new(MAX_ROWS);
        state.files.clear();
        let process = state.processes.get_mut(&child.id()).unwrap();
        process.files.clear();
        process.looked -= LOOKS.1;
        drop(state);
        let with = ask(&tables, child.id(), LACKING);
        assert!(with.no_room == without.no_room && with.rows > 1000, "{with:?}");
        lock(&tables.state).free_pieces = Ranges::new(0);
        let other = sleep();
        assert!(ask(&tables, other.id(), unwind::NO_TABLE).no_room > with.no_room);
        assert!(!is_known_to_programs(&tables, other.id()), "its parent's table may serve it");
        end(child);
        end(other);
    }
}
