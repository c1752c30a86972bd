//! Runs lowered code in `rbpf`, with maps and tables in memory of ours.
//!
//! rbpf 0.4 differs from the kernel: no atomic additions, jumps extend negative constants with zeros where the kernel
//! extends the sign, and a 32-bit remainder by a zero register keeps the high half. Tests keep away from these.

use super::{Outcome, answer};
use kstrobe_ebpf::asm::{Code, Target};
use kstrobe_ebpf::ir::Module;
use kstrobe_ebpf::isa::encode::encode;
use std::cell::RefCell;

#[derive(Default)]
struct World {
    maps: Vec<Map>,
    updates: Vec<(Vec<u8>, Vec<u8>)>,
}

struct Map {
    address: u64,
    key_bytes: usize,
    value_bytes: usize,
    entries: u32,
}

thread_local! {
    // rbpf's helpers are plain functions: this is how they reach the run they belong to.
    static WORLD: RefCell<World> = RefCell::default();
}

fn read(address: u64, bytes: usize) -> Vec<u8> {
    // SAFETY: code under test passes addresses in rbpf's stack or in map memory, both alive during the run.
    unsafe { std::slice::from_raw_parts(address as *const u8, bytes) }.to_vec()
}

fn lookup(map: u64, key: u64, _: u64, _: u64, _: u64) -> u64 {
    WORLD.with_borrow(|world| {
        let map = &world.maps[map as usize];
        let key = read(key, 4);
        let index = u32::from_le_bytes([key[0], key[1], key[2], key[3]]);
        if index < map.entries { map.address + u64::from(index) * map.value_bytes as u64 } else { 0 }
    })
}

fn update(map: u64, key: u64, value: u64, _: u64, _: u64) -> u64 {
    WORLD.with_borrow_mut(|world| {
        let map = &world.maps[map as usize];
        let pair = (read(key, map.key_bytes), read(value, map.value_bytes));
        world.updates.push(pair);
        0
    })
}

fn value<const HELPER: u32>(_: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    answer(HELPER)
}

/// Runs `code` with `ctx` as its context.
pub fn run(code: &Code, module: &Module, ctx: &[u64]) -> Result<Outcome, String> {
    let mut memory: Vec<Vec<u64>> =
        module.layout.maps.iter().map(|map| vec![0; (map.value_bytes * map.entries).div_ceil(8) as usize]).collect();
    let mut rodata = module.rodata.clone();
    let mut ctx = ctx.to_vec();
    let maps = memory.iter_mut().zip(&module.layout.maps).map(|(memory, map)| Map {
        address: memory.as_mut_ptr() as u64,
        key_bytes: map.key_bytes as usize,
        value_bytes: map.value_bytes as usize,
        entries: map.entries,
    });
    WORLD.set(World { maps: maps.collect(), updates: Vec::new() });

    let program = link(code, rodata.as_mut_ptr() as u64);
    let mut vm = rbpf::EbpfVmRaw::new(Some(&program)).map_err(|e| e.to_string())?;
    for (id, helper) in
        [(1, lookup as rbpf::ebpf::Helper), (2, update), (5, value::<5>), (8, value::<8>), (14, value::<14>)]
    {
        vm.register_helper(id, helper).map_err(|e| e.to_string())?;
    }
    let mut allow = |address: u64, bytes: usize| vm.register_allowed_memory(address..address + bytes as u64);
    allow(rodata.as_mut_ptr() as u64, rodata.len());
    allow(ctx.as_mut_ptr() as u64, ctx.len() * 8);
    for words in &mut memory {
        allow(words.as_mut_ptr() as u64, words.len() * 8);
    }
    // SAFETY: the words of `ctx` as bytes; it is not used in any other way until the run is over.
    let bytes = unsafe { std::slice::from_raw_parts_mut(ctx.as_mut_ptr().cast::<u8>(), ctx.len() * 8) };
    let result = vm.execute_program(bytes).map_err(|e| e.to_string())?;
    if result != 0 {
        return Err(format!("returned {result}"));
    }
    let maps = memory.iter().map(|words| words.iter().flat_map(|word| word.to_le_bytes()).collect()).collect();
    Ok(Outcome { maps, updates: WORLD.take().updates })
}

/// Does the loader's work: maps become their numbers, tables their address.
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
        slot += insn.slots();
    }
    encode(&insns)
}
