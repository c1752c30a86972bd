//! Words, numbers, strings and marks.

use super::ParseError;

/// One of them, with its line.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Token {
    pub line: u32,
    /// A word, number or mark; for a string, what it means.
    pub text: String,
    pub is_string: bool,
}

/// Splits a text; `#` starts a comment.
pub(super) fn tokens(text: &str) -> Result<Vec<Token>, ParseError> {
    let mut tokens = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let line_number = i as u32 + 1;
        let mut rest = line.trim_start();
        while let Some(first) = rest.chars().next() {
            let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let (text, is_string, len) = match first {
                '#' => break,
                '"' => {
                    let (text, len) = unescape(rest).ok_or(ParseError::OpenString(line_number))?;
                    (text, true, len)
                }
                '-' if rest.starts_with("->") => ("->".into(), false, 2),
                c if is_word(c) => {
                    let len = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
                    (rest[..len].to_string(), false, len)
                }
                c => (c.to_string(), false, c.len_utf8()),
            };
            tokens.push(Token { line: line_number, text, is_string });
            rest = rest[len..].trim_start();
        }
    }
    Ok(tokens)
}

/// A string in Rust's notation at the start of `text`: its meaning and length.
fn unescape(text: &str) -> Option<(String, usize)> {
    let mut out = String::new();
    let mut chars = text.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((out, at + 1)),
            '\\' => match chars.next()?.1 {
                'n' => out.push('\n'),
                'r' => out.push('\r'),
                't' => out.push('\t'),
                '0' => out.push('\0'),
                'u' => {
                    let digits: String =
                        chars.by_ref().map(|(_, c)| c).skip_while(|c| *c == '{').take_while(|c| *c != '}').collect();
                    out.push(u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32)?);
                }
                other => out.push(other),
            },
            c => out.push(c),
        }
    }
    None
}
