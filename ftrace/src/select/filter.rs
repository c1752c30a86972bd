//! Conditions on the fields of events, in the language of the kernel's own filters: `prev_state != 0 && next_comm ~ "nginx*"`.

use crate::format::EventFormat;
use crate::trace::Event;
use crate::value::Value;
use std::fmt;
use wildmatch::WildMatch;

/// A condition that was read.
#[derive(Clone, Debug)]
pub struct Filter(Condition);

/// Why a text is no condition, or none of these events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterError {
    /// Byte of the text.
    pub at: usize,
    pub what: String,
}

impl fmt::Display for FilterError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.what)
    }
}

impl std::error::Error for FilterError {}

#[derive(Clone, Debug)]
enum Condition {
    All(Vec<Condition>),
    Any(Vec<Condition>),
    Not(Box<Condition>),
    Test(Test),
}

#[derive(Clone, Debug)]
struct Test {
    field: String,
    /// Byte of the text where the field stands.
    at: usize,
    against: Against,
}

#[derive(Clone, Debug)]
enum Against {
    Number(Relation, i128),
    /// Some of these bits are set.
    Bits(u64),
    Text {
        text: String,
        equal: bool,
    },
    Pattern(WildMatch),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    Equal,
    Unequal,
    Less,
    AtMost,
    Greater,
    AtLeast,
}

/// Parentheses and negations within one another.
const MAX_DEPTH: usize = 64;

impl Filter {
    pub fn parse(text: &str) -> Result<Filter, FilterError> {
        let mut reader = Reader { text, at: 0, depth: 0 };
        let condition = reader.any()?;
        match reader.rest() {
            "" => Ok(Filter(condition)),
            _ => Err(reader.error("expected `&&`, `||` or the end")),
        }
    }

    /// Whether some of these events have all fields that it names, of the kind that it compares with.
    pub fn check<'a>(&self, events: impl Iterator<Item = &'a EventFormat> + Clone) -> Result<(), FilterError> {
        let mut wrong = None;
        self.0.each(&mut |test| {
            let known = test.is_of_all() || events.clone().any(|event| event.field(&test.field).is_some());
            if !known && wrong.is_none() {
                let what = format!("no event that is chosen has a field `{}`", test.field);
                wrong = Some(FilterError { at: test.at, what });
            }
        });
        wrong.map_or(Ok(()), Err)
    }

    /// Whether it holds for an event of a thread of this name. An event without a field that decides is not chosen.
    pub fn holds(&self, event: &Event<'_>, comm: &str) -> bool {
        self.0.holds(event, comm) == Some(true)
    }
}

impl Condition {
    fn each(&self, see: &mut impl FnMut(&Test)) {
        match self {
            Condition::All(parts) | Condition::Any(parts) => parts.iter().for_each(|part| part.each(see)),
            Condition::Not(part) => part.each(see),
            Condition::Test(test) => see(test),
        }
    }

    /// `None` where a field is missing and decides.
    fn holds(&self, event: &Event<'_>, comm: &str) -> Option<bool> {
        match self {
            Condition::All(parts) => decided(parts, false, event, comm),
            Condition::Any(parts) => decided(parts, true, event, comm),
            Condition::Not(part) => part.holds(event, comm).map(|holds| !holds),
            Condition::Test(test) => test.holds(event, comm),
        }
    }
}

/// What one part decides alone, or all parts together.
fn decided(parts: &[Condition], alone: bool, event: &Event<'_>, comm: &str) -> Option<bool> {
    let mut known = true;
    for part in parts {
        match part.holds(event, comm) {
            Some(holds) if holds == alone => return Some(alone),
            Some(_) => {}
            None => known = false,
        }
    }
    known.then_some(!alone)
}

impl Test {
    /// Whether all events have it: the kernel's filters have these names, too.
    fn is_of_all(&self) -> bool {
        matches!(self.field.as_str(), "comm" | "COMM" | "cpu" | "CPU")
    }

    fn holds(&self, event: &Event<'_>, comm: &str) -> Option<bool> {
        let value = match event.value(&self.field) {
            Some(value) => value,
            None if self.field.eq_ignore_ascii_case("comm") => Value::Text(comm.as_bytes()),
            None if self.field.eq_ignore_ascii_case("cpu") => Value::Unsigned(event.cpu.into()),
            None => return None,
        };
        let number = match value {
            Value::Unsigned(number) => Some(i128::from(number)),
            Value::Signed(number) => Some(i128::from(number)),
            Value::Text(_) | Value::Array { .. } | Value::Bytes(_) => None,
        };
        Some(match &self.against {
            Against::Number(relation, with) => relation.holds(number?, *with),
            Against::Bits(bits) => value.bits()? & bits != 0,
            Against::Text { text, equal } => (value.text()? == text.as_str()) == *equal,
            Against::Pattern(pattern) => pattern.matches(&value.text()?),
        })
    }
}

impl Relation {
    fn holds(self, value: i128, with: i128) -> bool {
        match self {
            Relation::Equal => value == with,
            Relation::Unequal => value != with,
            Relation::Less => value < with,
            Relation::AtMost => value <= with,
            Relation::Greater => value > with,
            Relation::AtLeast => value >= with,
        }
    }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

impl<'a> Reader<'a> {
    fn any(&mut self) -> Result<Condition, FilterError> {
        let mut parts = vec![self.all()?];
        while self.eat("||") {
            parts.push(self.all()?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Condition::Any(parts) })
    }

    fn all(&mut self) -> Result<Condition, FilterError> {
        let mut parts = vec![self.one()?];
        while self.eat("&&") {
            parts.push(self.one()?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Condition::All(parts) })
    }

    fn one(&mut self) -> Result<Condition, FilterError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.error("too many parentheses and negations"));
        }
        let condition = if self.eat("(") {
            let inner = self.any()?;
            if !self.eat(")") {
                return Err(self.error("expected `)`"));
            }
            inner
        } else if !self.rest().starts_with("!=") && self.eat("!") {
            Condition::Not(Box::new(self.one()?))
        } else {
            Condition::Test(self.test()?)
        };
        self.depth -= 1;
        Ok(condition)
    }

    fn test(&mut self) -> Result<Test, FilterError> {
        self.rest();
        let at = self.at;
        let field = self.word(|letter| letter.is_ascii_alphanumeric() || letter == '_').to_owned();
        if field.is_empty() || field.starts_with(|first: char| first.is_ascii_digit()) {
            self.at = at;
            return Err(self.error("expected a field, as in `bytes > 4096`"));
        }
        // The longer ones first.
        const RELATIONS: [(&str, Relation); 6] = [
            ("==", Relation::Equal),
            ("!=", Relation::Unequal),
            ("<=", Relation::AtMost),
            (">=", Relation::AtLeast),
            ("<", Relation::Less),
            (">", Relation::Greater),
        ];
        let against = if let Some((_, relation)) = RELATIONS.into_iter().find(|(sign, _)| self.eat(sign)) {
            match (self.value()?, relation) {
                (Literal::Number(number), relation) => Against::Number(relation, number),
                (Literal::Text(text), Relation::Equal) => Against::Text { text, equal: true },
                (Literal::Text(text), Relation::Unequal) => Against::Text { text, equal: false },
                (Literal::Text(_), _) => return Err(self.error("text is compared by ==, != and ~")),
            }
        } else if self.eat("~") {
            match self.value()? {
                Literal::Text(text) => Against::Pattern(WildMatch::new(&text)),
                Literal::Number(number) => Against::Pattern(WildMatch::new(&number.to_string())),
            }
        } else if !self.rest().starts_with("&&") && self.eat("&") {
            match self.value()? {
                Literal::Number(number) => Against::Bits(number as u64),
                Literal::Text(_) => return Err(self.error("`&` wants a number")),
            }
        } else {
            return Err(self.error("expected ==, !=, <, <=, >, >=, & or ~"));
        };
        Ok(Test { field, at, against })
    }

    fn value(&mut self) -> Result<Literal, FilterError> {
        let rest = self.rest();
        if let Some(quote) = rest.chars().next().filter(|first| matches!(first, '"' | '\'')) {
            let Some(end) = rest[1..].find(quote) else { return Err(self.error("the text has no end")) };
            self.at += end + 2;
            return Ok(Literal::Text(rest[1..=end].to_owned()));
        }
        let at = self.at;
        let word = self.word(|letter| !letter.is_whitespace() && !"()&|!=<>~\"'".contains(letter));
        if word.is_empty() {
            return Err(self.error("expected a number or text"));
        }
        let number = word.starts_with(|first: char| first.is_ascii_digit() || first == '-');
        match number.then(|| integer(word)) {
            Some(Some(number)) => Ok(Literal::Number(number)),
            Some(None) => {
                self.at = at;
                Err(self.error("no number: text stands in quotes"))
            }
            None => Ok(Literal::Text(word.to_owned())),
        }
    }

    /// What is left, without leading blanks.
    fn rest(&mut self) -> &'a str {
        let rest = self.text[self.at..].trim_start();
        self.at = self.text.len() - rest.len();
        rest
    }

    fn eat(&mut self, token: &str) -> bool {
        let found = self.rest().starts_with(token);
        self.at += if found { token.len() } else { 0 };
        found
    }

    fn word(&mut self, belongs: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|letter| !belongs(letter)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    fn error(&self, what: &str) -> FilterError {
        FilterError { at: self.at, what: what.to_owned() }
    }
}

enum Literal {
    Number(i128),
    Text(String),
}

fn integer(word: &str) -> Option<i128> {
    let (sign, digits) = word.strip_prefix('-').map_or((1, word), |digits| (-1, digits));
    let number = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => digits.parse(),
    };
    number.ok().map(|number| sign * i128::from(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: &str = "name: sample\nID: 7\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
        \tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n\
        \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
        \tfield:char name[8];\toffset:8;\tsize:8;\tsigned:1;\n\
        \tfield:long state;\toffset:16;\tsize:8;\tsigned:1;\n\nprint fmt: \"%s\", REC->name\n";

    fn holds(text: &str) -> bool {
        let format = EventFormat::parse("test", FORMAT).unwrap();
        let mut data = vec![7, 0, 0, 0, 42, 0, 0, 0];
        data.extend(b"nginx\0\0\0");
        data.extend((-2i64).to_le_bytes());
        let event = Event { buffer: 0, cpu: 3, time: 1, lost: Default::default(), data: &data, format: Some(&format) };
        Filter::parse(text).unwrap().holds(&event, "worker")
    }

    #[test]
    fn conditions_are_those_of_the_kernel() {
        for text in [
            "state == -2",
            "state<0&&common_pid==0x2a",
            "name ~ \"ngi*\" && name != apache",
            "!(state > 0) && (name == 'nginx' || state == 9)",
            "comm == worker && cpu >= 3",
            "common_pid & 8",
            "state == -2 || missing == 1",
        ] {
            assert!(holds(text), "{text}");
        }
        for text in ["state > 0", "common_pid & 4", "missing != 1", "!(missing == 1)", "name ~ nginx?", "name > 1"] {
            assert!(!holds(text), "{text}");
        }
    }

    #[test]
    fn errors_say_where() {
        for (text, at) in [("", 0), ("state", 5), ("state ==", 8), ("state == 1 name", 11), ("(state == 1", 11)] {
            assert_eq!(Filter::parse(text).unwrap_err().at, at, "{text}");
        }
        assert_eq!(Filter::parse("state == 12x").unwrap_err().what, "no number: text stands in quotes");
        assert_eq!(Filter::parse("name < \"x\"").unwrap_err().what, "text is compared by ==, != and ~");
        assert_eq!(Filter::parse(&"(".repeat(100)).unwrap_err().what, "too many parentheses and negations");
        let format = EventFormat::parse("test", FORMAT).unwrap();
        let unknown = Filter::parse("state == 1 && stat == 2").unwrap().check([&format].into_iter()).unwrap_err();
        assert_eq!((unknown.at, unknown.what.as_str()), (14, "no event that is chosen has a field `stat`"));
    }
}
