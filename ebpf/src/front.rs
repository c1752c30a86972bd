//! The front half in one call: text -> AST -> typed probe.

use crate::{Diagnostic, Program, Target, lang, typed};

/// Parses and checks a program against a kernel. All mistakes are found in one run; they come in the order of their
/// places.
pub fn check(program: &Program, target: &Target) -> Result<typed::Probe, Vec<Diagnostic>> {
    let (exprs, mut diagnostics) = lang::parse_program(program);
    match crate::check::check(program, &exprs, target) {
        Ok(probe) if diagnostics.is_empty() => return Ok(probe),
        Ok(_) => {}
        Err(more) => diagnostics.extend(more),
    }
    diagnostics.sort_by_key(|d| d.at.map_or((u32::MAX, 0), |at| (at.text.0, at.span.start)));
    Err(diagnostics)
}
