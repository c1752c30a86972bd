//! Whose events: names of cgroups as labels, and as conditions that are one look-up in the kernel.
//!
//! The kernel knows a cgroup's id. What it is called is known to the agent alone, so that a comparison of a name becomes a
//! question to a map of ids: a term of its own among what `&&` joins, asked before everything else.

use super::Input;
use super::expr::{Env, Value};
use super::report::{Checked, Report, Reported};
use super::scope::{Role, Scope};
use crate::ast::{self, BinaryOp, ExprKind, Ident, UnaryOp};
use crate::diag::{Diagnostic, Span};
use crate::kernel_target::btf::Kind as BtfKind;
use crate::program::{self};
use crate::source::SpannedStr;
use crate::typed::{CgroupName, Expr, Kind, Selector, SelectorTerm, TextPattern, Ty, WantedNames};

/// The way from a task to the id of its cgroup of version 2.
const OF_TASK: &[&str] = &["cgroups", "dfl_cgrp", "kn", "id"];
/// Likewise from a socket to the cgroup of the task that made it. It has none of version 1.
const OF_SOCKET: &[&str] = &["sk_cgrp_data", "cgroup", "kn", "id"];

/// Whose events are, at one site.
#[derive(Clone, Copy)]
pub(super) enum Owner<'a> {
    Current,
    None,
    /// The probe says so.
    Of(&'a SpannedStr, &'a ast::Expr),
    /// What the probe says is of another site, or did not parse.
    Elsewhere,
}

impl<'a> Owner<'a> {
    pub(super) fn at(input: Input<'a>, role: Role) -> Self {
        match &input.program.owner {
            program::Owner::Current => Owner::Current,
            program::Owner::None => Owner::None,
            program::Owner::Of { end, start } => {
                let text = if role == Role::Start { start.as_ref() } else { Some(end) };
                let written = text.and_then(|text| Some((text, input.exprs.0.get(&text.id)?)));
                written.map_or(Owner::Elsewhere, |(text, ast)| Owner::Of(text, ast))
            }
        }
    }
}

/// Which of a condition's parts are wanted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    All,
    /// Of a span: what is known at its start already.
    AtStart,
    /// The rest.
    AtEnd,
}

/// One comparison of a cgroup's name.
struct Term<'e> {
    name: &'e str,
    /// `pod(x)`; the owner otherwise.
    of: Option<&'e ast::Expr>,
    values: Vec<&'e ast::Expr>,
    /// `starts_with` or `glob`, where the name is not compared as a whole.
    function: Option<&'e str>,
    negated: bool,
    span: Span,
}

/// A `where`: a bool at this site; a constant `true` is no filter. Look-ups of cgroups come first.
pub(super) fn filter(
    input: Input,
    scope: &Scope,
    text: &Option<SpannedStr>,
    part: Part,
    report: &mut Report,
) -> Checked<Option<Expr>> {
    let Some(text) = text else { return Ok(None) };
    let ast = input.exprs.0.get(&text.id).ok_or(Reported)?;
    let (mut terms, mut rest) = (Vec::new(), Vec::new());
    conjuncts(ast, &mut terms, &mut rest);
    let early = !matches!(input.program.owner, program::Owner::Of { start: None, .. });
    terms.retain(|term| part == Part::All || (part == Part::AtStart) == (early && term.of.is_none()));
    let mut env = Env { target: input.target, scope, text, report };
    let rest = match part {
        Part::AtStart => None,
        // As it was written, with the places that messages and the kernel's line info show.
        _ if rest.len() == 1 + joints(ast) => Some(ast.clone()),
        _ => rest.into_iter().cloned().reduce(joined),
    };
    let rest = rest.map(|rest| env.value(&rest).and_then(|value| env.truth(value)));
    // As with any `&&` that a constant decides, the other side may name what this kernel lacks.
    if let Some(Ok(never)) = &rest
        && never.kind == Kind::Const(0)
    {
        return rest.transpose();
    }
    let selected = env.selected(&terms);
    let (selected, rest) = (selected?, rest.transpose()?);
    let rest = rest.filter(|rest| rest.kind != Kind::Const(1));
    Ok(selected.into_iter().chain(rest).reduce(both))
}

/// All that the probe asks of its measurements.
pub(super) fn of_probe(input: Input, scope: &Scope, part: Part, report: &mut Report) -> Checked<Option<Expr>> {
    let [own, also] =
        [&input.program.filter, &input.program.extra_filter].map(|text| filter(input, scope, text, part, report));
    let mut parts = Vec::new();
    own?.into_iter().chain(also?).for_each(|filter| flatten(filter, &mut parts));
    parts.sort_by_key(|part| !matches!(part.kind, Kind::Selected(..)));
    Ok(parts.into_iter().reduce(both))
}

/// What `&&` joins.
pub(super) fn flatten(e: Expr, into: &mut Vec<Expr>) {
    match e.kind {
        Kind::And(a, b) => {
            flatten(*a, into);
            flatten(*b, into);
        }
        _ => into.push(e),
    }
}

/// `a && b`.
pub(super) fn both(a: Expr, b: Expr) -> Expr {
    match (&a.kind, &b.kind) {
        (Kind::Const(0), _) | (_, Kind::Const(1)) => return a,
        (Kind::Const(_), _) | (_, Kind::Const(0)) => return b,
        _ => {}
    }
    let place = b.place;
    Expr { kind: Kind::And(Box::new(a), Box::new(b)), ty: Ty::Bool, duration: false, place }
}

fn joined(a: ast::Expr, b: ast::Expr) -> ast::Expr {
    let span = Span { start: a.span.start, end: b.span.end };
    ast::Expr { kind: ExprKind::Binary(BinaryOp::And, Box::new(a), Box::new(b)), span }
}

/// How many `&&` stand outermost.
fn joints(ast: &ast::Expr) -> usize {
    match &ast.kind {
        ExprKind::Binary(BinaryOp::And, a, b) => 1 + joints(a) + joints(b),
        _ => 0,
    }
}

/// What `&&` joins: comparisons of names, and everything else.
fn conjuncts<'e>(ast: &'e ast::Expr, terms: &mut Vec<Term<'e>>, rest: &mut Vec<&'e ast::Expr>) {
    match &ast.kind {
        ExprKind::Binary(BinaryOp::And, a, b) => {
            conjuncts(a, terms, rest);
            conjuncts(b, terms, rest);
        }
        _ => match term(ast) {
            Some(term) => terms.push(term),
            None => rest.push(ast),
        },
    }
}

fn term(ast: &ast::Expr) -> Option<Term<'_>> {
    let of = |side: &'_ ast::Expr| asked(side).is_some();
    let mut function = None;
    let (side, values, negated) = match &ast.kind {
        ExprKind::Binary(op @ (BinaryOp::Eq | BinaryOp::Ne), a, b) if of(a) => {
            (a.as_ref(), vec![b.as_ref()], *op == BinaryOp::Ne)
        }
        ExprKind::Binary(op @ (BinaryOp::Eq | BinaryOp::Ne), a, b) if of(b) => {
            (b.as_ref(), vec![a.as_ref()], *op == BinaryOp::Ne)
        }
        ExprKind::In(a, elements, negated) if of(a) => (a.as_ref(), elements.iter().collect(), *negated),
        ExprKind::Call(call, args) if matches!(call.name.as_str(), "starts_with" | "glob") => match args.as_slice() {
            [name, pattern] if of(name) => {
                function = Some(call.name.as_str());
                (name, vec![pattern], false)
            }
            _ => return None,
        },
        ExprKind::Unary(UnaryOp::Not, inner) => {
            let inner = term(inner)?;
            return Some(Term { negated: !inner.negated, span: ast.span, ..inner });
        }
        _ => return None,
    };
    let (name, of) = asked(side)?;
    Some(Term { name, of, values, function, negated, span: ast.span })
}

/// `pod` or `pod(x)`.
fn asked(ast: &ast::Expr) -> Option<(&str, Option<&ast::Expr>)> {
    match &ast.kind {
        ExprKind::Name(name) if CgroupName::of(name).is_some() => Some((name, None)),
        ExprKind::Call(name, args) if CgroupName::of(&name.name).is_some() && args.len() == 1 => {
            Some((&name.name, Some(&args[0])))
        }
        _ => None,
    }
}

impl Env<'_> {
    /// One look-up for all terms about one cgroup, in the order of the first of each.
    fn selected(&mut self, terms: &[Term]) -> Checked<Vec<Expr>> {
        let mut found: Vec<(Expr, Selector)> = Vec::new();
        let mut outcome = Ok(());
        for term in terms {
            let wanted = self.compared_with(term);
            let id = self.cgroup_asked(term.name, term.of, term.span);
            let (Ok(wanted), Ok(id), Some(name)) = (wanted, id, CgroupName::of(term.name)) else {
                outcome = Err(Reported);
                continue;
            };
            let term = SelectorTerm { name, wanted, negated: term.negated };
            match found.iter_mut().find(|(known, _)| *known == id) {
                Some((_, selector)) => selector.terms.push(term),
                None => found.push((id, Selector { terms: vec![term] })),
            }
        }
        outcome?;
        let expr = |(id, mut selector): (Expr, Selector)| {
            selector.terms.sort();
            selector.terms.dedup();
            let place = id.place;
            Expr { kind: Kind::Selected(Box::new(id), selector), ty: Ty::Bool, duration: false, place }
        };
        Ok(found.into_iter().map(expr).collect())
    }

    fn compared_with(&mut self, term: &Term) -> Checked<WantedNames> {
        if let Some(one_more) = term.values.get(super::MAX_SET) {
            let message = format!("a set has at most {} elements, this one {}", super::MAX_SET, term.values.len());
            return Err(self.fail(one_more.span, message));
        }
        let mut values = Vec::new();
        for value in &term.values {
            let ExprKind::Str(text) = &value.kind else {
                let message = format!("`{}` is compared with text in quotes", term.name);
                let hint = format!("as in `{} == \"shop\"` or `{} in [\"shop\", \"web\"]`", term.name, term.name);
                return Err(self.fail_hint(value.span, message, &hint));
            };
            match term.function.map(|function| self.pattern(function, text.clone(), value.span)).transpose()? {
                Some(TextPattern::Begins(prefix)) => return Ok(WantedNames::Begin(prefix)),
                Some(TextPattern::Is(text)) => values.push(text),
                None => values.push(text.clone()),
            }
        }
        values.sort();
        values.dedup();
        Ok(WantedNames::OneOf(values))
    }

    /// The id of the cgroup that is asked about by name.
    pub(super) fn cgroup_asked(&mut self, name: &str, of: Option<&ast::Expr>, span: Span) -> Checked<Expr> {
        if self.scope.role == Role::Poll {
            let message = format!("`{name}` means nothing in a poll: its rows belong to no cgroup");
            return Err(self.fail_hint(span, message, "a poll has its row's `args`, constants and functions"));
        }
        match of {
            Some(ast) => self.cgroup_id(ast),
            None => self.owner(name, span),
        }
    }

    fn owner(&mut self, name: &str, span: Span) -> Checked<Expr> {
        match self.scope.owner {
            Owner::Of(text, ast) => {
                Env { target: self.target, scope: self.scope, text, report: &mut *self.report }.cgroup_id(ast)
            }
            Owner::Current if self.scope.role == Role::Object => {
                let message = format!("`{name}` would be that of the agent, which runs this program");
                Err(self.fail_hint(span, message, "say whose the objects are, as in `owner: args.task`"))
            }
            Owner::Current => self.own_cgroup(span),
            Owner::None => {
                let message = format!("`{name}` means nothing here: the probe's events have no owner (`owner: none`)");
                let hint =
                    format!("the task that runs has nothing to do with them; ask of something else: `{name}(x)`");
                Err(self.fail_hint(span, message, &hint))
            }
            Owner::Elsewhere => {
                let message = format!("whose `{name}` it is, is known only at the end of the span");
                Err(self.fail_hint(span, message, "say it for both ends: `owner: { start: .., end: .. }`"))
            }
        }
    }

    /// The cgroup's id that an expression means: itself, or that of a task or a socket.
    pub(super) fn cgroup_id(&mut self, ast: &ast::Expr) -> Checked<Expr> {
        let value = self.value(ast)?;
        let expr = self.typed(value)?;
        let pointee = match expr.ty {
            Ty::Int { bits: 64, signed: false } => return Ok(expr),
            Ty::Ptr { to, .. } => Some(to),
            _ => None,
        };
        let known = |name: &str| self.target.btf.as_ref().and_then(|btf| btf.find(name, BtfKind::Struct));
        let points_to = |name: &str| pointee.is_some() && known(name) == pointee;
        if points_to("task_struct") {
            self.cgroup_of_task(expr, ast.span)
        } else if points_to("sock") {
            self.walk(Value::Typed(expr), OF_SOCKET, ast.span)
        } else {
            let message = format!("`{}` is {} and belongs to no cgroup", self.quote(ast.span), self.describe(expr.ty));
            let hint = "give a cgroup's id (u64), a `struct task_struct *` or a `struct sock *`; see cast(..)";
            Err(self.fail_hint(ast.span, message, hint))
        }
    }

    /// Id of the current task's cgroup: the inode number of its folder.
    pub(super) fn own_cgroup(&mut self, span: Span) -> Checked<Expr> {
        if self.target.cgroup_v1.is_none() {
            return Ok(Expr { kind: Kind::Cgroup, ty: Ty::U64, duration: false, place: self.place(span) });
        }
        let task = self.task(span)?;
        self.cgroup_of_task(task, span)
    }

    /// In the hierarchy of version 2, or, where that is not in use, of a controller of version 1.
    fn cgroup_of_task(&mut self, task: Expr, span: Span) -> Checked<Expr> {
        let task = Value::Typed(task);
        let Some(constant) = self.target.cgroup_constant() else { return self.walk(task, OF_TASK, span) };
        let Some((_, number)) = self.btf(span)?.constant(&constant) else {
            let message = format!("cgroups have no id here: this kernel's types have no `{constant}`");
            return Err(self.report.add(Diagnostic::target(self.place(span), message)));
        };
        let number = self.literal(number.into(), span);
        let mut states = task;
        for name in ["cgroups", "subsys"] {
            states = self.member(states, &Ident { name: name.into(), span }, span)?;
        }
        let state = self.element(states, number, span)?;
        self.walk(state, &["cgroup", "kn", "id"], span)
    }

    /// A number at the end of a chain of members.
    pub(super) fn walk(&mut self, mut value: Value, members: &[&str], span: Span) -> Checked<Expr> {
        for name in members {
            value = self.member(value, &Ident { name: (*name).into(), span }, span)?;
        }
        let id = self.typed(value)?;
        Ok(super::access::convert(id, Ty::U64))
    }

    /// A name of a cgroup where it is neither a label nor a term of a condition.
    pub(super) fn name_of_cgroup_misplaced(&mut self, name: &str, span: Span) -> Reported {
        let message = format!("only the agent knows what `{name}` is: the kernel looks ids up before anything else");
        let hint = format!(
            "it is a label, or a comparison that `&&` joins to the rest of a `where`; in place of `||` write \
             `{name} in [\"a\", \"b\"]`, or two metrics"
        );
        self.fail_hint(span, message, &hint)
    }
}
