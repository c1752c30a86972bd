//! `let:` names that stand for expressions: the compiler reads the expression in the place of its name.

use super::parse::MAX_DEPTH;
use crate::ast::{Expr, ExprKind, Exprs};
use crate::diag::{Diagnostic, Place, Span};
use crate::program::Program;
use crate::source::TextId;

/// Nodes of an expression with all that names in it stand for: each name can double what the one before it stands for.
const MAX_NODES: usize = 10_000;

/// A place where such a name stands, and which of [`Program::lets`] it is.
pub struct Use {
    pub place: Place,
    pub of: usize,
}

/// Puts the expressions in the place of their names. A name stands for nothing before it is given. Nodes of what is put in have the place
/// of the name.
pub fn expand(program: &Program, exprs: &mut Exprs, diagnostics: &mut Vec<Diagnostic>) -> Vec<Use> {
    let mut names = Names { known: Vec::new(), uses: Vec::new() };
    for (name, text) in &program.lets {
        let expr = exprs.0.remove(&text.id).and_then(|expr| names.expanded(expr, text.id, diagnostics));
        let nodes = expr.as_ref().map_or(0, nodes);
        names.known.push(Named { name: name.value.clone(), stands_for: expr, nodes });
    }
    if names.known.is_empty() {
        return Vec::new();
    }
    let before = std::mem::take(&mut exprs.0);
    for (text, expr) in before {
        if let Some(expr) = names.expanded(expr, text, diagnostics) {
            exprs.0.insert(text, expr);
        }
    }
    names.uses
}

/// Adds to what is said of a name what it stands for, and, where nothing is wrong, a warning of each name that stands nowhere.
pub fn explain(program: &Program, uses: &[Use], diagnostics: &mut Vec<Diagnostic>) {
    for diagnostic in &mut *diagnostics {
        let used = uses.iter().find(|known| Some(known.place) == diagnostic.at);
        if let Some((name, text)) = used.and_then(|used| program.lets.get(used.of)) {
            diagnostic.message += &format!(" (`{}` is `{}`)", name.value, text.value.trim());
        }
    }
    if diagnostics.iter().any(Diagnostic::is_error) {
        return;
    }
    for (i, (name, _)) in program.lets.iter().enumerate() {
        if !uses.iter().any(|known| known.of == i) {
            let at = Place { text: name.id, span: Span::new(0, name.value.len()) };
            diagnostics.push(Diagnostic::warning(at, format!("`{}` of `let` stands nowhere", name.value)));
        }
    }
}

/// A name that was given.
struct Named {
    name: String,
    /// `None` where the expression is wrong, which is reported.
    stands_for: Option<Expr>,
    nodes: usize,
}

struct Names {
    known: Vec<Named>,
    uses: Vec<Use>,
}

impl Names {
    /// `None` where a name in it stands for something wrong, or where it grows too large.
    fn expanded(&mut self, mut expr: Expr, text: TextId, diagnostics: &mut Vec<Diagnostic>) -> Option<Expr> {
        let (whole, before) = (expr.span, self.uses.len());
        let mut room = MAX_NODES;
        let is_whole = self.put_in(&mut expr, text, &mut room);
        if self.uses.len() > before && (room == 0 || depth(&expr) > MAX_DEPTH) {
            let message = format!(
                "with what its names stand for, this has more than {MAX_NODES} parts, or is nested deeper than {MAX_DEPTH}"
            );
            diagnostics.push(Diagnostic::limit(Place { text, span: whole }, message));
            return None;
        }
        is_whole.then_some(expr)
    }

    fn put_in(&mut self, expr: &mut Expr, text: TextId, room: &mut usize) -> bool {
        let ExprKind::Name(name) = &expr.kind else {
            let values = match &expr.kind {
                // Its last argument names members.
                ExprKind::Call(function, _) if function.name == "container_of" => 2,
                _ => usize::MAX,
            };
            let mut is_whole = true;
            for child in expr.kind.children_mut().into_iter().take(values) {
                is_whole &= self.put_in(child, text, room);
            }
            return is_whole;
        };
        let Some(of) = self.known.iter().position(|known| known.name == *name) else { return true };
        self.uses.push(Use { place: Place { text, span: expr.span }, of });
        *room = room.saturating_sub(self.known[of].nodes);
        if *room == 0 {
            return false;
        }
        let Some(mut stands_for) = self.known[of].stands_for.clone() else { return false };
        stand_at(&mut stands_for, expr.span);
        *expr = stands_for;
        true
    }
}

fn nodes(expr: &Expr) -> usize {
    1 + expr.kind.children().into_iter().map(nodes).sum::<usize>()
}

fn depth(expr: &Expr) -> u32 {
    1 + expr.kind.children().into_iter().map(depth).max().unwrap_or_default()
}

fn stand_at(expr: &mut Expr, span: Span) {
    expr.span = span;
    if let ExprKind::Field(_, name) | ExprKind::Call(name, _) = &mut expr.kind {
        name.span = span;
    }
    expr.kind.children_mut().into_iter().for_each(|child| stand_at(child, span));
}
