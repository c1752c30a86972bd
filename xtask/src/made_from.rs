//! What is made once in `target` and kept: a folder remembers the files that it was made from.

use anyhow::{Context, Result};
use std::fs;
use std::path::Path;

/// Whether a folder was made from these files as they are now.
pub fn is_current(folder: &Path, files: &[&Path]) -> bool {
    fs::read_to_string(folder.join("made-from")).is_ok_and(|text| Some(text) == texts(files).ok())
}

/// Remembers the files of a folder. The last step of making it, so that a half made folder is not taken for a whole one.
pub fn remember(folder: &Path, files: &[&Path]) -> Result<()> {
    Ok(fs::write(folder.join("made-from"), texts(files)?)?)
}

fn texts(files: &[&Path]) -> Result<String> {
    files.iter().map(|file| fs::read_to_string(file).with_context(|| file.display().to_string())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_made_anew_when_its_files_change() {
        let folder = std::env::temp_dir().join(format!("kstrobe-made-from-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join("wanted");
        fs::write(&file, "one").unwrap();
        assert!(!is_current(&folder, &[&file]));
        remember(&folder, &[&file]).unwrap();
        assert!(is_current(&folder, &[&file]));
        fs::write(&file, "two").unwrap();
        assert!(!is_current(&folder, &[&file]));
        fs::remove_dir_all(&folder).unwrap();
    }
}
