//! Tables of the language page that are made from the code, and a look at whether the page names every word there is.

use super::fences::Page;
use kstrobe::kernel::pollers;
use kstrobe_ebpf::kernel_target::FieldType;
use kstrobe_ebpf::{buckets, check, ir, lang, layout, program};
use std::fmt::Write;
use std::ops::Range;

/// What lies between `<!-- NAME -->` and `<!-- end of NAME -->`.
fn part(page: &Page, name: &str) -> Range<usize> {
    let (open, close) = (format!("<!-- {name} -->\n"), format!("<!-- end of {name} -->"));
    let start = page.text.find(&open).unwrap_or_else(|| panic!("no {open}")) + open.len();
    let end = page.text.find(&close).unwrap_or_else(|| panic!("no {close}"));
    start..end
}

fn limits() -> String {
    let mut rows = kstrobe_config::limits();
    let more = [
        ("classic bound or `buckets.max`, in nanoseconds or plain units", buckets::MAX_RAW),
        ("buckets of a histogram in the kernel", buckets::MAX_BUCKETS as u64),
        ("bytes of an expression", lang::MAX_BYTES as u64),
        ("depth of an expression", lang::MAX_DEPTH.into()),
        ("label sets that are found by arithmetic (the product of the labels' domains)", layout::MAX_DENSE_SLOTS),
        ("instructions of a program", program::Limits::default().instructions.into()),
        ("places that a probe's programs attach to", program::Limits::default().attach_points.into()),
        ("bytes of a program's stack", ir::MAX_STACK_BYTES.into()),
    ];
    rows.extend(check::limits().into_iter().chain(more).map(|(what, most)| (what, most.to_string())));
    let mut out = String::from("| what | at most, or range |\n|---|---|\n");
    for (what, range) in rows {
        writeln!(out, "| {what} | {range} |").expect("a String");
    }
    out
}

fn sources() -> String {
    let mut out = String::from("| source | a row | fields |\n|---|---|---|\n");
    for source in pollers::sources() {
        let fields: Vec<String> = source
            .fields()
            .into_iter()
            .map(|field| {
                let ty = match field.ty {
                    FieldType::Int { size, signed } => format!("{}{}", if signed { 's' } else { 'u' }, size * 8),
                    FieldType::Str(n) => format!("text of {n} bytes"),
                    other => panic!("{other:?} of {} has no words yet", field.name),
                };
                format!("`args.{}` {ty}", field.name)
            })
            .collect();
        writeln!(out, "| `{}` | {} | {} |", source.name, source.summary, fields.join(", ")).expect("a String");
    }
    out
}

#[test]
fn tables_are_those_of_the_code() {
    let mut page = Page::read("docs/language.md");
    for (name, table) in [("limits", limits()), ("sources", sources())] {
        page.expect(part(&page, name), name, table);
    }
    page.finish();
}

/// A word counts as described where it begins a piece of code.
#[test]
fn every_word_of_the_language_is_on_the_page() {
    let mut page = Page::read("docs/language.md");
    let described = |word: &str| {
        let mut rest = page.text.as_str();
        while let Some(at) = rest.find(&format!("`{word}")) {
            rest = &rest[at + 1 + word.len()..];
            if !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
                return true;
            }
        }
        false
    };
    let mut words: Vec<(String, &str)> = check::words().into_iter().map(|w| ("an expression".to_owned(), w)).collect();
    for (of, known) in kstrobe_config::words() {
        words.extend(known.into_iter().map(|word| (of.to_owned(), word)));
    }
    assert!(words.len() > 100, "only {} words", words.len());
    let missing: Vec<String> =
        words.iter().filter(|(_, word)| !described(word)).map(|(of, word)| format!("`{word}` of {of}")).collect();
    if !missing.is_empty() {
        page.complain(format!("it does not describe {}", missing.join(", ")));
    }
    page.finish();
}
