//! A recording in each of its formats.

use super::format::Format;
use crate::metrics::profiles;
use kstrobe_ftrace::calls::build;
use kstrobe_ftrace::report::{self, Asked};
use kstrobe_ftrace::trace::Trace;
use kstrobe_ftrace::{dat, perfetto, text};
use std::io::{self, Seek, Write};

/// Writes a recording.
pub fn write(trace: &Trace, format: Format, mut out: impl Write + Seek) -> io::Result<()> {
    match format {
        Format::Dat => dat::write(trace, &dat::Options::default(), &mut out)?,
        Format::Perfetto => _ = perfetto::write(trace, &mut out)?,
        Format::Text => _ = text::write(trace, text::Options::default(), &mut out)?,
        Format::Folded => out.write_all(&profile(trace, profiles::Format::Folded)?)?,
        Format::Pprof => out.write_all(&profile(trace, profiles::Format::Pprof)?)?,
    }
    out.flush()
}

/// Time in calls, by their callers.
fn profile(trace: &Trace, format: profiles::Format) -> io::Result<Vec<u8>> {
    // Other events are read from the records themselves.
    let calls = build::build(trace, build::Options { marks: false });
    if calls.calls.is_empty() {
        // An empty file would look as if it had taken no time.
        return Err(io::Error::other("no calls of functions were recorded: they need the tracer `function_graph`"));
    }
    let activity = report::activity(report::of_trace(trace));
    let stacks = report::folded(&calls, &activity, &Asked::default());
    let duration_ns = report::summary(Some(trace), Some(&calls)).duration_ns;
    format.write(&profiles::calls::profile(&stacks, &trace.about.hostname, duration_ns))
}
