//! What is shown to people: a message, its place in the YAML file and what to do about it.

use crate::model::Location;
use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet, normalize_untrusted_str};
use kstrobe_ebpf::source::char_boundary;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Severity {
    /// The definition it stands in is left out.
    Error,
    /// The definition is used.
    Warning,
    /// Nothing is wrong with it.
    Note,
}

/// One mistake.
#[derive(Clone, Debug, PartialEq)]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// Where; `None` when no text is to blame.
    pub at: Option<Location>,
    /// What is wrong, one line, no trailing full stop.
    pub message: String,
    /// What to do, one line.
    pub hint: Option<String>,
}

impl Diagnostic {
    pub fn error(at: &Location, message: impl Into<String>) -> Self {
        Self { severity: Severity::Error, at: Some(at.clone()), message: message.into(), hint: None }
    }

    pub fn warning(at: &Location, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(at, message) }
    }

    pub fn note(at: &Location, message: impl Into<String>) -> Self {
        Self { severity: Severity::Note, ..Self::error(at, message) }
    }

    /// Adds what to do about it.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Whether the definition it stands in is left out.
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }

    /// All of it on one line, for logs and lists: `FILE:LINE:COLUMN: message (hint)`.
    pub fn one_line(&self) -> String {
        let place = self.at.as_ref().map(|at| format!("{}:{}:{}: ", at.file.name, at.line, at.column));
        let hint = self.hint.as_ref().map(|hint| format!(" ({hint})"));
        format!("{}{}{}", place.unwrap_or_default(), self.message, hint.unwrap_or_default())
    }
}

/// Diagnostics as plain text: file, line and column, the source line with a caret, and the hint.
pub fn render(diagnostics: &[Diagnostic]) -> String {
    render_with(&Renderer::plain(), diagnostics)
}

/// Like [`render`], in colour for a terminal.
pub fn render_ansi(diagnostics: &[Diagnostic]) -> String {
    render_with(&Renderer::styled(), diagnostics)
}

fn render_with(renderer: &Renderer, diagnostics: &[Diagnostic]) -> String {
    let mut text = String::new();
    for diagnostic in diagnostics {
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&renderer.render(&[group(diagnostic)]));
        text.push('\n');
    }
    text
}

fn group(diagnostic: &Diagnostic) -> Group<'_> {
    let level = match diagnostic.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
        Severity::Note => Level::NOTE,
    };
    let title = level.primary_title(diagnostic.message.as_str());
    let group = match &diagnostic.at {
        Some(at) => title.element(snippet(at)),
        None => Group::with_title(title),
    };
    match &diagnostic.hint {
        // Only titles are made safe for a terminal by the renderer; hints quote the user's text too.
        Some(hint) => group.element(Level::HELP.message(normalize_untrusted_str(hint))),
        None => group,
    }
}

/// The first line of the place: what follows adds nothing to a caret, and the renderer need not read the whole file.
fn snippet(at: &Location) -> Snippet<'_, annotate_snippets::Annotation<'_>> {
    let text = &at.file.text;
    let start = char_boundary(text, at.start);
    let line_start = text[..start].rfind('\n').map_or(0, |i| i + 1);
    let line_end = text[start..].find('\n').map_or(text.len(), |i| start + i);
    let line = text[line_start..line_end].trim_end_matches('\r');
    let first = (start - line_start).min(line.len());
    let last = (char_boundary(text, at.end).max(start) - line_start).min(line.len()).max(first);
    Snippet::source(line)
        .path(at.file.name.as_str())
        .line_start(at.line as usize)
        .annotation(AnnotationKind::Primary.span(first..last))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::SourceFile;
    use std::sync::Arc;

    fn at(text: &str, part: &str) -> Location {
        let file = Arc::new(SourceFile { name: "probes.yaml".into(), text: text.into() });
        let start = text.find(part).unwrap();
        Location::new(&file, start..start + part.len())
    }

    #[test]
    fn file_line_column_caret_and_hint_are_shown() {
        let d = Diagnostic::error(&at("a: 1\nb: wrong\n", "wrong"), "not a number").hint("write `b: 2`");
        let expected = "\
error: not a number
 --> probes.yaml:2:4
  |
2 | b: wrong
  |    ^^^^^
  |
  = help: write `b: 2`
";
        assert_eq!(render(std::slice::from_ref(&d)), expected);
        assert_eq!(d.one_line(), "probes.yaml:2:4: not a number (write `b: 2`)");
        let warning = Diagnostic { severity: Severity::Warning, at: None, ..d.clone() };
        assert_eq!(warning.one_line(), "not a number (write `b: 2`)");
        assert!(render(&[warning, d]).starts_with("warning: not a number\n"));
    }

    #[test]
    fn a_place_over_many_lines_is_marked_on_its_first() {
        let d = Diagnostic::error(&at("a: |\r\n  é x\r\n  y\r\nb: 1\n", "x\r\n  y"), "wrong");
        assert!(render(&[d]).contains("2 |   é x\n  |     ^\n"));
    }

    #[test]
    fn colour_is_only_in_the_terminal_form_and_text_cannot_add_any() {
        let d = Diagnostic::error(&at("a: \u{1b}[31m\n", "a"), "\u{1b}[31mred").hint("\u{1b}[31mred");
        assert!(!render(std::slice::from_ref(&d)).contains('\u{1b}'));
        assert!(render_ansi(std::slice::from_ref(&d)).contains('\u{1b}'));
        assert!(!render_ansi(&[d]).contains("\u{1b}[31mred"));
    }
}
