//! Each `tests/oneliners/NAME.txt` is a line, `---`, and the probe that it stands for or what is wrong with it; `BLESS=1` rewrites
//! the latter. What is wrong is shown in the line, never in the YAML.

use kstrobe_config::oneliner::OneLiner;
use kstrobe_config::{probes, render};
use std::path::Path;

fn outcome(line: &str) -> String {
    let one = match OneLiner::parse(line, "oneliner") {
        Ok(one) => one,
        Err(wrong) => return render(&[wrong]),
    };
    let (read, wrong) = probes(std::slice::from_ref(one.yaml()));
    let wrong = one.place(wrong);
    assert!(wrong.iter().all(|d| d.at.as_ref().is_none_or(|at| at.file.text == line)), "{wrong:?}");
    if wrong.is_empty() {
        assert_eq!(read.len(), 1, "{line}");
        return one.yaml().text.clone();
    }
    render(&wrong)
}

#[test]
fn lines_are_the_probes_that_are_recorded() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oneliners");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() > 10);
    for path in files {
        let file = std::fs::read_to_string(&path).unwrap();
        let (line, expected) = file.split_once("\n---\n").expect("a line `---`");
        let found = outcome(line);
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&path, format!("{line}\n---\n{found}")).unwrap();
        } else {
            assert_eq!(found, expected, "{} differs (BLESS=1 rewrites it)", path.display());
        }
    }
}

/// Cut anywhere, a line is a probe or a mistake with a place, and never a panic.
#[test]
fn any_part_of_a_line_is_read() {
    let line = "print(str(args.filename, 64), \"a,)\", é) by comm, args.x[0] on syscall:[openat, open]:exit where comm != \"on\"";
    for (start, _) in line.char_indices() {
        for end in (start..=line.len()).filter(|end| line.is_char_boundary(*end)) {
            outcome(&line[start..end]);
        }
    }
}
