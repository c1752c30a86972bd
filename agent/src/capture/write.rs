//! A recording in each of its forms.

use super::form::Form;
use crate::metrics::profiles::{self, Format};
use kstrobe_ftrace::calls::build;
use kstrobe_ftrace::report::{self, Asked};
use kstrobe_ftrace::trace::Trace;
use kstrobe_ftrace::{dat, perfetto, text};
use std::io::{self, Seek, Write};

/// Writes it.
pub fn write(trace: &Trace, form: Form, mut out: impl Write + Seek) -> io::Result<()> {
    match form {
        Form::Dat => dat::write(trace, &dat::Options::default(), &mut out)?,
        Form::Perfetto => _ = perfetto::write(trace, &mut out)?,
        Form::Text => _ = text::write(trace, text::Options::default(), &mut out)?,
        Form::Folded => out.write_all(&profile(trace, Format::Folded)?)?,
        Form::Pprof => out.write_all(&profile(trace, Format::Pprof)?)?,
    }
    out.flush()
}

/// Time in calls, by their callers.
fn profile(trace: &Trace, format: Format) -> io::Result<Vec<u8>> {
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
