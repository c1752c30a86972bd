//! Names of functions, modules and tasks of a recorded trace.

use super::{NameId, Names, Task};
use crate::symbols::Symbols;
use crate::trace::Trace;

impl Names {
    /// Name and module of the function at an address; the address in hexadecimal where no symbol is known.
    pub(super) fn function(&mut self, symbols: &Symbols, address: u64) -> (NameId, Option<NameId>) {
        match symbols.find(address) {
            Some(symbol) => (self.id(&symbol.name), symbol.module.as_ref().map(|module| self.id(module))),
            None => (self.id(&format!("0x{address:x}")), None),
        }
    }

    /// A thread with its name, when the trace has it.
    pub(super) fn task(&mut self, trace: &Trace, pid: i32) -> Task {
        let comm = match pid {
            // As the kernel's own text calls it.
            0 => Some("<idle>"),
            _ => trace.comms.get(&pid).map(String::as_str),
        };
        Task { pid, comm: comm.map(|comm| self.id(comm)) }
    }
}
