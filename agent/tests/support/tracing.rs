//! tracefs as a test sees it.

use super::{Folder, not_run};
use nix::mount::{MsFlags, mount, umount};

/// tracefs at a place of the test's own.
pub struct Mounted(Folder);

impl Mounted {
    pub fn new() -> Mounted {
        let folder = Folder::new();
        mount(Some("tracefs"), &folder.0, Some("tracefs"), MsFlags::empty(), None::<&str>).unwrap();
        Mounted(folder)
    }

    /// What a file says, without blanks around; `None` when there is none.
    pub fn read(&self, file: &str) -> Option<String> {
        std::fs::read_to_string(self.0.0.join(file)).ok().map(|text| text.trim().to_owned())
    }

    /// Writes a file.
    pub fn write(&self, file: &str, text: &str) {
        std::fs::write(self.0.0.join(file), text).unwrap_or_else(|e| panic!("{file}: {e}"));
    }

    /// Makes a folder: an instance.
    pub fn make(&self, folder: &str) {
        std::fs::create_dir(self.0.0.join(folder)).unwrap();
    }

    /// Removes a folder.
    pub fn remove(&self, folder: &str) {
        std::fs::remove_dir(self.0.0.join(folder)).unwrap();
    }

    /// Names in a folder.
    pub fn list(&self, folder: &str) -> Vec<String> {
        let names = std::fs::read_dir(self.0.0.join(folder)).unwrap();
        names.map(|name| name.unwrap().file_name().into_string().unwrap()).collect()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = umount(&self.0.0);
    }
}

/// The name of the kernel's function behind a system call; `None`, and noted, where function_graph does not run.
pub fn graph_root(test: &str, call: &str) -> Option<String> {
    let tracefs = Mounted::new();
    let there = tracefs.read("available_tracers").unwrap();
    let functions = tracefs.read("available_filter_functions").unwrap_or_default();
    let arch = ["__x64_sys_", "__arm64_sys_"].map(|prefix| format!("{prefix}{call}"));
    let root = arch.into_iter().find(|name| functions.lines().any(|line| line == name));
    if !there.split_whitespace().any(|name| name == "function_graph") || root.is_none() {
        not_run(test, "no function_graph");
        return None;
    }
    root
}
