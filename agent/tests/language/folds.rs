//! Blocks of kind `fold VALUE..`: which buckets the values lie in, for the first histogram of the example before.

use super::fences::Page;
use super::fixture;
use kstrobe::config::plan;
use kstrobe_ebpf::ast::ExprKind;
use kstrobe_ebpf::buckets::{NativeBucket, Scheme};
use kstrobe_ebpf::layout::CellKind;
use std::fmt::Write;
use std::sync::Arc;

fn scheme(text: &str) -> Arc<Scheme> {
    let (mut probes, _) = kstrobe_config::probes(&[fixture::file("example", text)]);
    let artifact = plan::plan(probes.remove(0)).compile(&fixture::target()).expect("the example compiles");
    let cells = artifact.module.layout.tables.iter().flat_map(|t| &t.cells);
    let mut found = cells.filter_map(|cell| match &cell.kind {
        CellKind::Histogram(scheme) => Some(scheme.clone()),
        _ => None,
    });
    found.next().expect("the example has a histogram")
}

fn raw(word: &str) -> u64 {
    match kstrobe_ebpf::lang::parse(word).map(|e| e.kind) {
        Ok(ExprKind::Duration(v) | ExprKind::Int(v) | ExprKind::Size(v)) => v,
        other => panic!("`{word}` is no value: {other:?}"),
    }
}

fn table(scheme: &Scheme, words: &[&str]) -> String {
    let mut out = String::from("value       in-kernel bucket             le          native bucket\n");
    let per_octave = f64::from(1u32 << scheme.spec.schema);
    for word in words {
        let v = raw(word);
        let mut counts = vec![0; scheme.buckets()];
        let bucket = scheme.index(v);
        counts[bucket] = 1;
        let lower = bucket.checked_sub(1).map(|below| format!("({}", scheme.upper[below]));
        let upper = scheme.upper.get(bucket).map_or("+Inf)".to_owned(), |u| format!("{u}]"));
        let kernel = format!("{}, {upper}", lower.unwrap_or_else(|| "[0".to_owned()));
        let classic = scheme.fold_classic(&counts).iter().position(|c| *c == 1).expect("one observation");
        let le = scheme.classic().bounds.get(classic).map_or("+Inf", |(text, _)| text);
        let native = match scheme.native().of[bucket] {
            NativeBucket::Zero => format!("zero, up to {:.4e}", scheme.zero_threshold()),
            NativeBucket::Index(i) => {
                let bound = |i: i32| (f64::from(i) / per_octave).exp2();
                format!("{i}, ({:.4e}, {:.4e}]", bound(i - 1), bound(i))
            }
        };
        writeln!(out, "{word:<10}  {kernel:<27}  {le:<10}  {native}").expect("a String");
    }
    out
}

#[test]
fn values_lie_in_the_buckets_that_the_page_says() {
    let mut page = Page::read("docs/language.md");
    let folds = page.of("fold");
    assert!(!folds.is_empty());
    for (fence, _) in folds {
        let before = page.fences.iter().rfind(|f| f.info == "yaml" && f.line < fence.line);
        let scheme = scheme(page.body(before.expect("an example before the block")));
        let words: Vec<&str> = fence.info.split(' ').skip(1).collect();
        page.expect(fence.body, &format!("line {}", fence.line), table(&scheme, &words));
    }
    page.finish();
}
