//! Records as `name=value`, for those whose print format says nothing.

use super::pointer::hex;
use super::show::MAX_TEXT_BYTES;
use crate::format::EventFormat;
use crate::value::Value;
use std::fmt::Write;

/// All fields but the common ones.
pub(super) fn all(format: &EventFormat, data: &[u8], out: &mut String) {
    let start = out.len();
    let own = format.fields.iter().filter(|field| !field.name.starts_with("common_"));
    for (number, field) in own.enumerate() {
        // Many fields may lead to the same bytes.
        if out.len() - start > MAX_TEXT_BYTES {
            out.push_str(" ...");
            return;
        }
        let space = if number > 0 { " " } else { "" };
        let _ = write!(out, "{space}{}=", field.name);
        match field.value(data) {
            // Addresses and masks are read as hexadecimal numbers.
            Some(Value::Unsigned(number)) if field.c_type.ends_with('*') || field.c_type.contains("long") => {
                let _ = write!(out, "{number:#x}");
            }
            Some(Value::Unsigned(number)) => {
                let _ = write!(out, "{number}");
            }
            Some(Value::Signed(number)) => {
                let _ = write!(out, "{number}");
            }
            Some(Value::Text(text)) => out.push_str(&String::from_utf8_lossy(text)),
            Some(value @ Value::Array { .. }) => {
                out.push('{');
                for (place, element) in value.elements().enumerate() {
                    let _ = write!(out, "{}{element:#x}", if place > 0 { "," } else { "" });
                }
                out.push('}');
            }
            Some(Value::Bytes(bytes)) => out.push_str(&hex(bytes, " ")),
            None => out.push('?'),
        }
    }
}

/// A record of which nothing is known.
pub(super) fn unknown(data: &[u8], out: &mut String) {
    out.push_str(&hex(data, " "));
}
