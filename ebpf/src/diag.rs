//! What the compiler says when it cannot go on: a message, its place in the user's text, and what to do about it.

use crate::source::TextId;
use rapidfuzz::distance::osa;

/// A byte range inside one text of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Span {
    /// First byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

impl Span {
    /// The range `start..end`.
    pub fn new(start: usize, end: usize) -> Self {
        Self { start: start as u32, end: end as u32 }
    }
    /// The smallest range that holds both.
    pub fn to(self, other: Span) -> Span {
        Span { start: self.start.min(other.start), end: self.end.max(other.end) }
    }
}

/// A place in the user's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Place {
    pub text: TextId,
    /// Where in it.
    pub span: Span,
}

/// Whose fault it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The user's text is wrong.
    User,
    /// The text is right but this kernel lacks something it needs.
    Target,
    /// The worst case would break a limit (instructions, stack, map bytes).
    Limit,
    /// The compiler is wrong: please report.
    Bug,
    /// The text compiles but is probably a mistake.
    Warning,
}

/// One mistake, with its place and the next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Whose fault.
    pub fault: Fault,
    /// Where; `None` when no part of the user's text is to blame.
    pub at: Option<Place>,
    /// What is wrong, one line, no trailing full stop.
    pub message: String,
    /// What to do, one line ("did you mean `sk_family`?").
    pub hint: Option<String>,
    /// The kernel has nothing of the name at `at`.
    pub absent: bool,
}

impl Diagnostic {
    /// A user's mistake at `at`.
    pub fn user(at: Place, message: impl Into<String>) -> Self {
        Self { fault: Fault::User, at: Some(at), message: message.into(), hint: None, absent: false }
    }
    /// Something this kernel lacks.
    pub fn target(at: Place, message: impl Into<String>) -> Self {
        Self { fault: Fault::Target, at: Some(at), message: message.into(), hint: None, absent: false }
    }
    /// A limit that would be broken.
    pub fn limit(at: Place, message: impl Into<String>) -> Self {
        Self { fault: Fault::Limit, at: Some(at), message: message.into(), hint: None, absent: false }
    }
    /// A warning: what is compiled all the same.
    pub fn warning(at: Place, message: impl Into<String>) -> Self {
        Self { fault: Fault::Warning, at: Some(at), message: message.into(), hint: None, absent: false }
    }
    /// An error in the compiler itself.
    pub fn bug(message: impl Into<String>) -> Self {
        Self {
            fault: Fault::Bug,
            at: None,
            message: message.into(),
            hint: Some("this is an error in kstrobe: please report it".into()),
            absent: false,
        }
    }
    /// Whether it stops the probe: all but a warning do.
    pub fn is_error(&self) -> bool {
        self.fault != Fault::Warning
    }
    /// Notes that the kernel has nothing of the name at its place.
    pub fn absent(mut self) -> Self {
        self.absent = true;
        self
    }
    /// Adds what to do about it.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// The candidate closest to `name`, if close enough to be a likely slip.
pub fn did_you_mean<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (name.len() / 3).max(1);
    near(name, candidates, limit).min().map(|(_, candidate)| candidate)
}

/// The candidate that differs by one letter, or by two neighbours that changed places: for names that are much alike, and for
/// candidates so many that a farther one is only another name.
pub fn slip<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    near(name, candidates, 1).next().map(|(_, candidate)| candidate)
}

/// The candidates that are at most so many edits from `name`, with how many.
fn near<'a>(
    name: &str,
    candidates: impl IntoIterator<Item = &'a str>,
    limit: usize,
) -> impl Iterator<Item = (usize, &'a str)> {
    let comparator = osa::BatchComparator::new(name.chars());
    let arguments = osa::Args::default().score_cutoff(limit);
    // Distances grow with the product of both lengths; no slip is that long.
    let length = name.len();
    let alike = candidates.into_iter().filter(move |c| c.len().abs_diff(length) <= limit && length < 128);
    alike.filter_map(move |c| Some((comparator.distance_with_args(c.chars(), &arguments)?, c)))
}

#[cfg(test)]
mod tests {
    use super::{did_you_mean, slip};

    #[test]
    fn near_names_are_suggested_and_far_ones_are_not() {
        assert_eq!(did_you_mean("sk_famly", ["sk_family", "sk_state"]), Some("sk_family"));
        assert_eq!(did_you_mean("zzz", ["sk_family", "sk_state"]), None);
    }

    #[test]
    fn a_slip_is_one_letter_or_two_that_changed_places() {
        let names = ["FUTEX_WRITE", "TCP_LISTEN"];
        let found =
            ["FUTEX_WAIT", "TCP_LISTN", "TCP_LITSEN", "TCP_LISTENS", "TCP_LESTEM"].map(|name| slip(name, names));
        assert_eq!(found, [None, Some("TCP_LISTEN"), Some("TCP_LISTEN"), Some("TCP_LISTEN"), None]);
    }
}
