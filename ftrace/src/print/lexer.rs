//! Words of a `print fmt`.

use super::program::{Integer, Number};

/// A word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token<'a> {
    Name(&'a str),
    Number(Number),
    Text(Vec<u8>),
    /// An operator or a bracket.
    Mark(&'static str),
}

/// Longer ones first.
const MARKS: [&str; 40] = [
    "<<=", ">>=", "...", "->", "<<", ">>", "<=", ">=", "==", "!=", "&&", "||", "++", "--", "+=", "-=", "*=", "/=",
    "|=", "&=", "(", ")", "[", "]", "{", "}", ",", ";", "?", ":", "+", "-", "*", "/", "%", "&", "|", "^", "~", "<",
];
const MORE_MARKS: [&str; 4] = [">", "!", "=", "."];

/// Splits a text into words.
pub(super) fn tokens(text: &str) -> Result<Vec<Token<'_>>, &'static str> {
    let mut rest = text.trim_start();
    let mut tokens = Vec::new();
    while let Some(first) = rest.bytes().next() {
        let (token, length) = match first {
            b'"' => text_literal(rest.as_bytes())?,
            b'\'' => character(rest.as_bytes())?,
            b'0'..=b'9' => number(rest)?,
            b'_' | b'a'..=b'z' | b'A'..=b'Z' => {
                let length = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
                (Token::Name(&rest[..length]), length)
            }
            _ => {
                let mut marks = MARKS.iter().chain(&MORE_MARKS);
                let mark = marks.find(|mark| rest.starts_with(**mark)).ok_or("a character that C does not have")?;
                (Token::Mark(mark), mark.len())
            }
        };
        tokens.push(token);
        rest = rest[length..].trim_start();
    }
    Ok(tokens)
}

fn text_literal(text: &[u8]) -> Result<(Token<'static>, usize), &'static str> {
    let mut bytes = Vec::new();
    let mut at = 1;
    loop {
        match text.get(at) {
            None => return Err("a text without its end"),
            Some(b'"') => return Ok((Token::Text(bytes), at + 1)),
            Some(b'\\') => {
                let (byte, length) = escape(&text[at..])?;
                bytes.push(byte);
                at += length;
            }
            Some(byte) => {
                bytes.push(*byte);
                at += 1;
            }
        }
    }
}

fn character(text: &[u8]) -> Result<(Token<'static>, usize), &'static str> {
    let (byte, length) = match text.get(1) {
        Some(b'\\') => escape(&text[1..])?,
        Some(byte) if byte.is_ascii() => (*byte, 1),
        _ => return Err("a character without its end"),
    };
    match text.get(1 + length) {
        Some(b'\'') => Ok((Token::Number(Integer::INT.of(u64::from(byte))), length + 2)),
        _ => Err("a character without its end"),
    }
}

/// The byte behind a backslash, and how many bytes say it.
fn escape(text: &[u8]) -> Result<(u8, usize), &'static str> {
    let digits = |from: usize, most: usize, radix: u32| {
        let digits = text[from..].iter().take(most).map_while(|byte| char::from(*byte).to_digit(radix));
        digits.fold((0u32, from), |(value, end), digit| (value * radix + digit, end + 1))
    };
    let simple = |byte| Ok((byte, 2));
    match text.get(1).ok_or("a backslash at the end")? {
        b'n' => simple(b'\n'),
        b't' => simple(b'\t'),
        b'r' => simple(b'\r'),
        b'a' => simple(7),
        b'b' => simple(8),
        b'v' => simple(11),
        b'f' => simple(12),
        b'e' => simple(27),
        b'x' => {
            let (value, end) = digits(2, 2, 16);
            Ok((value as u8, end))
        }
        b'0'..=b'7' => {
            let (value, end) = digits(1, 3, 8);
            Ok((value as u8, end))
        }
        // `\"`, `\\`, `\'` and `\?` are themselves; so is what C does not know.
        other if other.is_ascii() => simple(*other),
        _ => Err("a backslash before a character that is not ASCII"),
    }
}

fn number(text: &str) -> Result<(Token<'static>, usize), &'static str> {
    let length = text.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(text.len());
    let word = text[..length].to_ascii_lowercase();
    let digits = word.trim_end_matches(['u', 'l']);
    let (unsigned, long) = (word[digits.len()..].contains('u'), word[digits.len()..].contains('l'));
    let (radix, digits) = match digits {
        "0" => (10, "0"),
        _ => match (digits.strip_prefix("0x"), digits.strip_prefix("0b"), digits.strip_prefix('0')) {
            (Some(rest), ..) => (16, rest),
            (_, Some(rest), _) => (2, rest),
            (.., Some(rest)) => (8, rest),
            _ => (10, digits),
        },
    };
    let bits = u64::from_str_radix(digits, radix).map_err(|_| "a number that cannot be read")?;
    // Of the types that can hold it the first; unsigned ones only for those that are not decimal.
    let fits = |limit: u64| bits <= limit;
    let kind = match () {
        () if !long && !unsigned && fits(i32::MAX as u64) => Integer::INT,
        () if !long && (unsigned || radix != 10) && fits(u64::from(u32::MAX)) => Integer { bytes: 4, signed: false },
        () if !unsigned && fits(i64::MAX as u64) => Integer::LONG,
        () => Integer::UNSIGNED_LONG,
    };
    Ok((Token::Number(kind.of(bits)), length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_are_those_of_c() {
        let number = |bits: u64, bytes: u8, signed: bool| Token::Number(Integer { bytes, signed }.of(bits));
        let cases = [
            ("0", number(0, 4, true)),
            ("0x10", number(16, 4, true)),
            ("010", number(8, 4, true)),
            ("0xffffffff", number(0xffff_ffff, 4, false)),
            ("4294967295", number(0xffff_ffff, 8, true)),
            ("1UL", number(1, 8, false)),
            ("1ULL", number(1, 8, false)),
            ("0xffffffffffffffff", number(u64::MAX, 8, false)),
            ("'A'", number(65, 4, true)),
            ("'\\n'", number(10, 4, true)),
            (r#""a\t\"\\\x41\101""#, Token::Text(b"a\t\"\\AA".to_vec())),
        ];
        for (text, token) in cases {
            assert_eq!(tokens(text), Ok(vec![token]), "{text}");
        }
        for wrong in ["\"", "\"\\", "'", "'a", "0xg", "99999999999999999999", "$", "é"] {
            assert!(tokens(wrong).is_err(), "{wrong}");
        }
    }
}
