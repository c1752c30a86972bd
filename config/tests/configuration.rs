//! The keys of `kstrobe.yaml`, as the tables of [`kstrobe_config::schema`] have them, held against the parser; and the page made
//! from them, which `BLESS=1` rewrites.

use kstrobe_config::model::{Agent, SourceFile};
use kstrobe_config::schema::{BLOCKS, Block, Key, Type};
use kstrobe_config::{agent, render};
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

/// The configuration, or what is wrong with it.
fn parse(text: &str) -> Result<Agent, String> {
    let (agent, diagnostics) = agent(&Arc::new(SourceFile { name: "kstrobe.yaml".into(), text: text.into() }));
    match diagnostics.is_empty() {
        true => Ok(agent.unwrap()),
        false => Err(render(&diagnostics)),
    }
}

/// All that a configuration says, without the places where it says it.
fn meaning(text: &str) -> String {
    let mut shown = format!("{:?}", parse(text).unwrap_or_else(|wrong| panic!("{text}\n{wrong}")));
    while let Some(start) = shown.find("Location {") {
        let rest = &shown[start..];
        // After the file, whose text may hold braces.
        let column = rest.find(", column: ").unwrap();
        let end = column + rest[column..].find('}').unwrap() + 1;
        shown.replace_range(start..start + end, "_");
    }
    shown
}

fn keys() -> impl Iterator<Item = (&'static Block, &'static Key)> {
    BLOCKS.iter().flat_map(|block| block.keys.iter().map(move |key| (block, key)))
}

#[test]
fn every_key_is_taken_and_changes_the_configuration() {
    for (block, key) in keys() {
        let document = key.document(block, Some(key.example));
        assert_ne!(meaning(&document), meaning_without(block, key), "{document}");
    }
}

/// The configuration without the key; the default one where nothing is complete without it.
fn meaning_without(block: &Block, key: &Key) -> String {
    let without = key.document(block, None);
    if parse(&without).is_ok() { meaning(&without) } else { meaning("") }
}

#[test]
fn defaults_mean_the_same_as_no_key() {
    let mut count = 0;
    for (block, key) in keys().filter(|(_, key)| !key.default.is_empty()) {
        let document = key.document(block, Some(key.default));
        assert_eq!(meaning(&document), meaning(&key.document(block, None)), "{document}");
        count += 1;
    }
    assert!(count > 30, "only {count} keys have a default");
}

#[test]
fn ranges_and_words_are_those_of_the_parser() {
    for (block, key) in keys() {
        let takes = |value: &str| parse(&key.document(block, Some(value))).is_ok();
        let range = |least: u64, most: u64, unit: &str| {
            let value = |n: u64| format!("{n}{unit}");
            assert!(takes(&value(least)), "{} of {} refuses {}", key.name, block.path, value(least));
            assert!(least == 0 || !takes(&value(least - 1)), "{} takes {}", key.name, value(least - 1));
            if most < u64::MAX {
                assert!(takes(&value(most)), "{} of {} refuses {}", key.name, block.path, value(most));
                assert!(!takes(&value(most + 1)), "{} takes {}", key.name, value(most + 1));
            }
        };
        match key.ty {
            Type::Integer(least, most) => range(least, most, ""),
            Type::Duration(least, most) => range(least, most, "ns"),
            Type::DurationOrZero(least, most) => {
                range(least, most, "ns");
                assert!(takes("0"), "{}", key.name);
            }
            Type::Size(least, most) => range(least, most, "B"),
            Type::Choice(words) => {
                words.iter().for_each(|word| assert!(takes(word), "{} refuses {word}", key.name));
                assert!(!takes("other"), "{}", key.name);
            }
            Type::Bool => assert!(takes("true") && takes("false") && !takes("maybe"), "{}", key.name),
            Type::Text(_) => assert!(!takes("{ a: b }") && !takes("[a, b]"), "{}", key.name),
            Type::List(_) => {
                assert!(!takes("{ a: b }"), "{}", key.name);
                assert!(takes(&format!("[{}]", key.example.trim_matches(['[', ']']))), "{}", key.name);
            }
            Type::Texts(_) => assert!(takes("{ a: b }") && !takes("a"), "{}", key.name),
            Type::Bools(_) => assert!(takes("{ a: true }") && !takes("{ a: b }") && !takes("a"), "{}", key.name),
            Type::Block(path) | Type::Blocks(path) | Type::ListOf(path) => {
                assert!(BLOCKS.iter().any(|block| block.path == path), "no mapping {path}");
                assert!(!takes("[[7]]"), "{}", key.name);
            }
        }
    }
}

fn page() -> String {
    let mut page = String::from(
        "# Configuration\n\n\
         Every key of `kstrobe.yaml`, the file that `kstrobe run --config FILE` reads. All are optional but those that say\n\
         \"needed\"; an empty file is the defaults. `kstrobe check --config FILE` shows each mistake at its line, and whether the\n\
         kernel takes the probes that the file asks for. The agent reads the file again when it changes (at [rest](history.md) up to 17 s later), at SIGHUP and at\n\
         `POST /-/reload`: all of it or nothing. A key marked *restart* keeps its old value until the agent is started again,\n\
         and the log says so.\n\n\
         Durations have a unit (`500ms`, `5s`, `10m`, `24h`), sizes too (`64KiB`, `1GiB`) unless they are plain bytes. Probes are\n\
         described in [language.md](language.md), the file of `--web.config.file` in [web.md](web.md), the chart's values in\n\
         [its README](../helm/kstrobe/README.md).\n\n\
         Written by `BLESS=1 cargo test -p kstrobe-config --test configuration` from `config/src/schema.rs`.\n",
    );
    for block in BLOCKS {
        writeln!(page, "\n## {}\n\n{}\n", block.path, block.about).unwrap();
        page += "| key | type | default | restart | |\n|---|---|---|---|---|\n";
        for key in block.keys {
            let default = if key.default.is_empty() { String::new() } else { format!("`{}`", key.default) };
            let restart = if key.restart { "restart" } else { "" };
            let ty = key.ty.to_string().replace('|', "\\|");
            writeln!(page, "| `{}` | {ty} | {default} | {restart} | {} |", key.name, key.about).unwrap();
        }
    }
    page
}

#[test]
fn the_page_is_that_of_the_tables() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/configuration.md");
    let page = page();
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == page, "docs/configuration.md differs from config/src/schema.rs (BLESS=1 rewrites it)");
}
