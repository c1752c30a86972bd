//! A tool in a terminal: the time from its start to its first bars.

use anyhow::{Context, Result, ensure};
use nix::pty::{OpenptyResult, Winsize, openpty};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Rows and columns of the terminal.
const SIZE: Winsize = Winsize { ws_row: 40, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
/// Writing 3 drops the page cache, dentries and inodes (Documentation/admin-guide/sysctl/vm.rst).
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// Time until `kstrobe runqlat -d 5s` has drawn bars, from disk.
pub fn first_bars(binary: &Path) -> Result<Duration> {
    nix::unistd::sync();
    std::fs::write(DROP_CACHES, "3").context(DROP_CACHES)?;
    let OpenptyResult { master, slave } = openpty(&SIZE, None)?;
    let begun = Instant::now();
    let mut child = Command::new(binary)
        .args(["runqlat", "-d", "5s"])
        .env("TERM", "xterm")
        .stdin(Stdio::null())
        .stdout(Stdio::from(slave))
        .stderr(Stdio::null())
        .spawn()?;
    let mut terminal = File::from(master);
    let (mut shown, mut chunk) = (Vec::new(), [0; 4096]);
    // `|` stands at both ends of a bar. The last reader gets EIO when no process has the terminal open.
    while !shown.contains(&b'|') {
        let read = terminal.read(&mut chunk).context("the tool ended without bars")?;
        shown.extend_from_slice(&chunk[..read]);
    }
    let time = begun.elapsed();
    std::thread::spawn(move || std::io::copy(&mut terminal, &mut std::io::sink()));
    let status = child.wait()?;
    ensure!(status.success(), "kstrobe runqlat: {status}");
    Ok(time)
}
