//! What the service runs on a real kernel.

use super::error::Error;
use super::format::Format;
use super::request::Request;
use super::run::{self, Ended, Paths, Stop, run};
use super::service::Engine;
use super::store::Recorded;
use super::unfinished;
use super::write::write;
use kstrobe_fleet::private;
use kstrobe_ftrace::dat;
use std::io::BufWriter;
use std::path::Path;

/// The request with the control groups of its pods in place of their names, or why they are not known.
pub type LocatePods = Box<dyn Fn(&Request) -> Result<Request, Error> + Send + Sync>;

/// Records from this kernel, in recordings that name this node.
pub fn kernel(locate_pods: LocatePods, node: Option<String>) -> Engine {
    let of_node = node.clone();
    let located = move |request: &Request, folder: &Path, stop: &Stop| {
        record(&locate_pods(request)?, node.as_deref(), folder, stop)
    };
    Engine {
        record: Box::new(located),
        rescue: Box::new(move |folder| rescue(folder, of_node.as_deref())),
        convert: Box::new(convert),
        on_finished: Box::new(|_, _, _| {}),
    }
}

/// What a killed agent recorded into this folder.
fn rescue(folder: &Path, node: Option<&str>) -> Result<Recorded, Error> {
    store(unfinished::rescue(folder)?, node, folder)
}

fn record(request: &Request, node: Option<&str>, folder: &Path, stop: &Stop) -> Result<Recorded, Error> {
    let paths = Paths { spool: folder.to_owned() };
    store(run(request, &paths, stop, &mut |_| {})?, node, folder)
}

/// Writes a recording into its folder.
fn store(mut recorded: run::Recorded, node: Option<&str>, folder: &Path) -> Result<Recorded, Error> {
    if let Some(node) = node {
        recorded.trace.about.name_machine(node);
    }
    let file = folder.join(Format::Dat.file());
    let out = private::create(&file).map_err(Error::Store)?;
    write(&recorded.trace, Format::Dat, BufWriter::new(out)).map_err(Error::Store)?;
    let mut notes = recorded.notes;
    match recorded.ended {
        Ended::Full => notes.push("it has all the bytes it may have, and ended before its time".to_owned()),
        Ended::Fault(reason) => notes.push(format!("it ended before its time: {reason}")),
        Ended::Time | Ended::Cancelled | Ended::Killed | Ended::Command(_) | Ended::Trigger => {}
    }
    if recorded.left > 0 {
        notes.push(format!("{} records were left behind for want of room", recorded.left));
    }
    let clock = Some(recorded.clock);
    Ok(Recorded { formats: vec![Format::Dat], records: recorded.records, lost: recorded.lost, clock, notes })
}

fn convert(from: &Path, format: Format, to: &Path) -> Result<(), Error> {
    let bytes = std::fs::read(from).map_err(Error::Read)?;
    let recorded = dat::read(&bytes)?;
    drop(bytes);
    let out = private::create(to).map_err(Error::Convert)?;
    write(&recorded.trace, format, BufWriter::new(out)).map_err(Error::Convert)
}
