//! What `cargo xtask bench` times: a long trace.dat is made of recordings, and read for one purpose at a time.
//!
//! ```text
//! throughput make events|graph MEGABYTES FILE     prints how many bytes of records it has
//! throughput events|text|calls|perfetto FILE      text and Perfetto go to standard output, what was counted to standard error
//! ```

#[path = "../tests/support/mod.rs"]
mod support;

use kstrobe_ftrace::page;
use kstrobe_ftrace::trace::{CpuPages, Trace};
use kstrobe_ftrace::value::Value;
use kstrobe_ftrace::{calls, dat, perfetto, text};
use std::error::Error;
use std::fs::File;

const KERNEL: &str = "6.12";
/// Between two recordings, so that what one ends with is over when the next begins.
const PAUSE_NS: u64 = 1_000_000;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["make", kind, megabytes, file] => {
            let recordings: &[&str] = if kind == "graph" { &["sched", "roots"] } else { &["events"] };
            let (trace, bytes) = repeated(recordings, megabytes.parse::<u64>()? * 1_000_000);
            dat::write(&trace, &dat::Options::default(), File::create(file)?)?;
            println!("{bytes}");
        }
        [purpose, file] => {
            let bytes = std::fs::read(file)?;
            let trace = dat::read(&bytes)?.trace;
            // As when it is read by a program that then goes on.
            drop(bytes);
            eprintln!("{}", read(purpose, &trace)?);
        }
        _ => return Err("see the head of examples/throughput.rs".into()),
    }
    Ok(())
}

/// What was counted.
fn read(purpose: &str, trace: &Trace) -> Result<u64, Box<dyn Error>> {
    // Pieces are big already: no lines are looked for, unlike with `Stdout`.
    let mut out = File::options().write(true).open("/dev/stdout")?;
    Ok(match purpose {
        "events" => events(trace),
        "text" => text::write(trace, text::Options::default(), &mut out)?.events,
        "calls" => calls::build::build(trace, Default::default()).calls.len() as u64,
        "perfetto" => perfetto::write(trace, &mut out)?.events(),
        _ => return Err("events, text, calls or perfetto".into()),
    })
}

/// Looks at the thread and at every field of every event.
fn events(trace: &Trace) -> u64 {
    let (mut count, mut seen) = (0, 0u64);
    for event in trace.events() {
        count += 1;
        seen = seen.wrapping_add(event.pid() as u64).wrapping_add(event.time);
        for field in event.format.iter().flat_map(|format| &format.fields) {
            seen = seen.wrapping_add(match field.value(event.data) {
                Some(Value::Unsigned(number)) => number,
                Some(Value::Signed(number)) => number as u64,
                Some(Value::Text(bytes) | Value::Bytes(bytes) | Value::Array { bytes, .. }) => bytes.len() as u64,
                None => 0,
            });
        }
    }
    // Otherwise the compiler could leave all of it out.
    std::hint::black_box(seen);
    count
}

/// Recordings one after the other, again and again, up to so many bytes of records; and how many there are.
fn repeated(recordings: &[&str], enough_bytes: u64) -> (Trace, u64) {
    let sources: Vec<Trace> = recordings.iter().map(|name| support::trace(KERNEL, name)).collect();
    let mut trace = sources[0].clone();
    let cpus = support::CPUS.map(|cpu| CpuPages { cpu, ..CpuPages::default() });
    trace.buffers[0].cpus = cpus.into();
    sources.iter().for_each(|source| trace.comms.extend(source.comms.clone()));
    let (mut bytes, mut next_ns) = (0, PAUSE_NS);
    while bytes < enough_bytes {
        for source in &sources {
            let first_ns = source.events().map(|event| event.time).min().unwrap_or_default();
            let last_ns = source.events().map(|event| event.time).max().unwrap_or_default();
            for (into, from) in trace.buffers[0].cpus.iter_mut().zip(&source.buffers[0].cpus) {
                for page in from.pages.chunks(source.page.page_bytes()) {
                    let head = page::page(page, &source.page).expect("a recorded page");
                    let moved_ns = head.time - first_ns + next_ns;
                    into.pages.extend(moved_ns.to_le_bytes());
                    into.pages.extend(&page[8..]);
                    bytes += page::page(page, &source.page).map_or(0, |page| page.records.bytes()) as u64;
                }
            }
            next_ns += last_ns - first_ns + PAUSE_NS;
        }
    }
    (trace, bytes)
}
