//! `kstrobe fleet probes` and `events`

use super::super::{Output, table};
use super::Reach;
use super::ask::{self, Turns};
use super::error::Error;
use kstrobe_fleet::views::{self, Table};
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::Duration;

/// For an answer.
const LIMIT: Duration = Duration::from_secs(30);

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
    let read = |body: &[u8]| serde_json::from_slice(body);
    let mut answers = ask::each(&door, &Turns::new(), targets, path, LIMIT, read).await;
    answers.extend(missing.into_iter().map(|missing| (missing.node, Err(missing.reason.into()))));
    Ok(answers)
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
