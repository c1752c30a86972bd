//! What a user wrote, with its place: texts in a YAML file, the line and column of a byte, and the byte of a decoded character.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A YAML file.
#[derive(Debug, PartialEq, Eq)]
pub struct SourceFile {
    /// Path or a name such as `<embedded>/interrupts/softirq.yaml`.
    pub name: String,
    pub text: String,
}

/// A byte range in a source file.
#[derive(Clone, PartialEq, Eq)]
pub struct Location {
    pub file: Arc<SourceFile>,
    /// First byte of the scalar or key.
    pub start: usize,
    /// One past the last.
    pub end: usize,
    /// 1-based.
    pub line: u32,
    /// 1-based, in characters.
    pub column: u32,
}

/// Names a text of a program, so that a diagnostic or an expression can refer to it by a small number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct TextId(pub u32);

/// A value and where it was written. Values are equal wherever they stand.
#[derive(Clone, Debug)]
pub struct Spanned<T> {
    pub value: T,
    /// Where it was written.
    pub at: Location,
    /// Unique within a program after [`Program::number_texts`](crate::Program::number_texts).
    pub id: TextId,
}

/// A name or an expression as the user wrote it.
pub type SpannedStr = Spanned<String>;

impl<T> Spanned<T> {
    /// A value that no program has numbered yet.
    pub fn new(value: T, at: Location) -> Self {
        Self { value, at, id: TextId::default() }
    }
}

impl<T: PartialEq> PartialEq for Spanned<T> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl<T: Eq> Eq for Spanned<T> {}

/// Without the text of the file.
impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file.name, self.line, self.column)
    }
}

impl Location {
    /// The bytes `range` of `file`, with their line and column. A range outside the text is cut to it.
    pub fn new(file: &Arc<SourceFile>, range: Range<usize>) -> Self {
        let start = char_boundary(&file.text, range.start);
        let end = char_boundary(&file.text, range.end).max(start);
        let (line, column) = line_column(&file.text, start);
        Self { file: file.clone(), start, end, line, column }
    }

    /// The place of the bytes `range` of `decoded`, which is what the scalar at `self` reads as.
    ///
    /// Exact for plain scalars, quoted ones whose only escapes are of quotes, slashes and backslashes, and block
    /// scalars. Where YAML changed the text in another way it is the whole scalar.
    pub fn sub(&self, decoded: &str, range: Range<usize>) -> Self {
        let Some(raw) = self.file.text.get(self.start..self.end) else { return self.clone() };
        let indent = self.column.saturating_sub(1) as usize;
        let Some(origins) = quoted_origins(raw, decoded).or_else(|| unquoted_origins(raw, decoded, indent)) else {
            return self.clone();
        };
        // "Unexpected end" belongs behind the last word, not on the line below a block scalar.
        let last = decoded.trim_end().len();
        let start = range.start.min(last);
        let end = range.end.clamp(start, last);
        Self::new(&self.file, self.start + origins[start]..self.start + origins[end].max(origins[start]))
    }
}

/// 1-based line, and 1-based column in characters, of the byte at `offset`; a byte order mark has no column.
pub fn line_column(text: &str, offset: usize) -> (u32, u32) {
    let before = &text[..char_boundary(text, offset)];
    let line_start = before.rfind('\n').map_or(0, |i| i + 1);
    let line = 1 + before.bytes().filter(|b| *b == b'\n').count();
    let column = 1 + before[line_start..].trim_start_matches('\u{feff}').chars().count();
    (line as u32, column as u32)
}

/// The last place at or before `offset` where a character of `text` begins.
pub fn char_boundary(text: &str, offset: usize) -> usize {
    (0..=offset.min(text.len())).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0)
}

/// For each byte of `decoded`, and for its end, the byte of the quoted scalar `raw` that it was read from.
fn quoted_origins(raw: &str, decoded: &str) -> Option<Vec<usize>> {
    let quote = raw.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let inner = raw.strip_prefix(quote)?.strip_suffix(quote)?;
    let mut origins = Vec::with_capacity(decoded.len() + 1);
    let mut at = 0;
    for c in decoded.chars() {
        let rest = &inner[at..];
        let escape = match (quote, c) {
            ('\'', '\'') => Some('\''),
            ('"', '"' | '\\') => Some('\\'),
            ('"', '/') if rest.starts_with('\\') => Some('\\'),
            _ => None,
        };
        let after_escape = escape.map_or(Some(rest), |e| rest.strip_prefix(e))?;
        if !after_escape.starts_with(c) {
            return None;
        }
        origins.extend(std::iter::repeat_n(1 + at, c.len_utf8()));
        at += rest.len() - after_escape.len() + c.len_utf8();
    }
    origins.push(1 + at);
    (at == inner.len()).then_some(origins)
}

/// The same for plain scalars and for block scalars that are indented by `indent` spaces.
fn unquoted_origins(raw: &str, decoded: &str, indent: usize) -> Option<Vec<usize>> {
    let mut origins = Vec::with_capacity(decoded.len() + 1);
    let mut at = 0;
    for c in decoded.chars() {
        origins.extend(std::iter::repeat_n(at, c.len_utf8()));
        let rest = &raw[at..];
        let line_break = if rest.starts_with("\r\n") { 2 } else { usize::from(rest.starts_with('\n')) };
        let next_line = &rest[line_break..];
        let spaces = next_line.len() - next_line.trim_start_matches([' ', '\t']).len();
        at += match c {
            '\n' if line_break > 0 => line_break + spaces.min(indent),
            ' ' if line_break > 0 => line_break + spaces,
            '\n' if rest.is_empty() => 0,
            _ if rest.starts_with(c) => c.len_utf8(),
            _ => return None,
        };
    }
    origins.push(at);
    raw[at..].trim().is_empty().then_some(origins)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Marks the place of `part` of `decoded` within the scalar `raw` of `yaml`.
    fn placed(yaml: &str, raw: &str, decoded: &str, part: &str) -> (String, u32, u32) {
        let file = Arc::new(SourceFile { name: "p.yaml".into(), text: yaml.into() });
        let start = yaml.find(raw).unwrap();
        let at = decoded.find(part).unwrap();
        let place = Location::new(&file, start..start + raw.len()).sub(decoded, at..at + part.len());
        (yaml[place.start..place.end].to_owned(), place.line, place.column)
    }

    #[test]
    fn plain_and_quoted_scalars() {
        assert_eq!(placed("é: a + bé\n", "a + bé", "a + bé", "bé"), ("bé".into(), 1, 8));
        assert_eq!(placed("a: 'x + y'\n", "'x + y'", "x + y", "y"), ("y".into(), 1, 9));
        assert_eq!(placed("a: 'c == ''y'' + z'\n", "'c == ''y'' + z'", "c == 'y' + z", "z"), ("z".into(), 1, 18));
        let yaml = "a: \"c == \\\"y\\\" + z\"\n";
        assert_eq!(placed(yaml, &yaml[3..19], "c == \"y\" + z", "z"), ("z".into(), 1, 18));
        assert_eq!(placed(yaml, &yaml[3..19], "c == \"y\" + z", "\"y\""), ("\\\"y\\\"".into(), 1, 10));
        assert_eq!(placed("a: x\n   + y\n", "x\n   + y", "x + y", "y"), ("y".into(), 2, 6));
    }

    #[test]
    fn block_scalars() {
        let raw = "exit\n    - enter..x\n\n  + z\n";
        let yaml = format!("v: |\n  {raw}");
        let decoded = "exit\n  - enter..x\n\n+ z\n";
        assert_eq!(placed(&yaml, raw, decoded, "..").1, 3);
        assert_eq!(placed(&yaml, raw, decoded, ".."), ("..".into(), 3, 12));
        assert_eq!(placed(&yaml, raw, decoded, "z"), ("z".into(), 5, 5));
        let crlf = yaml.replace('\n', "\r\n");
        assert_eq!(placed(&crlf, &raw.replace('\n', "\r\n"), decoded, "z"), ("z".into(), 5, 5));
        // Begins with a quote, yet is not a quoted scalar.
        assert_eq!(placed("v: |-\n  \"x\" == \"y\"", "\"x\" == \"y\"", "\"x\" == \"y\"", "y"), ("y".into(), 2, 11));
        assert_eq!(placed("v: >-\n  a\n  + b\n", "a\n  + b\n", "a + b", "b"), ("b".into(), 3, 5));
    }

    #[test]
    fn the_end_of_a_block_scalar_is_behind_its_last_word() {
        let file = Arc::new(SourceFile { name: "p.yaml".into(), text: "v: |\n  a +\nw: 1\n".into() });
        let place = Location::new(&file, 7..11).sub("a +\n", 4..4);
        assert_eq!((place.line, place.column, place.start), (2, 6, 10));
    }

    #[test]
    fn text_that_yaml_changed_is_shown_whole() {
        assert_eq!(placed("a: \"x\\u0041y\"\n", "\"x\\u0041y\"", "xAy", "y").0, "\"x\\u0041y\"");
        assert_eq!(placed("a: >\n  x\n\n  y\n", "x\n\n  y\n", "x\ny\n", "y").0, "x\n\n  y\n");
    }

    #[test]
    fn places_outside_the_text_are_cut_to_it() {
        let file = Arc::new(SourceFile { name: "p.yaml".into(), text: "\u{feff}é: 1".into() });
        let place = Location::new(&file, 4..900);
        assert_eq!((place.start, place.end, place.line, place.column), (3, 8, 1, 1));
        assert_eq!(place.sub("é: 1", 90..91).start, 8);
    }
}
