//! `kstrobe top`: what a running agent measures, on a screen. `state` and `screen` are pure; `fetch` and `terminal` touch the world.

pub(super) mod answers;
mod fetch;
mod own_agent;
mod request;
pub(super) mod screen;
mod state;
mod terminal;

use super::client::{AgentArgs, Client, Error, runtime};
use super::{Output, fail};
use crate::app::InProcess;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use request::Request;
use screen::{Colours, Look};
use serde_json::{Value, json};
use state::{Page, Size, State};
use std::io::{IsTerminal, stdout};
use std::process::ExitCode;
use terminal::Environment;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

/// Of a screen that is printed, where there is no terminal.
const PRINTED_WIDTH: u16 = 80;
/// Lines of a printed page of one metric.
const PRINTED_HEIGHT: u16 = 40;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Show this metric first.
    metric: Option<String>,
    /// Print one screen and end; also without a terminal that can place its cursor.
    #[arg(long)]
    once: bool,
    /// Output format; JSON is printed once.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    agent: AgentArgs,
    #[command(flatten)]
    own: own_agent::ProbeArgs,
}

#[derive(Debug, thiserror::Error)]
enum TopError {
    #[error(transparent)]
    Agent(#[from] Error),
    #[error(transparent)]
    OwnAgent(#[from] own_agent::OwnAgentError),
    #[error("the agent has no metric `{0}`: kstrobe top shows all")]
    NoMetric(String),
    #[error("the terminal: {0}")]
    Terminal(#[from] std::io::Error),
}

pub fn run(args: &Args) -> ExitCode {
    match show(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(error),
    }
}

fn show(args: &Args) -> Result<(), TopError> {
    let runtime = runtime()?;
    let (environment, is_terminal) = (Environment::own(), stdout().is_terminal());
    let once = args.once || args.output == Output::Json || !is_terminal || !environment.can_draw();
    let width = ratatui::crossterm::terminal::size().map_or(PRINTED_WIDTH, |(width, _)| width);
    let width = if is_terminal { width } else { PRINTED_WIDTH };
    let mut state = State::new(Size { width, height: PRINTED_HEIGHT }, args.metric.clone());
    let Connected { client, own } = connect(args, &mut state, &runtime)?;
    if let Some(own) = own.as_ref().filter(|_| once) {
        runtime.block_on(own_agent::measured(&client, own))?;
        runtime.block_on(complete(&client, &mut state, FIRST.into()))?;
    }
    // Of probes that have just begun, each metric may still come.
    if let Some(metric) = args.metric.as_ref().filter(|_| once || own.is_none())
        && state.summary(metric).is_none()
    {
        return Err(TopError::NoMetric(metric.clone()));
    }
    if !once {
        return Ok(terminal::run(state, environment.look(), client, &runtime)?);
    }
    if args.output == Output::Json {
        println!("{}", runtime.block_on(as_json(&client, &state))?);
        return Ok(());
    }
    // All rows, whatever the terminal's height.
    let rows = u16::try_from(state.metrics().len() + 3).unwrap_or(u16::MAX);
    state.size.height = if args.metric.is_some() { PRINTED_HEIGHT } else { rows };
    let wanted = state.wanted();
    runtime.block_on(complete(&client, &mut state, wanted))?;
    print!("{}", page(&state));
    Ok(())
}

/// The answers to these are needed to know what else is.
const FIRST: [Request; 2] = [Request::History, Request::Probes];

struct Connected {
    client: Client,
    /// The agent of this process, where it asks that one.
    own: Option<InProcess>,
}

/// Connects to the agent that the command line names, or to that of this machine. Where there is none, or probes are named,
/// this process runs probes itself.
fn connect(args: &Args, state: &mut State, runtime: &Runtime) -> Result<Connected, TopError> {
    let mut ask = |args: &AgentArgs| {
        runtime.block_on(async {
            let client = Client::new(args)?;
            complete(&client, state, FIRST.into()).await.map(|()| client)
        })
    };
    if !args.own.is_given() {
        match ask(&args.agent) {
            Err(error @ Error::NoAgent { .. }) if !args.agent.is_named() => eprintln!("{}", error.summary()),
            done => return Ok(Connected { client: done?, own: None }),
        }
    }
    eprintln!("measuring with probes of this command, which end with it");
    let own = own_agent::start(&args.own)?;
    let client = ask(&AgentArgs::at(own.address()))?;
    state.own_probes = true;
    Ok(Connected { client, own: Some(own) })
}

/// Asks for all of it at once, and takes the answers.
async fn complete(client: &Client, state: &mut State, wanted: Vec<Request>) -> Result<(), Error> {
    let mut under_way = JoinSet::new();
    for request in wanted {
        let client = client.clone();
        under_way.spawn(async move { (request.ask(&client).await, request) });
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

/// The API's own answers.
async fn as_json(client: &Client, state: &State) -> Result<Value, Error> {
    let probes: Value = client.get(&Request::Probes.path()).await?;
    let (name, request) = match state.page() {
        Page::Metric(page) => ("query", state.table_request(page).unwrap_or_else(|| state.map_request(page))),
        _ => ("history", Request::History),
    };
    let answer: Value = client.get(&request.path()).await?;
    Ok(json!({ "node": probes["node"], "probes": probes["probes"], name: answer }))
}
