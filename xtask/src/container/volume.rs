//! ConfigMaps and Secrets as the kubelet mounts them: each file a link through `..data`, which moves all at once.

use anyhow::Result;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

/// Makes a folder show these files, replacing what it showed. `version` differs from the last one's.
pub fn show(folder: &Path, version: u32, files: &[(String, String)]) -> Result<()> {
    let data = format!("..version_{version}");
    fs::create_dir_all(folder.join(&data))?;
    for (name, text) in files {
        fs::write(folder.join(&data).join(name), text)?;
    }
    let before = fs::read_link(folder.join("..data")).ok();
    symlink(&data, folder.join("..data_tmp"))?;
    fs::rename(folder.join("..data_tmp"), folder.join("..data"))?;
    for (name, _) in files {
        // Already there when the files were shown before.
        let _ = symlink(Path::new("..data").join(name), folder.join(name));
    }
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        // A link of a file that is no longer there.
        if !name.to_string_lossy().starts_with("..") && !folder.join(&name).exists() {
            fs::remove_file(folder.join(&name))?;
        }
    }
    if let Some(before) = before {
        fs::remove_dir_all(folder.join(before))?;
    }
    Ok(())
}

/// The files of a folder, hidden ones left out.
pub fn files(folder: &Path) -> Result<Vec<(String, String)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_file() && !name.starts_with('.') {
            files.push((name, fs::read_to_string(&path)?));
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_move_all_at_once_and_go() {
        let folder = std::env::temp_dir().join(format!("kstrobe-volume-{}", std::process::id()));
        let file = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        show(&folder, 1, &[file("a", "1"), file("b", "2")]).unwrap();
        assert_eq!(fs::read_to_string(folder.join("a")).unwrap(), "1");
        show(&folder, 2, &[file("a", "3")]).unwrap();
        assert_eq!(files(&folder).unwrap(), [file("a", "3")]);
        assert!(!folder.join("..version_1").exists() && !folder.join("b").exists());
        fs::remove_dir_all(&folder).unwrap();
    }
}
