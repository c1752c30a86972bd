//! Errors are types: a caller decides by variant, and a text is made where it is shown.

use super::source::without_text;
use super::{Finding, Level};

/// Where product code may return a text as an error, by file or folder.
const TEXT_ERRORS: &[(&str, &str)] = &[
    ("agent/src/config/plan/explain.rs", "data of `kstrobe explain`, with a reason in place of a number"),
    ("ftrace/src/print/", "a parser: what it does not understand of a print format is shown"),
];

/// The part of a check for the text of an errno, split so that this file does not contain it.
const ERRNO_CHECK: &str = concat!("contains(\"(os", " error");

/// Folders of product code.
const PRODUCT: &[&str] = &["agent/src/", "config/src/", "crates/", "ebpf/src/", "ftrace/src/"];

pub fn check(path: &str, text: &str) -> Vec<Finding> {
    let mut found = errno_checks(path, text);
    let is_listed = TEXT_ERRORS.iter().any(|(listed, _)| path.starts_with(listed));
    if !is_listed && is_product(path) {
        let code = without_text(text);
        let lines = text_errors(&code).into_iter().map(|at| code[..at].lines().count().max(1));
        let message = "a text as an error: give it an enum (`thiserror`), and make the text where it is shown";
        found.extend(lines.map(|line| error(path, line, message)));
    }
    found
}

/// Entries of the list without a reason to be there any longer.
pub fn check_list(files: &[(String, String)]) -> Vec<Finding> {
    let is_needed = |listed: &str| {
        let mut of = files.iter().filter(|(path, _)| path.starts_with(listed) && is_product(path));
        of.any(|(_, text)| !text_errors(&without_text(text)).is_empty())
    };
    let stale = TEXT_ERRORS.iter().filter(|(listed, _)| !is_needed(listed));
    let message = |listed: &str| format!("{listed} has no text as an error: take it off the list");
    let finding = |(listed, _): &(&str, _)| Finding {
        path: "xtask/src/tidy/errors.rs".into(),
        line: 1,
        level: Level::Warning,
        message: message(listed),
    };
    stale.map(finding).collect()
}

fn is_product(path: &str) -> bool {
    let is_test = ["/tests/", "/root_tests/"].iter().any(|folder| path.contains(folder)) || path.ends_with("/tests.rs");
    path.ends_with(".rs") && !is_test && PRODUCT.iter().any(|folder| path.starts_with(folder))
}

fn error(path: &str, line: usize, message: &str) -> Finding {
    Finding { path: path.to_owned(), line, level: Level::Error, message: message.to_owned() }
}

fn errno_checks(path: &str, text: &str) -> Vec<Finding> {
    if !path.ends_with(".rs") {
        return Vec::new();
    }
    let lines = text.lines().enumerate().filter(|(_, line)| line.contains(ERRNO_CHECK));
    lines
        .map(|(number, _)| error(path, number + 1, "a decision by text: compare the errno that the error carries"))
        .collect()
}

/// Where a `Result` begins whose error is a text, or an alias of this file for one, before the file's own tests.
fn text_errors(code: &str) -> Vec<usize> {
    let code = code.split("#[cfg(test)]\nmod tests {").next().unwrap_or(code);
    let is_text = |of: &str| ["String", "&str"].contains(&of) || of.starts_with("&'") && of.ends_with(" str");
    let alias = |rest: &str| {
        let (name, of) = rest.split(';').next()?.split_once(" = ")?;
        is_text(of).then(|| name.to_owned())
    };
    let aliases: Vec<String> = code.split("type ").skip(1).filter_map(alias).collect();
    let starts = code.match_indices("Result<").map(|(at, name)| at + name.len());
    let is_text_error = |error: &str| is_text(error) || aliases.iter().any(|alias| alias == error);
    starts.filter(|at| last_argument(&code[*at..]).is_some_and(is_text_error)).collect()
}

/// The last of several arguments of a generic type, from behind its `<`.
fn last_argument(rest: &str) -> Option<&str> {
    let (mut depth, mut from, mut before) = (0, None, ' ');
    for (at, c) in rest.char_indices() {
        match c {
            // The arrow of `Fn() -> T` closes nothing.
            '>' if before == '-' => {}
            '>' if depth == 0 => return from.map(|from: usize| rest[from..at].trim().trim_end_matches(',')),
            '<' | '(' | '[' => depth += 1,
            '>' | ')' | ']' => depth -= 1,
            ',' if depth == 0 && !rest[at + 1..].trim_start().starts_with('>') => from = Some(at + 1),
            _ => {}
        }
        before = c;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(path, text).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn a_text_as_an_error_is_refused_in_product_code() {
        let text = "fn f() -> Result<(), String> {}\n// Result<(), String>\nfn g(f: impl Fn(u8) -> Result<Vec<(u8, T)>,\n    String,\n>) {}";
        assert_eq!(lines("crates/web/src/a.rs", text), [1, 3]);
        let right = "fn f() -> Result<String, Error> {}\nfn g() -> io::Result<String> {}\nfn h() -> Result<BTreeMap<u8, String>, E> {}";
        assert_eq!(lines("crates/web/src/a.rs", right), [0; 0]);
        let by_another_name =
            "type Refused = String;\nfn f() -> Result<(), Refused> {}\nfn g() -> Result<u8, &'static str> {}";
        assert_eq!(lines("crates/web/src/a.rs", by_another_name), [2, 3]);
        let of_tests = "#[cfg(test)]\nmod tests {\n    fn f() -> Result<(), String> {}\n}";
        assert_eq!(lines("crates/web/src/a.rs", of_tests), [0; 0]);
        for path in ["crates/web/tests/a.rs", "crates/web/src/a/tests.rs", "xtask/src/a.rs", TEXT_ERRORS[0].0] {
            assert_eq!(lines(path, text), [0; 0], "{path}");
        }
    }

    #[test]
    fn a_decision_by_the_text_of_an_errno_is_refused_everywhere() {
        let text = format!("fn f() {{}}\nif reason.{ERRNO_CHECK} 95)\") {{}}");
        for path in ["agent/src/kernel/load.rs", "agent/tests/a.rs", "xtask/src/a.rs"] {
            assert_eq!(lines(path, &text), [2], "{path}");
        }
    }

    #[test]
    fn an_entry_that_is_not_needed_is_named() {
        let stale = |text: &str| {
            let file = |(folder, _): &(&str, &str)| (format!("{folder}a.rs"), text.to_owned());
            check_list(&TEXT_ERRORS.iter().map(file).collect::<Vec<_>>()).len()
        };
        assert_eq!(stale("fn f() {}"), TEXT_ERRORS.len());
        assert_eq!(stale("fn f() -> Result<(), String> {}"), 0);
    }
}
