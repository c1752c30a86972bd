//! Documentation that says something that is so: what pages name exists, and a comment says more than the name below it.

use super::{Finding, Level};

/// Pages that name files of the sources.
const PAGES: &[&str] = &["ARCHITECTURE.md", "CONTRIBUTING.md"];

/// Words that say nothing of an item.
const EMPTY: &[&str] = &[
    "a", "all", "an", "and", "as", "at", "be", "being", "by", "creates", "each", "for", "from", "gets", "gives", "has",
    "in", "is", "it", "its", "makes", "new", "of", "on", "one", "or", "returns", "sets", "that", "the", "their",
    "this", "to", "value", "was", "what", "which", "with",
];

/// Files, modules and functions (`room::module`, `module::function`) that the pages name and that are not there.
pub fn check_names(files: &[(String, String)]) -> Vec<Finding> {
    let sources: Vec<(String, &str)> = files.iter().map(|(path, text)| (module(path), text.as_str())).collect();
    let is_below = |path: &str, name: &str| {
        path.strip_suffix(name).is_some_and(|folder| folder.is_empty() || folder.ends_with('/'))
    };
    let is_file = |name: &str| files.iter().any(|(path, _)| is_below(path, name));
    let is_item = |name: &str| {
        let (module, item) = name.rsplit_once("::").unwrap_or((name, name));
        let [whole, module] = [name, module].map(|name| name.replace("::", "/"));
        let function = format!("fn {item}");
        sources.iter().any(|(path, text)| is_below(path, &whole) || is_below(path, &module) && text.contains(&function))
    };
    let is_path = |name: &str| name.contains("::") && name.chars().all(|c| c.is_ascii_lowercase() || "_:".contains(c));
    let mut found = Vec::new();
    for (path, text) in files.iter().filter(|(path, _)| PAGES.contains(&path.as_str())) {
        for (number, line) in text.lines().enumerate() {
            let is_missing = |name: &&str| match name.ends_with(".rs") {
                true => !name.contains([' ', '*', '<', '{']) && !is_file(name),
                false => is_path(name) && !is_item(name),
            };
            found.extend(line.split('`').skip(1).step_by(2).filter(is_missing).map(|name| Finding {
                path: path.clone(),
                line: number + 1,
                level: Level::Error,
                message: format!("there is no `{name}`"),
            }));
        }
    }
    found
}

/// The path of a module: `agent/app/reload` of `agent/src/app/reload/mod.rs`.
fn module(path: &str) -> String {
    path.trim_end_matches(".rs").trim_end_matches("/mod").trim_end_matches("/lib").replace("src/", "")
}

/// Comments of one line that repeat the name and the type of what they document.
pub fn check_comments(path: &str, text: &str) -> Vec<Finding> {
    // clap and its kin show comments to users.
    if !path.ends_with(".rs") || text.contains("clap::") {
        return Vec::new();
    }
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let is_doc = |at: usize| lines.get(at).is_some_and(|line| line.starts_with("///"));
    let mut found = Vec::new();
    for at in (0..lines.len()).filter(|at| is_doc(*at) && !is_doc(at + 1) && (*at == 0 || !is_doc(at - 1))) {
        let doc = lines[at].trim_start_matches('/');
        let item = lines[at + 1..].iter().find(|line| !line.starts_with("#[")).copied().unwrap_or_default();
        if !has_signs(doc) && repeats(doc, item) {
            found.push(Finding {
                path: path.to_owned(),
                line: at + 1,
                level: Level::Error,
                message: "the comment repeats the name below it: say the unit, an error, a reason, or nothing"
                    .to_owned(),
            });
        }
    }
    found
}

/// Whether a comment shows an operator or a shape, which a name cannot.
fn has_signs(doc: &str) -> bool {
    let mut quoted = doc.split('`').skip(1).step_by(2);
    quoted.any(|code| code.contains(|c: char| !c.is_alphanumeric() && !"_:.- /".contains(c)))
}

fn repeats(doc: &str, item: &str) -> bool {
    let (doc, item) = (words(doc), words(item));
    !doc.is_empty()
        && doc.iter().all(|word| EMPTY.contains(&word.as_str()) || item.iter().any(|own| stem(own) == stem(word)))
}

/// The words of a text, those of `snake_case` and `CamelCase` apart.
fn words(text: &str) -> Vec<String> {
    let mut apart = String::new();
    let mut before = ' ';
    for c in text.chars() {
        if c.is_uppercase() && before.is_lowercase() {
            apart.push(' ');
        }
        apart.extend(if c.is_alphanumeric() { c } else { ' ' }.to_lowercase());
        before = c;
    }
    apart.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

fn stem(word: &str) -> &str {
    let endings = ["ing", "ed", "es", "s"];
    endings.iter().find_map(|end| word.strip_suffix(end).filter(|stem| stem.len() >= 3)).unwrap_or(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_page_names_must_exist() {
        let file = |path: &str, text: &str| (path.to_owned(), text.to_owned());
        let page = "`probe/start.rs` calls `kernel::load` (`gone.rs`), `load::load`, `load::gone`, `kernel::gone`, `Probe::x`, `*.rs`";
        let load = file("agent/src/kernel/load.rs", "pub fn load() {}");
        let found = check_names(&[file("ARCHITECTURE.md", page), file("agent/src/probe/start.rs", ""), load]);
        let messages: Vec<&str> = found.iter().map(|finding| finding.message.as_str()).collect();
        assert_eq!(messages, ["there is no `gone.rs`", "there is no `load::gone`", "there is no `kernel::gone`"]);
    }

    #[test]
    fn a_comment_that_repeats_a_name_is_refused() {
        let at = |text: &str| check_comments("agent/src/a.rs", text).len();
        assert_eq!(at("/// Bytes of a key.\n#[allow(x)]\npub key_bytes: u32,"), 1);
        assert_eq!(at("/// The maps of a program.\nstruct ProgramMaps;"), 1);
        assert_eq!(at("/// Bytes of a key, rounded up to 8.\npub key_bytes: u32,"), 0);
        assert_eq!(at("/// `a && b`\nfn both(a: Expr, b: Expr) -> Expr {"), 0);
        assert_eq!(at("/// Bytes of a key.\n/// Rounded up.\npub key_bytes: u32,"), 0);
        assert_eq!(at("use clap::Args;\n/// JSON.\nJson,"), 0);
    }
}
