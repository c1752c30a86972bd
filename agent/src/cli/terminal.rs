//! The terminal that a command draws in.

use std::os::fd::AsFd;

use nix::unistd::{getpgrp, tcgetpgrp};
use ratatui::crossterm::Command;
use ratatui::crossterm::cursor::MoveToPreviousLine;
use ratatui::crossterm::terminal::{Clear, ClearType, DisableLineWrap, EnableLineWrap};
use terminal_size::terminal_size_of;

/// Rows of a terminal that does not say its size.
const USUAL_ROWS: usize = 24;

/// What the environment says of the terminal.
#[derive(Debug, Default)]
pub struct Environment {
    pub term: String,
    pub colorterm: String,
    /// Set by some terminals: foreground and background.
    pub colorfgbg: String,
    pub no_color: bool,
}

impl Environment {
    pub fn own() -> Environment {
        let read = |name| std::env::var(name).unwrap_or_default();
        Environment {
            term: read("TERM"),
            colorterm: read("COLORTERM"),
            colorfgbg: read("COLORFGBG"),
            no_color: !read("NO_COLOR").is_empty(),
        }
    }

    /// Whether the cursor can be placed, which a screen that changes needs.
    pub fn can_draw(&self) -> bool {
        !["", "dumb"].contains(&self.term.as_str())
    }
}

/// Lines at the end of a terminal that the next ones replace.
#[derive(Debug)]
pub struct LiveLines<T> {
    terminal: T,
    drawn: u16,
}

impl<T: AsFd> LiveLines<T> {
    /// None yet.
    pub fn of(terminal: T) -> LiveLines<T> {
        LiveLines { terminal, drawn: 0 }
    }

    /// Whether the shell has put this process in the background of its terminal (`&`), where the lines above the cursor are those of others.
    /// A terminal that does not say so has no shell.
    pub fn is_in_background(&self) -> bool {
        tcgetpgrp(&self.terminal).is_ok_and(|foreground| foreground != getpgrp())
    }

    /// What draws these lines in place of those before, as many as the terminal can have replaced. It cuts the ones that are wider than it is:
    /// a line that is broken in two would leave a part behind. Nothing in the background.
    pub fn replace(&mut self, lines: &[&str]) -> String {
        let rows = terminal_size_of(&self.terminal).map_or(USUAL_ROWS, |(_, rows)| usize::from(rows.0));
        let mut text = self.clear();
        if self.is_in_background() {
            return text;
        }
        write(DisableLineWrap, &mut text);
        for line in fitting(lines, rows) {
            text += &line;
            text.push('\n');
            self.drawn = self.drawn.saturating_add(1);
        }
        write(EnableLineWrap, &mut text);
        text
    }

    /// What takes away the lines that were drawn, so that others come in their place. In the background they stay.
    pub fn clear(&mut self) -> String {
        let mut text = String::new();
        let drawn = std::mem::take(&mut self.drawn);
        if drawn > 0 && !self.is_in_background() {
            write(MoveToPreviousLine(drawn), &mut text);
            write(Clear(ClearType::FromCursorDown), &mut text);
        }
        text
    }
}

/// Lines that scroll out at the top cannot be replaced. The last line is kept: it sums up the others.
fn fitting(lines: &[&str], rows: usize) -> Vec<String> {
    // The cursor stands on a row of its own.
    let most = rows.saturating_sub(1).max(1);
    let mut fit: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
    if lines.len() > most {
        let left_out = most.saturating_sub(2)..lines.len() - 1;
        let more = format!("... {} more lines do not fit", left_out.len());
        fit.splice(left_out, (most >= 2).then_some(more));
    }
    fit
}

fn write(command: impl Command, text: &mut String) {
    // Writing to a `String` does not fail.
    let _ = command.write_ansi(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_take_the_place_of_those_before() {
        let mut live = LiveLines::of(std::fs::File::open("/dev/null").unwrap());
        assert_eq!(live.clear(), "");
        assert_eq!(live.replace(&["one", "two"]), "\u{1b}[?7lone\ntwo\n\u{1b}[?7h");
        assert_eq!(live.replace(&["three"]), "\u{1b}[2F\u{1b}[J\u{1b}[?7lthree\n\u{1b}[?7h");
        assert_eq!(live.clear(), "\u{1b}[1F\u{1b}[J");
        assert_eq!(live.clear(), "");
    }

    #[test]
    fn lines_that_do_not_fit_are_counted() {
        let lines = ["a", "b", "c", "d", "e", "what is missing"];
        assert_eq!(fitting(&lines, 7), lines);
        assert_eq!(fitting(&lines, 6), ["a", "b", "c", "... 2 more lines do not fit", "what is missing"]);
        assert_eq!(fitting(&lines, 3), ["... 5 more lines do not fit", "what is missing"]);
        assert_eq!(fitting(&lines, 2), ["what is missing"]);
        assert_eq!(fitting(&lines, 0), ["what is missing"]);
    }
}
