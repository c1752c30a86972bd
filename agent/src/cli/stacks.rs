//! `kstrobe stacks PROBE`: runs a probe for a while and writes its sums by stack.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::PossibleValuesParser;

use crate::app;
use crate::app::Recording;
use crate::config::SourceArgs;
use crate::config::compile;
use crate::config::diagnostics::print_diagnostics;
use crate::config::files;
use crate::config::files::Choice;
use crate::config::plan;
use crate::config::plan::ProbePlan;
use crate::metrics::profiles::Format;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Probe with a metric of `type: stacks`, such as `profile_cpu` or `offcpu`.
    probe: String,
    #[command(flatten)]
    source: SourceArgs,
    /// Which of its stacks metrics; needed when it has several.
    #[arg(long, value_name = "NAME")]
    metric: Option<String>,
    /// How long, e.g. 10s or 500ms; without it, until Ctrl-C.
    #[arg(short, long, value_name = "TIME", value_parser = duration)]
    duration: Option<Duration>,
    /// How to write it; without it, as the name of the file says, else folded.
    #[arg(short, long, value_parser = PossibleValuesParser::new(Format::ALL.map(Format::name)))]
    format: Option<String>,
    /// Where to write it; without it, standard output.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub fn run(args: &Args) -> ExitCode {
    let (probes, diagnostics) = files::probes(args.source.probes.as_deref());
    print_diagnostics(&diagnostics);
    let choice = Choice { only: vec![args.probe.clone()], ..Choice::default() };
    let (chosen, unknown) = files::choose(probes, &Default::default(), &choice);
    if !unknown.is_empty() {
        print_diagnostics(&unknown);
        return ExitCode::from(1);
    }
    let prepared = compile::prepare(chosen.into_iter().map(plan::plan), args.source.btf.as_deref());
    for (plan, refusal) in prepared.refused.iter().chain(&prepared.waiting) {
        eprintln!("{}: cannot run on this kernel ({})", plan.meta().name, prepared.target.release);
        print_diagnostics(&refusal.diagnostics);
    }
    let with_stacks =
        |d: &ProbePlan| -> Vec<String> { d.meta().metrics.iter().filter(|m| m.stacks.is_some()).map(name).collect() };
    let plans: Vec<ProbePlan> =
        prepared.planned.into_iter().map(|(d, _)| d).filter(|d| !with_stacks(d).is_empty()).collect();
    let names: Vec<String> = plans.iter().flat_map(with_stacks).collect();
    let metric = match (&args.metric, names.as_slice()) {
        (_, []) if prepared.refused.is_empty() && prepared.waiting.is_empty() => {
            return fail(1, &format!("probe `{}` has no metric of `type: stacks`", args.probe));
        }
        (_, []) => return ExitCode::from(1),
        (Some(name), names) if names.contains(name) => name.clone(),
        (None, [only]) => only.clone(),
        (_, names) => return fail(2, &format!("say which with --metric: {}", names.join(", "))),
    };
    record(args, &plans, metric)
}

fn record(args: &Args, plans: &[ProbePlan], metric: String) -> ExitCode {
    let format = format(args);
    if args.output.is_none() && format != Format::Folded && std::io::IsTerminal::is_terminal(&std::io::stdout()) {
        return fail(2, &format!("{} is not for a terminal: say where to write it with -o", format.name()));
    }
    match args.duration {
        Some(time) => eprintln!("taking `{metric}` for {time:?}; Ctrl-C ends it early"),
        None => eprintln!("taking `{metric}` until Ctrl-C"),
    }
    let recording = match app::record(plans, args.source.btf.as_deref(), &metric, args.duration) {
        Ok(recording) => recording,
        Err(e) => return fail(1, &e.to_string()),
    };
    let Recording { profile, missed } = recording;
    let bytes = match format.write(&profile) {
        Ok(bytes) => bytes,
        Err(e) => return fail(1, &format!("{} cannot be written: {e}", format.name())),
    };
    let written = match &args.output {
        Some(file) => std::fs::write(file, &bytes).map_err(|e| format!("cannot write {}: {e}", file.display())),
        None => std::io::stdout().write_all(&bytes).map_err(|e| format!("cannot write to standard output: {e}")),
    };
    if let Err(e) = written {
        return fail(1, &e);
    }
    let file = args.output.as_ref().map_or(String::new(), |file| format!("{}: ", file.display()));
    eprintln!("{file}{} stacks", profile.samples.len());
    if missed.part > 0 {
        eprintln!(
            "{:.2} % of it is in stacks that had no room and are shown as missed: raise the metric's `max_series`",
            missed.percent()
        );
    }
    ExitCode::SUCCESS
}

fn name(metric: &plan::Metric) -> String {
    metric.about.name.trim_start_matches(plan::PREFIX).to_owned()
}

fn format(args: &Args) -> Format {
    if let Some(format) = args.format.as_deref().and_then(Format::named) {
        return format;
    }
    let file = args.output.as_ref().map(|file| file.to_string_lossy().into_owned()).unwrap_or_default();
    let ends = |suffixes: &[&str]| suffixes.iter().any(|suffix| file.ends_with(suffix));
    match () {
        () if ends(&[".svg"]) => Format::Svg,
        () if ends(&[".pb.gz", ".pprof", ".pb"]) => Format::Pprof,
        () => Format::Folded,
    }
}

/// What is wrong with a time of the command line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum TimeError {
    #[error("it is longer than nothing")]
    Zero,
    #[error("a day is the longest")]
    TooLong,
    #[error("write a time such as 10s, 500ms or 2m")]
    NotATime,
}

/// A number with a unit; a bare number is seconds, as in bcc's `profile 10`.
pub(super) fn duration(text: &str) -> Result<Duration, TimeError> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let milliseconds = match unit {
        "ms" => Some(1),
        "s" | "" => Some(1000),
        "m" | "min" => Some(60_000),
        "h" => Some(3_600_000),
        _ => None,
    };
    let time = number.parse::<u64>().ok().zip(milliseconds).and_then(|(n, unit)| n.checked_mul(unit));
    match time {
        Some(time @ 1..=86_400_000) => Ok(Duration::from_millis(time)),
        Some(0) => Err(TimeError::Zero),
        Some(_) => Err(TimeError::TooLong),
        None => Err(TimeError::NotATime),
    }
}

fn fail(code: u8, message: &str) -> ExitCode {
    eprintln!("error: {message}");
    ExitCode::from(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        let ms = |text: &str| duration(text).map(|d| d.as_millis());
        assert_eq!(["10s", "10", "500ms", "2m", "1h"].map(ms), [10_000, 10_000, 500, 120_000, 3_600_000].map(Ok));
        for wrong in ["", "s", "1.5s", "-1s", "0s", "2d", "25h", "99999999999999999999s", "18446744073709551615h"] {
            assert!(ms(wrong).is_err(), "{wrong}");
        }
    }
}
