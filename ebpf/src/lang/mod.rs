//! The expression language: text to AST and back. Nothing here knows types, kernels or probes' meaning.

mod lets;
mod lex;
mod parse;
mod print;

pub use lets::{Use, expand, explain};
pub use parse::{KEYWORDS, MAX_BYTES, MAX_DEPTH, SyntaxError, parse};
pub use print::print;

use crate::ast::Exprs;
use crate::diag::{Diagnostic, Place};
use crate::program::Program;

/// Parses every expression of a program. What does not parse is reported and missing from the result.
pub fn parse_program(program: &Program) -> (Exprs, Vec<Diagnostic>) {
    let mut exprs = Exprs::default();
    let mut diagnostics = Vec::new();
    for text in program.expressions() {
        match parse(&text.value) {
            Ok(expr) => {
                exprs.0.insert(text.id, expr);
            }
            Err(e) => {
                let at = Place { text: text.id, span: e.span };
                diagnostics.push(Diagnostic { hint: e.hint, ..Diagnostic::user(at, e.message) });
            }
        }
    }
    (exprs, diagnostics)
}
