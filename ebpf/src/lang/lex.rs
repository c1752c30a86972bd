//! Text to tokens.

use super::parse::SyntaxError;
use crate::diag::Span;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    Int(u64),
    Duration(u64),
    Size(u64),
    Str(String),
    Word(String),
    Op(&'static str),
    End,
}

impl Token {
    /// As a message shows it.
    pub(super) fn describe(&self) -> String {
        match self {
            Token::Int(v) => format!("`{v}`"),
            Token::Duration(v) => format!("`{v}ns`"),
            Token::Size(v) => format!("a size of {v} bytes"),
            Token::Str(v) => format!("text {v:?}"),
            Token::Word(v) => format!("`{v}`"),
            Token::Op(v) => format!("`{v}`"),
            Token::End => "the end of the expression".into(),
        }
    }
}

/// Longer operators first, so that the first match is the right one.
const OPERATORS: [&str; 31] = [
    "<<", ">>", "<=", ">=", "==", "!=", "&&", "||", "->", "=>", "+", "-", "*", "/", "%", "<", ">", "!", "~", "&", "|",
    "^", "?", ":", "(", ")", "[", "]", ",", ".", "=",
];

/// Suffixes of numbers; `true` for durations (nanoseconds), `false` for sizes (bytes).
const UNITS: [(&str, u64, bool); 9] = [
    ("ns", 1, true),
    ("us", 1_000, true),
    ("ms", 1_000_000, true),
    ("s", 1_000_000_000, true),
    ("m", 60_000_000_000, true),
    ("h", 3_600_000_000_000, true),
    ("KiB", 1 << 10, false),
    ("MiB", 1 << 20, false),
    ("GiB", 1 << 30, false),
];

/// All tokens with their places; the last is [`Token::End`].
pub(super) fn lex(text: &str) -> Result<Vec<(Token, Span)>, SyntaxError> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        if c.is_whitespace() {
            at += c.len_utf8();
            continue;
        }
        let (token, end) = match c {
            '0'..='9' => number(text, at)?,
            '"' => string(text, at)?,
            '\'' => character(text, at)?,
            c if c.is_ascii_alphabetic() || c == '_' => {
                let end = word_end(text, at);
                (Token::Word(text[at..end].to_string()), end)
            }
            _ => operator(text, at, c)?,
        };
        tokens.push((token, Span::new(at, end)));
        at = end;
    }
    tokens.push((Token::End, Span::new(text.len(), text.len())));
    Ok(tokens)
}

fn word_end(text: &str, from: usize) -> usize {
    text[from..].find(|c: char| !c.is_ascii_alphanumeric() && c != '_').map_or(text.len(), |n| from + n)
}

fn operator(text: &str, at: usize, c: char) -> Result<(Token, usize), SyntaxError> {
    match OPERATORS.iter().find(|op| text[at..].starts_with(**op)) {
        // `a->b` is `a.b`: both follow pointers.
        Some(&"->") => Ok((Token::Op("."), at + 2)),
        Some(op) => Ok((Token::Op(op), at + op.len())),
        None => Err(SyntaxError::new(Span::new(at, at + c.len_utf8()), format!("unexpected character {c:?}"))),
    }
}

fn number(text: &str, at: usize) -> Result<(Token, usize), SyntaxError> {
    let end = word_end(text, at);
    let word = &text[at..end];
    let error = |message: String, hint: &str| SyntaxError::new(Span::new(at, end), message).hint(hint);
    let digits_end = if word.starts_with("0x") || word.starts_with("0X") {
        word.len()
    } else {
        word.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(word.len())
    };
    let (digits, suffix) = word.split_at(digits_end);
    let digits = digits.replace('_', "");
    let parsed = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hex) if hex.is_empty() || !hex.chars().all(|c| c.is_ascii_hexdigit()) => {
            return Err(error(format!("`{word}` is not a number"), "hexadecimal digits are 0-9 and a-f"));
        }
        Some(hex) => u64::from_str_radix(hex, 16),
        None => digits.parse(),
    };
    let too_large = || error(format!("`{word}` does not fit 64 bits"), "the largest number is 0xffffffffffffffff");
    let value = parsed.map_err(|_| too_large())?;
    if suffix.is_empty() {
        return Ok((Token::Int(value), end));
    }
    let Some((_, scale, duration)) = UNITS.iter().find(|(unit, ..)| *unit == suffix) else {
        return Err(error(format!("unknown unit `{suffix}` in `{word}`"), "units are ns us ms s m h and KiB MiB GiB"));
    };
    let value = value.checked_mul(*scale).ok_or_else(too_large)?;
    Ok((if *duration { Token::Duration(value) } else { Token::Size(value) }, end))
}

fn string(text: &str, at: usize) -> Result<(Token, usize), SyntaxError> {
    let mut value = String::new();
    let mut here = at + 1;
    loop {
        let (c, end) = quoted_char(text, here, at)?;
        match c {
            Some(c) => value.push(c),
            None if text.as_bytes()[here] == b'"' => return Ok((Token::Str(value), end)),
            None => value.push('\''),
        }
        here = end;
    }
}

fn character(text: &str, at: usize) -> Result<(Token, usize), SyntaxError> {
    let (c, end) = quoted_char(text, at + 1, at)?;
    let whole = |end: usize| Span::new(at, end);
    let value = match c {
        Some(c) if c.is_ascii() => c as u64,
        None if text.as_bytes()[at + 1] == b'"' => u64::from(b'"'),
        None => return Err(SyntaxError::new(whole(end), "an empty character").hint("write a letter: 'a'")),
        Some(_) => {
            return Err(
                SyntaxError::new(whole(end), "a character must be ASCII").hint("put other text in double quotes")
            );
        }
    };
    if !text[end..].starts_with('\'') {
        let error = SyntaxError::new(whole(end), "expected `'` after one character");
        return Err(error.hint("put longer text in double quotes: \"text\""));
    }
    Ok((Token::Int(value), end + 1))
}

/// One character inside quotes, escapes resolved, and where the next begins; `None` for an unescaped quote of any sort.
fn quoted_char(text: &str, at: usize, open: usize) -> Result<(Option<char>, usize), SyntaxError> {
    let mut chars = text[at..].chars();
    let unterminated = || SyntaxError::new(Span::new(open, text.len()), "this quote is never closed");
    match chars.next().ok_or_else(unterminated)? {
        '"' | '\'' => Ok((None, at + 1)),
        '\\' => {
            let escape = chars.next().ok_or_else(unterminated)?;
            let c = match escape {
                'n' => '\n',
                't' => '\t',
                'r' => '\r',
                '0' => '\0',
                '\\' | '"' | '\'' => escape,
                _ => {
                    let span = Span::new(at, at + 1 + escape.len_utf8());
                    let error = SyntaxError::new(span, format!("unknown escape `\\{escape}`"));
                    return Err(error.hint("escapes are \\n \\t \\r \\0 \\\\ \\\" \\'"));
                }
            };
            Ok((Some(c), at + 1 + escape.len_utf8()))
        }
        c => Ok((Some(c), at + c.len_utf8())),
    }
}
