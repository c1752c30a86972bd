//! Events as text, by the print formats that the kernel tells with them.
//!
//! A `print fmt` is a `printf` format and C expressions over the record. It is compiled once, when the first event of its kind comes.
//! What it cannot say without the kernel (a function's result, the value of an enumerator) makes the whole text the fields' values.

mod calls;
mod conversion;
mod eval;
mod fields;
mod lexer;
mod parse;
mod pointer;
mod program;
mod show;
mod types;

use crate::format::EventFormat;
use crate::trace::{Event, Trace};
use program::Program;
use show::{Compiled, Stored, show};
use std::collections::HashMap;

/// Writes what events say.
#[derive(Clone, Debug)]
pub struct Printer<'a> {
    trace: &'a Trace,
    /// By event id, as far as events came; a program of `None` is not understood.
    programs: Vec<Option<Option<Program>>>,
    /// By address; `None` is not understood.
    printk: HashMap<u64, Option<Vec<program::Piece>>>,
    not_understood: Vec<String>,
    incomplete: u64,
}

impl<'a> Printer<'a> {
    /// For the events of a trace.
    pub fn new(trace: &'a Trace) -> Printer<'a> {
        Printer { trace, programs: Vec::new(), printk: HashMap::new(), not_understood: Vec::new(), incomplete: 0 }
    }

    /// Appends what the kernel would print of an event, without its name and the end of the line.
    pub fn print(&mut self, event: &Event<'_>, out: &mut String) {
        let Some(format) = event.format else {
            fields::unknown(event.data, out);
            return;
        };
        let refused = &mut self.not_understood;
        let id = usize::from(format.id);
        if self.programs.len() <= id {
            self.programs.resize(id + 1, None);
        }
        let Some(program) = self.programs[id].get_or_insert_with(|| compile(format, refused)) else {
            return fields::all(format, event.data, out);
        };
        let start = out.len();
        let record = eval::Record { program, format, data: event.data };
        if show(&program.pieces, &mut Compiled { record, next: 0 }, self.trace, out).is_err() {
            self.incomplete += 1;
            out.truncate(start);
            fields::all(format, event.data, out);
        }
    }

    /// Appends the fields of an event as they are: `name=value`.
    pub fn fields(&self, event: &Event<'_>, out: &mut String) {
        match event.format {
            Some(format) => fields::all(format, event.data, out),
            None => fields::unknown(event.data, out),
        }
    }

    /// Appends the text of a `trace_printk` record (`ftrace:bprint`): its format stands in the kernel, its arguments behind it.
    pub(crate) fn printk(&mut self, address: u64, arguments: &[u8], out: &mut String) {
        let (trace, refused) = (self.trace, &mut self.not_understood);
        let pieces = self.printk.entry(address).or_insert_with(|| {
            let text = trace.printk.get(&address);
            let pieces = text.ok_or_else(|| "its format is not in the trace".to_owned());
            let pieces = pieces.and_then(|text| conversion::pieces(text.as_bytes()));
            pieces.map_err(|why| refused.push(format!("trace_printk at {address:#x}: {why}"))).ok()
        });
        let shown = match pieces {
            Some(pieces) => show(pieces, &mut Stored { bytes: arguments, at: 0 }, trace, out),
            None => Err("no format"),
        };
        if shown.is_err() {
            self.incomplete += u64::from(pieces.is_some());
            out.push_str(&format!("[format at {address:#x}, arguments {}]", pointer::hex(arguments, " ")));
        }
    }

    /// Events whose print format was not understood, with the reason. They are written as `name=value`; when it says `left out`, only
    /// that is missing: numbers stand for their names, and `?` for addresses.
    pub fn not_understood(&self) -> &[String] {
        &self.not_understood
    }

    /// Records that were too short for their print format, or to whose values it does not apply: written as `name=value`.
    pub fn incomplete(&self) -> u64 {
        self.incomplete
    }
}

/// Whether the print format of an event is understood; `Err` has the reason when something in it is not.
pub fn understood(format: &EventFormat) -> Result<(), String> {
    match parse::compile(format)?.unknown.first() {
        Some(why) => Err(format!("{why}: left out")),
        None => Ok(()),
    }
}

fn compile(format: &EventFormat, refused: &mut Vec<String>) -> Option<Program> {
    let mut refuse = |why: &str| refused.push(format!("{}:{}: {why}", format.system, format.name));
    match parse::compile(format) {
        Ok(program) => {
            if let Some(why) = program.unknown.first() {
                refuse(&format!("{why}: left out"));
            }
            Some(program)
        }
        Err(why) => {
            refuse(&why);
            None
        }
    }
}
