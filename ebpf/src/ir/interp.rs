//! The reference meaning of the IR: a machine that runs a function over plain memory.
//!
//! Pointers are numbers in address ranges that no kernel or process uses, so that a stray one is noticed. Whatever the
//! kernel's verifier would refuse (an access outside its object or misaligned, a variable or stack byte read before it
//! is written, a null or foreign pointer) is a [`Trap`], never a panic. The agent also runs poll rows through it.

mod alu;
mod calls;
mod environment;
mod frame;
mod maps;
#[cfg(test)]
mod tests;

pub use environment::{Environment, Memory};

use super::{Block, Module, Op, Size, Space, Stmt};
use crate::layout::{Layout, MapId, MapKind};
use frame::Frame;
use maps::Map;
use std::fmt;
use std::ops::ControlFlow;

/// The program did what the kernel's verifier would have refused: an error in the compiler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trap {
    /// What happened.
    pub message: String,
}

impl Trap {
    fn new(message: impl Into<String>) -> Trap {
        Trap { message: message.into() }
    }
}

impl fmt::Display for Trap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Trap {}

/// Address ranges; bits 63..60 are never 0 or 15 as in real addresses.
const CTX_BASE: u64 = 0x1000_0000_0000_0000;
const RODATA_BASE: u64 = 0x2000_0000_0000_0000;
const VALUE_BASE: u64 = 0x4000_0000_0000_0000;
/// A map value's address: base, map id from bit 48, element from bit 20, and the offset in the value with room around it,
/// so that arithmetic which leaves a value does not land in its neighbour.
const MAP_SHIFT: u32 = 48;
const ELEMENT_SHIFT: u32 = 20;
const MAX_VALUE_BYTES: u32 = 1 << (ELEMENT_SHIFT - 1);
const MAX_MAPS: usize = 1 << (60 - MAP_SHIFT);
const MAX_ENTRIES: u32 = 1 << (MAP_SHIFT - ELEMENT_SHIFT);
/// Deeper blocks trap, so that recursion cannot exhaust the thread's stack; `ir::verify` allows fewer.
const MAX_DEPTH: u32 = 256;

/// Maps with their contents, and the world around the program.
#[derive(Clone, Debug)]
pub struct Machine {
    /// What helpers answer. Free to change between runs.
    pub environment: Environment,
    maps: Vec<Map>,
    frame: Frame,
}

/// What one run reads but does not change.
struct Code<'a> {
    rodata: &'a [u8],
    ctx: &'a [u8],
}

type Step = Result<ControlFlow<()>, Trap>;

impl Machine {
    /// Empty maps of this layout; arrays are zeroed.
    pub fn new(layout: &Layout) -> Result<Machine, Trap> {
        if layout.maps.len() > MAX_MAPS {
            return Err(Trap::new(format!("{} maps; at most {MAX_MAPS}", layout.maps.len())));
        }
        for def in &layout.maps {
            if def.value_bytes > MAX_VALUE_BYTES || def.entries > MAX_ENTRIES {
                return Err(Trap::new(format!("map {} is too large for the interpreter", def.name)));
            }
        }
        let maps = layout.maps.iter().map(Map::new).collect::<Result<_, _>>()?;
        Ok(Machine { environment: Environment::default(), maps, frame: Frame::default() })
    }

    /// Runs one function to its end. What it did to maps before a trap stays done.
    pub fn run(&mut self, module: &Module, func: usize, ctx: &[u8]) -> Result<(), Trap> {
        let func = module.funcs.get(func).ok_or_else(|| Trap::new(format!("no function {func}")))?;
        self.frame.enter(func, CTX_BASE)?;
        let code = Code { rodata: &module.rodata, ctx };
        let _: ControlFlow<()> = self.block(&code, &func.body, 0)?;
        Ok(())
    }

    /// All elements of an array map back to back, each rounded up to 8 bytes. Empty for other kinds of map.
    pub fn array(&self, map: MapId) -> &[u8] {
        match self.maps.get(map.0 as usize) {
            Some(map) if matches!(map.def.kind, MapKind::Array { .. }) => &map.values,
            _ => &[],
        }
    }

    /// As [`Machine::array`], to clear records.
    pub fn array_mut(&mut self, map: MapId) -> &mut [u8] {
        match self.maps.get_mut(map.0 as usize) {
            Some(map) if matches!(map.def.kind, MapKind::Array { .. }) => &mut map.values,
            _ => &mut [],
        }
    }

    /// Keys and values of a hash map, by ascending key bytes. Empty for other kinds of map.
    pub fn hash(&self, map: MapId) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.maps.get(map.0 as usize).map(Map::entries).unwrap_or_default()
    }

    /// Keys of an LRU hash that made room for others so far.
    pub fn evicted(&self, map: MapId) -> u64 {
        self.maps.get(map.0 as usize).map_or(0, Map::evicted)
    }

    /// What tasks stored, by ascending task address. Empty for other kinds of map.
    pub fn task_storage(&self, map: MapId) -> Vec<(u64, Vec<u8>)> {
        self.maps.get(map.0 as usize).map(Map::tasks).unwrap_or_default()
    }

    /// Puts a value on a stack map; false when it is full or no stack.
    pub fn push(&mut self, map: MapId, value: &[u8]) -> bool {
        self.maps.get_mut(map.0 as usize).is_some_and(|map| map.push(value, 0) == 0)
    }

    /// Puts an entry into a hash; whether there was room.
    pub fn insert(&mut self, map: MapId, key: &[u8], value: &[u8]) -> bool {
        self.maps.get_mut(map.0 as usize).is_some_and(|map| map.update(key, value, 0) == 0)
    }

    /// Removes a key from a hash map; false when it is not there.
    pub fn delete(&mut self, map: MapId, key: &[u8]) -> bool {
        self.maps.get_mut(map.0 as usize).is_some_and(|map| map.delete(key) == 0)
    }

    /// Takes the records that were sent to a buffer, oldest first. Empty for other kinds of map.
    pub fn take_records(&mut self, map: MapId) -> Vec<Vec<u8>> {
        self.maps.get_mut(map.0 as usize).map(Map::take_records).unwrap_or_default()
    }

    /// Frees the storage of a task in all maps, as its exit does.
    pub fn forget_task(&mut self, task: u64) {
        self.maps.iter_mut().for_each(|map| map.forget_task(task));
    }

    fn block(&mut self, code: &Code<'_>, block: &Block, depth: u32) -> Step {
        if depth > MAX_DEPTH {
            return Err(Trap::new(format!("blocks nest more than {MAX_DEPTH} deep")));
        }
        for stmt in block {
            if self.stmt(code, stmt, depth)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn stmt(&mut self, code: &Code<'_>, stmt: &Stmt, depth: u32) -> Step {
        match stmt {
            Stmt::Mark { .. } => {}
            Stmt::Set(var, op) => {
                let value = self.op(code, op)?;
                self.frame.set(*var, value)?;
            }
            Stmt::Call(call) => {
                self.call(code, call)?;
            }
            Stmt::Store { ptr, offset, size, value } => {
                let (address, value) = (self.frame.var(*ptr)?, self.frame.operand(*value)?);
                let bytes = self.value_bytes(address, *offset, *size)?;
                bytes.copy_from_slice(&value.to_le_bytes()[..bytes.len()]);
            }
            Stmt::Add { ptr, offset, value, atomic: _ } => {
                let (address, value) = (self.frame.var(*ptr)?, self.frame.operand(*value)?);
                let bytes = self.value_bytes(address, *offset, Size::B8)?;
                let sum = little_endian(bytes).wrapping_add(value);
                bytes.copy_from_slice(&sum.to_le_bytes());
            }
            Stmt::StoreSlot { slot, offset, size, value } => {
                aligned(u64::from(*offset), *size)?;
                let value = self.frame.operand(*value)?;
                let bytes = self.frame.write(*slot, *offset, size.bytes())?;
                bytes.copy_from_slice(&value.to_le_bytes()[..bytes.len()]);
            }
            Stmt::If { cond, then, otherwise } => {
                let branch = if self.frame.holds(*cond)? { then } else { otherwise };
                return self.block(code, branch, depth + 1);
            }
            Stmt::Return => return Ok(ControlFlow::Break(())),
        }
        Ok(ControlFlow::Continue(()))
    }

    fn op(&mut self, code: &Code<'_>, op: &Op) -> Result<u64, Trap> {
        Ok(match op {
            Op::Copy(value) => self.frame.operand(*value)?,
            Op::Alu(op, a, b) => alu::alu64(*op, self.frame.var(*a)?, self.frame.operand(*b)?),
            Op::Alu32(op, a, b) => alu::alu32(*op, self.frame.var(*a)? as u32, self.frame.operand(*b)? as u32).into(),
            Op::Extend { a, bits, signed } => alu::extend(self.frame.var(*a)?, *bits, *signed)?,
            Op::Swap { a, bits } => alu::swap(self.frame.var(*a)?, *bits)?,
            Op::Load { ptr, offset, size, space } => {
                let address = self.frame.var(*ptr)?;
                self.load(code, address, *offset, *size, *space)?
            }
            Op::LoadSlot { slot, offset, size } => {
                aligned(u64::from(*offset), *size)?;
                little_endian(self.frame.read(*slot, *offset, size.bytes())?)
            }
            Op::FetchAdd { ptr, offset, value } => {
                let (address, value) = (self.frame.var(*ptr)?, self.frame.operand(*value)?);
                let bytes = self.value_bytes(address, *offset, Size::B8)?;
                let before = little_endian(bytes);
                bytes.copy_from_slice(&before.wrapping_add(value).to_le_bytes());
                before
            }
            Op::Rodata(offset) => {
                if *offset as usize >= code.rodata.len() {
                    return Err(Trap::new(format!("rodata + {offset} is past its {} bytes", code.rodata.len())));
                }
                RODATA_BASE + u64::from(*offset)
            }
            Op::Call(call) => self.call(code, call)?,
        })
    }

    fn load(&mut self, code: &Code<'_>, address: u64, offset: i32, size: Size, space: Space) -> Result<u64, Trap> {
        match space {
            Space::Ctx => within(code.ctx, CTX_BASE, address, offset, size, "the context"),
            Space::Rodata => within(code.rodata, RODATA_BASE, address, offset, size, "read-only data"),
            Space::Value => Ok(little_endian(self.value_bytes(address, offset, size)?)),
            Space::Kernel => {
                if address == 0 {
                    return Ok(0);
                }
                let address = address.wrapping_add_signed(i64::from(offset));
                Ok(self.environment.kernel.read(address, size.bytes() as usize).map_or(0, little_endian))
            }
        }
    }

    /// The bytes behind a map value pointer.
    fn value_bytes(&mut self, address: u64, offset: i32, size: Size) -> Result<&mut [u8], Trap> {
        if address == 0 {
            return Err(Trap::new("access through a null map value"));
        }
        let address = address.wrapping_add_signed(i64::from(offset));
        let Some(place) = address.checked_sub(VALUE_BASE).filter(|place| place >> 60 == 0) else {
            return Err(Trap::new(format!("{address:#x} is no map value")));
        };
        let (map, element) = ((place >> MAP_SHIFT) as usize, (place >> ELEMENT_SHIFT) as u32 & (MAX_ENTRIES - 1));
        let from = (place & ((1 << ELEMENT_SHIFT) - 1)) as usize;
        aligned(from as u64, size)?;
        let value = self.maps.get_mut(map).and_then(|map| map.value_mut(element));
        let value = value.ok_or_else(|| Trap::new(format!("{address:#x} is in no map")))?;
        let length = value.len();
        value.get_mut(from..from + size.bytes() as usize).ok_or_else(|| {
            Trap::new(format!("access of {} bytes at {from} of a {length}-byte map value", size.bytes()))
        })
    }
}

/// A load from bytes that start at `base`.
fn within(bytes: &[u8], base: u64, address: u64, offset: i32, size: Size, what: &str) -> Result<u64, Trap> {
    let from = address.wrapping_sub(base).wrapping_add_signed(i64::from(offset));
    aligned(from, size)?;
    let found = usize::try_from(from).ok().and_then(|from| bytes.get(from..)?.get(..size.bytes() as usize));
    found.map(little_endian).ok_or_else(|| {
        let from = from as i64;
        Trap::new(format!("load of {} bytes at {from} of {what}, which has {}", size.bytes(), bytes.len()))
    })
}

fn aligned(at: u64, size: Size) -> Result<(), Trap> {
    match at % u64::from(size.bytes()) {
        0 => Ok(()),
        _ => Err(Trap::new(format!("access of {} bytes at {at} is not aligned", size.bytes()))),
    }
}

/// Up to 8 bytes as a number.
fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}
