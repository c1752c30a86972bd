//! `kstrobe events`: the last slow events of a running agent, and those to come.

use super::client::{AgentArgs, Client, Error, runtime};
use super::top::answers::{Event, Events};
use super::top::screen::events::{head, line};
use super::{Output, fail};
use serde_json::Value;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only events of this probe.
    probe: Option<String>,
    /// Go on with those to come, until Ctrl-C.
    #[arg(short, long)]
    follow: bool,
    /// Events of the past to print at most.
    #[arg(short = 'n', long = "limit", value_name = "N", default_value_t = 20)]
    limit: u16,
    /// Columns, or a line of JSON for each event.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    agent: AgentArgs,
}

pub fn run(args: &Args) -> ExitCode {
    match print_events(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(error),
    }
}

fn print_events(args: &Args) -> Result<(), Error> {
    let probe = args.probe.as_ref().map(|probe| format!("&probe={}", kstrobe_kube::encode(probe))).unwrap_or_default();
    let path = format!("/api/v1/events?limit={}{probe}", args.limit);
    runtime()?.block_on(async {
        let client = Client::new(&args.agent)?;
        if args.follow {
            print_head(args.output);
            return client.follow(&(path + "&follow=true"), |one| println!("{}", streamed(one, args.output))).await;
        }
        match args.output {
            Output::Json => {
                let events: Value = client.get(&path).await?;
                events["events"].as_array().into_iter().flatten().for_each(|event| println!("{event}"));
            }
            Output::Text => {
                let events: Events = client.get(&path).await?;
                print_head(args.output);
                events.events.iter().for_each(|event| println!("{}", line(event)));
            }
        }
        Ok(())
    })
}

fn print_head(output: Output) {
    if output == Output::Text {
        println!("{}", head(false));
    }
}

/// A line of the stream. One that is no event says how many could not be sent in time.
fn streamed(bytes: &[u8], output: Output) -> String {
    let text = String::from_utf8_lossy(bytes);
    match (output, serde_json::from_slice::<Event>(bytes)) {
        (Output::Text, Ok(event)) => line(&event),
        (Output::Text, Err(_)) => match serde_json::from_slice::<Value>(bytes) {
            Ok(value) if value["gone"].is_u64() => {
                format!("{} events came faster than they could be sent", value["gone"])
            }
            _ => text.into_owned(),
        },
        (Output::Json, _) => text.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_columns_and_losses_a_line() {
        let event = r#"{"time":"2026-02-28T23:59:59.012345Z","id":"a0","probe":"recvfrom","pid":7,"tid":8,"fields":{"comm":"my\u001bsqld","took":0.25,"stack":["a","b","c","d"]}}"#;
        let shown = streamed(event.as_bytes(), Output::Text);
        assert_eq!(shown, "23:59:59.012  recvfrom                7  my\u{fffd}sqld          stack=a<b<c.. took=0.25");
        assert_eq!(streamed(event.as_bytes(), Output::Json), event);
        assert_eq!(streamed(br#"{"gone":3}"#, Output::Text), "3 events came faster than they could be sent");
    }
}
