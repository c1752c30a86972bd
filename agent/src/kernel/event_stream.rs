//! Events of an ftrace instance as they come, for probes whose engine is ftrace.

use crate::kernel::instance::{Instance, PageReader};
use crate::kernel::sys::monotonic_ns;
use crate::kernel::tracefs::Tracefs;
use kstrobe_ftrace::format::{EventFormat, PageFormat};
use kstrobe_ftrace::page::{self, PageError};
use std::io;
use std::sync::Arc;

/// Ring buffer of each CPU. At a million events a second of 60 bytes on one CPU that is 35 ms: what is lost is counted.
const BUFFER_KIB: u64 = 2048;

/// An event to record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Subsystem.
    pub system: String,
    /// Name.
    pub event: String,
    /// In the kernel's filter language.
    pub filter: Option<String>,
}

/// An event that was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// `CLOCK_MONOTONIC` nanoseconds.
    pub time_ns: u64,
    /// Where.
    pub cpu: u32,
    /// Its bytes: the common fields, then its own.
    pub record: Vec<u8>,
}

/// A private instance that records.
pub struct EventStream {
    readers: Vec<(u32, PageReader)>,
    format: PageFormat,
    page: Vec<u8>,
    ids: Vec<u16>,
    /// Came after the clock was read that the last drain goes by.
    early: Vec<Taken>,
    /// Pages that could not be read to their end.
    broken: u64,
    // Removed when all of its files are closed.
    instance: Instance,
}

impl EventStream {
    /// Records these events from now on.
    pub fn open(wanted: &[Wanted]) -> io::Result<EventStream> {
        let tracefs = Arc::new(Tracefs::open()?);
        let instance = Instance::create(&tracefs)?;
        // The clock of `bpf_ktime_get_ns`, so that both engines measure the same.
        instance.set_clock("mono")?;
        instance.set_buffer_kib(BUFFER_KIB)?;
        let format = PageFormat::parse(&tracefs.read("events/header_page")?).map_err(io::Error::other)?;
        let mut ids = Vec::new();
        for Wanted { system, event, filter } in wanted {
            let folder = format!("events/{system}/{event}");
            let text = tracefs.read(&format!("{folder}/format"))?;
            ids.push(EventFormat::parse(system, &text).map_err(io::Error::other)?.id);
            if let Some(filter) = filter {
                instance.write(&format!("{folder}/filter"), filter)?;
            }
            instance.write(&format!("{folder}/enable"), "1")?;
        }
        let page = vec![0; format.page_bytes()];
        let readers = instance.cpus()?.into_iter().map(|cpu| Ok((cpu, instance.reader(cpu, page.len())?)));
        let readers = readers.collect::<io::Result<_>>()?;
        instance.set_on(true)?;
        Ok(EventStream { readers, format, page, ids, early: Vec::new(), broken: 0, instance })
    }

    /// What records of each event begin with, in the order in which they were wanted.
    pub fn ids(&self) -> &[u16] {
        &self.ids
    }

    /// All that was recorded until now, by time. An event that another CPU has begun to write but not finished is taken the
    /// next time: it comes late then.
    pub fn drain(&mut self) -> io::Result<Vec<Taken>> {
        let until_ns = monotonic_ns();
        let mut all = std::mem::take(&mut self.early);
        for (cpu, reader) in &mut self.readers {
            while reader.read_page(&mut self.page)? {
                match take(&self.page, &self.format, *cpu, &mut all) {
                    // Reading makes events of its own: without an end there would always be more.
                    Ok(begun_ns) if begun_ns > until_ns => break,
                    Ok(_) => {}
                    Err(_) => self.broken += 1,
                }
            }
        }
        // By CPU they are in order already; the sort is stable.
        all.sort_by_key(|taken| taken.time_ns);
        let now = all.partition_point(|taken| taken.time_ns <= until_ns);
        self.early = all.split_off(now);
        Ok(all)
    }

    /// Records the kernel had no room for since the beginning, and pages that could not be read.
    pub fn lost(&self) -> io::Result<(u64, u64)> {
        let mut lost = 0;
        for (cpu, _) in &self.readers {
            lost += self.instance.stats(*cpu)?.lost();
        }
        Ok((lost, self.broken))
    }
}

/// Adds the records of a page, and says when its first one was written.
fn take(bytes: &[u8], format: &PageFormat, cpu: u32, all: &mut Vec<Taken>) -> Result<u64, PageError> {
    let page = page::page(bytes, format)?;
    for record in page.records {
        let record = record?;
        all.push(Taken { time_ns: record.time, cpu, record: record.data.to_vec() });
    }
    Ok(page.time)
}
