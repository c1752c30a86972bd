//! Just enough of Rust's surface to see what a file names: comments and literals blanked, paths with `use` trees unfolded.

/// Replaces comments and the insides of string and character literals with spaces; line breaks stay.
pub fn without_text(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let skipped = text_length(rest, out.chars().next_back());
        if skipped == 0 {
            out.push(first);
            rest = &rest[first.len_utf8()..];
        } else {
            out.extend(rest[..skipped].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
            rest = &rest[skipped..];
        }
    }
    out
}

/// Bytes of the comment or literal that `rest` begins with; 0 if it begins with neither.
fn text_length(rest: &str, before: Option<char>) -> usize {
    let after_word = before.is_some_and(is_word);
    if rest.starts_with("//") {
        rest.find('\n').unwrap_or(rest.len())
    } else if rest.starts_with("/*") {
        block_comment_length(rest)
    } else if rest.starts_with('"') {
        quoted_length(rest, '"')
    } else if rest.starts_with('r') && !after_word {
        raw_string_length(rest)
    } else if rest.starts_with('\'') {
        char_length(rest)
    } else {
        0
    }
}

fn block_comment_length(rest: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        if rest[at..].starts_with("/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if rest[at..].starts_with("*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += rest[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    rest.len()
}

fn quoted_length(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

fn raw_string_length(rest: &str) -> usize {
    let hashes = rest[1..].bytes().take_while(|&b| b == b'#').count();
    if rest.as_bytes().get(1 + hashes) != Some(&b'"') {
        return 0;
    }
    let end = format!("\"{}", "#".repeat(hashes));
    let body = 2 + hashes;
    rest[body..].find(&end).map_or(rest.len(), |at| body + at + end.len())
}

/// A character literal and not a lifetime: it is closed after one character or an escape.
fn char_length(rest: &str) -> usize {
    let mut chars = rest.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), _) => quoted_length(rest, '\''),
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 0,
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// A path as written, and the inline modules it stands in.
#[derive(Debug, PartialEq, Eq)]
pub struct Named {
    /// 1-based.
    pub line: usize,
    /// `["crate", "check", "Expr"]`; a single word is a path of one.
    pub path: Vec<String>,
    /// Names of the `mod x { }` around it, outermost first.
    pub inside: Vec<String>,
}

/// Everything a file names, `use` trees unfolded into one path per leaf. Takes the output of [`without_text`].
pub fn names(code: &str) -> Vec<Named> {
    let tokens = tokens(code);
    let mut found = Vec::new();
    // Inline modules: name and the depth of their opening brace.
    let mut modules: Vec<(String, usize)> = Vec::new();
    let (mut depth, mut at) = (0, 0);
    while at < tokens.len() {
        let inside = || modules.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        match tokens[at].1 {
            "use" => at = use_tree(&tokens, at + 1, &mut Vec::new(), &inside(), &mut found),
            "mod" if tokens.get(at + 2).is_some_and(|t| t.1 == "{") => {
                modules.push((tokens[at + 1].1.to_owned(), depth));
                depth += 1;
                at += 3;
            }
            "{" => (depth, at) = (depth + 1, at + 1),
            "}" => {
                depth = usize::saturating_sub(depth, 1);
                modules.retain(|(_, opened)| *opened < depth);
                at += 1;
            }
            word if word.starts_with(is_word) => {
                let (line, mut path) = (tokens[at].0, vec![word.to_owned()]);
                at += 1;
                while let [(_, "::"), (_, next), ..] = tokens[at..] {
                    if !next.starts_with(is_word) {
                        break;
                    }
                    path.push(next.to_owned());
                    at += 2;
                }
                found.push(Named { line, path, inside: inside() });
            }
            _ => at += 1,
        }
    }
    found
}

/// Reads one branch of a `use` tree; returns the index of the first token after it.
fn use_tree(
    tokens: &[(usize, &str)],
    mut at: usize,
    prefix: &mut Vec<String>,
    inside: &[String],
    found: &mut Vec<Named>,
) -> usize {
    let kept = prefix.len();
    let line = tokens.get(at).map_or(1, |t| t.0);
    let mut branched = false;
    while let Some(&(_, token)) = tokens.get(at) {
        match token {
            "{" => {
                branched = true;
                at += 1;
                while tokens.get(at).is_some_and(|t| t.1 != "}") {
                    at = use_tree(tokens, at, prefix, inside, found);
                    at += usize::from(tokens.get(at).is_some_and(|t| t.1 == ","));
                }
                at += 1;
            }
            "as" => at += 2,
            "::" => at += 1,
            "*" => {
                prefix.push("*".to_owned());
                at += 1;
            }
            word if word.starts_with(is_word) => {
                prefix.push(word.to_owned());
                at += 1;
            }
            _ => break,
        }
    }
    if !branched && prefix.len() > kept {
        found.push(Named { line, path: prefix.clone(), inside: inside.to_vec() });
    }
    prefix.truncate(kept);
    at
}

/// Words, `::` and single signs, each with its line.
fn tokens(code: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (number, line) in code.lines().enumerate() {
        let mut rest = line.trim_start();
        while let Some(first) = rest.chars().next() {
            let length = match first {
                c if is_word(c) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
                ':' if rest.starts_with("::") => 2,
                c => c.len_utf8(),
            };
            found.push((number + 1, &rest[..length]));
            rest = rest[length..].trim_start();
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(source: &str) -> Vec<String> {
        names(&without_text(source)).into_iter().map(|n| n.path.join("::")).collect()
    }

    #[test]
    fn text_is_blanked_and_lines_stay() {
        let source =
            "a(\"x::y // no\"); // b::c\n/* d /* e */ f */ g('\"', '\\'', r#\"h\"i\"#); fn k<'a>(x: &'a str) {}";
        let blank = without_text(source);
        assert_eq!(blank.lines().count(), 2);
        let words: Vec<_> = blank.split(|c| !is_word(c)).filter(|w| !w.is_empty()).collect();
        assert_eq!(words, ["a", "g", "fn", "k", "a", "x", "a", "str"]);
    }

    #[test]
    fn use_trees_unfold() {
        let source = "use crate::{check, ir::{self, Block as B}, isa::*};\npub use super::diag;";
        assert_eq!(
            paths(source),
            ["crate::check", "crate::ir::self", "crate::ir::Block", "crate::isa::*", "pub", "super::diag"]
        );
    }

    #[test]
    fn paths_in_expressions_and_types_are_seen_with_their_line() {
        let code = without_text("fn f() {\n    let x: Vec<crate::check::T> = crate::lower::g::<u8>();\n}");
        let found = names(&code);
        let check = found.iter().find(|n| n.path.join("::") == "crate::check::T").expect("type");
        assert_eq!(check.line, 2);
        assert!(found.iter().any(|n| n.path.join("::") == "crate::lower::g"));
    }

    #[test]
    fn inline_modules_are_known() {
        let found = names("mod tests { use super::a; fn f() { b } } fn g() { c }");
        let inside =
            |word: &str| found.iter().find(|n| n.path.last().is_some_and(|p| p == word)).map(|n| n.inside.clone());
        assert_eq!(inside("a"), Some(vec!["tests".to_owned()]));
        assert_eq!(inside("b"), Some(vec!["tests".to_owned()]));
        assert_eq!(inside("c"), Some(vec![]));
    }
}
