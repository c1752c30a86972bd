//! Mistakes in files, for a terminal and for the log.

use kstrobe_config::diag::{self, Diagnostic};
use std::io::IsTerminal;

/// Prints diagnostics to standard error, coloured on a terminal.
pub fn print_diagnostics(diagnostics: &[Diagnostic]) {
    let text = match std::io::stderr().is_terminal() {
        true => diag::render_ansi(diagnostics),
        false => diag::render(diagnostics),
    };
    eprint!("{text}");
}

/// Logs each diagnostic as one line, and prints it with its source line and caret if standard error is a terminal.
pub fn log_diagnostics(diagnostics: &[Diagnostic]) {
    for d in diagnostics {
        match d.is_error() {
            true => tracing::error!(reason = d.one_line(), "mistake in a file"),
            false => tracing::warn!(reason = d.one_line(), "doubtful"),
        }
    }
    if std::io::stderr().is_terminal() {
        print_diagnostics(diagnostics);
    }
}
