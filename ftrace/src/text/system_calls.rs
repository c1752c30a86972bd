//! Events of single system calls, which the kernel prints without their names.

use crate::digits::{Digits, prefixed_hexadecimal};
use crate::format::{EventFormat, Field, Shape};
use crate::trace::Event;
use crate::value::unsigned;
use std::fmt::Write;

/// Appends `sys_NAME(argument: value, ...)` or `sys_NAME -> value`; `false` for other events. `bare` numbers have no `0x`.
pub(super) fn line(event: &Event<'_>, bare: bool, out: &mut String) -> bool {
    let Some(format) = event.format else { return false };
    if let Some(name) = format.name.strip_prefix("sys_exit_") {
        let Some(value) = event.number("ret") else { return false };
        out.extend(["sys_", name, " -> "]);
        prefixed_hexadecimal(value, out);
        return true;
    }
    let Some(name) = format.name.strip_prefix("sys_enter_") else { return false };
    out.extend(["sys_", name, "("]);
    // No system call has more than six; a format may say anything.
    for (place, field) in arguments(format).take(6).enumerate() {
        out.extend([if place > 0 { ", " } else { "" }, &field.name, ": "]);
        // Eight bytes each, whatever the type.
        match field.bytes(event.data).map(unsigned) {
            None => out.push('?'),
            Some(value) if bare || value < 10 => out.push_str(Digits::hexadecimal(value).text()),
            Some(value) => prefixed_hexadecimal(value, out),
        }
        let memory = format.fields.iter().find(|other| is_memory_of(other, field));
        if let Some(bytes) = memory.and_then(|memory| memory.contents(event.data)) {
            if format.print.contains(&format!("__get_str(__{}_val)", field.name)) {
                let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
                let _ = write!(out, " \"{}\"", String::from_utf8_lossy(text));
            } else {
                dump(bytes, out);
            }
        }
    }
    out.push(')');
    true
}

fn arguments(format: &EventFormat) -> impl Iterator<Item = &Field> {
    let own = format.fields.iter().filter(|field| !field.name.starts_with("common_"));
    own.filter(|field| {
        !matches!(field.name.as_str(), "__syscall_nr" | "nr") && !matches!(field.shape, Shape::Located(_))
    })
}

/// What the program's memory held at an address that is an argument (since 6.19).
fn is_memory_of(field: &Field, argument: &Field) -> bool {
    let name = field.name.strip_prefix("__").and_then(|name| name.strip_suffix("_val"));
    name == Some(argument.name.as_str())
}

fn dump(bytes: &[u8], out: &mut String) {
    for (place, byte) in bytes.iter().enumerate() {
        let _ = write!(out, "{}{byte:02x}", if place > 0 { ":" } else { " (" });
    }
    out.push_str(if bytes.is_empty() { " ()" } else { ")" });
    let printable = |byte: &u8| (0x20..0x7f).contains(byte);
    if bytes.iter().any(printable) {
        out.push_str(" \"");
        out.extend(bytes.iter().map(|byte| if printable(byte) { char::from(*byte) } else { '.' }));
        out.push('"');
    }
}
