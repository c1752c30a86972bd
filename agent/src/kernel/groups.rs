//! Cgroups of version 2 as they are made and removed: programs at two tracepoints of the kernel, before the first task of a cgroup
//! runs and after its last one has ended.
//!
//! A [`Feed`] reports each with its path, so that a cgroup that lives for a millisecond has its name. An [`Admission`]
//! keeps the map of one condition: a new cgroup passes as its parent does, where the condition is about pods as a whole, and is
//! marked as undecided elsewhere, so that its events are counted until the agent has decided.

use crate::kernel::abilities::{EXIT, call, copy, insn, mov, refusal};
use crate::kernel::detect::read_btf;
use crate::kernel::error::BtfError;
use crate::kernel::events::{BufferError, Buffers};
use crate::kernel::sys::map::kind as map_kind;
use crate::kernel::sys::prog::{Refused, kind as prog_kind};
use crate::kernel::sys::{KernelMap, MapSpec, ProgSpec, link, prog};
use kstrobe_ebpf::kernel_target::Btf;
use kstrobe_ebpf::kernel_target::btf::Kind;
use kstrobe_ebpf::layout::UNDECIDED;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use thiserror::Error;

const MAP_LOOKUP: i32 = 1;
const MAP_UPDATE: i32 = 2;
const MAP_DELETE: i32 = 3;
const PROBE_READ_KERNEL: i32 = 113;
const PROBE_READ_KERNEL_STR: i32 = 115;
const RINGBUF_RESERVE: i32 = 131;
const RINGBUF_SUBMIT: i32 = 132;

/// A record: id (u64), [`MADE`] or [`REMOVED`] (u32), bytes of the path with its end or an error (s32), the path.
const RECORD_BYTES: i32 = 512;
const HEAD_BYTES: i32 = 16;
const PATH_BYTES: i32 = RECORD_BYTES - HEAD_BYTES;
/// 500 records, which is a burst of 250 cgroups that come and go while the agent does not run.
const RING_BYTES: u32 = 256 << 10;
const MADE: i32 = 1;
const REMOVED: i32 = 2;

/// The tracepoints: `(struct cgroup *, const char *path)`. The first runs before the folder can be seen.
const MKDIR: &str = "cgroup_mkdir";
const RMDIR: &str = "cgroup_rmdir";

/// Why cgroups are not reported.
#[derive(Debug, Error)]
pub enum GroupsError {
    /// The kernel's types cannot be read.
    #[error(transparent)]
    Btf(#[from] BtfError),
    /// A structure of the kernel lacks a member.
    #[error("this kernel's types have no {0}")]
    NoMember(String),
    /// Before 5.5 the id was a union, and the inode number only a part of it.
    #[error("cgroups have no id of 64 bits here (Linux 5.5 has them)")]
    NoId,
    /// A map is refused.
    #[error(transparent)]
    Map(#[from] io::Error),
    /// The ring buffer cannot be read.
    #[error(transparent)]
    Buffer(#[from] BufferError),
    #[error("{}", refusal(.0))]
    Program(Refused),
    /// A tracepoint is not there.
    #[error("the tracepoint {event}: {error}")]
    Attach {
        /// Its name.
        event: &'static str,
        /// Of BPF_RAW_TRACEPOINT_OPEN.
        error: io::Error,
    },
}

/// Bytes from the start of a structure to a member, and which others are followed from there.
#[derive(Clone, Copy, Debug)]
struct Offsets {
    /// `cgroup.root`, `cgroup_root.hierarchy_id`: 0 is that of version 2.
    hierarchy: [i32; 2],
    /// `cgroup.kn`, `kernfs_node.id`
    id: [i32; 2],
    /// `cgroup.self.parent`, `cgroup_subsys_state.cgroup`
    parent: [i32; 2],
}

/// Where the members lie that the programs here read.
#[derive(Clone, Copy, Debug)]
pub struct Groups {
    offsets: Offsets,
}

impl Groups {
    /// Reads the offsets from the kernel's own types, which are freed afterwards.
    pub fn here() -> Result<Groups, GroupsError> {
        Groups::of(&read_btf(None)?)
    }

    fn of(btf: &Btf) -> Result<Groups, GroupsError> {
        let member = |structure: &str, name: &str| {
            let found = btf.find(structure, Kind::Struct).and_then(|id| btf.member(id, name));
            let found = found.ok_or_else(|| GroupsError::NoMember(format!("{structure}.{name}")))?;
            Ok::<_, GroupsError>((i32::try_from(found.bit_offset / 8).unwrap_or(i32::MAX), found.ty))
        };
        let at = |structure: &str, name: &str| member(structure, name).map(|(offset, _)| offset);
        let (id, ty) = member("kernfs_node", "id")?;
        if btf.size(ty) != Some(8) || btf.strip(ty).kind != Kind::Int {
            return Err(GroupsError::NoId);
        }
        let own = at("cgroup", "self")?;
        Ok(Groups {
            offsets: Offsets {
                hierarchy: [at("cgroup", "root")?, at("cgroup_root", "hierarchy_id")?],
                id: [at("cgroup", "kn")?, id],
                parent: [own + at("cgroup_subsys_state", "parent")?, at("cgroup_subsys_state", "cgroup")?],
            },
        })
    }

    /// Reports cgroups from now on.
    pub fn feed(&self) -> Result<Feed, GroupsError> {
        let ring =
            MapSpec { kind: map_kind::RINGBUF, entries: RING_BYTES, name: "kstrobe_groups", ..MapSpec::default() };
        let ring = KernelMap::create(&ring)?;
        let lost = MapSpec { kind: map_kind::ARRAY, key_bytes: 4, value_bytes: 8, entries: 1, ..MapSpec::default() };
        let lost = KernelMap::create(&MapSpec { name: "kstrobe_lost", ..lost })?;
        let hooks = [(MKDIR, MADE), (RMDIR, REMOVED)]
            .map(|(event, what)| attach(event, &self.tell(ring.as_fd().as_raw_fd(), lost.as_fd().as_raw_fd(), what)));
        let [made, removed] = hooks;
        Ok(Feed { _hooks: [made?, removed?], buffers: Buffers::open(&ring, 0)?, lost, seen_lost: 0 })
    }

    /// Keeps the map of a condition, from id (u64) to `PASSES` or `UNDECIDED` (u32), for cgroups that are made from now on.
    /// `of_pods` when a condition that holds for a cgroup holds for all cgroups in it.
    pub fn admission(&self, map: &KernelMap, of_pods: bool) -> Result<Admission, GroupsError> {
        let fd = map.as_fd().as_raw_fd();
        // First the program that removes: an id that is left behind would stay for ever.
        let forget = attach(RMDIR, &self.forget(fd))?;
        let admit = attach(MKDIR, &self.admit(fd, of_pods))?;
        Ok(Admission { _hooks: [admit, forget] })
    }

    /// Sends a record. Register 6 is the context, 7 the cgroup, 8 its id, 9 the record.
    fn tell(&self, ring: i32, lost: i32, what: i32) -> Vec<u64> {
        let mut code = self.begin();
        code.map(1, ring);
        code.add([mov(2, RECORD_BYTES), mov(3, 0), call(RINGBUF_RESERVE)]);
        let full = code.jump_if_zero(0);
        code.add([copy(9, 0), store(9, 8, 0), store_imm(9, 8, what)]);
        code.add([copy(1, 9), add(1, HEAD_BYTES), mov(2, PATH_BYTES), load(3, 6, 8), call(PROBE_READ_KERNEL_STR)]);
        code.add([store_word(9, 0, 12), copy(1, 9), mov(2, 0), call(RINGBUF_SUBMIT)]);
        code.leave();
        code.land(full);
        code.add([store_imm(10, -4, 0)]);
        code.map(1, lost);
        code.add([copy(2, 10), add(2, -4), call(MAP_LOOKUP)]);
        code.leave_if_zero(0);
        // A double word, added atomically.
        code.add([mov(1, 1), insn(0xdb, 0, 1, 0, 0)]);
        code.finish()
    }

    fn forget(&self, map: i32) -> Vec<u64> {
        let mut code = self.begin();
        code.add([store(10, 8, -8)]);
        code.map(1, map);
        code.add([copy(2, 10), add(2, -8), call(MAP_DELETE)]);
        code.finish()
    }

    fn admit(&self, map: i32, of_pods: bool) -> Vec<u64> {
        let mut code = self.begin();
        code.add([store(10, 8, -8), store_imm(10, -24, UNDECIDED as i32)]);
        if of_pods {
            let [parent, cgroup] = self.offsets.parent;
            let [node, id] = self.offsets.id;
            code.follow(&[parent, cgroup, node, id], 8);
            code.add([store(10, 8, -16)]);
            code.map(1, map);
            code.add([copy(2, 10), add(2, -16), call(MAP_LOOKUP)]);
            let absent = code.jump_if_zero(0);
            // The parent's value holds here: it passes, or is undecided.
            code.add([insn(0x61, 1, 0, 0, 0), insn(0x63, 10, 1, -24, 0)]);
            code.land(absent);
        }
        code.map(1, map);
        code.add([copy(2, 10), add(2, -8), copy(3, 10), add(3, -24), mov(4, 0), call(MAP_UPDATE)]);
        code.finish()
    }

    /// Leaves for other hierarchies than that of version 2; register 8 has the id of the cgroup in register 7 then.
    fn begin(&self) -> Code {
        let mut code = Code::default();
        code.add([copy(6, 1), load(7, 6, 0)]);
        code.follow(&self.offsets.hierarchy, 4);
        // A jump if not equal to 0.
        code.leaving.push(code.insns.len());
        code.add([insn(0x55, 8, 0, 0, 0)]);
        code.follow(&self.offsets.id, 8);
        code
    }
}

/// Instructions, and the jumps to the end, whose targets are set last.
#[derive(Default)]
struct Code {
    insns: Vec<u64>,
    leaving: Vec<usize>,
}

impl Code {
    fn add<const N: usize>(&mut self, insns: [u64; N]) {
        self.insns.extend(insns);
    }

    /// A map's address: source register 1 of the two-slot load says a descriptor.
    fn map(&mut self, to: u8, fd: i32) {
        self.add([insn(0x18, to, 1, 0, fd), 0]);
    }

    /// From the cgroup in register 7 along members; register 8 has the last, of so many bytes. What cannot be read is 0.
    fn follow(&mut self, offsets: &[i32], bytes: i32) {
        for (at, offset) in offsets.iter().enumerate() {
            let base = if at == 0 { 7 } else { 8 };
            let size = if at + 1 == offsets.len() { bytes } else { 8 };
            self.add([copy(3, base), add(3, *offset), copy(1, 10), add(1, -32), mov(2, size), call(PROBE_READ_KERNEL)]);
            self.add([insn(if size == 4 { 0x61 } else { 0x79 }, 8, 10, -32, 0)]);
        }
    }

    fn jump_if_zero(&mut self, register: u8) -> usize {
        self.add([insn(0x15, register, 0, 0, 0)]);
        self.insns.len() - 1
    }

    fn leave_if_zero(&mut self, register: u8) {
        let at = self.jump_if_zero(register);
        self.leaving.push(at);
    }

    fn leave(&mut self) {
        self.leaving.push(self.insns.len());
        self.add([insn(0x05, 0, 0, 0, 0)]);
    }

    /// The jump leads to the next instruction.
    fn land(&mut self, jump: usize) {
        self.insns[jump] |= ((self.insns.len() - jump - 1) as u64 & 0xffff) << 16;
    }

    fn finish(mut self) -> Vec<u64> {
        for jump in std::mem::take(&mut self.leaving) {
            self.land(jump);
        }
        self.add([mov(0, 0), EXIT]);
        self.insns
    }
}

/// `r[dst] += imm`
const fn add(dst: u8, imm: i32) -> u64 {
    insn(0x07, dst, 0, 0, imm)
}
/// `r[dst] = *(u64 *)(r[src] + off)`
const fn load(dst: u8, src: u8, off: i16) -> u64 {
    insn(0x79, dst, src, off, 0)
}
/// `*(u64 *)(r[dst] + off) = r[src]`
const fn store(dst: u8, src: u8, off: i16) -> u64 {
    insn(0x7b, dst, src, off, 0)
}
/// `*(u32 *)(r[dst] + off) = r[src]`
const fn store_word(dst: u8, src: u8, off: i16) -> u64 {
    insn(0x63, dst, src, off, 0)
}
/// `*(u32 *)(r[dst] + off) = imm`
const fn store_imm(dst: u8, off: i16, imm: i32) -> u64 {
    insn(0x62, dst, 0, off, imm)
}

fn attach(event: &'static str, insns: &[u64]) -> Result<OwnedFd, GroupsError> {
    let spec = ProgSpec { kind: prog_kind::RAW_TRACEPOINT, insns, name: "kstrobe_groups", ..ProgSpec::default() };
    let program = prog::load(&spec).map_err(GroupsError::Program)?;
    link::attach_raw_tracepoint(program.as_fd(), event).map_err(|error| GroupsError::Attach { event, error })
}

/// What happened to a cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was made; its id, and its path from the root of the hierarchy. `None` when that is longer than a record.
    Made(u64, Option<String>),
    Removed(u64),
}

/// Reports cgroups until it is dropped.
#[derive(Debug)]
pub struct Feed {
    _hooks: [OwnedFd; 2],
    buffers: Buffers,
    lost: KernelMap,
    seen_lost: u64,
}

impl Feed {
    /// Readable when there are records.
    pub fn ready(&self) -> Arc<OwnedFd> {
        self.buffers.ready()[0].clone()
    }

    /// Changes since the last call, in order, and the number of records that found no room meanwhile.
    pub fn changes(&mut self) -> (Vec<Change>, u64) {
        let mut changes = Vec::new();
        self.buffers.drain(|record| changes.extend(read(record)));
        let mut lost = [0; 8];
        // An array of one element has it.
        let _ = self.lost.lookup(&0u32.to_ne_bytes(), &mut lost);
        let lost = u64::from_ne_bytes(lost);
        (changes, lost.saturating_sub(std::mem::replace(&mut self.seen_lost, lost)))
    }
}

fn read(record: &[u8]) -> Option<Change> {
    let (id, rest) = record.split_first_chunk::<8>()?;
    let (what, rest) = rest.split_first_chunk::<4>()?;
    let (length, path) = rest.split_first_chunk::<4>()?;
    let (id, length) = (u64::from_ne_bytes(*id), i32::from_ne_bytes(*length));
    match i32::from_ne_bytes(*what) {
        // One that fills its room may be cut.
        MADE if (1..PATH_BYTES).contains(&length) => {
            let path = path.get(..length as usize - 1)?;
            Some(Change::Made(id, Some(String::from_utf8_lossy(path).into_owned())))
        }
        MADE => Some(Change::Made(id, None)),
        REMOVED => Some(Change::Removed(id)),
        _ => None,
    }
}

/// Keeps the map of a condition until it is dropped.
#[derive(Debug)]
pub struct Admission {
    _hooks: [OwnedFd; 2],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_what_happened() {
        let record = |what: i32, length: i32, path: &str| {
            let mut bytes = [7u64.to_ne_bytes().as_slice(), &what.to_ne_bytes(), &length.to_ne_bytes()].concat();
            bytes.extend_from_slice(path.as_bytes());
            bytes.resize(RECORD_BYTES as usize, 0);
            read(&bytes)
        };
        assert_eq!(record(MADE, 5, "/a/b"), Some(Change::Made(7, Some("/a/b".into()))));
        assert_eq!(record(MADE, PATH_BYTES, &"/a".repeat(300)), Some(Change::Made(7, None)), "it is cut");
        assert_eq!(record(MADE, -14, ""), Some(Change::Made(7, None)));
        assert_eq!(record(REMOVED, 5, "/a/b"), Some(Change::Removed(7)));
        assert_eq!((record(0, 5, "/a"), read(&[0; 9])), (None, None));
    }

    #[test]
    fn jumps_lead_where_they_should() {
        let mut code = Code::default();
        let jump = code.jump_if_zero(0);
        code.leave();
        code.land(jump);
        code.add([mov(1, 1)]);
        let offset = |insn: u64| insn >> 16 & 0xffff;
        let insns = code.finish();
        assert_eq!((offset(insns[0]), offset(insns[1]), insns.len()), (1, 1, 5));
    }
}
