//! `cargo xtask tidy`: what keeps the house in shape and no compiler checks.

mod docs;
mod errors;
mod hook_kinds;
mod overrides;
mod rules;
mod source;

use anyhow::{Context, Result, bail};
use std::fs;
use std::path::Path;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Warning,
    Error,
}

/// One thing that is wrong.
#[derive(Debug)]
struct Finding {
    path: String,
    /// 1-based.
    line: usize,
    level: Level,
    message: String,
}

/// Checks every text file of the project; fails when there is an error.
pub fn run(root: &Path) -> Result<()> {
    let mut files = Vec::new();
    collect(root, root, &mut files)?;
    files.sort();
    let mut found: Vec<Finding> = files.iter().flat_map(|(path, text)| rules::check(path, text)).collect();
    found.extend(rules::check_rooms(files.iter().map(|(path, text)| (path.as_str(), text.as_str()))));
    found.extend(files.iter().flat_map(|(path, text)| errors::check(path, text)));
    found.extend(errors::check_list(&files));
    found.extend(docs::check_names(&files));
    found.extend(files.iter().flat_map(|(path, text)| docs::check_comments(path, text)));
    found.extend(overrides::check(&files));
    found.extend(hook_kinds::check(&files));
    for finding in &found {
        let level = if finding.level == Level::Error { "error" } else { "warning" };
        println!("{}:{}: {level}: {}", finding.path, finding.line, finding.message);
    }
    let errors = found.iter().filter(|f| f.level == Level::Error).count();
    println!("tidy: {} files, {errors} errors, {} warnings", files.len(), found.len() - errors);
    if errors > 0 { bail!("the project is not tidy") } else { Ok(()) }
}

/// Reads every text file below `folder`, but not what builds leave behind. Paths begin at `root`.
fn collect(root: &Path, folder: &Path, files: &mut Vec<(String, String)>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default();
        // `.git` is a file in a linked worktree.
        if name == "target" || name == ".git" {
            continue;
        }
        if path.is_dir() {
            collect(root, &path, files)?;
        // The lock file is cargo's; a file that is not UTF-8 is no text.
        } else if name != "Cargo.lock"
            && let Ok(text) = fs::read_to_string(&path)
        {
            let inside = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
            files.push((inside, text));
        }
    }
    Ok(())
}
