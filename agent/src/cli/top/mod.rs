//! `kstrobe top`: what running agents measure, on a screen. `state`, `screen` and `merge` are pure; `fetch`, `terminal` and the
//! sources touch the world.

pub(super) mod answers;
mod fetch;
pub(super) mod merge;
mod own_agent;
pub(super) mod request;
pub(super) mod screen;
pub(super) mod source;
pub(super) mod state;
mod terminal;

use super::client::{self, AgentArgs, Client, runtime};
use super::{Output, fail};
use crate::cli::terminal::Environment;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use request::Request;
use screen::{Colours, Look};
use serde_json::{Value, json};
use source::{Failure, Source};
use state::{Page, Size, State};
use std::io::{IsTerminal, stdout};
use std::process::ExitCode;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

/// Of a screen that is printed, where there is no terminal.
const PRINTED_WIDTH: u16 = 80;
/// Lines of a printed page of one metric.
const PRINTED_HEIGHT: u16 = 40;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    view: View,
    #[command(flatten)]
    agent: AgentArgs,
    #[command(flatten)]
    own: own_agent::ProbeArgs,
}

/// What is shown, and how.
#[derive(Debug, clap::Args)]
pub struct View {
    /// Show this metric first.
    metric: Option<String>,
    /// Print one screen and end; also without a terminal that can place its cursor.
    #[arg(long)]
    once: bool,
    /// Output format; JSON is printed once.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// `E` is why a source has no answer.
#[derive(Debug, thiserror::Error)]
pub enum TopError<E> {
    #[error(transparent)]
    Source(#[from] E),
    #[error("there is no metric `{0}`: without a name, all are shown")]
    NoMetric(String),
    #[error("the terminal: {0}")]
    Terminal(std::io::Error),
}

/// Why `kstrobe top` ends.
#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error(transparent)]
    Agent(#[from] client::Error),
    #[error(transparent)]
    OwnAgent(#[from] own_agent::OwnAgentError),
    #[error(transparent)]
    Top(#[from] TopError<client::Error>),
}

pub fn run(args: &Args) -> ExitCode {
    match run_beside(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(error),
    }
}

/// Shows what the agent measures that the command line names, or that of this machine. Where there is none, or probes are named, this
/// process runs probes itself.
fn run_beside(args: &Args) -> Result<(), RunError> {
    let runtime = runtime()?;
    // Its connections belong to the runtime.
    let client = |agent: &AgentArgs| runtime.block_on(async { Client::new(agent) });
    if !args.own.is_given() {
        match show(&args.view, client(&args.agent)?, &runtime, false) {
            Err(TopError::Source(error @ client::Error::NoAgent { .. })) if !args.agent.is_named() => {
                eprintln!("{}", error.summary());
            }
            shown => return Ok(shown.map(drop)?),
        }
    }
    eprintln!("measuring with probes of this command, which end with it");
    let own = own_agent::start(&args.own)?;
    let client = client(&AgentArgs::at(own.address()))?;
    if args.view.is_printed() {
        runtime.block_on(own_agent::measured(&client, &own))?;
    }
    show(&args.view, client, &runtime, true)?;
    Ok(())
}

impl View {
    /// Whether there is one screen, and no terminal that it needs.
    fn is_printed(&self) -> bool {
        self.once || self.output == Output::Json || !stdout().is_terminal() || !Environment::own().can_draw()
    }
}

/// Shows what a source has, once or until the user ends it. Returns the nodes that have no part in what was printed.
pub fn show<S: Source>(
    view: &View,
    source: S,
    runtime: &Runtime,
    own_probes: bool,
) -> Result<Vec<Failure>, TopError<S::Error>> {
    let (once, is_terminal) = (view.is_printed(), stdout().is_terminal());
    let width = ratatui::crossterm::terminal::size().map_or(PRINTED_WIDTH, |(width, _)| width);
    let width = if is_terminal { width } else { PRINTED_WIDTH };
    let mut state = State::new(Size { width, height: PRINTED_HEIGHT }, view.metric.clone());
    state.own_probes = own_probes;
    // The answer to this is needed to know what else is, and says whether there is an agent.
    runtime.block_on(complete(&source, &mut state, vec![Request::History, Request::Probes]))?;
    // Of probes that have just begun, each metric may still come.
    if let Some(metric) = view.metric.as_ref().filter(|_| once || !own_probes)
        && state.summary(metric).is_none()
    {
        return Err(TopError::NoMetric(metric.clone()));
    }
    if !once {
        terminal::run(state, terminal::look(&Environment::own()), source, runtime).map_err(TopError::Terminal)?;
        return Ok(Vec::new());
    }
    if view.output == Output::Json {
        let (document, failed) = runtime.block_on(as_json(&source, &state))?;
        println!("{document}");
        return Ok(failed);
    }
    // All rows, whatever the terminal's height.
    let rows = u16::try_from(state.metrics().len() + 3).unwrap_or(u16::MAX);
    state.size.height = if view.metric.is_some() { PRINTED_HEIGHT } else { rows };
    let wanted = state.wanted();
    runtime.block_on(complete(&source, &mut state, wanted))?;
    print!("{}", page(&state));
    Ok(state.failures())
}

/// Asks for all of it at once, and takes the answers.
async fn complete<S: Source>(source: &S, state: &mut State, wanted: Vec<Request>) -> Result<(), S::Error> {
    let mut under_way = JoinSet::new();
    for request in wanted {
        let source = source.clone();
        under_way.spawn(async move { (source.ask(&request).await, request) });
    }
    while let Some(done) = under_way.join_next().await {
        // A panic is reported by its own message.
        let Ok((answer, request)) = done else { continue };
        state.take(request, answer?);
    }
    Ok(())
}

/// The screen as lines of text, without its line of keys.
fn page(state: &State) -> String {
    let Size { width, height } = state.size;
    let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
    let look = Look { colours: Colours::None, is_light: false, has_cursor: false };
    screen::draw(state, look, &mut buffer);
    let lines = buffer.content().chunks(width.max(1).into());
    let line = |cells: &[ratatui::buffer::Cell]| cells.iter().map(|cell| cell.symbol()).collect::<String>();
    let lines = lines.take(usize::from(height) - 1).map(|cells| line(cells).trim_end().to_owned() + "\n");
    lines.collect::<String>().trim_end().to_owned() + "\n"
}

/// The API's answers, of one agent as they are, or merged.
async fn as_json<S: Source>(source: &S, state: &State) -> Result<(Value, Vec<Failure>), S::Error> {
    let (probes, mut failed) = source.document(&Request::Probes).await?;
    let (name, request) = match state.page() {
        Page::Metric(page) => ("query", state.table_request(page).unwrap_or_else(|| state.map_request(page))),
        _ => ("history", Request::History),
    };
    let (answer, of_answer) = source.document(&request).await?;
    for failure in of_answer {
        if failed.iter().all(|known| known.node != failure.node) {
            failed.push(failure);
        }
    }
    let mut document = json!({ "node": probes["node"], "probes": probes["probes"], name: answer });
    if state.nodes().is_some() {
        document["nodes"] = probes["nodes"].clone();
        document["failed"] = json!(failed);
    }
    Ok((document, failed))
}
