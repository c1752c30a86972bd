//! `kstrobe print FILE`: the events of a capture as text, or a part of them as a capture of its own.

use super::capture::output::{Format, Target};
use super::fail;
use kstrobe_ftrace::dat::{self, DatError};
use kstrobe_ftrace::select::{self, Events, Filter, FilterError, Part, Selection, UnknownEvent};
use kstrobe_ftrace::text::{self, Options};
use kstrobe_ftrace::trace::Trace;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;
use wildmatch::WildMatch;

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("cannot read {}: {error}", file.display())]
    Read {
        file: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("{}: {error}", file.display())]
    Dat {
        file: PathBuf,
        #[source]
        error: DatError,
    },
    #[error(transparent)]
    Event(#[from] UnknownEvent),
    #[error("{error}\n  {filter}\n  {caret:>width$}", caret = "^", width = filter[..error.at].chars().count() + 1)]
    Filter {
        filter: String,
        #[source]
        error: FilterError,
    },
    #[error("the recording's clock `{0}` counts no nanoseconds: --from and --to have no meaning in it")]
    Clock(String),
    #[error("no event of {of} fits")]
    Nothing { of: u64 },
    #[error(transparent)]
    Open(#[from] crate::capture::Error),
    #[error("cannot write {}: {error}", file.display())]
    Write {
        file: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("cannot write to standard output: {0}")]
    Print(#[source] io::Error),
}

#[derive(Debug, clap::Args)]
pub struct Args {
    /// A capture: trace.dat of kstrobe or trace-cmd.
    file: PathBuf,
    /// Only these events: SYSTEM, EVENT or SYSTEM:EVENT; * stands for any letters.
    #[arg(short, long = "event", value_name = "EVENT", value_delimiter = ',')]
    events: Vec<String>,
    /// Only events whose fields fit, in the language of the kernel's filters: `prev_state != 0 && next_comm ~ "nginx*"`.
    #[arg(short, long, value_name = "CONDITION")]
    filter: Option<String>,
    /// Only what happened on these CPUs.
    #[arg(long, value_name = "CPU", value_delimiter = ',')]
    cpu: Vec<u32>,
    /// Only these threads.
    #[arg(long, value_name = "PID", value_delimiter = ',')]
    pid: Vec<i32>,
    /// Only threads of these names; * stands for any letters.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    comm: Vec<String>,
    /// Only from this moment on: a time as it is printed (1234.567890), or one with a unit (500ms) after the first event.
    #[arg(long, value_name = "TIME")]
    from: Option<Moment>,
    /// Only up to this moment.
    #[arg(long, value_name = "TIME")]
    to: Option<Moment>,
    /// Without what happens in hardware interrupts.
    #[arg(short = 'I', long)]
    no_hardirqs: bool,
    /// Without what happens in softirqs.
    #[arg(short = 'S', long)]
    no_softirqs: bool,
    /// With the time since the line before.
    #[arg(long)]
    delta: bool,
    /// Fields as numbers, without the text that the kernel makes of them.
    #[arg(short = 'R', long)]
    raw: bool,
    /// Times in nanoseconds.
    #[arg(long)]
    nanoseconds: bool,
    /// Without the column of interrupts, rescheduling and preemption.
    #[arg(long)]
    no_flags: bool,
    /// Write the events as a capture, not as text to standard output.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// How to write it; without it, as the name of the file says, else trace.dat.
    #[arg(long, value_enum, requires = "output")]
    format: Option<Format>,
}

/// A moment of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// After the first event.
    After(Duration),
    /// In nanoseconds of the clock; a text with so many places stands for all times that are printed so.
    At { ns: u64, half_ns: u64 },
}

#[derive(Debug, thiserror::Error)]
#[error("not a time: write a printed one, like 1234.567890, or one with a unit after the first event, like 500ms")]
struct MomentError;

impl FromStr for Moment {
    type Err = MomentError;

    fn from_str(text: &str) -> Result<Moment, MomentError> {
        if text.ends_with(|last: char| last.is_ascii_alphabetic()) {
            return after(text).map(Moment::After).ok_or(MomentError);
        }
        let (seconds, places) = text.split_once('.').unwrap_or((text, ""));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(seconds) || places.len() > 9 || (text.contains('.') && !digits(places)) {
            return Err(MomentError);
        }
        let unit = 10u64.pow(9 - places.len() as u32);
        let seconds: u64 = seconds.parse().map_err(|_| MomentError)?;
        let places: u64 = if places.is_empty() { 0 } else { places.parse().map_err(|_| MomentError)? };
        let ns = seconds.checked_mul(1_000_000_000).and_then(|ns| ns.checked_add(places * unit)).ok_or(MomentError)?;
        Ok(Moment::At { ns, half_ns: unit / 2 })
    }
}

/// A number with a unit, as in `1.5ms`.
fn after(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at(text.find(|letter: char| letter.is_ascii_alphabetic())?);
    let seconds = match unit {
        "ns" => 1e-9,
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(number.parse::<f64>().ok()? * seconds).ok()
}

impl Moment {
    /// The first nanosecond of it.
    fn from(self, first: u64) -> u64 {
        match self {
            Moment::After(time) => first.saturating_add(nanoseconds(time)),
            Moment::At { ns, half_ns } => ns.saturating_sub(half_ns),
        }
    }

    /// The last nanosecond of it.
    fn to(self, first: u64) -> u64 {
        match self {
            Moment::After(time) => first.saturating_add(nanoseconds(time)),
            Moment::At { ns, half_ns } => ns.saturating_add(half_ns.saturating_sub(1)),
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

pub fn run(args: &Args) -> ExitCode {
    print(args).map_or_else(fail, |()| ExitCode::SUCCESS)
}

fn print(args: &Args) -> Result<(), Error> {
    let file = || args.file.clone();
    let bytes = std::fs::read(&args.file).map_err(|error| Error::Read { file: file(), error })?;
    let dat = dat::read(&bytes).map_err(|error| Error::Dat { file: file(), error })?;
    drop(bytes);
    for skipped in &dat.skipped {
        eprintln!("{}: byte {}: not used: {}", args.file.display(), skipped.at, skipped.what);
    }
    let selection = selection(args, &dat.trace)?;
    let part = select::part(&dat.trace, &selection);
    if part.unreadable > 0 {
        eprintln!("{}: {} pages could not be read to their end", args.file.display(), part.unreadable);
    }
    if part.taken == 0 {
        return Err(Error::Nothing { of: part.of });
    }
    match &args.output {
        Some(to) => write(&part, to, args),
        None => text(&part.trace, args),
    }
}

fn selection(args: &Args, trace: &Trace) -> Result<Selection, Error> {
    let events = match args.events.as_slice() {
        [] => None,
        names => Some(Events::named(names, &trace.formats)?),
    };
    let fields = args.filter.as_deref().map(|filter| {
        let wrong = |error| Error::Filter { filter: filter.to_owned(), error };
        let fields = Filter::parse(filter).map_err(wrong)?;
        let chosen = |id| events.as_ref().is_none_or(|events| events.has(id));
        fields.check(trace.formats.all().iter().filter(|format| chosen(format.id))).map_err(wrong)?;
        Ok::<_, Error>(fields)
    });
    let fields = fields.transpose()?;
    let times = match (args.from, args.to) {
        (None, None) => 0..=u64::MAX,
        (from, to) => {
            let counts = |clock: &&str| matches!(*clock, "counter" | "x86-tsc" | "ppc-tb");
            if let Some(clock) = trace.buffers.iter().map(|buffer| buffer.clock.as_str()).find(counts) {
                return Err(Error::Clock(clock.to_owned()));
            }
            let first = trace.events().next().map_or(0, |event| event.time);
            from.map_or(0, |from| from.from(first))..=to.map_or(u64::MAX, |to| to.to(first))
        }
    };
    Ok(Selection {
        events,
        cpus: args.cpu.clone(),
        pids: args.pid.clone(),
        comms: args.comm.iter().map(|name| WildMatch::new(name)).collect(),
        times,
        fields,
        no_hardirqs: args.no_hardirqs,
        no_softirqs: args.no_softirqs,
    })
}

fn write(part: &Part, to: &Path, args: &Args) -> Result<(), Error> {
    let target = Target::open(to, args.format)?;
    target.write(&part.trace).map_err(|error| Error::Write { file: to.to_owned(), error })?;
    eprintln!("{}: {} of {} events", to.display(), part.taken, part.of);
    Ok(())
}

fn text(trace: &Trace, args: &Args) -> Result<(), Error> {
    let options = Options {
        nanoseconds: args.nanoseconds,
        raw: args.raw,
        no_flags: args.no_flags,
        delta: args.delta,
        ..Options::default()
    };
    let mut out = BufWriter::new(io::stdout().lock());
    let written = text::write(trace, options, &mut out).map_err(Error::Print)?;
    for event in written.not_understood {
        eprintln!("{event}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_printed_times_or_times_after_the_first_event() {
        let of = |text: &str| text.parse::<Moment>().map(|moment| (moment.from(1000), moment.to(1000))).ok();
        assert_eq!(of("500ns"), Some((1500, 1500)));
        assert_eq!(of("2.5us"), Some((3500, 3500)));
        assert_eq!(of("1.000002"), Some((1_000_001_500, 1_000_002_499)), "all that is printed so");
        assert_eq!(of("1.000000002"), Some((1_000_000_002, 1_000_000_002)));
        for wrong in ["", "1.", ".5", "1.0000000001", "-1", "soon", "99999999999999"] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }
}
