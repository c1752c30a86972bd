//! `kstrobe slo`: the rules of an objective of one's own.

use std::process::ExitCode;

use kstrobe_mixin::catalogue::Catalogue;
use kstrobe_mixin::request::{Request, objective};
use kstrobe_mixin::{Form, own, slo_rules};

use super::fail;
use crate::config::SourceArgs;
use crate::config::diagnostics::print_diagnostics;
use crate::config::files;

/// Prints Prometheus rules on standard output: error ratios with sloth's names, and alerts on how fast the budget burns.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Histogram of any probe, with or without `kstrobe_`.
    #[arg(long)]
    metric: String,
    /// Per cent of the observations at or below the threshold, such as 99.9.
    #[arg(long, value_name = "PERCENT")]
    objective: String,
    /// One of the metric's classic buckets, such as 10ms.
    #[arg(long, value_name = "VALUE")]
    threshold: String,
    /// Which series: 'comm=~"mysql.*", syscall="recvfrom"'; a `job` in it replaces job="kstrobe".
    #[arg(long, default_value = "", hide_default_value = true)]
    selector: String,
    /// Name of the service (`sloth_service`) [default: kstrobe].
    #[arg(long, default_value = "", hide_default_value = true)]
    service: String,
    /// Name of the objective (`sloth_slo`) [default: from the metric].
    #[arg(long, default_value = "", hide_default_value = true)]
    name: String,
    /// Labels that tell budgets apart [default: job,instance].
    #[arg(long, value_delimiter = ',', value_name = "LABEL")]
    by: Vec<String>,
    /// For Prometheus servers that take native histograms.
    #[arg(long)]
    native: bool,
    #[command(flatten)]
    source: SourceArgs,
}

pub fn run(args: &Args) -> ExitCode {
    let (probes, diagnostics) = files::probes(args.source.probes.as_deref());
    print_diagnostics(&diagnostics);
    let catalogue = Catalogue::new(&probes, own::recorded());
    let request = Request {
        metric: args.metric.clone(),
        percent: args.objective.clone(),
        threshold: args.threshold.clone(),
        selector: args.selector.clone(),
        service: args.service.clone(),
        name: args.name.clone(),
        by: args.by.clone(),
    };
    match objective(&catalogue, &request) {
        Ok(objective) => {
            let form = if args.native { Form::Native } else { Form::Classic };
            let head = format!("{}: {}.\nOver {} histograms.", objective.id(), objective.says, form.name());
            print!("{}", slo_rules(&head, &[objective], form));
            ExitCode::SUCCESS
        }
        Err(error) => fail(error),
    }
}
