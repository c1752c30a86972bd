//! A bill of materials: every crate in the program, as CycloneDX.

use crate::arch::Arch;
use crate::programs::{self, finish};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Crates without which the program would not be what it is.
const EXPECTED: [&str; 3] = ["aya", "tokio", "kstrobe-ebpf"];

/// Writes it; the number of crates in it.
pub fn write(root: &Path, arch: Arch, into: &Path) -> Result<usize> {
    let tool = programs::cargo_tool(root, "cargo-cyclonedx")?;
    let name = format!("kstrobe-{}.cdx", arch.of_images());
    let mut command = Command::new(tool);
    command.args(["cyclonedx", "--quiet", "--format", "json", "--spec-version", "1.5", "--no-build-deps"]);
    command.args(["--manifest-path", "agent/Cargo.toml", "--target", arch.of_compilers()]);
    finish(command.args(["--override-filename", &name]).current_dir(root))?;
    let file = format!("{name}.json");
    let text = fs::read_to_string(root.join("agent").join(&file)).context("the tool wrote no bill of materials")?;
    // It writes one beside every crate of ours, which lie in folders and in folders of these.
    for folder in folders(root)?.iter().flat_map(|folder| folders(folder).into_iter().flatten().chain([folder.clone()]))
    {
        // Most folders have none.
        let _ = fs::remove_file(folder.join(&file));
    }
    // The build directory is left out.
    let text = text.replace(&format!("{}/", root.display()), "");
    let bill: Value = serde_json::from_str(&text)?;
    let parts = bill["components"].as_array().context("a bill of materials without components")?;
    for name in EXPECTED {
        ensure!(parts.iter().any(|part| part["name"] == name), "{name} is not in the bill of materials");
    }
    fs::write(into, &text)?;
    Ok(parts.len())
}

fn folders(of: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(of).with_context(|| of.display().to_string())?;
    Ok(entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect())
}
