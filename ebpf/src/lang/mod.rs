//! The expression language: text to AST and back. Nothing here knows types, kernels or probes' meaning.

mod lex;
mod parse;
mod print;

pub use parse::{MAX_BYTES, MAX_DEPTH, SyntaxError, parse};
pub use print::print;

use crate::ast::Exprs;
use crate::diag::{Diagnostic, Place};
use crate::program::{Metric, Program, Shape, Text};

/// Parses every expression of a program. What does not parse is reported and missing from the result.
pub fn parse_program(program: &Program) -> (Exprs, Vec<Diagnostic>) {
    let mut exprs = Exprs::default();
    let mut diagnostics = Vec::new();
    for text in expression_texts(program) {
        match parse(&text.text) {
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

fn expression_texts(program: &Program) -> Vec<&Text> {
    let mut texts: Vec<&Text> = program.filters().chain(program.owner.texts()).collect();
    match &program.shape {
        Shape::Span(span) => {
            texts.extend(span.by.iter().chain(&span.by_end));
            texts.extend(span.save.iter().map(|(_, value)| value));
            texts.extend(&span.filter);
        }
        Shape::Steps(steps) => {
            texts.extend(&steps.by);
            for step in &steps.steps {
                texts.extend(step.filter.iter().chain(&step.by));
                texts.extend(step.set.iter().map(|(_, value)| value));
            }
        }
        Shape::At(_) | Shape::Poll { .. } => {}
    }
    for Metric { value, filter, labels, .. } in &program.metrics {
        texts.extend(value);
        texts.extend(filter);
        texts.extend(labels.iter().map(|l| &l.value));
    }
    if let Some(slow) = &program.slow {
        texts.push(&slow.when);
        texts.extend(slow.fields.iter().map(|(_, value)| value));
    }
    texts
}
