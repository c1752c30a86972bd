//! A disk that only one test uses.

use super::{Folder, output};
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A disk of the test's own: the spare one that the kernel lab names, or a loop device over a file.
pub struct Disk {
    /// As below /sys/block.
    pub name: String,
    /// Whether to detach it at the end.
    looped: bool,
    _folder: Folder,
}

impl Disk {
    /// Takes it.
    pub fn new() -> Disk {
        let folder = Folder::new();
        if let Ok(name) = std::env::var("KSTROBE_SPARE_DISK") {
            return Disk { name, looped: false, _folder: folder };
        }
        let file = folder.write("disk", "");
        OpenOptions::new().write(true).open(&file).unwrap().set_len(16 << 20).unwrap();
        let device = output(Command::new("losetup").args(["--find", "--show"]).arg(&file));
        let name = device.trim().trim_start_matches("/dev/").to_owned();
        Disk { name, looped: true, _folder: folder }
    }

    /// Seconds that it takes at least for each of many requests, where the kernel lab says so.
    pub fn seconds_each(&self) -> Option<f64> {
        let iops = std::env::var("KSTROBE_SPARE_DISK_IOPS").ok().filter(|_| !self.looped)?;
        Some(1.0 / iops.parse::<f64>().unwrap())
    }

    /// Its file.
    pub fn device(&self) -> PathBuf {
        Path::new("/dev").join(&self.name)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.looped {
            let _ = Command::new("losetup").arg("--detach").arg(self.device()).status();
        }
    }
}
