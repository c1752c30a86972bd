//! `kstrobe watch METRIC|PROBE`: a line each interval of what a running agent has measured in it.

use super::client::{AgentArgs, Client, Error, runtime};
use super::draw::{figures, fit};
use super::fail;
use super::top::answers::{Group, History, Kind, Query};
use super::top::screen::{quantiles, value};
use kstrobe_kube::encode;
use std::process::ExitCode;
use std::time::Duration;

/// Until the agent is asked again whether the interval is over.
const POLL: Duration = Duration::from_millis(200);
/// Widest column of labels.
const MAX_LABELS: usize = 48;

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The metric, with or without `kstrobe_`, or a probe that has one metric.
    #[arg(value_name = "METRIC|PROBE")]
    metric: String,
    /// Seconds of an interval, e.g. 1s or 10s.
    #[arg(short, long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: u64,
    /// Lines to print; without it, until Ctrl-C.
    #[arg(short = 'n', long, value_name = "N")]
    count: Option<u64>,
    /// Labels to divide by: then an interval is a line for each of the largest groups.
    #[arg(long, value_name = "LABEL", value_delimiter = ',')]
    by: Vec<String>,
    /// Groups of an interval.
    #[arg(long, value_name = "N", default_value_t = 5, requires = "by")]
    top: u16,
    /// Only series that match, e.g. comm="mysqld" or syscall=~"recv.*"; may be given several times.
    #[arg(short, long = "match", value_name = "MATCHER")]
    matchers: Vec<String>,
    #[command(flatten)]
    agent: AgentArgs,
}

/// What is wrong with an interval.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum IntervalError {
    #[error(transparent)]
    Time(#[from] super::stacks::TimeError),
    #[error("it is whole seconds: the agent keeps no shorter ones")]
    NoSeconds,
}

fn interval(text: &str) -> Result<u64, IntervalError> {
    let time = super::stacks::duration(text)?;
    if time.subsec_nanos() == 0 { Ok(time.as_secs()) } else { Err(IntervalError::NoSeconds) }
}

pub fn run(args: &Args) -> ExitCode {
    match watch(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(error),
    }
}

#[derive(Debug, thiserror::Error)]
enum WatchError {
    #[error(transparent)]
    Client(#[from] Error),
    #[error("probe `{probe}` has several metrics\nhint: name one of {}", metrics.join(", "))]
    Several { probe: String, metrics: Vec<String> },
}

/// The metric of a probe; any other name is left to the query, whose error says what is wrong with it.
fn metric_of<'a>(name: &'a str, history: &'a History) -> Result<&'a str, WatchError> {
    let of_probe: Vec<&str> =
        history.metrics.iter().filter(|metric| metric.probe == name).map(|metric| metric.metric.as_str()).collect();
    match of_probe[..] {
        [] => Ok(name),
        [metric] => Ok(metric),
        _ if of_probe.contains(&name) => Ok(name),
        _ => Err(WatchError::Several {
            probe: name.to_owned(),
            metrics: of_probe.into_iter().map(str::to_owned).collect(),
        }),
    }
}

fn watch(args: &Args) -> Result<(), WatchError> {
    runtime()?.block_on(async {
        let client = Client::new(&args.agent)?;
        let history: History = client.get("/api/v1/history").await?;
        let args = &Args { metric: metric_of(&args.metric, &history)?.to_owned(), ..args.clone() };
        // Its end is that of the newest second.
        let mut from = client.get::<Query>(&path(args, "-1", "0")).await?.to;
        let mut left = args.count.unwrap_or(u64::MAX);
        let mut is_first = true;
        while left > 0 {
            let to = from + args.interval;
            let query = whole(args, &client, from, to).await?;
            if std::mem::take(&mut is_first) {
                println!("{}", head(&query, &args.by));
            }
            lines(&query, &args.by).iter().for_each(|line| println!("{line}"));
            (from, left) = (to, left - 1);
        }
        Ok(())
    })
}

/// Waits until the agent has all seconds of a range, and asks for them: none is missed, and none counts twice.
async fn whole(args: &Args, client: &Client, from: u64, to: u64) -> Result<Query, Error> {
    tokio::time::sleep(Duration::from_secs(args.interval).saturating_sub(POLL)).await;
    while client.get::<Query>(&path(args, "-1", "0")).await?.to < to {
        tokio::time::sleep(POLL).await;
    }
    client.get(&path(args, &from.to_string(), &to.to_string())).await
}

fn path(args: &Args, from: &str, to: &str) -> String {
    let by =
        if args.by.is_empty() { String::new() } else { format!("&by={}&top={}", encode(&args.by.join(",")), args.top) };
    let matchers: String = args.matchers.iter().map(|matcher| format!("&match={}", encode(matcher))).collect();
    // In columns of a second, a range is not widened to whole columns.
    format!("/api/v1/query?metric={}&from={from}&to={to}&step=1{by}{matchers}", encode(&args.metric))
}

fn head(query: &Query, by: &[String]) -> String {
    let figures = match query.kind {
        Kind::Histogram => "      RATE      P50      P99      MAX     TOTAL",
        Kind::Counter => "      RATE     TOTAL",
        Kind::Gauge => "     VALUE",
    };
    let labels = if by.is_empty() { String::new() } else { format!("  {}", by.join(", ").to_uppercase()) };
    format!("{:<8}{figures}{labels}", "TIME")
}

/// A line for each group.
fn lines(query: &Query, by: &[String]) -> Vec<String> {
    let time = format!("{:02}:{:02}:{:02}", query.to / 3600 % 24, query.to / 60 % 60, query.to % 60);
    let line = |group: &Group| {
        let labels: Vec<&str> = by.iter().filter_map(|label| group.labels.get(label)).map(String::as_str).collect();
        let labels = if by.is_empty() { String::new() } else { format!("  {}", fit(&labels.join(", "), MAX_LABELS)) };
        format!("{time}{}{labels}", figures_of(query, group))
    };
    let mut lines: Vec<String> = query.groups.iter().map(line).collect();
    if query.left_out > 0 {
        lines.push(format!("{time}  and {} more", query.left_out));
    }
    lines
}

fn figures_of(query: &Query, group: &Group) -> String {
    let shown = |figure: Option<f64>| figure.map_or_else(|| "-".to_owned(), |figure| value(figure, &query.unit));
    let total = &group.total;
    let mark = if query.sampled { "~" } else { "" };
    let rate = mark.to_owned() + &figures::rate(total.count.unwrap_or_default() / query.seconds().max(1.0));
    let [p50, p99, max] = quantiles([total.p50, total.p99, total.max], &query.unit);
    match query.kind {
        Kind::Histogram => format!("{rate:>10}{p50:>9}{p99:>9}{max:>9}{:>10}", shown(total.sum)),
        Kind::Counter => format!("{rate:>10}{:>10}", shown(total.count)),
        Kind::Gauge => format!("{:>10}", shown(total.last)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_whole_seconds() {
        assert_eq!(interval("10s"), Ok(10));
        assert_eq!(interval("500ms"), Err(IntervalError::NoSeconds));
        assert!(interval("soon").is_err());
    }

    #[test]
    fn an_interval_is_a_line_for_each_group() {
        let query: Query = serde_json::from_str(
            r#"{"metric": "kstrobe_recv_wait_seconds", "type": "histogram", "unit": "seconds", "from": 1700000000, "to": 1700000002, "step": 2,
                "sampled": true, "left_out": 4, "groups": [
                {"labels": {"comm": "mysqld"}, "total": {"count": 200, "sum": 1.5, "p50": 0.0061, "p99": 0.048, "max": null}}]}"#,
        )
        .unwrap();
        let by = ["comm".to_owned()];
        assert_eq!(head(&query, &by), "TIME          RATE      P50      P99      MAX     TOTAL  COMM");
        assert_eq!(
            lines(&query, &by),
            ["22:13:22    ~100/s    6.1ms     48ms     +Inf     1.50s  mysqld", "22:13:22  and 4 more"]
        );
    }
}
