//! What a kind of hook takes: CONTRIBUTING promises that a new one touches five files of the product. The files are counted that name
//! a kind's own variants, of `HookKind` (what users write) and of `Attach` (what it becomes), and those that have its name.

use super::rules::is_test;
use super::source::{names, without_text};
use super::{Finding, Level};
use std::collections::BTreeMap;

/// Files of the product that may name the variants of one kind.
const MAX_FILES: usize = 5;

/// Where the variants are declared; it counts as one of the files.
const DECLARED: &str = "ebpf/src/hook.rs";

/// Kinds whose arguments the compiler knows without a file of their own: the variants of both enums, and the file of the way to attach.
const KINDS: &[(&str, &[&str], &str)] = &[
    ("interval", &["HookKind::Interval", "Attach::Interval"], "agent/src/kernel/attach/perf_event.rs"),
    ("rawtracepoint", &["HookKind::RawTracepoint", "Attach::RawTp"], "agent/src/kernel/attach/raw_tracepoint.rs"),
    ("tracepoint", &["HookKind::Tracepoint", "Attach::Tracepoint"], "agent/src/kernel/attach/tracepoint.rs"),
];

/// Kinds that more files name than a new one is promised to need.
pub fn check(files: &[(String, String)]) -> Vec<Finding> {
    let mut naming: BTreeMap<&str, Vec<(&str, usize)>> = BTreeMap::new();
    for (path, text) in files.iter().filter(|(path, _)| is_product(path)) {
        let named = names(&without_text(text));
        let of_product = named.iter().filter(|name| name.inside.first().is_none_or(|module| module != "tests"));
        let variants: Vec<(String, usize)> =
            of_product.flat_map(|name| name.path.windows(2).map(|two| (two.join("::"), name.line))).collect();
        for (kind, own, way) in KINDS {
            let variant = variants.iter().find(|(variant, _)| own.contains(&variant.as_str())).map(|(_, line)| *line);
            if let Some(line) = variant.or((path == way).then_some(1)) {
                naming.entry(kind).or_default().push((path, line));
            }
        }
    }
    let mut found = Vec::new();
    for (kind, ..) in KINDS {
        let files = naming.remove(kind).unwrap_or_default();
        if files.len() > MAX_FILES {
            let (path, line) = files[files.len() - 1];
            let names: Vec<&str> = files.iter().map(|(path, _)| *path).collect();
            let message = format!(
                "{} files name the hook `{kind}:`, and {MAX_FILES} are promised: ask {DECLARED} for it ({})",
                files.len(),
                names.join(", ")
            );
            found.push(Finding { path: path.to_owned(), line, level: Level::Error, message });
        }
        if files.iter().all(|(path, _)| *path != DECLARED) {
            let message = format!("the hook `{kind}:` has no variant here: take it off the list in xtask/src/tidy");
            found.push(Finding { path: DECLARED.to_owned(), line: 1, level: Level::Error, message });
        }
    }
    found
}

fn is_product(path: &str) -> bool {
    let roots = ["agent/src/", "config/src/", "crates/", "ebpf/src/", "ftrace/src/"];
    path.ends_with(".rs") && roots.iter().any(|root| path.starts_with(root)) && !is_test(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> (String, String) {
        (path.to_owned(), text.to_owned())
    }

    #[test]
    fn a_sixth_file_is_refused() {
        let all = "fn f() { (Attach::Interval, Attach::RawTp, HookKind::Tracepoint) }";
        let mut files = vec![file(DECLARED, all)];
        let more = "use kstrobe_ebpf::hook::Attach; fn f(a: Attach) { matches!(a, Attach::Interval { .. }) }";
        files.extend((1..MAX_FILES).map(|i| file(&format!("agent/src/kernel/{i}.rs"), more)));
        files.push(file("agent/tests/root.rs", more));
        files.push(file("agent/src/app/probe.rs", "mod tests { fn f() { Attach::Interval } }"));
        assert_eq!(check(&files).len(), 0);
        files.push(file("agent/src/kernel/last.rs", more));
        let found = check(&files);
        assert!(found.len() == 1 && found[0].path.ends_with("last.rs"), "{found:?}");
        assert!(found[0].message.starts_with("6 files name the hook `interval:`"), "{found:?}");
        assert_eq!(check(&[]).len(), KINDS.len());
    }
}
