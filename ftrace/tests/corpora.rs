//! The kept cases of the fuzzers (`cargo xtask fuzz`), once more without one.

#[path = "../../tests/fuzz/src/cases/mod.rs"]
mod cases;

use flate2::read::GzDecoder;
use std::io::Read;

/// Runs all cases of an archive of `fuzz/corpus`.
fn every_case(target: &str, run: fn(&[u8])) {
    let file = format!("{}/../tests/fuzz/corpus/{target}.tar.gz", env!("CARGO_MANIFEST_DIR"));
    let packed = std::fs::read(file).unwrap();
    let mut count = 0;
    for entry in tar::Archive::new(GzDecoder::new(&packed[..])).entries().unwrap() {
        let (mut entry, mut case) = (entry.unwrap(), Vec::new());
        let name = entry.path().unwrap().display().to_string();
        entry.read_to_end(&mut case).unwrap();
        // Seen when the test fails.
        println!("{target} {name}");
        run(&case);
        count += 1;
    }
    assert!(count > 50, "{count} cases of {target}");
}

#[test]
fn format() {
    every_case("format", cases::format);
}

#[test]
fn page() {
    every_case("page", cases::page);
}

#[test]
fn dat() {
    every_case("dat", cases::dat);
}

#[test]
fn text() {
    every_case("text", cases::text);
}
