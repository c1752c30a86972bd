//! `printf` formats as the kernel reads them (`lib/vsprintf.c`).

use super::program::{Conversion, Integer, Number, Piece, Width};
use crate::digits::{Digits, fill};

/// Longer fields are cut to this many characters: the kernel's own limit (`FIELD_WIDTH_MAX`) is of that order.
const MAX_WIDTH: u32 = 4096;

/// Splits a format.
pub(super) fn pieces(format: &[u8]) -> Result<Vec<Piece>, String> {
    let mut pieces = Vec::new();
    let mut text: Vec<u8> = Vec::new();
    let mut rest = format;
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            text.push(*first);
        } else if rest.first() == Some(&b'%') {
            text.push(b'%');
            rest = &rest[1..];
        } else {
            let (conversion, length) = conversion(rest)?;
            if !text.is_empty() {
                pieces.push(as_it_is(&std::mem::take(&mut text)));
            }
            pieces.push(Piece::Conversion(conversion));
            rest = &rest[length..];
        }
    }
    if !text.is_empty() {
        pieces.push(as_it_is(&text));
    }
    Ok(pieces)
}

fn as_it_is(text: &[u8]) -> Piece {
    Piece::Text(String::from_utf8_lossy(text).into())
}

/// What stands behind a `%`, and how long it is.
fn conversion(text: &[u8]) -> Result<(Conversion, usize), String> {
    let mut it = Conversion { bytes: 4, ..Conversion::default() };
    let mut at = 0;
    loop {
        match text.get(at) {
            Some(b'-') => it.left = true,
            Some(b'+') => it.plus = true,
            Some(b' ') => it.space = true,
            Some(b'#') => it.special = true,
            Some(b'0') => it.zero = true,
            _ => break,
        }
        at += 1;
    }
    let width = |at: &mut usize| match text.get(*at) {
        Some(b'*') => {
            *at += 1;
            Width::Argument
        }
        Some(b'0'..=b'9') => {
            let mut number = 0u32;
            while let Some(digit @ b'0'..=b'9') = text.get(*at) {
                number = number.saturating_mul(10).saturating_add(u32::from(digit - b'0')).min(MAX_WIDTH);
                *at += 1;
            }
            Width::Fixed(number)
        }
        _ => Width::None,
    };
    it.width = width(&mut at);
    if text.get(at) == Some(&b'.') {
        at += 1;
        it.precision = match width(&mut at) {
            Width::None => Width::Fixed(0),
            given => given,
        };
    }
    loop {
        match text.get(at) {
            Some(b'l' | b'L' | b'z' | b'Z' | b'j' | b't' | b'q') => it.bytes = 8,
            Some(b'h') if it.bytes == 2 => it.bytes = 1,
            Some(b'h') => it.bytes = 2,
            _ => break,
        }
        at += 1;
    }
    it.letter = match text.get(at) {
        Some(b'i') => b'd',
        Some(letter @ (b'd' | b'u' | b'x' | b'X' | b'o' | b'c' | b's' | b'p')) => *letter,
        Some(other) => return Err(format!("the conversion `%{}`", char::from(*other))),
        None => return Err("a `%` at the end".into()),
    };
    at += 1;
    if it.letter == b'p' {
        // The kernel takes all letters and digits behind `%p` as its extension.
        let end = text[at..].iter().position(|byte| !byte.is_ascii_alphanumeric()).map_or(text.len(), |end| at + end);
        it.extension = String::from_utf8_lossy(&text[at..end]).into();
        at = end;
    }
    Ok((it, at))
}

impl Conversion {
    /// The same with its `*` filled in: a negative width is a width to the left.
    pub fn with(&self, width: Option<i32>, precision: Option<i32>) -> Conversion {
        let mut it = self.clone();
        if let Some(width) = width {
            it.left |= width < 0;
            it.width = Width::Fixed(width.unsigned_abs().min(MAX_WIDTH));
        }
        if let Some(precision) = precision {
            it.precision = Width::Fixed(precision.max(0) as u32);
        }
        it
    }

    fn width(&self) -> usize {
        match self.width {
            Width::Fixed(width) => width as usize,
            _ => 0,
        }
    }

    /// The precision, when there is one.
    pub fn precision(&self) -> Option<usize> {
        match self.precision {
            Width::Fixed(precision) => Some(precision as usize),
            _ => None,
        }
    }

    /// A text in the width.
    pub fn text(&self, text: &str, out: &mut String) {
        let width = self.width();
        let missing = if width == 0 { 0 } else { width.saturating_sub(text.chars().count()) };
        fill(' ', if self.left { 0 } else { missing }, out);
        out.push_str(text);
        fill(' ', if self.left { missing } else { 0 }, out);
    }

    /// A number (`d`, `u`, `x`, `X`, `o`).
    pub fn number(&self, number: Number, out: &mut String) {
        let bits = Integer { bytes: self.bytes, signed: self.letter == b'd' }.of(number.bits).bits;
        let negative = self.letter == b'd' && (bits as i64) < 0;
        let digits = match self.letter {
            b'd' => Digits::decimal((bits as i64).unsigned_abs()),
            b'x' => Digits::hexadecimal(bits),
            b'X' => Digits::capital_hexadecimal(bits),
            b'o' => Digits::octal(bits),
            _ => Digits::decimal(bits),
        };
        let digits = digits.text();
        let sign = match () {
            () if negative => "-",
            () if self.letter == b'd' && self.plus => "+",
            () if self.letter == b'd' && self.space => " ",
            () => "",
        };
        // Unlike C, the kernel writes `0x0`.
        let prefix = match (self.special, self.letter) {
            (true, b'x') => "0x",
            (true, b'X') => "0X",
            (true, b'o') if bits != 0 => "0",
            _ => "",
        };
        let least = self.precision().unwrap_or(0).min(MAX_WIDTH as usize).max(digits.len());
        let missing = self.width().saturating_sub(sign.len() + prefix.len() + least);
        let (blanks, zeros, behind) = match (self.left, self.zero) {
            (true, _) => (0, 0, missing),
            (false, true) => (0, missing, 0),
            (false, false) => (missing, 0, 0),
        };
        fill(' ', blanks, out);
        out.push_str(sign);
        out.push_str(prefix);
        fill('0', zeros + least - digits.len(), out);
        out.push_str(digits);
        fill(' ', behind, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(format: &str, bits: u64) -> String {
        let mut out = String::new();
        for piece in pieces(format.as_bytes()).unwrap() {
            match piece {
                Piece::Text(text) => out.push_str(&text),
                Piece::Conversion(conversion) => conversion.number(Integer::UNSIGNED_LONG.of(bits), &mut out),
            }
        }
        out
    }

    #[test]
    fn numbers_look_as_the_kernel_writes_them() {
        let cases = [
            ("%d", -1i64 as u64, "-1"),
            ("%u", -1i64 as u64, "4294967295"),
            ("%lld", -1i64 as u64, "-1"),
            ("%llu", -1i64 as u64, "18446744073709551615"),
            ("%hhd", 200, "-56"),
            ("%hu", 0x1_0001, "1"),
            ("%5d|", 7, "    7|"),
            ("%-5d|", 7, "7    |"),
            ("%05d", -7i64 as u64, "-0007"),
            ("%+d % d", 7, "+7  7"),
            ("%#x %#X", 255, "0xff 0XFF"),
            ("%#x", 0, "0x0"),
            ("%#o", 8, "010"),
            ("%#o", 0, "0"),
            ("%#010x", 255, "0x000000ff"),
            ("%2.2x", 7, "07"),
            ("%.3d%%", 7, "007%"),
            ("%zx %lX", 0xabc, "abc ABC"),
        ];
        for (format, bits, expected) in cases {
            assert_eq!(number(format, bits), expected, "{format}");
        }
        for wrong in ["%", "%l", "%y", "%n", "%5"] {
            assert!(pieces(wrong.as_bytes()).is_err(), "{wrong}");
        }
        assert_eq!(number("%999999999999d", 1).len(), 4096);
    }
}
