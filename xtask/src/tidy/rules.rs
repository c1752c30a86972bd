//! The rules. Each looks at one file and says what is wrong with it, and why that matters.

use super::source::{Named, names, without_text};
use super::{Finding, Level};
use std::collections::BTreeMap;

/// More lines than this are worth a thought.
const SOFT_LINES: usize = 400;
/// More lines than this are not accepted.
const HARD_LINES: usize = 800;
/// Files that may be longer, each with the reason. A uniform table is easier to read in one piece; little else is.
const LONG_FILES: &[(&str, &str)] = &[];

/// Stages of the compiler: functions over data that never call one another, so that each can be tested and replaced
/// alone. Only `ebpf/src/lib.rs` strings them together.
const STAGES: &[&str] = &["lang", "check", "build", "lower", "elf"];
/// What the rooms that read maps and print numbers may know of the compiler: the data it leaves behind, and the code around the programs
/// at a hook, which depends on what else runs there.
const DATA_ONLY_ROOMS: &[&str] = &["kernel", "metrics", "export"];
const DATA: &[&str] =
    &["layout", "buckets", "typed", "kernel_target", "ir", "dispatch", "unwind", "Layout", "Target", "Artifact"];

/// Where unsafe code, the loader and raw system calls may stand.
const UNSAFE_ROOMS: &[(&str, &str)] = &[
    ("agent/src/kernel/", "the room for it"),
    ("agent/tests/support/frames.rs", "functions in assembly, whose frames tests know to the instruction"),
    ("agent/tests/support/points.rs", "a function in assembly with a static probe point of its own"),
    ("ebpf/tests/", "a virtual machine's programs read memory by address"),
    ("xtask/src/bench/", "loads the programs it compares with"),
];

/// Names that say nothing about what is inside.
const EMPTY_NAMES: &[&str] =
    &["manager", "managers", "helper", "helpers", "util", "utils", "utilities", "common", "misc", "shared"];

/// Files that have such a name with good reason.
const NAMED_WELL: &[(&str, &str)] =
    &[("ebpf/src/isa/helpers.rs", "the kernel's own word for the functions that a program may call")];

/// Text that belongs to one machine or to how the work is organised, not into the project. Split, so that this file does
/// not contain it.
const PRIVATE_WORDS: &[&str] = &[concat!("/wo", "rk/"), concat!("BRIEF", ".md"), concat!("ISSUE", ".md")];

/// Words of a private language, which has one subject for every sentence or a metaphor for a term of the field. Split, so that this
/// file does not contain them.
const PRIVATE_TERMS: &[&str] = &[
    concat!("who", "ever"),
    concat!("no", "body"),
    concat!("to", "ld"),
    concat!("trou", "ble"),
    concat!("goo", "ds"),
    concat!("he", "ir"),
    concat!("over", "heard"),
    concat!("de", "sk"),
];

/// Everything about one file. Paths use `/` and begin at the workspace's root.
pub fn check(path: &str, text: &str) -> Vec<Finding> {
    let mut found = private_words(path, text);
    found.extend(private_terms(path, text));
    found.extend(empty_names(path));
    if path.ends_with("Cargo.toml") {
        found.extend(crate_arrows(path, text));
    }
    if path.ends_with(".rs") {
        let named = names(&without_text(text));
        found.extend(size(path, text));
        found.extend(forbids_unsafe(path, text));
        found.extend(unsafe_rooms(path, &named));
        found.extend(stages(path, &named));
        found.extend(agent_rooms(path, &named));
        found.extend(room_arrows(path, &named));
        found.extend(limits(path, &named));
    }
    found
}

fn error(path: &str, line: usize, message: String) -> Finding {
    Finding { path: path.to_owned(), line, level: Level::Error, message }
}

fn private_words(path: &str, text: &str) -> Vec<Finding> {
    let hits = text.lines().enumerate().filter_map(|(number, line)| {
        let word = PRIVATE_WORDS.iter().find(|word| line.contains(**word))?;
        Some(error(path, number + 1, format!("`{word}` means nothing outside one machine: say it without")))
    });
    hits.collect()
}

/// Product code, docs and what users read. Tests quote inputs, and the changelog what was.
fn private_terms(path: &str, text: &str) -> Vec<Finding> {
    let read = [".rs", ".md", ".yaml", ".tpl", ".js", ".txt"].iter().any(|end| path.ends_with(end));
    if !read || path == "CHANGELOG.md" || path.starts_with("tests/") || is_test(path) {
        return Vec::new();
    }
    let hits = text.lines().enumerate().filter_map(|(number, line)| {
        let mut words = line.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
        let word = words.find(|word| PRIVATE_TERMS.contains(&word.to_lowercase().as_str()))?;
        Some(error(path, number + 1, format!("`{word}`: name the subject, with a term of the field")))
    });
    hits.collect()
}

/// Constants are `MAX_*` and `MIN_*`.
fn limits(path: &str, named: &[Named]) -> Vec<Finding> {
    let hits = named.iter().filter_map(|name| {
        let last = name.path.last()?;
        let (wrong, right) = [(concat!("MO", "ST_"), "MAX_"), (concat!("LEA", "ST_"), "MIN_")]
            .into_iter()
            .find(|(wrong, _)| last.starts_with(wrong))?;
        Some(error(path, name.line, format!("`{last}`: write {right} in place of {wrong}")))
    });
    hits.collect()
}

fn empty_names(path: &str) -> Vec<Finding> {
    if NAMED_WELL.iter().any(|(file, _)| *file == path) {
        return Vec::new();
    }
    let parts = path.split('/').map(|part| part.strip_suffix(".rs").unwrap_or(part));
    let bad = parts.filter(|part| EMPTY_NAMES.contains(part));
    bad.map(|part| error(path, 1, format!("`{part}` says nothing: name it for what it does"))).collect()
}

fn size(path: &str, text: &str) -> Option<Finding> {
    let lines = text.lines().count();
    let exempt = LONG_FILES.iter().find(|(file, _)| *file == path);
    let (level, limit) = match (lines, exempt) {
        (_, Some((_, reason))) if lines <= SOFT_LINES => {
            let message = format!("no longer long: take it off the list of long files ({reason})");
            return Some(Finding { path: path.to_owned(), line: 1, level: Level::Error, message });
        }
        (_, Some(_)) => return None,
        (n, None) if n > HARD_LINES => (Level::Error, HARD_LINES),
        (n, None) if n > SOFT_LINES => (Level::Warning, SOFT_LINES),
        _ => return None,
    };
    let message = format!("{lines} lines, more than {limit}: split it where two readers would look for two things");
    Some(Finding { path: path.to_owned(), line: limit + 1, level, message })
}

/// The crates and what each may depend on, but for its tests. One that is not here may not be.
const CRATES: &[(&str, &[&str])] = &[
    (
        "agent",
        &[
            "kstrobe-config",
            "kstrobe-ebpf",
            "kstrobe-export",
            "kstrobe-fleet",
            "kstrobe-ftrace",
            "kstrobe-history",
            "kstrobe-kube",
            "kstrobe-mixin",
            "kstrobe-tls",
            "kstrobe-web",
            "kstrobe-workloads",
        ],
    ),
    ("config", &["kstrobe-ebpf"]),
    ("crates/export", &["kstrobe-ebpf", "kstrobe-tls"]),
    ("crates/fleet", &["kstrobe-ftrace"]),
    ("crates/history", &["kstrobe-ebpf", "kstrobe-export"]),
    ("crates/kube", &["kstrobe-tls", "kstrobe-workloads"]),
    ("crates/mixin", &["kstrobe-config", "kstrobe-export"]),
    ("crates/tls", &[]),
    ("crates/web", &["kstrobe-config", "kstrobe-tls"]),
    ("crates/workloads", &[]),
    ("ebpf", &[]),
    ("ftrace", &[]),
    ("tests/fake-api", &[]),
    ("tests/testing", &[]),
];

/// Crates that the arrows do not concern: the chores know everything, and the fuzzers are a workspace of their own.
const APART: &[&str] = &["xtask", "tests/fuzz"];

/// Crates that hold unsafe code, in the rooms of [`UNSAFE_ROOMS`].
const UNSAFE_CRATES: &[&str] = &["agent"];

fn crate_arrows(path: &str, text: &str) -> Vec<Finding> {
    let Some(name) = path.strip_suffix("/Cargo.toml").filter(|name| !APART.contains(name)) else { return Vec::new() };
    let Some((_, known)) = CRATES.iter().find(|(of, _)| *of == name) else {
        return vec![error(path, 1, format!("{name} is not in the list of crates: xtask/src/tidy/rules.rs"))];
    };
    let mut section = "";
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let dependency = line.trim_start().split(['.', ' ', '=']).next().unwrap_or_default();
        if line.starts_with('[') {
            section = line;
        } else if section.contains("dependencies")
            && !section.contains("dev-")
            && dependency.starts_with("kstrobe")
            && !known.contains(&dependency)
        {
            let message = match known {
                [] => format!("{name} depends on no crate of the workspace"),
                known => format!("{name} depends on {} and no other crate of the workspace", known.join(", ")),
            };
            found.push(error(path, number + 1, message));
        }
    }
    found
}

fn forbids_unsafe(path: &str, text: &str) -> Option<Finding> {
    let name = path.strip_suffix("/src/lib.rs")?;
    let pure = CRATES.iter().any(|(of, _)| *of == name) && !UNSAFE_CRATES.contains(&name);
    let missing = pure && !text.lines().any(|line| line.trim() == "#![forbid(unsafe_code)]");
    missing.then(|| error(path, 1, "a pure crate says #![forbid(unsafe_code)]".to_owned()))
}

fn unsafe_rooms(path: &str, named: &[Named]) -> Vec<Finding> {
    if UNSAFE_ROOMS.iter().any(|(room, _)| path.starts_with(room)) {
        return Vec::new();
    }
    let hits = named.iter().filter_map(|name| {
        let what = match name.path.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["unsafe"] => "unsafe",
            ["aya" | "aya_obj", _, ..] => "aya",
            ["libc", _, ..] | ["nix", "libc", ..] => "libc",
            _ => return None,
        };
        Some(error(path, name.line, format!("`{what}` stands only under agent/src/kernel: ask that room for it")))
    });
    hits.collect()
}

/// The module a file is, as a path from the crate's root.
fn module_of(path: &str) -> Vec<String> {
    let inside = path.split_once("/src/").map_or("", |(_, rest)| rest);
    let mut parts: Vec<String> = inside.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if parts.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
        parts.pop();
    }
    parts
}

/// A path of the same crate from its root; `None` when it begins elsewhere.
fn resolve(path: &str, name: &Named) -> Option<Vec<String>> {
    let mut here = module_of(path);
    here.extend(name.inside.iter().cloned());
    let mut rest = name.path.as_slice();
    match rest.first().map(String::as_str) {
        Some("crate") => (here, rest) = (Vec::new(), &rest[1..]),
        Some("self") => rest = &rest[1..],
        Some("super") => {
            while rest.first().is_some_and(|part| part == "super") {
                here.pop();
                rest = &rest[1..];
            }
        }
        _ => return None,
    }
    here.extend(rest.iter().cloned());
    Some(here)
}

fn stages(path: &str, named: &[Named]) -> Vec<Finding> {
    let own = module_of(path);
    if !path.starts_with("ebpf/src/") || own.is_empty() {
        return Vec::new();
    }
    let hits = named.iter().filter_map(|name| {
        let target = resolve(path, name)?;
        let stage = target.first().filter(|first| STAGES.contains(&first.as_str()) && **first != own[0])?;
        let message = format!(
            "`{}` names the stage `{stage}`: stages meet only in ebpf/src/lib.rs (a test of several goes to ebpf/tests)",
            name.path.join("::")
        );
        Some(error(path, name.line, message))
    });
    hits.collect()
}

fn agent_rooms(path: &str, named: &[Named]) -> Vec<Finding> {
    let room = match path.split_once("/src/") {
        Some(("crates/export", _)) => "export".to_owned(),
        Some(("agent", _)) => module_of(path).first().cloned().unwrap_or_else(|| "the crate's root".to_owned()),
        _ => return Vec::new(),
    };
    if path.starts_with("agent/src/config/plan/") {
        return Vec::new();
    }
    let mut found = Vec::new();
    for name in named.iter().filter(|name| name.path[0] == "kstrobe_ebpf") {
        let what = name.path.get(1).map_or("", String::as_str);
        // Files of programs are named in what the compiler takes, and read for what it needs.
        let data_only = DATA_ONLY_ROOMS.contains(&room.as_str()) && !path.starts_with("agent/src/kernel/binaries/");
        if STAGES.contains(&what) || what == "compile" {
            let message = format!("`{}`: only agent/src/config/plan compiles", name.path.join("::"));
            found.push(error(path, name.line, message));
        } else if data_only && !what.is_empty() && !DATA.contains(&what) {
            let message = format!("{room} knows the compiler's data only ({}), not `{what}`", DATA.join(", "));
            found.push(error(path, name.line, message));
        }
    }
    found
}

/// The rooms of `agent/src` and which of each other they may import, but for their tests: each only those below it.
/// `cli` alone imports `http`, and hands its routes to `app`.
const ROOMS: &[(&str, &[&str])] = &[
    ("cli", &["app", "capture", "config", "http", "kernel", "kubernetes", "metrics", "probe"]),
    ("http", &["app", "capture", "kubernetes", "metrics", "probe"]),
    ("app", &["capture", "config", "kernel", "kubernetes", "metrics", "probe"]),
    ("kubernetes", &["capture", "config", "metrics", "probe"]),
    ("capture", &["kernel", "metrics"]),
    ("probe", &["config", "kernel", "metrics"]),
    ("metrics", &["config", "kernel"]),
    ("config", &["kernel"]),
    ("kernel", &[]),
];

/// Files of `agent/src` that are no room: they start `cli`, and say which rooms there are.
const NO_ROOMS: &[&str] = &["agent/src/main.rs", "agent/src/lib.rs"];

fn room_arrows(path: &str, named: &[Named]) -> Vec<Finding> {
    if !path.starts_with("agent/src/") || NO_ROOMS.contains(&path) || is_test(path) {
        return Vec::new();
    }
    let own = module_of(path).first().cloned().unwrap_or_default();
    let Some((_, known)) = ROOMS.iter().find(|(room, _)| *room == own) else {
        return vec![error(path, 1, format!("`{own}` is no room of agent/src: xtask/src/tidy/rules.rs lists them"))];
    };
    let hits = named.iter().filter(|name| name.inside.first().is_none_or(|module| module != "tests"));
    let hits = hits.filter_map(|name| {
        let room = resolve(path, name)?.into_iter().next()?;
        let is_room = ROOMS.iter().any(|(other, _)| *other == room);
        (is_room && room != own && !known.contains(&room.as_str())).then(|| {
            let message = format!("`{}`: {own} imports {} and no other room", name.path.join("::"), known.join(", "));
            error(path, name.line, message)
        })
    });
    hits.collect()
}

/// Files that only tests have.
pub fn is_test(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.contains("/tests/") || path.contains("/root_tests/")
}

/// What needs a look at all files at once: a room other than `config` must not name both `config` and `ebpf`, in whichever
/// of its files.
pub fn check_rooms<'a>(files: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<Finding> {
    let mut rooms: BTreeMap<String, [Option<(String, usize)>; 2]> = BTreeMap::new();
    for (path, text) in files.filter(|(path, _)| path.starts_with("agent/src/") && path.ends_with(".rs")) {
        let Some(room) = module_of(path).first().cloned() else { continue };
        let seen = rooms.entry(room).or_default();
        for name in names(&without_text(text)) {
            let which = match name.path[0].as_str() {
                "kstrobe_config" => 0,
                "kstrobe_ebpf" => 1,
                _ => continue,
            };
            seen[which].get_or_insert((path.to_owned(), name.line));
        }
    }
    rooms.remove("config");
    let both = rooms.into_iter().filter_map(|(room, [config, ebpf])| {
        let ((config_path, config_line), (path, line)) = (config?, ebpf?);
        let message = format!(
            "{room} names kstrobe_ebpf here and kstrobe_config at {config_path}:{config_line}: only the room config does both"
        );
        Some(error(&path, line, message))
    });
    both.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        check(path, text).into_iter().map(|f| format!("{}:{}", f.line, f.message)).collect()
    }

    #[track_caller]
    fn one(path: &str, text: &str, part: &str) {
        let found = messages(path, text);
        assert!(found.len() == 1 && found[0].contains(part), "{path}: {found:?}");
    }

    #[test]
    fn stages_name_data_but_not_each_other() {
        one("ebpf/src/lower/expr.rs", "use crate::{ir::Block, check::typed};", "stage `check`");
        one("ebpf/src/lower/mod.rs", "fn f() { super::elf::write() }", "stage `elf`");
        one("ebpf/src/layout.rs", "\n\nuse crate::build;", "3:`crate::build`");
        assert_eq!(
            messages("ebpf/src/lower/expr.rs", "use crate::lower::regs; use crate::ir; use super::regs;"),
            [""; 0]
        );
        assert_eq!(messages("ebpf/src/lower.rs", "mod tests { use super::lower; }"), [""; 0]);
        let lib = "#![forbid(unsafe_code)]\nuse crate::check; use crate::lower;";
        assert_eq!(messages("ebpf/src/lib.rs", lib), [""; 0]);
    }

    #[test]
    fn unsafe_and_the_loader_have_one_room() {
        one("agent/src/http/mod.rs", "fn f() { unsafe { g() } }", "`unsafe`");
        one("agent/src/config/plan/mod.rs", "use aya::Ebpf;", "`aya`");
        one("agent/tests/support/mod.rs", "fn f() { nix::libc::getpid(); }", "`libc`");
        assert_eq!(messages("agent/src/kernel/sys.rs", "unsafe fn f() { libc::getpid(); }"), [""; 0]);
        assert_eq!(
            messages("agent/src/http/mod.rs", "// unsafe\n#![deny(unsafe_code)] const A: &str = \"unsafe\";"),
            [""; 0]
        );
    }

    #[test]
    fn rooms_of_the_agent_know_the_data_only() {
        one("crates/export/src/text.rs", "use kstrobe_ebpf::lower;", "only agent/src/config/plan compiles");
        one("agent/src/metrics/fold.rs", "use kstrobe_ebpf::program::Program;", "data only");
        one("crates/export/src/text.rs", "use kstrobe_ebpf::program::Program;", "data only");
        one("agent/src/cli/explain.rs", "fn f() { kstrobe_ebpf::compile() }", "only agent/src/config/plan compiles");
        assert_eq!(messages("agent/src/metrics/fold.rs", "use kstrobe_ebpf::{buckets::Scheme, layout};"), [""; 0]);
        assert_eq!(messages("agent/src/config/plan/mod.rs", "use kstrobe_ebpf::compile;"), [""; 0]);
    }

    #[test]
    fn a_new_arrow_between_rooms_of_the_agent_is_refused() {
        one("agent/src/kernel/load.rs", "use crate::metrics::fold;", "1:`crate::metrics::fold`: kernel imports");
        one("agent/src/app/mod.rs", "\nuse crate::{capture, http};", "2:`crate::http`: app imports");
        one("agent/src/capture/run.rs", "fn f() { crate::app::run() }", "capture imports");
        one("agent/src/exporter.rs", "", "`exporter` is no room");
        assert_eq!(messages("agent/src/cli/mod.rs", "use crate::http::router; use super::app;"), [""; 0]);
        assert_eq!(messages("agent/src/kernel/read/tests.rs", "use crate::metrics::fold;"), [""; 0]);
        assert_eq!(messages("agent/src/kernel/read.rs", "mod tests { use crate::metrics::fold; }"), [""; 0]);
    }

    /// A list that leads back to a room would allow a circle.
    #[test]
    fn rooms_import_only_rooms_below_them() {
        for (at, (room, known)) in ROOMS.iter().enumerate() {
            let below: Vec<&str> = ROOMS[at + 1..].iter().map(|(room, _)| *room).collect();
            assert!(
                known.iter().all(|other| below.contains(other)),
                "{room} imports {known:?}, below it are {below:?}"
            );
        }
    }

    #[test]
    fn only_the_room_config_names_config_and_ebpf() {
        let files = [
            ("agent/src/cli/check.rs", "use kstrobe_config::model;"),
            ("agent/src/cli/explain.rs", "\nuse kstrobe_ebpf::layout;"),
            ("agent/src/config/plan/mod.rs", "use kstrobe_config::model; use kstrobe_ebpf::layout;"),
        ];
        let found = check_rooms(files.into_iter());
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].path.as_str(), found[0].line), ("agent/src/cli/explain.rs", 2));
    }

    #[test]
    fn pure_crates_stay_pure() {
        one(
            "ebpf/Cargo.toml",
            "[package]\nname = \"kstrobe-ebpf\"\n[dependencies]\nkstrobe-config.workspace = true",
            "4:",
        );
        one("config/src/lib.rs", "//! Text.", "forbid(unsafe_code)");
        let kube = "[dependencies]\nkstrobe-tls.workspace = true\nkstrobe-workloads.workspace = true\n";
        assert_eq!(messages("crates/kube/Cargo.toml", kube), [""; 0]);
        one("crates/kube/Cargo.toml", &format!("{kube}kstrobe-export.workspace = true"), "4:crates/kube depends on");
        one("tests/fake-api/src/lib.rs", "//! Text.", "forbid(unsafe_code)");
        one("crates/new/Cargo.toml", "[package]", "not in the list of crates");
    }

    #[test]
    fn sizes_names_and_words() {
        let lines = |n: usize| "//\n".repeat(n);
        assert_eq!(check("ftrace/src/a.rs", &lines(400)).len(), 0);
        assert_eq!(check("ftrace/src/a.rs", &lines(401))[0].level, Level::Warning);
        assert_eq!(check("ftrace/src/a.rs", &lines(801))[0].level, Level::Error);
        one("agent/src/kernel/utils.rs", "", "says nothing");
        assert_eq!(messages("ebpf/src/isa/helpers.rs", ""), [""; 0]);
        one("docs/x.md", &format!("see {}main", PRIVATE_WORDS[0]), "one machine");
        one("docs/x.md", &format!("a\nIt is seen by {}.", PRIVATE_TERMS[1]), "2:`");
        assert_eq!(messages("agent/tests/x.rs", &format!("// {}", PRIVATE_TERMS[1])), [""; 0]);
        one("ftrace/src/a.rs", concat!("const MO", "ST_LINES: usize = 1;"), "write MAX_");
    }
}
