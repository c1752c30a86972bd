//! Expressions that compile but are probably mistakes: numbers in another byte order, times without a unit, errors with the
//! wrong sign, addresses where a name is wanted.

use super::expr::{Env, Value};
use super::report::{Checked, Report};
use super::scope::Args;
use crate::ast::{self, ExprKind};
use crate::diag::{Diagnostic, Span};
use crate::kernel_target::Btf;
use crate::kernel_target::btf::Kind as BtfKind;
use crate::typed::{Arith, Expr, Kind, Ty};

/// Members of tracepoints' records that hold an address in code, as numbers of 64 bits.
const CODE: [&str; 8] = ["ip", "caller_ip", "parent_ip", "call_site", "callsite", "location", "function", "func"];
/// Likewise of data.
const DATA: [&str; 5] = ["addr", "address", "ptr", "vaddr", "skaddr"];

/// Bits of a type whose numbers are in network order, which typedefs of the kernel's source say (`__be16`).
fn network_type(btf: &Btf, id: u32) -> Option<u8> {
    let mut t = btf.ty(id);
    // Typedefs of typedefs and qualifiers; broken BTF may be a circle.
    for _ in 0..16 {
        match (t.kind, btf.name(t)) {
            (BtfKind::Typedef, "__be16") => return Some(16),
            (BtfKind::Typedef, "__be32") => return Some(32),
            (BtfKind::Typedef, "__be64") => return Some(64),
            (BtfKind::Typedef | BtfKind::Const | BtfKind::Volatile | BtfKind::TypeTag, _) => t = btf.ty(t.size_or_type),
            _ => return None,
        }
    }
    None
}

/// Whether a number reads the same in both byte orders.
fn same_in_both_orders(value: i128, bits: u8) -> bool {
    match bits {
        16 => u16::try_from(value).is_ok_and(|v| v == v.swap_bytes()),
        32 => u32::try_from(value).is_ok_and(|v| v == v.swap_bytes()),
        _ => u64::try_from(value).is_ok_and(|v| v == v.swap_bytes()),
    }
}

/// Whether an expression only names something: looking at it twice costs little.
fn is_path(ast: &ast::Expr) -> bool {
    match &ast.kind {
        ExprKind::Name(_) | ExprKind::Int(_) | ExprKind::TypeName(..) => true,
        ExprKind::Field(base, _) => is_path(base),
        ExprKind::Index(base, index) => is_path(base) && is_path(index),
        ExprKind::Call(_, args) => args.iter().all(is_path),
        _ => false,
    }
}

/// What conversions stand around.
fn unconverted(ast: &ast::Expr) -> &ast::Expr {
    match &ast.kind {
        ExprKind::Call(name, args) if args.len() == 1 && super::call::is_conversion(&name.name) => {
            unconverted(&args[0])
        }
        _ => ast,
    }
}

impl Env<'_> {
    /// Bits of a number that lies in network order, as far as the kernel's types show it.
    pub(super) fn network_bits(&self, ast: &ast::Expr) -> Option<u8> {
        let ast = unconverted(ast);
        let btf = self.target.btf.as_ref().filter(|_| is_path(ast))?;
        if let ExprKind::Field(base, field) = &ast.kind
            && let ExprKind::Name(base) = &base.kind
        {
            let known = |all: &[super::scope::Saved]| all.iter().find(|s| s.name == field.name)?.network;
            match base.as_str() {
                "start" => return known(&self.scope.saved),
                "state" => return known(&self.scope.state),
                "args" => return network_type(btf, self.scope.arg_type(&field.name)?),
                _ => {}
            }
        }
        let mut unheard = Report::default();
        let mut quiet = Env { report: &mut unheard, ..*self };
        match quiet.value(ast).ok()? {
            Value::Memory(memory) => network_type(btf, memory.ty),
            _ => None,
        }
    }

    /// Refuses to compare what lies in network order with a number of the machine's.
    pub(super) fn same_order(&mut self, ast: &ast::Expr, value: i128, span: Span) -> Checked<()> {
        let Some(bits) = self.network_bits(ast).filter(|bits| !same_in_both_orders(value, *bits)) else {
            return Ok(());
        };
        let (quote, number) = (self.quote(ast.span), self.quote(span));
        let message = format!("`{quote}` is in network byte order (__be{bits}), and `{number}` is not");
        let inner = self.quote(unconverted(ast).span);
        let hint = match bits {
            16 => format!("convert it: `ntohs({inner})`"),
            32 => format!("convert it: `ntohl({inner})`"),
            _ => "compare its bytes".to_owned(),
        };
        Err(self.fail_hint(span, message, &hint))
    }

    /// The same for both sides of a comparison.
    pub(super) fn sides_of_one_order(
        &mut self,
        (left, left_value): (&ast::Expr, &Value),
        (right, right_value): (&ast::Expr, &Value),
    ) -> Checked<()> {
        match (left_value, right_value) {
            (Value::Literal(_), Value::Literal(_)) => Ok(()),
            (Value::Literal(l), _) => self.same_order(right, l.value, l.span),
            (_, Value::Literal(l)) => self.same_order(left, l.value, l.span),
            _ => Ok(()),
        }
    }

    /// Refuses a number without a unit beside a duration: nanoseconds are hardly meant.
    pub(super) fn with_units(&mut self, left: &Value, right: &Value) -> Checked<()> {
        let ((Value::Typed(duration), Value::Literal(number)) | (Value::Literal(number), Value::Typed(duration))) =
            (left, right)
        else {
            return Ok(());
        };
        if !duration.duration || number.duration || number.value == 0 {
            return Ok(());
        }
        let (time, quote) = (self.quote(duration.place.span), self.quote(number.span));
        let message = format!("`{quote}` has no unit, and `{time}` is a duration");
        let hint = match quote.bytes().all(|b| b.is_ascii_digit()) && !quote.is_empty() {
            true => format!("durations count nanoseconds: write `{quote}ns`, `{quote}us`, `{quote}ms` or `{quote}s`"),
            false => format!("durations count nanoseconds: say so, `({quote}) * 1ns`, or use `1us`, `1ms` or `1s`"),
        };
        Err(self.fail_hint(number.span, message, &hint))
    }

    /// `errno(retval)`: what fails returns a negative number, and errors have positive ones.
    pub(super) fn positive_error(&mut self, arg: &ast::Expr, expr: &Expr) -> Checked<()> {
        let result = match &unconverted(arg).kind {
            ExprKind::Name(name) => name == "retval",
            ExprKind::Field(base, field) => {
                matches!(&base.kind, ExprKind::Name(args) if args == "args") && field.name == "ret"
            }
            _ => false,
        };
        if !result || !matches!(expr.ty, Ty::Int { signed: true, .. }) {
            return Ok(());
        }
        let quote = self.quote(arg.span);
        let message = format!("what fails returns a negative error, and `errno({quote})` names positive ones");
        let diagnostic = Diagnostic::user(self.place(arg.span), message);
        Err(self.report.add(diagnostic.hint(format!("write `errno(-{quote})`, and `where: {quote} < 0`"))))
    }

    /// Refuses a number in network order as a label: it reads wrong.
    pub(super) fn readable(&mut self, ast: &ast::Expr) -> Checked<()> {
        let Some(bits) = self.network_bits(ast) else { return Ok(()) };
        let quote = self.quote(ast.span);
        let message = format!("`{quote}` is in network byte order (__be{bits}): as a number it reads wrong");
        let inner = self.quote(unconverted(ast).span);
        let hint = match bits {
            16 => format!("show a port with `port({inner})`, anything else as `ntohs({inner})`"),
            32 => format!("show an address with `ip({inner})`, anything else as `ntohl({inner})`"),
            _ => "show what it is made of".to_owned(),
        };
        Err(self.fail_hint(ast.span, message, &hint))
    }

    /// Warns of a label that is an address by its name.
    pub(super) fn address_by_name(&mut self, ast: &ast::Expr, expr: &Expr) {
        let ExprKind::Field(base, field) = &unconverted(ast).kind else { return };
        let is_arg = matches!(&base.kind, ExprKind::Name(args) if args == "args");
        let name = field.name.as_str();
        let code = CODE.contains(&name) || name.ends_with("_ip");
        let number = matches!(expr.ty, Ty::Int { bits: 64, signed: false });
        if !is_arg || !number || !(code || DATA.contains(&name)) || !matches!(self.scope.args, Args::Record { .. }) {
            return;
        }
        let quote = self.quote(ast.span);
        let hint = match code {
            true => format!("show the function that it lies in: `ksym({quote})`"),
            false => "use a member of what lies there, or leave it out".to_owned(),
        };
        let message = format!("`{quote}` looks like an address: nearly every event would make a new series");
        self.report.warn(Diagnostic::warning(self.place(ast.span), message).hint(hint));
    }
}

/// Whether `!=` behind an expression would take only a part of it.
pub(super) fn binds_looser_than_comparisons(expr: &Expr) -> bool {
    matches!(&expr.kind, Kind::Cond(..) | Kind::Arith(Arith::And | Arith::Or | Arith::Xor, ..))
}
