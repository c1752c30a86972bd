//! A probe in the interpreter: records in, series out. The maps keep their state between records.

use std::time::Duration;

use kstrobe_ebpf::ir::interp::{Environment, Machine, Trap};
use kstrobe_ebpf::ir::{Call, Func, Helper, Module, Op, Stmt};
use kstrobe_ebpf::layout::{Index, Layout, Loss, MapKind, SpanMap, Table};

use crate::config::plan::ProbeMeta;
use crate::metrics::fold::FoldError;
use crate::metrics::labels::Names;
use crate::metrics::series::TableSeries;
use crate::probe::engine::Scrape;
use crate::probe::error::ReadError;
use crate::probe::kernel::series_of;
use kstrobe_export::snapshot::{Family, Moment};

/// A probe at work in the agent.
pub(super) struct Interpreted {
    module: Module,
    machine: Machine,
    tables: Vec<TableSeries>,
    asks_comm: bool,
    asks_pid: bool,
    abandoned: u64,
}

impl Interpreted {
    /// Empty maps. `born` is a moment before the first record.
    pub fn new(meta: &ProbeMeta, module: Module, born: Moment) -> Result<Interpreted, Trap> {
        let mut machine = Machine::new(&module.layout)?;
        for table in &module.layout.tables {
            if let Some((free, slots)) = table.free_at_start() {
                slots.for_each(|slot| _ = machine.push(free, &slot.to_le_bytes()));
            }
        }
        let tables = module.layout.tables.iter().map(|t| series_of(meta, t, born)).collect();
        let asks = |helper| module.funcs.iter().any(|func| calls(func, helper));
        let (asks_comm, asks_pid) = (asks(Helper::GetCurrentComm), asks(Helper::GetCurrentPidTgid));
        Ok(Interpreted { module, machine, tables, asks_comm, asks_pid, abandoned: 0 })
    }

    /// What its maps hold.
    pub fn layout(&self) -> &Layout {
        &self.module.layout
    }

    /// Hooks of its programs, in the order in which they run.
    pub fn funcs(&self) -> &[Func] {
        &self.module.funcs
    }

    /// Whether it reads the task's name, and its ids.
    pub fn asks(&self) -> (bool, bool) {
        (self.asks_comm, self.asks_pid)
    }

    /// Runs one program over a record.
    pub fn run(&mut self, func: usize, environment: &Environment, record: &[u8]) -> Result<(), Trap> {
        self.machine.environment.clone_from(environment);
        self.machine.run(&self.module, func, record)
    }

    /// All series.
    pub fn families(&mut self, scrape: &mut Scrape<'_>) -> Vec<Family> {
        let mut families = Vec::new();
        for (i, table) in self.tables.iter_mut().enumerate() {
            let read = read(&self.machine, &self.module.layout.tables[i], table, scrape.names, scrape.now);
            families.extend(scrape.note(read, |error| ReadError::Series { table: i, error }).unwrap_or_default());
        }
        families
    }

    /// Gives back keys that have not changed for their time to live, and spans older than `age` that never ended.
    pub fn sweep(&mut self, names: &mut Names, now: Moment, now_ns: u64, age: Duration) {
        for (i, series) in self.tables.iter_mut().enumerate().filter(|(_, t)| t.ttl().is_some()) {
            let table = &self.module.layout.tables[i];
            // The time to live counts from the last change, which is seen only by reading.
            if read(&self.machine, table, series, names, now).is_err() {
                continue;
            }
            let Index::Hash { map, free, .. } = table.index else { continue };
            let mut slots = Vec::new();
            for expired in series.tick(now.mono).into_iter().chain(series.ended(names, now.mono)) {
                if (1..table.slots).contains(&expired.slot) && self.machine.delete(map, &expired.key) {
                    slots.push(expired.slot);
                }
            }
            let values: Vec<u64> = words(self.machine.array(table.values)).collect();
            series.evict(&slots, values.as_slice());
            for slot in slots {
                clear(self.machine.array_mut(table.values), table, slot);
                self.machine.push(free, &slot.to_le_bytes());
            }
        }
        let Some(SpanMap { map, .. }) = &self.module.layout.spans else { return };
        let is_hash = self.module.layout.maps.get(map.0 as usize).is_some_and(|def| def.kind == MapKind::Hash);
        if !is_hash {
            return;
        }
        for (key, value) in self.machine.hash(*map) {
            let start = value.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            if now_ns.saturating_sub(start) > age.as_nanos() as u64 && self.machine.delete(*map, &key) {
                self.abandoned += u64::from(start != 0);
            }
        }
    }

    /// What its programs could not measure, by reason.
    pub fn losses(&self) -> Vec<(Loss, u64)> {
        let Some(losses) = &self.module.layout.losses else { return Vec::new() };
        let counts: Vec<u64> = words(self.machine.array(losses.map)).collect();
        let reasons = losses.reasons.iter().enumerate();
        let sum = |at: usize| counts.chunks(losses.reasons.len()).filter_map(|row| row.get(at)).sum::<u64>();
        let evicted = self.module.layout.state.as_ref().map_or(0, |state| self.machine.evicted(state.map));
        let of = |loss: Loss| if loss == Loss::StateEvicted { evicted } else { 0 };
        reasons.map(|(at, reason)| (*reason, sum(at) + of(*reason))).collect()
    }

    /// Whether it has spans, and how many of them never ended.
    pub fn abandoned(&self) -> Option<u64> {
        self.module.layout.spans.as_ref().map(|_| self.abandoned)
    }

    /// Series given back so far.
    pub fn evicted(&self) -> u64 {
        self.tables.iter().map(TableSeries::evicted).sum()
    }
}

fn read(
    machine: &Machine,
    table: &Table,
    series: &mut TableSeries,
    names: &mut Names,
    now: Moment,
) -> Result<Vec<Family>, FoldError> {
    let values: Vec<u64> = words(machine.array(table.values)).collect();
    let index = match table.index {
        Index::Hash { map, .. } => machine.hash(map),
        _ => Vec::new(),
    };
    let slot = |bytes: &[u8]| bytes.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
    let entries = index.iter().filter_map(|(key, value)| Some((key.as_slice(), slot(value)?)));
    series.read(values.as_slice(), entries, names, now)
}

/// Zeroes the records of a slot in all shards.
fn clear(values: &mut [u8], table: &Table, slot: u32) {
    let record_bytes = values.len() / (table.shards * table.slots).max(1) as usize;
    for shard in 0..table.shards {
        let at = (shard * table.slots + slot) as usize * record_bytes;
        values.get_mut(at..at + record_bytes).into_iter().for_each(|record| record.fill(0));
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word))
}

fn calls(func: &Func, helper: Helper) -> bool {
    let is = |call: &Call| call.helper == helper;
    let mut blocks = vec![&func.body];
    while let Some(block) = blocks.pop() {
        for stmt in block {
            match stmt {
                Stmt::Call(call) | Stmt::Set(_, Op::Call(call)) if is(call) => return true,
                Stmt::If { then, otherwise, .. } => blocks.extend([then, otherwise]),
                _ => {}
            }
        }
    }
    false
}
