//! A recording whose recorder was killed: what it needs on the disk to be put together afterwards, and how that is done.
//!
//! Pages are in files beside the description, and those that were not read yet are still in the kernel's instance, which goes on
//! recording until it is removed. Formats and symbols are read from the kernel again: it has to run since the recording began.

use super::run::{Ended, Recorded};
use super::select_events::SelectedEvent;
use super::settings::Ready;
use super::{collect, spool};
use crate::kernel::instance::{AdoptError, Instance};
use crate::kernel::sys;
use crate::kernel::tracefs::Tracefs;
use kstrobe_fleet::node_session::TraceClock;
use kstrobe_fleet::private;
use kstrobe_ftrace::format::PageFormat;
use kstrobe_ftrace::trace::{CpuPages, CpuStats, Trace};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Name of the description in the folder of a recording.
const DESCRIPTION: &str = "unfinished.json";

/// Why what a killed recorder left cannot be put together.
#[derive(Debug, thiserror::Error)]
pub enum RescueError {
    #[error("{} is no recording that was interrupted: it has no {DESCRIPTION}", .0.display())]
    None(PathBuf),
    #[error("{}: {error}", file.display())]
    File {
        file: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("{}: {error}", file.display())]
    Description {
        file: PathBuf,
        #[source]
        error: serde_json::Error,
    },
    #[error("the kernel was started again since: formats and symbols of its records are not known any more")]
    OtherBoot,
    #[error("it is still being recorded")]
    Running,
    #[error("the kernel's trace: {0}")]
    Trace(#[from] io::Error),
}

/// The description of a recording that is not finished.
#[derive(Debug, Serialize, Deserialize)]
struct Description {
    /// Of the kernel that records.
    boot_id: String,
    /// Name of the instance; empty for the global buffer.
    instance: String,
    clock: String,
    events: Vec<SelectedEvent>,
    epoch_offset_start_ns: Option<i64>,
    notes: Vec<String>,
}

/// The description on the disk, removed when the recording ends by itself.
#[derive(Debug)]
pub struct Unfinished(PathBuf);

impl Unfinished {
    /// Describes a recording that is about to begin.
    pub fn describe(folder: &Path, ready: &Ready) -> io::Result<Unfinished> {
        let description = Description {
            boot_id: sys::boot_id()?,
            instance: ready.instance.name().to_owned(),
            clock: ready.clock.clone(),
            events: ready.events.clone(),
            epoch_offset_start_ns: sys::epoch_offset_ns(&ready.clock),
            notes: ready.notes.clone(),
        };
        let file = folder.join(DESCRIPTION);
        serde_json::to_writer(private::create(&file)?, &description)?;
        Ok(Unfinished(file))
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // It is written into the folder of a recording, which is removed or tidied afterwards.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Whether a killed recorder left something in this folder.
pub fn is_in(folder: &Path) -> bool {
    folder.join(DESCRIPTION).exists()
}

/// Puts together what a killed recorder left: the pages in the folder, then those in the kernel's instance, which is removed.
pub fn rescue(folder: &Path) -> Result<Recorded, RescueError> {
    let file = folder.join(DESCRIPTION);
    let described = match std::fs::File::open(&file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(RescueError::None(folder.to_owned())),
        described => described.map_err(|error| RescueError::File { file: file.clone(), error })?,
    };
    let begun = described.metadata().and_then(|about| about.modified());
    let description: Description =
        serde_json::from_reader(described).map_err(|error| RescueError::Description { file, error })?;
    if description.boot_id != sys::boot_id()? {
        return Err(RescueError::OtherBoot);
    }
    let tracefs = Arc::new(Tracefs::open()?);
    let page = collect::page_format(&tracefs)?;
    let mut pages = spool::left_in(folder, page.page_bytes())?;
    let mut notes = description.notes;
    notes.push("its recorder was killed: it has what was recorded until then".to_owned());
    let instance = match &*description.instance {
        // The sweep puts the global buffer back, and throws away what is in it.
        "" => None,
        name => Instance::adopt(&tracefs, name).map_err(|error| match error {
            AdoptError::InUse => RescueError::Running,
            AdoptError::Io(error) => error.into(),
        })?,
    };
    let mut stats = BTreeMap::new();
    match &instance {
        Some(instance) => stats = drain(instance, &page, &mut pages)?,
        None => notes.push("what its buffer still had is gone: records at the end may be missing".to_owned()),
    }
    let cpus = |(cpu, pages)| CpuPages { cpu, pages, stats: stats.get(&cpu).copied() };
    let cpus = pages.into_iter().map(cpus).collect();
    let clock = description.clock.clone();
    let trace = collect::trace(&tracefs, page, &description.events, clock, cpus)?;
    Ok(recorded(trace, &stats, begun.ok(), description.epoch_offset_start_ns, notes))
}

/// Adds the pages that were not read yet.
fn drain(
    instance: &Instance,
    page: &PageFormat,
    pages: &mut BTreeMap<u32, Vec<u8>>,
) -> io::Result<BTreeMap<u32, CpuStats>> {
    instance.set_on(false)?;
    sys::wait_for_running_programs();
    let mut next = vec![0; page.page_bytes()];
    let mut stats = BTreeMap::new();
    for cpu in instance.cpus()? {
        let mut reader = instance.reader(cpu, page.page_bytes())?;
        let of_cpu = pages.entry(cpu).or_default();
        while reader.read_page(&mut next)? {
            of_cpu.extend_from_slice(&next);
        }
        stats.insert(cpu, instance.stats(cpu)?);
    }
    Ok(stats)
}

fn recorded(
    trace: Trace,
    stats: &BTreeMap<u32, CpuStats>,
    begun: Option<std::time::SystemTime>,
    epoch_offset_start_ns: Option<i64>,
    notes: Vec<String>,
) -> Recorded {
    let records = trace.events().count() as u64;
    // Pages that the recorder had taken and not yet written are gone: the kernel counts their records as read.
    let read: u64 = stats.values().map(|stats| stats.read_events).sum();
    let overwritten: u64 = stats.values().map(CpuStats::lost).sum();
    let name = trace.buffers.first().map(|buffer| buffer.clock.clone()).unwrap_or_default();
    let clock = TraceClock { name, epoch_offset_start_ns, epoch_offset_end_ns: trace.about.epoch_offset_ns };
    Recorded {
        trace,
        ended: Ended::Killed,
        elapsed: begun.and_then(|begun| begun.elapsed().ok()).unwrap_or_default(),
        records,
        lost: overwritten + read.saturating_sub(records),
        left: 0,
        clock,
        notes,
    }
}
