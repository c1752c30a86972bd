//! Calls as a picture over time: one HTML file that needs nothing else, no network either.
//!
//! Each thread is a row, calls are boxes in it, callees under their callers. The file holds the longest calls up to a number, and says
//! how many it left out.

mod layout;
#[cfg(test)]
mod tests;

use crate::calls::{Call, Calls, Ends};
use layout::{Place, RowKey};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::io::{self, Write};

/// Boxes below one another, at most: the kernel follows no more than 50 calls, and interrupts come on top.
const MAX_DEPTH: u32 = 128;
/// Where a thread is off its CPU.
const WAITS: [&str; 8] = [
    "schedule",
    "__schedule",
    "schedule_idle",
    "schedule_rtlock",
    "preempt_schedule",
    "preempt_schedule_common",
    "preempt_schedule_irq",
    "preempt_schedule_notrace",
];

/// How the picture is made.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// What stands above it.
    pub title: &'a str,
    pub most_calls: usize,
    /// What a call is coloured by.
    pub group: &'a dyn Fn(&Calls, &Call) -> String,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Options { title: "Kernel calls", most_calls: 20_000, group: &module_or_prefix }
    }
}

/// The module of a call, or the first word of its function's name: `tcp` of `tcp_recvmsg`.
pub fn module_or_prefix(calls: &Calls, call: &Call) -> String {
    if let Some(module) = call.module {
        return calls.names[module].to_string();
    }
    let name = call.function.map_or("", |function| &calls.names[function]).trim_start_matches('_');
    name.split(['_', '.']).next().unwrap_or_default().to_owned()
}

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Calls in the picture.
    pub shown: usize,
    /// Calls that are not.
    pub left_out: usize,
    /// How long the longest of those took, nanoseconds.
    pub longest_left_out_ns: u64,
    pub bytes: u64,
}

/// What the page's script reads.
#[derive(Serialize)]
struct Data<'a> {
    /// Of the trace's clock; as text, as a script's numbers end at 53 bits.
    origin_ns: String,
    /// From the origin.
    end_ns: u64,
    names: Vec<&'a str>,
    groups: Vec<String>,
    rows: Vec<Row>,
    shown: usize,
    left_out: usize,
    longest_left_out_ns: u64,
    /// Records that the kernel lost, and lines or records that were not understood.
    lost: u64,
    not_understood: u64,
}

#[derive(Serialize)]
struct Row {
    name: String,
    /// Boxes below one another.
    depth: u32,
    /// By start: name, group, depth, start from the origin, duration, time in none of its calls (nanoseconds), and flags.
    calls: Vec<(u32, u32, u32, u64, u64, u64, u8)>,
}

/// Flag of a call that is a wait.
const WAIT: u8 = 1;
/// Flag of a call that an interrupt began.
const INTERRUPT: u8 = 2;
/// Flag of a call whose start is not recorded, but laid out.
const START_UNKNOWN: u8 = 4;
/// Flag of a call that took at least as long as shown.
const END_UNKNOWN: u8 = 8;

/// Writes calls as an HTML page.
pub fn write(calls: &Calls, options: &Options<'_>, out: &mut impl Write) -> io::Result<Summary> {
    let data = data(calls, options);
    let mut counted = Counted { out, bytes: 0 };
    let mut out = io::BufWriter::new(&mut counted);
    let title = escaped(options.title);
    out.write_all(b"<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n")?;
    // Whatever a name says: the page loads nothing and sends nothing.
    out.write_all(b"<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; ")?;
    out.write_all(b"script-src 'unsafe-inline'; style-src 'unsafe-inline'\"/>\n")?;
    write!(out, "<title>{title}</title>\n<style>\n{}</style>\n</head>\n", include_str!("page.css"))?;
    write!(out, "<body>\n<h1>{title}</h1>\n{}", include_str!("page.html"))?;
    out.write_all(b"<script type=\"application/json\" id=\"data\">")?;
    serde_json::to_writer(InScript(&mut out), &data).map_err(io::Error::other)?;
    write!(out, "</script>\n<script>\n{}</script>\n</body>\n</html>\n", include_str!("page.js"))?;
    out.flush()?;
    drop(out);
    let Data { shown, left_out, longest_left_out_ns, .. } = data;
    Ok(Summary { shown, left_out, longest_left_out_ns, bytes: counted.bytes })
}

fn data<'a>(calls: &'a Calls, options: &Options<'_>) -> Data<'a> {
    let (mut places, keys) = layout::places(calls);
    let length = |place: &Place| place.end - place.start;
    // The longest calls: those that made them are longer still, so the trees stay whole towards their roots.
    let first = |place: &Place| (place.depth >= MAX_DEPTH, Reverse(length(place)), place.depth, place.id);
    places.sort_unstable_by_key(first);
    let drawable = places.partition_point(|place| place.depth < MAX_DEPTH);
    let shown = drawable.min(options.most_calls);
    let longest_left_out_ns = places[shown..].iter().map(length).max().unwrap_or_default();
    let left_out = places.len() - shown;
    places.truncate(shown);
    places.sort_unstable_by_key(|place| (place.start, place.depth, place.id));

    let origin = places.first().map_or(0, |place| place.start);
    let end = places.iter().map(|place| place.end).max().unwrap_or(origin);
    let mut names = Indices::default();
    let mut groups = Indices::default();
    let mut rows: Vec<Row> = keys.iter().map(|key| Row { name: row_name(*key), depth: 0, calls: Vec::new() }).collect();
    for place in places {
        let call = &calls[place.id];
        let name: &str = call.function.map_or("?", |function| &calls.names[function]);
        let row = &mut rows[place.row];
        if let Some(comm) = call.task.and_then(|task| task.comm).filter(|_| row.calls.is_empty()) {
            row.name = format!("{} {}", calls.names[comm], row.name);
        }
        row.depth = row.depth.max(place.depth + 1);
        let flags = [
            (WAIT, WAITS.contains(&name)),
            (INTERRUPT, call.interrupt),
            (START_UNKNOWN, !place.timed),
            (END_UNKNOWN, call.duration_ns.is_none() || call.ends == Ends::Entry),
        ];
        let flags = flags.iter().filter(|(_, holds)| *holds).map(|(flag, _)| flag).sum();
        let (name, group) = (names.of(name), groups.of((options.group)(calls, call)));
        row.calls.push((name, group, place.depth, place.start - origin, length(&place), place.own, flags));
    }
    rows.retain(|row| !row.calls.is_empty());
    // Where most happens comes first.
    let busy = |row: &Row| row.calls.iter().filter(|call| call.2 == 0).map(|call| call.4).fold(0, u64::saturating_add);
    rows.sort_by_cached_key(|row| Reverse(busy(row)));
    Data {
        origin_ns: origin.to_string(),
        end_ns: end - origin,
        names: names.all,
        groups: groups.all,
        rows,
        shown,
        left_out,
        longest_left_out_ns,
        lost: calls.damage.lost,
        not_understood: calls.damage.not_understood,
    }
}

fn row_name(key: RowKey) -> String {
    match (key.pid, key.cpu) {
        (Some(pid), Some(cpu)) => format!("{pid} CPU {cpu}"),
        (Some(pid), None) => pid.to_string(),
        (None, Some(cpu)) => format!("CPU {cpu}"),
        (None, None) => "unknown thread".to_owned(),
    }
}

/// Values, each once.
struct Indices<T> {
    all: Vec<T>,
    known: HashMap<T, u32>,
}

impl<T> Default for Indices<T> {
    fn default() -> Self {
        Indices { all: Vec::new(), known: HashMap::new() }
    }
}

impl<T: Clone + Eq + std::hash::Hash> Indices<T> {
    fn of(&mut self, value: T) -> u32 {
        let next = self.all.len() as u32;
        *self.known.entry(value).or_insert_with_key(|value| {
            self.all.push(value.clone());
            next
        })
    }
}

fn escaped(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut out, c| {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
        out
    })
}

/// JSON inside a script element: `<` stands only in texts there, and is written so that no text can end the element.
struct InScript<W>(W);

impl<W: Write> Write for InScript<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for (at, part) in bytes.split(|byte| *byte == b'<').enumerate() {
            if at > 0 {
                self.0.write_all(b"\\u003c")?;
            }
            self.0.write_all(part)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

struct Counted<W> {
    out: W,
    bytes: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
