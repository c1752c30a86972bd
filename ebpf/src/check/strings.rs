//! Text: comparisons with text in quotes.

use super::expr::{Env, Value, constant_bool};
use super::report::Checked;
use crate::ast;
use crate::diag::Span;
use crate::typed::{Cmp, Expr, Kind, TextPattern, Ty};

impl Env<'_> {
    /// A value that holds text, and the most bytes of text in it.
    fn text_value(&mut self, value: Value) -> Checked<(Expr, u16)> {
        let span = value.span();
        if let Value::Text(..) = value {
            return Err(self.fail(span, "both sides are text in quotes: the answer never changes"));
        }
        let expr = self.typed(value)?;
        match expr.ty {
            Ty::Str(n) => {
                let length = if ends_with_nul(&expr.kind) { n - 1 } else { n };
                Ok((expr, length))
            }
            ty => {
                let message = format!("`{}` is {}, not text", self.quote(span), self.describe(ty));
                let hint = match ty {
                    Ty::Ptr { .. } => format!("read the text behind it: `str({}, 64)`", self.quote(span)),
                    _ => "compare it with a number".to_string(),
                };
                Err(self.fail_hint(span, message, &hint))
            }
        }
    }

    fn quoted(&mut self, value: Value) -> Checked<(String, Span)> {
        match value {
            Value::Text(text, span) => Ok((text, span)),
            other => {
                let message = format!("`{}` is not text in quotes", self.quote(other.span()));
                Err(self.fail_hint(other.span(), message, "write it in double quotes"))
            }
        }
    }

    /// The bytes that whole equality with `literal` compares: its NUL too, unless there is no room for one.
    fn whole_literal(&mut self, literal: &str, length: u16, span: Span) -> Checked<Vec<u8>> {
        let mut bytes = self.prefix_literal(literal, length, span)?;
        if bytes.len() < usize::from(length) {
            bytes.push(0);
        }
        Ok(bytes)
    }

    fn prefix_literal(&mut self, literal: &str, length: u16, span: Span) -> Checked<Vec<u8>> {
        if literal.contains('\0') {
            return Err(self.fail(span, "text of the kernel holds no NUL, so this is never equal"));
        }
        if literal.len() > usize::from(length) {
            let message = format!("this text has {} bytes, the other side at most {length}", literal.len());
            return Err(self.fail_hint(
                span,
                message,
                "they are never equal; `comm` holds 15 bytes, `str(x, n)` n - 1",
            ));
        }
        Ok(literal.as_bytes().to_vec())
    }

    /// What `starts_with(.., "x")` or `glob(.., "x*")` means.
    pub(super) fn pattern(&mut self, name: &str, text: String, span: Span) -> Checked<TextPattern> {
        match (name, text.strip_suffix('*')) {
            ("starts_with", _) => Ok(TextPattern::Begins(text)),
            (_, stem) if stem.unwrap_or(&text).contains(['*', '?', '[']) => {
                let message = format!("`{text}` has a wildcard that is not one `*` at the end");
                Err(self.fail_hint(span, message, "patterns are plain text, or text and a last `*`"))
            }
            (_, Some(stem)) => Ok(TextPattern::Begins(stem.to_owned())),
            (_, None) => Ok(TextPattern::Is(text)),
        }
    }

    /// `value == "text"`.
    pub(super) fn compare_text(&mut self, op: Cmp, value: Value, literal: Value, span: Span) -> Checked<Expr> {
        let place = self.place(span);
        let value = self.text_value(value);
        let (literal, literal_span) = self.quoted(literal)?;
        let (value, length) = value?;
        let bytes = self.whole_literal(&literal, length, literal_span)?;
        let equal = Expr { kind: Kind::StrEq(Box::new(value), bytes), ty: Ty::Bool, duration: false, place };
        match op {
            Cmp::Eq => Ok(equal),
            Cmp::Ne => Ok(Expr { kind: Kind::Not(Box::new(equal)), ty: Ty::Bool, duration: false, place }),
            _ => {
                Err(self.fail_hint(span, "text has no order", "only `==`, `!=`, `in` and starts_with(..) compare text"))
            }
        }
    }

    /// `value in ["a", "b"]`.
    pub(super) fn text_in(&mut self, value: Value, elements: Vec<Value>, span: Span) -> Checked<Expr> {
        let place = self.place(span);
        let (value, length) = self.text_value(value)?;
        let mut found: Option<Expr> = None;
        let literals: Vec<_> = elements.into_iter().map(|e| self.quoted(e)).collect();
        let literals: Vec<_> = literals.into_iter().collect::<Checked<_>>()?;
        let bytes: Vec<_> = literals.iter().map(|(text, span)| self.whole_literal(text, length, *span)).collect();
        for (bytes, (_, literal_span)) in bytes.into_iter().collect::<Checked<Vec<_>>>()?.into_iter().zip(&literals) {
            let kind = Kind::StrEq(Box::new(value.clone()), bytes);
            let equal = Expr { kind, ty: Ty::Bool, duration: false, place: self.place(*literal_span) };
            found = Some(match found {
                None => equal,
                Some(before) => {
                    let kind = Kind::Or(Box::new(before), Box::new(equal));
                    Expr { kind, ty: Ty::Bool, duration: false, place }
                }
            });
        }
        Ok(found.unwrap_or_else(|| constant_bool(false, place)))
    }

    /// `starts_with(text, "x")`, and `glob(text, "x*")`, whose only wildcard is a `*` at the end.
    pub(super) fn text_function(&mut self, name: &str, args: &[ast::Expr], span: Span) -> Checked<Value> {
        let (value, pattern) = (self.value(&args[0]), self.value(&args[1]));
        let value = value.and_then(|v| self.text_value(v));
        let (pattern, pattern_span) = pattern.and_then(|p| self.quoted(p))?;
        let (value, length) = value?;
        let bytes = match self.pattern(name, pattern, pattern_span)? {
            TextPattern::Begins(stem) => self.prefix_literal(&stem, length, pattern_span)?,
            TextPattern::Is(text) => self.whole_literal(&text, length, pattern_span)?,
        };
        let place = self.place(span);
        Ok(Value::Typed(match bytes.is_empty() {
            true => constant_bool(true, place),
            false => Expr { kind: Kind::StrEq(Box::new(value), bytes), ty: Ty::Bool, duration: false, place },
        }))
    }
}

/// Whether the last byte always is NUL: helpers of the kernel end what they copy. Fields of records may be full.
fn ends_with_nul(kind: &Kind) -> bool {
    matches!(kind, Kind::Comm | Kind::StrAt(_) | Kind::Load { .. } | Kind::DataLoc { .. })
}
