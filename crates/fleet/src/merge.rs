//! Merges the recordings of several machines on one timeline.

use crate::node_session::CaptureStatus;
use kstrobe_ftrace::dat::{self, DatError};
use kstrobe_ftrace::perfetto::{self, Machine};
use kstrobe_ftrace::trace::Trace;
use std::io::{self, Seek, Write};

/// Step of the wall clock against the trace clock, in nanoseconds, that is tolerated during a recording without a note.
const STEP_NS: i64 = 5_000_000;

/// Why a recording is not part of the merged trace.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("its download cannot be read: {0}")]
    Download(#[source] io::Error),
    #[error("its recording cannot be read: {0}")]
    Recording(#[from] DatError),
    #[error("it cannot be written: {0}")]
    Write(#[source] io::Error),
}

/// Recording of a machine, with its clock offset.
#[derive(Clone, Copy, Debug)]
pub struct Recording<'a> {
    /// Machine name.
    pub name: &'a str,
    /// Content of its `trace.dat`.
    pub dat: &'a [u8],
    /// Capture status of its agent.
    pub status: &'a CaptureStatus,
    /// Nanoseconds by which its wall clock is ahead of the common clock.
    pub ahead_ns: i64,
}

/// Placement of a recording in the merged trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placed {
    /// Machine id.
    pub machine: u32,
    /// First and last event by the common clock, in nanoseconds since the Unix epoch; `None` without events.
    pub events_unix_ns: Option<(i64, i64)>,
    /// Number of events.
    pub events: u64,
    /// Notes for the reader.
    pub notes: Vec<String>,
}

/// Merges recordings one after another, with one in memory at a time.
#[derive(Debug)]
pub struct Merge<W> {
    out: W,
    machines: u32,
    /// Trace clock of the first recording, used for the merged trace.
    first_offset_ns: i64,
}

impl<W: Write> Merge<W> {
    /// Creates a merge that writes one Perfetto trace.
    pub fn new(out: W) -> Merge<W> {
        Merge { out, machines: 0, first_offset_ns: 0 }
    }

    /// Adds a recording, and writes its `trace.dat` with wall clock times, so that trace-cmd sorts several by time.
    pub fn add(&mut self, recording: Recording<'_>, dat: &mut (impl Write + Seek)) -> Result<Placed, Error> {
        let read = dat::read(recording.dat)?;
        let mut trace = read.trace;
        let mut notes: Vec<String> = read.skipped.iter().map(|skipped| skipped.what.clone()).collect();
        let first = trace.events().next().map(|event| event.time);
        let offset = epoch_offset(&trace, first, recording, &mut notes);
        trace.about.epoch_offset_ns = Some(offset);
        if self.machines == 0 {
            self.first_offset_ns = offset;
        }
        let machine = Machine::beside(self.machines, recording.name, offset, self.first_offset_ns);
        // Also after an error the next recording gets another id.
        self.machines += 1;
        let options = dat::Options { wall_clock: true, ..dat::Options::default() };
        dat::write(&trace, &options, dat).map_err(Error::Write)?;
        let summary = perfetto::write_machine(&trace, machine, &mut self.out).map_err(Error::Write)?;
        let last = trace.events().last().map(|event| event.time);
        let unix = |time: u64| i64::try_from(time).unwrap_or(i64::MAX).saturating_add(offset);
        Ok(Placed {
            machine: machine.number,
            events_unix_ns: first.zip(last).map(|(first, last)| (unix(first), unix(last))),
            events: summary.events(),
            notes,
        })
    }

    /// Finishes the trace.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }
}

/// Offset from trace times to the common wall clock.
fn epoch_offset(trace: &Trace, first: Option<u64>, recording: Recording<'_>, notes: &mut Vec<String>) -> i64 {
    let clock = recording.status.clock.as_ref();
    let start = clock.and_then(|clock| clock.epoch_offset_start_ns).or(trace.about.epoch_offset_ns);
    let end = clock.and_then(|clock| clock.epoch_offset_end_ns);
    if let (Some(start), Some(end)) = (start, end)
        && (end - start).abs() > STEP_NS
    {
        notes.push(format!("its wall clock was set by {} ms while it recorded", (end - start) / 1_000_000));
    }
    let own = start.or(end).unwrap_or_else(|| {
        let name = clock.map_or("of its trace", |clock| clock.name.as_str());
        notes.push(format!("its clock `{name}` is not known against the wall clock: it is placed by when it began"));
        let began = recording.status.started_unix_ms.saturating_mul(1_000_000);
        began.saturating_sub(first.and_then(|time| i64::try_from(time).ok()).unwrap_or_default())
    });
    own.saturating_sub(recording.ahead_ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_session::TraceClock;
    use flate2::read::GzDecoder;
    use std::io::{Cursor, Read};

    /// A file of trace-cmd.
    fn recorded(name: &str) -> Vec<u8> {
        let file = format!("{}/../../ftrace/tests/fixtures/dat/{name}.dat.gz", env!("CARGO_MANIFEST_DIR"));
        let mut plain = Vec::new();
        GzDecoder::new(std::fs::File::open(file).unwrap()).read_to_end(&mut plain).unwrap();
        plain
    }

    fn status(start: Option<i64>, end: Option<i64>) -> CaptureStatus {
        let clock = TraceClock { name: "mono".into(), epoch_offset_start_ns: start, epoch_offset_end_ns: end };
        CaptureStatus { started_unix_ms: 1_700_000_000_000, clock: Some(clock), ..CaptureStatus::default() }
    }

    fn add(merge: &mut Merge<Vec<u8>>, dat: &[u8], status: &CaptureStatus, ahead_ns: i64) -> (Placed, Trace) {
        let mut anew = Cursor::new(Vec::new());
        let placed = merge.add(Recording { name: "n", dat, status, ahead_ns }, &mut anew).unwrap();
        (placed, dat::read(anew.get_ref()).unwrap().trace)
    }

    #[test]
    fn recordings_are_placed_by_the_wall_clock() {
        let dat = recorded("default");
        let first = dat::read(&dat).unwrap().trace.events().next().unwrap().time as i64;
        let mut merge = Merge::new(Vec::new());
        let epoch = 1_700_000_000_000_000_000;
        let (one, trace) = add(&mut merge, &dat, &status(Some(epoch), Some(epoch + 1000)), 0);
        assert_eq!((one.machine, one.events_unix_ns.unwrap().0, one.notes.len()), (0, epoch + first, 0));
        assert_eq!(trace.about.epoch_offset_ns, Some(epoch), "trace-cmd shows the wall clock");
        assert_eq!(trace.events().next().unwrap().time as i64, first, "and its own times are as they were");
        // A clock that is two seconds ahead of the others, and was set meanwhile.
        let ahead = 2_000_000_000;
        let (two, _) = add(&mut merge, &dat, &status(Some(epoch + ahead), Some(epoch)), ahead);
        assert_eq!((two.machine, two.events_unix_ns), (1, one.events_unix_ns));
        assert!(two.notes[0].contains("was set by -2000 ms"), "{two:?}");
        // An unknown trace clock: the start time of the agent applies.
        let (three, _) = add(&mut merge, &dat, &status(None, None), 0);
        assert_eq!(three.events_unix_ns.unwrap().0, 1_700_000_000_000_000_000);
        assert!(three.notes[0].contains("`mono` is not known"), "{three:?}");
        assert!(merge.finish().unwrap().len() > 1000);
    }

    #[test]
    fn an_invalid_recording_is_refused_and_writes_nothing() {
        let mut merge = Merge::new(Vec::new());
        let status = CaptureStatus::default();
        let recording = Recording { name: "n", dat: b"not a recording", status: &status, ahead_ns: 0 };
        let error = merge.add(recording, &mut Cursor::new(Vec::new())).unwrap_err();
        assert!(matches!(error, Error::Recording(_)), "{error}");
        assert!(merge.finish().unwrap().is_empty());
    }
}
