//! Collects diagnostics while a file is read: nothing stops at the first mistake.

use crate::diag::{Diagnostic, Severity};
use crate::model::Location;
use std::collections::HashSet;
use std::ops::Range;

/// A mistake inside a decoded scalar whose place is not known yet.
#[derive(Debug, PartialEq)]
pub(crate) struct Problem {
    /// Bytes of the decoded scalar; `None` for all of it.
    pub range: Option<Range<usize>>,
    /// As in [`Diagnostic`].
    pub message: String,
    /// As in [`Diagnostic`].
    pub hint: Option<String>,
}

impl Problem {
    pub fn new(message: impl Into<String>) -> Self {
        Self { range: None, message: message.into(), hint: None }
    }

    pub fn at(self, range: Range<usize>) -> Self {
        Self { range: Some(range), ..self }
    }

    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

/// The diagnostics so far.
#[derive(Default)]
pub(crate) struct Report {
    diagnostics: Vec<Diagnostic>,
    errors: usize,
}

impl Report {
    pub fn push(&mut self, diagnostic: Diagnostic) {
        self.errors += usize::from(diagnostic.severity == Severity::Error);
        self.diagnostics.push(diagnostic);
    }

    /// Reports `problem` of the scalar at `at` that reads as `decoded`.
    pub fn problem(&mut self, at: &Location, decoded: &str, problem: Problem) {
        let at = problem.range.map_or_else(|| at.clone(), |range| at.sub(decoded, range));
        let mut diagnostic = Diagnostic::error(&at, problem.message);
        diagnostic.hint = problem.hint;
        self.push(diagnostic);
    }

    /// The value of `result`, its problem reported.
    pub fn accept<T>(&mut self, at: &Location, decoded: &str, result: Result<T, Problem>) -> Option<T> {
        result.map_err(|problem| self.problem(at, decoded, problem)).ok()
    }

    /// How many errors there are: unchanged means that what was read in between is right.
    pub fn errors(&self) -> usize {
        self.errors
    }

    /// Diagnostics of each file in the order of its text. What an alias repeats is said once.
    pub fn finish(mut self) -> Vec<Diagnostic> {
        in_order(&mut self.diagnostics);
        let mut said = HashSet::new();
        self.diagnostics.retain(|d| {
            let place = d.at.as_ref().map(|at| (std::sync::Arc::as_ptr(&at.file), at.start, at.end));
            said.insert((place, d.message.clone()))
        });
        self.diagnostics
    }
}

/// Sorts the diagnostics of each file by the order of its text. Files come in the order in which they are first named.
pub fn in_order(diagnostics: &mut [Diagnostic]) {
    let mut files: Vec<*const _> = Vec::new();
    diagnostics.sort_by_cached_key(|d| {
        let Some(at) = &d.at else { return (usize::MAX, 0) };
        let file = std::sync::Arc::as_ptr(&at.file);
        let index = files.iter().position(|f| *f == file).unwrap_or_else(|| {
            files.push(file);
            files.len() - 1
        });
        (index, at.start)
    });
}
