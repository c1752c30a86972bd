//! Pieces of a format with their arguments, as text.

use super::eval::{Missing, Record, Value};
use super::pointer;
use super::program::{Conversion, Integer, Piece, Width};
use crate::trace::Trace;
use std::borrow::Cow;

/// Where arguments come from, one after the other.
pub(super) trait Arguments<'a> {
    /// A width or a precision.
    fn width(&mut self) -> Result<i32, Missing>;
    /// What a conversion shows.
    fn argument(&mut self, conversion: &Conversion) -> Result<Value<'a>, Missing>;
}

/// An event says no more than this, and one conversion: the kernel stops at 8 KiB.
pub(super) const MAX_TEXT_BYTES: usize = 1 << 16;

/// Writes a format with its arguments; after an error the text has what came before it.
pub(super) fn show<'a>(
    pieces: &[Piece],
    arguments: &mut dyn Arguments<'a>,
    trace: &Trace,
    out: &mut String,
) -> Result<(), Missing> {
    let start = out.len();
    for piece in pieces {
        if out.len() - start > MAX_TEXT_BYTES {
            return Err("a text that is too long");
        }
        match piece {
            Piece::Text(text) => out.push_str(text),
            Piece::Conversion(conversion) => {
                let mut given = |width| match width {
                    Width::Argument => arguments.width().map(Some),
                    _ => Ok(None),
                };
                let (width, precision) = (given(conversion.width)?, given(conversion.precision)?);
                let argument = arguments.argument(conversion)?;
                match (width, precision) {
                    (None, None) => one(conversion, argument, None, trace, out)?,
                    _ => one(&conversion.with(width, precision), argument, width, trace, out)?,
                }
            }
        }
    }
    Ok(())
}

fn one(
    conversion: &Conversion,
    argument: Value<'_>,
    width: Option<i32>,
    trace: &Trace,
    out: &mut String,
) -> Result<(), Missing> {
    match (conversion.letter, argument) {
        (b's', argument) => {
            let text = text(&argument, trace);
            let length = conversion.precision().unwrap_or(usize::MAX).min(text.len());
            conversion.text(&String::from_utf8_lossy(&text[..length]), out);
        }
        (b'c', Value::Number(number)) => {
            let mut buffer = [0; 4];
            conversion.text(char::from(number.bits as u8).encode_utf8(&mut buffer), out);
        }
        (b'p', argument) => pointed(conversion, argument, width, trace, out)?,
        (_, Value::Number(number)) => conversion.number(number, out),
        _ => return Err("a text or an array where a number belongs"),
    }
    Ok(())
}

fn pointed(
    conversion: &Conversion,
    argument: Value<'_>,
    width: Option<i32>,
    trace: &Trace,
    out: &mut String,
) -> Result<(), Missing> {
    match argument {
        Value::Number(number) => match conversion.extension.bytes().next() {
            Some(b's' | b'S' | b'B' | b'f' | b'F') => pointer::symbol(conversion, number.bits, &trace.symbols, out),
            // What others point to is not in the record.
            _ => pointer::address(conversion, number.bits, out),
        },
        // Rendered when the record was written.
        Value::Text(text) => conversion.text(&String::from_utf8_lossy(&text), out),
        Value::Memory(bytes, _) => {
            let text = pointer::bytes(conversion, bytes, width).ok_or("the address of a place in the record")?;
            // A width before `h` and `b` is the number of bytes or bits.
            match width {
                Some(_) => out.push_str(&text),
                None => conversion.text(&text, out),
            }
        }
    }
    Ok(())
}

/// What `%s` shows.
fn text<'a>(argument: &'a Value<'_>, trace: &'a Trace) -> Cow<'a, [u8]> {
    let text = match argument {
        Value::Text(text) => text,
        Value::Memory(bytes, _) => *bytes,
        Value::Number(number) if number.bits == 0 => return Cow::Borrowed(b"(null)"),
        // Texts of the kernel itself; others are not in the trace.
        Value::Number(number) => match trace.printk.get(&number.bits) {
            Some(text) => text.as_bytes(),
            None => return Cow::Owned(format!("{:#x}", number.bits).into_bytes()),
        },
    };
    Cow::Borrowed(text.split(|byte| *byte == 0).next().unwrap_or_default())
}

/// The arguments of a compiled print format.
pub(super) struct Compiled<'a> {
    pub record: Record<'a>,
    pub next: usize,
}

impl<'a> Compiled<'a> {
    fn take(&mut self) -> Result<Value<'a>, Missing> {
        let argument = self.record.program.arguments.get(self.next).ok_or("fewer arguments than conversions")?;
        self.next += 1;
        self.record.value(*argument)
    }
}

impl<'a> Arguments<'a> for Compiled<'a> {
    fn width(&mut self) -> Result<i32, Missing> {
        match self.take()? {
            Value::Number(number) => Ok(number.bits as i32),
            _ => Err("a width that is no number"),
        }
    }

    fn argument(&mut self, _: &Conversion) -> Result<Value<'a>, Missing> {
        self.take()
    }
}

/// Arguments as `vbin_printf` stores them behind a `trace_printk` record: numbers aligned to their size and at most to four bytes,
/// texts with their NUL, and what most pointers point to already as text.
pub(super) struct Stored<'a> {
    pub bytes: &'a [u8],
    pub at: usize,
}

impl<'a> Stored<'a> {
    fn number(&mut self, kind: Integer) -> Result<Value<'a>, Missing> {
        let size = usize::from(kind.bytes);
        let start = self.at.next_multiple_of(size.min(4));
        let bytes = self.bytes.get(start..start + size).ok_or("fewer arguments than conversions")?;
        self.at = start + size;
        Ok(Value::Number(kind.of(crate::value::unsigned(bytes))))
    }
}

impl<'a> Arguments<'a> for Stored<'a> {
    fn width(&mut self) -> Result<i32, Missing> {
        match self.number(Integer::INT)? {
            Value::Number(number) => Ok(number.bits as i32),
            _ => Err("a width that is no number"),
        }
    }

    fn argument(&mut self, conversion: &Conversion) -> Result<Value<'a>, Missing> {
        match conversion.letter {
            b's' => {}
            b'c' => return self.number(Integer { bytes: 1, signed: false }),
            b'p' if matches!(conversion.extension.bytes().next(), None | Some(b'S' | b's' | b'x' | b'K' | b'e')) => {
                return self.number(Integer::UNSIGNED_LONG);
            }
            b'p' => {}
            letter => return self.number(Integer { bytes: conversion.bytes, signed: letter == b'd' }),
        }
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let end = rest.iter().position(|byte| *byte == 0).ok_or("a text without its end")?;
        self.at += end + 1;
        Ok(Value::Text(Cow::Borrowed(&rest[..end])))
    }
}
