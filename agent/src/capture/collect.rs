//! What is needed to read the pages: formats, names, and where and how it was recorded.

use super::scope::{numbers, threads_of};
use super::select_events::SelectedEvent;
use crate::kernel::sys;
use crate::kernel::tracefs::Tracefs;
use kstrobe_ftrace::dat::texts;
use kstrobe_ftrace::format::{EventFormat, Formats, PageFormat};
use kstrobe_ftrace::symbols::Symbols;
use kstrobe_ftrace::trace::{About, Buffer, CpuPages, Trace};
use std::collections::BTreeMap;
use std::io;

/// How pages of this kernel are laid out.
pub fn page_format(tracefs: &Tracefs) -> io::Result<PageFormat> {
    PageFormat::parse(&tracefs.read("events/header_page")?).map_err(io::Error::other)
}

/// Puts pages and all that reads them together.
pub fn trace(
    tracefs: &Tracefs,
    page: PageFormat,
    events: &[SelectedEvent],
    clock: String,
    cpus: Vec<CpuPages>,
) -> io::Result<Trace> {
    let (mut comms, _) = texts::parse_cmdlines(&tracefs.read("saved_cmdlines").unwrap_or_default());
    let mut tgids = pairs(&tracefs.read("saved_tgids").unwrap_or_default());
    // `saved_cmdlines` has 128 names by default: read those of live threads from procfs.
    for process in numbers("/proc") {
        for thread in threads_of(process) {
            tgids.entry(thread).or_insert(process);
            if let Ok(comm) = std::fs::read_to_string(format!("/proc/{process}/task/{thread}/comm")) {
                comms.entry(thread).or_insert_with(|| comm.trim_end_matches('\n').to_owned());
            }
        }
    }
    let (printk, _) = texts::parse_printk_formats(&tracefs.read("printk_formats").unwrap_or_default());
    let kallsyms = std::fs::read("/proc/kallsyms").unwrap_or_default();
    let machine = cpus.len() as u32;
    let buffer = Buffer { name: String::new(), clock: clock.clone(), cpus };
    Ok(Trace {
        page,
        header_event: tracefs.read("events/header_event")?,
        formats: formats(tracefs, events)?,
        symbols: Symbols::parse(&String::from_utf8_lossy(&kallsyms)),
        printk,
        comms,
        tgids,
        buffers: vec![buffer],
        about: about(&clock, machine),
    })
}

/// Of the events that were recorded, of those that their triggers may have switched on, and of the tracers' own records.
fn formats(tracefs: &Tracefs, events: &[SelectedEvent]) -> io::Result<Formats> {
    let mut names: Vec<(String, String)> =
        tracefs.list("events/ftrace")?.into_iter().map(|name| ("ftrace".to_owned(), name)).collect();
    for event in events {
        names.push((event.system.clone(), event.event.clone()));
        // `enable_event:SYSTEM:EVENT[:COUNT] [if FILTER]`
        let switched = event.triggers.iter().filter_map(|trigger| {
            let mut parts = trigger.split_whitespace().next()?.strip_prefix("enable_event:")?.split(':');
            Some((parts.next()?.to_owned(), parts.next()?.to_owned()))
        });
        names.extend(switched);
    }
    let mut formats = Formats::default();
    for (system, name) in names {
        // Some folders of `ftrace` have none.
        let Ok(text) = tracefs.read(&format!("events/{system}/{name}/format")) else { continue };
        match EventFormat::parse(&system, &text) {
            Ok(format) => formats.add(format),
            Err(error) => {
                tracing::warn!(event = format!("{system}:{name}"), reason = %error, "an event cannot be read")
            }
        }
    }
    Ok(formats)
}

/// Lines `NUMBER NUMBER`.
fn pairs(text: &str) -> BTreeMap<i32, i32> {
    let pair = |line: &str| {
        let mut words = line.split_whitespace();
        Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    };
    text.lines().filter_map(pair).collect()
}

fn about(clock: &str, cpus: u32) -> About {
    let uname = nix::sys::utsname::uname().ok();
    let text = |word: &std::ffi::OsStr| word.to_string_lossy().into_owned();
    let words = |u: &nix::sys::utsname::UtsName| {
        [u.sysname(), u.nodename(), u.release(), u.version(), u.machine()].map(text).join(" ")
    };
    About {
        hostname: uname.as_ref().map(|u| text(u.nodename())).unwrap_or_default(),
        uname: uname.as_ref().map(words).unwrap_or_default(),
        cpus,
        epoch_offset_ns: sys::epoch_offset_ns(clock),
        // Two recordings of one machine differ by when they were made.
        trace_id: sys::monotonic_ns() ^ u64::from(std::process::id()) << 48,
        recorder: format!("kstrobe {}", env!("CARGO_PKG_VERSION")),
        ..About::default()
    }
}
