//! Matchers of labels, as Prometheus writes them.

use super::QueryError;
use regex::Regex;
use std::str::FromStr;

/// `label="value"` and the like.
#[derive(Clone, Debug)]
pub struct Matcher {
    pub label: String,
    test: Test,
    negated: bool,
}

#[derive(Clone, Debug)]
enum Test {
    Equal(String),
    /// Of the whole value.
    Pattern(Regex),
}

impl Matcher {
    pub fn accepts(&self, value: &str) -> bool {
        let fits = match &self.test {
            Test::Equal(text) => text == value,
            Test::Pattern(pattern) => pattern.is_match(value),
        };
        fits != self.negated
    }
}

impl FromStr for Matcher {
    type Err = QueryError;

    fn from_str(text: &str) -> Result<Matcher, QueryError> {
        let bad = || QueryError::Matcher(text.to_owned());
        let end = text.find(['=', '!']).ok_or_else(bad)?;
        let (label, rest) = (text[..end].trim(), &text[end..]);
        let operators = [("=~", true, false), ("!~", true, true), ("!=", false, true), ("=", false, false)];
        let (operator, is_pattern, negated) =
            operators.into_iter().find(|(operator, ..)| rest.starts_with(operator)).ok_or_else(bad)?;
        let value = unquoted(rest[operator.len()..].trim()).ok_or_else(bad)?;
        let is_name = !label.is_empty() && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !is_name {
            return Err(bad());
        }
        let test = match is_pattern {
            false => Test::Equal(value),
            true => Test::Pattern(Regex::new(&format!("^(?s:{value})$")).map_err(|error| {
                let reason = match &error {
                    regex::Error::CompiledTooBig(_) => "it is too large".to_owned(),
                    error => error.to_string().lines().last().unwrap_or_default().trim().to_owned(),
                };
                QueryError::Pattern { pattern: value, reason }
            })?),
        };
        Ok(Matcher { label: label.to_owned(), test, negated })
    }
}

/// A text in quotes, where a backslash takes the next character as it is, but for `\n`.
fn unquoted(text: &str) -> Option<String> {
    let quote = text.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let inner = text[1..].strip_suffix(quote)?;
    let mut out = String::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next()? {
                'n' => out.push('\n'),
                escaped @ ('"' | '\'' | '\\') => out.push(escaped),
                // Of a pattern.
                other => out.extend(['\\', other]),
            },
            c if c == quote => return None,
            c => out.push(c),
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matchers_accept_what_they_say() {
        let accepts = |matcher: &str, value| matcher.parse::<Matcher>().unwrap().accepts(value);
        assert!(accepts("comm=\"redis\"", "redis") && !accepts("comm=\"redis\"", "redis2"));
        assert!(accepts("comm!=\"redis\"", "nginx") && !accepts("comm != 'redis'", "redis"));
        assert!(accepts("comm=~\"re.*|nginx\"", "redis") && accepts("comm=~\"re.*|nginx\"", "nginx"));
        assert!(!accepts("comm=~\"edi\"", "redis"), "the whole value");
        assert!(!accepts("comm=~\"a|b\"", "ab") && accepts("comm!~\"a|b\"", "ab"));
        assert!(accepts(r#"path="a\"b\\""#, "a\"b\\") && accepts(r#"cpu=~"\d+""#, "12"));
        assert!(accepts("pod=\"\"", "") && accepts("kind=\"a=b\"", "a=b"));
    }

    #[test]
    fn what_is_no_matcher_is_refused() {
        for text in ["comm", "comm=redis", "=\"x\"", "comm=\"x", "comm==\"x\"", "a b=\"x\"", "comm=\"x\"y\"", "", "é"]
        {
            assert!(matches!(text.parse::<Matcher>(), Err(QueryError::Matcher(_))), "{text}");
        }
        let error = "comm=~\"(\"".parse::<Matcher>().unwrap_err();
        assert!(matches!(&error, QueryError::Pattern { reason, .. } if reason.contains("unclosed group")), "{error}");
    }
}
