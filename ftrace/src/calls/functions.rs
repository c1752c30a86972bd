//! Calls from the records of the function tracer, which tell who called whom but not when a function was left.

use super::{Call, CallId, Calls, Ends};
use crate::format::Field;
use crate::page::Lost;
use crate::symbols::Symbols;
use crate::trace::{Event, Trace};
use std::collections::HashMap;

/// Nests the calls of each task by their callers.
///
/// A call is in the last call of its caller's function that is not known to be over; when there is none, it is a root. Calls have no durations,
/// and none counts as damage for that.
pub fn nest(trace: &Trace) -> Calls {
    let format = trace.formats.named("ftrace", "function");
    let fields = format.and_then(|format| Some((format.id, format.field("ip")?, format.field("parent_ip")?)));
    let mut calls = Calls::default();
    // By buffer, task and, of idle tasks, CPU: calls and functions from the root inwards.
    let mut open: HashMap<(usize, i32, u32), Vec<(CallId, u64)>> = HashMap::new();
    let mut events = trace.events();
    for event in events.by_ref() {
        if event.lost != Lost::Nothing {
            calls.damage.lost += if let Lost::Count(count) = event.lost { count } else { 1 };
            // A function called in between may be the caller.
            open.clear();
        }
        let Some((_, ip, parent)) = fields.filter(|(id, ..)| event.format.is_some_and(|format| format.id == *id))
        else {
            continue;
        };
        let start = |field: &Field| function(&trace.symbols, field.value(event.data)?.bits()?);
        let Some((function, caller)) = start(ip).zip(start(parent)) else {
            calls.damage.not_understood += 1;
            continue;
        };
        let stack = open.entry(key(&event)).or_default();
        let at = stack.iter().rposition(|(_, open)| *open == caller);
        let parent = at.map(|at| stack[at].0);
        match at {
            // What was called after it is over.
            Some(at) => stack.truncate(at + 1),
            // Its caller is not traced: which calls have ended is unknown.
            None if stack.len() >= REMEMBERED => drop(stack.remove(0)),
            None => {}
        }
        let id = CallId(calls.calls.len() as u32);
        stack.push((id, function));
        let call = call(&mut calls, trace, &event, function, parent);
        calls.calls.push(call);
        match parent {
            Some(parent) => calls.calls[parent.0 as usize].children.push(id),
            None => calls.roots.push(id),
        }
    }
    calls.damage.not_understood += events.unreadable().len() as u64;
    calls
}

/// Calls of a task that may be callers: kernel stacks are not deeper.
const REMEMBERED: usize = 128;

fn key(event: &Event<'_>) -> (usize, i32, u32) {
    let pid = event.pid();
    (event.buffer, pid, if pid == 0 { event.cpu } else { 0 })
}

/// Where the function of an address begins: a caller's address is behind its call, a function's may be behind its first instruction.
fn function(symbols: &Symbols, address: u64) -> Option<u64> {
    Some(symbols.find(address).map_or(address, |symbol| symbol.address))
}

fn call(calls: &mut Calls, trace: &Trace, event: &Event<'_>, function: u64, parent: Option<CallId>) -> Call {
    let (name, module) = calls.names.function(&trace.symbols, function);
    Call {
        function: Some(name),
        module,
        task: Some(calls.names.task(trace, event.pid())),
        cpu: Some(event.cpu),
        start_ns: Some(event.time),
        duration_ns: None,
        parent,
        children: Vec::new(),
        ends: Ends::Entry,
        interrupt: false,
        arguments: None,
        returned: None,
    }
}
