//! One event, whether it was read from a record or from text.

use crate::calls::{Calls, Mark};
use crate::page::Lost;
use crate::trace::{Event, Trace};
use std::borrow::Cow;
use std::sync::Arc;

/// One event of a capture.
#[derive(Clone, Copy, Debug)]
pub struct Happening<'a> {
    /// When, nanoseconds of the trace's clock.
    pub time_ns: u64,
    /// Where.
    pub cpu: u32,
    /// The thread it happened in; `None` when the trace does not say.
    pub pid: Option<i32>,
    /// Records of its CPU were lost just before it.
    pub lost: bool,
    source: Source<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Source<'a> {
    Record(&'a Trace, Event<'a>),
    Text(&'a Mark),
}

/// The events of a trace by time; those without a format are left out (the summary counts them).
pub fn of_trace(trace: &Trace) -> impl Iterator<Item = Happening<'_>> {
    // What is lost before an event that is left out is lost before the next one of its CPU.
    let mut lost_before: Vec<(usize, u32)> = Vec::new();
    trace.events().filter_map(move |event| {
        let place = (event.buffer, event.cpu);
        let before = lost_before.iter().position(|one| *one == place);
        let lost = event.lost != Lost::Nothing || before.is_some();
        if event.format.is_none() {
            if lost && before.is_none() {
                lost_before.push(place);
            }
            return None;
        }
        if let Some(before) = before {
            lost_before.swap_remove(before);
        }
        let source = Source::Record(trace, event);
        Some(Happening { time_ns: event.time, cpu: event.cpu, pid: Some(event.pid()), lost, source })
    })
}

/// The events between calls, as far as their time and CPU are known.
pub fn of_marks(calls: &Calls) -> impl Iterator<Item = Happening<'_>> {
    calls.marks.iter().filter_map(|mark| {
        let (time_ns, cpu) = (mark.time_ns?, mark.cpu?);
        (!mark.event.is_empty()).then_some(Happening {
            time_ns,
            cpu,
            pid: None,
            lost: false,
            source: Source::Text(mark),
        })
    })
}

impl<'a> Happening<'a> {
    /// The event's name, e.g. `sched_switch`.
    pub fn name(&self) -> &'a str {
        match self.source {
            Source::Record(_, event) => event.format.map_or("", |format| &format.name),
            Source::Text(mark) => &mark.event,
        }
    }

    /// The event's subsystem; empty when the trace does not say.
    pub fn system(&self) -> &'a str {
        match self.source {
            Source::Record(_, event) => event.format.map_or("", |format| &format.system),
            Source::Text(_) => "",
        }
    }

    /// How the kernel prints the event; empty when the trace does not say.
    pub fn print(&self) -> &'a str {
        match self.source {
            Source::Record(_, event) => event.format.map_or("", |format| &format.print),
            Source::Text(_) => "",
        }
    }

    /// A number of it; signed ones as their 64 bits.
    pub fn number(&self, field: &str) -> Option<u64> {
        match self.source {
            Source::Record(_, event) => event.number(field),
            Source::Text(mark) => number(value(&mark.text, field)?),
        }
    }

    /// A thread id in it.
    pub fn pid_in(&self, field: &str) -> Option<i32> {
        // Text has the sign, records have 64 bits of it: both end in the same 32.
        self.number(field).map(|pid| pid as i32)
    }

    pub fn text(&self, field: &str) -> Option<Cow<'a, str>> {
        match self.source {
            Source::Record(_, event) => event.value(field)?.text(),
            Source::Text(mark) => value(&mark.text, field).map(Cow::Borrowed),
        }
    }

    /// The functions of a recorded stack, the innermost first.
    pub fn stack(&self) -> Vec<Arc<str>> {
        let Source::Record(trace, event) = self.source else { return Vec::new() };
        let Some(addresses) = event.value("caller") else { return Vec::new() };
        let name = |address: u64| match trace.symbols.find(address) {
            Some(symbol) => symbol.name.clone(),
            None => format!("{address:#x}").into(),
        };
        // The kernel ends a stack that is shorter than its record with all ones, or zero.
        addresses.elements().take_while(|address| *address != 0 && *address != u64::MAX).map(name).collect()
    }

    /// The name of a thread as the trace knows it.
    pub fn comm_of(&self, pid: i32) -> Option<&'a str> {
        match self.source {
            Source::Record(trace, _) => trace.comms.get(&pid).map(String::as_str),
            Source::Text(_) => None,
        }
    }
}

/// The value of `field=value` in the text of an event: up to the next field, since names of threads may hold spaces.
fn value<'a>(text: &'a str, field: &str) -> Option<&'a str> {
    let starts = text.match_indices(field).find(|(at, _)| {
        let before = text[..*at].chars().next_back();
        text[at + field.len()..].starts_with('=') && before.is_none_or(|before| before.is_whitespace())
    });
    let rest = &text[starts?.0 + field.len() + 1..];
    let is_field = |word: &str| {
        let name = word.split_once('=').map(|(name, _)| name);
        word == "==>"
            || name.is_some_and(|name| {
                !name.is_empty() && name.bytes().all(|byte| byte == b'_' || byte.is_ascii_alphanumeric())
            })
    };
    let mut end = 0;
    for word in rest.split_inclusive(' ') {
        if end > 0 && is_field(word.trim_end()) {
            break;
        }
        end += word.len();
    }
    Some(rest[..end].trim())
}

fn number(text: &str) -> Option<u64> {
    let word = text.split_ascii_whitespace().next()?;
    if let Some(hex) = word.strip_prefix("0x") {
        return u64::from_str_radix(hex, 16).ok();
    }
    let signed = word.parse::<i64>().map(|number| number as u64);
    signed.or_else(|_| word.parse()).or_else(|_| u64::from_str_radix(word, 16)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_end_where_the_next_field_begins() {
        let text = "prev_comm=my own task prev_pid=-7 prev_state=R+ ==> next_comm=a=b next_pid=12 skbaddr=00000000ab [action=RCU]";
        assert_eq!(value(text, "prev_comm"), Some("my own task"));
        assert_eq!(value(text, "pid"), None);
        assert_eq!(value(text, "prev_state"), Some("R+"));
        assert_eq!(value(text, "next_comm"), Some("a=b"));
        assert_eq!(number(value(text, "prev_pid").unwrap()), Some(-7_i64 as u64));
        assert_eq!(number(value(text, "skbaddr").unwrap()), Some(0xab));
        assert_eq!(value("comm", "comm"), None);
        assert_eq!(value("comm=", "comm"), Some(""));
    }
}
