//! Input made to hurt: no text panics, none takes long, and each refusal says why.

use kstrobe_config::model::SourceFile;
use kstrobe_config::{Severity, agent, embedded, probes, render, render_ansi};
use proptest::prelude::*;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Loads and renders `text` both ways; the diagnostics as text.
fn survive(text: String) -> String {
    let file = Arc::new(SourceFile { name: "hostile.yaml".into(), text });
    let (found, diagnostics) = probes(std::slice::from_ref(&file));
    for probe in &found {
        for text in probe.program.filter.iter().chain(probe.program.metrics.iter().filter_map(|m| m.value.as_ref())) {
            let place = text.at.sub(&text.value, 1..text.value.len());
            assert!(file.text.get(place.start..place.end).is_some());
        }
    }
    assert!(!found.is_empty() || !diagnostics.is_empty(), "nothing loaded and nothing said");
    for d in &diagnostics {
        let at = d.at.as_ref().expect("a file's mistake has a place");
        assert!(file.text.get(at.start..at.end).is_some());
    }
    render_ansi(&diagnostics);
    render_ansi(&agent(&file).1);
    render(&diagnostics)
}

/// The message must come soon even in a debug build on a busy machine; without limits these take minutes or all memory.
fn refused(text: String, message: &str) {
    let begin = Instant::now();
    let said = survive(text);
    assert!(begin.elapsed() < Duration::from_secs(5), "took {:?}", begin.elapsed());
    assert!(said.contains(message), "{said}");
}

#[test]
fn deep_nesting() {
    for opener in ["[", "{a: ", "- ", "? ", "[[],", "&a [", "!t ["] {
        refused(opener.repeat(100_000), "nested more than 32 deep");
    }
    let block: String = (0..300).map(|i| format!("{}a:\n", " ".repeat(i))).collect();
    refused(block, "nested more than 32 deep");
}

#[test]
fn alias_bombs() {
    let mut wide = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
    let mut deep = wide.clone();
    for i in 1..100 {
        let alias = format!("*a{}", i - 1);
        wide += &format!("a{i}: &a{i} [{}]\n", vec![alias.clone(); 10].join(","));
        deep += &format!("a{i}: &a{i} [{alias}]\n");
    }
    refused(wide, "more than 50000 values");
    refused(deep, "nested more than 32 deep");
    let merges = format!("a: &a {{ x: y }}\nb: {{ <<: [{}] }}\n", "*a,".repeat(10_000));
    refused(merges, "a probe has no key `a`");
    refused("probe: &a [*a, *a]\n".to_owned(), "an alias inside its own anchor has no end");
}

#[test]
fn large_files() {
    refused("x".repeat((1 << 20) + 1), "at most 1048576 are read");
    refused("- a\n".repeat(60_000), "more than 50000 values");
    refused("---\na: b\n".repeat(60_000), "more than 50000 values");
    refused((0..24_000).map(|i| format!("k{i}: v\n")).collect(), "a probe has no key `k0`");
    let metrics: String = (0..10_000).map(|i| format!("  m{i}: {{}}\n")).collect();
    refused(format!("probe: p\nmetrics:\n{metrics}"), "a metric needs `type`");
    refused(format!("probe: {}\n", "p".repeat(1_000_000)), "at most 64 characters");
    refused(format!("{}: x\n", "p".repeat(1000)), "a probe has no key `ppp");
}

#[test]
fn odd_text() {
    for text in [
        "\u{feff}",
        "\u{feff}probe: \u{feff}",
        "probe: \0",
        "\r",
        "a: |\r\r\n b",
        "%YAML 9.9\n---\n",
        "...\n...",
        "\u{2028}: \u{85}",
    ] {
        survive(text.to_owned());
    }
}

#[test]
fn a_mistake_in_one_shipped_file_leaves_the_others() {
    let mut files = embedded();
    let (all, gone) = (probes(&files).0.len(), probes(&files[..1]).0.len());
    files[0] = Arc::new(SourceFile { name: "x.yaml".into(), text: "probe: [".into() });
    let (rest, diagnostics) = probes(&files);
    assert_eq!((rest.len(), diagnostics.len()), (all - gone, 1));
    assert_eq!(diagnostics[0].severity, Severity::Error);
}

/// Text made of what YAML and the probe language react to.
fn soup() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("\n"),
        Just(" "),
        Just("  "),
        Just("- "),
        Just(": "),
        Just(":"),
        Just("---\n"),
        Just("["),
        Just("]"),
        Just("{"),
        Just("}"),
        Just(","),
        Just("'"),
        Just("\""),
        Just("|\n"),
        Just(">-\n"),
        Just("&a "),
        Just("*a"),
        Just("<<: "),
        Just("!"),
        Just("#"),
        Just("\\"),
        Just("~"),
        Just("é"),
        Just("\u{1f600}"),
        Just("\t"),
        Just("\r\n"),
        Just("probe"),
        Just("summary"),
        Just("at"),
        Just("span"),
        Just("start"),
        Just("metrics"),
        Just("x_total"),
        Just("type"),
        Just("counter"),
        Just("histogram"),
        Just("buckets"),
        Just("classic"),
        Just("syscall:[a, b]:exit"),
        Just("tracepoint:a:b"),
        Just("interval:s:1"),
        Just("5s"),
        Just("99999999999999999999"),
        Just("16MiB"),
        Just("0.1"),
    ];
    proptest::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

/// A shipped file with pieces of it removed, repeated or replaced.
fn mutant() -> impl Strategy<Value = String> {
    let change = (any::<prop::sample::Index>(), 0usize..40, soup(), any::<bool>());
    let file = 0..embedded().len();
    (file, proptest::collection::vec(change, 1..6)).prop_map(|(file, changes)| {
        let mut chars: Vec<char> = embedded()[file].text.chars().collect();
        for (at, length, text, keep) in changes {
            let start = at.index(chars.len() + 1);
            let end = (start + length).min(chars.len());
            let new = text.chars().take(8).collect::<Vec<_>>();
            let new = if keep { [chars[start..end].to_vec(), new].concat() } else { new };
            chars.splice(start..end, new);
        }
        chars.into_iter().collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_survived(text in any::<String>()) {
        survive(text);
    }

    #[test]
    fn any_soup_is_survived(text in soup()) {
        survive(text);
    }

    #[test]
    fn any_mutant_is_survived(text in mutant()) {
        survive(text);
    }
}
