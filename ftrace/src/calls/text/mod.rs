//! Calls from the text of the function_graph tracer, as people paste it.
//!
//! Three passes, each linear in the text: lines to what they say, blocks that stand there twice, stacks of open calls. What a line says is taken as it is: columns that are missing are not known, and the indentation (two blanks a level, the
//! depth that the kernel recorded) tells where a call belongs when the lines around it are missing:
//!
//! - an exit whose entry is missing is a call with its duration, and with the calls before it that lie deeper;
//! - an entry whose exit is missing is a call without a duration, which is over when a line of its depth or of less follows on its task;
//! - where entries of callers are missing altogether, the nearest caller that is known has the call;
//! - calls of an interrupt that came between a function's entry or exit and the record of it are where they belong by names and durations.
//!
//! What a text does not say is not made up, so some texts give less: two CPUs at work at once without a column that tells them apart; tasks
//! that take turns where neither tasks nor the lines between them are left and no call in which a task waits; repeated blocks in which no
//! durations are, or too few.

mod body;
mod columns;
mod interrupts;
mod line;
mod repeat;
mod stacks;

use super::Calls;
use line::{Line, Reader};

/// Reads a text; what is not understood is counted in [`Calls::damage`].
///
/// Understood are the kernel's `trace` and `trace_pipe` with any of its options, and `trace-cmd report`; quoted, with columns cut off, with
/// lines cut, wrapped, missing, repeated, interleaved or with notes behind them.
pub fn parse(text: &str) -> Calls {
    let mut reader = Reader::new(text);
    let mut lines = Vec::new();
    while let Some(line) = reader.next() {
        if !matches!(line, Line::Nothing | Line::Unknown) {
            lines.push(line);
        }
    }
    let repeated = repeat::remove(&mut lines);
    let mut calls = stacks::build(lines, reader.names);
    (calls.damage.not_understood, calls.not_understood) = reader.not_understood;
    calls.damage.repeated = repeated;
    calls
}
