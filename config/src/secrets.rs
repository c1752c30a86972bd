//! Masks secrets of configuration files in messages: diagnostics echo lines of the file, and logs keep them.
//!
//! It goes by the text alone, as a file that is no YAML is echoed too, and rather hides too much than too little.

use crate::diag::Diagnostic;
use crate::model::SourceFile;
use std::ops::Range;
use std::sync::Arc;

/// A key with one of these in its name has a secret as its value.
const SECRET: [&str; 12] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "authorization",
    "credential",
    "apikey",
    "api_key",
    "api-key",
    "cookie",
    "private_key",
];
/// But not when it ends so: these say where a secret lies.
const PLACES: [&str; 4] = ["file", "path", "env", "dir"];
/// Shorter secrets are hidden in messages only between backticks, where they cannot be a part of a word.
const MIN_WORD_BYTES: usize = 4;
const HIDDEN: &str = "***";
/// Secrets on a line that messages are searched for.
const MAX_WORDS: usize = 64;
/// Longer keys are none of ours.
const MAX_KEY_BYTES: usize = 256;

/// Where secrets stand in a file.
pub(crate) struct Secrets<'a> {
    text: &'a str,
    ranges: Vec<Range<usize>>,
}

impl<'a> Secrets<'a> {
    /// Those of a configuration file. All values in a mapping under the key `parent` are secret, whatever their keys.
    pub fn find(text: &'a str, parent: &str) -> Secrets<'a> {
        let mut scan = Scan { parent, ranges: Vec::new(), block: None };
        let mut start = 0;
        for line in text.split_inclusive('\n') {
            scan.line(line.trim_end_matches(['\n', '\r']), start);
            start += line.len();
        }
        let mut ranges = scan.ranges;
        ranges.extend(user_information(text));
        ranges.retain(|range| !range.is_empty());
        ranges.sort_by_key(|range| range.start);
        Secrets { text, ranges }
    }

    /// The file with asterisks for secrets, byte for byte: all places stay what they are.
    pub fn hidden_in(&self, file: &Arc<SourceFile>) -> Arc<SourceFile> {
        if self.ranges.is_empty() {
            return file.clone();
        }
        let mut bytes = self.text.as_bytes().to_vec();
        self.ranges.iter().for_each(|range| bytes[range.clone()].fill(b'*'));
        // Whole characters were replaced by ASCII ones.
        let text = String::from_utf8(bytes).unwrap_or_default();
        Arc::new(SourceFile { name: file.name.clone(), text })
    }

    /// Hides them where messages and hints quote them, which is what stands on the line that they blame.
    pub fn hide(&self, diagnostics: &mut [Diagnostic]) {
        for diagnostic in diagnostics {
            let words = diagnostic.at.as_ref().map(|at| self.words(at.start, at.end)).unwrap_or_default();
            for text in std::iter::once(&mut diagnostic.message).chain(&mut diagnostic.hint) {
                for word in &words {
                    *text = match word.len() {
                        ..MIN_WORD_BYTES => text.replace(&format!("`{word}`"), &format!("`{HIDDEN}`")),
                        _ => text.replace(word, HIDDEN),
                    };
                }
                let ranges: Vec<_> = user_information(text).collect();
                ranges.into_iter().rev().for_each(|range| text.replace_range(range, HIDDEN));
            }
        }
    }

    /// The secrets on the lines of a place, the longest first: one may be a part of another.
    fn words(&self, start: usize, end: usize) -> Vec<&'a str> {
        let line_start = self.text.get(..start).and_then(|before| before.rfind('\n')).map_or(0, |at| at + 1);
        let line_end = self.text.get(end..).and_then(|after| after.find('\n')).map_or(self.text.len(), |at| end + at);
        let first = self.ranges.partition_point(|range| range.start < line_start);
        let here = self.ranges[first..].iter().take_while(|range| range.start <= line_end);
        let mut words: Vec<&str> = here.map(|range| self.text[range.clone()].trim()).take(MAX_WORDS).collect();
        words.retain(|word| !word.is_empty());
        words.sort_by_key(|word| std::cmp::Reverse(word.len()));
        words
    }
}

/// What stands between `://` and `@` in URLs.
fn user_information(text: &str) -> impl Iterator<Item = Range<usize>> {
    text.match_indices("://").filter_map(move |(at, scheme)| {
        let start = at + scheme.len();
        let rest = &text[start..];
        let end = rest.find(|c: char| c.is_whitespace() || "/?#\"'`,".contains(c)).unwrap_or(rest.len());
        rest[..end].rfind('@').map(|length| start..start + length)
    })
}

/// Goes through lines.
struct Scan<'a> {
    parent: &'a str,
    ranges: Vec<Range<usize>>,
    /// A key whose value goes on in the lines that are indented more: its column, and whether all of that is secret or the values of
    /// keys in it.
    block: Option<(usize, Within)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Within {
    Secret,
    Parent,
}

impl Scan<'_> {
    fn line(&mut self, line: &str, start: usize) {
        let indent = line.len() - line.trim_start().len();
        if line.trim().is_empty() {
            return;
        }
        self.block = self.block.filter(|(column, _)| indent > *column);
        if let Some((_, Within::Secret)) = self.block {
            self.ranges.push(start + indent..start + line.trim_end().len());
            return;
        }
        let bytes = line.as_bytes();
        // Where a key or value may begin, how many braces and brackets are open, and how many were within a parent's.
        let (mut begin, mut depth, mut parent) = (indent, 0usize, None);
        let mut at = indent;
        while at < bytes.len() {
            match bytes[at] {
                b'#' if at == indent || bytes[at - 1] == b' ' => break,
                b'{' | b'[' => (depth, begin) = (depth + 1, at + 1),
                b'}' | b']' => {
                    (depth, begin) = (depth.saturating_sub(1), at + 1);
                    parent = parent.filter(|open| depth >= *open);
                }
                b',' => begin = at + 1,
                b'"' | b'\'' if at - begin <= MAX_KEY_BYTES && is_blank(&line[begin..at]) => {
                    at = value(line, at, false).end;
                }
                b':' if at - begin <= MAX_KEY_BYTES => {
                    if let Some(key) = key(line, begin, at) {
                        let value = at + 1 + (line.len() - at - 1 - line[at + 1..].trim_start().len());
                        let below = parent.is_some() || self.block.is_some();
                        let column = begin + line[begin..at].find(key).unwrap_or(0);
                        let name = key.trim_matches(['"', '\'']).to_ascii_lowercase();
                        let rest = line[value..].trim_end();
                        (at, begin) = (value, value);
                        if name == self.parent {
                            match rest {
                                "" | "{" => self.block = Some((column, Within::Parent)),
                                _ => parent = Some(depth + 1),
                            }
                        } else if below || is_secret(&name) {
                            at = self.value(line, value, depth > 0, start);
                            begin = at;
                            if depth == 0 && !below {
                                self.block = Some((column, Within::Secret));
                            }
                        }
                        continue;
                    }
                }
                _ => {}
            }
            at += 1;
        }
    }

    /// Takes up the value that begins at a byte of a line, and gives its end.
    fn value(&mut self, line: &str, at: usize, flow: bool, start: usize) -> usize {
        let range = value(line, at, flow);
        self.ranges.push(start + range.start..start + range.end);
        range.end
    }
}

/// Whether nothing stands there but what may come before a scalar.
fn is_blank(before: &str) -> bool {
    before.trim_matches([' ', '\t', '-']).is_empty()
}

fn is_secret(name: &str) -> bool {
    SECRET.iter().any(|word| name.contains(word)) && !PLACES.iter().any(|place| name.ends_with(place))
}

/// The key that ends at a colon, if it is one.
fn key(line: &str, begin: usize, colon: usize) -> Option<&str> {
    let (before, after) = (line.get(begin..colon)?, &line[colon + 1..]);
    let key = before.trim_start_matches([' ', '\t', '-', '?']).trim_end();
    let ends = after.is_empty() || after.starts_with([' ', '\t']) || key.ends_with(['"', '\'']);
    let is_key = !key.is_empty() && (!key.contains(' ') || key.starts_with(['"', '\'']));
    (ends && is_key).then_some(key)
}

/// The bytes of a scalar without its quotes; of one that does not end on the line, up to its end.
fn value(line: &str, at: usize, flow: bool) -> Range<usize> {
    let rest = &line[at..];
    let until = |end: usize| at..at + rest[..end].trim_end().len();
    match rest.chars().next() {
        Some(quote @ ('"' | '\'')) => {
            let mut escaped = false;
            let end = rest[1..].char_indices().find(|(_, c)| {
                let ends = *c == quote && !escaped;
                escaped = quote == '"' && *c == '\\' && !escaped;
                ends
            });
            at + 1..end.map_or(line.len(), |(end, _)| at + 1 + end)
        }
        _ if flow => until(rest.find([',', '}', ']']).unwrap_or(rest.len())),
        _ => until(rest.find(" #").unwrap_or(rest.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Location;

    fn hidden(text: &str) -> String {
        let file = Arc::new(SourceFile { name: "kstrobe.yaml".into(), text: text.into() });
        let hidden = Secrets::find(text, "headers").hidden_in(&file).text.clone();
        assert_eq!(hidden.len(), text.len(), "places stay");
        hidden
    }

    #[test]
    fn values_of_secret_keys_are_hidden_wherever_they_stand() {
        for (text, expected) in [
            ("password: hunter2\n", "password: *******\n"),
            ("- api_key: 'a b'  # of ours\n", "- api_key: '***'  # of ours\n"),
            ("{ user: me, password: a, b: 1 }", "{ user: me, password: *, b: 1 }"),
            ("x: { \"token\":\"a\\\"b\", y: 1 }", "x: { \"token\":\"****\", y: 1 }"),
            ("Bearer_Token : abc", "Bearer_Token : ***"),
            ("name: 'a: b', token: 'c: d'", "name: 'a: b', token: '****'"),
            ("token: |\n  abc\n  def\nnext: 1\n", "token: *\n  ***\n  ***\nnext: 1\n"),
            ("token:\n  abc\nnext: 1", "token:\n  ***\nnext: 1"),
            ("a:\n  - secret: x\n    url: y\n", "a:\n  - secret: *\n    url: y\n"),
            ("headers:\n  X-Any: abc\n  Other: 'd'\nnext: e\n", "headers:\n  X-Any: ***\n  Other: '*'\nnext: e\n"),
            ("headers: { \"a b\": c }", "headers: { \"a b\": * }"),
            ("o: { headers: { X: a, Y: \"b\" }, url: c }", "o: { headers: { X: *, Y: \"*\" }, url: c }"),
            ("password: \u{e9}\u{e9}\n", "password: ****\n"),
            ("url: https://me:pw@host/x", "url: https://*****@host/x"),
            ("- 'http://p@ss@host'", "- 'http://****@host'"),
        ] {
            assert_eq!(hidden(text), expected, "{text}");
        }
    }

    #[test]
    fn all_else_is_shown() {
        for text in [
            "token_file: /etc/token\npassword_file: /run/pw\n",
            "listen: \"[::1]:9779\"\nurl: https://host/x@y\n",
            "headers_file: /etc/headers\nevents: stderr\n",
            "# password: none\nprobes: { enable: [tokens] }\n",
        ] {
            assert_eq!(hidden(text), text);
        }
    }

    #[test]
    fn messages_do_not_quote_them() {
        let text = "{ password: hunter2, passwd: ab, url: 'https://me:pw@host' }\n";
        let file = Arc::new(SourceFile { name: "kstrobe.yaml".into(), text: text.into() });
        let at = Location::new(&file, 0..1);
        let message = "`hunter2` or `ab` about https://me:pw@host and http://you:too@x";
        let mut diagnostics = [Diagnostic::error(&at, message).hint("not `hunter2x`")];
        Secrets::find(text, "headers").hide(&mut diagnostics);
        assert_eq!(diagnostics[0].message, "`***` or `***` about https://***@host and http://***@x");
        assert_eq!(diagnostics[0].hint.as_deref(), Some("not `***x`"));
    }
}
