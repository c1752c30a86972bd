//! The terminal: keys in, screens out.

use super::fetch::{News, fetch};
use super::request::Request;
use super::screen::{self, Colours, Look};
use super::source::Source;
use super::state::{Flow, Key, Size, State};
use crate::cli::terminal::Environment;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::io;
use std::sync::mpsc;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// Longest time until an answer is drawn.
const REDRAW: Duration = Duration::from_millis(100);

/// How a screen looks in this terminal.
pub fn look(of: &Environment) -> Look {
    let is_full = ["truecolor", "24bit"].contains(&of.colorterm.as_str());
    let colours = match () {
        () if of.no_color || !of.can_draw() => Colours::None,
        () if is_full || of.term.contains("direct") => Colours::Full,
        () if of.term.contains("256") => Colours::Indexed,
        // Eight colours are too few for a ramp.
        () => Colours::None,
    };
    let is_light = of.colorfgbg.rsplit(';').next().is_some_and(|background| ["7", "15"].contains(&background));
    Look { colours, is_light, has_cursor: true }
}

/// Shows screens until the user ends it.
pub fn run(mut state: State, look: Look, source: impl Source, runtime: &Runtime) -> io::Result<()> {
    let (wanted, requests) = watch::channel(state.wanted());
    let (sender, news) = mpsc::channel();
    let mut terminal = ratatui::try_init()?;
    let done = std::thread::scope(|scope| {
        scope.spawn(|| runtime.block_on(fetch(source, requests, sender)));
        let done = serve(&mut state, look, &mut terminal, &wanted, &news);
        // Ends the thread.
        drop((wanted, news));
        done
    });
    ratatui::try_restore()?;
    done
}

fn serve<E: std::error::Error>(
    state: &mut State,
    look: Look,
    terminal: &mut DefaultTerminal,
    wanted: &watch::Sender<Vec<Request>>,
    news: &mpsc::Receiver<News<E>>,
) -> io::Result<()> {
    loop {
        let drawn = terminal.draw(|frame| {
            let area = frame.area();
            state.size = Size { width: area.width, height: area.height };
            screen::draw(state, look, frame.buffer_mut());
        });
        drawn?;
        let mut is_changed = false;
        while !is_changed {
            wanted.send_if_modified(|requests| {
                let now = state.wanted();
                let differs = *requests != now;
                *requests = now;
                differs
            });
            // All keys that wait, then one screen: a slow line must not lag behind a key that is held down.
            let mut timeout = REDRAW;
            while event::poll(timeout)? {
                (is_changed, timeout) = (true, Duration::ZERO);
                if let Event::Key(key) = event::read()?
                    && let Some(key) = pressed(key)
                    && state.press(key) == Flow::Quit
                {
                    return Ok(());
                }
            }
            for one in news.try_iter() {
                is_changed = true;
                match one {
                    News::Answer(request, answered) => state.take(request, *answered),
                    News::Failed(error) => state.failed(error.to_string()),
                    News::Stop => return Ok(()),
                }
            }
        }
    }
}

fn pressed(key: KeyEvent) -> Option<Key> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    Some(match key.code {
        KeyCode::Char('c' | 'd') if is_control => Key::Interrupt,
        KeyCode::Char(_) if is_control => return None,
        KeyCode::Char(letter) => Key::Char(letter),
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_those_that_the_terminal_has() {
        let of = |term: &str, colorterm: &str, no_color| {
            let (term, colorterm) = (term.to_owned(), colorterm.to_owned());
            look(&Environment { term, colorterm, no_color, ..Environment::default() }).colours
        };
        assert_eq!(of("xterm-256color", "", false), Colours::Indexed);
        assert_eq!(of("xterm-256color", "truecolor", false), Colours::Full);
        assert_eq!(of("xterm-256color", "truecolor", true), Colours::None);
        for plain in ["dumb", "vt100", "xterm", "linux", ""] {
            assert_eq!(of(plain, "", false), Colours::None, "{plain}");
        }
        let light = Environment { colorfgbg: "0;15".into(), ..Environment::default() };
        assert!(look(&light).is_light && !look(&Environment::default()).is_light);
    }
}
