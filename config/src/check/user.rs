//! Hooks in programs and libraries: `uprobe:PATH:SYMBOL[+OFFSET]`, `uretprobe:PATH:SYMBOL`, `usdt:PATH:PROVIDER:NAME`, and
//! the form `{ hook: "uprobe:..", pid: 123 }`.

use crate::fields::{self, Fields, Keys};
use crate::model::{Binary, Edge, Hook, HookKind};
use crate::raw::{Kind, Node};
use crate::report::{Problem, Report};
use std::ops::Range;

/// Linux has no longer path.
const MAX_PATH: usize = 4095;
/// Mangled names of templates are long, but not as long as this.
const MAX_SYMBOL: usize = 1024;
/// `PID_MAX_LIMIT`
const MAX_PID: u64 = 1 << 22;

/// What follows `uprobe:` (the edge is the entry) or `uretprobe:`.
pub(super) fn function(rest: &str, edge: Edge) -> Result<HookKind, Problem> {
    let exit = edge == Edge::Exit;
    let shape = if exit { "write `uretprobe:PATH:SYMBOL`" } else { "write `uprobe:PATH:SYMBOL`" };
    let Some((path, symbol)) = rest.split_once(':').filter(|(path, symbol)| !path.is_empty() && !symbol.is_empty())
    else {
        return Err(Problem::new("this hook has a program or library and a function in it").hint(shape));
    };
    let path = binary(path)?;
    let start = path.len() + 1;
    let (name, offset) = match offset(symbol) {
        None => (symbol, 0),
        Some((name, text)) if exit => {
            let here = start + name.len()..start + symbol.len();
            let problem = Problem::new("a function returns as a whole: there is no offset into a return");
            return Err(problem.at(here).hint(format!("remove `+{text}`, or hook `uprobe:`")));
        }
        Some((name, text)) => {
            let here = start + name.len() + 1..start + symbol.len();
            (name, number(text).ok_or_else(|| Problem::new("the offset is too large").at(here))?)
        }
    };
    let here = start..start + name.len();
    if name.trim() != name || name.len() > MAX_SYMBOL || name.chars().any(char::is_control) {
        return Err(Problem::new("this is no name of a function").at(here));
    }
    Ok(HookKind::User { binary: Binary { path, pid: None }, symbol: name.to_owned(), offset, edge })
}

/// What follows `usdt:`.
pub(super) fn usdt(rest: &str) -> Result<HookKind, Problem> {
    let parts: Vec<&str> = rest.split(':').collect();
    let [path, provider, name] = parts.as_slice() else {
        return Err(Problem::new("a static probe point has a program or library, a provider and a name")
            .hint("write `usdt:PATH:PROVIDER:NAME`; `kstrobe list usdt FILE` shows those of a file"));
    };
    let path = binary(path)?;
    let start = path.len() + 1;
    word(provider, "a provider", start..start + provider.len())?;
    let start = start + provider.len() + 1;
    word(name, "a probe point", start..start + name.len())?;
    let (provider, name) = ((*provider).to_owned(), (*name).to_owned());
    Ok(HookKind::Usdt { binary: Binary { path, pid: None }, provider, name })
}

/// `{ hook: "uprobe:..", pid: 123 }`
pub(super) fn of_process(item: &Node, report: &mut Report) -> Option<Vec<Hook>> {
    let keys = Keys { of: "a hook", known: &["hook", "pid"], later: &[] };
    let fields = Fields::read(item, &item.at, &keys, report)?;
    let hook = fields.need("hook", "a hook", report);
    let pid = fields.need("pid", "a hook", report).and_then(|node| fields::integer(node, 1..=MAX_PID, report));
    let hook = super::hook::text(hook?, "a hook such as `uprobe:libc:malloc`", report)?;
    let (pid, mut hooks) = (pid?, hook);
    for hook in &mut hooks {
        match hook.kind.binary_mut() {
            Some(binary) => binary.pid = Some(pid as u32),
            None => {
                let message = "only `uprobe:`, `uretprobe:` and `usdt:` hooks have a process of their own";
                let diagnostic = crate::diag::Diagnostic::error(&hook.text.at, message);
                report.push(diagnostic.hint(format!("use a condition: `where: pid == {pid}`")));
                return None;
            }
        }
    }
    Some(hooks)
}

/// Whether a mapping is that form.
pub(super) fn is_of_process(item: &Node) -> bool {
    let Kind::Mapping(entries) = &item.kind else { return false };
    entries.iter().any(|e| matches!(e.key.value.as_str(), "hook" | "pid"))
}

/// An absolute path, a pattern of such, or the bare name of a program or library.
fn binary(path: &str) -> Result<String, Problem> {
    let here = 0..path.len();
    let plain = path.chars().all(|c| c.is_alphanumeric() || "._+-".contains(c));
    let problem = match path {
        "" => Problem::new("the program or library is missing").at(0..0),
        _ if path.len() > MAX_PATH || path.chars().any(char::is_control) => Problem::new("this is no path").at(here),
        _ if path.starts_with('/') || plain => return Ok(path.to_owned()),
        _ if path.contains('/') => Problem::new("a path begins with `/`").at(here),
        _ => Problem::new(format!("`{path}` is neither a path nor the name of a program or library")).at(here),
    };
    Err(problem.hint("write a path such as `/usr/bin/x` or a name such as `libc`"))
}

/// `name+8` or `name+0x8` as its parts; names of C++ operators have a `+` that no number follows.
fn offset(symbol: &str) -> Option<(&str, &str)> {
    let (name, text) = symbol.rsplit_once('+')?;
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let hex = digits.len() < text.len();
    let all = |test: fn(&char) -> bool| digits.chars().all(|c| test(&c));
    let number = !digits.is_empty() && if hex { all(char::is_ascii_hexdigit) } else { all(char::is_ascii_digit) };
    (number && !name.is_empty()).then_some((name, text))
}

fn number(text: &str) -> Option<u64> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.ok().filter(|n| *n < 1 << 32)
}

/// A provider or probe point, perhaps a pattern. `<sys/sdt.h>` makes them of C identifiers, others use `-` and `.` as well.
fn word(text: &str, what: &str, here: Range<usize>) -> Result<(), Problem> {
    if text.is_empty() {
        return Err(Problem::new(format!("the name of {what} is missing")).at(here).hint("`*` means any"));
    }
    if !text.chars().all(|c| c.is_alphanumeric() || "_-.*?".contains(c)) {
        return Err(Problem::new(format!("`{text}` is no name of {what}")).at(here));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::hook::parse;
    use super::*;

    fn user(path: &str, symbol: &str, offset: u64, edge: Edge) -> Result<HookKind, Problem> {
        Ok(HookKind::User { binary: Binary { path: path.into(), pid: None }, symbol: symbol.into(), offset, edge })
    }

    #[test]
    fn functions_and_probe_points() {
        assert_eq!(parse("uprobe:/usr/bin/x:main"), user("/usr/bin/x", "main", 0, Edge::Enter));
        assert_eq!(parse("uprobe:libc:exec_*"), user("libc", "exec_*", 0, Edge::Enter));
        assert_eq!(parse("uprobe:libc.so.6:f+0x10"), user("libc.so.6", "f", 16, Edge::Enter));
        assert_eq!(parse("uprobe:/x:f+16"), user("/x", "f", 16, Edge::Enter));
        assert_eq!(parse("uprobe:/x:0x1234"), user("/x", "0x1234", 0, Edge::Enter));
        assert_eq!(parse("uretprobe:/opt/*/bin/x:f"), user("/opt/*/bin/x", "f", 0, Edge::Exit));
        assert_eq!(parse("uprobe:/x:std::vec::Vec<T>::push"), user("/x", "std::vec::Vec<T>::push", 0, Edge::Enter));
        assert_eq!(parse("uprobe:/x:a::operator++"), user("/x", "a::operator++", 0, Edge::Enter));
        let binary = Binary { path: "/usr/bin/db".into(), pid: None };
        let (provider, name) = ("db".into(), "query__start".into());
        assert_eq!(parse("usdt:/usr/bin/db:db:query__start"), Ok(HookKind::Usdt { binary, provider, name }));
    }

    #[test]
    fn problems_point_at_the_part_that_is_wrong() {
        let wrong = |text: &'static str| {
            let problem = parse(text).expect_err(text);
            (&text[problem.range.unwrap_or(0..text.len())], problem.message)
        };
        assert_eq!(wrong("uprobe:/x").0, "uprobe:/x");
        assert_eq!(wrong("uprobe:bin/x:f"), ("bin/x", "a path begins with `/`".into()));
        assert_eq!(wrong("uprobe:li bc:f").0, "li bc");
        assert_eq!(wrong("uretprobe:/x:f+8").0, "+8");
        assert_eq!(wrong("uprobe:/x:f+99999999999").0, "99999999999");
        assert_eq!(wrong("uprobe:/x: f").0, " f");
        assert_eq!(wrong("usdt:/x:a").0, "usdt:/x:a");
        assert_eq!(wrong("usdt:/x:a b:c").0, "a b");
        assert_eq!(wrong("usdt:/x:a:").0, "");
    }
}
