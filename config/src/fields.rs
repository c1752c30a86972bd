//! Typed reading of nodes: each function reports what is wrong and returns `None`, so that the caller goes on.

use crate::diag::Diagnostic;
use crate::model::{Location, Spanned};
use crate::names::{one_of, suggestion};
use crate::quantity;
use crate::raw::{Entry, Kind, Node};
use crate::report::{Problem, Report};
use kstrobe_ebpf::diag::did_you_mean;
use std::ops::RangeInclusive;

/// Keys that people bring along from other tools, and ours.
const HABITS: [(&str, &str); 27] = [
    ("on", "at"),
    // `on:` after a YAML 1.1 tool (Helm, kubectl) has read it.
    ("true", "at"),
    ("hook", "at"),
    ("name", "probe"),
    ("program", "probe"),
    ("description", "summary"),
    ("description", "help"),
    ("desc", "help"),
    ("filter", "where"),
    ("if", "where"),
    ("when", "where"),
    ("filter", "when"),
    ("where", "when"),
    ("if", "when"),
    ("rate", "max_per_second"),
    ("limit", "max_per_second"),
    ("begin", "start"),
    ("from", "start"),
    ("stop", "end"),
    ("to", "end"),
    ("key", "by"),
    ("expr", "value"),
    ("kind", "type"),
    ("interval", "every"),
    ("bounds", "classic"),
    ("span_id", "id"),
    ("parent_span_id", "parent_id"),
];

/// What a mapping may hold.
pub(crate) struct Keys {
    /// What it is, for messages: "a probe".
    pub of: &'static str,
    /// Keys of this version.
    pub known: &'static [&'static str],
    /// Keys of the language that this version does not have.
    pub later: &'static [&'static str],
}

/// The entries of a mapping.
pub(crate) struct Fields<'a> {
    entries: &'a [Entry],
    /// Those whose value a comma has cut: reported, and no values.
    cut: Vec<usize>,
    /// Keys that an unknown key was probably meant to be: they are not missing as well.
    meant: Vec<&'static str>,
    /// Where to complain about a key that is missing.
    pub at: &'a Location,
}

impl<'a> Fields<'a> {
    /// The entries of `node`; unknown keys are reported.
    pub fn read(node: &'a Node, at: &'a Location, keys: &Keys, report: &mut Report) -> Option<Self> {
        let entries = mapping(node, keys.of, report)?;
        let (mut meant, mut cut) = (Vec::new(), Vec::new());
        for (i, Entry { key, .. }) in entries.iter().enumerate() {
            if let Some(whole) = cut_before(entries, i) {
                report.push(rest_of_expression(key));
                meant.extend(keys.known.iter().find(|known| **known == entries[whole].key.value));
                cut.push(whole);
            } else if !keys.known.contains(&key.value.as_str()) {
                let near = meant_key(&key.value, keys);
                meant.extend(near);
                report.push(unknown_key(key, near, keys));
            }
        }
        Some(Self { entries, cut, meant, at })
    }

    /// The same, with missing keys reported at `at`.
    pub fn blaming(self, at: &'a Location) -> Self {
        Self { at, ..self }
    }

    /// The value of `key`, if it is there.
    pub fn get(&self, key: &str) -> Option<&'a Node> {
        self.entry(key).map(|e| &e.value)
    }

    /// The entry of `key`, if it is there.
    pub fn entry(&self, key: &str) -> Option<&'a Entry> {
        self.entries.iter().enumerate().find(|(i, e)| e.key.value == key && !self.cut.contains(i)).map(|(_, e)| e)
    }

    /// Whether a key that was reported was probably meant to be `key`.
    pub fn meant(&self, key: &str) -> bool {
        self.meant.contains(&key)
    }

    /// The value of `key`, which must be there.
    pub fn need(&self, key: &str, of: &str, report: &mut Report) -> Option<&'a Node> {
        let node = self.get(key);
        if node.is_none() && !self.meant(key) {
            report.push(Diagnostic::error(self.at, format!("{of} needs `{key}`")));
        }
        node
    }
}

/// The entry whose value goes on in the key of another one: inside `{ }`, `value: min(a, b)` is read as `value: min(a` and `b)`.
pub(crate) fn cut_before(entries: &[Entry], at: usize) -> Option<usize> {
    let is_rest = |entry: &Entry| matches!(entry.value.kind, Kind::Nothing);
    let open = |text: &str| text.matches('(').count() as isize - text.matches(')').count() as isize;
    let whole = entries[..at].iter().rposition(|entry| !is_rest(entry))?;
    let Kind::Scalar { text, plain: true } = &entries[whole].value.kind else { return None };
    let before = entries[whole + 1..at].iter().map(|entry| open(&entry.key.value)).sum::<isize>() + open(text);
    (is_rest(&entries[at]) && before > 0).then_some(whole)
}

/// What is said of such a key.
pub(crate) fn rest_of_expression(key: &Spanned<String>) -> Diagnostic {
    let diagnostic = Diagnostic::error(&key.at, format!("`{}` has no value", key.value));
    diagnostic.hint("inside `{ }` a comma ends a value: put an expression that has one in quotes")
}

fn meant_key(name: &str, keys: &Keys) -> Option<&'static str> {
    if keys.later.contains(&name) {
        return None;
    }
    let habit = HABITS.iter().find(|(habit, ours)| *habit == name && keys.known.contains(ours)).map(|(_, ours)| *ours);
    habit.or_else(|| did_you_mean(name, keys.known.iter().copied()))
}

fn unknown_key(key: &Spanned<String>, near: Option<&str>, keys: &Keys) -> Diagnostic {
    let name = key.value.as_str();
    if keys.later.contains(&name) {
        return Diagnostic::error(&key.at, format!("`{name}` is not supported by this version"));
    }
    let hint = match near {
        Some(ours) => format!("did you mean `{ours}`?"),
        None => format!("{} has {}", keys.of, one_of(keys.known).replacen("one of ", "", 1).replace(" or ", " and ")),
    };
    Diagnostic::error(&key.at, format!("{} has no key `{name}`", keys.of)).hint(hint)
}

pub(crate) fn mapping<'a>(node: &'a Node, of: &str, report: &mut Report) -> Option<&'a [Entry]> {
    match &node.kind {
        Kind::Mapping(entries) => Some(entries),
        _ => wrong_kind(node, &format!("{of} is a mapping (`key: value` lines)"), report),
    }
}

/// The items of a list, or the only one.
pub(crate) fn one_or_many<'a>(node: &'a Node, what: &str, report: &mut Report) -> &'a [Node] {
    match &node.kind {
        Kind::Sequence(items) => {
            if items.is_empty() {
                report.push(Diagnostic::error(&node.at, format!("an empty list, where at least one {what} is needed")));
            }
            items
        }
        _ => std::slice::from_ref(node),
    }
}

/// The items of a list.
pub(crate) fn list<'a>(node: &'a Node, what: &str, report: &mut Report) -> Option<&'a [Node]> {
    match &node.kind {
        Kind::Sequence(items) => Some(items),
        _ => wrong_kind(node, &format!("{what} wants a list"), report),
    }
}

/// Text that is not blank. `what` says what is wanted, with its article: "an expression".
pub(crate) fn text(node: &Node, what: &str, report: &mut Report) -> Option<Spanned<String>> {
    match &node.kind {
        Kind::Scalar { text, .. } if !text.trim().is_empty() => Some(Spanned::new(text.clone(), node.at.clone())),
        _ => wrong_kind(node, &format!("expected {what}"), report),
    }
}

/// Text that `parse` accepts.
pub(crate) fn parsed<T>(
    node: &Node,
    what: &str,
    report: &mut Report,
    parse: impl FnOnce(&str) -> Result<T, Problem>,
) -> Option<Spanned<T>> {
    let text = text(node, what, report)?;
    let value = report.accept(&text.at, &text.value, parse(&text.value))?;
    Some(Spanned::new(value, text.at))
}

/// One of `names`; those `later` are known but not there yet.
pub(crate) fn choice(
    node: &Node,
    what: &str,
    names: &[&'static str],
    later: &[&str],
    report: &mut Report,
) -> Option<&'static str> {
    let found = parsed(node, what, report, |text| {
        if later.contains(&text) {
            return Err(Problem::new(format!("`{text}` is not supported by this version")));
        }
        let found = names.iter().find(|name| **name == text);
        found.copied().ok_or_else(|| {
            let hint = suggestion(text, names);
            Problem::new(format!("expected {what}, found `{text}`")).hint(hint)
        })
    });
    found.map(|f| f.value)
}

/// `true` or `false`, unquoted.
pub(crate) fn boolean(node: &Node, report: &mut Report) -> Option<bool> {
    match &node.kind {
        Kind::Scalar { text, plain: true } if text == "true" => Some(true),
        Kind::Scalar { text, plain: true } if text == "false" => Some(false),
        Kind::Broken => None,
        kind => {
            let message = format!("expected true or false, found {}", describe(kind));
            report.push(Diagnostic::error(&node.at, message).hint("write `true` or `false`, without quotes"));
            None
        }
    }
}

/// A whole number within `range`.
pub(crate) fn integer(node: &Node, range: RangeInclusive<u64>, report: &mut Report) -> Option<u64> {
    let number = parsed(node, "a whole number", report, |text| {
        let number = quantity::integer(text)?;
        if !range.contains(&number) {
            let (low, high) = (range.start(), range.end());
            return Err(Problem::new(format!("{number} is out of range")).hint(format!("use {low} to {high}")));
        }
        Ok(number)
    });
    number.map(|n| n.value)
}

/// A duration of at least `min_ns`.
pub(crate) fn duration(node: &Node, min_ns: u64, report: &mut Report) -> Option<u64> {
    let duration = parsed(node, "a duration such as `5s`", report, |text| {
        let duration = quantity::duration_ns(text)?;
        if duration < min_ns {
            let least = quantity::show_ns(min_ns);
            return Err(Problem::new(format!("{text} is too short")).hint(format!("use at least {least}")));
        }
        Ok(duration)
    });
    duration.map(|d| d.value)
}

fn wrong_kind<T>(node: &Node, wanted: &str, report: &mut Report) -> Option<T> {
    if !matches!(node.kind, Kind::Broken) {
        report.push(Diagnostic::error(&node.at, format!("{wanted}, found {}", describe(&node.kind))));
    }
    None
}

fn describe(kind: &Kind) -> String {
    match kind {
        Kind::Nothing | Kind::Broken => "nothing".to_owned(),
        Kind::Scalar { text, .. } if text.trim().is_empty() => "empty text".to_owned(),
        Kind::Scalar { text, .. } if text.chars().count() > 40 => "text".to_owned(),
        Kind::Scalar { text, .. } => format!("`{}`", text.trim()),
        Kind::Sequence(_) => "a list".to_owned(),
        Kind::Mapping(_) => "a mapping".to_owned(),
    }
}
