//! Screens as text: keys are pressed, and the recorded answers of an agent are taken. `BLESS=1` writes them anew. With
//! `KSTROBE_RECORD=URL`, too, answers that are not in `answers.json` come from the agent there, and are added.
//!
//! A case is `agent/tests/top/NAME.screen`: a line `size WIDTHxHEIGHT`, one `keys KEY..`, `---`, and the screen, in which `<` follows the row
//! of the cursor.

use super::answers::{Event, shown};
use super::request::{Answer, Request};
use super::screen::{self, Colours, Look};
use super::state::{Flow, Key, Size, State};
use crate::cli::client::{AgentArgs, Client, runtime};
use clap::Parser;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::style::Modifier;
use serde_json::Value;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const PLAIN: Look = Look { colours: Colours::None, is_light: false, has_cursor: true };

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/top")
}

/// Answers of an agent by their path.
struct Recorded(RefCell<BTreeMap<String, Value>>);

impl Recorded {
    fn read() -> Recorded {
        let text = std::fs::read_to_string(folder().join("answers.json")).unwrap();
        Recorded(serde_json::from_str(&text).unwrap())
    }

    /// Asks an agent for what is missing. It is there for the next reader.
    fn record(&self, path: &str) -> Option<Value> {
        #[derive(clap::Parser)]
        struct Arguments {
            #[command(flatten)]
            agent: AgentArgs,
        }
        let url = std::env::var("KSTROBE_RECORD").ok()?;
        let agent = Arguments::parse_from(["top", "--url", &url]).agent;
        let asked = runtime().unwrap().block_on(async { Client::new(&agent)?.get::<Value>(path).await });
        let value = asked.unwrap();
        self.0.borrow_mut().insert(path.to_owned(), value.clone());
        let answers = self.0.borrow();
        let lines = answers.iter().map(|(path, value)| format!("{}: {value}", Value::from(path.as_str())));
        let lines: Vec<String> = lines.collect();
        std::fs::write(folder().join("answers.json"), format!("{{\n{}\n}}\n", lines.join(",\n"))).unwrap();
        Some(value)
    }

    /// The answer, as the API's client would read it.
    fn answer(&self, request: &Request) -> Option<Answer> {
        let value = self.0.borrow().get(&request.path()).cloned()?;
        Some(match request {
            Request::Probes => Answer::Probes(serde_json::from_value(value).unwrap()),
            Request::History => Answer::History(serde_json::from_value(value).unwrap()),
            Request::Total { .. } | Request::Table { .. } => Answer::Query(serde_json::from_value(value).unwrap()),
            Request::Events { .. } => Answer::Events(serde_json::from_value(value).unwrap()),
        })
    }

    /// Gives the state what it wants, until it wants nothing else.
    fn settle(&self, state: &mut State) {
        loop {
            let before = state.wanted();
            for request in &before {
                let answer =
                    self.answer(request).or_else(|| self.record(&request.path()).and_then(|_| self.answer(request)));
                let answer = answer.unwrap_or_else(|| panic!("no answer is recorded for {}", request.path()));
                state.take(request.clone(), answer);
            }
            if state.wanted() == before {
                return;
            }
        }
    }
}

fn key(name: &str) -> Key {
    match name {
        "up" => Key::Up,
        "down" => Key::Down,
        "pagedown" => Key::PageDown,
        "end" => Key::End,
        "enter" => Key::Enter,
        "esc" => Key::Escape,
        "backspace" => Key::Backspace,
        letter => Key::Char(letter.chars().next().unwrap()),
    }
}

fn drawn(state: &State, look: Look) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(state.size.width, state.size.height)).unwrap();
    terminal.draw(|frame| screen::draw(state, look, frame.buffer_mut())).unwrap();
    terminal.backend().buffer().clone()
}

fn text(buffer: &Buffer) -> String {
    let line = |cells: &[ratatui::buffer::Cell]| {
        let text: String = cells.iter().map(|cell| cell.symbol()).collect();
        let mark = if cells[0].modifier.contains(Modifier::REVERSED) { " <" } else { "" };
        format!("{}{mark}\n", text.trim_end())
    };
    buffer.content().chunks(buffer.area.width.into()).map(line).collect()
}

fn of_case(head: &str, recorded: &Recorded) -> State {
    let mut words = head.lines().map(|line| line.split_once(' ').unwrap_or((line, "")));
    let (_, size) = words.next().unwrap();
    let (width, height) = size.split_once('x').unwrap();
    let mut state = State::new(Size { width: width.parse().unwrap(), height: height.parse().unwrap() }, None);
    recorded.settle(&mut state);
    for name in words.next().unwrap().1.split_whitespace() {
        assert_eq!(state.press(key(name)), Flow::Continue, "{name}");
        recorded.settle(&mut state);
    }
    state
}

#[test]
fn screens_are_those_of_the_cases() {
    let recorded = Recorded::read();
    let bless = std::env::var_os("BLESS").is_some();
    let files = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let mut cases: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|end| end == "screen")).collect();
    cases.sort();
    assert!(cases.len() >= 8, "{cases:?}");
    for case in cases {
        let whole = std::fs::read_to_string(&case).unwrap();
        let (head, expected) = whole.split_once("---\n").unwrap();
        let shown = text(&drawn(&of_case(head, &recorded), PLAIN));
        if bless {
            std::fs::write(&case, format!("{head}---\n{shown}")).unwrap();
        } else {
            assert_eq!(shown, expected, "{}", case.display());
        }
    }
}

#[test]
fn no_size_and_no_key_is_too_much() {
    let recorded = Recorded::read();
    for (width, height) in [(1, 1), (3, 3), (10, 4), (33, 7), (79, 23)] {
        let mut state = State::new(Size { width, height }, None);
        for name in [
            "down", "enter", "enter", "enter", "pagedown", "b", "e", "end", "s", "esc", "esc", "esc", "esc", "/", "x",
            "?", "[", "]",
        ] {
            for request in state.wanted() {
                // Columns of such widths are not recorded.
                recorded.answer(&request).into_iter().for_each(|answer| state.take(request.clone(), answer));
            }
            drawn(&state, PLAIN);
            state.press(key(name));
        }
    }
}

#[test]
fn colours_change_the_heat_map_alone() {
    let recorded = Recorded::read();
    let state = of_case("size 80x24\nkeys / s o f t i r q _ d u enter enter", &recorded);
    let full = drawn(&state, Look { colours: Colours::Full, ..PLAIN });
    let is_half = |cell: &&ratatui::buffer::Cell| ["▀", "▄"].contains(&cell.symbol());
    assert!(full.content().iter().filter(is_half).count() > 20);
    let plain = drawn(&state, PLAIN);
    let has_colour = |cell: &ratatui::buffer::Cell| cell.fg != ratatui::style::Color::Reset;
    assert!(full.content().iter().any(has_colour) && !plain.content().iter().any(has_colour));
    let differs = full.content().iter().zip(plain.content()).enumerate().filter(|(_, (a, b))| a.symbol() != b.symbol());
    let lines: Vec<usize> = differs.map(|(place, _)| place / 80).collect();
    assert!(lines.iter().all(|line| (3..13).contains(line)), "{lines:?}");
}

#[test]
fn a_failure_is_shown_until_the_next_answer() {
    let recorded = Recorded::read();
    let mut state = of_case("size 80x24\nkeys", &recorded);
    state.failed("no agent answers at http://node-7:9779/\nhint: start one".to_owned());
    assert!(text(&drawn(&state, PLAIN)).ends_with("\nno agent answers at http://node-7:9779/\n"));
    recorded.settle(&mut state);
    assert!(text(&drawn(&state, PLAIN)).contains("q quit"));
}

#[test]
fn keys_end_it() {
    let mut state = State::new(Size { width: 80, height: 24 }, None);
    assert_eq!(state.press(Key::Char('/')), Flow::Continue);
    assert_eq!(state.press(Key::Char('q')), Flow::Continue, "a letter of the filter");
    assert_eq!(state.press(Key::Interrupt), Flow::Quit);
    state.press(Key::Enter);
    assert_eq!(state.press(Key::Char('q')), Flow::Quit);
}

#[test]
fn stacks_are_cut_to_their_innermost_frames() {
    let fields = serde_json::json!({"comm": "mysqld", "took": 0.25, "stack": ["a", "b", "c"]});
    let Value::Object(fields) = fields else { panic!() };
    let event = Event { time: "2026-02-28T23:59:59.012345Z".into(), probe: "p".into(), pid: 1, fields };
    assert_eq!(
        (event.clock(), event.comm(), event.text(2).as_str()),
        ("23:59:59.012", "mysqld", "stack=a<b.. took=0.25")
    );
    assert_eq!(shown(&event.fields["stack"], usize::MAX), "a<b<c");
}
