//! Generated files are what stands in the tree: `BLESS=1` or `cargo xtask mixin` rewrites them.

use kstrobe_mixin::{FOLDERS, catalogue, files};
use std::path::Path;

#[test]
fn the_tree_has_what_is_generated() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let files = files(&catalogue());
    let bless = std::env::var_os("BLESS").is_some();
    let mut stale = Vec::new();
    for file in &files {
        let path = root.join(&file.path);
        if bless {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &file.text).unwrap();
        }
        if std::fs::read_to_string(&path).ok().as_ref() != Some(&file.text) {
            stale.push(file.path.clone());
        }
    }
    assert!(stale.is_empty(), "run `cargo xtask mixin`: {stale:?}");
    // What is made no more must go.
    let mut left = Vec::new();
    for folder in FOLDERS {
        for entry in std::fs::read_dir(root.join(folder)).unwrap().flatten().filter(|e| e.path().is_file()) {
            let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
            if !files.iter().any(|file| file.path == path) {
                left.push(path);
            }
        }
    }
    assert!(left.is_empty(), "not generated: {left:?}");
}
