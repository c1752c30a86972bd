//! What a day of the history takes on the disk: the default probes under the load of `cargo xtask demo`, and a day made of these seconds.

use super::agent::{Agent, Settings};
use super::scrapes::mib;
use super::table;
use crate::demo;
use anyhow::{Result, ensure};
use kstrobe_history::Second;
use kstrobe_history::disk::{Appender, Archive, Retention};
use kstrobe_history::segment::Encoder;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const DAY: u64 = 24 * 3600;
/// Of the shipped configuration, once it has a folder.
const RETENTION: Retention = Retention { seconds: DAY, bytes: 512 << 20 };
/// After the start, when the agent has all that it keeps for good.
const SETTLED: Duration = Duration::from_secs(30);

/// Measures all and returns the report.
pub fn run(build: &Path, binary: &Path, seconds: u64) -> Result<String> {
    let recorded = record(build, binary, Duration::from_secs(seconds))?;
    let (folder, config) = configured(build, "history-day")?;
    let simulated = repeat(&recorded.folder, &folder)?;
    let agent = Agent::start(&Settings { binary: binary.to_owned(), config: Some(config) })?;
    let start = agent.first_scrape;
    let begun = Instant::now();
    agent.get("/api/v1/query?metric=syscall_duration_seconds&from=-86400&to=0", "")?;
    let query = begun.elapsed();
    agent.stop()?;
    let a_day = recorded.bytes as f64 / recorded.seconds as f64 * DAY as f64;
    let rows = [
        ["measured, s".to_owned(), recorded.seconds.to_string()],
        ["bytes of it".to_owned(), recorded.bytes.to_string()],
        ["a day, extrapolated, MiB".to_owned(), format!("{:.0}", a_day / f64::from(1 << 20))],
        ["a day, of the same seconds again and again, MiB".to_owned(), format!("{:.0}", mib(simulated))],
        ["CPU of the threads that sample and write, % of one".to_owned(), format!("{:.3}", recorded.cpu * 100.0)],
        ["RSS after 30 s, MiB".to_owned(), format!("{:.1}", mib(recorded.rss_before))],
        ["RSS at the end, MiB".to_owned(), format!("{:.1}", mib(recorded.rss_after))],
        ["start with the folder of a day to the first scrape, ms".to_owned(), format!("{:.0}", millis(start))],
        ["a query of the whole day, ms".to_owned(), format!("{:.0}", millis(query))],
    ];
    let text = "### The history on disk\n\nThe default probes under the load of `cargo xtask demo`.\n\n";
    Ok(text.to_owned() + &table::markdown(&["", ""], rows.into_iter().map(Vec::from)))
}

struct Recorded {
    folder: PathBuf,
    seconds: u64,
    bytes: u64,
    /// Share of one CPU that the threads `history` and `history-disk` took.
    cpu: f64,
    rss_before: u64,
    rss_after: u64,
}

/// An empty folder, and a configuration whose history is in it.
fn configured(build: &Path, name: &str) -> Result<(PathBuf, PathBuf)> {
    let (folder, config) = (build.join(name), build.join(format!("{name}.yaml")));
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::write(&config, format!("history:\n  dir: {}\n", folder.display()))?;
    Ok((folder, config))
}

fn record(build: &Path, binary: &Path, time: Duration) -> Result<Recorded> {
    let (folder, config) = configured(build, "history-recorded")?;
    let agent = Agent::start(&Settings { binary: binary.to_owned(), config: Some(config) })?;
    let begun = Instant::now();
    let load = demo::load::start(&build.join("history-files"), time)?;
    std::thread::sleep(SETTLED.min(time));
    let rss_before = agent.resident_bytes()?;
    load.wait()?;
    let rss_after = agent.resident_bytes()?;
    let cpu = agent.cpu_time_of("history")?.as_secs_f64() / begun.elapsed().as_secs_f64();
    agent.stop()?;
    let (mut seconds, mut bytes) = (0, 0);
    for segment in Archive::open(&folder)?.segments()? {
        bytes += segment.bytes;
        seconds += segment.read()?.history.usage().seconds;
    }
    ensure!(seconds > 0, "the agent has recorded nothing");
    Ok(Recorded { folder, seconds, bytes, cpu, rss_before, rss_after })
}

/// Writes the seconds of a folder into another one, again and again, until they are a day that ends now. Returns its bytes.
fn repeat(from: &Path, to: &Path) -> Result<u64> {
    let archive = Archive::open(from)?;
    let (mut appender, _) = Appender::open(to, RETENTION)?;
    let mut encoder = Encoder::new(RETENTION.segment_bytes());
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let mut start = now - DAY;
    while start < now {
        archive.replay(0, u64::MAX, |replayed| {
            if start < now {
                let second = Second { start, ..replayed.second };
                let frame = encoder.encode(second, &replayed.probes, &replayed.marks);
                ensure!(appender.append(&frame)?, "a frame was refused");
                start += second.seconds;
            }
            Ok(())
        })?;
    }
    Ok(appender.bytes())
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
