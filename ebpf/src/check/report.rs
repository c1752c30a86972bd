//! Collecting mistakes and choices.

use crate::diag::{Diagnostic, Place, Span};
use crate::source::SpannedStr;
use crate::typed::Choice;

/// Stands for a mistake that is in the [`Report`] already: the caller returns without another diagnostic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reported;

/// A result whose error has been reported.
pub(super) type Checked<T> = Result<T, Reported>;

/// The mistakes and traps found, and the choices made so far.
#[derive(Default)]
pub(super) struct Report {
    mistakes: Vec<Diagnostic>,
    choices: Vec<Choice>,
    warnings: Vec<Diagnostic>,
}

impl Report {
    pub(super) fn add(&mut self, diagnostic: Diagnostic) -> Reported {
        // An expression is checked once per site: the same mistake at two sites is one mistake.
        if !self.mistakes.contains(&diagnostic) {
            self.mistakes.push(diagnostic);
        }
        Reported
    }

    /// Whether nothing is wrong so far.
    pub(super) fn is_empty(&self) -> bool {
        self.mistakes.is_empty()
    }

    /// Adds a warning: an expression that compiles but is probably a mistake.
    pub(super) fn warn(&mut self, diagnostic: Diagnostic) {
        if !self.warnings.contains(&diagnostic) {
            self.warnings.push(diagnostic);
        }
    }

    /// Notes what was chosen among several ways.
    pub(super) fn choose(&mut self, choice: Choice) {
        if !self.choices.contains(&choice) {
            self.choices.push(choice);
        }
    }

    /// Mistakes, choices and warnings.
    pub(super) fn finish(self) -> (Vec<Diagnostic>, Vec<Choice>, Vec<Diagnostic>) {
        (self.mistakes, self.choices, self.warnings)
    }
}

pub(super) fn whole(text: &SpannedStr) -> Place {
    Place { text: text.id, span: Span::new(0, text.value.len()) }
}

/// A mistake about a name: a slip when a near name exists (the user's), else something this kernel lacks.
pub(super) fn unknown(at: Place, message: String, near: Option<&str>, otherwise: &str) -> Diagnostic {
    match near {
        Some(near) => Diagnostic::user(at, message).hint(format!("did you mean `{near}`?")),
        None => Diagnostic::target(at, message).hint(otherwise),
    }
}
