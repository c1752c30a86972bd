//! Where programs are.

use std::path::{Path, PathBuf};

/// Where `cargo xtask test` unpacks what it does not install, beside the build: a root file system.
pub const UNPACKED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/programs");

/// Where a program (or a file, by its whole path) is: installed, `sbin` included, as `sudo` may not have it in its path, or
/// unpacked.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/programs/usr/bin");
    let folders = path.split(':').chain(["/usr/sbin", "/sbin"]).map(PathBuf::from).chain([unpacked]);
    // Joining an absolute path gives that path.
    folders.chain(postgresql()).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Debian keeps servers of several versions apart, outside the path.
fn postgresql() -> impl Iterator<Item = PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    versions.map(|version| version.path().join("bin"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn programs_and_headers_are_found_by_name_and_by_path() {
        assert!(super::find("sh").is_some_and(|path| path.is_absolute()));
        assert_eq!(super::find("/etc/passwd").as_deref(), Some(std::path::Path::new("/etc/passwd")));
        assert_eq!(super::find("no-such-program"), None);
    }
}
