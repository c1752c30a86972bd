//! The functions that print formats call.

use super::eval::constant;
use super::lexer::Token;
use super::parse::{Parser, Refused};
use super::program::{Dump, Id, Integer, Named, Node, Operator};
use crate::format::Shape;

/// A call, from behind its opening bracket to before the closing one.
pub(super) fn call(parser: &mut Parser<'_>, name: &str) -> Result<Id, Refused> {
    match name {
        "__get_str"
        | "__get_rel_str"
        | "__get_dynamic_array"
        | "__get_rel_dynamic_array"
        | "__get_sockaddr"
        | "__get_rel_sockaddr"
        | "__get_sockaddr_rel" => {
            let field = located(parser)?;
            Ok(parser.program.add(Node::Contents(field))?)
        }
        "__get_dynamic_array_len" | "__get_rel_dynamic_array_len" => {
            let field = located(parser)?;
            Ok(parser.program.add(Node::Length(field))?)
        }
        "__get_bitmask" | "__get_rel_bitmask" | "__get_cpumask" | "__get_rel_cpumask" => {
            let field = located(parser)?;
            let contents = parser.program.add(Node::Contents(field))?;
            Ok(parser.program.add(Node::Bitmask(contents))?)
        }
        "__print_flags" | "__print_flags_u64" => {
            let value = parser.expression()?;
            parser.expect(",")?;
            let delimiter = parser.literal()?.into();
            let rows = rows(parser)?;
            Ok(parser.program.add(Node::Flags(value, delimiter, rows))?)
        }
        "__print_symbolic" | "__print_symbolic_u64" => {
            let value = parser.expression()?;
            let rows = rows(parser)?;
            Ok(parser.program.add(Node::Symbolic(value, rows))?)
        }
        "__print_hex" | "__print_hex_str" => {
            let [bytes, length] = arguments(parser)?;
            Ok(parser.program.add(Node::Hex { bytes, length, spaces: name == "__print_hex" })?)
        }
        "__print_array" => {
            let [array, count, element] = arguments(parser)?;
            Ok(parser.program.add(Node::Array(array, count, element))?)
        }
        "__print_dynamic_array" => {
            let field = located(parser)?;
            parser.expect(",")?;
            let element = parser.expression()?;
            let array = parser.program.add(Node::Contents(field))?;
            let length = parser.program.add(Node::Length(field))?;
            let count = parser.program.add(Node::Binary(Operator::Divide, length, element))?;
            Ok(parser.program.add(Node::Array(array, count, element))?)
        }
        "__print_hex_dump" => hex_dump(parser),
        "__print_ns_to_secs" | "__print_ns_without_secs" => {
            let value = parser.expression()?;
            let value = parser.program.add(Node::Cast(super::program::Type::Integer(Integer::UNSIGNED_LONG), value))?;
            let second = parser.number(Integer::UNSIGNED_LONG.of(1_000_000_000))?;
            let operator = if name == "__print_ns_to_secs" { Operator::Divide } else { Operator::Remainder };
            Ok(parser.program.add(Node::Binary(operator, value, second))?)
        }
        "__builtin_expect" => {
            let [value, _likely] = arguments(parser)?;
            Ok(value)
        }
        _ => Err(format!("the function `{name}`")),
    }
}

fn arguments<const COUNT: usize>(parser: &mut Parser<'_>) -> Result<[Id; COUNT], Refused> {
    let mut all = [Id(0); COUNT];
    for (place, argument) in all.iter_mut().enumerate() {
        if place > 0 {
            parser.expect(",")?;
        }
        *argument = parser.expression()?;
    }
    Ok(all)
}

/// The name of a field whose contents stand elsewhere in the record.
fn located(parser: &mut Parser<'_>) -> Result<usize, Refused> {
    let field = parser.field()?;
    match parser.format.fields[field].shape {
        Shape::Located(_) | Shape::RelativelyLocated(_) => Ok(field),
        _ => Err(format!("`{}` as the name of what stands elsewhere", parser.format.fields[field].name)),
    }
}

/// `, { VALUE, "NAME" }` up to the closing bracket. Rows of an unknown value are left out: their number is shown instead.
fn rows(parser: &mut Parser<'_>) -> Result<Box<[Named]>, Refused> {
    let mut rows = Vec::new();
    let mut ended = false;
    while parser.take(",") {
        if !parser.take("{") {
            return Err("rows that are not in the format".into());
        }
        // `{ }` ends the rows of some formats.
        if parser.take("}") {
            ended = true;
            continue;
        }
        let value = match parser.attempt() {
            Some(value) => Some(number(parser, value).ok_or("a row whose value is not known before")?),
            None => None,
        };
        parser.expect(",")?;
        if matches!(parser.peek(), Some(Token::Text(_))) {
            let name = parser.literal()?.into();
            if let (Some(value), false) = (value, ended) {
                rows.push(Named { value, name });
            }
        } else {
            // `{ -1, NULL }` ends them.
            let end = parser.expression()?;
            if number(parser, end) != Some(0) {
                return Err("a row without its name".into());
            }
            ended = true;
        }
        parser.take(",");
        parser.expect("}")?;
    }
    Ok(rows.into())
}

/// The number that an expression is in every record.
fn number(parser: &Parser<'_>, id: Id) -> Option<u64> {
    constant(&parser.program, id).map(|number| number.bits)
}

fn hex_dump(parser: &mut Parser<'_>) -> Result<Id, Refused> {
    let prefix = parser.literal()?.into();
    let mut fixed = || -> Result<u64, Refused> {
        parser.expect(",")?;
        // The names are those of an enumeration.
        let word = match parser.peek() {
            Some(Token::Name("DUMP_PREFIX_NONE")) => Some(0),
            Some(Token::Name("DUMP_PREFIX_ADDRESS")) => Some(1),
            Some(Token::Name("DUMP_PREFIX_OFFSET")) => Some(2),
            _ => None,
        };
        if let Some(word) = word {
            parser.next();
            return Ok(word);
        }
        let value = parser.expression()?;
        Ok(number(parser, value).ok_or("a hex dump whose form is not known before")?)
    };
    let (prefix_kind, row, group) = (fixed()?, fixed()?, fixed()?);
    parser.expect(",")?;
    let [bytes, length] = arguments(parser)?;
    parser.expect(",")?;
    let ascii = parser.expression()?;
    let ascii = number(parser, ascii).ok_or("a hex dump whose form is not known before")? != 0;
    // What the kernel does with other numbers (`hex_dump_to_buffer`).
    let row = if row == 32 { 32 } else { 16 };
    let group = if matches!(group, 2 | 4 | 8) { group as usize } else { 1 };
    Ok(parser.program.add(Node::Dump(Box::new(Dump { prefix, prefix_kind, row, group, bytes, length, ascii })))?)
}
