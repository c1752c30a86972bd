//! What the tests of the compiler's back half share: small modules, a way to run code, and what it should have done.
#![allow(dead_code, reason = "each test binary uses its own part")]

pub mod check;
pub mod eval;
pub mod random;
pub mod span;
pub mod vm;

use kstrobe_ebpf::ir::{Block, Duty, Func, Module};
use kstrobe_ebpf::layout::{Layout, MapDef, MapKind};
use kstrobe_ebpf::typed::Attach;

/// A function at a BTF tracepoint.
pub fn func(vars: u32, slots: &[u32], body: Block) -> Func {
    let attach = Some(Attach::TpBtf { event: "sched_switch".into() });
    Func { name: "test".into(), attach, calls: None, duty: Duty::Always, vars, slots: slots.to_vec(), body }
}

pub fn array(name: &str, value_bytes: u32, entries: u32) -> MapDef {
    MapDef { name: name.into(), kind: MapKind::Array { mmap: false }, key_bytes: 4, value_bytes, entries }
}

/// A module of one function, two array maps and a table of 64 bytes.
pub fn module(func: Func) -> Module {
    let layout = Layout { cpus: 2, maps: vec![array("out", 512, 2), array("small", 16, 3)], ..Layout::default() };
    Module { funcs: vec![func], rodata: (0..64u8).map(|n| n.wrapping_mul(37)).collect(), layout }
}

/// What a run left behind, and what it told its helpers.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Outcome {
    /// Memory of each map.
    pub maps: Vec<Vec<u8>>,
    /// Bytes of key and value of each update, in order.
    pub updates: Vec<(Vec<u8>, Vec<u8>)>,
}

/// What the helper with this number answers, if it takes no arguments. Always the same: a call whose result nobody reads
/// may be left out.
pub fn answer(helper: u32) -> u64 {
    u64::from(helper).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
