//! The type of an expression: dispatch, literals, and turning what an expression means into a value.

use super::access::Memory;
use super::hooks::without_btf;
use super::report::{Checked, Report, Reported};
use super::scope::Scope;
use super::traps::binds_looser_than_comparisons;
use crate::ast::{self, ExprKind};
use crate::diag::{Diagnostic, Place, Span};
use crate::kernel_target::{Btf, Target};
use crate::source::SpannedStr;
use crate::typed::{Expr, Kind, Trust, Ty};

/// Where one expression is being checked.
pub(super) struct Env<'a> {
    pub(super) target: &'a Target,
    pub(super) scope: &'a Scope<'a>,
    pub(super) text: &'a SpannedStr,
    pub(super) report: &'a mut Report,
}

/// What an expression means, before its user decides what it needs.
#[derive(Clone, Debug)]
pub(super) enum Value {
    /// A number that takes the type of the other side.
    Literal(Literal),
    /// Text in quotes.
    Text(String, Span),
    /// A value with a type.
    Typed(Expr),
    /// A place in memory that was not read yet.
    Memory(Memory),
}

/// A number without a type.
#[derive(Clone, Copy, Debug)]
pub(super) struct Literal {
    pub(super) value: i128,
    pub(super) duration: bool,
    /// Made by `~`: its upper bits are cut to fit an unsigned type.
    pub(super) inverted: bool,
    pub(super) span: Span,
}

impl Value {
    pub(super) fn span(&self) -> Span {
        match self {
            Value::Literal(l) => l.span,
            Value::Text(_, span) => *span,
            Value::Typed(e) => e.place.span,
            Value::Memory(m) => m.span,
        }
    }
}

/// As messages name a type.
pub(super) fn describe(target: &Target, ty: Ty) -> String {
    match ty {
        Ty::Int { bits, signed } => format!("{}{bits}", if signed { 's' } else { 'u' }),
        Ty::Bool => "bool".into(),
        Ty::Ptr { to, trust } => {
            let pointee = target.btf.as_ref().map_or("void".into(), |btf| btf.describe(to));
            let user = if trust == Trust::User { "user " } else { "" };
            format!("a {user}pointer to {pointee}")
        }
        Ty::Str(n) => format!("text of {n} bytes"),
        Ty::Bytes(n) => format!("{n} raw bytes"),
    }
}

pub(super) fn constant_bool(value: bool, place: Place) -> Expr {
    Expr { kind: Kind::Const(value.into()), ty: Ty::Bool, duration: false, place }
}

impl<'a> Env<'a> {
    pub(super) fn place(&self, span: Span) -> Place {
        Place { text: self.text.id, span }
    }

    /// The user's own words.
    pub(super) fn quote(&self, span: Span) -> &'a str {
        self.text.value.get(span.start as usize..span.end as usize).unwrap_or("")
    }

    pub(super) fn fail(&mut self, span: Span, message: impl Into<String>) -> Reported {
        self.report.add(Diagnostic::user(self.place(span), message))
    }

    pub(super) fn fail_hint(&mut self, span: Span, message: impl Into<String>, hint: &str) -> Reported {
        self.report.add(Diagnostic::user(self.place(span), message).hint(hint))
    }

    pub(super) fn describe(&self, ty: Ty) -> String {
        describe(self.target, ty)
    }

    /// The kernel's types; an error when it does not publish them.
    pub(super) fn btf(&mut self, span: Span) -> Checked<&'a Btf> {
        let target = self.target;
        target.btf.as_ref().ok_or_else(|| {
            let message = format!("`{}` needs the kernel's BTF, and there is none", self.quote(span));
            let diagnostic = Diagnostic::target(self.place(span), message);
            self.report.add(diagnostic.hint(without_btf(target)))
        })
    }

    /// What an expression means.
    pub(super) fn value(&mut self, ast: &ast::Expr) -> Checked<Value> {
        let span = ast.span;
        match &ast.kind {
            ExprKind::Int(v) | ExprKind::Size(v) => Ok(self.literal(i128::from(*v), span)),
            ExprKind::Duration(v) => {
                Ok(Value::Literal(Literal { value: i128::from(*v), duration: true, inverted: false, span }))
            }
            ExprKind::Bool(v) => Ok(Value::Typed(constant_bool(*v, self.place(span)))),
            ExprKind::Str(v) => Ok(Value::Text(v.clone(), span)),
            ExprKind::Name(name) => self.name(name, span),
            ExprKind::Field(base, field) => match &base.kind {
                ExprKind::Name(name) if name == "args" => self.arg(field, span),
                ExprKind::Name(name) if name == "start" => self.start(field, span),
                ExprKind::Name(name) if name == "state" => self.state(field, span),
                ExprKind::Name(name) if name == "elapsed" => self.elapsed_part(field, span),
                _ => {
                    let base = self.value(base)?;
                    self.member(base, field, span)
                }
            },
            ExprKind::Index(base, index) => {
                let (base, index) = (self.value(base), self.value(index));
                self.element(base?, index?, span)
            }
            ExprKind::Call(name, args) => self.call(name, args, span),
            ExprKind::TypeName(..) => {
                let message = format!("`{}` is a type, not a value", self.quote(span));
                Err(self.fail_hint(
                    span,
                    message,
                    "types stand only in cast(..), container_of(..), has_type(..), enum(..)",
                ))
            }
            ExprKind::Unary(op, operand) => self.unary(*op, operand, span),
            ExprKind::Binary(op, left, right) => self.binary(*op, left, right, span),
            ExprKind::Cond(condition, yes, no) => self.conditional(condition, yes, no, span),
            ExprKind::In(value, elements, negated) => self.one_of(value, elements, *negated, span),
            ExprKind::Arm(..) => Err(self.fail(span, "`=>` stands only inside `map(..)`")),
        }
    }

    pub(super) fn literal(&self, value: i128, span: Span) -> Value {
        Value::Literal(Literal { value, duration: false, inverted: false, span })
    }

    /// A value with a type of its own: memory is read, a number alone is u64 (s64 when negative).
    pub(super) fn typed(&mut self, value: Value) -> Checked<Expr> {
        match value {
            Value::Typed(expr) => Ok(expr),
            Value::Memory(memory) => self.load(memory),
            Value::Literal(l) => self.adapt(l, if l.value < 0 && !l.inverted { Ty::S64 } else { Ty::U64 }),
            Value::Text(_, span) => {
                Err(self.fail_hint(span, "text is not a value here", "text is compared: `comm == \"nginx\"`"))
            }
        }
    }

    /// A number as a constant of this type.
    pub(super) fn adapt(&mut self, literal: Literal, ty: Ty) -> Checked<Expr> {
        let Literal { value, duration, inverted, span } = literal;
        let constant = |bits: u64, env: &Self| Expr { kind: Kind::Const(bits), ty, duration, place: env.place(span) };
        let shown = || match self.quote(span) {
            "" => value.to_string(),
            quote => quote.to_string(),
        };
        match ty {
            Ty::Int { bits, signed } => {
                let (least, most) = match signed {
                    true => (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1),
                    false => (0, (1i128 << bits) - 1),
                };
                if (least..=most).contains(&value) {
                    return Ok(constant(value as u64, self));
                }
                if inverted && !signed && value >= -(1i128 << bits) && value < 0 {
                    return Ok(constant((value & most) as u64, self));
                }
                let message = format!("`{}` does not fit {}", shown(), self.describe(ty));
                Err(self.fail_hint(span, message, &format!("its range is {least} to {most}")))
            }
            Ty::Ptr { .. } if value == 0 => Ok(constant(0, self)),
            Ty::Ptr { .. } => {
                let message = format!("a pointer cannot be compared with `{}`", shown());
                Err(self.fail_hint(span, message, "use its number, `u64(x)`, or compare with 0"))
            }
            Ty::Bool => {
                let message = format!("`{}` is a number where a bool is needed", shown());
                Err(self.fail_hint(span, message, "write `true` or `false`, or compare with `!= 0`"))
            }
            Ty::Str(_) | Ty::Bytes(_) => {
                let message = format!("`{}` is a number where {} is needed", shown(), self.describe(ty));
                Err(self.fail_hint(span, message, "put text in double quotes"))
            }
        }
    }

    /// A condition: a bool, or a pointer's non-null test.
    pub(super) fn truth(&mut self, value: Value) -> Checked<Expr> {
        let span = value.span();
        if let Value::Literal(_) = &value {
            let message = format!("`{}` is a number where a bool is needed", self.quote(span));
            return Err(self.fail_hint(span, message, "compare it: `x != 0`"));
        }
        let expr = self.typed(value)?;
        let quote = self.quote(span);
        match expr.ty {
            Ty::Bool => Ok(expr),
            Ty::Ptr { .. } => Ok(not_zero(expr)),
            // Unset is 0: a field is asked for as a pointer is.
            Ty::Int { .. } if matches!(expr.kind, Kind::State(_)) => Ok(not_zero(expr)),
            Ty::Int { .. } => {
                let message = format!("`{quote}` is {} where a bool is needed", self.describe(expr.ty));
                let hint = match binds_looser_than_comparisons(&expr) {
                    true => format!("compare it: `({quote}) != 0`"),
                    false => format!("compare it: `{quote} != 0`"),
                };
                Err(self.fail_hint(span, message, &hint))
            }
            Ty::Str(_) | Ty::Bytes(_) => {
                let message = format!("`{quote}` is {} where a bool is needed", self.describe(expr.ty));
                Err(self.fail_hint(span, message, &format!("compare it: `{quote} != \"\"`")))
            }
        }
    }

    /// A value that must be an integer.
    pub(super) fn integer(&mut self, value: Value) -> Checked<Expr> {
        let expr = self.typed(value)?;
        if matches!(expr.ty, Ty::Int { .. }) {
            return Ok(expr);
        }
        let message = format!("`{}` is {}, not a number", self.quote(expr.place.span), self.describe(expr.ty));
        Err(self.report.add(Diagnostic::user(expr.place, message)))
    }
}

fn not_zero(expr: Expr) -> Expr {
    let place = expr.place;
    Expr { kind: Kind::Convert(Box::new(expr)), ty: Ty::Bool, duration: false, place }
}
