//! The terminal that a command draws in.

use ratatui::crossterm::Command;
use ratatui::crossterm::cursor::MoveToPreviousLine;
use ratatui::crossterm::terminal::{Clear, ClearType, DisableLineWrap, EnableLineWrap};

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
#[derive(Debug, Default)]
pub struct LiveLines {
    drawn: u16,
}

impl LiveLines {
    /// What draws these lines in place of those before. The terminal cuts the ones that are wider than it is: a line that is
    /// broken in two would leave a part behind. There must be fewer than its rows.
    pub fn replace<'a>(&mut self, lines: impl IntoIterator<Item = &'a str>) -> String {
        let mut text = self.clear();
        write(DisableLineWrap, &mut text);
        for line in lines {
            text += line;
            text.push('\n');
            self.drawn = self.drawn.saturating_add(1);
        }
        write(EnableLineWrap, &mut text);
        text
    }

    /// What takes the lines away.
    pub fn clear(&mut self) -> String {
        let mut text = String::new();
        if self.drawn > 0 {
            write(MoveToPreviousLine(self.drawn), &mut text);
            write(Clear(ClearType::FromCursorDown), &mut text);
        }
        self.drawn = 0;
        text
    }
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
        let mut live = LiveLines::default();
        assert_eq!(live.clear(), "");
        assert_eq!(live.replace(["one", "two"]), "\u{1b}[?7lone\ntwo\n\u{1b}[?7h");
        assert_eq!(live.replace(["three"]), "\u{1b}[2F\u{1b}[J\u{1b}[?7lthree\n\u{1b}[?7h");
        assert_eq!(live.clear(), "\u{1b}[1F\u{1b}[J");
        assert_eq!(live.clear(), "");
    }
}
