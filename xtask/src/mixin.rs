//! `cargo xtask mixin`: writes what is made from the catalogue of metrics.

use anyhow::{Context, Result};
use std::fs;
use std::path::Path;

/// Writes the files that differ, and removes those that are made no more.
pub fn run(root: &Path) -> Result<()> {
    let files = kstrobe_mixin::files(&kstrobe_mixin::catalogue());
    let mut written = 0;
    for file in &files {
        let path = root.join(&file.path);
        if fs::read_to_string(&path).is_ok_and(|text| text == file.text) {
            continue;
        }
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        }
        fs::write(&path, &file.text).with_context(|| format!("writing {}", path.display()))?;
        println!("wrote {}", file.path);
        written += 1;
    }
    for folder in kstrobe_mixin::FOLDERS {
        for entry in fs::read_dir(root.join(folder)).with_context(|| format!("reading {folder}"))? {
            let entry = entry?;
            let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
            if entry.path().is_file() && !files.iter().any(|file| file.path == path) {
                fs::remove_file(entry.path()).with_context(|| format!("removing {path}"))?;
                println!("removed {path}");
            }
        }
    }
    println!("{} files, {written} written", files.len());
    Ok(())
}
