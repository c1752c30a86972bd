//! AST to text. What is printed parses to the same tree, with brackets only where the tree needs them.

use crate::ast::{BinaryOp, Expr, ExprKind, TypeKind, UnaryOp};
use std::fmt::Write;

/// Binding powers, as in the parser: a node inside a tighter one needs brackets.
const COND: u8 = 1;
const IN: u8 = 9;
const UNARY: u8 = 13;
const POSTFIX: u8 = 14;

/// The expression as text.
pub fn print(expr: &Expr) -> String {
    let mut out = String::new();
    write(&mut out, expr, 0);
    out
}

fn write(out: &mut String, expr: &Expr, min: u8) {
    let power = power(&expr.kind);
    if power < min {
        out.push('(');
    }
    write_kind(out, &expr.kind, power);
    if power < min {
        out.push(')');
    }
}

fn power(kind: &ExprKind) -> u8 {
    match kind {
        ExprKind::Arm(..) => 0,
        ExprKind::Cond(..) => COND,
        ExprKind::In(..) => IN,
        ExprKind::Binary(op, ..) => super::parse::infix(symbol(*op)).map_or(0, |(power, _)| power),
        ExprKind::Unary(..) => UNARY,
        _ => POSTFIX,
    }
}

fn write_kind(out: &mut String, kind: &ExprKind, power: u8) {
    match kind {
        ExprKind::Field(base, field) => {
            write(out, base, POSTFIX);
            out.push('.');
            out.push_str(&field.name);
        }
        ExprKind::Index(base, index) => {
            write(out, base, POSTFIX);
            out.push('[');
            write(out, index, 0);
            out.push(']');
        }
        ExprKind::Call(name, args) => {
            out.push_str(&name.name);
            out.push('(');
            write_list(out, args);
            out.push(')');
        }
        ExprKind::Unary(op, operand) => {
            out.push(match op {
                UnaryOp::Neg => '-',
                UnaryOp::Not => '!',
                UnaryOp::Invert => '~',
            });
            write(out, operand, UNARY);
        }
        ExprKind::Binary(op, left, right) => {
            write(out, left, power);
            out.push(' ');
            out.push_str(symbol(*op));
            out.push(' ');
            write(out, right, power + 1);
        }
        ExprKind::Cond(condition, yes, no) => {
            write(out, condition, COND + 1);
            out.push_str(" ? ");
            write(out, yes, 0);
            out.push_str(" : ");
            write(out, no, COND);
        }
        ExprKind::In(value, elements, negated) => {
            write(out, value, IN);
            out.push_str(if *negated { " not in [" } else { " in [" });
            write_list(out, elements);
            out.push(']');
        }
        ExprKind::Arm(pattern, text) => {
            match pattern {
                Some(pattern) => write(out, pattern, COND),
                None => out.push('_'),
            }
            out.push_str(" => ");
            write(out, text, COND);
        }
        leaf => write_leaf(out, leaf),
    }
}

/// What holds no expression.
fn write_leaf(out: &mut String, kind: &ExprKind) {
    match kind {
        ExprKind::Int(v) => push(out, v),
        ExprKind::Duration(v) => push(
            out,
            &in_units(
                *v,
                &[
                    ("h", 3_600_000_000_000),
                    ("m", 60_000_000_000),
                    ("s", 1_000_000_000),
                    ("ms", 1_000_000),
                    ("us", 1_000),
                ],
                "ns",
            ),
        ),
        ExprKind::Size(v) => push(out, &in_units(v >> 10, &[("GiB", 1 << 20), ("MiB", 1 << 10)], "KiB")),
        ExprKind::Bool(v) => push(out, v),
        ExprKind::Str(v) => write_text(out, v),
        ExprKind::Name(v) => out.push_str(v),
        ExprKind::TypeName(kind, name) => {
            let keyword = match kind {
                TypeKind::Struct => "struct",
                TypeKind::Union => "union",
                TypeKind::Enum => "enum",
            };
            out.push_str(keyword);
            out.push(' ');
            out.push_str(name);
        }
        _ => unreachable!("write_kind prints all that holds expressions"),
    }
}

fn push(out: &mut String, value: &dyn std::fmt::Display) {
    write!(out, "{value}").expect("writing to a String cannot fail");
}

fn write_list(out: &mut String, list: &[Expr]) {
    for (i, element) in list.iter().enumerate() {
        if i > 0 {
            out.push_str(", ");
        }
        write(out, element, 0);
    }
}

/// In the largest unit that keeps the value whole.
fn in_units(value: u64, units: &[(&str, u64)], smallest: &str) -> String {
    match units.iter().find(|(_, scale)| value != 0 && value.is_multiple_of(*scale)) {
        Some((unit, scale)) => format!("{}{unit}", value / scale),
        None => format!("{value}{smallest}"),
    }
}

fn write_text(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            '\0' => out.push_str("\\0"),
            '"' | '\\' => {
                out.push('\\');
                out.push(c);
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

fn symbol(op: BinaryOp) -> &'static str {
    match op {
        BinaryOp::Add => "+",
        BinaryOp::Sub => "-",
        BinaryOp::Mul => "*",
        BinaryOp::Div => "/",
        BinaryOp::Rem => "%",
        BinaryOp::BitAnd => "&",
        BinaryOp::BitOr => "|",
        BinaryOp::BitXor => "^",
        BinaryOp::Shl => "<<",
        BinaryOp::Shr => ">>",
        BinaryOp::Eq => "==",
        BinaryOp::Ne => "!=",
        BinaryOp::Lt => "<",
        BinaryOp::Le => "<=",
        BinaryOp::Gt => ">",
        BinaryOp::Ge => ">=",
        BinaryOp::And => "&&",
        BinaryOp::Or => "||",
    }
}
