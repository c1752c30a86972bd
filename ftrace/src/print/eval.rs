//! Values of a program's expressions in a record.

use super::pointer;
use super::program::{Dump, Id, Integer, Named, Node, Number, Operator, Program, Type};
use crate::format::{Contents, EventFormat, Field, Shape};
use crate::value::unsigned;
use std::borrow::Cow;
use std::fmt::Write;

/// What an expression is.
#[derive(Clone, Debug)]
pub(super) enum Value<'a> {
    Number(Number),
    /// Made here, or a literal.
    Text(Cow<'a, [u8]>),
    /// A place in the record; elements have this type when it is known.
    Memory(&'a [u8], Option<Integer>),
}

/// Why there is no value.
pub(super) type Missing = &'static str;

/// A record, and what is needed to read it.
#[derive(Clone, Copy)]
pub(super) struct Record<'a> {
    pub program: &'a Program,
    pub format: &'a EventFormat,
    pub data: &'a [u8],
}

/// The number that an expression is in every record.
pub(super) fn constant(program: &Program, id: Id) -> Option<Number> {
    let format = EventFormat {
        system: String::new(),
        name: String::new(),
        id: 0,
        fields: Vec::new(),
        print: String::new(),
        text: String::new(),
    };
    match (Record { program, format: &format, data: &[] }).value(id) {
        Ok(Value::Number(number)) => Some(number),
        _ => None,
    }
}

impl<'a> Record<'a> {
    /// The value of an expression. Its depth was bounded when it was compiled.
    pub fn value(&self, id: Id) -> Result<Value<'a>, Missing> {
        let node: &'a Node = &self.program.nodes[id.0 as usize];
        Ok(match node {
            Node::Number(number) => Value::Number(*number),
            Node::Text(text) => Value::Text(Cow::Borrowed(text)),
            Node::Field(place) => self.field(*place)?,
            Node::Contents(place) => {
                let field = self.of(*place)?;
                Value::Memory(field.contents(self.data).ok_or(SHORT)?, element(field))
            }
            Node::Length(place) => {
                let contents = self.of(*place)?.contents(self.data).ok_or(SHORT)?;
                Value::Number(Integer::INT.of(contents.len() as u64))
            }
            Node::Address(of) => self.address(*of)?,
            Node::Cast(kind, of) => cast(*kind, self.value(*of)?)?,
            Node::Unary(sign, of) => unary(*sign, self.value(*of)?)?,
            Node::Binary(operator, one, two) => Value::Number(self.binary(*operator, *one, *two)?),
            Node::Choose(condition, one, other) => {
                let chosen = if truth(&self.value(*condition)?) { one } else { other };
                self.value(*chosen)?
            }
            Node::Element(of, index) => {
                let (bytes, kind) = self.element(*of, *index)?;
                Value::Number(kind.of(unsigned(bytes)))
            }
            Node::Flags(value, delimiter, rows) => {
                Value::Text(Cow::Owned(flags(self.number(*value)?.bits, delimiter, rows)))
            }
            Node::Symbolic(value, rows) => {
                let value = self.number(*value)?.bits;
                match rows.iter().find(|row| row.value == value) {
                    Some(row) => Value::Text(Cow::Borrowed(&row.name)),
                    None => made(format!("{value:#x}")),
                }
            }
            Node::Hex { bytes, length, spaces } => {
                made(pointer::hex(self.bytes(*bytes, *length)?, if *spaces { " " } else { "" }))
            }
            Node::Array(array, count, element) => made(self.array(*array, *count, *element)?),
            Node::Dump(dump) => made(hex_dump(dump, self.bytes(dump.bytes, dump.length)?)),
            Node::Bitmask(of) => match self.value(*of)? {
                Value::Memory(bytes, _) => made(pointer::bit_mask(bytes, bytes.len() * 8)),
                _ => return Err("a bit mask that is no array"),
            },
        })
    }

    pub fn number(&self, id: Id) -> Result<Number, Missing> {
        match self.value(id)? {
            Value::Number(number) => Ok(number),
            _ => Err("a number is not one"),
        }
    }

    fn of(&self, place: usize) -> Result<&'a Field, Missing> {
        self.format.fields.get(place).ok_or("a field that the format does not have")
    }

    fn field(&self, place: usize) -> Result<Value<'a>, Missing> {
        let field = self.of(place)?;
        let bytes = field.bytes(self.data).ok_or(SHORT)?;
        Ok(match field.shape {
            Shape::Integer => Value::Number(integer(field).of(unsigned(bytes))),
            // The word that says where the contents are.
            Shape::Located(_) | Shape::RelativelyLocated(_) => {
                Value::Number(Integer { bytes: 4, signed: false }.of(unsigned(bytes)))
            }
            _ => Value::Memory(bytes, element(field)),
        })
    }

    fn address(&self, of: Id) -> Result<Value<'a>, Missing> {
        match &self.program.nodes[of.0 as usize] {
            Node::Field(place) => {
                let field = self.of(*place)?;
                let kind = if field.shape == Shape::Integer { Some(integer(field)) } else { element(field) };
                Ok(Value::Memory(field.bytes(self.data).ok_or(SHORT)?, kind))
            }
            Node::Element(array, index) => match self.value(*array)? {
                Value::Memory(bytes, Some(kind)) => {
                    let start = self.number(*index)?.bits.checked_mul(u64::from(kind.bytes)).ok_or(SHORT)?;
                    let start = usize::try_from(start).map_err(|_| SHORT)?;
                    Ok(Value::Memory(bytes.get(start..).ok_or(SHORT)?, Some(kind)))
                }
                _ => Err("the address of what is not in the record"),
            },
            _ => match self.value(of)? {
                memory @ Value::Memory(..) => Ok(memory),
                _ => Err("the address of what is not in the record"),
            },
        }
    }

    fn element(&self, of: Id, index: Id) -> Result<(&'a [u8], Integer), Missing> {
        let index = usize::try_from(self.number(index)?.bits).map_err(|_| SHORT)?;
        match self.value(of)? {
            Value::Memory(bytes, Some(kind)) => {
                let size = usize::from(kind.bytes);
                let start = index.checked_mul(size).ok_or(SHORT)?;
                let end = start.checked_add(size).ok_or(SHORT)?;
                Ok((bytes.get(start..end).ok_or(SHORT)?, kind))
            }
            _ => Err("an element of what is no array"),
        }
    }

    fn binary(&self, operator: Operator, one: Id, two: Id) -> Result<Number, Missing> {
        let int = |condition: bool| Integer::INT.of(u64::from(condition));
        // The second operand counts only when the first does not decide.
        match operator {
            Operator::And => return Ok(int(truth(&self.value(one)?) && truth(&self.value(two)?))),
            Operator::Or => return Ok(int(truth(&self.value(one)?) || truth(&self.value(two)?))),
            _ => {}
        }
        let (one, two) = (self.number(one)?, self.number(two)?);
        if matches!(operator, Operator::ShiftLeft | Operator::ShiftRight) {
            let kind = one.kind.promoted();
            // The machine takes as many bits of the distance as it needs; C leaves longer ones open.
            let by = two.bits as u32 & (u32::from(kind.bytes) * 8 - 1);
            let bits = match operator {
                Operator::ShiftLeft => one.bits << by,
                _ if kind.signed => (one.bits as i64 >> by) as u64,
                _ => one.bits >> by,
            };
            return Ok(kind.of(bits));
        }
        let kind = one.kind.common(two.kind);
        let (one, two) = (kind.of(one.bits).bits, kind.of(two.bits).bits);
        let order = if kind.signed { (one as i64).cmp(&(two as i64)) } else { one.cmp(&two) };
        Ok(match operator {
            Operator::Equal => int(one == two),
            Operator::Unequal => int(one != two),
            Operator::Less => int(order.is_lt()),
            Operator::LessOrEqual => int(order.is_le()),
            Operator::Greater => int(order.is_gt()),
            Operator::GreaterOrEqual => int(order.is_ge()),
            Operator::BitOr => kind.of(one | two),
            Operator::BitXor => kind.of(one ^ two),
            Operator::BitAnd => kind.of(one & two),
            Operator::Add => kind.of(one.wrapping_add(two)),
            Operator::Subtract => kind.of(one.wrapping_sub(two)),
            Operator::Multiply => kind.of(one.wrapping_mul(two)),
            Operator::Divide | Operator::Remainder if two == 0 => return Err("a division by zero"),
            Operator::Divide if kind.signed => kind.of((one as i64).wrapping_div(two as i64) as u64),
            Operator::Remainder if kind.signed => kind.of((one as i64).wrapping_rem(two as i64) as u64),
            Operator::Divide => kind.of(one / two),
            Operator::Remainder => kind.of(one % two),
            Operator::And | Operator::Or | Operator::ShiftLeft | Operator::ShiftRight => int(false),
        })
    }

    /// So many bytes of a place.
    fn bytes(&self, of: Id, length: Id) -> Result<&'a [u8], Missing> {
        let length = self.number(length)?.bits as i32;
        let length = usize::try_from(length).unwrap_or(0);
        match self.value(of)? {
            Value::Memory(bytes, _) => bytes.get(..length).ok_or(SHORT),
            _ => Err("bytes that are not in the record"),
        }
    }

    fn array(&self, array: Id, count: Id, element: Id) -> Result<String, Missing> {
        let Value::Memory(bytes, _) = self.value(array)? else { return Err("an array that is not in the record") };
        let count = usize::try_from(self.number(count)?.bits as i32).unwrap_or(0);
        let element = self.number(element)?.bits as usize;
        if !matches!(element, 1 | 2 | 4 | 8) {
            return Err("elements of a size that the kernel does not print");
        }
        let bytes = count.checked_mul(element).and_then(|length| bytes.get(..length)).ok_or(SHORT)?;
        let mut text = String::from("{");
        for (place, element) in bytes.chunks_exact(element).enumerate() {
            let _ = write!(text, "{}{:#x}", if place > 0 { "," } else { "" }, unsigned(element));
        }
        text.push('}');
        Ok(text)
    }
}

const SHORT: Missing = "the record is too short";

fn made<'a>(text: String) -> Value<'a> {
    Value::Text(Cow::Owned(text.into_bytes()))
}

fn integer(field: &Field) -> Integer {
    Integer { bytes: field.size.clamp(1, 8) as u8, signed: field.signed }
}

/// The type of an array's elements.
fn element(field: &Field) -> Option<Integer> {
    let bytes = match field.shape {
        Shape::Text | Shape::Located(Contents::Text) | Shape::RelativelyLocated(Contents::Text) => 1,
        Shape::Array(bytes)
        | Shape::Located(Contents::Array(bytes))
        | Shape::RelativelyLocated(Contents::Array(bytes)) => bytes,
        Shape::Integer | Shape::Bytes => return None,
    };
    Some(Integer { bytes: bytes.clamp(1, 8) as u8, signed: field.signed })
}

fn truth(value: &Value<'_>) -> bool {
    !matches!(value, Value::Number(number) if number.bits == 0)
}

fn unary(sign: char, value: Value<'_>) -> Result<Value<'_>, Missing> {
    if sign == '!' {
        return Ok(Value::Number(Integer::INT.of(u64::from(!truth(&value)))));
    }
    let Value::Number(number) = value else { return Err("a sign before what is no number") };
    let kind = number.kind.promoted();
    Ok(Value::Number(kind.of(if sign == '-' { number.bits.wrapping_neg() } else { !number.bits })))
}

fn cast(kind: Type, value: Value<'_>) -> Result<Value<'_>, Missing> {
    Ok(match (kind, value) {
        (Type::Integer(kind), Value::Number(number)) => Value::Number(kind.of(number.bits)),
        (Type::Bool, value) => Value::Number(Integer { bytes: 1, signed: false }.of(u64::from(truth(&value)))),
        (Type::Pointer(_), Value::Number(number)) => Value::Number(Integer::UNSIGNED_LONG.of(number.bits)),
        (Type::Pointer(element), Value::Memory(bytes, _)) => Value::Memory(bytes, element),
        (Type::Pointer(_), text @ Value::Text(_)) => text,
        (Type::Integer(_), _) => return Err("a place in the record as a number"),
    })
}

fn flags(mut value: u64, delimiter: &[u8], rows: &[Named]) -> Vec<u8> {
    let mut text = Vec::new();
    let mut first = true;
    let mut add = |part: &[u8]| {
        if !std::mem::take(&mut first) {
            text.extend_from_slice(delimiter);
        }
        text.extend_from_slice(part);
    };
    for row in rows {
        if value == 0 {
            break;
        }
        if value & row.value == row.value {
            value &= !row.value;
            add(&row.name);
        }
    }
    if value != 0 {
        add(format!("{value:#x}").as_bytes());
    }
    text
}

/// Rows of bytes as `hex_dump_to_buffer` writes them; the kernel begins a line for them.
fn hex_dump(dump: &Dump, bytes: &[u8]) -> String {
    let prefix = String::from_utf8_lossy(&dump.prefix);
    let mut text = String::from("\n");
    for (number, row) in bytes.chunks(dump.row).enumerate() {
        let _ = match dump.prefix_kind {
            // The address was that of the kernel's copy.
            1 => write!(text, "{prefix}{:016x}: ", 0),
            2 => write!(text, "{prefix}{:08x}: ", number * dump.row),
            _ => write!(text, "{prefix}"),
        };
        // A row that groups do not fill is written byte by byte.
        let group = if row.len().is_multiple_of(dump.group) { dump.group } else { 1 };
        let start = text.len();
        for (place, part) in row.chunks(group).enumerate() {
            let space = if place > 0 { " " } else { "" };
            let _ = write!(text, "{space}{:0width$x}", unsigned(part), width = 2 * group);
        }
        if dump.ascii {
            let column = dump.row * 2 + dump.row / group + 1;
            let missing = (column + start).saturating_sub(text.len());
            text.extend(std::iter::repeat_n(' ', missing));
            text.extend(row.iter().map(|byte| if (0x20..0x7f).contains(byte) { char::from(*byte) } else { '.' }));
        }
        text.push('\n');
    }
    text
}
