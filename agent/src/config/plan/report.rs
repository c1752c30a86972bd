//! Puts the compiler's diagnostics, which point into an expression, at their place in the YAML file.

use kstrobe_config::diag::{Diagnostic, Severity};

use super::program::Places;

pub(super) fn place(error: &kstrobe_ebpf::Diagnostic, places: &Places) -> Diagnostic {
    let severity = if error.is_error() { Severity::Error } else { Severity::Warning };
    let at = error.at.and_then(|at| {
        let (location, text) = places.get(&at.text)?;
        let (start, end) = (at.span.start as usize, at.span.end as usize);
        // A span of nothing means the text as a whole.
        Some(if start < end { location.sub(text, start..end) } else { location.clone() })
    });
    Diagnostic { severity, at, message: error.message.clone(), hint: error.hint.clone() }
}
