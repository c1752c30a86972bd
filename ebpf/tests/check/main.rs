//! Case files: a small program, then what the check makes of it, the typed probe or its mistakes. `BLESS=1` rewrites the
//! second part. Then the shipped probes against this machine's own kernel.

mod btf_bytes;
mod fixture;
mod program_text;
mod soup;
mod vmlinux;

use kstrobe_ebpf::check::print_probe;
use kstrobe_ebpf::source::SpannedStr;
use kstrobe_ebpf::{Diagnostic, Program, Target, check, compile};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// A mistake as a person sees it: the text, carets below, and what to do.
pub fn show(diagnostic: &Diagnostic, texts: &[SpannedStr]) -> String {
    let Diagnostic { fault, at, message, hint, .. } = diagnostic;
    let mut out = format!("{}: {message}\n", format!("{fault:?}").to_lowercase());
    if let Some(at) = at {
        let text = &texts[at.text.0 as usize].value;
        let (start, end) = (at.span.start as usize, at.span.end as usize);
        assert!(text.is_char_boundary(start) && text.is_char_boundary(end), "{diagnostic:?} is outside `{text}`");
        let carets = "^".repeat(text[start..end].chars().count().max(1));
        writeln!(out, "  {text}\n  {}{carets}", " ".repeat(text[..start].chars().count())).expect("a String");
    }
    if let Some(hint) = hint {
        writeln!(out, "  hint: {hint}").expect("a String");
    }
    out
}

/// Whether nothing comes of a program. That it compiles is not said: each does whose check finds no mistake.
fn idle(program: &Program, target: &Target) -> String {
    match compile(program, target) {
        Ok(artifact) if artifact.is_idle() => "compiles to nothing\n".into(),
        Ok(_) => String::new(),
        Err(errors) => errors.iter().map(|error| format!("{:?}: {}\n", error.fault, error.message)).collect(),
    }
}

fn run(case: &str) -> String {
    let changes = case.lines().find_map(|l| l.strip_prefix("target: ")).unwrap_or("");
    let target = fixture::target(changes);
    let (program, texts) = program_text::read(case);
    match check(&program, &target) {
        Ok(probe) => {
            let warnings = probe.warnings.iter().map(|d| show(d, &texts));
            warnings.chain([print_probe(&probe, target.btf.as_ref()) + &idle(&program, &target)]).collect()
        }
        Err(list) => list.iter().map(|d| show(d, &texts)).collect(),
    }
}

#[test]
fn cases() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/check");
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .expect("the folder of this test")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|e| e == "case"))
        .collect();
    files.sort();
    assert!(files.len() > 40, "only {} cases found", files.len());
    let mut wrong = String::new();
    for path in files {
        let text = std::fs::read_to_string(&path).expect("a case file");
        let (case, expected) = text.split_once("---\n").unwrap_or((&text, ""));
        let found = run(case);
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&path, format!("{case}---\n{found}")).expect("a writable case file");
        } else if found != expected {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            writeln!(wrong, "{name}\n--- expected\n{expected}--- found\n{found}").expect("a String");
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}\nBLESS=1 accepts these");
}

/// The IR of the lines of a case.
fn compiled(case: &str) -> String {
    let (program, texts) = program_text::read(case);
    match compile(&program, &fixture::target("")) {
        Ok(artifact) => kstrobe_ebpf::ir::print::module(&artifact.module),
        Err(list) => panic!("{}", list.iter().map(|d| show(d, &texts)).collect::<String>()),
    }
}

/// `sk_word` lies in a union behind a pointer: that is what the verifier would find there.
#[test]
fn a_number_that_overlaps_a_pointer_is_read_through_a_helper() {
    let word = compiled("at: rawtracepoint:tcp_event\nmetric: gauge x\nvalue: args.sk.sk_word % 4\n");
    assert!(word.contains("probe_read_kernel"), "{word}");
    let drops = compiled("at: rawtracepoint:tcp_event\nmetric: gauge x\nvalue: args.sk.sk_drops\n");
    assert!(!drops.contains("probe_read_kernel"), "{drops}");
}

/// Line 5 is the label's: a refusal of the load must name it.
#[test]
fn what_a_label_reads_stands_on_the_labels_line() {
    let ir = compiled("at: rawtracepoint:tcp_event\nmetric: gauge x\nvalue: args.n\nlabel port: args.sk.sk_num\n");
    let load = ir.lines().position(|line| line.contains("kernel")).expect("a load");
    let mark = ir.lines().take(load).filter(|line| line.trim_start().starts_with('@')).last();
    assert_eq!(mark.map(str::trim), Some("@5:1"), "{ir}");
}
