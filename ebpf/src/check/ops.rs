//! Operators.

use super::access::{convert, retrust};
use super::expr::{Env, Literal, Value, constant_bool};
use super::report::{Checked, Reported};
use crate::ast::{self, BinaryOp, UnaryOp};
use crate::diag::Span;
use crate::typed::{Arith, Cmp, Expr, Kind, Trust, Ty, Unary};

enum Operator {
    Arith(Arith),
    Cmp(Cmp),
    And,
    Or,
}

fn operator(op: BinaryOp) -> Operator {
    match op {
        BinaryOp::Add => Operator::Arith(Arith::Add),
        BinaryOp::Sub => Operator::Arith(Arith::Sub),
        BinaryOp::Mul => Operator::Arith(Arith::Mul),
        BinaryOp::Div => Operator::Arith(Arith::Div),
        BinaryOp::Rem => Operator::Arith(Arith::Rem),
        BinaryOp::BitAnd => Operator::Arith(Arith::And),
        BinaryOp::BitOr => Operator::Arith(Arith::Or),
        BinaryOp::BitXor => Operator::Arith(Arith::Xor),
        BinaryOp::Shl => Operator::Arith(Arith::Shl),
        BinaryOp::Shr => Operator::Arith(Arith::Shr),
        BinaryOp::Eq => Operator::Cmp(Cmp::Eq),
        BinaryOp::Ne => Operator::Cmp(Cmp::Ne),
        BinaryOp::Lt => Operator::Cmp(Cmp::Lt),
        BinaryOp::Le => Operator::Cmp(Cmp::Le),
        BinaryOp::Gt => Operator::Cmp(Cmp::Gt),
        BinaryOp::Ge => Operator::Cmp(Cmp::Ge),
        BinaryOp::And => Operator::And,
        BinaryOp::Or => Operator::Or,
    }
}

/// Whether a result still counts nanoseconds: sums do if either side does; products if one side does (`n * 1us` makes
/// a duration of a number), a ratio of two durations is a plain number.
fn duration_of(op: Arith, left: bool, right: bool) -> bool {
    match op {
        Arith::Add | Arith::Sub | Arith::Min | Arith::Max | Arith::Mul => left || right,
        Arith::Div => left && !right,
        Arith::Rem => left,
        Arith::And | Arith::Or | Arith::Xor | Arith::Shl | Arith::Shr => false,
    }
}

/// Arithmetic on two numbers without a type; `None` when the result is out of all bounds.
fn fold(op: Arith, a: i128, b: i128) -> Option<i128> {
    let shift = u32::try_from(b).ok().filter(|n| *n < 64);
    let value = match op {
        Arith::Add => a.checked_add(b)?,
        Arith::Sub => a.checked_sub(b)?,
        Arith::Mul => a.checked_mul(b)?,
        Arith::Div => a.checked_div(b)?,
        Arith::Rem => a.checked_rem(b)?,
        Arith::And => a & b,
        Arith::Or => a | b,
        Arith::Xor => a ^ b,
        Arith::Shl => a.checked_mul(1i128 << shift?)?,
        Arith::Shr => a >> shift?,
        Arith::Min => a.min(b),
        Arith::Max => a.max(b),
    };
    (i128::from(i64::MIN)..=i128::from(u64::MAX)).contains(&value).then_some(value)
}

fn holds(op: Cmp, a: i128, b: i128) -> bool {
    match op {
        Cmp::Eq => a == b,
        Cmp::Ne => a != b,
        Cmp::Lt => a < b,
        Cmp::Le => a <= b,
        Cmp::Gt => a > b,
        Cmp::Ge => a >= b,
    }
}

impl Env<'_> {
    /// Two values of one type: a literal takes the other's.
    pub(super) fn pair(&mut self, left: Value, right: Value, span: Span) -> Checked<(Expr, Expr)> {
        match (left, right) {
            (Value::Literal(l), right) => {
                let right = self.typed(right);
                let right = right?;
                Ok((self.adapt(l, right.ty)?, right))
            }
            (left, Value::Literal(r)) => {
                let left = self.typed(left)?;
                let right = self.adapt(r, left.ty)?;
                Ok((left, right))
            }
            (left, right) => {
                let (left, right) = (self.typed(left), self.typed(right));
                let (left, right) = (left?, right?);
                match (left.ty, right.ty) {
                    (a, b) if a == b => Ok((left, right)),
                    (Ty::Ptr { .. }, Ty::Ptr { .. }) => Ok((left, right)),
                    _ => Err(self.mismatch(&left, &right, span)),
                }
            }
        }
    }

    fn mismatch(&mut self, left: &Expr, right: &Expr, span: Span) -> Reported {
        let (l, r) = (self.quote(left.place.span), self.quote(right.place.span));
        let message = format!("`{l}` is {} but `{r}` is {}", self.describe(left.ty), self.describe(right.ty));
        match (left.ty, right.ty) {
            (Ty::Int { bits: a, .. }, Ty::Int { bits: b, .. }) => {
                // Widening loses nothing, so the narrower side is the one to convert.
                let (quote, ty) = if a < b { (l, right.ty) } else { (r, left.ty) };
                let hint = format!("convert one side: `{}({quote})`", self.describe(ty));
                self.fail_hint(span, message, &hint)
            }
            _ => self.fail_hint(span, message, "both sides must have one type"),
        }
    }

    pub(super) fn unary(&mut self, op: UnaryOp, operand: &ast::Expr, span: Span) -> Checked<Value> {
        let value = self.value(operand)?;
        if let (UnaryOp::Neg | UnaryOp::Invert, Value::Literal(l)) = (op, &value) {
            let inverted = op == UnaryOp::Invert;
            let folded = if inverted { !l.value } else { -l.value };
            return Ok(Value::Literal(Literal { value: folded, inverted, span, ..*l }));
        }
        let place = self.place(span);
        if op == UnaryOp::Not {
            let operand = self.truth(value)?;
            return Ok(Value::Typed(match operand.kind {
                Kind::Const(bit) => constant_bool(bit == 0, place),
                _ => Expr { kind: Kind::Not(Box::new(operand)), ty: Ty::Bool, duration: false, place },
            }));
        }
        let operand = self.integer(value)?;
        let (ty, quote) = (operand.ty, self.quote(operand.place.span));
        if let (UnaryOp::Neg, Ty::Int { bits, signed: false }) = (op, ty) {
            let message = format!("`{quote}` is {} and has no negative", self.describe(ty));
            return Err(self.fail_hint(span, message, &format!("convert it first: `-s{bits}({quote})`")));
        }
        let (op, duration) = match op {
            UnaryOp::Neg => (Unary::Neg, operand.duration),
            _ => (Unary::Invert, false),
        };
        Ok(Value::Typed(Expr { kind: Kind::Unary(op, Box::new(operand)), ty, duration, place }))
    }

    pub(super) fn binary(&mut self, op: BinaryOp, left: &ast::Expr, right: &ast::Expr, span: Span) -> Checked<Value> {
        match operator(op) {
            Operator::And => self.logical(left, right, span, false),
            Operator::Or => self.logical(left, right, span, true),
            Operator::Arith(op) => {
                let (left, right) = (self.value(left), self.value(right));
                self.arith(op, left?, right?, span)
            }
            Operator::Cmp(op) => {
                let (left_value, right_value) = (self.value(left), self.value(right));
                let (left_value, right_value) = (left_value?, right_value?);
                self.sides_of_one_order((left, &left_value), (right, &right_value))?;
                self.with_units(&left_value, &right_value)?;
                self.compare(op, left_value, right_value, span).map(Value::Typed)
            }
        }
    }

    /// `&&` and `||`. When `has(..)` or another constant on the left decides, the right is not checked: it may name what
    /// this kernel lacks.
    fn logical(&mut self, left: &ast::Expr, right: &ast::Expr, span: Span, or: bool) -> Checked<Value> {
        let left = self.value(left).and_then(|v| self.truth(v));
        if let Ok(Expr { kind: Kind::Const(bit), .. }) = &left
            && (*bit == 1) == or
        {
            let place =
                if or { self.place(span) } else { left.as_ref().map_or_else(|_| self.place(span), |e| e.place) };
            return Ok(Value::Typed(constant_bool(or, place)));
        }
        let right = self.value(right).and_then(|v| self.truth(v));
        let (left, right) = (left?, right?);
        let place = self.place(span);
        Ok(Value::Typed(match (&left.kind, &right.kind) {
            (Kind::Const(_), _) => Expr { place, ..right },
            (_, Kind::Const(bit)) if (*bit == 1) != or => Expr { place, ..left },
            // Reading has no effect: what cannot change the outcome need not be read.
            (_, Kind::Const(_)) => right,
            _ => {
                let (left, right) = (Box::new(left), Box::new(right));
                let kind = if or { Kind::Or(left, right) } else { Kind::And(left, right) };
                Expr { kind, ty: Ty::Bool, duration: false, place }
            }
        }))
    }

    /// Arithmetic, also `min` and `max`.
    pub(super) fn arith(&mut self, op: Arith, left: Value, right: Value, span: Span) -> Checked<Value> {
        if let (Arith::Div | Arith::Rem, Value::Literal(Literal { value: 0, span, .. })) = (op, &right) {
            return Err(self.fail(*span, "division by zero"));
        }
        if let (Value::Literal(a), Value::Literal(b)) = (&left, &right) {
            let Some(value) = fold(op, a.value, b.value) else {
                return Err(self.fail(span, format!("`{}` does not fit 64 bits", self.quote(span))));
            };
            let duration = duration_of(op, a.duration, b.duration);
            let inverted = a.inverted || b.inverted;
            return Ok(Value::Literal(Literal { value, duration, inverted, span }));
        }
        let (left, right) = (self.operand(op, left), self.operand(op, right));
        let (left, right) = (left?, right?);
        self.wide_enough(&left, &right)?;
        if matches!(op, Arith::Min | Arith::Max) {
            self.with_units(&left, &right)?;
        }
        let (left, right) = self.pair(left, right, span)?;
        if let (Arith::Shl | Arith::Shr, Kind::Const(n), Ty::Int { bits, .. }) = (op, &right.kind, left.ty)
            && *n >= u64::from(bits)
        {
            let message = format!("a shift by {n} leaves nothing of {}", self.describe(left.ty));
            return Err(self.fail_hint(right.place.span, message, &format!("shift by 0 to {}", bits - 1)));
        }
        let (ty, duration) = (left.ty, duration_of(op, left.duration, right.duration));
        let kind = Kind::Arith(op, Box::new(left), Box::new(right));
        Ok(Value::Typed(Expr { kind, ty, duration, place: self.place(span) }))
    }

    /// Refuses a duration with a number of fewer bits, which would take its type: 32 bits of nanoseconds wrap at 4.3 s.
    fn wide_enough(&mut self, left: &Value, right: &Value) -> Checked<()> {
        let ((Value::Typed(number), Value::Literal(Literal { duration: true, .. }))
        | (Value::Literal(Literal { duration: true, .. }), Value::Typed(number))) = (left, right)
        else {
            return Ok(());
        };
        match number.ty {
            Ty::Int { bits, signed } if bits < 64 => {
                let quote = self.quote(number.place.span);
                let message = format!("a duration has 64 bits, `{quote}` is {}", self.describe(number.ty));
                let hint = format!("convert it: `{}64({quote})`", if signed { 's' } else { 'u' });
                Err(self.fail_hint(number.place.span, message, &hint))
            }
            _ => Ok(()),
        }
    }

    /// An operand of arithmetic: a number, with or without a type.
    fn operand(&mut self, op: Arith, value: Value) -> Checked<Value> {
        if let Value::Literal(_) = value {
            return Ok(value);
        }
        let expr = self.typed(value)?;
        let quote = self.quote(expr.place.span);
        let address = format!(
            "compute with its address, `u64({quote})`, and `cast(struct NAME, ..)` the sum; `.` and `[i]` read what it points to"
        );
        let hint = match (expr.ty, op) {
            (Ty::Int { .. }, _) => return Ok(Value::Typed(expr)),
            (Ty::Ptr { .. }, _) => address.as_str(),
            (Ty::Bool, Arith::And | Arith::Or | Arith::Xor) => {
                "`&`, `|` and `^` bind looser than comparisons: put them in brackets, or write `&&`, `||`, `!=`"
            }
            (Ty::Bool, _) => "choose numbers with it: `x ? 1 : 0`",
            (Ty::Str(_) | Ty::Bytes(_), _) => "only numbers are computed with",
        };
        let message = format!("`{quote}` is {}, not a number", self.describe(expr.ty));
        Err(self.fail_hint(expr.place.span, message, hint))
    }

    fn compare(&mut self, op: Cmp, left: Value, right: Value, span: Span) -> Checked<Expr> {
        let place = self.place(span);
        match (&left, &right) {
            (Value::Literal(a), Value::Literal(b)) => {
                return Ok(constant_bool(holds(op, a.value, b.value), place));
            }
            (_, Value::Text(..)) => return self.compare_text(op, left, right, span),
            (Value::Text(..), _) => return self.compare_text(op, right, left, span),
            _ => {}
        }
        let (left, right) = self.pair(left, right, span)?;
        let ordered = !matches!(op, Cmp::Eq | Cmp::Ne);
        let (left, right) = match left.ty {
            Ty::Int { .. } => (left, right),
            Ty::Bool if !ordered => (left, right),
            // Pointers to different types may still be the same address.
            Ty::Ptr { .. } if !ordered => (convert(left, Ty::U64), convert(right, Ty::U64)),
            Ty::Bool | Ty::Ptr { .. } => {
                let message = format!("{} has no order", self.describe(left.ty));
                return Err(self.fail_hint(span, message, "only `==` and `!=` compare it"));
            }
            Ty::Str(_) | Ty::Bytes(_) => {
                return Err(self.fail_hint(
                    span,
                    "text is compared only with text in quotes",
                    "as in `comm == \"nginx\"`",
                ));
            }
        };
        if let (Kind::Const(a), Kind::Const(b), Ty::Int { signed, .. }) = (&left.kind, &right.kind, left.ty) {
            let value = |bits: u64| if signed { i128::from(bits as i64) } else { i128::from(bits) };
            return Ok(constant_bool(holds(op, value(*a), value(*b)), place));
        }
        Ok(Expr { kind: Kind::Cmp(op, Box::new(left), Box::new(right)), ty: Ty::Bool, duration: false, place })
    }

    /// `c ? a : b`. A constant condition picks its side; the other is not checked.
    pub(super) fn conditional(
        &mut self,
        condition: &ast::Expr,
        yes: &ast::Expr,
        no: &ast::Expr,
        span: Span,
    ) -> Checked<Value> {
        let condition = self.value(condition).and_then(|v| self.truth(v));
        if let Ok(Expr { kind: Kind::Const(bit), .. }) = &condition {
            return self.value(if *bit == 1 { yes } else { no });
        }
        let (yes, no) = (self.value(yes), self.value(no));
        let (condition, yes, no) = (condition?, yes?, no?);
        let (yes, no) = match (yes, no) {
            (Value::Text(..), _) | (_, Value::Text(..)) => return Err(self.text_choice(span)),
            (Value::Literal(a), Value::Literal(b)) => {
                let ty = if a.value < 0 || b.value < 0 { Ty::S64 } else { Ty::U64 };
                let (a, b) = (self.adapt(a, ty), self.adapt(b, ty));
                (a?, b?)
            }
            (yes, no) => self.pair(yes, no, span)?,
        };
        let (yes, no) = match (yes.ty, no.ty) {
            (Ty::Str(_) | Ty::Bytes(_), _) => return Err(self.text_choice(span)),
            (Ty::Ptr { to: a, trust: s }, Ty::Ptr { to: b, trust: t }) => {
                if a != b || (s == Trust::User) != (t == Trust::User) {
                    return Err(self.mismatch(&yes, &no, span));
                }
                // What comes from two places has no one type for the verifier.
                let trust = if s == Trust::User { s } else { Trust::Probe };
                (retrust(yes, trust), retrust(no, trust))
            }
            _ => (yes, no),
        };
        let (ty, duration) = (yes.ty, yes.duration || no.duration);
        let kind = Kind::Cond(Box::new(condition), Box::new(yes), Box::new(no));
        Ok(Value::Typed(Expr { kind, ty, duration, place: self.place(span) }))
    }

    fn text_choice(&mut self, span: Span) -> Reported {
        self.fail_hint(
            span,
            "text cannot be chosen with `?:`",
            "in a label use `map(x, true => \"yes\", false => \"no\")`",
        )
    }

    /// `x in [a, b]`.
    pub(super) fn one_of(
        &mut self,
        value: &ast::Expr,
        elements: &[ast::Expr],
        negated: bool,
        span: Span,
    ) -> Checked<Value> {
        if let Some(one_more) = elements.get(super::MAX_SET) {
            let message = format!("a set has at most {} elements, this one {}", super::MAX_SET, elements.len());
            return Err(self.fail_hint(
                one_more.span,
                message,
                "test a range with `>=` and `<=`, or text by its start",
            ));
        }
        let ast = value;
        let value = self.value(value);
        let elements: Vec<_> = elements.iter().map(|e| self.value(e)).collect();
        let value = value?;
        let elements: Vec<Value> = elements.into_iter().collect::<Checked<_>>()?;
        for element in &elements {
            self.with_units(&value, element)?;
            if let Value::Literal(element) = element {
                self.same_order(ast, element.value, element.span)?;
            }
        }
        let place = self.place(span);
        let found = match (&value, elements.first()) {
            (Value::Literal(l), _) => {
                return Err(self.fail(l.span, "a number without a type is not looked up in a set"));
            }
            (_, Some(Value::Text(..))) => self.text_in(value, elements, span)?,
            _ => {
                let value = self.integer(value)?;
                let constants: Vec<_> = elements.into_iter().map(|e| self.element_constant(e, value.ty)).collect();
                let mut constants: Vec<u64> = constants.into_iter().collect::<Checked<_>>()?;
                constants.sort_unstable();
                constants.dedup();
                Expr { kind: Kind::OneOf(Box::new(value), constants), ty: Ty::Bool, duration: false, place }
            }
        };
        Ok(Value::Typed(match negated {
            true => Expr { kind: Kind::Not(Box::new(found)), ty: Ty::Bool, duration: false, place },
            false => found,
        }))
    }

    fn element_constant(&mut self, element: Value, ty: Ty) -> Checked<u64> {
        let span = element.span();
        if let Value::Literal(l) = element
            && let Kind::Const(bits) = self.adapt(l, ty)?.kind
        {
            return Ok(bits);
        }
        let message = format!("`{}` is no constant number", self.quote(span));
        Err(self.fail_hint(span, message, "elements of a set are numbers or constants; use `==` and `||` for others"))
    }
}
