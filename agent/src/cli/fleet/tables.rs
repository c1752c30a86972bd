//! `kstrobe fleet top`, `probes` and `events`

use super::super::{Output, stacks, table};
use super::Reach;
use super::door::{Door, METRICS};
use super::error::Error;
use bytes::Bytes;
use http::Method;
use kstrobe_fleet::run::{Agents, explain, whole};
use kstrobe_fleet::target::{Missing, Target};
use kstrobe_fleet::top::{self, Scrape};
use kstrobe_fleet::views::{self, Table};
use serde_json::{Value, json};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Agents asked at once.
const MAX_AT_ONCE: usize = 32;
/// For an answer.
const LIMIT: Duration = Duration::from_secs(30);

#[derive(Debug, clap::Args)]
pub struct TopArgs {
    #[command(flatten)]
    reach: Reach,
    /// Only this metric.
    #[arg(long, value_name = "NAME")]
    metric: Option<String>,
    /// How long to look.
    #[arg(long, value_name = "TIME", value_parser = stacks::duration, default_value = "5s")]
    interval: Duration,
    /// Most rows.
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: usize,
    /// Format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Debug, clap::Args)]
pub struct ProbesArgs {
    #[command(flatten)]
    reach: Reach,
    /// Format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Debug, clap::Args)]
pub struct EventsArgs {
    #[command(flatten)]
    reach: Reach,
    /// Only of this probe.
    #[arg(long, value_name = "NAME")]
    probe: Option<String>,
    /// Most events, of all nodes together.
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: usize,
    /// Format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

pub async fn top(args: TopArgs) -> Result<ExitCode, Error> {
    let door = args.reach.door()?;
    let (targets, missing) = args.reach.targets(&door, true).await?;
    let begun = Instant::now();
    let scrape = |text: &str| Ok(Scrape::parse(text));
    let before = ask(&door, &targets, METRICS, scrape).await;
    tokio::time::sleep_until(begun + args.interval).await;
    let after = ask(&door, &targets, METRICS, scrape).await;
    let mut rows = Vec::new();
    let mut failures = failures(&missing);
    for ((node, before, then), (_, after, now)) in before.into_iter().zip(after) {
        match (before, after) {
            (Ok(before), Ok(after)) => {
                rows.extend(top::between(&node, &before, &after, now - then));
            }
            (Err(error), _) | (_, Err(error)) => failures.push((node, error.to_string())),
        }
    }
    let rows = top::most(rows, args.metric.as_deref(), args.limit);
    show(args.output, &json!({"rows": rows, "failed": as_json(&failures)}), &top::table(&rows));
    Ok(end(&failures))
}

pub async fn probes(args: ProbesArgs) -> Result<ExitCode, Error> {
    let answers = answers(&args.reach, "/api/v1/probes").await?;
    show(args.output, &views::all(&answers), &views::probes(&answers));
    Ok(end(&failed(&answers)))
}

pub async fn events(args: EventsArgs) -> Result<ExitCode, Error> {
    let mut path = format!("/api/v1/events?limit={}", args.limit);
    if let Some(probe) = &args.probe {
        path += &format!("&probe={}", kstrobe_kube::encode(probe));
    }
    let answers = answers(&args.reach, &path).await?;
    let (events, failures) = (views::events(&answers, args.limit), failed(&answers));
    show(args.output, &json!({"events": events, "failed": as_json(&failures)}), &views::event_table(&events));
    Ok(end(&failures))
}

type Answers = Vec<(String, Result<Value, kstrobe_fleet::Error>)>;

async fn answers(reach: &Reach, path: &str) -> Result<Answers, Error> {
    let door = reach.door()?;
    let (targets, missing) = reach.targets(&door, true).await?;
    let read = |text: &str| Ok(serde_json::from_str(text)?);
    let answered = ask(&door, &targets, path, read).await.into_iter();
    let mut answers: Answers = answered.map(|(node, answer, _)| (node, answer)).collect();
    answers.extend(missing.into_iter().map(|missing| (missing.node, Err(missing.reason.into()))));
    Ok(answers)
}

/// What each answers, in their order, and when. Texts are read as they come: those of a thousand nodes are not kept.
async fn ask<T: Send + 'static>(
    door: &Door,
    targets: &[Target],
    path: &str,
    read: impl Fn(&str) -> Result<T, kstrobe_fleet::Error> + Copy + Send + 'static,
) -> Vec<(String, Result<T, kstrobe_fleet::Error>, Instant)> {
    let turns = Arc::new(Semaphore::new(MAX_AT_ONCE));
    let mut tasks = JoinSet::new();
    for (at, target) in targets.iter().cloned().enumerate() {
        let (door, path, turns) = (door.clone(), path.to_owned(), turns.clone());
        tasks.spawn(async move {
            let _turn = turns.acquire_owned().await;
            let asking = async {
                let answer = door.ask(&target.agent, Method::GET, &path, Bytes::new()).await?;
                let status = answer.status();
                let body = whole(answer).await?;
                if status.is_success() { Ok((body, Instant::now())) } else { Err(explain(status, &body)) }
            };
            let late = |_| kstrobe_fleet::Error::Timeout(LIMIT);
            let answer = tokio::time::timeout(LIMIT, asking).await.map_err(late).and_then(|answer| answer);
            let came = answer.as_ref().map_or_else(|_| Instant::now(), |(_, came)| *came);
            let found = answer.and_then(|(body, _)| read(&String::from_utf8_lossy(&body)));
            (at, (target.node, found, came))
        });
    }
    let mut found = tasks.join_all().await;
    found.sort_by_key(|(at, _)| *at);
    found.into_iter().map(|(_, answer)| answer).collect()
}

fn failures(missing: &[Missing]) -> Vec<(String, String)> {
    missing.iter().map(|missing| (missing.node.clone(), missing.reason.to_string())).collect()
}

fn failed(answers: &Answers) -> Vec<(String, String)> {
    answers.iter().filter_map(|(node, answer)| Some((node.clone(), answer.as_ref().err()?.to_string()))).collect()
}

fn as_json(failures: &[(String, String)]) -> Vec<Value> {
    failures.iter().map(|(node, error)| json!({"node": node, "error": error})).collect()
}

fn show(output: Output, all: &Value, people: &Table) {
    match output {
        Output::Json => println!("{all:#}"),
        Output::Text => table(&people.header, &people.rows),
    }
}

/// Says which nodes failed: 1 when any did.
fn end(failures: &[(String, String)]) -> ExitCode {
    failures.iter().for_each(|(node, error)| eprintln!("{node}: {error}"));
    ExitCode::from(u8::from(!failures.is_empty()))
}
