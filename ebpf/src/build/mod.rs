//! Typed probe -> IR: decides the memory ([`memory`]), then writes one function per attach point ([`site`], [`span`], [`steps`]) out of
//! expressions ([`expr`], [`arith`], [`condition`], [`text`]) and measurements ([`measure`]).
//!
//! The rules of a cheap event: what selects events comes before any map access; a value is computed only where a metric
//! reads it, once; metrics that share labels share one lookup; a word that only one program on one CPU writes is added to
//! without atomics.

mod arith;
mod cgroups;
mod condition;
mod control;
mod descriptor;
mod expr;
mod func;
mod measure;
mod memory;
mod open_tasks;
mod shards;
mod site;
mod slow;
mod span;
mod stacks;
mod steps;
mod text;

use std::cell::Cell;
use std::collections::HashMap;

use crate::buckets::{Scheme, Tables};
use crate::diag::{Diagnostic, Place};
use crate::ir::{Func, MAX_STACK_BYTES, Module};
use crate::kernel_target::{Btf, Target, btf};
use crate::layout::{CellKind, Layout};
use crate::source::TextId;
use crate::typed::{Probe, Shape};
use crate::unwind;

/// 1-based line and column of each text, for the kernel's line info.
pub type Lines = HashMap<TextId, (u32, u32)>;

/// Writes the programs of a checked probe. Also tells whether some read goes through a helper only because the kernel has no
/// cast that would let it be a plain load.
pub fn build(probe: Probe, target: &Target, lines: &Lines) -> Result<(Module, bool), Vec<Diagnostic>> {
    if matches!(&probe.shape, Shape::At(sites) if sites.is_empty()) {
        let layout = Layout { cpus: target.cpus.max(1), ..Layout::default() };
        return Ok((Module { funcs: Vec::new(), rodata: Vec::new(), layout }, false));
    }
    let memory = memory::plan(&probe, target)?;
    let (mut rodata, tables) = bucket_tables(&memory);
    let shard_rules = shard_rules(&memory.layout, &mut rodata);
    let context = Context { probe: &probe, memory: &memory, lines, tables, shard_rules, kernel: Kernel::of(target) };
    let funcs = match &probe.shape {
        Shape::At(sites) => site::at(&context, sites),
        Shape::Poll { filter, measures, .. } => site::poll(&context, filter.as_ref(), measures),
        Shape::Span { .. } => span::span(&context),
        Shape::Steps { .. } => steps::steps(&context),
    };
    let funcs: Vec<Func> = funcs.map_err(|e| vec![e])?;
    let place = probe.metrics.first().map(|m| m.place).unwrap_or_default();
    let walks = memory.layout.stacks.as_ref().is_some_and(|stacks| stacks.unwound.is_some());
    let limit = if walks { MAX_STACK_BYTES - unwind::STACK_BYTES } else { MAX_STACK_BYTES };
    if let Some(error) = funcs.iter().find_map(|func| check_stack(func, limit, place)) {
        return Err(vec![error]);
    }
    let missed_casts = context.kernel.missed_casts.get();
    let layout = memory.layout;
    Ok((Module { funcs, rodata, layout }, missed_casts))
}

fn check_stack(func: &Func, limit: u32, place: Place) -> Option<Diagnostic> {
    let bytes: u32 = func.slots.iter().sum();
    (bytes > limit).then(|| {
        let message = format!("program `{}` needs {bytes} bytes of stack, it may have {limit}", func.name);
        Diagnostic::limit(place, message)
            .hint("use fewer or shorter strings in labels, keys, conditions, saved values and fields of `slow`")
    })
}

/// What every function of a probe is written from.
struct Context<'a> {
    probe: &'a Probe,
    memory: &'a memory::Memory,
    lines: &'a Lines,
    /// Where the bucket tables of each histogram cell start in rodata, by metric.
    tables: HashMap<u32, Tables>,
    /// How the shard of a CPU is found, by number of shards, where it is not `cpu % shards`.
    shard_rules: HashMap<u32, ShardRule>,
    kernel: Kernel<'a>,
}

/// The facts of the target that decide how memory is read.
struct Kernel<'a> {
    btf: Option<&'a Btf>,
    rdonly_cast: bool,
    /// Whether a read would have used the cast if there were one.
    missed_casts: Cell<bool>,
    /// `bpf_get_current_task_btf` works.
    task_btf: bool,
}

impl<'a> Kernel<'a> {
    fn of(target: &'a Target) -> Self {
        let btf = target.btf.as_ref();
        let kfunc = btf.is_some_and(|b| b.find("bpf_rdonly_cast", btf::Kind::Func).is_some());
        let abilities = &target.abilities;
        let (rdonly_cast, task_btf) = (kfunc && abilities.rdonly_cast.yes(), abilities.current_task_btf.yes());
        Kernel { btf, rdonly_cast, missed_casts: Cell::new(false), task_btf }
    }
}

/// Bucket tables, once per distinct scheme.
fn bucket_tables(memory: &memory::Memory) -> (Vec<u8>, HashMap<u32, Tables>) {
    let mut rodata = Vec::new();
    let mut done: Vec<(&Scheme, Tables)> = Vec::new();
    let mut tables = HashMap::new();
    for cell in memory.layout.tables.iter().flat_map(|t| &t.cells) {
        if let CellKind::Histogram(scheme) = &cell.kind {
            let known = done.iter().find(|(s, _)| **s == **scheme).map(|(_, at)| *at);
            let at = known.unwrap_or_else(|| {
                let at = scheme.append_rodata(&mut rodata);
                done.push((scheme, at));
                at
            });
            tables.insert(cell.metric, at);
        }
    }
    (rodata, tables)
}

/// How the shard of a CPU is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShardRule {
    /// `cpu >> shift & (shards - 1)`
    Bits { shift: u32 },
    /// A u16 for each CPU, from this place in rodata on.
    Rodata(u32),
}

fn shard_rules(layout: &Layout, rodata: &mut Vec<u8>) -> HashMap<u32, ShardRule> {
    let rule = |(shards, shard_of): (&u32, &Vec<u32>)| {
        let rule = shards::shift(shard_of, *shards).map_or_else(
            || {
                rodata.resize(rodata.len().next_multiple_of(2), 0);
                let at = rodata.len() as u32;
                rodata.extend(shard_of.iter().flat_map(|shard| (*shard as u16).to_le_bytes()));
                ShardRule::Rodata(at)
            },
            |shift| ShardRule::Bits { shift },
        );
        (*shards, rule)
    };
    layout.shard_of.iter().map(rule).collect()
}

#[cfg(test)]
mod tests;
