//! Puts the compiler's diagnostics, which point into an expression, at their place in the YAML file.

use kstrobe_config::diag::{Diagnostic, Severity};
use kstrobe_ebpf::Program;

pub(super) fn place(error: &kstrobe_ebpf::Diagnostic, program: &Program) -> Diagnostic {
    let severity = if error.is_error() { Severity::Error } else { Severity::Warning };
    let at = error.at.and_then(|at| program.locate(at));
    Diagnostic { severity, at, message: error.message.clone(), hint: error.hint.clone() }
}
