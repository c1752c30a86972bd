//! Images of one layer, as `ctr images import` takes them, without a registry.

use crate::apt::finished;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Busybox, which is all that pods of tests and the sandboxes of all pods run.
pub const BUSYBOX: &str = "localhost/busybox:test";
pub const AGENT: &str = "localhost/kstrobe:test";

/// Both images as files.
pub fn make(folder: &Path, busybox: &Path, agent: &Path) -> Result<[PathBuf; 2]> {
    let rootfs = folder.join("busybox");
    fs::create_dir_all(rootfs.join("bin"))?;
    fs::copy(busybox, rootfs.join("bin/busybox")).with_context(|| busybox.display().to_string())?;
    for name in ["sh", "sleep", "wget", "true"] {
        let _ = std::os::unix::fs::symlink("busybox", rootfs.join("bin").join(name));
    }
    // As a sandbox it sleeps for good; the kubelet gives other pods their commands.
    let busybox = pack(BUSYBOX, &rootfs, &json!({"Entrypoint": ["/bin/busybox", "sleep", "2147483647"]}))?;
    let rootfs = folder.join("kstrobe");
    let config = crate::container::plain_image(agent, &rootfs)?;
    let agent = pack(AGENT, &rootfs, &config["config"])?;
    Ok([busybox, agent])
}

/// An archive as `docker save` writes it.
fn pack(name: &str, rootfs: &Path, run: &Value) -> Result<PathBuf> {
    for place in ["proc", "sys", "dev", "etc", "tmp"] {
        fs::create_dir_all(rootfs.join(place))?;
    }
    let parts = rootfs.with_extension("parts");
    fs::create_dir_all(&parts)?;
    let layer = parts.join("layer.tar");
    let owner = ["--owner=0", "--group=0", "--sort=name", "--mtime=@0"];
    finished(Command::new("tar").args(owner).arg("-C").arg(rootfs).arg("-cf").arg(&layer).arg("."))?;
    let sum = finished(Command::new("sha256sum").arg(&layer))?;
    let digest = sum.split(' ').next().context("sha256sum printed nothing")?;
    let config = json!({"architecture": std::env::consts::ARCH.replace("x86_64", "amd64").replace("aarch64", "arm64"),
        "os": "linux", "config": run, "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]}});
    fs::write(parts.join("config.json"), config.to_string())?;
    let manifest = json!([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]);
    fs::write(parts.join("manifest.json"), manifest.to_string())?;
    let image = rootfs.with_extension("tar");
    finished(Command::new("tar").arg("-C").arg(&parts).arg("-cf").arg(&image).args([
        "manifest.json",
        "config.json",
        "layer.tar",
    ]))?;
    Ok(image)
}
