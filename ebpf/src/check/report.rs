//! Collecting mistakes.

use crate::diag::{Diagnostic, Place, Span};
use crate::program::Text;

/// Stands for a mistake that is in the [`Report`] already: whoever gets it stops quietly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reported;

/// A result whose error has been reported.
pub(super) type Checked<T> = Result<T, Reported>;

/// The mistakes found so far.
#[derive(Default)]
pub(super) struct Report(Vec<Diagnostic>);

impl Report {
    pub(super) fn add(&mut self, diagnostic: Diagnostic) -> Reported {
        // An expression is checked once per site: the same mistake at two sites is one mistake.
        if !self.0.contains(&diagnostic) {
            self.0.push(diagnostic);
        }
        Reported
    }

    pub(super) fn finish(self) -> Vec<Diagnostic> {
        self.0
    }
}

/// All of a text.
pub(super) fn whole(text: &Text) -> Place {
    Place { text: text.id, span: Span::new(0, text.text.len()) }
}

/// A mistake about a name: a slip when a near name exists (the user's), else something this kernel lacks.
pub(super) fn unknown(at: Place, message: String, near: Option<&str>, otherwise: &str) -> Diagnostic {
    match near {
        Some(near) => Diagnostic::user(at, message).hint(format!("did you mean `{near}`?")),
        None => Diagnostic::target(at, message).hint(otherwise),
    }
}
