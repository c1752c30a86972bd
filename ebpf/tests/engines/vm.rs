//! Lowered code in `rbpf`, with every kind of map and with memory that helpers read.
//!
//! rbpf 0.4 differs from the kernel: no atomic additions, jumps extend negative constants with zeros where the kernel
//! extends the sign, and a 32-bit remainder by a zero register keeps the high half. [`split`] makes up for the second; the
//! compiler makes no 32-bit remainder.

use kstrobe_ebpf::asm::{Code, Target};
use kstrobe_ebpf::ir::Module;
use kstrobe_ebpf::ir::interp::Memory;
use kstrobe_ebpf::isa::encode::encode;
use kstrobe_ebpf::isa::{Insn, Jump, Op};
use kstrobe_ebpf::layout::{MapDef, MapId, MapKind};
use std::cell::RefCell;

/// What helpers answer, and the maps they work on. Addresses are those of this process.
#[derive(Default)]
struct World {
    maps: Vec<Map>,
    kernel: Memory,
    user: Memory,
}

struct Map {
    def: MapDef,
    /// Values of arrays and hashes; never moved, since code holds addresses in it.
    values: Vec<u64>,
    keys: Vec<Option<Vec<u8>>>,
    stack: Vec<Vec<u8>>,
}

impl Map {
    fn new(def: &MapDef) -> Map {
        let words = def.value_bytes.div_ceil(8) * def.entries;
        let keys = vec![None; if def.kind == MapKind::Hash { def.entries as usize } else { 0 }];
        Map { def: def.clone(), values: vec![0; words as usize], keys, stack: Vec::new() }
    }

    fn address(&self, element: usize) -> u64 {
        self.values.as_ptr() as u64 + element as u64 * u64::from(self.def.value_bytes.next_multiple_of(8))
    }

    fn find(&self, key: &[u8]) -> Option<usize> {
        match self.def.kind {
            MapKind::Array { .. } => {
                let index = u32::from_le_bytes(key.try_into().expect("keys of arrays have 4 bytes"));
                (index < self.def.entries).then_some(index as usize)
            }
            _ => self.keys.iter().position(|k| k.as_deref() == Some(key)),
        }
    }
}

thread_local! {
    // rbpf's helpers are plain functions: this is how they reach the run they belong to.
    static WORLD: RefCell<World> = RefCell::default();
}

fn read(address: u64, bytes: u32) -> Vec<u8> {
    // SAFETY: code under test passes addresses in rbpf's stack or in map memory, both alive during the run.
    unsafe { std::slice::from_raw_parts(address as *const u8, bytes as usize) }.to_vec()
}

fn write(address: u64, bytes: &[u8]) {
    // SAFETY: as above; the code's own stack is written by nobody else.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) }
}

fn with<T>(map: u64, action: impl FnOnce(&mut Map) -> T) -> T {
    WORLD.with_borrow_mut(|world| action(&mut world.maps[map as usize]))
}

fn lookup(map: u64, key: u64, _: u64, _: u64, _: u64) -> u64 {
    with(map, |map| map.find(&read(key, map.def.key_bytes)).map_or(0, |element| map.address(element)))
}

fn update(map: u64, key: u64, value: u64, flags: u64, _: u64) -> u64 {
    with(map, |map| {
        let key = read(key, map.def.key_bytes);
        let element = match map.find(&key) {
            Some(_) if flags == 1 => return -17i64 as u64,
            Some(element) => element,
            None => match map.keys.iter().position(Option::is_none) {
                Some(free) => free,
                None => return -7i64 as u64,
            },
        };
        if let Some(place) = map.keys.get_mut(element) {
            *place = Some(key);
        }
        write(map.address(element), &read(value, map.def.value_bytes));
        0
    })
}

fn delete(map: u64, key: u64, _: u64, _: u64, _: u64) -> u64 {
    with(map, |map| match map.find(&read(key, map.def.key_bytes)) {
        Some(element) => {
            map.keys[element] = None;
            0
        }
        None => -2i64 as u64,
    })
}

fn push(map: u64, value: u64, _: u64, _: u64, _: u64) -> u64 {
    with(map, |map| map.stack.push(read(value, map.def.value_bytes)));
    0
}

fn pop(map: u64, value: u64, _: u64, _: u64, _: u64) -> u64 {
    with(map, |map| match map.stack.pop() {
        Some(top) => {
            write(value, &top);
            0
        }
        None => -2i64 as u64,
    })
}

fn memory<const USER: bool>(address: u64, bytes: usize) -> Option<Vec<u8>> {
    WORLD.with_borrow(|world| {
        let memory = if USER { &world.user } else { &world.kernel };
        memory.read(address, bytes).map(<[u8]>::to_vec)
    })
}

fn probe_read<const USER: bool>(to: u64, bytes: u64, from: u64, _: u64, _: u64) -> u64 {
    let found = memory::<USER>(from, bytes as usize);
    write(to, &found.clone().unwrap_or(vec![0; bytes as usize]));
    if found.is_some() { 0 } else { -14i64 as u64 }
}

fn probe_read_str<const USER: bool>(to: u64, bytes: u64, from: u64, _: u64, _: u64) -> u64 {
    let mut text = Vec::new();
    while text.len() + 1 < bytes as usize {
        match memory::<USER>(from + text.len() as u64, 1).as_deref() {
            Some([0]) => break,
            Some(byte) => text.extend(byte),
            None => {
                write(to, &vec![0; bytes as usize]);
                return -14i64 as u64;
            }
        }
    }
    text.push(0);
    write(to, &text);
    text.len() as u64
}

fn zero(_: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    0
}

/// The clock: any time but 0, which means that no span is open.
fn now(_: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    1_000_000
}

/// `bpf_rdonly_cast`, and rbpf's number for it: kernel functions have none.
fn cast(address: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    address
}
const CAST: u32 = 9999;

/// What `bpf_get_func_ip` gives.
pub const FUNCTION: u64 = 0xffff_ffff_8123_4560;
/// What `bpf_get_attach_cookie` gives.
pub const COOKIE: u64 = 77;

fn function(_: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    FUNCTION
}

fn cookie(_: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    COOKIE
}

const HELPERS: [(u32, rbpf::ebpf::Helper); 16] = [
    (1, lookup),
    (2, update),
    (3, delete),
    (5, now),
    (8, zero),
    (14, zero),
    (35, zero),
    (87, push),
    (88, pop),
    (112, probe_read::<true>),
    (113, probe_read::<false>),
    (114, probe_read_str::<true>),
    (115, probe_read_str::<false>),
    (173, function),
    (174, cookie),
    (CAST, cast),
];

/// Programs with the maps they share.
pub struct Vm {
    world: World,
    rodata: Vec<u64>,
    programs: Vec<Vec<u8>>,
    /// Addresses of kernel memory that plain loads may read.
    readable: Vec<(u64, u64)>,
}

impl Vm {
    /// Empty maps, stacks of free slots filled.
    pub fn new(module: &Module, codes: &[Code], kernel: Memory, user: Memory) -> Vm {
        let mut maps: Vec<Map> = module.layout.maps.iter().map(Map::new).collect();
        for table in &module.layout.tables {
            if let Some((free, slots)) = table.free_at_start() {
                maps[free.0 as usize].stack = slots.map(|s| s.to_le_bytes().to_vec()).collect();
            }
        }
        let words = module.rodata.chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        });
        let rodata: Vec<u64> = words.collect();
        let programs = codes.iter().map(|code| link(code, rodata.as_ptr() as u64)).collect();
        let readable = kernel.regions.iter().map(|(at, bytes)| (*at, *at + bytes.len() as u64)).collect();
        Vm { world: World { maps, kernel, user }, rodata, programs, readable }
    }

    /// Runs one program with `ctx` as its context.
    pub fn run(&mut self, program: usize, ctx: &[u64]) -> Result<(), String> {
        let mut vm = rbpf::EbpfVmRaw::new(Some(&self.programs[program])).map_err(|e| e.to_string())?;
        for (id, helper) in HELPERS {
            vm.register_helper(id, helper).map_err(|e| e.to_string())?;
        }
        let mut ctx = ctx.to_vec();
        let mut allow = |words: &[u64]| {
            let address = words.as_ptr() as u64;
            vm.register_allowed_memory(address..address + words.len() as u64 * 8);
        };
        allow(&self.rodata);
        allow(&ctx);
        self.world.maps.iter().for_each(|map| allow(&map.values));
        for (from, to) in &self.readable {
            vm.register_allowed_memory(*from..*to);
        }
        // Helpers read text out of a tracepoint's record.
        let record: Vec<u8> = ctx.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.world.kernel.map(ctx.as_ptr() as u64, record);
        WORLD.set(std::mem::take(&mut self.world));
        // SAFETY: the words of `ctx` as bytes; it is not used in any other way until the run is over.
        let bytes = unsafe { std::slice::from_raw_parts_mut(ctx.as_mut_ptr().cast::<u8>(), ctx.len() * 8) };
        let result = vm.execute_program(bytes);
        self.world = WORLD.take();
        self.world.kernel.regions.remove(&(ctx.as_ptr() as u64));
        match result {
            Ok(0) => Ok(()),
            Ok(result) => Err(format!("returned {result}")),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Puts ids into a hash, each with this value.
    pub fn fill(&mut self, map: MapId, ids: &[u64], value: u32) {
        let map = &mut self.world.maps[map.0 as usize];
        let stride = map.def.value_bytes.div_ceil(8) as usize;
        for (at, id) in ids.iter().enumerate() {
            map.keys[at] = Some(id.to_le_bytes().to_vec());
            map.values[at * stride] = value.into();
        }
    }

    /// Words of a map's values.
    pub fn values(&self, map: MapId) -> &[u64] {
        &self.world.maps[map.0 as usize].values
    }

    /// Keys of a hash with their values' first words.
    pub fn keys(&self, map: MapId) -> Vec<(Vec<u8>, u32)> {
        let map = &self.world.maps[map.0 as usize];
        let stride = map.def.value_bytes.div_ceil(8) as usize;
        let with_element = map.keys.iter().enumerate().filter_map(|(i, key)| Some((key.clone()?, i)));
        let mut keys: Vec<_> = with_element.map(|(key, i)| (key, map.values[i * stride] as u32)).collect();
        keys.sort();
        keys
    }
}

/// Does the loader's work: maps become their numbers, tables their address, calls of kernel functions a helper's number.
fn link(code: &Code, rodata: u64) -> Vec<u8> {
    let mut insns = code.insns.clone();
    let mut slot = 0;
    for insn in &mut insns {
        if let Some(reloc) = code.relocs.iter().find(|reloc| reloc.slot == slot) {
            insn.imm = match reloc.target {
                Target::Map(map) => i64::from(map.0),
                Target::Rodata(at) => rodata as i64 + i64::from(at),
            };
        }
        if insn.op == Op::CallKfunc {
            *insn = Insn::call(CAST);
        }
        slot += insn.slots();
    }
    encode(&signed_jumps(&insns))
}

/// Two jumps that mean the same as one that rbpf gets wrong: it extends constants of all but signed jumps with zeros.
fn split(insn: &Insn) -> Option<[(Jump, i32, bool); 2]> {
    let Op::JmpImm(jump) = insn.op else { return None };
    let c = i32::try_from(insn.imm).ok().filter(|c| *c < 0)?;
    // Condition, constant, and whether it jumps there or past the other one.
    Some(match jump {
        Jump::Eq => [(Jump::SLt, c, false), (Jump::SLe, c, true)],
        Jump::Ne => [(Jump::SLt, c, true), (Jump::SGt, c, true)],
        Jump::Gt => [(Jump::SGe, 0, false), (Jump::SGt, c, true)],
        Jump::Ge => [(Jump::SGe, 0, false), (Jump::SGe, c, true)],
        Jump::Lt => [(Jump::SGe, 0, true), (Jump::SLt, c, true)],
        Jump::Le => [(Jump::SGe, 0, true), (Jump::SLe, c, true)],
        _ => return None,
    })
}

fn signed_jumps(insns: &[Insn]) -> Vec<Insn> {
    // New slot of each old one.
    let mut places = vec![0];
    for insn in insns {
        let last = *places.last().unwrap();
        let more = u32::from(split(insn).is_some());
        places.extend((1..=insn.slots()).map(|slot| last + slot + if slot == insn.slots() { more } else { 0 }));
    }
    let mut out = Vec::new();
    let (mut old, mut new) = (0, 0i64);
    for insn in insns {
        old += insn.slots();
        let target = (i64::from(old) + i64::from(insn.off)) as usize;
        let jumps = matches!(insn.op, Op::Ja | Op::JmpImm(_) | Op::JmpReg(_));
        let offset = |next: i64| (i64::from(places[target]) - next) as i16;
        match split(insn) {
            Some(two) => {
                for (cond, imm, there) in two {
                    new += 1;
                    let off = if there { offset(new) } else { 1 };
                    out.push(Insn { off, ..Insn::jmp_imm(cond, insn.dst, imm) });
                }
            }
            None => {
                new += i64::from(insn.slots());
                let off = if jumps { offset(new) } else { insn.off };
                out.push(Insn { off, ..*insn });
            }
        }
    }
    out
}
