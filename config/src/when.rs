//! The language of `when:`.
//!
//! ```text
//! when    = measure [ "over" DURATION ] compare quantity [ "for" DURATION ]
//! measure = ( "pNN" | "rate" | "value" ) "(" series ")"  |  "share" "(" series compare quantity ")"
//! series  = NAME [ "{" [ label ( "=" | "!=" | "=~" | "!~" ) "text" { "," .. } ] "}" ]
//! compare = ">" | ">=" | "<" | "<="
//! ```

use crate::model::{Compare, Location, Match, Matcher, Measure, Quantity, Spanned, When};
use crate::names::PREFIX;
use crate::names::is_identifier;
use crate::quantity;
use crate::report::Problem;
use kstrobe_ebpf::diag::did_you_mean;
use std::ops::Range;

/// Bytes of a condition: places in it are found in time that grows with its length.
pub(crate) const MAX_BYTES: usize = 1024;
pub(crate) const DEFAULT_OVER_NS: u64 = 10_000_000_000;
/// What is kept for a window grows with its number of steps alone, but who looks back further wants Prometheus.
pub(crate) const MAX_OVER_NS: u64 = 600_000_000_000;
const MIN_OVER_NS: u64 = 1_000_000_000;
pub(crate) const MAX_FOR_NS: u64 = 24 * 3_600_000_000_000;
const EXAMPLE: &str = "write for example `p99(recv_wait_seconds{comm=\"mysqld\"}) > 50ms for 30s`";

/// Reads the condition that the scalar at `at` is.
pub(crate) fn parse(text: &str, at: &Location) -> Result<When, Problem> {
    if text.len() > MAX_BYTES {
        return Err(Problem::new(format!("a condition has at most {MAX_BYTES} bytes, and this has {}", text.len())));
    }
    Parser { text, at, position: 0 }.when()
}

struct Parser<'a> {
    text: &'a str,
    at: &'a Location,
    position: usize,
}

impl<'a> Parser<'a> {
    fn when(mut self) -> Result<When, Problem> {
        let (word, place) = self.word();
        let quantile = measure(word, place)?;
        self.need("(", "behind what is measured")?;
        let metric = self.metric()?;
        let matchers = if self.take("{") { self.matchers()? } else { Vec::new() };
        let measure = match (word, quantile) {
            (_, Some(share)) => Measure::Quantile(share),
            ("share", _) => {
                let compare = self.compare("`share` needs a bound, such as `share(recv_wait_seconds > 50ms)`")?;
                Measure::Share { compare, bound: self.quantity()? }
            }
            ("rate", _) => Measure::Rate,
            _ => Measure::Value,
        };
        self.close(word)?;
        let over_ns = if self.take_word("over") { self.duration(MIN_OVER_NS, MAX_OVER_NS)? } else { DEFAULT_OVER_NS };
        let compare = self.compare(EXAMPLE)?;
        let threshold = self.quantity()?;
        let for_ns = if self.take_word("for") { self.duration(0, MAX_FOR_NS)? } else { 0 };
        self.end()?;
        let text = self.text.split_whitespace().collect::<Vec<_>>().join(" ");
        Ok(When { text, measure, metric, matchers, over_ns, compare, threshold, for_ns })
    }

    fn metric(&mut self) -> Result<Spanned<String>, Problem> {
        let (word, place) = self.word();
        if !is_identifier(word) {
            return Err(self.unexpected("the name of a metric", place).hint(EXAMPLE));
        }
        Ok(Spanned::new(word.strip_prefix(PREFIX).unwrap_or(word).to_owned(), self.place(place)))
    }

    /// Behind `{`, the closing `}` included.
    fn matchers(&mut self) -> Result<Vec<Matcher>, Problem> {
        let mut matchers = Vec::new();
        while !self.take("}") {
            let (word, place) = self.word();
            if !is_identifier(word) {
                return Err(self
                    .unexpected("the name of a label", place)
                    .hint("write for example `{comm=\"mysqld\"}`"));
            }
            let label = Spanned::new(word.to_owned(), self.place(place));
            let signs = [("=~", Match::Like), ("!~", Match::Unlike), ("!=", Match::NotEqual), ("=", Match::Equal)];
            let Some((_, kind)) = signs.into_iter().find(|(sign, _)| self.take(sign)) else {
                return Err(self.unexpected("`=`, `!=`, `=~` or `!~`", self.here()));
            };
            let text = self.quoted()?;
            matchers.push(Matcher { label, kind, text });
            if !self.take(",") && !self.rest().starts_with('}') {
                return Err(self.unexpected("`,` or `}`", self.here()));
            }
        }
        Ok(matchers)
    }

    /// `"text"` or `'text'`, in which a backslash takes the next character as it is.
    fn quoted(&mut self) -> Result<String, Problem> {
        let start = self.skip();
        let mut characters = self.rest().char_indices();
        let Some((_, quote)) = characters.next().filter(|(_, c)| matches!(c, '"' | '\'')) else {
            return Err(self.unexpected("a text in quotes", self.here()));
        };
        let mut text = String::new();
        while let Some((at, c)) = characters.next() {
            match c {
                _ if c == quote => {
                    self.position = start + at + 1;
                    return Ok(text);
                }
                '\\' => text.extend(characters.next().map(|(_, c)| c)),
                _ => text.push(c),
            }
        }
        Err(Problem::new("a text that has no end").at(start..self.text.len()).hint(format!("close it with `{quote}`")))
    }

    fn close(&mut self, word: &str) -> Result<(), Problem> {
        if self.take(")") {
            return Ok(());
        }
        let problem = self.unexpected("`)`", self.here());
        let compares = self.rest().starts_with(['<', '>']);
        Err(if compares && word != "share" {
            problem.hint(format!("only `share` has a bound inside: write `{word}(..) > ..`"))
        } else {
            problem
        })
    }

    fn compare(&mut self, hint: &str) -> Result<Compare, Problem> {
        let signs = [(">=", Compare::AtLeast), ("<=", Compare::AtMost), (">", Compare::Above), ("<", Compare::Below)];
        let found = signs.into_iter().find(|(sign, _)| self.take(sign)).map(|(_, compare)| compare);
        found.ok_or_else(|| self.unexpected("`>`, `>=`, `<` or `<=`", self.here()).hint(hint))
    }

    fn quantity(&mut self) -> Result<Spanned<Quantity>, Problem> {
        let start = self.skip();
        let end = start + self.rest().find([' ', '\t', '\n', ')']).unwrap_or(self.rest().len());
        let value = quantity::measured(&self.text[start..end]).map_err(|problem| shift(problem, start, end))?;
        self.position = end;
        Ok(Spanned::new(value, self.place(start..end)))
    }

    fn duration(&mut self, least_ns: u64, most_ns: u64) -> Result<u64, Problem> {
        let (word, place) = self.word();
        let ns = quantity::duration_ns(word).map_err(|problem| shift(problem, place.start, place.end))?;
        if !(least_ns..=most_ns).contains(&ns) {
            let (least, most) = (quantity::show_ns(least_ns), quantity::show_ns(most_ns));
            let problem = Problem::new(format!("{word} is out of range")).at(place);
            return Err(problem.hint(format!("use {least} to {most}")));
        }
        Ok(ns)
    }

    fn end(&mut self) -> Result<(), Problem> {
        let start = self.skip();
        if start == self.text.len() {
            return Ok(());
        }
        let (word, place) = self.word();
        let hint = match word {
            "over" => "`over` stands before the comparison: `p99(..) over 1m > 50ms`",
            "and" | "or" | "unless" => "a rule has one condition: write another rule",
            _ => "behind the comparison there may be `for` and a duration, and nothing else",
        };
        let place = if place.is_empty() { start..self.text.len() } else { place };
        Err(Problem::new(format!("`{}` makes no sense here", self.text[place.clone()].trim())).at(place).hint(hint))
    }

    fn need(&mut self, sign: &str, whither: &str) -> Result<(), Problem> {
        if self.take(sign) {
            return Ok(());
        }
        Err(self.unexpected(&format!("`{sign}` {whither}"), self.here()).hint(EXAMPLE))
    }

    fn take(&mut self, sign: &str) -> bool {
        self.skip();
        let there = self.rest().starts_with(sign);
        self.position += if there { sign.len() } else { 0 };
        there
    }

    fn take_word(&mut self, wanted: &str) -> bool {
        let before = self.position;
        let there = self.word().0 == wanted;
        if !there {
            self.position = before;
        }
        there
    }

    /// Letters, digits, `_` and `.`; empty when something else stands here.
    fn word(&mut self) -> (&'a str, Range<usize>) {
        let start = self.skip();
        let no_word = |c: char| !(c.is_alphanumeric() || matches!(c, '_' | '.' | ':' | '-'));
        self.position = start + self.rest().find(no_word).unwrap_or(self.rest().len());
        (&self.text[start..self.position], start..self.position)
    }

    fn skip(&mut self) -> usize {
        self.position = self.text.len() - self.rest().trim_start().len();
        self.position
    }

    fn rest(&self) -> &'a str {
        &self.text[self.position..]
    }

    /// The next character.
    fn here(&self) -> Range<usize> {
        let rest = self.rest();
        let start = self.text.len() - rest.trim_start().len();
        start..start + rest.trim_start().chars().next().map_or(0, char::len_utf8)
    }

    fn unexpected(&self, wanted: &str, place: Range<usize>) -> Problem {
        let place = if place.is_empty() { self.here() } else { place };
        let found = match &self.text[place.clone()] {
            "" => "the condition ends".to_owned(),
            found => format!("found `{found}`"),
        };
        Problem::new(format!("expected {wanted}, {found}")).at(place)
    }

    fn place(&self, range: Range<usize>) -> Location {
        self.at.sub(self.text, range)
    }
}

/// What is measured; `Some` share of a quantile.
fn measure(word: &str, place: Range<usize>) -> Result<Option<f64>, Problem> {
    if matches!(word, "rate" | "share" | "value") {
        return Ok(None);
    }
    let digits = word.strip_prefix('p').filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    let Some(digits) = digits else {
        let names = ["p50", "p90", "p99", "rate", "share", "value"];
        let hint = match did_you_mean(word, names) {
            Some(near) => format!("did you mean `{near}`?"),
            None => EXAMPLE.to_owned(),
        };
        let found = if word.is_empty() { "nothing".to_owned() } else { format!("`{word}`") };
        let message = format!("expected `p99` or another quantile, `rate`, `share` or `value`, found {found}");
        return Err(Problem::new(message).at(place).hint(hint));
    };
    let percent = quantity::Decimal::parse(digits).ok().map(quantity::Decimal::to_f64);
    match percent.filter(|percent| *percent > 0.0 && *percent <= 100.0) {
        Some(percent) => Ok(Some(percent / 100.0)),
        None => {
            let hint = match digits.strip_prefix("99").filter(|rest| !rest.is_empty() && !rest.contains('.')) {
                Some(rest) => format!("write `p99.{rest}`"),
                None => "quantiles are above p0 and up to p100".to_owned(),
            };
            Err(Problem::new(format!("`{word}` is no quantile")).at(place).hint(hint))
        }
    }
}

/// A problem of a part of the text.
fn shift(problem: Problem, start: usize, end: usize) -> Problem {
    let range = problem.range.clone().map_or(start..end, |range| start + range.start..start + range.end);
    problem.at(range)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::SourceFile;
    use std::sync::Arc;

    fn read(text: &str) -> Result<When, Problem> {
        let file = Arc::new(SourceFile { name: "k.yaml".into(), text: text.into() });
        parse(text, &Location::new(&file, 0..text.len()))
    }

    #[test]
    fn all_of_a_condition_is_read() {
        let when =
            read("p99.9(kstrobe_recv_wait_seconds{comm=\"my \\\"sql\", syscall =~ 'recv*',}) over 1m >= 50ms for 30s");
        let when = when.unwrap();
        assert_eq!(when.measure, Measure::Quantile(0.9990000000000001).clone());
        assert_eq!((when.metric.value.as_str(), when.metric.at.column), ("recv_wait_seconds", 7));
        let matchers: Vec<_> =
            when.matchers.iter().map(|m| (m.label.value.as_str(), m.kind, m.text.as_str())).collect();
        assert_eq!(matchers, [("comm", Match::Equal, "my \"sql"), ("syscall", Match::Like, "recv*")]);
        assert_eq!((when.over_ns, when.compare, when.for_ns), (60_000_000_000, Compare::AtLeast, 30_000_000_000));
        assert_eq!(when.threshold.value, Quantity::Seconds(0.05));

        let when = read("share(x{a!=\"\",b!~\"?\"}>4KiB)<0.5%").unwrap();
        let Measure::Share { compare, bound } = when.measure else { panic!() };
        assert_eq!((compare, bound.value), (Compare::Above, Quantity::Bytes(4096.0)));
        assert_eq!((when.compare, when.threshold.value), (Compare::Below, Quantity::Percent(0.005)));
        assert_eq!((when.over_ns, when.for_ns), (DEFAULT_OVER_NS, 0));
        assert_eq!(read("rate(a_total)>1.5").unwrap().threshold.value, Quantity::Number(1.5));
        assert_eq!(read(" value ( a { } ) <= 0 ").unwrap().measure, Measure::Value);
    }

    #[test]
    fn each_mistake_has_its_place_and_a_way_out() {
        for (text, part, message, hint) in [
            ("", "", "found nothing", "p99("),
            ("p(x) > 1", "p", "expected `p99`", "p99("),
            ("rat(x) > 1", "rat", "found `rat`", "did you mean `rate`?"),
            ("p999(x) > 1s", "p999", "no quantile", "`p99.9`"),
            ("p0(x) > 1s", "p0", "no quantile", "above p0"),
            ("p99 x > 1s", "x", "expected `(`", "p99("),
            ("p99(9x) > 1s", "9x", "name of a metric", "p99("),
            ("p99(x{9=\"a\"}) > 1s", "9", "name of a label", "{comm="),
            ("p99(x{a:\"b\"}) > 1s", "a:", "name of a label", ""),
            ("p99(x{a<\"b\"}) > 1s", "<", "expected `=`", ""),
            ("p99(x{a=b}) > 1s", "b", "a text in quotes", ""),
            ("p99(x{a=\"b}) > 1s", "\"b}) > 1s", "no end", "close it"),
            ("p99(x{a=\"b\" c=\"d\"}) > 1s", "c", "`,` or `}`", ""),
            ("p99(x > 1s)", ">", "expected `)`", "only `share`"),
            ("share(x) > 5%", ")", "expected `>`", "needs a bound"),
            ("p99(x) = 1s", "=", "expected `>`", ""),
            ("p99(x) >", "", "nothing", ""),
            ("p99(x) > 50msec", "msec", "no unit", "`50ms`"),
            ("p99(x) > 1.s", "1.s", "a number", ""),
            ("rate(x) > 100/s", "/s", "already per second", "`100`"),
            ("p99(x) > 1s over 5s", "over", "no sense", "before the comparison"),
            ("p99(x) over 0s > 1s", "0s", "out of range", "1s to 10m"),
            ("p99(x) > 1s for 30", "30", "no unit", "`30s`"),
            ("p99(x) > 1s and p99(y) > 1s", "and", "no sense", "another rule"),
            ("p99(x) > 1s }", "}", "no sense", ""),
        ] {
            let found = read(text).unwrap_err();
            let place = found.range.clone().unwrap();
            assert_eq!(&text[place], part, "{text}: {found:?}");
            assert!(found.message.contains(message), "{text}: {found:?}");
            assert!(found.hint.clone().unwrap_or_default().contains(hint), "{text}: {found:?}");
        }
        assert!(read(&"x".repeat(MAX_BYTES + 1)).unwrap_err().message.contains("at most"));
    }
}
